//! What a new definition takes over from the one before it.
//!
//! libvirt gives a device a place when it is defined. Defined anew without these places, a guest finds
//! its devices elsewhere, and its network cards have other names.

use super::devices::{Controller, Disk, Nic};
use super::domain::Domain;
use super::guest::place;

impl Domain {
    /// This domain, with what it keeps of the current definition: the machine type as libvirt froze it,
    /// the places of the devices that stay, the path of the firmware's variables, and what is
    /// remembered with it.
    #[must_use]
    pub fn carrying(mut self, current: &Self) -> Self {
        let uid = |domain: &Self| domain.mark.as_ref().map(|mark| mark.uid.clone());
        if uid(&self) == uid(current) {
            self.mark.clone_from(&current.mark);
        }
        if self.firmware.kind == current.firmware.kind {
            self.nvram.clone_from(&current.nvram);
        }
        // The other chipset has other buses.
        if self.is_q35() != current.is_q35() {
            return self;
        }
        self.machine.clone_from(&current.machine);
        self.addresses.clone_from(&current.addresses);
        self.controllers = controllers(self.controllers, &current.controllers);
        for disk in &mut self.disks {
            let stays = |it: &&Disk| it.alias == disk.alias && it.bus == disk.bus;
            let was = current.disks.iter().find(stays);
            disk.target = was.map_or_else(String::new, |was| was.target.clone());
            disk.address = was.and_then(|was| was.address.clone());
        }
        let taken: Vec<_> = current.disks.iter().map(|it| it.target.clone()).collect();
        place(&mut self.disks, &taken);
        for nic in &mut self.nics {
            let stays = |it: &&Nic| it.alias == nic.alias && it.model == nic.model;
            let was = current.nics.iter().find(stays);
            nic.address = was.and_then(|was| was.address.clone());
        }
        self.sorted()
    }
}

/// The current ones, and those that are new.
fn controllers(wish: Vec<Controller>, current: &[Controller]) -> Vec<Controller> {
    let is_new = |it: &Controller| {
        current
            .iter()
            .all(|was| (&was.kind, was.index) != (&it.kind, it.index))
    };
    let new = wish.into_iter().filter(is_new);
    current.iter().cloned().chain(new).collect()
}
