//! Keeps a certificate in service that API servers accept.
//!
//! ```text
//!  self-managed  CA Secret (shared) ◀─conditional writes─ rotation ─▶ leaf (this replica's, in memory)
//!                                                            └──────▶ caBundle of every webhook
//!  files         folder ──content polled──▶ certificate ──▶ presented   caBundle is written by others
//! ```
//!
//! `certs` decides what is to be done; this module does it in a cluster. It is level-triggered: each
//! pass compares everything and repairs what differs, whatever happened before.

mod api;
pub mod args;
mod ca_bundle;
mod ca_secret;
mod client_ca;
mod environment;
mod events;
mod files;
mod rotation;
mod start;
mod status;

pub use self::client_ca::ClientCa;
pub use self::start::start;
