//! Names of a Machine's domain and volumes on a host.
//!
//! ```text
//! domain   <namespace>-<name, cut>-<8 hex>
//! volume   <namespace>-<name, cut>-<8 hex>.<disk>.qcow2
//! seed     <namespace>-<name, cut>-<8 hex>.seed-<12 hex>.iso
//! fetched  vitistack-image-<24 hex>
//! filled   any of these, with .attempt-<hex>; its marker ends in .complete
//! ```
//! The 8 digits are derived from the Machine's uid. libvirt uses a domain's name in paths
//! (`<name>_VARS.fd`), and a new domain with an old name would use the old files. So no two Machines may
//! have the same domain name, not even a Machine that was deleted and created again. Names of namespaces
//! and Machines contain no dot, so the digits end at the first dot of a volume's name.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::api::choice::{Choice as _, VolumeFormat};
use crate::render::identity::machine_uuid;

/// Longest name of a domain. With a dot, a disk's name of 63 characters and `.qcow2` this gives the 128
/// characters that a volume's name may have. With `_VARS.fd`, too, it is far below the 255 bytes that
/// file systems allow in a path component.
const NAME_MAX: usize = 128 - 1 - 63 - ".qcow2".len();
/// Hexadecimal digits derived from the Machine's uid in a name.
const ID_DIGITS: usize = 8;
/// Bytes of a seed's digest in its name: 48 bits, enough to tell apart the seeds of one Machine.
const SEED_BYTES: usize = 6;

/// Beginning of the name of an image that was fetched from a URL.
pub const FETCHED_IMAGE: &str = "vitistack-image-";
/// The end of the name of a marker that a volume is complete.
pub const MARKER: &str = ".complete";
/// What is between the name of a volume and the number of an attempt to fill it.
pub const ATTEMPT: &str = ".attempt-";

/// Uuid of the domain and of the guest's SMBIOS, derived from the Machine's uid.
pub fn domain_uuid(machine_uid: &str) -> Uuid {
    machine_uuid(machine_uid)
}

/// The digits in the names of the Machine's domain and volumes.
pub fn short_id(machine_uid: &str) -> String {
    let mut id = domain_uuid(machine_uid).simple().to_string();
    id.truncate(ID_DIGITS);
    id
}

/// Name of the domain.
pub fn domain_name(namespace: &str, name: &str, machine_uid: &str) -> String {
    let mut text = format!("{namespace}-{name}");
    text.truncate(NAME_MAX - 1 - ID_DIGITS);
    format!("{text}-{}", short_id(machine_uid))
}

/// Name of a disk's volume.
pub fn volume_name(
    namespace: &str,
    name: &str,
    machine_uid: &str,
    disk: &str,
    format: VolumeFormat,
) -> String {
    let domain = domain_name(namespace, name, machine_uid);
    format!("{domain}.{disk}.{}", format.as_str())
}

/// Name of the volume with this seed image. The name contains a digest of the content, so a new content is
/// written to a new volume, and the volume of a running guest is never overwritten.
pub fn seed_name(namespace: &str, name: &str, machine_uid: &str, content: &[u8]) -> String {
    let domain = domain_name(namespace, name, machine_uid);
    let digest = Sha256::digest(content);
    let first = digest.iter().take(SEED_BYTES);
    let digits = first.fold(0, |digits: u64, byte| digits << 8 | u64::from(*byte));
    format!("{domain}.seed-{digits:012x}.iso")
}

/// Name of the file with the output of a Machine's serial console.
pub fn console_log_name(namespace: &str, name: &str, machine_uid: &str) -> String {
    let domain = domain_name(namespace, name, machine_uid);
    format!("{domain}{CONSOLE_LOG}")
}

/// End of the name of the file with the output of a serial console.
const CONSOLE_LOG: &str = ".console.log";

/// Whether a volume of a Machine is the log of its console: a disk cannot have a name with dots.
pub fn is_console_log(volume: &str) -> bool {
    volume.ends_with(CONSOLE_LOG)
}

/// Whether a volume of a Machine is a seed image: names of disks' volumes never end in `.iso`.
pub fn is_seed(volume: &str) -> bool {
    volume.contains(".seed-") && volume.strip_suffix(".iso").is_some()
}

/// Whether a volume was created for the Machine whose domain has this name. The name is compared as a whole: among
/// millions of Machines two have the same digits, but they have other namespaces and names.
pub fn is_volume_of(volume: &str, domain: &str) -> bool {
    let owner = volume.split_once('.').map(|(owner, _)| owner);
    owner == Some(domain)
}

/// The digits of the Machine in the name of a volume that was created for one: they are at the end of the domain's name,
/// and count nowhere else in the name. Of other volumes any text.
pub fn volume_owner(volume: &str) -> Option<&str> {
    let (domain, _) = volume.split_once('.')?;
    domain.rsplit_once('-').map(|(_, digits)| digits)
}

/// Whether a volume has the name that only the controller gives to a raw disk of a Machine. The guest writes every byte
/// of such a volume, so nothing that a program reads in it says what it is.
pub fn is_raw_disk(volume: &str) -> bool {
    let plain = without_attempt(volume);
    is_of_machine(plain) && plain.strip_suffix(".raw").is_some()
}

/// The digits of the Machine in the name of a disk's volume, or of an attempt to fill one; `None`: it is neither.
pub fn disk_owner(volume: &str) -> Option<&str> {
    let is_disk = is_reserved_volume(volume)
        && !volume.starts_with(FETCHED_IMAGE)
        && !volume.ends_with(MARKER)
        && !is_seed(volume);
    volume_owner(volume).filter(|_| is_disk)
}

/// Whether a volume was made as a disk of the Machine whose domain has this name, or is an attempt to fill one.
pub fn is_disk_of(volume: &str, domain: &str) -> bool {
    disk_owner(volume).is_some() && is_volume_of(volume, domain)
}

/// How a volume that a guest had is written into another one, as part of a sentence. Without `-f` the header is believed,
/// which a guest may have written.
pub const AS_THE_GUEST_HAD_IT: &str =
    "in the format in which its guest had it (qemu-img convert -f raw -O qcow2, or -f qcow2)";

/// Whether a volume has a name that only the controller gives: a disk or a seed of any Machine, a fetched image, or a
/// marker of one. No image of a Machine may name such a volume: a guest writes its disk, and an image was fetched for
/// those who named its URL.
pub fn is_reserved_volume(volume: &str) -> bool {
    let plain = without_attempt(volume.strip_suffix(MARKER).unwrap_or(volume));
    volume.starts_with(FETCHED_IMAGE) || is_of_machine(plain)
}

fn without_attempt(volume: &str) -> &str {
    match volume.rsplit_once(ATTEMPT) {
        Some((base, number)) if is_hex(number) => base,
        _ => volume,
    }
}

/// Whether a name has the form of a disk's or a seed's.
fn is_of_machine(volume: &str) -> bool {
    let Some((domain, rest)) = volume.split_once('.') else {
        return false;
    };
    // Namespace, name and digits.
    let mut parts = domain.rsplitn(3, '-');
    let has_digits = parts
        .next()
        .is_some_and(|digits| digits.len() == ID_DIGITS && is_hex(digits));
    let is_disk = rest.rsplit_once('.').is_some_and(|(disk, format)| {
        !disk.contains('.') && ["qcow2", "raw", "iso"].contains(&format)
    });
    has_digits && parts.count() == 2 && is_disk
}

fn is_hex(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "5f0c7c1e-0b4d-4a1c-9d6e-1a2b3c4d5e6f";

    #[test]
    fn only_a_raw_disk_of_a_machine_has_the_name_of_one() {
        let raw = volume_name("other", "web", UID, "data-1", VolumeFormat::Raw);
        let attempt = format!("{raw}{ATTEMPT}66f0c0de");
        for name in [&raw, &attempt] {
            assert!(is_raw_disk(name), "{name}");
        }
        let qcow2 = volume_name("other", "web", UID, "data-1", VolumeFormat::Qcow2);
        for name in [
            &qcow2,
            &format!("{qcow2}{ATTEMPT}66f0c0de"),
            &seed_name("other", "web", UID, b"content"),
            &format!("{attempt}{MARKER}"),
            &format!("{FETCHED_IMAGE}0123456789abcdef01234567{ATTEMPT}66f0c0de"),
            // A snapshot of a raw disk is an overlay of it. libvirt puts the name of the snapshot in place of the
            // last part.
            &raw.replace(".raw", ".snapshot"),
            &format!("{raw}.snapshot"),
            "guest.raw",
            "web.data.raw",
        ] {
            assert!(!is_raw_disk(name), "{name}");
        }
    }

    #[test]
    fn names_that_the_controller_gives_are_reserved_and_names_of_distributions_are_not() {
        let disk = volume_name("other", "web", UID, "root", VolumeFormat::Qcow2);
        let raw = volume_name("other", "web", UID, "data-1", VolumeFormat::Raw);
        let seed = seed_name("other", "web", UID, b"content");
        for name in [
            &disk,
            &raw,
            &seed,
            &format!("{disk}{ATTEMPT}66f0c0de"),
            &format!("{disk}{ATTEMPT}66f0c0de{MARKER}"),
            &format!("{FETCHED_IMAGE}0123456789abcdef01234567"),
            &format!("{FETCHED_IMAGE}0123456789abcdef01234567{ATTEMPT}66f0c0de"),
        ] {
            assert!(is_reserved_volume(name), "{name}");
        }
        for name in [
            "guest.raw",
            "debian-12-genericcloud-amd64-20240717.qcow2",
            "debian-12-genericcloud-amd64-20240717-1811.qcow2",
            "fedora-20240101.qcow2",
            "fedora-20240101.x86_64.qcow2",
            "windows-2022-11223344.vhd.img",
            "kept-web-root.qcow2",
            "golden",
            "golden.complete",
            "",
        ] {
            assert!(!is_reserved_volume(name), "{name}");
        }
    }
}
