//! Hardware that a LibvirtHost offers to single guests.

use crate::bounds::CPU_LIST_MAX;
use crate::code::Code;
use crate::cpu_list::CpuList;
use crate::field_path::FieldPath;
use crate::pci::PciAddress;
use crate::violation::{Findings, Kind, Location, Violation};

use super::super::form;
use super::super::rule::{Check, rules};
use super::{Entries, HostIntent, entry, leaf, required_at};

rules! {
    "libvirthosts" Check::Host(devices), on HOSTS, Always, and [HostFieldRequired, InvalidDeviceName, DuplicateOffer] {
        Refuse InvalidPciAddress = "A LibvirtHost offers a device whose address is not that of a PCI device."
            because "libvirt finds a device by its address alone; a guest that gets one of another form is not defined."
            fix "Write the address as `lspci -D` prints it on the host, such as `0000:3b:00.0`."
            crd All,
    }
    "libvirthosts" Check::Host(dedicated_cpus), on HOSTS, Always {
        Refuse InvalidCpuList = "The CPUs that a LibvirtHost offers are no list of CPUs."
            because "Guests are pinned to these CPUs, and all others are kept off them."
            fix "Write numbers and ranges, such as `\"2-7,10\"`."
            crd Some,
    }
}

/// Rule [`Code::InvalidCpuList`].
fn dedicated_cpus(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let Some(text) = spec.dedicated_cpus.as_deref() else {
        return;
    };
    let detail = match text.parse::<CpuList>() {
        Err(error) => error.to_string(),
        Ok(_) if text.len() > CPU_LIST_MAX => {
            format!("must have at most {CPU_LIST_MAX} characters; write ranges")
        }
        Ok(_) => return,
    };
    let path = FieldPath::field("dedicatedCpus");
    let fault = Violation::new(path, Code::InvalidCpuList, Kind::Invalid, detail);
    findings.deny(fault.text(text));
}

/// The rules about devices, and [`Code::InvalidPciAddress`].
fn devices(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let mut names = vec![];
    let mut offered = Entries::default();
    for (index, item) in spec.devices.iter().flatten().enumerate() {
        let at = |field| FieldPath::item("devices", index, field);
        let fix = "name the device as Machines name it in deviceName, such as 'nvidia.com/A100'";
        let name = required_at(leaf(at("name"), item.name.as_deref()), fix, findings);
        if let Some(text) = name.value
            && !form::is_resource_name(text)
        {
            findings.deny(form::invalid_resource_name(name.path, text));
        }
        names.push(name);
        if item.addresses.as_ref().is_none_or(Vec::is_empty) {
            let fix = "give the addresses of the devices, as 'lspci -D' prints them on the host";
            required_at(leaf(at("addresses"), None), fix, findings);
        }
        for (index, text) in item.addresses.iter().flatten().enumerate() {
            let at = entry(at("addresses"), index);
            pci_address(at.clone(), text, findings);
            offered.add(text, &at, "each device is offered once", findings);
        }
    }
    form::unique_names(names, Code::DuplicateOffer, findings);
}

/// Rule [`Code::InvalidPciAddress`].
fn pci_address(at: Location, text: &str, findings: &mut Findings) {
    if let Err(error) = text.parse::<PciAddress>() {
        let detail = error.to_string();
        let fault = Violation::new(at, Code::InvalidPciAddress, Kind::Invalid, detail);
        findings.deny(fault.text(text));
    }
}
