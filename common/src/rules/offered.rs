//! What KubeVirt permits, the cluster has and its nodes offer, of the hardware and the priority that a Machine on KubeVirt
//! requests.
//!
//! What the stored block has already is not looked up again, so that a Machine can be edited after a node was removed.

use std::collections::BTreeMap;

use crate::api::choice::{Backend, Choice as _, DeviceKind, HugepageSize};
use crate::api::normalized::Normalized;
use crate::catalog::NodeNeed;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::{did_you_mean, nearest_first};

use super::rule::{Check, Lookup, rules};
use super::{form, hardware, placement};

rules! {
    "hardware" Check::Lookup(permitted_devices), on MACHINES, Always {
        Refuse DeviceNotPermitted = "KubeVirt does not permit the device for guests."
            because "KubeVirt looks only when it makes the pod of the guest, which then never starts."
            fix "Take a device that the message lists, or ask an administrator to add it to `permittedHostDevices` of the `KubeVirt` object."
            crd Nothing,
    }
    "hardware" Check::Lookup(priority_class), on MACHINES, Always {
        Refuse PriorityClassNotFound = "The PriorityClass does not exist."
            because "Kubernetes refuses the pod of the guest, so that the machine never starts."
            fix "Take one of the names that the message lists, or apply the PriorityClass first."
            crd Nothing,
    }
    "hardware" Check::Lookup(offered_by_nodes), on MACHINES, Always {
        Warn NotOfferedByNodes = "No node of the cluster offers the requested hardware."
            because "The guest waits until a node offers it."
            fix "Ask for hardware that a node has, or have a node set up for it; the message says what was looked for."
            crd Nothing,
    }
}

/// Whether the rules of KubeVirt apply.
fn is_on_kubevirt(lookup: &Lookup<'_>) -> bool {
    lookup.backend == Backend::Kubevirt
}

/// Rule [`Code::DeviceNotPermitted`]. Nothing is known about the devices of a cluster whose KubeVirt cannot be read.
fn permitted_devices(
    lookup: &Lookup<'_>,
    _: &mut BTreeMap<String, String>,
    findings: &mut Findings,
) {
    let mut names = hardware::device_names(lookup.merged).peekable();
    if !is_on_kubevirt(lookup) || names.peek().is_none() {
        return;
    }
    let Some(kubevirt) = lookup.catalog.kubevirt() else {
        return;
    };
    let stored = lookup.stored.map(Normalized::devices).unwrap_or_default();
    for (path, name) in names.filter(|(_, name)| form::is_resource_name(name)) {
        let is_kept = stored.iter().any(|device| device.device_name == name);
        if is_kept || kubevirt.devices.contains_key(name) {
            continue;
        }
        let known: Vec<_> = kubevirt.devices.keys().cloned().collect();
        let nearest = did_you_mean(name, known.iter().map(String::as_str));
        let known = nearest_first(name, known);
        let detail = format!("{nearest}devices that KubeVirt permits: {known}");
        let code = Code::DeviceNotPermitted;
        findings.deny(Violation::new(path, code, Kind::NotFound, detail).text(name));
    }
}

/// Rule [`Code::PriorityClassNotFound`].
fn priority_class(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let leaf = placement::requested_priority_class(lookup.merged);
    let Some(name) = leaf.value.filter(|name| form::is_object_name(name)) else {
        return;
    };
    let stored = lookup.stored.and_then(Normalized::priority_class);
    if !is_on_kubevirt(lookup) || stored == Some(name) {
        return;
    }
    let Some(known) = lookup.catalog.priority_classes() else {
        return;
    };
    if known.iter().any(|known| known == name) {
        return;
    }
    let nearest = did_you_mean(name, known.iter().map(String::as_str));
    let known = nearest_first(name, known);
    let detail = format!("{nearest}known PriorityClasses: {known}");
    let code = Code::PriorityClassNotFound;
    findings.deny(Violation::new(leaf.path, code, Kind::NotFound, detail).text(name));
    findings.miss(Reference::PriorityClass(name.to_owned()));
}

/// Rule [`Code::NotOfferedByNodes`].
fn offered_by_nodes(
    lookup: &Lookup<'_>,
    _: &mut BTreeMap<String, String>,
    findings: &mut Findings,
) {
    if !is_on_kubevirt(lookup) {
        return;
    }
    for (path, need) in needs(lookup) {
        if lookup.catalog.is_offered_by_nodes(need) == Some(false) {
            let what = describe(need);
            let text = format!("{path}: no node offers {what}; the guest waits until one does");
            findings.warn(Code::NotOfferedByNodes, &text);
        }
    }
}

/// What the guest needs of its node and the stored block does not have, without what is refused as such.
fn needs<'a>(lookup: &Lookup<'a>) -> Vec<(FieldPath, NodeNeed<'a>)> {
    let (merged, stored) = (lookup.merged, lookup.stored);
    let mut needs = Vec::new();
    let dedicated = hardware::dedicated(merged);
    let had = stored.is_some_and(Normalized::has_dedicated_cpus);
    if dedicated.value == Some(true) && !had {
        needs.push((dedicated.path, NodeNeed::DedicatedCpus));
    }
    let model = hardware::cpu_model(merged);
    let had = stored.and_then(Normalized::cpu_model);
    let wanted = model.value.filter(|name| form::is_label_name(name));
    if let Some(name) = wanted.filter(|name| Some(*name) != had) {
        needs.push((model.path, NodeNeed::CpuModel(name)));
    }
    let pages = hardware::hugepages(merged);
    let had = stored.and_then(Normalized::hugepages);
    let wanted = pages.value.and_then(HugepageSize::parse);
    if let Some(size) = wanted.filter(|size| Some(*size) != had) {
        needs.push((pages.path, NodeNeed::Hugepages(size)));
    }
    let had = stored.map(Normalized::devices).unwrap_or_default();
    for (path, name) in hardware::device_names(merged) {
        let is_new = had.iter().all(|device| device.device_name != name);
        if is_new && form::is_resource_name(name) && is_permitted(lookup, name) {
            needs.push((path, NodeNeed::Device(name)));
        }
    }
    needs
}

/// Whether KubeVirt permits a device, as far as that is known.
fn is_permitted(lookup: &Lookup<'_>, name: &str) -> bool {
    let kubevirt = lookup.catalog.kubevirt();
    kubevirt.is_none_or(|kubevirt| kubevirt.devices.contains_key(name))
}

fn describe(need: NodeNeed<'_>) -> String {
    match need {
        NodeNeed::DedicatedCpus => {
            "dedicated CPUs (the label cpumanager=true, which KubeVirt sets with its feature gate CPUManager where the kubelet has the static CPU manager)".to_owned()
        }
        NodeNeed::CpuModel(model) => format!("the CPU model {model}"),
        NodeNeed::Hugepages(size) => format!("huge pages of {size}"),
        NodeNeed::Device(name) => format!("the device {name}"),
    }
}

/// How KubeVirt permits the devices that a Machine requests, by name of the resource, if that is known. Those in `kept` are
/// not looked up.
pub(crate) fn device_kinds(
    lookup: &Lookup<'_>,
    kept: &BTreeMap<String, DeviceKind>,
) -> BTreeMap<String, DeviceKind> {
    let mut kinds = kept.clone();
    // A LibvirtHost offers PCI devices only.
    if !is_on_kubevirt(lookup) {
        return kinds;
    }
    let names = hardware::device_names(lookup.merged);
    for (_, name) in names.filter(|(_, name)| !kept.contains_key(*name)) {
        let kubevirt = lookup.catalog.kubevirt();
        let permitted = kubevirt.and_then(|it| it.devices.get(name).copied());
        kinds.extend(permitted.map(|kind| (name.to_owned(), kind)));
    }
    kinds
}
