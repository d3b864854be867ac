//! Devices of the host that the guest has for itself.

use std::collections::BTreeMap;

use common::api::normalized::Normalized;
use common::pci::PciAddress;
use controller_core::conditions::Fault;

use crate::failure::NO_ROOM;
use crate::hardware;
use crate::observed::HostView;

/// The devices that the guest gets, by name: those of its definition, as far as it may keep them. The fault says why it
/// does not get all.
pub(super) fn devices(
    block: &Normalized,
    view: &HostView,
) -> Result<BTreeMap<String, PciAddress>, Fault> {
    let guest = view.guest.as_ref();
    let defined = guest.and_then(|guest| guest.defined.as_ref());
    let had = defined.into_iter().flat_map(|domain| &domain.host_devices);
    let had = had.map(|device| (device.name(), device.source)).collect();
    let given = hardware::devices(block, &view.spec, &had, &view.taken_devices);
    given.map_err(|lacks| {
        let message = format!(
            "LibvirtHost '{}' {lacks}; add some to spec.devices of the host, or delete a Machine that has one: the Machine continues automatically then",
            view.host
        );
        Fault::new(NO_ROOM, message)
    })
}
