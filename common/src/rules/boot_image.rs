//! What a machine boots from, as far as defaults of other fields follow from it.

use crate::api::choice::{BootDevice, Choice as _};
use crate::api::machine::Disk;
use crate::api::machine_image::PinnedImage;
use crate::normalize::{Filled, Item, Leaf, Merged};

/// The MachineImage that the machine boots from: that of the first disk or CD-ROM in the boot order that is not blank.
pub(super) fn boot_image<'a>(merged: &Merged<'a>) -> Option<&'a PinnedImage> {
    let has_one = merged.disks.iter().any(is_pinned) || merged.cdroms.iter().any(is_pinned);
    if !has_one {
        return None;
    }
    let disk = merged.disks.iter().find(|item| is_filled(item));
    let cdrom = merged.cdroms.iter().find(|item| item.image().is_some());
    let written = written_order(merged).value;
    let order = written.map_or_else(
        || BootDevice::ALL.to_vec(),
        |entries| {
            let devices = entries.iter();
            devices
                .filter_map(|entry| BootDevice::parse(entry))
                .collect()
        },
    );
    for device in order {
        match device {
            BootDevice::Disk if disk.is_some() => return disk?.pinned_image(),
            BootDevice::Cdrom if cdrom.is_some() => return cdrom?.pinned_image(),
            BootDevice::Disk | BootDevice::Cdrom | BootDevice::Network => {}
        }
    }
    None
}

fn is_pinned<T: Filled>(item: &Item<'_, T>) -> bool {
    item.pinned_image().is_some()
}

/// The boot order as its author wrote it.
pub(super) fn written_order<'a>(merged: &Merged<'a>) -> Leaf<&'a [String]> {
    merged.pick(
        "bootOrder",
        |spec| spec.boot_order.as_deref().filter(|order| !order.is_empty()),
        |template| {
            template
                .boot_order
                .as_deref()
                .filter(|order| !order.is_empty())
        },
    )
}

/// Whether a disk has a content from its start: an image, or a volume that exists.
pub(super) fn is_filled(item: &Item<'_, Disk>) -> bool {
    let exists = |disk: &Disk| {
        let is_bound = disk.selector.is_some() || disk.volume_name.is_some();
        (is_bound || disk.claim_name.is_some()).then_some(())
    };
    let has_image = item.pick("image", |disk| disk.image.as_ref()).value;
    has_image.is_some() || item.pick("volumeName", exists).value.is_some()
}
