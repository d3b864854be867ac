//! A volume to create.

use super::xml::Element;
use crate::api::choice::{Choice as _, VolumeFormat};
use crate::quantity::Bytes;

/// What a volume is wished to be.
#[derive(Clone, Copy, Debug)]
pub struct VolumeWish<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its format.
    pub format: VolumeFormat,
    /// What the guest sees.
    pub capacity: Bytes,
    /// Path and format of the image it lies over.
    pub backing: Option<(&'a str, VolumeFormat)>,
}

/// Libvirt's XML of a volume.
///
/// Nothing is allocated beforehand. Without saying so, libvirt writes a raw volume full of zeros.
pub fn volume_xml(wish: &VolumeWish<'_>) -> String {
    let amount = |name, bytes: u128| Element::new(name).attr("unit", "bytes").text(bytes);
    let format = |format: VolumeFormat| Element::new("format").attr("type", format.as_str());
    let backing = wish.backing.map(|(path, of)| {
        Element::new("backingStore")
            .child(Element::new("path").text(path))
            .child(format(of))
    });
    Element::new("volume")
        .child(Element::new("name").text(wish.name))
        .child(amount("capacity", wish.capacity.get()))
        .child(amount("allocation", 0))
        .child(Element::new("target").child(format(wish.format)))
        .children(backing)
        .to_string()
}
