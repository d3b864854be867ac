//! The kinds of `vitistack.io/v1alpha1`, as the API server stores them.
//!
//! ```text
//! Machine ── spec ──── the user's intent: text as written, nothing parsed, nothing defaulted
//!    │        └─ normalized: the block, typed; the controller reads only it and cloudInit
//!    └────── status: what the controller observed
//! MachineTemplate ──── values for fields that a Machine does not set: the same types as the intent
//! NetworkConfiguration ── a network segment
//! LibvirtHost ── a libvirt host: what its administrator offers, and what the controller observed
//! MachineAddress ── an IP address on a network segment that a Machine holds, written by the controller
//! MachineImage ── an image by name, written by the administrator; status: what the controller observed
//! MachinePolicy ── what the Machines and NetworkConfigurations of some namespaces may be
//! ```
//!
//! All fields of the intent are optional and hold text, so that each fault is reported with its path and
//! its fix, together with all other faults: a decoder would stop at the first one. The typed forms are in
//! [`normalized`], which only [`crate::normalize`] produces. A LibvirtHost is typed as far as its schema
//! is: the API server reports what does not match the schema.

pub mod block_bounds;
pub mod choice;
pub mod host_limits;
pub mod kind;
pub mod left_volumes;
pub mod lenient;
pub mod libvirt_host;
pub mod machine;
pub mod machine_address;
pub mod machine_image;
pub mod machine_policy;
pub mod network;
pub mod normalized;
pub mod schema;
pub mod status;
pub mod template;

mod cel;
#[cfg(feature = "kube")]
mod crd;
#[cfg(feature = "kube")]
mod reference;

#[cfg(feature = "kube")]
pub use crd::{CrdFile, crd_files};
#[cfg(feature = "kube")]
pub use libvirt_host::LibvirtHost;
#[cfg(feature = "kube")]
pub use machine::Machine;
#[cfg(feature = "kube")]
pub use machine_address::MachineAddress;
#[cfg(feature = "kube")]
pub use machine_image::MachineImage;
#[cfg(feature = "kube")]
pub use machine_policy::MachinePolicy;
#[cfg(feature = "kube")]
pub use network::NetworkConfiguration;
#[cfg(feature = "kube")]
pub use reference::{REFERENCE_FILE, reference};
#[cfg(feature = "kube")]
pub use template::MachineTemplate;
