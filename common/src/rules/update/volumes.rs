//! Warnings of changed disks, and of drives and their media.

use crate::api::choice::{Backend, Choice as _, MachineType, VolumeMode};
use crate::api::machine::{Cdrom, Disk};
use crate::api::normalized::{AnyDisk, Normalized, NormalizedCdrom, NormalizedDisk};
use crate::normalize::{Item, Merged};
use crate::render::libvirt::hotplug;
use crate::rules::disks::existing;
use crate::words::quoted;

use super::announced::{Fit, Warnings};
use super::effects::Field;

/// The disks of a block, each with whether it can be plugged into the guest of `running`.
fn pluggable_disks<'b>(block: &'b Normalized, running: &Normalized) -> Vec<(&'b str, Fit)> {
    let is_q35 = running.machine_type == MachineType::Q35;
    let fits = |disk: AnyDisk<'_>| match block.backend {
        Backend::Kubevirt => Fit::new(disk.is_hotpluggable(), false),
        Backend::Libvirt => {
            let bus = disk.bus().as_str();
            let fits = hotplug::takes_disk(bus, running.features.acpi);
            Fit::new(fits, is_q35 && hotplug::needs_port(bus))
        }
    };
    let disks = block.all_disks().into_iter();
    disks.map(|disk| (disk.name(), fits(disk))).collect()
}

/// The disk of this name.
pub(super) fn find_disk<'b>(block: &'b Normalized, name: &str) -> Option<AnyDisk<'b>> {
    let mut disks = block.all_disks().into_iter();
    disks.find(|disk| disk.name() == name)
}

fn drives(block: &Normalized) -> Vec<(&str, Fit)> {
    let drives = block.cdroms.iter();
    let drives = drives.map(|cdrom| (cdrom.name.as_str(), Fit::Never));
    drives.collect()
}

/// Warns of disks, drives and media that change.
pub(super) fn warn(
    merged: &Merged<'_>,
    old: &Normalized,
    new: &Normalized,
    warnings: &mut Warnings<'_>,
) {
    let [was, is] = [old, new].map(|block| pluggable_disks(block, &warnings.runs));
    warnings.items(Field::Disk, "disks", &merged.disks, &was, &is);
    for item in &merged.disks {
        let name = item.name().value;
        let same = |block| find_disk(block, name?);
        if let Some((was, is)) = same(old).zip(same(new)) {
            let bus = item.pick("bus", |disk| disk.bus.as_deref());
            warnings.field(Field::DiskBus, bus.path, (was.bus(), is.bus()), false);
            let serial = item.pick("serial", |disk| disk.serial.as_deref());
            let serials = [was, is].map(|disk| disk.serial().unwrap_or("none"));
            warnings.field(Field::DiskSerial, serial.path, serials.into(), false);
            let shareable = existing::shareable(item);
            let shared = (was.is_shareable(), is.is_shareable());
            warnings.field(Field::DiskShareable, shareable.path, shared, false);
        }
        grown(item, old, new, warnings);
    }
    let [was, is] = [old, new].map(drives);
    warnings.items(Field::Cdrom, "cdroms", &merged.cdroms, &was, &is);
    for item in &merged.cdroms {
        let same = |cdrom: &&NormalizedCdrom| item.name().value == Some(cdrom.name.as_str());
        let both = old
            .cdroms
            .iter()
            .find(same)
            .zip(new.cdroms.iter().find(same));
        if let Some((was, is)) = both {
            medium(item, was, is, warnings);
        }
    }
}

/// The volume of a disk that grows. KubeVirt without a feature gate: a running guest does not have the size, and the file
/// on a volume with a file system keeps its own.
fn grown(item: &Item<'_, Disk>, old: &Normalized, new: &Normalized, warnings: &mut Warnings<'_>) {
    let name = item.name().value;
    let same = |disk: &&NormalizedDisk| name == Some(disk.name.as_str());
    let both = old.disks.iter().find(same);
    if let Some((was, is)) = both.zip(new.disks.iter().find(same)) {
        let size = item.pick("size", |disk| disk.size.as_deref());
        let is_block = is.volume_mode == VolumeMode::Block;
        warnings.field(Field::DiskSize, size.path, (was.size, is.size), is_block);
    }
}

fn medium(
    item: &Item<'_, Cdrom>,
    was: &NormalizedCdrom,
    is: &NormalizedCdrom,
    warnings: &mut Warnings<'_>,
) {
    let fits = was.hotpluggable && is.hotpluggable;
    if was.image != is.image {
        let image = item.pick("image", |cdrom| cdrom.image.as_ref());
        let what = format!("the medium in '{}' changes", is.name);
        warnings.add(Field::CdromImage, image.path, fits, &what);
        if !fits && warnings.offers(Field::CdromImage) == Some(true) {
            let text = format!(
                "spec.cdroms: '{}' takes other media without a restart once the Machine was changed while it was off: set powerState: Stopped, then Running",
                is.name
            );
            warnings.note(&text);
        }
    }
    // The size and the class of a medium that is put in or taken out are no change of their own.
    if let Some(sizes) = was.size.zip(is.size) {
        let size = item.pick("size", |cdrom| cdrom.size.as_ref());
        warnings.field(Field::CdromSize, size.path, sizes, fits);
    }
    let classes = was
        .storage_class
        .as_deref()
        .zip(is.storage_class.as_deref());
    if let Some((was, is)) = classes {
        let class = item.pick("storageClass", |cdrom| cdrom.storage_class.as_ref());
        let classes = (quoted(was), quoted(is));
        warnings.field(Field::CdromStorageClass, class.path, classes, fits);
    }
}
