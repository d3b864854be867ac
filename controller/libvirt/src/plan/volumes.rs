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
    Disk, Domain, Kept, Placed, VolumeFormat, VolumeWish, volume_name, volume_xml,
};

use super::action::Action;
use crate::images::fetches::ImageState;
use crate::images::names::{image_volume, marker};
use crate::observed::HostView;
use crate::offers::{images, storage};
use controller_core::deletion::deletes;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::status::{Fault, Outcome};

/// What is to be done about the volumes.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    pub(super) actions: Vec<Action>,
    /// Sizes to grow: nothing waits for them.
    pub(super) growth: Vec<Action>,
    /// Whether the domain has the volumes it names.
    pub(super) outcome: Outcome,
    /// What is told of an image that is not there yet. The domain waits for it.
    pub(super) import: Option<Fault>,
    /// Volumes by disk or drive.
    pub(super) placed: BTreeMap<String, Placed>,
    /// Those of the disks, and what becomes of each.
    pub(super) kept: Vec<Kept>,
    pub(super) told: Vec<VolumeStatus>,
    /// Disks that are smaller than they are to be.
    pub(super) growing: Vec<String>,
}

/// The volumes of the disks on a host, and what becomes of each.
pub(super) fn disks(machine: &Machine, block: &Normalized, spec: &LibvirtHostSpec) -> Vec<Kept> {
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

/// Whether a volume is deleted with its Machine.
pub(super) fn is_to_go(kept: &Kept) -> bool {
    deletes(Some(kept.reclaim_policy.as_str()))
}

/// Names of everything that has to be looked for in pools, by pool.
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

pub(super) fn volumes(machine: &Machine, block: &Normalized, view: &HostView) -> Volumes {
    let mut all = Volumes {
        kept: disks(machine, block, &view.spec),
        ..Volumes::default()
    };
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
            all.told
                .extend(known.find(|known| known.name == disk.name).cloned());
            continue;
        }
        all.disk(machine, disk, offer, view);
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
    ) {
        let name = name_of(machine, disk, offer);
        let pool = offer.pool.clone();
        let key = (pool.clone(), name.clone());
        let live = view.volumes.get(&key);
        let complete = || view.volumes.contains_key(&(pool.clone(), marker(&name)));
        let copied = disk.image.is_some() && is_copy(offer);
        self.placed.insert(
            disk.name.clone(),
            Placed {
                pool: pool.clone(),
                volume: name.clone(),
                format: format(offer),
            },
        );
        match live {
            Some(live) if !copied || complete() || is_defined(view, &name) => {
                self.told(disk, &name, Some(live.capacity));
                self.grow(disk, &name, &pool, live.capacity, view);
            }
            _ => self.make(disk, (pool, name), offer, view),
        }
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
            self.told(disk, &name, None);
            self.actions.push(Action::CreateVolume { pool, name, xml });
            return;
        };
        self.told(disk, &name, None);
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
            Some(ImageState::Complete { format }) => Some(Placed {
                pool,
                volume,
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
                let told = format!("the image of '{of}' is being fetched: {progress}");
                self.import
                    .get_or_insert(Fault::new("ImageImporting", told));
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
                let told = format!("the image of '{of}' is being fetched");
                self.import
                    .get_or_insert(Fault::new("ImageImporting", told));
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

    fn told(&mut self, disk: &NormalizedDisk, name: &str, capacity: Option<u64>) {
        self.told.push(VolumeStatus {
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
        if let Some(told) = self.told.iter_mut().find(|told| told.name == disk) {
            told.progress = Some(progress.to_owned());
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
pub(super) fn is_defined(view: &HostView, volume: &str) -> bool {
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
