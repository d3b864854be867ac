//! The volumes of a Machine: one for each disk, and one for each medium in a CD-ROM drive.

use std::borrow::Cow;

use crate::api::choice::{AccessMode, DiskBus, ReclaimPolicy, VolumeMode};
use crate::api::machine::Image;
use crate::api::normalized::{Normalized, NormalizedCdrom, NormalizedDisk};
use crate::names;
use crate::quantity::Bytes;
use crate::render::identity::digest;

/// So much of a digest tells the media of one drive apart.
const MEDIUM_DIGITS: usize = 8;

/// A volume of a Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume<'a> {
    /// Name of its claim.
    pub claim: String,
    /// What it is. A medium is a disk that can be had again at any time.
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

/// What is in a drive, and how large it is. Admission lets no image be without a size.
pub(super) fn medium(cdrom: &NormalizedCdrom) -> Option<(&Image, Bytes)> {
    Some((cdrom.image.as_ref()?, cdrom.size?))
}

/// Another medium, or the same in a volume of another size or class, is another claim: nothing is
/// written on it, so it is imported anew, and the guest has the old one until it is started again.
fn claim_of_medium(machine: &str, cdrom: &NormalizedCdrom) -> String {
    let NormalizedCdrom {
        name,
        boot_order: _,
        image,
        size,
        storage_class,
    } = cdrom;
    let mut digits = digest(&(image, size, storage_class));
    digits.truncate(MEDIUM_DIGITS);
    format!("{}-{digits}", names::claim(machine, name))
}

fn disk_of_medium(cdrom: &NormalizedCdrom, image: &Image, size: Bytes) -> NormalizedDisk {
    NormalizedDisk {
        access_mode: AccessMode::ReadWriteOnce,
        boot_order: cdrom.boot_order,
        bus: DiskBus::Sata,
        image: Some(image.clone()),
        name: cdrom.name.clone(),
        reclaim_policy: ReclaimPolicy::Delete,
        selector: None,
        size,
        storage_class: cdrom.storage_class.clone().unwrap_or_default(),
        volume_mode: VolumeMode::Filesystem,
        volume_name: None,
    }
}
