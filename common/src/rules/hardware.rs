//! Hardware of the node or host that a Machine has for itself: CPU model, dedicated CPUs, huge pages and devices.

use crate::api::choice::{Choice as _, HugepageSize};
use crate::api::machine::Device;
use crate::api::normalized::{NormalizedDevice, NormalizedHardware};
use crate::bounds::CPU_MODEL_MAX;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Leaf, Merged, Pins};
use crate::quantity::Bytes;
use crate::violation::{Findings, Kind, Violation};
use crate::words::quoted;

use super::form;
use super::rule::{Check, Parts, Subject, rules};
use super::sizing::{cpu_leaf, cpu_leaves, guest_memory, memory_leaf, memory_leaves};

rules! {
    "hardware" Check::Part(hardware), on MACHINES_AND_TEMPLATES, Always, and [InvalidObjectName] {
        Refuse InvalidCpuModel = "The CPU model cannot be the name of any."
            because "No node and no host has such a model, so the machine would not start."
            fix "Write `host-model`, `host-passthrough` or a model that `virsh cpu-models x86_64` lists."
            crd All,
        Refuse TooManyDedicatedThreads = "A Machine with dedicated CPUs has more than two threads per core."
            because "KubeVirt refuses it: the processors of a node have two threads per core at most."
            fix "Lower `threads`, and raise `cores` instead."
            crd Some,
        Refuse UnsupportedHugepages = "No huge pages have this size."
            because "Only the values that the message lists exist on x86-64."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse HugepagesDoNotDivideMemory = "The memory does not consist of whole huge pages."
            because "KubeVirt refuses the virtual machine."
            fix "Take the next multiple, which the message names, or smaller pages."
            crd Nothing,
        Refuse DeviceNameRequired = "A device does not name the resource that nodes offer."
            because "Only the resource says which device it is."
            fix "Add `deviceName`, such as `nvidia.com/A100`."
            crd All,
        Refuse InvalidDeviceName = "The name of a device cannot be one that a node or host offers."
            because "Names of devices have the domain of their vendor before a slash."
            fix "Write the name as `kubectl describe node` or the LibvirtHost shows it, such as `nvidia.com/A100`."
            crd All,
        Refuse DuplicateDevice = "Two devices have the same name."
            because "The backend names a device by it."
            fix "Rename one of them."
            crd All,
    }
}

/// The CPU model that is requested.
pub(super) fn cpu_model<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    cpu_leaf(merged, "resources.cpu.model", |cpu| cpu.model.as_deref())
}

/// Whether dedicated CPUs are requested.
pub(super) fn dedicated(merged: &Merged<'_>) -> Leaf<bool> {
    cpu_leaf(merged, "resources.cpu.dedicated", |cpu| cpu.dedicated)
}

/// The huge pages that are requested.
pub(super) fn hugepages<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    memory_leaf(merged, "resources.memory.hugepages", |memory| {
        memory.hugepages.as_deref()
    })
}

/// The list of devices, as it is named in paths.
const DEVICES: &str = "devices";

/// The devices that the Machine names, else those of the template: as a whole.
pub(super) fn devices<'a>(merged: &Merged<'a>) -> Leaf<&'a [Device]> {
    merged.pick(
        DEVICES,
        |spec| spec.devices.as_deref(),
        |template| template.devices.as_deref(),
    )
}

/// The names of the resources of the devices, each with its path.
pub(super) fn device_names<'a>(
    merged: &Merged<'a>,
) -> impl Iterator<Item = (FieldPath, &'a str)> + use<'a> {
    let leaf = devices(merged);
    let items = leaf.value.into_iter().flatten().enumerate();
    items.filter_map(move |(index, device)| {
        let name = device.device_name.as_deref()?;
        Some((device_path(leaf.path, index, "deviceName"), name))
    })
}

/// The path of a field of a device, or that of the template.
fn device_path(list: FieldPath, index: usize, field: &'static str) -> FieldPath {
    if list.is_from_user() {
        FieldPath::item(DEVICES, index, field)
    } else {
        list
    }
}

/// The rules of this file.
fn hardware(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    parts.hardware = NormalizedHardware {
        cpu_model: model(cpu_model(merged), findings),
        dedicated_cpu: dedicated_cpu(merged, findings),
        devices: host_devices(merged, subject.pins, findings),
        hugepages: pages(merged, findings),
    };
}

/// Rule [`Code::InvalidCpuModel`].
fn model(leaf: Leaf<&str>, findings: &mut Findings) -> Option<String> {
    let text = leaf.value?;
    if !form::is_label_name(text) {
        let detail = format!(
            "must be 'host-model', 'host-passthrough' or the name of a CPU model, such as 'Skylake-Server': at most {CPU_MODEL_MAX} letters, digits, '-', '_' and '.'"
        );
        let fault = Violation::new(leaf.path, Code::InvalidCpuModel, Kind::Invalid, detail);
        findings.deny(fault.text(text));
    }
    Some(text.to_owned())
}

/// Most threads per core of a guest with dedicated CPUs (KubeVirt, `validateThreadCountOnDedicatedCPUPlacement`).
const DEDICATED_THREADS_MAX: i64 = 2;

/// Rule [`Code::TooManyDedicatedThreads`].
fn dedicated_cpu(merged: &Merged<'_>, findings: &mut Findings) -> bool {
    let leaf = dedicated(merged);
    let is_dedicated = leaf.value == Some(true);
    let [_, threads, ..] = cpu_leaves(merged);
    let count = threads.value.unwrap_or(1);
    if is_dedicated && count > DEDICATED_THREADS_MAX {
        findings.deny(too_many_threads(threads.path, count, leaf.path));
    }
    is_dedicated
}

/// Rule [`Code::TooManyDedicatedThreads`], where the user can edit: at the threads, or at `dedicated` if only that is the
/// user's.
fn too_many_threads(threads: FieldPath, count: i64, dedicated: FieldPath) -> Violation {
    let code = Code::TooManyDedicatedThreads;
    let path = threads.or_user_path(dedicated);
    if path == threads {
        let detail = format!(
            "must be at most {DEDICATED_THREADS_MAX} with dedicated CPUs; raise cores instead"
        );
        return Violation::new(path, code, Kind::Invalid, detail).value(count);
    }
    let detail = format!(
        "the template has {count} threads per core, and with dedicated CPUs there are at most {DEDICATED_THREADS_MAX}; set resources.cpu.threads to {DEDICATED_THREADS_MAX} and raise cores instead, or drop dedicated"
    );
    Violation::new(path, code, Kind::Invalid, detail).value(true)
}

/// Rules [`Code::UnsupportedHugepages`] and [`Code::HugepagesDoNotDivideMemory`].
fn pages(merged: &Merged<'_>, findings: &mut Findings) -> Option<HugepageSize> {
    let leaf = hugepages(merged);
    let pages: HugepageSize = form::given_choice(leaf, Code::UnsupportedHugepages, findings)?;
    let memory = guest_memory(merged, &mut Findings::default());
    let [size, max_size] = memory_leaves(merged);
    let amounts = memory.map(|memory| [(memory.size, size), (memory.max_size, max_size)]);
    for (bytes, memory) in amounts.into_iter().flatten() {
        let page = pages.bytes();
        if memory.value.is_some() && !bytes.is_multiple_of(page) {
            let next = bytes.round_up_to(page);
            findings.deny(no_whole_pages(memory, next, pages, leaf.path));
        }
    }
    Some(pages)
}

/// Rule [`Code::HugepagesDoNotDivideMemory`], where the user can edit: at the memory, or at the huge pages if only those are
/// the user's. `next`: the next multiple.
fn no_whole_pages(
    memory: Leaf<&str>,
    next: Bytes,
    pages: HugepageSize,
    hugepages: FieldPath,
) -> Violation {
    let code = Code::HugepagesDoNotDivideMemory;
    let path = memory.path.or_user_path(hugepages);
    let given = memory.value.unwrap_or_default();
    if path == memory.path {
        let detail =
            format!("must be a multiple of the huge pages of {pages}; the next one is {next}");
        return Violation::new(path, code, Kind::Invalid, detail).text(given);
    }
    let field = memory.path.in_template().unwrap_or_default();
    let detail = format!(
        "{field} of the template is {}, which is no multiple of these huge pages; set {field} to {next}, or drop hugepages",
        quoted(given)
    );
    Violation::new(path, code, Kind::Invalid, detail).text(pages.as_str())
}

/// Rules [`Code::DeviceNameRequired`], [`Code::InvalidDeviceName`], [`Code::DuplicateDevice`] and
/// [`Code::InvalidObjectName`].
fn host_devices(
    merged: &Merged<'_>,
    pins: &Pins,
    findings: &mut Findings,
) -> Vec<NormalizedDevice> {
    let leaf = devices(merged);
    let items = || leaf.value.into_iter().flatten().enumerate();
    let names = items().map(|(index, device)| Leaf {
        value: device.name.as_deref(),
        path: device_path(leaf.path, index, "name"),
    });
    form::unique_names(names, Code::DuplicateDevice, findings);
    let device = |(index, device): (usize, &Device)| {
        let at = |field| device_path(leaf.path, index, field);
        let name = device.name.as_deref().unwrap_or_default();
        if !form::is_label(name) {
            findings.deny(form::invalid_object_label(at("name"), name));
        }
        let resource = device.device_name.as_deref().unwrap_or_default();
        if resource.is_empty() {
            let detail = "name the resource that nodes offer, such as 'nvidia.com/A100'";
            let code = Code::DeviceNameRequired;
            findings.deny(Violation::new(
                at("deviceName"),
                code,
                Kind::Required,
                detail,
            ));
        } else if !form::is_resource_name(resource) {
            findings.deny(form::invalid_resource_name(at("deviceName"), resource));
        }
        NormalizedDevice {
            device_name: resource.to_owned(),
            kind: pins.device_kind(resource),
            name: name.to_owned(),
        }
    };
    items().map(device).collect()
}
