//! The volumes of a Machine: one for each disk that has its own, and one for each medium in a CD-ROM drive. Existing
//! claims that disks are on are not included, so that code that iterates over the volumes cannot change or delete them.

use std::borrow::Cow;

use crate::api::choice::{AccessMode, DiskBus, ReclaimPolicy, VolumeMode};
use crate::api::machine::Image;
use crate::api::normalized::{Normalized, NormalizedCdrom, NormalizedDisk};
use crate::names;
use crate::quantity::Bytes;
use crate::render::identity::digest;

/// Hexadecimal digits of the digest in the name of a medium's claim: 32 bits, enough to tell apart the
/// media that one drive ever had.
const MEDIUM_DIGITS: usize = 8;

/// A volume of a Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume<'a> {
    /// Name of the volume's PersistentVolumeClaim.
    pub claim: String,
    /// The disk on the volume. A CD-ROM medium is rendered as a disk that is deleted with its claim,
    /// because it can be imported again at any time.
    pub disk: Cow<'a, NormalizedDisk>,
}

/// The volumes of a Machine, in the order in which the guest sees them.
pub fn volumes<'a>(machine: &'a str, block: &'a Normalized) -> impl Iterator<Item = Volume<'a>> {
    let disks = block.disks.iter().map(move |disk| Volume {
        claim: names::claim(machine, &disk.name),
        disk: Cow::Borrowed(disk),
    });
    let media = block.cdroms.iter().filter_map(move |cdrom| {
        let (image, size) = medium(cdrom)?;
        Some(Volume {
            claim: claim_of_medium(machine, cdrom),
            disk: Cow::Owned(disk_of_medium(cdrom, image, size)),
        })
    });
    disks.chain(media)
}

/// The image in a drive and its size; `None` for an empty drive. Admission refuses an image without a
/// size.
pub(super) fn medium(cdrom: &NormalizedCdrom) -> Option<(&Image, Bytes)> {
    Some((cdrom.image.as_ref()?, cdrom.size?))
}

/// The name contains a digest of image, size and storage class: if one of them changes, the medium is
/// imported into a new claim, and a running guest keeps the old one until KubeVirt changes the medium, at the latest at its
/// next start. Nothing is lost, because guests cannot write to a CD-ROM.
pub(super) fn claim_of_medium(machine: &str, cdrom: &NormalizedCdrom) -> String {
    let NormalizedCdrom {
        name,
        boot_order: _,
        hotpluggable: _,
        image,
        image_pin,
        size,
        storage_class,
    } = cdrom;
    let data_source = image_pin.as_ref().and_then(|pin| pin.data_source.as_ref());
    let mut digits = match data_source {
        None => digest(&(image, size, storage_class)),
        Some(data_source) => digest(&(image, size, storage_class, data_source)),
    };
    digits.truncate(MEDIUM_DIGITS);
    format!("{}-{digits}", names::claim(machine, name))
}

/// Whether a claim has the name of a medium of this drive.
pub(super) fn is_of_medium(machine: &str, drive: &str, claim: &str) -> bool {
    let digits = claim.strip_prefix(&names::claim(machine, drive));
    let digits = digits.and_then(|digits| digits.strip_prefix('-'));
    digits.is_some_and(|digits| {
        digits.len() == MEDIUM_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

fn disk_of_medium(cdrom: &NormalizedCdrom, image: &Image, size: Bytes) -> NormalizedDisk {
    NormalizedDisk {
        access_mode: AccessMode::ReadWriteOnce,
        boot_order: cdrom.boot_order,
        bus: DiskBus::Sata,
        hotpluggable: false,
        image: Some(image.clone()),
        image_pin: cdrom.image_pin.clone(),
        name: cdrom.name.clone(),
        reclaim_policy: ReclaimPolicy::Delete,
        selector: None,
        serial: None,
        size,
        storage_class: cdrom.storage_class.clone().unwrap_or_default(),
        volume_mode: VolumeMode::Filesystem,
        volume_name: None,
    }
}
