//! PCI addresses of devices, and the free ports of a guest on q35 for devices that are hot-plugged.
//!
//! ```text
//! start: ports of the devices + SPARE_PORTS ──plug in──▶ one less ──unplugged──▶ one more
//!                                               └─ none left: the device waits for the next start
//! ```

use super::devices::{Address, Controller};
use super::domain::Domain;

/// Model of the ports of PCI Express on q35. Each takes one device, and none can be added to a running guest.
pub(super) const ROOT_PORT: &str = "pcie-root-port";
/// Free PCI Express ports for devices that are hot-plugged. They are added to the ports in use, so every
/// start of the guest has this many free ports again.
pub(super) const SPARE_PORTS: usize = 4;

/// How many more devices of PCI Express a running guest takes; `None`: it is no q35, and its slots are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreePorts(Option<usize>);

impl FreePorts {
    pub(super) fn of(running: &Domain) -> Self {
        let has_device = |port: &&Controller| {
            let mut addresses = running.device_addresses();
            addresses.any(|address| address.pci_bus() == Some(port.index))
        };
        let is_port = |it: &&Controller| it.kind == "pci" && it.model.as_deref() == Some(ROOT_PORT);
        let ports = running.controllers.iter().filter(is_port);
        let free = ports.filter(|port| !has_device(port)).count();
        Self(running.is_q35().then_some(free))
    }

    /// Takes a port for a device. `false`: there is none.
    pub(super) fn take(&mut self) -> bool {
        match &mut self.0 {
            None => true,
            Some(0) => false,
            Some(free) => {
                *free -= 1;
                true
            }
        }
    }
}

impl Domain {
    /// The addresses of all devices, on whichever bus.
    fn device_addresses(&self) -> impl Iterator<Item = &Address> {
        let disks = self.disks.iter().map(|it| &it.address);
        let devices = disks.chain(self.nics.iter().map(|it| &it.address));
        let devices = devices.chain(self.host_devices.iter().map(|it| &it.address));
        let devices = devices.chain(self.controllers.iter().map(|it| &it.address));
        devices.flatten().chain(self.addresses.values())
    }

    /// The desired address, if its bus exists in this running domain and the address is free. Then a
    /// hot-plugged device already has the address that it has after a restart.
    pub(super) fn free_address(&self, desired: Option<&Address>) -> Option<Address> {
        let desired = desired?;
        let bus = desired.pci_bus()?;
        let mut controllers = self.controllers.iter();
        let has_bus = controllers.any(|it| it.kind == "pci" && it.index == bus);
        let is_taken = self.device_addresses().any(|it| it == desired);
        (has_bus && !is_taken && self.can_unplug_at(Some(desired))).then(|| desired.clone())
    }

    /// Whether a device at this address can be unplugged: q35 does not support it on its root bus.
    pub(super) fn can_unplug_at(&self, address: Option<&Address>) -> bool {
        !(self.is_q35() && address.and_then(Address::pci_bus) == Some(0))
    }
}
