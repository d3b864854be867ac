//! Serial numbers of disks: a guest names a disk by it, such as `/dev/disk/by-id/virtio-<serial>`.

use crate::api::machine::Disk;
use crate::bounds::SERIAL_MAX;
use crate::code::Code;
use crate::names;
use crate::normalize::{Item, Leaf, Pins};
use crate::userinfo::has_password;
use crate::violation::{Findings, Kind, Violation};

/// Characters of a long name that begin its default serial number.
const NAME_PART: usize = 13;
/// Bytes of the digest that end it, as two hexadecimal digits each: with `-` between the two parts it has
/// [`SERIAL_MAX`] characters.
const DIGEST_BYTES: usize = 3;

/// The serial number as its author wrote it.
pub(super) fn written<'a>(item: &Item<'a, Disk>) -> Leaf<&'a str> {
    item.pick("serial", |disk| disk.serial.as_deref())
}

/// The serial number of a disk: the written one, else the default. `None` for a disk without one, and for an invalid
/// one: rule [`Code::InvalidSerial`].
pub(super) fn serial(
    item: &Item<'_, Disk>,
    pins: &Pins,
    findings: &mut Findings,
) -> Option<String> {
    let leaf = written(item);
    let Some(text) = leaf.value else {
        let name = item.name().value?;
        return (!pins.disks_without_serial.contains(name)).then(|| default(name));
    };
    if is_serial(text) {
        return Some(text.to_owned());
    }
    let requirement = format!(
        "must be 1 to {SERIAL_MAX} letters, digits and the characters '_', '.', '+' and '-'"
    );
    let detail = match nearest(text) {
        Some(nearest) => format!("{requirement}; try '{nearest}'"),
        None => requirement,
    };
    findings.deny(Violation::new(leaf.path, Code::InvalidSerial, Kind::Invalid, detail).text(text));
    None
}

/// The serial number of a disk of this name that has none in the spec.
fn default(name: &str) -> String {
    if name.len() <= SERIAL_MAX {
        return name.to_owned();
    }
    let first: String = name.chars().take(NAME_PART).collect();
    format!("{first}-{}", names::digest(name, DIGEST_BYTES))
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '+' | '-')
}

fn is_serial(text: &str) -> bool {
    !text.is_empty() && text.len() <= SERIAL_MAX && text.chars().all(is_allowed)
}

/// The nearest serial number, if the text has any usable characters. None for a URI with a password, of which it would
/// consist.
fn nearest(text: &str) -> Option<String> {
    let mapped = text.chars().map(|c| if is_allowed(c) { c } else { '-' });
    let mapped: String = mapped.take(SERIAL_MAX).collect();
    let trimmed = mapped.trim_matches('-');
    let is_usable = trimmed.contains(|c: char| c.is_ascii_alphanumeric()) && !has_password(text);
    is_usable.then(|| trimmed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_name_or_its_beginning_and_digest() {
        for (name, expected) in [
            ("root", "root"),
            ("twenty-characters-xx", "twenty-characters-xx"),
            // printf 'twenty-one-characters' | sha256sum
            ("twenty-one-characters", "twenty-one-ch-0f5d9d"),
        ] {
            assert_eq!(default(name), expected);
            assert!(is_serial(&default(name)), "{name}");
        }
        let [one, other] = ["a", "b"].map(|end| default(&format!("{}{end}", "x".repeat(62))));
        assert!(one != other && is_serial(&one), "{one} {other}");
    }

    #[test]
    fn an_invalid_serial_number_is_corrected_to_the_nearest_one() {
        for (text, expected) in [
            ("my disk", Some("my-disk")),
            ("a/b", Some("a-b")),
            ("", None),
            ("é", None),
            ("https://user:word@host", None),
            ("123456789012345678901", Some("12345678901234567890")),
        ] {
            assert!(!is_serial(text), "{text}");
            assert_eq!(nearest(text).as_deref(), expected, "{text}");
        }
    }
}
