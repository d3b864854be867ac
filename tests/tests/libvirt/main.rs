//! Machines on hosts of libvirt, with everything real: API server, webhook, controller, libvirtd, QEMU and a guest
//! that tells what it sees. Where libvirt cannot run, each test says so and is over.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;
mod firmware;
mod guest;
mod images;
mod interruptions;
mod lifecycle;
mod placement;
mod power;
