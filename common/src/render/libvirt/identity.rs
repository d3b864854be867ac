//! What the things of a Machine are called on a host.
//!
//! ```text
//! domain   <namespace>-<name, cut>-<8 hex>
//! volume   <namespace>-<name, cut>-<8 hex>.<disk>.qcow2
//! seed     <namespace>-<name, cut>-<8 hex>.seed-<12 hex>.iso
//! ```
//! The 8 digits are of the Machine's uid. A domain's name ends up in paths (`<name>_VARS.fd`), and a new
//! domain with an old name would inherit what lies there: so no two Machines share a name, one that is
//! made anew included. Neither a namespace nor a Machine has a dot in its name, so the first dot of a
//! volume's name tells where the digits are.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::api::choice::{Choice as _, VolumeFormat};
use crate::render::identity::machine_uuid;

/// Longest name of a domain: with a dot, the 63 characters of a disk's name and `.qcow2` it makes the
/// 128 characters of a volume's name, and with `_VARS.fd` no path component is near the 255 bytes a file
/// system allows.
const NAME_MAX: usize = 128 - 1 - 63 - ".qcow2".len();
/// Digits of the Machine's uid in a name.
const ID_DIGITS: usize = 8;
/// So much of the digest of a seed is in its name: it tells the seeds of one Machine apart.
const SEED_BYTES: usize = 6;

/// Uuid of the domain, and so what the guest's SMBIOS tells: derived from the Machine's uid.
pub fn domain_uuid(machine_uid: &str) -> Uuid {
    machine_uuid(machine_uid)
}

/// The digits by which the things of a Machine are told from those of others.
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

/// Name of the volume that holds this seed: another content is another volume, so what a guest runs
/// with is never written over.
pub fn seed_name(namespace: &str, name: &str, machine_uid: &str, content: &[u8]) -> String {
    let domain = domain_name(namespace, name, machine_uid);
    let digest = Sha256::digest(content);
    let first = digest.iter().take(SEED_BYTES);
    let digits = first.fold(0, |digits: u64, byte| digits << 8 | u64::from(*byte));
    format!("{domain}.seed-{digits:012x}.iso")
}

/// Whether a volume of ours is a seed: no disk ends in this.
pub fn is_seed(volume: &str) -> bool {
    volume.contains(".seed-") && volume.strip_suffix(".iso").is_some()
}

/// Whether a volume was made for the Machine: by the digits in their place, and nowhere else in the name.
pub fn is_volume_of(volume: &str, machine_uid: &str) -> bool {
    let domain = volume.split_once('.').map(|(domain, _)| domain);
    let digits = domain.and_then(|domain| domain.rsplit_once('-'));
    digits.is_some_and(|(_, digits)| digits == short_id(machine_uid))
}
