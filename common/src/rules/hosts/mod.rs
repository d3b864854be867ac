//! Whether the LibvirtHosts offer what a Machine needs: each need on some host, and all needs on one host.
//!
//! ```text
//! Machine ──▶ needs: classes, networks, images ──▶ some host has each ──▶ one host has all
//! ```
//! Only changed needs are checked, so that a Machine can be edited after a host was deleted. A Machine that
//! is bound to a host is checked against that host. The controller checks free capacity.

mod devices;
mod hardware;
mod images;
mod requirement;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::choice::{Backend, VirtType};
use crate::api::normalized::Normalized;
use crate::catalog::{Catalog, HardwareNeed, HostRow, Need};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::normalize::{ClassRequest, Merged};
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::{labels_text, name_list, quoted};

use super::disks::existing;
use super::networks::network_name;
use super::rule::{Check, Lookup, rules};
use super::{firmware, form};
use requirement::Requirement;

rules! {
    "libvirt" Check::Lookup(hosts), on MACHINES, Always {
        Refuse NoLibvirtHost = "The backend is libvirt, and there is no LibvirtHost."
            because "Nothing could run the machine; it would stay Pending."
            fix "Register a LibvirtHost, or use `backend: kubevirt`."
            crd Nothing,
        Refuse NoHostSelected = "The node selector of a Machine on libvirt selects no LibvirtHost."
            because "Labels of hosts are what a node selector chooses by; none has these, so the machine would stay Pending."
            fix "Take labels that the message lists, or label a LibvirtHost."
            crd Nothing,
        Refuse NetworkNotOffered = "No LibvirtHost offers a network that the Machine is to be on."
            because "Hosts offer networks by the name of a bridge and its VLANs. A card without its bridge is found when the machine starts, and a VLAN on a plain bridge is not found at all."
            fix "Add the network or its VLAN to `networks` of a LibvirtHost, or take another NetworkConfiguration."
            crd Nothing,
        Refuse NoImagePool = "An image is named, and no LibvirtHost has a pool for images."
            because "Images are downloaded once for each host, into a pool of their own."
            fix "Set `imagePool` of a LibvirtHost, or drop the image."
            crd Nothing,
        Refuse TpmNotOffered = "The Machine is to have a TPM, and no LibvirtHost can emulate one."
            because "libvirt emulates a TPM with swtpm; a host without it refuses to start the machine."
            fix "Install swtpm on a LibvirtHost (package `swtpm-tools`), or drop `tpm`."
            crd Nothing,
        Refuse VolumesNotOffered = "A disk is to be on an existing volume, and no LibvirtHost offers any to the namespace."
            because "The volumes of a host are not the namespace's. Its administrator says which pool the Machines of a namespace may take disks from."
            fix "Add the pool with the namespace to `existingVolumes` of a LibvirtHost, or drop `volumeName`."
            crd Nothing,
        Refuse ImageSourceNotAllowed = "No LibvirtHost fetches images from the source of an image, or a MachinePolicy does not allow it."
            because "The controller fetches images inside the operator's network. `imageSources` of a LibvirtHost say from where; without them only servers with public addresses are allowed. A policy says which images the Machines of a namespace are made from."
            fix "Take a source that the message lists, or add the prefix of the URL to `imageSources` of a LibvirtHost or to `images.sources` of the policy."
            crd Nothing,
        Refuse DeviceNotOffered = "The Machine asks for a device that no LibvirtHost offers, or for more of them than any has."
            because "A guest gets a device of its own host, and a host gives each device to one guest. The machine would stay Pending."
            fix "Take a device that the message lists, or add it to `devices` of a LibvirtHost."
            crd Nothing,
        Refuse DedicatedCpusNotOffered = "The Machine asks for dedicated CPUs, and no LibvirtHost has as many for such guests."
            because "Each vCPU, up to `maxSockets`, has a CPU of the host for itself. The machine would stay Pending."
            fix "Ask for fewer vCPUs, drop `dedicated`, or add CPUs to `dedicatedCpus` of a LibvirtHost."
            crd Nothing,
        Refuse CpuModelNotOffered = "The Machine asks for a CPU model that guests of no LibvirtHost can have."
            because "A host without the model refuses to start the guest. The machine would stay Pending."
            fix "Take a model that the message lists, or drop `model`. `status.cpuModels` of a LibvirtHost has all of its models."
            crd Nothing,
        Refuse FirmwareNotOffered = "The guest is to start with UEFI or Secure Boot, and no LibvirtHost has such firmware."
            because "A host without the firmware refuses to start the guest. The machine would stay Pending."
            fix "Install the firmware on a LibvirtHost (package ovmf), or drop `efi` or `secureBoot`."
            crd Nothing,
        Refuse MachineTypeNotOffered = "No LibvirtHost runs guests of the machine type."
            because "The hypervisor of a host refuses a type that it does not have. The machine would stay Pending."
            fix "Take another machine type."
            crd Nothing,
        Refuse HugepagesNotOffered = "The Machine asks for huge pages of a size that no LibvirtHost has."
            because "A host without such pages refuses to start the guest. The machine would stay Pending."
            fix "Take a size that the message lists, drop `hugepages`, or reserve huge pages on a host."
            crd Nothing,
        Refuse NoHostFits = "Each requirement of the Machine is met by some LibvirtHost, and all of them by none."
            because "A machine runs on one host, with that host's pools and bridges; it would stay Pending."
            fix "Take what one host has, as the message lists, or extend a LibvirtHost. A machine that is bound to a host stays there."
            crd Nothing,
        Warn HypervEmulated = "Enlightenments for Windows are on, and every LibvirtHost that fits emulates."
            because "Most enlightenments are KVM's; without it only relaxed, vapic and spinlocks are left, and Windows runs slowly."
            fix "Nothing, or select a host with `virtType: kvm`."
            crd Nothing,
    }
}

/// Most hosts that a message lists with what they do not offer.
const HOSTS_SHOWN_MAX: usize = 3;

/// A Machine on libvirt.
#[derive(Clone, Copy)]
struct Guest<'a> {
    merged: &'a Merged<'a>,
    /// Storage classes by name of disk, where the spec leaves the choice open.
    classes: &'a BTreeMap<String, String>,
    namespace: &'a str,
    /// The stored block.
    old: Option<&'a Normalized>,
    /// Name of the LibvirtHost that the Machine is bound to.
    bound: Option<&'a str>,
}

impl Guest<'_> {
    /// Whether a disk names no class and no default was found for it.
    fn lacks_class(&self) -> bool {
        existing::own(self.merged, Backend::Libvirt).any(|item| {
            let leaf = item.pick("storageClass", |disk| disk.storage_class.as_deref());
            let is_open = ClassRequest::of(leaf.value).is_open();
            let name = item.name().value;
            is_open && name.is_some_and(|name| !self.classes.contains_key(name))
        })
    }
}

/// Rules [`Code::NoLibvirtHost`], [`Code::NoHostSelected`], [`Code::NetworkNotOffered`],
/// [`Code::NoImagePool`], [`Code::TpmNotOffered`], [`Code::VolumesNotOffered`], [`Code::ImageSourceNotAllowed`], [`Code::DeviceNotOffered`],
/// [`Code::DedicatedCpusNotOffered`], [`Code::CpuModelNotOffered`], [`Code::HugepagesNotOffered`], [`Code::FirmwareNotOffered`],
/// [`Code::MachineTypeNotOffered`], [`Code::NoHostFits`] and [`Code::HypervEmulated`].
fn hosts(lookup: &Lookup<'_>, classes: &mut BTreeMap<String, String>, findings: &mut Findings) {
    if lookup.is_on_libvirt() {
        let guest = Guest {
            merged: lookup.merged,
            classes,
            namespace: lookup.machine.namespace,
            old: lookup.stored,
            bound: lookup.bound_host,
        };
        check_hosts(&guest, lookup.catalog, findings);
    }
}

fn check_hosts(guest: &Guest<'_>, catalog: &dyn Catalog, findings: &mut Findings) {
    let requirements = requirements(guest, catalog, findings);
    let stored_needs = guest.old.map(|old| needs_of(old, guest.namespace, catalog));
    let is_new = |requirement: &Requirement<'_>| {
        stored_needs
            .as_ref()
            .is_none_or(|stored| !stored.iter().any(|had| had.covers(&requirement.need)))
    };
    let selector = guest
        .merged
        .user()
        .node_selector
        .clone()
        .unwrap_or_default();
    let same_selector = guest.old.is_some_and(|old| old.node_selector == selector);
    let hyperv = firmware::hyperv(guest.merged).value == Some(true);
    let same_hyperv = guest.old.is_some_and(|old| old.features.hyperv == hyperv);
    let hosts = catalog.hosts();
    // Without hosts no default class can be found, so a new disk has no class.
    let lacks_class = hosts.is_empty() && guest.lacks_class();
    if same_selector && same_hyperv && !lacks_class && !requirements.iter().any(is_new) {
        return;
    }

    if hosts.is_empty() {
        findings.deny(no_host(guest.merged));
        findings.miss(Reference::Hosts);
        return;
    }
    let before = findings.count();
    let offered =
        |requirement: &Requirement<'_>| hosts.iter().any(|host| host.offers(&requirement.need));
    for requirement in requirements
        .iter()
        .filter(|requirement| is_new(requirement) && !offered(requirement))
    {
        not_offered(requirement, &hosts, findings);
    }
    let selected: Vec<_> = match guest.bound {
        Some(bound) => hosts.iter().filter(|host| host.name == bound).collect(),
        None => hosts
            .iter()
            .filter(|host| host.matches(&selector))
            .collect(),
    };
    if selected.is_empty() && guest.bound.is_none() && form::are_labels(&selector) {
        findings.deny(none_selected(&selector, &hosts));
    }
    if selected.is_empty() || findings.count() > before {
        findings.miss(Reference::Hosts);
        return;
    }

    // Ignore needs of the stored block that no host offers any more, or that its own host no longer does: this update
    // does not add them.
    let is_placed = guest.bound.is_some();
    let requirements: Vec<_> = requirements
        .iter()
        .filter(|requirement| is_new(requirement) || !is_placed && offered(requirement))
        .collect();
    let has_all = |host: &&&Arc<HostRow>| {
        requirements
            .iter()
            .all(|requirement| host.offers(&requirement.need))
    };
    let fitting: Vec<_> = selected.iter().filter(has_all).collect();
    if fitting.is_empty() {
        if requirements.iter().all(|requirement| offered(requirement)) {
            no_host_fits(guest, &requirements, &selected, findings);
        }
        findings.miss(Reference::Hosts);
    } else if hyperv && fitting.iter().all(|host| host.virt_type == VirtType::Qemu) {
        let path = firmware::hyperv(guest.merged).path;
        let text = format!(
            "{path}: every matching host uses emulation (virtType qemu), where only the enlightenments relaxed, vapic and spinlocks work"
        );
        findings.warn(Code::HypervEmulated, &text);
    }
}

/// The needs of the Machine, and rule [`Code::NetworkNotOffered`] for a network without a bridge.
fn requirements<'a>(
    guest: &Guest<'a>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> Vec<Requirement<'a>> {
    let merged = guest.merged;
    let mut requirements = Vec::new();
    for item in existing::own(merged, Backend::Libvirt) {
        let leaf = item.pick("storageClass", |disk| disk.storage_class.as_deref());
        let class = match ClassRequest::of(leaf.value) {
            ClassRequest::Named(class) => Some(class),
            ClassRequest::NoClass => None,
            ClassRequest::ClusterDefault { .. } => {
                let name = item.name().value;
                name.and_then(|name| guest.classes.get(name).map(String::as_str))
            }
        };
        requirements.extend(class.map(|class| Requirement {
            need: Need::class(class),
            path: leaf.path,
            value: leaf.value,
        }));
    }
    let on_default = |path| Requirement {
        need: Need::DEFAULT_NETWORK,
        path,
        value: None,
    };
    if merged.networks.is_empty() && merged.is_complete() {
        requirements.push(on_default(FieldPath::field("networks")));
    }
    for item in &merged.networks {
        let leaf = network_name(item);
        let Some(name) = leaf.value else {
            if merged.is_complete() {
                requirements.push(on_default(leaf.path));
            }
            continue;
        };
        let Some(row) = catalog.network(guest.namespace, name) else {
            continue;
        };
        match Need::network(row) {
            Some(need) => requirements.push(Requirement {
                need,
                path: leaf.path,
                value: leaf.value,
            }),
            None if !guest.old.is_some_and(|old| is_on(old, name)) => {
                let detail = "names no bridge, and hosts offer networks by the name of a bridge; use a NetworkConfiguration that names one";
                let code = Code::NetworkNotOffered;
                let fault = Violation::new(leaf.path, code, Kind::Invalid, detail);
                findings.deny(fault.text(name));
            }
            None => {}
        }
    }
    for item in &merged.disks {
        let leaf = existing::source(item, Backend::Libvirt);
        requirements.extend(leaf.value.map(|_| Requirement {
            need: Need::existing_volumes(guest.namespace),
            path: leaf.path,
            value: leaf.value,
        }));
    }
    requirements.extend(images::requirements(merged));
    requirements.extend(devices::requirements(merged));
    requirements.extend(devices::dedicated_cpus(merged));
    requirements.extend(hardware::requirements(merged));
    requirements
}

fn is_on(block: &Normalized, network: &str) -> bool {
    let mut networks = block.networks.iter();
    networks.any(|nic| nic.network_name.as_deref() == Some(network))
}

/// The needs of a Machine with this block; networks that the catalog does not have are left out.
pub(super) fn needs_of<'a>(
    block: &'a Normalized,
    namespace: &str,
    catalog: &dyn Catalog,
) -> Vec<Need<'a>> {
    let classes = block
        .disks
        .iter()
        .map(|disk| Need::class(&disk.storage_class));
    let networks = block.networks.iter().filter_map(|nic| {
        let Some(name) = &nic.network_name else {
            return Some(Need::DEFAULT_NETWORK);
        };
        Need::network(catalog.network(namespace, name)?)
    });
    let images = images::needs_of(block);
    let hardware = HardwareNeed::all_of(block).map(Need::Hardware);
    let existing = block.existing_disks.first();
    let existing = existing.map(|_| Need::existing_volumes(namespace));
    let counts = block.device_counts().into_iter();
    let devices = counts.map(|(name, count)| Need::devices(name, count));
    let cpus = block
        .dedicated_cpus()
        .and_then(|it| usize::try_from(it).ok());
    let cpus = cpus.map(Need::DedicatedCpus);
    let needs = classes.chain(networks).chain(images).chain(devices);
    needs.chain(cpus).chain(hardware).chain(existing).collect()
}

/// Rule [`Code::NoLibvirtHost`].
fn no_host(merged: &Merged<'_>) -> Violation {
    let leaf = merged.own("backend", |spec| spec.backend.as_deref());
    let code = Code::NoLibvirtHost;
    if let Some(backend) = leaf.value {
        let detail = "there is no LibvirtHost to run it; register one, or use backend: kubevirt";
        Violation::new(leaf.path, code, Kind::Invalid, detail).text(backend)
    } else {
        let detail = "libvirt is the default backend, and there is no LibvirtHost; register one, or set backend: kubevirt";
        Violation::new(leaf.path, code, Kind::Required, detail)
    }
}

/// Reports a need that no host offers, with the code of its kind: one of the `*NotOffered` codes of this family,
/// [`Code::NoImagePool`] or [`Code::ImageSourceNotAllowed`]. A storage class is reported where classes are resolved.
fn not_offered(requirement: &Requirement<'_>, hosts: &[Arc<HostRow>], findings: &mut Findings) {
    match &requirement.need {
        Need::Class(_) => {}
        need @ Need::Network { bridge, vlan } => {
            let networks = hosts.iter().flat_map(|host| &host.networks);
            let known = networks.map(|network| network.name.clone());
            let known: Vec<String> = known.collect();
            let fix = if known.iter().any(|name| *name == **bridge) {
                let fix = match vlan {
                    Some(_) => {
                        "without this VLAN; add it to vlans there (a plain bridge is in one VLAN at most)"
                    }
                    None => "with VLANs only; offer it untagged",
                };
                format!("'{bridge}' is offered {fix}, or take another NetworkConfiguration")
            } else if **bridge == *names::DEFAULT_NETWORK {
                format!(
                    "a card that names no network is on it: name a NetworkConfiguration, or add it to a LibvirtHost. Networks of LibvirtHosts: {}",
                    name_list(known)
                )
            } else {
                format!(
                    "add it to a LibvirtHost, or take another NetworkConfiguration. Networks of LibvirtHosts: {}",
                    name_list(known)
                )
            };
            let detail = format!("no LibvirtHost offers {need}; {fix}");
            findings.deny(requirement.fault(Code::NetworkNotOffered, Kind::Invalid, detail));
        }
        Need::Images => images::no_pool(requirement, findings),
        Need::Hardware(need) => hardware::not_offered(requirement, need, hosts, findings),
        Need::ExistingVolumes(namespace) => {
            let detail = format!(
                "no LibvirtHost offers existing volumes to namespace '{namespace}'; add a pool to existingVolumes of one"
            );
            findings.deny(requirement.fault(Code::VolumesNotOffered, Kind::Forbidden, detail));
        }
        Need::DedicatedCpus(count) => {
            devices::cpus_not_offered(requirement, *count, hosts, findings);
        }
        Need::Devices { name, count } => {
            devices::not_offered(requirement, (name, *count), hosts, findings);
        }
        Need::Source(_) => images::source_not_allowed(requirement, hosts, findings),
    }
}

/// Rule [`Code::NoHostSelected`].
fn none_selected(selector: &BTreeMap<String, String>, hosts: &[Arc<HostRow>]) -> Violation {
    let known = hosts.iter().map(|host| {
        let known = host
            .labels
            .iter()
            .filter(|(key, _)| selector.contains_key(*key));
        format!("{} ({})", host.name, labels_text(known))
    });
    let detail = format!(
        "no LibvirtHost has these labels; LibvirtHosts: {}",
        name_list(known.collect()).replace(" ()", "")
    );
    let path = FieldPath::field("nodeSelector");
    let fault = Violation::new(path, Code::NoHostSelected, Kind::NotFound, detail);
    fault.value(quoted(&labels_text(selector)))
}

/// Rule [`Code::NoHostFits`], at the first requirement that is missing on the host that lacks the fewest.
fn no_host_fits(
    guest: &Guest<'_>,
    requirements: &[&Requirement<'_>],
    hosts: &[&Arc<HostRow>],
    findings: &mut Findings,
) {
    let mut missing: Vec<(&str, Vec<&Requirement<'_>>)> = hosts
        .iter()
        .map(|host| {
            let lacked = requirements
                .iter()
                .filter(|requirement| !host.offers(&requirement.need));
            (host.name.as_str(), lacked.copied().collect())
        })
        .collect();
    missing.sort_by_key(|(name, lacked)| (lacked.len(), *name));
    let Some(requirement) = missing.first().and_then(|(_, lacked)| lacked.first()) else {
        return;
    };
    let listed = missing.iter().take(HOSTS_SHOWN_MAX).map(|(name, lacked)| {
        let lacked = lacked
            .iter()
            .map(|requirement| requirement.need.to_string());
        format!("'{name}' lacks {}", name_list(lacked.collect()))
    });
    let listed = listed.collect::<Vec<_>>().join("; ");
    let more = match missing.len().saturating_sub(HOSTS_SHOWN_MAX) {
        0 => String::new(),
        1 => "; 1 more host lacks something".to_owned(),
        more => format!("; {more} more hosts lack something"),
    };
    let selected = match &guest.merged.user().node_selector {
        Some(selector) if !selector.is_empty() => " that nodeSelector selects",
        _ => "",
    };
    let detail = match guest.bound {
        Some(_) => format!("its host {listed}; take what it has, or extend the LibvirtHost"),
        None => format!(
            "no single LibvirtHost{selected} has all that this Machine needs: {listed}{more}; take what one has, or extend a LibvirtHost"
        ),
    };
    let fault = match requirement.need {
        Need::Images
        | Need::Hardware(HardwareNeed::Tpm | HardwareNeed::Efi | HardwareNeed::SecureBoot)
        | Need::DedicatedCpus(_) => {
            Violation::new(requirement.path, Code::NoHostFits, Kind::Forbidden, detail)
        }
        Need::Class(_)
        | Need::Network { .. }
        | Need::Devices { .. }
        | Need::Hardware(_)
        | Need::Source(_)
        | Need::ExistingVolumes(_) => requirement.fault(Code::NoHostFits, Kind::Invalid, detail),
    };
    findings.deny(fault);
}
