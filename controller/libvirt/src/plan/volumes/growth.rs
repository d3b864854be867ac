//! Volumes that are smaller than their disks.

use common::api::libvirt_host::HostStorage;
use common::api::normalized::NormalizedDisk;
use common::quantity::Bytes;

use super::super::action::{Action, GrownVolume};
use super::super::disks::is_on;
use super::collected::Volumes;
use crate::access::Volume;
use crate::observed::HostView;

impl Volumes {
    /// Grows the volume of a disk that is smaller than the disk: through the guest if it runs with it, else through the
    /// pool. No other action waits for it.
    pub(super) fn grow(
        &mut self,
        disk: &NormalizedDisk,
        name: &str,
        offer: &HostStorage,
        volume: &Volume,
        view: &HostView,
    ) {
        let has = volume.capacity;
        let is_large = u128::from(has) >= disk.size.get();
        // The storage class may have made full copies when this volume was made.
        let is_overlay = volume.backing.is_some();
        if is_large || !self.takes_space(disk, offer, (has, is_overlay), view) {
            return;
        }
        let Ok(bytes) = u64::try_from(disk.size.get()) else {
            return;
        };
        let from = Bytes::new(u128::from(has));
        let running = view.guest.as_ref().and_then(|guest| guest.running.as_ref());
        let target = running.and_then(|running| running.disks.iter().find(|it| is_on(it, name)));
        let waits = target.is_none() && volume.is_misread;
        let when = if waits {
            " when the guest runs: it wrote the header of an image into this raw disk, and libvirt would change that header"
        } else {
            ""
        };
        self.growing.push(format!(
            "disk '{}' grows from {from} to {}{when}",
            disk.name, disk.size
        ));
        if waits {
            return;
        }
        let volume = GrownVolume {
            pool: offer.pool.clone(),
            name: name.to_owned(),
            bytes,
            is_overlay,
        };
        self.growth.push(match target {
            Some(disk) => Action::GrowDisk {
                target: disk.target.clone(),
                volume,
            },
            None => Action::GrowVolume(volume),
        });
    }
}
