//! Names of volumes that are filled, by an upload or as a copy, and of the markers that they are complete.
//!
//! ```text
//! base                        an image that a release before attempts fetched, or a user's own
//! base.attempt-<hex>          one attempt; the number is never used again
//! base[.attempt-<hex>].complete   the marker of that very volume
//! ```
//! libvirt renames nothing and reports the full size of a volume whose upload was interrupted. So every attempt has a
//! name of its own, and a late job of an old leader cannot touch the volume that a guest uses.

use std::fmt::Write as _;

use common::api::machine::Image;
use common::quantity::Bytes;
use common::render::libvirt::{
    ATTEMPT, FETCHED_IMAGE, MARKER, VolumeFormat, VolumeSpec, volume_xml,
};
use sha2::{Digest as _, Sha256};

use crate::access::VolumeKey;
use crate::images::fetches::FetchKey;

/// Digits of an image's digest in the name of its volume.
const DIGITS: usize = 24;

/// Name of the volume of an image: its own, or one that its source decides.
///
/// An image that is fetched with credentials exists once for each namespace: one without credentials that the server accepts
/// gets no volume of it, and a server may answer the same URL with another file to another user. The uid of the namespace
/// identifies it: the name may be given to another one once it was deleted.
pub(crate) fn image_volume(image: &Image, namespace_uid: &str) -> String {
    if let Some(volume) = &image.volume {
        return volume.clone();
    }
    let source = [image.url.as_deref(), image.checksum.as_deref()].map(Option::unwrap_or_default);
    let mut digest = Sha256::digest(source.join("\n"));
    if image.secret_ref.is_some() {
        // Not beside the texts: a URL or a checksum with a line break could then stand for another namespace.
        digest = Sha256::new()
            .chain_update(digest)
            .chain_update(namespace_uid)
            .finalize();
    }
    let mut digits = hex(digest.as_slice());
    digits.truncate(DIGITS);
    format!("{FETCHED_IMAGE}{digits}")
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

/// The volume that a marker marks; `None`: it is no marker.
pub(crate) fn marked(marker: &str) -> Option<&str> {
    marker.strip_suffix(MARKER)
}

/// Whether a volume is such a marker.
pub(crate) fn is_marker(volume: &str) -> bool {
    volume.ends_with(MARKER)
}

/// Name of an attempt to fill a volume. `number` is the time of the attempt in seconds since 1970: passes over a
/// Machine are further apart, and libvirt refuses a name that exists.
pub(crate) fn attempt(base: &str, number: i64) -> String {
    format!("{base}{ATTEMPT}{number:08x}")
}

/// Whether a volume is an attempt to fill another one.
pub(crate) fn is_attempt(volume: &str) -> bool {
    base_of(volume) != volume
}

/// The time of an attempt, in seconds since 1970; `None`: the volume is no attempt.
pub(super) fn attempt_time(volume: &str) -> Option<i64> {
    let (_, number) = volume.rsplit_once(ATTEMPT)?;
    i64::from_str_radix(number, 16)
        .ok()
        .filter(|_| is_number(number))
}

/// The name of a volume without the number of an attempt. A disk may be called `attempt-x`, so only hexadecimal
/// digits up to the end are a number.
pub(crate) fn base_of(volume: &str) -> &str {
    match volume.rsplit_once(ATTEMPT) {
        Some((base, number)) if is_number(number) => base,
        _ => volume,
    }
}

/// The disk that a volume of a Machine was made for: its name is between the first two dots.
pub(crate) fn disk_of(volume: &str) -> Option<&str> {
    volume.split('.').nth(1)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Name of the copy to a disk among the copies of its host. `disk`: pool and volume without the attempt.
pub(crate) fn copy_name((pool, volume): &VolumeKey) -> FetchKey {
    FetchKey {
        image: format!("{pool}/{volume}"),
        secret: None,
    }
}

/// Whether a volume, which is no marker, was made to be this one: itself, or an attempt.
pub(crate) fn is_attempt_of(volume: &str, base: &str) -> bool {
    volume == base || (is_attempt(volume) && base_of(volume) == base)
}

/// What a marker is made with: one byte, which the pool's smallest unit is enough for.
pub(crate) fn marker_xml(volume: &str) -> String {
    volume_xml(&VolumeSpec {
        name: &marker(volume),
        format: VolumeFormat::Raw,
        capacity: Bytes::new(1),
        backing: None,
    })
}

#[cfg(test)]
mod tests {
    use common::api::machine::ImageSecretRef;

    use super::*;

    #[test]
    fn the_volumes_of_a_base_are_itself_and_its_attempts() {
        let first = attempt("web.root.qcow2", 0x66f0_c0de);
        assert_eq!(first, "web.root.qcow2.attempt-66f0c0de");
        assert!(is_attempt_of(&first, "web.root.qcow2"));
        assert!(is_attempt_of("web.root.qcow2", "web.root.qcow2"));
        assert!(!is_attempt_of(&marker(&first), "web.root.qcow2"));
        assert!(!is_attempt_of("web.root.qcow2x", "web.root.qcow2"));
        assert_eq!(base_of(&first), "web.root.qcow2");
        assert_eq!(attempt_time(&first), Some(0x66f0_c0de));
        for other in ["web.root.qcow2", "web.attempt-x.qcow2", "web.attempt--1"] {
            assert_eq!(attempt_time(other), None, "{other}");
        }
        // A disk's name may look like it.
        assert!(!is_attempt("web.attempt-x.qcow2") && !is_attempt("web.attempt-1.qcow2"));
        assert!(!is_attempt(&marker(&first)));
    }

    #[test]
    fn another_source_is_another_volume() {
        let of = |url: &str, checksum: Option<&str>| {
            let image = Image {
                url: Some(url.into()),
                checksum: checksum.map(Into::into),
                ..Image::default()
            };
            image_volume(&image, "default")
        };
        let plain = of("https://a/b", None);
        assert!(plain.starts_with("vitistack-image-") && plain.len() == 16 + DIGITS);
        assert_ne!(plain, of("https://a/b", Some("sha256:1")));
        assert_ne!(plain, of("https://a/c", None));
        assert_eq!(plain, of("https://a/b", None));
    }

    /// The names are those of the release before, whose images are not fetched again.
    #[test]
    fn an_image_without_credentials_is_one_for_all_namespaces_and_a_private_one_is_one_for_each() {
        let public = Image {
            url: Some("https://a/b".into()),
            ..Image::default()
        };
        let private = Image {
            secret_ref: Some(ImageSecretRef::default()),
            ..public.clone()
        };
        // A namespace is its uid.
        let name = image_volume(&public, "a");
        assert_eq!(name, "vitistack-image-7464a4c2c13e1254616b54c8");
        assert_eq!(name, image_volume(&public, "b"));
        assert_ne!(name, image_volume(&private, "a"));
        assert_ne!(image_volume(&private, "a"), image_volume(&private, "b"));
    }
}
