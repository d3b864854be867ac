//! What a new definition of a domain takes over from the current one.
//!
//! libvirt assigns an address to a device when the device is first defined. If a new definition did not
//! repeat the addresses, libvirt could assign others: the guest would find its devices in other slots,
//! and its network cards would get other names.

use super::build::assign_targets;
use super::devices::{Controller, Disk, Nic};
use super::display::Screen;
use super::domain::Domain;
use super::host_device::HostDevice;
use crate::api::choice::{Choice as _, CpuMode};

impl Domain {
    /// This domain, with everything that must stay the same as in the `current` definition: the exact
    /// machine type that libvirt chose, addresses and targets of devices that stay, the path of the
    /// firmware's variables, and the metadata.
    #[must_use]
    pub fn preserving(mut self, current: &Self) -> Self {
        let uid = |domain: &Self| domain.metadata.as_ref().map(|it| it.uid.clone());
        if uid(&self) == uid(current) {
            self.metadata.clone_from(&current.metadata);
        }
        if self.firmware.kind == current.firmware.kind {
            self.nvram.clone_from(&current.nvram);
        }
        // Addresses of one chipset are not valid on the other, which has different buses.
        if self.is_q35() != current.is_q35() {
            return self;
        }
        self.machine.clone_from(&current.machine);
        self.addresses.clone_from(&current.addresses);
        if !self.display.has_video() {
            self.addresses.remove("video");
        }
        if self.watchdog.is_none() {
            self.addresses.remove("watchdog");
        }
        self.controllers = controllers(self.controllers, &current.controllers);
        for disk in &mut self.disks {
            let is_same = |it: &&Disk| it.alias == disk.alias && it.bus == disk.bus;
            let old = current.disks.iter().find(is_same);
            disk.target = old.map_or_else(String::new, |old| old.target.clone());
            disk.address = old.and_then(|old| old.address.clone());
        }
        let taken: Vec<_> = current.disks.iter().map(|it| it.target.clone()).collect();
        assign_targets(&mut self.disks, &taken);
        for nic in &mut self.nics {
            let is_same = |it: &&Nic| it.alias == nic.alias && it.model == nic.model;
            let old = current.nics.iter().find(is_same);
            nic.address = old.and_then(|old| old.address.clone());
        }
        for device in &mut self.host_devices {
            let is_same = |it: &&HostDevice| it.alias == device.alias;
            let old = current.host_devices.iter().find(is_same);
            device.address = old.and_then(|old| old.address.clone());
        }
        self.sorted()
    }

    /// Whether a definition that was read from the host is this desired one. Beside the model of a CPU libvirt shows no mode
    /// of the host, and it does not show whether a mode is the host's or one that the Machine asks for.
    pub fn is_defined_by(&self, defined: &Self) -> bool {
        let mut read = self.clone();
        let asked = read.cpu_model.as_deref();
        match asked.map(CpuMode::parse) {
            None => {}
            Some(Some(mode)) => (read.cpu_mode, read.cpu_model) = (mode, None),
            Some(None) => read.cpu_mode = CpuMode::HostModel,
        }
        read == *defined
    }

    /// This domain with the screen of the `current` definition, if that has a screen of an earlier release: a guest gets
    /// another one when it starts.
    #[must_use]
    pub fn with_screen_of(mut self, current: &Self) -> Self {
        let is_earlier = current.display.screen == Screen::Port;
        if is_earlier && matches!(self.display.screen, Screen::Socket(_)) {
            self.display.screen = Screen::Port;
        }
        self
    }

    /// This domain with the limits of the `current` definition on every device that it has. A device that moves to
    /// another network gets those of the new one: they may be impossible there.
    #[must_use]
    pub fn with_limits_of(mut self, current: &Self) -> Self {
        self.vcpu_quota = current.vcpu_quota;
        self.pinning.shared.clone_from(&current.pinning.shared);
        for disk in &mut self.disks {
            let mut known = current.disks.iter();
            if let Some(known) = known.find(|it| it.alias == disk.alias) {
                disk.limits = known.limits;
            }
        }
        for nic in &mut self.nics {
            let mut known = current.nics.iter();
            let is_same = |known: &&Nic| {
                known.alias == nic.alias && known.attachment.source == nic.attachment.source
            };
            if let Some(known) = known.find(is_same) {
                nic.attachment.policy = known.attachment.policy;
            }
        }
        self
    }
}

/// All current controllers, and those desired ones that do not exist yet.
fn controllers(desired: Vec<Controller>, current: &[Controller]) -> Vec<Controller> {
    let is_new = |it: &Controller| {
        current
            .iter()
            .all(|old| (&old.kind, old.index) != (&it.kind, it.index))
    };
    let new = desired.into_iter().filter(is_new);
    current.iter().cloned().chain(new).collect()
}
