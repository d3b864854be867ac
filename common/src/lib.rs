//! The pure core of the Machine operator, shared by the webhook, the controller and the tests.
//!
//! Modules depend on modules of their own layer and of those below it only, which `tests/lab lint` checks
//! (`tests/src/layers/core_layers.rs`):
//!
//! ```text
//! admission   one review: object, stored object, catalog → verdict and block
//! rules       what is refused and warned of; the block; effects of updates     rules::ALL lists them
//! normalize   spec and template merged, pins, digest of the spec
//! catalog     what rules may read of other objects
//! api         the kinds, as the API server stores them        render  objects of a backend for a block
//! violation   path, code, kind of fault, message    field_path, code, words    parts of messages
//! quantity    amounts of bytes     mac     MAC addresses     host_uri     URIs of libvirt hosts
//! address     IP networks and ranges of IP addresses
//! pci         addresses of PCI devices   cpu_list    lists of CPUs
//! glob        patterns for names   url_prefix  beginnings of URLs of images   userinfo  passwords in URIs
//! image_source   where images may come from
//! names       every name that the product gives or reads              json    JSON values that borrow their texts
//! merge_patch    JSON merge patches (RFC 7396)
//! guest_report    what a guest reports about itself, cut to limits
//! bounds      every limit and its reason
//! ```
//!
//! No module does IO, reads the clock or draws random numbers. The parts that both programs need
//! around the core are the crate `runtime`, in `common/runtime`.
#![deny(missing_docs)]

pub mod address;
pub mod admission;
pub mod api;
pub mod bounds;
pub mod catalog;
pub mod code;
pub mod cpu_list;
pub mod field_path;
pub mod glob;
pub mod guest_report;
pub mod host_uri;
pub mod image_source;
mod json;
pub mod mac;
pub mod merge_patch;
pub mod names;
pub mod normalize;
pub mod pci;
pub mod quantity;
pub mod render;
pub mod rules;
pub mod url_prefix;
mod userinfo;
pub mod violation;
mod words;

pub use rules::{CloudInitSchema, MissingNetworks, SchemaError};
pub use words::{labels_text, name_list};
