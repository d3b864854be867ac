//! Disks on volumes of the host that existed before the Machine. They are used as they are: no action is about one, so
//! none is made, grown, recorded as the Machine's or deleted.

use common::api::normalized::ExistingDisk;
use common::api::status::VolumeStatus;
use common::quantity::Bytes;
use common::render::libvirt::{PoolVolume, VolumeFormat};
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::volumes::{Volumes, pool_not_found};
use crate::observed::HostView;

impl Volumes {
    /// Gives the disk to the guest, unless its volume is missing or somebody else's.
    pub(super) fn existing_disk(
        &mut self,
        machine: &Machine,
        disk: &ExistingDisk,
        view: &HostView,
    ) {
        let (name, volume, host) = (&disk.name, disk.source(), &view.host);
        let Some(offer) = view.spec.existing_volumes_of(machine.namespace()) else {
            let message = format!(
                "LibvirtHost '{host}' no longer offers existing volumes to namespace '{}' for disk '{name}': add a pool to spec.existingVolumes of the host; the Machine continues automatically then",
                machine.namespace()
            );
            return self.outcome.worsen(Fault::new("VolumeNotFound", message));
        };
        let pool = &offer.pool;
        if let Some(why) = view.unreadable_pools.get(pool) {
            let what = format!("the volume of disk '{name}'");
            return self.outcome.worsen(pool_not_found(&what, host, why));
        }
        let key = (pool.clone(), volume.to_owned());
        let Some(found) = view.volumes.get(&key) else {
            let message = format!(
                "volume '{volume}' of disk '{name}' is not in pool '{pool}' of LibvirtHost '{host}': put it there (virsh pool-refresh {pool} makes libvirt see a file), or correct volumeName; the Machine continues automatically then"
            );
            return self.outcome.worsen(Fault::new("VolumeNotFound", message));
        };
        if let Some(user) = view.volume_users.get(&key) {
            let message = format!(
                "volume '{volume}' of disk '{name}' is used by domain '{user}' on LibvirtHost '{host}', and two guests that write to one volume destroy its file system: remove it from that domain; the Machine continues automatically then"
            );
            return self.outcome.worsen(Fault::new("VolumeInUse", message));
        }
        if disk.shareable && offer.format != VolumeFormat::Raw {
            let message = format!(
                "volume '{volume}' of disk '{name}' is qcow2, and only raw volumes can be shared: drop shareable, or convert it"
            );
            return self.outcome.worsen(Fault::new("VolumeInUse", message));
        }
        let placed = PoolVolume {
            pool: pool.clone(),
            volume: volume.to_owned(),
            format: offer.format,
        };
        self.placed.insert(name.clone(), placed);
        self.reported.push(VolumeStatus {
            name: name.clone(),
            claim_name: volume.to_owned(),
            phase: Some("Bound".to_owned()),
            capacity: Some(Bytes::new(u128::from(found.capacity)).to_string()),
            progress: None,
        });
    }
}
