//! Hardware of a host that single guests have for themselves: what of it is left, and which of it a guest gets. Pure.
//!
//! ```text
//! LibvirtHost: name → addresses ─┬─ taken by domains, running or defined, whosever they are
//!                                ├─ promised to Machines that are bound to the host and do not have theirs yet
//!                                └─ left ─▶ placement; the first address of them ─▶ definition, which keeps it
//! ```

use std::collections::{BTreeMap, BTreeSet};

use common::api::libvirt_host::LibvirtHostSpec;
use common::api::normalized::Normalized;
use common::pci::PciAddress;
use common::render::libvirt::domain_uuid;
use controller_core::machine::DeviceCounts;
use uuid::Uuid;

use crate::access::DomainHardware;

/// What the domains of a host have for themselves.
pub(crate) type Taken = BTreeMap<Uuid, DomainHardware>;

/// Whether a host offers hardware to single guests. What domains have of it is read only then.
pub(crate) fn is_offered(spec: &LibvirtHostSpec) -> bool {
    spec.devices.as_ref().is_some_and(|kinds| !kinds.is_empty())
}

/// How many devices of each name are left on a host. `machines`: uids of the Machines that are bound to it, each with the
/// devices that it is to have.
pub(crate) fn devices_left<'m>(
    spec: &LibvirtHostSpec,
    taken: &Taken,
    machines: impl Iterator<Item = (&'m str, &'m DeviceCounts)> + Clone,
) -> BTreeMap<String, usize> {
    let kinds = spec.devices.iter().flatten();
    let left = kinds.map(|kind| {
        let offered: BTreeSet<_> = kind.addresses().collect();
        let has = |hardware: &DomainHardware| hardware.devices.intersection(&offered).count();
        let all = taken.values().flat_map(|hardware| &hardware.devices);
        let all: BTreeSet<_> = all.collect();
        let free = offered.iter().filter(|it| !all.contains(it)).count();
        let promised = machines.clone().map(|(uid, devices)| {
            let wanted = devices.get(kind.name.as_str()).copied().unwrap_or(0);
            wanted.saturating_sub(taken.get(&domain_uuid(uid)).map_or(0, has))
        });
        let promised = promised.fold(0_usize, usize::saturating_add);
        (kind.name.clone(), free.saturating_sub(promised))
    });
    left.collect()
}

/// The devices that a guest gets, by name of the device: those that it `had`, else the first that nobody has. The error says
/// what the host lacks. `taken`: by other domains.
pub(crate) fn devices(
    block: &Normalized,
    spec: &LibvirtHostSpec,
    had: &BTreeMap<&str, PciAddress>,
    taken: &BTreeSet<PciAddress>,
) -> Result<BTreeMap<String, PciAddress>, String> {
    let mut given = BTreeMap::new();
    let mut used = taken.clone();
    for device in block.devices() {
        let Some(address) = had.get(device.name.as_str()).copied() else {
            continue;
        };
        let mut offered = spec.devices_named(&device.device_name);
        if offered.any(|it| it == address) && used.insert(address) {
            given.insert(device.name.clone(), address);
        }
    }
    for device in block.devices() {
        if given.contains_key(&device.name) {
            continue;
        }
        let mut offered = spec.devices_named(&device.device_name);
        let Some(address) = offered.find(|it| !used.contains(it)) else {
            let (name, all) = (&device.device_name, spec.devices_named(&device.device_name));
            return Err(match all.count() {
                0 => format!("offers no device '{name}'"),
                all => format!("has no device '{name}' left: other domains have all {all}"),
            });
        };
        used.insert(address);
        given.insert(device.name.clone(), address);
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use common::api::choice::DeviceKind;
    use common::api::libvirt_host::HostDevices;
    use common::api::normalized::{NormalizedDevice, NormalizedHardware};

    use super::*;
    use crate::environment;

    fn at(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    fn spec() -> LibvirtHostSpec {
        let kind = |name: &str, addresses: &[&str]| HostDevices {
            addresses: addresses.iter().map(|&it| it.to_owned()).collect(),
            name: name.into(),
        };
        let mut spec = environment::host_spec();
        spec.devices = Some(vec![
            kind("a.b/gpu", &["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]),
            kind("a.b/nic", &["0000:04:00.0"]),
        ]);
        spec
    }

    fn domain(uid: &str, devices: &[&str]) -> (Uuid, DomainHardware) {
        let devices = devices.iter().map(|text| at(text)).collect();
        (domain_uuid(uid), DomainHardware { devices })
    }

    fn wants(counts: &[(&str, usize)]) -> DeviceCounts {
        let counts = counts.iter();
        counts.map(|(name, count)| ((*name).into(), *count)).collect()
    }

    #[test]
    fn a_device_is_left_if_no_domain_has_it_and_no_machine_on_the_host_waits_for_one() {
        let taken = Taken::from([
            domain("bound", &["0000:01:00.0"]),
            // It is no Machine, or one that is bound to another host; one of its devices is not offered.
            domain("foreign", &["0000:04:00.0", "0000:0f:00.0"]),
        ]);
        let left = |machines: &[(&str, DeviceCounts)]| {
            let machines = machines.iter().map(|(uid, counts)| (*uid, counts));
            let left = devices_left(&spec(), &taken, machines);
            (left["a.b/gpu"], left["a.b/nic"])
        };
        assert_eq!(left(&[]), (2, 0));
        let one = || wants(&[("a.b/gpu", 1)]);
        assert_eq!(left(&[("bound", one())]), (2, 0), "it has its device");
        assert_eq!(left(&[("waits", one())]), (1, 0));
        let more = wants(&[("a.b/gpu", 3), ("a.b/nic", 1)]);
        assert_eq!(left(&[("bound", more), ("waits", one())]), (0, 0));
        assert_eq!(left(&[("bound", wants(&[]))]), (2, 0), "it still has it");
    }

    fn block(devices: &[(&str, &str)]) -> Normalized {
        let device = |(name, kind): &(&str, &str)| NormalizedDevice {
            device_name: (*kind).into(),
            kind: DeviceKind::Pci,
            name: (*name).into(),
        };
        let mut block = environment::block();
        block.hardware = Some(NormalizedHardware {
            devices: devices.iter().map(device).collect(),
            ..NormalizedHardware::default()
        });
        block
    }

    #[test]
    fn a_guest_keeps_its_devices_and_gets_the_first_that_nobody_has() {
        let two = block(&[("new", "a.b/gpu"), ("old", "a.b/gpu")]);
        let had = BTreeMap::from([("old", at("0000:02:00.0"))]);
        let given = |had, taken: &[&str]| {
            let taken = taken.iter().map(|text| at(text)).collect();
            devices(&two, &spec(), had, &taken)
        };
        let of = |new, old| Ok(BTreeMap::from([("new".into(), at(new)), ("old".into(), at(old))]));
        assert_eq!(given(&had, &[]), of("0000:01:00.0", "0000:02:00.0"));
        let taken = ["0000:01:00.0"];
        assert_eq!(given(&had, &taken), of("0000:03:00.0", "0000:02:00.0"));
        let none = BTreeMap::new();
        assert_eq!(given(&none, &taken), of("0000:02:00.0", "0000:03:00.0"));
        // Another domain has got the device meanwhile.
        let taken = ["0000:02:00.0"];
        assert_eq!(given(&had, &taken), of("0000:01:00.0", "0000:03:00.0"));
        let full = given(&had, &["0000:01:00.0", "0000:03:00.0"]);
        assert_eq!(
            full,
            Err("has no device 'a.b/gpu' left: other domains have all 3".into())
        );
    }

    #[test]
    fn a_device_of_another_kind_is_not_kept() {
        let nic = block(&[("it", "a.b/nic")]);
        let had = BTreeMap::from([("it", at("0000:01:00.0"))]);
        let given = devices(&nic, &spec(), &had, &BTreeSet::new());
        assert_eq!(given.unwrap()["it"], at("0000:04:00.0"));
        let unknown = block(&[("it", "a.b/tpu")]);
        let refused = devices(&unknown, &spec(), &had, &BTreeSet::new());
        assert_eq!(refused, Err("offers no device 'a.b/tpu'".into()));
    }
}
