//! Images: fetched once for each host into its image pool, and shared by every disk that is based on one.
//!
//! ```text
//! url ─ allowed? GET, redirects too ─▶ header right? ─ upload ─▶ volume ─ checksum right? ─▶ completion marker
//! ```
//! libvirt reports the full size of a volume whose upload was interrupted, so only the marker says that an image
//! is complete. A complete image is removed only after nothing has used it for the retention time.

pub(crate) mod abandoned;
pub(crate) mod check;
pub(crate) mod credentials;
mod download;
pub(crate) mod fetch;
pub(crate) mod fetches;
pub(crate) mod names;
mod reader;
pub(crate) mod retention;
