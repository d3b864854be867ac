//! What has to be done about the volumes of a Machine: images fetched, disks made and grown.
//!
//! ```text
//! image ─ complete? ─▶ overlay of it, or a copy with a marker volume
//! no image ──────────▶ blank
//! exists, too small ─▶ grown: by QEMU while the guest runs, otherwise by the pool
//! ```
//! A volume that exists is not created again: it may have a guest's data. One that existed and is gone is not created again
//! unless the user wants it. A copy without its marker was never used; the next copy gets another name.

mod collected;
mod copy;
mod existing;
mod growth;
mod loss;
mod withhold;

use common::api::libvirt_host::HostStorage;
use common::api::machine::Image;
use common::api::normalized::{Normalized, NormalizedDisk};
use common::quantity::Bytes;
use common::render::libvirt::{
    AS_THE_GUEST_HAD_IT, PoolVolume, VolumeSpec, is_reserved_volume, volume_xml,
};
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::plan::Now;

use super::action::Action;
use super::disks::{existing, format, name_of, of_another_class};
use crate::images::check::too_large;
use crate::images::fetches::ImageState;
use crate::images::names::{attempt, base_of, image_volume};
use crate::observed::HostView;
use crate::offers::{is_copy, is_overlay, storage};
use crate::parts::shell_word;
pub(super) use collected::{Volumes, pool_not_found};
use loss::{is_to_be_recreated, lost};

/// Plans the volumes of a Machine. `is_held`: no disk is made and none grows.
pub(super) fn volumes(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
    is_held: bool,
    now: Now,
) -> Volumes {
    let mut all = Volumes::new(machine, is_held);
    for disk in &block.disks {
        let Some(offer) = storage(&view.spec, &disk.storage_class) else {
            all.outcome.record_first(Fault::new(
                "StorageClassNotFound",
                format!(
                    "LibvirtHost '{}' no longer offers storage class '{}' of disk '{}': add it to spec.storage of the host; the Machine continues automatically then",
                    view.host, disk.storage_class, disk.name
                ),
            ));
            all.keep_reported(machine, disk);
            continue;
        };
        if let Some(why) = view.unreadable_pools.get(&offer.pool) {
            let what = format!("the volume of disk '{}'", disk.name);
            all.outcome
                .record_first(pool_not_found(&what, &view.host, why));
            all.keep_reported(machine, disk);
            continue;
        }
        all.disk(machine, disk, offer, view, now);
    }
    for disk in &block.existing_disks {
        all.existing_disk(machine, disk, view);
    }
    for cdrom in &block.cdroms {
        let Some(image) = &cdrom.image else { continue };
        if let Some(placed) = all.image(image, &cdrom.name, None, view) {
            all.placed.insert(cdrom.name.clone(), placed);
        }
    }
    all
}

impl Volumes {
    fn disk(
        &mut self,
        machine: &Machine,
        disk: &NormalizedDisk,
        offer: &HostStorage,
        view: &HostView,
        now: Now,
    ) {
        let pool = offer.pool.clone();
        let found = existing(machine, disk, offer, view);
        let base = name_of(machine, disk, offer);
        if found.is_none()
            && let Some(other) = of_another_class(disk, offer, &base, view)
        {
            self.outcome.record_first(Fault::new(
                "VolumeFailed",
                format!(
                    "disk '{}' has the volume '{}' in pool '{}', which storage class '{}' would not make: use the storage class that made it, or another name for the disk",
                    disk.name, other.volume, other.pool, disk.storage_class
                ),
            ));
            return;
        }
        if found.is_none() && is_moved(machine, disk) {
            let word = shell_word(&pool);
            self.outcome.record_first(Fault::new(
                "VolumeFailed",
                format!(
                    "the volume of disk '{}' is not in pool '{pool}' of LibvirtHost '{}', to which the Machine is moved; it is not recreated: let the pool show it there (virsh pool-refresh {word}); the Machine continues automatically then",
                    disk.name, view.host
                ),
            ));
            return;
        }
        let lost = match found {
            Some(_) => None,
            None => lost(machine, disk, &pool, view),
        };
        let is_requested = is_to_be_recreated(machine, disk);
        let may_make = is_requested || lost.is_none();
        if found.is_none()
            && !(may_make && self.takes_space(disk, offer, (0, is_overlay(disk, offer)), view))
        {
            if let Some(lost) = lost {
                self.outcome
                    .record_first(lost.fault(machine, disk, &view.host));
                self.report_lost(disk, &lost);
                self.recreated
                    .extend(is_requested.then(|| disk.name.clone()));
            }
            return;
        }
        let name = match found {
            Some(volume) => volume.name.clone(),
            None if disk.image.is_some() && is_copy(offer) => {
                attempt(&base, now.0.unix_timestamp())
            }
            None => base,
        };
        self.record(disk, offer, &name);
        match found {
            Some(volume) => {
                self.report(disk, &name, Some(volume.capacity));
                self.grow(disk, &name, offer, volume, view);
            }
            None => self.make(disk, (pool, name), offer, view),
        }
        if let Some(lost) = lost {
            self.report_lost(disk, &lost);
            self.recreated.push(disk.name.clone());
        }
    }

    fn make(
        &mut self,
        disk: &NormalizedDisk,
        (pool, name): (String, String),
        offer: &HostStorage,
        view: &HostView,
    ) {
        let desired = |backing| VolumeSpec {
            name: &name,
            format: format(offer),
            capacity: disk.size,
            backing,
        };
        let Some(image) = &disk.image else {
            let xml = volume_xml(&desired(None));
            self.report(disk, &name, None);
            self.actions.push(Action::CreateVolume {
                pool,
                name,
                size: disk.size,
                xml,
                image: None,
            });
            return;
        };
        // The attempt has its name only once it is created: before, each pass would report another one.
        self.report(disk, base_of(&name), None);
        let size = u64::try_from(disk.size.get()).ok();
        let Some(base) = self.image(image, &disk.name, size, view) else {
            return;
        };
        let key = (base.pool.clone(), base.volume.clone());
        let Some(found) = view.volumes.get(&key) else {
            return;
        };
        let capacity = Bytes::new(u128::from(found.capacity));
        if capacity > disk.size {
            let why = too_large(capacity, disk.size);
            let message = format!("the image of disk '{}' {why}", disk.name);
            self.outcome
                .record_first(Fault::new("ImageTooLarge", message));
            return;
        }
        if !is_copy(offer) {
            let xml = volume_xml(&desired(Some((&found.path, base.format))));
            self.actions.push(Action::CreateVolume {
                pool,
                name,
                size: disk.size,
                xml,
                image: Some(base),
            });
        } else if self.may_copy(disk, &(pool.clone(), base_of(&name).to_owned()), view) {
            self.actions.push(Action::CopyVolume {
                xml: volume_xml(&desired(None)),
                image: base,
                size: disk.size,
                pool,
                name,
            });
        }
    }

    /// Where an image is, once it is complete. `size`: of the disk that is made of it.
    fn image(
        &mut self,
        image: &Image,
        of: &str,
        size: Option<u64>,
        view: &HostView,
    ) -> Option<PoolVolume> {
        let pool = view.spec.image_pool.clone();
        let Some(pool) = pool else {
            self.outcome.record_first(Fault::new(
                "ImageImportUnavailable",
                format!(
                    "LibvirtHost '{}' has no imagePool for the image of '{of}': set it; the Machine continues automatically then",
                    view.host
                ),
            ));
            return None;
        };
        if let Some(why) = view.unreadable_pools.get(&pool) {
            let what = format!("the image of '{of}'");
            self.outcome
                .record_first(pool_not_found(&what, &view.host, why));
            return None;
        }
        if let Some(volume) = image.volume.as_deref().filter(|it| is_reserved_volume(it)) {
            self.outcome.record_first(Fault::new(
                "ImageNotAllowed",
                format!(
                    "volume '{volume}' of '{of}' was made by the controller and is no image: write it into a volume of another name {AS_THE_GUEST_HAD_IT}, and name that"
                ),
            ));
            return None;
        }
        let volume = image_volume(image, &self.namespace_uid);
        match view.images.get(&volume) {
            Some(ImageState::Complete { volume, format }) => Some(PoolVolume {
                pool,
                volume: volume.clone(),
                format: *format,
            }),
            Some(ImageState::Failed(why)) => {
                self.outcome.record_first(Fault::new(
                    "ImageImportFailed",
                    format!("the image of '{of}' cannot be fetched: {why}; it is tried again"),
                ));
                self.fetch(image, volume, size);
                None
            }
            Some(ImageState::Underway { progress }) => {
                let message = format!("the image of '{of}' is being fetched: {progress}");
                self.import
                    .get_or_insert(Fault::new("ImageImporting", message));
                self.progress(of, progress);
                None
            }
            Some(ImageState::Absent | ImageState::Waiting) | None if image.volume.is_some() => {
                self.outcome.record_first(Fault::new(
                    "ImageNotFound",
                    format!(
                        "volume '{volume}' of '{of}' is not in the image pool '{pool}' of LibvirtHost '{}': put it there; the Machine continues automatically then",
                        view.host
                    ),
                ));
                None
            }
            Some(ImageState::Waiting) => {
                let message =
                    format!("the image of '{of}' waits until other images have been fetched");
                self.import
                    .get_or_insert(Fault::new("ImageImporting", message));
                self.fetch(image, volume, size);
                None
            }
            Some(ImageState::Absent) | None => {
                let message = format!("the image of '{of}' is being fetched");
                self.import
                    .get_or_insert(Fault::new("ImageImporting", message));
                self.fetch(image, volume, size);
                None
            }
        }
    }

    fn fetch(&mut self, image: &Image, volume: String, disk_size: Option<u64>) {
        if let Some(url) = &image.url {
            self.actions.push(Action::FetchImage {
                volume,
                url: url.clone(),
                checksum: image.checksum.clone(),
                secret: image
                    .secret_ref
                    .as_ref()
                    .and_then(|secret| secret.name.clone()),
                disk_size,
            });
        }
    }
}

/// Whether the Machine is between two hosts and had the volume of this disk before.
fn is_moved(machine: &Machine, disk: &NormalizedDisk) -> bool {
    machine.leaves_host().is_some() && has_reported(machine, disk)
}

/// Whether the status says that the disk has a volume.
pub(super) fn has_reported(machine: &Machine, disk: &NormalizedDisk) -> bool {
    let mut known = machine.status.volumes.iter();
    known.any(|it| it.name == disk.name && it.capacity.is_some())
}
