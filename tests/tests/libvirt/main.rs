//! Machines on libvirt hosts, with a real API server, webhook, controller, libvirtd, QEMU, and a guest that reports its
//! state. If libvirt cannot run on this machine, each test is skipped with the reason.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod addresses;
mod cores;
mod display;
mod effects;
mod environment;
mod existing;
mod firmware;
mod guest;
mod hardware;
mod headers;
mod images;
mod interruptions;
mod isolation;
mod kept;
mod leaders;
mod lifecycle;
mod lost;
mod moving;
mod parts;
mod placement;
mod power;
mod private;
mod probes;
#[path = "../effects/subject.rs"]
mod subject;
mod upgrade;
mod windows;
