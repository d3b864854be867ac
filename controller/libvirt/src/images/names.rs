//! Names of the volumes of images, and of the markers that they are complete.

use std::fmt::Write as _;

use common::api::machine::Image;
use common::quantity::Bytes;
use common::render::libvirt::{VolumeFormat, VolumeWish, volume_xml};
use sha2::{Digest as _, Sha256};

/// Digits of an image's digest in the name of its volume.
const DIGITS: usize = 24;
/// The end of a marker's name.
const MARKER: &str = ".complete";

/// Name of the volume of an image: its own, or one that its source decides.
pub(crate) fn image_volume(image: &Image) -> String {
    if let Some(volume) = &image.volume {
        return volume.clone();
    }
    let source = [image.url.as_deref(), image.checksum.as_deref()].map(Option::unwrap_or_default);
    let mut digits = hex(Sha256::digest(source.join("\n")).as_slice());
    digits.truncate(DIGITS);
    format!("vitistack-image-{digits}")
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Name of the marker that a volume is complete.
pub(crate) fn marker(volume: &str) -> String {
    format!("{volume}{MARKER}")
}

pub(crate) fn is_marker(volume: &str) -> bool {
    volume.ends_with(MARKER)
}

/// What a marker is made with: one byte, which the pool's smallest unit is enough for.
pub(crate) fn marker_xml(volume: &str) -> String {
    volume_xml(&VolumeWish {
        name: &marker(volume),
        format: VolumeFormat::Raw,
        capacity: Bytes::new(1),
        backing: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_source_is_another_volume() {
        let of = |url: &str, checksum: Option<&str>| {
            image_volume(&Image {
                url: Some(url.into()),
                checksum: checksum.map(Into::into),
                ..Image::default()
            })
        };
        let plain = of("https://a/b", None);
        assert!(plain.starts_with("vitistack-image-") && plain.len() == 16 + DIGITS);
        assert_ne!(plain, of("https://a/b", Some("sha256:1")));
        assert_ne!(plain, of("https://a/c", None));
        assert_eq!(plain, of("https://a/b", None));
    }
}
