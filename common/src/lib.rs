//! The pure core of the Machine operator, shared by the webhook, the controller and the tests.
//!
//! ```text
//! api        the kinds, as stored
//! quantity   exact amounts of bytes        mac   MAC addresses        names   every name
//! render     what a normalized Machine becomes on a backend
//! ```
//!
//! Nothing here does IO, knows the time or is random; only `runtime`, behind a feature of that name,
//! holds what the two binaries do around the core.
#![deny(missing_docs)]

pub mod api;
pub mod mac;
pub mod names;
pub mod quantity;
pub mod render;
#[cfg(feature = "runtime")]
pub mod runtime;
