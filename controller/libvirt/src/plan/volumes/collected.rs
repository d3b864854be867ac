//! The actions and findings of the volumes of one Machine, as they are collected.

use std::collections::BTreeMap;

use common::api::libvirt_host::HostStorage;
use common::api::normalized::NormalizedDisk;
use common::api::status::VolumeStatus;
use common::quantity::Bytes;
use common::render::libvirt::{PoolVolume, VolumeRecord};
use controller_core::conditions::{Fault, Outcome};
use controller_core::machine::Machine;

use super::super::action::Action;
use super::super::disks::format;
use crate::failure::NO_ROOM;
use crate::observed::HostView;
use crate::pool_space::{MAKE_ROOM, StorageFactor};

/// The actions and findings of the volumes.
#[derive(Debug, Default)]
pub(in crate::plan) struct Volumes {
    pub(in crate::plan) actions: Vec<Action>,
    /// Actions that grow disks: no other action waits for them.
    pub(in crate::plan) growth: Vec<Action>,
    /// Whether the domain has the volumes it names.
    pub(in crate::plan) outcome: Outcome,
    /// Progress of an image that is not complete yet. The domain is not defined before it is.
    pub(in crate::plan) import: Option<Fault>,
    /// Why a copy of an image to a disk failed. It is tried again, and other copies go on.
    pub(super) copies: Outcome,
    /// That disks get no volume in this pass, although nothing of the storage is in the way.
    pub(in crate::plan) withheld: Option<Fault>,
    /// Volumes by disk or drive.
    pub(in crate::plan) placed: BTreeMap<String, PoolVolume>,
    /// The volumes of the disks, with their reclaim policies.
    pub(in crate::plan) kept: Vec<VolumeRecord>,
    /// The volumes of the disks, for the status.
    pub(in crate::plan) reported: Vec<VolumeStatus>,
    /// Disks that are smaller than they are to be.
    pub(in crate::plan) growing: Vec<String>,
    /// Why a disk of an existing domain is not made or not grown.
    pub(in crate::plan) no_room: Option<Fault>,
    /// Lost disks that the user wants to be recreated.
    pub(super) recreated: Vec<String>,
    /// Space that the volumes of this plan take, by pool.
    taken: BTreeMap<String, u128>,
    /// Namespace of the Machine.
    pub(super) namespace_uid: String,
    /// Whether the Machine may not grow.
    is_held: bool,
}

impl Volumes {
    /// Nothing yet. `is_held`: no disk is made and none grows.
    pub(super) fn new(machine: &Machine, is_held: bool) -> Self {
        Self {
            is_held,
            namespace_uid: machine.namespace_uid.clone(),
            ..Self::default()
        }
    }

    /// Records where the volume of a disk is, and its reclaim policy.
    pub(super) fn record(&mut self, disk: &NormalizedDisk, offer: &HostStorage, name: &str) {
        let placed = PoolVolume {
            pool: offer.pool.clone(),
            volume: name.to_owned(),
            format: format(offer),
        };
        self.placed.insert(disk.name.clone(), placed);
        self.kept.push(VolumeRecord {
            disk: disk.name.clone(),
            pool: offer.pool.clone(),
            volume: name.to_owned(),
            reclaim_policy: disk.reclaim_policy,
        });
    }

    /// Whether the pool has space for the volume of a disk, which has this size now, and may be an overlay of an image. It is
    /// taken by this plan then. A Machine that may not grow has none. A Machine without a domain waits for space; another one keeps what it has.
    pub(super) fn takes_space(
        &mut self,
        disk: &NormalizedDisk,
        offer: &HostStorage,
        (has, is_overlay): (u64, bool),
        view: &HostView,
    ) -> bool {
        if self.is_held {
            return false;
        }
        if let Some(why) = view.unfit_pools.get(&offer.pool) {
            let what = format!("the volume of disk '{}'", disk.name);
            self.refuse_space(pool_not_found(&what, &view.host, why), view);
            return false;
        }
        let Some(space) = view.space_left.get(&offer.pool) else {
            return true;
        };
        let factor = StorageFactor::of(&view.spec);
        let has = Bytes::new(u128::from(has));
        let more = factor
            .charge(disk.size, is_overlay)
            .saturating_sub(factor.charge(has, is_overlay));
        let taken = self.taken.entry(offer.pool.clone()).or_default();
        let left = space.saturating_sub(*taken);
        if more <= left {
            *taken += more;
            return true;
        }
        let keeps = match has.get() {
            0 => String::new(),
            _ => format!(", which keeps {has}"),
        };
        let message = format!(
            "pool '{}' of LibvirtHost '{}' has room for {} more, and disk '{}' asks for {}{keeps}: {MAKE_ROOM}",
            offer.pool,
            view.host,
            factor.size(left, is_overlay),
            disk.name,
            disk.size
        );
        self.refuse_space(Fault::new(NO_ROOM, message), view);
        false
    }

    fn refuse_space(&mut self, fault: Fault, view: &HostView) {
        if view.guest.is_none() {
            self.outcome.record_first(fault.clone());
        }
        self.no_room.get_or_insert(fault);
    }

    pub(super) fn report(&mut self, disk: &NormalizedDisk, name: &str, capacity: Option<u64>) {
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

    pub(super) fn progress(&mut self, disk: &str, progress: &str) {
        if let Some(volume) = self.reported.iter_mut().find(|it| it.name == disk) {
            volume.progress = Some(progress.to_owned());
        }
    }
}

/// The fault of an object whose pool cannot be read.
pub(in crate::plan) fn pool_not_found(what: &str, host: &str, why: &str) -> Fault {
    let message = format!(
        "{what} is on LibvirtHost '{host}', whose {why}; the Machine continues automatically then"
    );
    Fault::new("PoolNotFound", message)
}
