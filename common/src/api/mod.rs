//! The kinds of `vitistack.io/v1alpha1`, as the API server stores them.
//!
//! ```text
//! Machine ── spec ──── the user's intent: text as written, nothing parsed, nothing defaulted
//!    │        └─ normalized: the block, typed; the only part of a spec a controller reads
//!    └────── status
//! MachineTemplate ──── what a template may bring: the same types as the intent
//! NetworkConfiguration ── a network segment
//! LibvirtHost ── a host of libvirt's: what it offers, and what is known of it
//! ```
//!
//! Fields of the intent are all optional and textual, because a wrong one must be reported with its
//! path and its fix next to every other fault, and not by the first error of a decoder. The typed
//! forms appear in [`normalized`], which only [`crate::normalize`] produces. A LibvirtHost is typed as far
//! as its schema is: what does not fit, the API server tells.

pub mod choice;
pub mod kind;
pub mod libvirt_host;
pub mod machine;
pub mod network;
pub mod normalized;
pub mod schema;
pub mod status;
pub mod template;

mod cel;
#[cfg(feature = "kube")]
mod crd;
mod lenient;
#[cfg(feature = "kube")]
mod reference;

#[cfg(feature = "kube")]
pub use crd::{CrdFile, crd_files};
#[cfg(feature = "kube")]
pub use libvirt_host::LibvirtHost;
#[cfg(feature = "kube")]
pub use machine::Machine;
#[cfg(feature = "kube")]
pub use network::NetworkConfiguration;
#[cfg(feature = "kube")]
pub use reference::{REFERENCE_FILE, reference};
#[cfg(feature = "kube")]
pub use template::MachineTemplate;
