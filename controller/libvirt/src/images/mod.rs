//! Images: fetched once for each host into its image pool, and shared by every disk that is based on one.
//!
//! ```text
//! url ─ GET ─▶ this program ─ upload ─▶ volume ─ checksum right? ─▶ completion marker
//! ```
//! libvirt reports the full size of a volume whose upload was interrupted, so only the marker says that an image
//! is complete. Complete images are kept: libvirt deletes a volume under its overlays without a check.

pub(crate) mod fetch;
pub(crate) mod fetches;
pub(crate) mod names;
