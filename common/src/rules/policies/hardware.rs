//! Hardware of nodes and hosts, and priorities, that the policies of a namespace allow.

use crate::api::choice::{Choice as _, HugepageSize};
use crate::api::normalized::Normalized;
use crate::catalog::Policy;
use crate::code::Code;
use crate::rules::rule::{Check, PolicySubject, rules};
use crate::rules::{hardware, placement, sizing};
use crate::violation::{Findings, Kind, Violation};

use super::limits::counted_vcpus;
use super::message::{allows, allows_no, names_of};

rules! {
    "policies" Check::Policy(node_hardware), on MACHINES, Always {
        Refuse HardwareNotAllowed = "A MachinePolicy does not allow the hardware that the Machine has for itself."
            because "Dedicated CPUs, huge pages and devices are taken from all others; the administrator decides who may."
            fix "Drop the field, or take a device that the message lists."
            crd Nothing,
    }
    "policies" Check::Policy(priority_classes), on MACHINES, Always {
        Refuse PriorityClassNotAllowed = "A MachinePolicy does not allow the PriorityClass of the Machine."
            because "A guest of a higher priority takes the place of others, also of other namespaces."
            fix "Take a PriorityClass that the message lists, or none."
            crd Nothing,
    }
}

/// Rule [`Code::HardwareNotAllowed`].
fn node_hardware(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let merged = machine.merged;
    let dedicated = hardware::dedicated(merged);
    let pages = hardware::hugepages(merged);
    let size = pages.value.and_then(HugepageSize::parse);
    let had = machine.stored;
    // More of them, or pages of another size, are another fault than the former one.
    let more_cpus = || {
        let had = had.filter(|block| block.has_dedicated_cpus());
        let had = had.map(Normalized::counted_vcpus);
        let asked = counted_vcpus(merged, machine.backend).map(|(vcpus, _)| vcpus);
        format!("more: {}", asked > had)
    };
    let more_pages = || {
        let had = had.filter(|block| block.hugepages() == size);
        let had = had.map(|block| block.memory.max_size);
        let memory = sizing::guest_memory(merged, &mut Findings::default());
        let is_more = memory.map(|memory| memory.max_size) > had;
        format!("{size:?}, more: {is_more}")
    };
    let code = Code::HardwareNotAllowed;
    if dedicated.value == Some(true) && !policy.hardware.allows_dedicated_cpu {
        let fault = allows_no(code, dedicated.path, policy, "dedicated CPUs", "drop it");
        findings.deny(fault.known_as(more_cpus()));
    }
    if size.is_some() && !policy.hardware.allows_hugepages {
        let fault = allows_no(code, pages.path, policy, "huge pages", "drop it");
        findings.deny(fault.known_as(more_pages()));
    }
    let Some(patterns) = &policy.hardware.devices else {
        return;
    };
    for (path, name) in hardware::device_names(merged) {
        if !patterns.iter().any(|pattern| pattern.matches(name)) {
            let kubevirt = machine.catalog.kubevirt();
            let permitted = kubevirt.iter().flat_map(|it| it.devices.keys().cloned());
            let hosts = machine.catalog.hosts();
            let offered = hosts.iter().flat_map(|host| host.devices.keys().cloned());
            let known: Vec<_> = permitted.chain(offered).collect();
            let allowed = allows(policy, name, names_of(patterns, &known));
            let code = Code::HardwareNotAllowed;
            findings.deny(Violation::new(path, code, Kind::Forbidden, allowed).text(name));
        }
    }
}

/// Rule [`Code::PriorityClassNotAllowed`]. A Machine without a class has the default priority of the cluster.
fn priority_classes(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let leaf = placement::requested_priority_class(machine.merged);
    let (Some(patterns), Some(name)) = (&policy.hardware.priority_classes, leaf.value) else {
        return;
    };
    if !patterns.iter().any(|pattern| pattern.matches(name)) {
        let known = machine.catalog.priority_classes().unwrap_or_default();
        let allowed = allows(policy, name, names_of(patterns, &known));
        let code = Code::PriorityClassNotAllowed;
        findings.deny(Violation::new(leaf.path, code, Kind::Forbidden, allowed).text(name));
    }
}
