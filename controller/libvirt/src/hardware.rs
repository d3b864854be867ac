//! Hardware of a host that single guests have for themselves: what of it is left, and which of it a guest gets. Pure.
//!
//! ```text
//! LibvirtHost: devices, CPUs ─┬─ taken by domains, running or defined, of any owner
//!                             ├─ reserved for Machines that are bound to the host and do not have theirs yet
//!                             └─ left ─▶ placement; the first of them ─▶ definition, which keeps it
//! ```

use std::collections::{BTreeMap, BTreeSet};

use common::api::libvirt_host::LibvirtHostSpec;
use common::api::normalized::Normalized;
use common::cpu_list::CpuList;
use common::pci::PciAddress;
use common::render::libvirt::domain_uuid;
use controller_core::machine::DeviceCounts;
use uuid::Uuid;

use crate::access::DomainHardware;

/// What the domains of a host have for themselves.
pub(crate) type Taken = BTreeMap<Uuid, DomainHardware>;

/// Whether a host offers hardware to single guests. What domains have of it is read only then.
pub(crate) fn is_offered(spec: &LibvirtHostSpec) -> bool {
    spec.devices.as_ref().is_some_and(|kinds| !kinds.is_empty()) || spec.dedicated_cpus.is_some()
}

/// The CPUs of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// Those for guests with dedicated CPUs.
    pub(crate) dedicated: BTreeSet<u32>,
    /// Those of all other threads of guests; `None`: any.
    pub(crate) shared: Option<CpuList>,
}

impl Cpus {
    /// The CPUs of a host of this spec that has so many.
    pub(crate) fn of(spec: &LibvirtHostSpec, count: u32) -> Self {
        let dedicated = spec.dedicated(Some(count));
        let others = (0..count).filter(|cpu| !dedicated.contains(cpu));
        let shared: BTreeSet<u32> = others.collect();
        // Where all are dedicated, nothing else is left for the other threads.
        let is_split = !dedicated.is_empty() && !shared.is_empty();
        Self {
            dedicated,
            shared: is_split.then_some(CpuList(shared)),
        }
    }
}

/// How many dedicated CPUs are left on a host. `machines`: uids of the Machines that are bound to it, each with the number
/// that it is to have.
pub(crate) fn cpus_left<'m>(
    cpus: &Cpus,
    taken: &Taken,
    machines: impl Iterator<Item = (&'m str, u32)>,
) -> u32 {
    let all: BTreeSet<_> = taken.values().flat_map(|hardware| &hardware.cpus).collect();
    let free = cpus.dedicated.iter().filter(|cpu| !all.contains(cpu));
    let reserved =
        machines.map(|(uid, wanted)| wanted.saturating_sub(pinned(cpus, taken, domain_uuid(uid))));
    count(free).saturating_sub(reserved.fold(0, u32::saturating_add))
}

/// How many of the dedicated CPUs a domain has.
pub(crate) fn pinned(cpus: &Cpus, taken: &Taken, domain: Uuid) -> u32 {
    let has = taken.get(&domain);
    has.map_or(0, |has| count(has.cpus.intersection(&cpus.dedicated)))
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// The CPUs that `wanted` vCPUs get, in their order: those that they `had`, else the first that nobody has. The error says
/// what the host lacks. `taken`: by other domains.
pub(crate) fn pins(
    wanted: u32,
    cpus: &Cpus,
    had: &[u32],
    taken: &BTreeSet<u32>,
) -> Result<Vec<u32>, String> {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let free: BTreeSet<u32> = cpus.dedicated.difference(taken).copied().collect();
    let mut given: Vec<u32> = had.to_vec();
    given.truncate(wanted);
    // One that it cannot keep would leave a gap in the order of the vCPUs: all are chosen again then.
    let distinct: BTreeSet<_> = given.iter().copied().collect();
    if distinct.len() < given.len() || !distinct.is_subset(&free) {
        given.clear();
    }
    let mut rest = free.iter().filter(|cpu| !given.contains(cpu));
    let more: Vec<u32> = rest.by_ref().take(wanted - given.len()).copied().collect();
    given.extend(more);
    if given.len() < wanted {
        let (left, all) = (free.len(), cpus.dedicated.len());
        return Err(format!(
            "has {left} of {all} dedicated CPUs left for this Machine, which needs {wanted}"
        ));
    }
    Ok(given)
}

/// How many devices of each name are left on a host. `machines`: uids of the Machines that are bound to it, each with the
/// devices that it is to have.
pub(crate) fn devices_left(
    spec: &LibvirtHostSpec,
    taken: &Taken,
    machines: &[(&str, &DeviceCounts)],
) -> BTreeMap<String, usize> {
    let kinds = spec.devices.iter().flatten();
    let all = taken.values().flat_map(|hardware| &hardware.devices);
    let all: BTreeSet<_> = all.collect();
    let left = kinds.map(|kind| {
        let offered: BTreeSet<_> = kind.addresses().collect();
        let has = |hardware: &DomainHardware| hardware.devices.intersection(&offered).count();
        let free = offered.iter().filter(|it| !all.contains(it)).count();
        let reserved = machines.iter().map(|(uid, devices)| {
            let wanted = devices.get(kind.name.as_str()).copied().unwrap_or(0);
            wanted.saturating_sub(taken.get(&domain_uuid(uid)).map_or(0, has))
        });
        let reserved = reserved.fold(0_usize, usize::saturating_add);
        (kind.name.clone(), free.saturating_sub(reserved))
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
        let hardware = DomainHardware {
            devices,
            ..DomainHardware::default()
        };
        (domain_uuid(uid), hardware)
    }

    fn wants(counts: &[(&str, usize)]) -> DeviceCounts {
        let counts = counts.iter();
        counts
            .map(|(name, count)| ((*name).into(), *count))
            .collect()
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
            let machines: Vec<_> = machines.collect();
            let left = devices_left(&spec(), &taken, &machines);
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
        let of = |new, old| {
            Ok(BTreeMap::from([
                ("new".into(), at(new)),
                ("old".into(), at(old)),
            ]))
        };
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

    #[test]
    fn a_vcpu_keeps_its_cpu_and_new_ones_get_the_first_that_nobody_has() {
        let mut spec = environment::host_spec();
        assert_eq!(Cpus::of(&spec, 8), Cpus::default());
        spec.dedicated_cpus = Some("2-5,100".into());
        let cpus = Cpus::of(&spec, 8);
        assert_eq!(cpus.dedicated, [2, 3, 4, 5].into());
        assert_eq!(cpus.shared.as_ref().unwrap().to_string(), "0-1,6-7");
        let given = |wanted, had: &[u32], taken: &[u32]| {
            pins(wanted, &cpus, had, &taken.iter().copied().collect())
        };
        assert_eq!(given(2, &[], &[]), Ok(vec![2, 3]));
        assert_eq!(given(2, &[], &[2, 7]), Ok(vec![3, 4]));
        assert_eq!(given(3, &[5, 3], &[]), Ok(vec![5, 3, 2]));
        assert_eq!(given(1, &[5, 3], &[]), Ok(vec![5]));
        assert_eq!(given(2, &[5, 7], &[]), Ok(vec![2, 3]), "7 is shared");
        let none = "has 1 of 4 dedicated CPUs left for this Machine, which needs 2";
        assert_eq!(given(2, &[], &[2, 3, 4]), Err(none.into()));
        spec.dedicated_cpus = Some("0-7".into());
        assert_eq!(Cpus::of(&spec, 8).shared, None);
    }

    #[test]
    fn a_cpu_is_left_if_no_domain_is_pinned_to_it_and_no_machine_waits_for_one() {
        let mut spec = environment::host_spec();
        spec.dedicated_cpus = Some("2-7".into());
        let cpus = Cpus::of(&spec, 8);
        let pinned = |uid, cpus: &[u32]| {
            let hardware = DomainHardware {
                cpus: cpus.iter().copied().collect(),
                ..DomainHardware::default()
            };
            (domain_uuid(uid), hardware)
        };
        let taken = Taken::from([pinned("bound", &[2, 3]), pinned("foreign", &[0, 4])]);
        let left = |machines: &[(&str, u32)]| cpus_left(&cpus, &taken, machines.iter().copied());
        assert_eq!(left(&[]), 3);
        assert_eq!(left(&[("bound", 2)]), 3);
        assert_eq!(left(&[("bound", 3), ("waits", 1)]), 1);
        assert_eq!(left(&[("waits", 8)]), 0);
    }
}
