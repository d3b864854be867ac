//! Disks on volumes of the host that existed before the Machine. They are used as they are: no action is about one, so
//! none is made, grown, recorded as the Machine's or deleted.

use common::api::normalized::ExistingDisk;
use common::api::status::VolumeStatus;
use common::quantity::Bytes;
use common::render::libvirt::{Disk, PoolVolume, VolumeFormat, is_reserved_volume};
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::collected::{Volumes, pool_not_found};
use crate::existing_disks::Unusable;
use crate::observed::HostView;
use crate::parts::shell_word;

impl Volumes {
    /// Gives the disk to the guest, unless its volume is missing or somebody else's.
    pub(super) fn existing_disk(
        &mut self,
        machine: &Machine,
        disk: &ExistingDisk,
        view: &HostView,
    ) {
        match existing(machine, disk, view) {
            Err(fault) => self.outcome.record_first(fault),
            Ok((placed, capacity)) => {
                self.reported.push(VolumeStatus {
                    name: disk.name.clone(),
                    claim_name: placed.volume.clone(),
                    phase: Some("Bound".to_owned()),
                    capacity: Some(Bytes::new(u128::from(capacity)).to_string()),
                    progress: None,
                });
                self.placed.insert(disk.name.clone(), placed);
            }
        }
    }
}

/// The volume of a disk, with its size in bytes.
fn existing(
    machine: &Machine,
    disk: &ExistingDisk,
    view: &HostView,
) -> Result<(PoolVolume, u64), Fault> {
    let (name, volume, host) = (&disk.name, disk.source(), &view.host);
    let not_found = |message: String| Fault::new("VolumeNotFound", message);
    let Some(offer) = view.spec.existing_volumes_of(machine.namespace()) else {
        return Err(not_found(format!(
            "LibvirtHost '{host}' no longer offers existing volumes to namespace '{}' for disk '{name}': add a pool to spec.existingVolumes of the host; the Machine continues automatically then",
            machine.namespace()
        )));
    };
    let pool = &offer.pool;
    // Admission refuses the name; a block may be forged.
    if is_reserved_volume(volume) {
        return Err(not_found(format!(
            "volume '{volume}' of disk '{name}' has the form of the names that the controller gives: give it another name on LibvirtHost '{host}'"
        )));
    }
    let placed = PoolVolume {
        pool: pool.clone(),
        volume: volume.to_owned(),
        format: VolumeFormat::Qcow2,
    };
    // A volume with this name in another pool is a different volume.
    let is_moved = |present: &&PoolVolume| present.volume == *volume && present.pool != *pool;
    if let Some(present) = defined(disk, view).filter(is_moved) {
        return Err(not_found(format!(
            "disk '{name}' is on volume '{volume}' of pool '{}', and LibvirtHost '{host}' offers pool '{pool}' now: offer the former pool again, or remove the disk and add it under another name",
            present.pool
        )));
    }
    if let Some(why) = view.unreadable_pools.get(pool) {
        return Err(pool_not_found(
            &format!("the volume of disk '{name}'"),
            host,
            why,
        ));
    }
    let key = (pool.clone(), volume.to_owned());
    let Some(found) = view.volumes.get(&key) else {
        let word = shell_word(pool);
        return Err(not_found(format!(
            "volume '{volume}' of disk '{name}' is not in pool '{pool}' of LibvirtHost '{host}': put it there (virsh pool-refresh {word} makes libvirt see a file), or correct volumeName; the Machine continues automatically then"
        )));
    };
    let fault = |reason, why: &str| {
        let subject = format!("volume '{volume}' of disk '{name}' on LibvirtHost '{host}'");
        Err(Fault::new(
            reason,
            format!("{subject} {why}; the Machine continues automatically then"),
        ))
    };
    match view.unusable.get(&key) {
        None => {}
        Some(Unusable::InUse(user)) => {
            return fault(
                "VolumeInUse",
                &format!(
                    "is used by {user}, and two guests that write to one volume destroy its file system: remove it there"
                ),
            );
        }
        Some(Unusable::Unfit(why)) => return fault("VolumeFailed", why),
    }
    Ok((placed, found.capacity))
}

/// The volume that the disk of this name has in the domain's definition.
fn defined<'v>(disk: &ExistingDisk, view: &'v HostView) -> Option<&'v PoolVolume> {
    let defined = view.guest.as_ref()?.defined.as_ref()?;
    let is_same = |it: &&Disk| it.is_our_disk() && it.name() == disk.name;
    defined.disks.iter().find(is_same)?.volume.as_ref()
}
