//! Container images as OCI archives, made without a container engine: a program, the libraries that it is linked with
//! and the packages that they are from, in one layer.
//!
//! ```text
//! readelf, dpkg-query ──► Files ──► layer.tar ──► config, manifest, index ──► archive.tar
//! ```
//! The bytes of an archive depend only on its files, its name and its labels.

mod architecture;
mod archive;
mod files;
mod product;
mod readers;
mod reference;

pub use architecture::Architecture;
pub use archive::Image;
pub use files::Files;
pub use product::{
    BASE_FILES, BASE_LIBRARIES, BUILD, BUILD_TIME, Revision, USER, build_release, components,
    product,
};
pub use readers::{podman, skopeo};
pub use reference::Reference;
