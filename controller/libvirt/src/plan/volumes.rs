//! The volumes of a Machine: images fetched, disks made and grown, the seed written, and what is no longer
//! wished let go.
//!
//! ```text
//! image ─ fetched? ─▶ overlay on it, or a copy with a marker beside it
//! none ─────────────▶ blank
//! there, too small ─▶ grown: by the guest's hypervisor while it running, else by the pool
//! ```
//! A volume that is there is never made anew: it may hold what somebody wrote. Only a copy that has no marker
//! was never used, and is made again.

use std::collections::BTreeMap;

use common::api::choice::{Choice as _, Provisioning};
use common::api::libvirt_host::{HostStorage, LibvirtHostSpec};
use common::api::machine::Image;
use common::api::normalized::{Normalized, NormalizedDisk};
use common::api::status::VolumeStatus;
use common::quantity::Bytes;
use common::render::libvirt::{
    Disk, Domain, Kept, Placed, VolumeFormat, VolumeWish, is_seed, is_volume_of, volume_name,
    volume_xml,
};

use super::action::Action;
use crate::access::Volume;
use crate::images::fetches::ImageState;
use crate::images::names::{
    attempt, image_volume, is_attempt, is_attempt_of, is_marker, marked, marker,
};
use crate::observed::{Guest, HostView, VolumeKey};
use crate::offers::{images, storage};
use crate::volume_effects::Doomed;
use controller_core::deletion::deletes;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::status::{Fault, Outcome};

/// What is to be done about the volumes.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    pub(super) actions: Vec<Action>,
    /// Sizes to grow: nothing waits for them.
    pub(super) growth: Vec<Action>,
    /// Whether the domain has the volumes it names.
    pub(super) outcome: Outcome,
    /// Progress of an image that is not complete yet. The domain is not defined before it is.
    pub(super) import: Option<Fault>,
    /// Volumes by disk or drive.
    pub(super) placed: BTreeMap<String, Placed>,
    /// Those of the disks, and what becomes of each.
    pub(super) kept: Vec<Kept>,
    /// The volumes of the disks, for the status.
    pub(super) reported: Vec<VolumeStatus>,
    /// Disks that are smaller than they are to be.
    pub(super) growing: Vec<String>,
}

/// The volumes that a block's disks would have, and what becomes of each. A copied one has an attempt beside its name.
fn disks(machine: &Machine, block: &Normalized, spec: &LibvirtHostSpec) -> Vec<Kept> {
    let kept = |disk: &NormalizedDisk| {
        let offer = storage(spec, &disk.storage_class)?;
        Some(Kept {
            disk: disk.name.clone(),
            pool: offer.pool.clone(),
            volume: name_of(machine, disk, offer),
            reclaim_policy: disk.reclaim_policy,
        })
    };
    block.disks.iter().filter_map(kept).collect()
}

/// The volumes that are deleted with a Machine: disks by the reclaim policy that the domain's metadata records,
/// without a domain by that of the block; copies that were never used; seeds. Without domain and block no disk is
/// deleted.
pub(super) fn doomed(machine: &Machine, view: &HostView, guest: Option<&Guest>) -> Vec<Doomed> {
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let kept = match metadata {
        Some(metadata) => metadata.volumes.clone(),
        None => machine
            .desired()
            .map(|block| disks(machine, block, &view.spec))
            .unwrap_or_default(),
    };
    let is_unused_copy = |pool: &str, name: &str| {
        let marker = (pool.to_owned(), marker(name));
        is_attempt(name) && !view.volumes.contains_key(&marker)
    };
    let is_doomed = |pool: &str, name: &str| {
        let mut of_disk = kept.iter().filter(|kept| kept.pool == pool);
        match of_disk.find(|kept| is_attempt_of(name, &kept.volume)) {
            Some(kept) => is_to_go(kept),
            None => is_seed(name) || is_unused_copy(pool, name),
        }
    };
    // A marker goes with its volume, or alone if only that was deleted before.
    let is_lonely_marker = |pool: &str, name: &str| {
        marked(name).is_some_and(|volume| {
            let volume = (pool.to_owned(), volume.to_owned());
            !view.volumes.contains_key(&volume)
        })
    };
    let ours = view
        .volumes
        .iter()
        .filter(|((_, name), _)| is_volume_of(name, machine.uid()));
    ours.filter(|((pool, name), _)| {
        if is_marker(name) {
            is_lonely_marker(pool, name)
        } else {
            is_doomed(pool, name)
        }
    })
    .map(|((pool, _), volume)| delete(pool, volume))
    .collect()
}

/// The deletion of a volume of the Machine, as it was observed.
pub(super) fn delete(pool: &str, volume: &Volume) -> Doomed {
    Doomed {
        pool: pool.to_owned(),
        name: volume.name.clone(),
        key: Some(volume.key.clone()),
        is_owned: true,
        is_deletable: true,
    }
}

/// Whether a volume is deleted with its Machine.
pub(super) fn is_to_go(kept: &Kept) -> bool {
    deletes(Some(kept.reclaim_policy.as_str()))
}

/// The disks that are copied from an image, by name: pool and volume without the attempt.
pub(crate) fn copies(machine: &Machine, spec: &LibvirtHostSpec) -> BTreeMap<String, VolumeKey> {
    let block = machine.desired().into_iter();
    let copied = block.flat_map(|block| &block.disks).filter_map(|disk| {
        let offer = storage(spec, &disk.storage_class)?;
        let is_copied = disk.image.is_some() && is_copy(offer);
        let key = (offer.pool.clone(), name_of(machine, disk, offer));
        is_copied.then(|| (disk.name.clone(), key))
    });
    copied.collect()
}

/// An image that is fetched, and what needs it.
pub(crate) struct NeededImage {
    /// Pool and volume without the attempt.
    pub(crate) key: VolumeKey,
    /// The disk that is made of the image, with its volume without the attempt; `None`: a drive has the image itself.
    pub(crate) disk: Option<(String, VolumeKey)>,
}

/// The fetched images that disks and drives need.
pub(crate) fn fetched_images(machine: &Machine, spec: &LibvirtHostSpec) -> Vec<NeededImage> {
    let (Some(block), Some(pool)) = (machine.desired(), &spec.image_pool) else {
        return vec![];
    };
    let key = |image: &Image| (pool.clone(), image_volume(image));
    let disks = block.disks.iter().filter_map(|disk| {
        let image = disk.image.as_ref().filter(|image| image.volume.is_none())?;
        let offer = storage(spec, &disk.storage_class)?;
        let volume = (offer.pool.clone(), name_of(machine, disk, offer));
        Some(NeededImage {
            key: key(image),
            disk: Some((disk.name.clone(), volume)),
        })
    });
    let drives = block.cdroms.iter().filter_map(|cdrom| {
        let image = cdrom
            .image
            .as_ref()
            .filter(|image| image.volume.is_none())?;
        Some(NeededImage {
            key: key(image),
            disk: None,
        })
    });
    disks.chain(drives).collect()
}

/// Pool and name of every volume that has to be looked up.
pub(crate) fn wanted(
    machine: &Machine,
    block: &Normalized,
    spec: &LibvirtHostSpec,
) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for disk in &block.disks {
        if let Some(offer) = storage(spec, &disk.storage_class) {
            let name = name_of(machine, disk, offer);
            if disk.image.is_some() && is_copy(offer) {
                all.push((offer.pool.clone(), marker(&name)));
            }
            all.push((offer.pool.clone(), name));
        }
    }
    if let Some(pool) = &spec.image_pool {
        let names = images(block).map(image_volume);
        let names = names.flat_map(|name| [marker(&name), name]);
        all.extend(names.map(|name| (pool.clone(), name)));
    }
    all
}

fn name_of(machine: &Machine, disk: &NormalizedDisk, offer: &HostStorage) -> String {
    volume_name(
        machine.namespace(),
        machine.name(),
        machine.uid(),
        &disk.name,
        format(offer),
    )
}

fn format(offer: &HostStorage) -> VolumeFormat {
    offer.format.unwrap_or(VolumeFormat::Qcow2)
}

fn is_copy(offer: &HostStorage) -> bool {
    // A raw volume cannot stand on another one.
    offer.provisioning == Some(Provisioning::Copy) || offer.format == Some(VolumeFormat::Raw)
}

/// The volume that a disk has; `None`: it has none yet. The one that the domain's metadata records comes first, then
/// one of the plain name, then an attempt that is complete. A copy without its marker was never used.
fn existing<'a>(
    machine: &Machine,
    disk: &NormalizedDisk,
    offer: &HostStorage,
    view: &'a HostView,
) -> Option<&'a Volume> {
    let base = name_of(machine, disk, offer);
    let in_pool = |name: &str| view.volumes.get(&(offer.pool.clone(), name.to_owned()));
    let guest = view.guest.as_ref();
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let recorded = metadata
        .into_iter()
        .flat_map(|metadata| &metadata.volumes)
        .filter(|kept| kept.disk == disk.name && kept.pool == offer.pool);
    let mut recorded = recorded.filter_map(|kept| in_pool(&kept.volume));
    if disk.image.is_none() || !is_copy(offer) {
        return recorded.next().or_else(|| in_pool(&base));
    }
    recorded.next().or_else(|| {
        let all = view.volumes.iter();
        let mut attempts = all.filter(|((pool, name), _)| {
            *pool == offer.pool
                && is_attempt_of(name, &base)
                && (in_pool(&marker(name)).is_some() || is_defined(view, name))
        });
        attempts.next().map(|(_, volume)| volume)
    })
}

/// What has to be done about the volumes of a Machine.
pub(super) fn volumes(machine: &Machine, block: &Normalized, view: &HostView, now: Now) -> Volumes {
    let mut all = Volumes::default();
    for disk in &block.disks {
        let Some(offer) = storage(&view.spec, &disk.storage_class) else {
            all.outcome.worsen(Fault::new(
                "StorageClassNotFound",
                format!(
                    "LibvirtHost '{}' no longer offers storage class '{}' of disk '{}': add it to spec.storage of the host; the Machine goes on by itself then",
                    view.host, disk.storage_class, disk.name
                ),
            ));
            continue;
        };
        if let Some(why) = view.unreadable_pools.get(&offer.pool) {
            let what = format!("the volume of disk '{}'", disk.name);
            all.outcome.worsen(pool_not_found(&what, &view.host, why));
            // What was observed last stays in the status.
            let mut known = machine.status.volumes.iter();
            all.reported
                .extend(known.find(|known| known.name == disk.name).cloned());
            continue;
        }
        all.disk(machine, disk, offer, view, now);
    }
    for cdrom in &block.cdroms {
        let Some(image) = &cdrom.image else { continue };
        if let Some(placed) = all.image(image, &cdrom.name, view) {
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
        let name = match found {
            Some(volume) => volume.name.clone(),
            None if disk.image.is_some() && is_copy(offer) => {
                attempt(&name_of(machine, disk, offer), now.0.unix_timestamp())
            }
            None => name_of(machine, disk, offer),
        };
        self.place(disk, offer, &name);
        match found {
            Some(volume) => {
                self.report(disk, &name, Some(volume.capacity));
                self.grow(disk, &name, &pool, volume.capacity, view);
            }
            None => self.make(disk, (pool, name), offer, view),
        }
    }

    /// Records where the volume of a disk is, and what becomes of it.
    fn place(&mut self, disk: &NormalizedDisk, offer: &HostStorage, name: &str) {
        let placed = Placed {
            pool: offer.pool.clone(),
            volume: name.to_owned(),
            format: format(offer),
        };
        self.placed.insert(disk.name.clone(), placed);
        self.kept.push(Kept {
            disk: disk.name.clone(),
            pool: offer.pool.clone(),
            volume: name.to_owned(),
            reclaim_policy: disk.reclaim_policy,
        });
    }

    fn make(
        &mut self,
        disk: &NormalizedDisk,
        (pool, name): (String, String),
        offer: &HostStorage,
        view: &HostView,
    ) {
        let desired = |backing| VolumeWish {
            name: &name,
            format: format(offer),
            capacity: disk.size,
            backing,
        };
        let Some(image) = &disk.image else {
            let xml = volume_xml(&desired(None));
            self.report(disk, &name, None);
            self.actions.push(Action::CreateVolume { pool, name, xml });
            return;
        };
        self.report(disk, &name, None);
        let Some(base) = self.image(image, &disk.name, view) else {
            return;
        };
        let key = (base.pool.clone(), base.volume.clone());
        let Some(found) = view.volumes.get(&key) else {
            return;
        };
        if u128::from(found.capacity) > disk.size.get() {
            self.outcome.worsen(Fault::new(
                "ImageTooLarge",
                format!(
                    "the image of disk '{}' is {} large and the disk {}: make the disk at least as large as its image",
                    disk.name, Bytes::new(u128::from(found.capacity)), disk.size
                ),
            ));
            return;
        }
        let action = if is_copy(offer) {
            Action::CopyVolume {
                xml: volume_xml(&desired(None)),
                image: key,
                pool,
                name,
            }
        } else {
            let xml = volume_xml(&desired(Some((&found.path, base.format))));
            Action::CreateVolume { pool, name, xml }
        };
        self.actions.push(action);
    }

    /// Where an image is, once all of it is there.
    fn image(&mut self, image: &Image, of: &str, view: &HostView) -> Option<Placed> {
        let pool = view.spec.image_pool.clone();
        let Some(pool) = pool else {
            self.outcome.worsen(Fault::new(
                "ImageImportUnavailable",
                format!(
                    "LibvirtHost '{}' has no imagePool for the image of '{of}': set it; the Machine goes on by itself then",
                    view.host
                ),
            ));
            return None;
        };
        if let Some(why) = view.unreadable_pools.get(&pool) {
            let what = format!("the image of '{of}'");
            self.outcome.worsen(pool_not_found(&what, &view.host, why));
            return None;
        }
        let volume = image_volume(image);
        match view.images.get(&volume) {
            Some(ImageState::Complete { volume, format }) => Some(Placed {
                pool,
                volume: volume.clone(),
                format: *format,
            }),
            Some(ImageState::Failed(why)) => {
                self.outcome.worsen(Fault::new(
                    "ImageImportFailed",
                    format!("the image of '{of}' cannot be fetched: {why}; it is tried again"),
                ));
                self.fetch(image, volume);
                None
            }
            Some(ImageState::Underway { progress }) => {
                let message = format!("the image of '{of}' is being fetched: {progress}");
                self.import
                    .get_or_insert(Fault::new("ImageImporting", message));
                self.progress(of, progress);
                None
            }
            Some(ImageState::Absent) | None if image.volume.is_some() => {
                self.outcome.worsen(Fault::new(
                    "ImageNotFound",
                    format!(
                        "volume '{volume}' of '{of}' is not in the image pool '{pool}' of LibvirtHost '{}': put it there; the Machine goes on by itself then",
                        view.host
                    ),
                ));
                None
            }
            Some(ImageState::Absent) | None => {
                let message = format!("the image of '{of}' is being fetched");
                self.import
                    .get_or_insert(Fault::new("ImageImporting", message));
                self.fetch(image, volume);
                None
            }
        }
    }

    fn fetch(&mut self, image: &Image, volume: String) {
        if let Some(url) = &image.url {
            self.actions.push(Action::FetchImage {
                volume,
                url: url.clone(),
                checksum: image.checksum.clone(),
            });
        }
    }

    fn grow(&mut self, disk: &NormalizedDisk, name: &str, pool: &str, has: u64, view: &HostView) {
        if u128::from(has) >= disk.size.get() {
            return;
        }
        let Ok(bytes) = u64::try_from(disk.size.get()) else {
            return;
        };
        let from = Bytes::new(u128::from(has));
        self.growing.push(format!(
            "disk '{}' grows from {from} to {}",
            disk.name, disk.size
        ));
        let running = view.guest.as_ref().and_then(|guest| guest.running.as_ref());
        let target = running.and_then(|running| running.disks.iter().find(|it| is_on(it, name)));
        self.growth.push(match target {
            Some(disk) => Action::GrowDisk {
                target: disk.target.clone(),
                bytes,
            },
            None => Action::GrowVolume {
                pool: pool.to_owned(),
                name: name.to_owned(),
                bytes,
            },
        });
    }

    fn report(&mut self, disk: &NormalizedDisk, name: &str, capacity: Option<u64>) {
        self.reported.push(VolumeStatus {
            name: disk.name.clone(),
            claim_name: name.to_owned(),
            phase: Some(
                if capacity.is_some() {
                    "Bound"
                } else {
                    "Pending"
                }
                .to_owned(),
            ),
            capacity: capacity.map(|bytes| Bytes::new(u128::from(bytes)).to_string()),
            progress: None,
        });
    }

    fn progress(&mut self, disk: &str, progress: &str) {
        if let Some(volume) = self.reported.iter_mut().find(|it| it.name == disk) {
            volume.progress = Some(progress.to_owned());
        }
    }
}

/// The fault of something whose pool cannot be read.
pub(super) fn pool_not_found(what: &str, host: &str, why: &str) -> Fault {
    let message = format!(
        "{what} is on LibvirtHost '{host}', whose {why}; the Machine continues by itself then"
    );
    Fault::new("PoolNotFound", message)
}

/// Whether the domain is defined with this volume: then it was complete once.
pub(crate) fn is_defined(view: &HostView, volume: &str) -> bool {
    let defined = view.guest.as_ref().and_then(|guest| guest.defined.as_ref());
    defined.is_some_and(|domain| uses(domain, volume))
}

pub(super) fn uses(domain: &Domain, volume: &str) -> bool {
    domain.disks.iter().any(|disk| is_on(disk, volume))
}

fn is_on(disk: &Disk, volume: &str) -> bool {
    disk.volume
        .as_ref()
        .is_some_and(|placed| placed.volume == volume)
}
