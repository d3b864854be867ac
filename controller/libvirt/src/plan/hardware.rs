//! Devices and CPUs of the host that the guest has for itself.

use std::collections::BTreeMap;

use common::api::normalized::Normalized;
use common::pci::PciAddress;
use common::render::libvirt::Pinning;
use controller_core::conditions::Fault;

use crate::failure::NO_ROOM;
use crate::hardware::{devices, pins};
use crate::observed::HostView;

/// What the guest has of the host for itself.
#[derive(Debug)]
pub(super) struct Hardware {
    /// Devices by name.
    pub(super) devices: BTreeMap<String, PciAddress>,
    pub(super) pinning: Pinning,
}

/// What the guest gets of the host for itself: what its definition has, as far as it may keep it. The fault says why it does
/// not get all.
pub(super) fn hardware(block: &Normalized, view: &HostView) -> Result<Hardware, Fault> {
    let guest = view.guest.as_ref();
    let defined = guest.and_then(|guest| guest.defined.as_ref());
    let had = defined.into_iter().flat_map(|domain| &domain.host_devices);
    let had = had.map(|device| (device.name(), device.source)).collect();
    let had_cpus = defined.map(|domain| domain.pinning.dedicated.as_slice());
    let taken = &view.taken;
    let devices = devices(block, &view.spec, &had, &taken.devices);
    let wanted = block.dedicated_cpus().unwrap_or(0);
    let cpus = pins(
        wanted,
        &view.cpus,
        had_cpus.unwrap_or_default(),
        &taken.cpus,
    );
    let given = devices.and_then(|devices| {
        let pinning = Pinning {
            dedicated: cpus?,
            shared: view.cpus.shared.clone(),
        };
        Ok(Hardware { devices, pinning })
    });
    given.map_err(|lacks| {
        let message = format!(
            "LibvirtHost '{}' {lacks}: add some to spec of the host, or delete a Machine that has one; the Machine continues automatically then",
            view.host
        );
        Fault::new(NO_ROOM, message)
    })
}
