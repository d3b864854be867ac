//! The pure core of the Machine operator, shared by the webhook, the controller and the tests.
//!
//! ```text
//! api        the kinds, as stored
//! quantity   exact amounts of bytes        mac   MAC addresses        names   every name
//! host_uri   URIs of libvirt hosts          words  of messages
//! catalog    what rules may ask            rules a file per family    code    their codes
//! normalize  intent + pins → block         violation  what is wrong, where, and the fix
//! admission  a review: intent, old object, catalog → verdict
//! render     what a normalized Machine becomes on a backend
//! ```
//!
//! Nothing here does IO, knows the time or is random. What both programs need around the core is the
//! crate `runtime`, in `common/runtime`.
#![deny(missing_docs)]

pub mod admission;
pub mod api;
pub mod bounds;
pub mod catalog;
pub mod code;
pub mod field_path;
pub mod host_uri;
mod json;
pub mod mac;
pub mod names;
pub mod normalize;
pub mod quantity;
pub mod render;
pub mod rules;
pub mod violation;
mod words;

pub use rules::{CloudInitSchema, MissingNetworks, SchemaError};
pub use words::name_list;
