//! The XML of a volume to create.

use super::xml::Element;
use crate::api::choice::{Choice as _, VolumeFormat};
use crate::quantity::Bytes;

/// A volume to create in a storage pool.
#[derive(Clone, Copy, Debug)]
pub struct VolumeSpec<'a> {
    /// Name of the volume, unique in its pool.
    pub name: &'a str,
    /// Format of the volume's file.
    pub format: VolumeFormat,
    /// Capacity that the guest sees.
    pub capacity: Bytes,
    /// Path and format of the backing image, if the volume is an overlay.
    pub backing: Option<(&'a str, VolumeFormat)>,
}

/// Libvirt's XML of a volume.
///
/// The allocation is explicitly 0: without this element libvirt fills a raw volume with zeros.
pub fn volume_xml(spec: &VolumeSpec<'_>) -> String {
    let amount = |name, bytes: u128| Element::new(name).attr("unit", "bytes").text(bytes);
    let format = |format: VolumeFormat| Element::new("format").attr("type", format.as_str());
    let backing = spec.backing.map(|(path, of)| {
        Element::new("backingStore")
            .child(Element::new("path").text(path))
            .child(format(of))
    });
    Element::new("volume")
        .child(Element::new("name").text(spec.name))
        .child(amount("capacity", spec.capacity.get()))
        .child(amount("allocation", 0))
        .child(Element::new("target").child(format(spec.format)))
        .children(backing)
        .to_string()
}
