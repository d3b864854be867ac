//! Whether any LibvirtHost could ever give a Machine its vCPUs and memory. What others have of it is the
//! controller's to check.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::libvirt_host::HostResources;
use crate::catalog::HostRow;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::quantity::Bytes;
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::counted;

use super::hardware;
use super::rule::{Check, Lookup, rules};
use super::sizing::{cpu_leaves, largest, largest_memory};

/// Nothing is allocated on a host of its own.
const NOTHING: HostResources = HostResources {
    cpu: 0,
    memory: Bytes::new(0),
};

rules! {
    "libvirt" Check::Lookup(room), on MACHINES, Always {
        Refuse LargerThanHosts = "A Machine asks for more vCPUs or memory than any LibvirtHost has for all its Machines together."
            because "It could not even start on a host of its own; a Machine that grows so far would keep what it has for ever."
            fix "Ask for at most what the message names, or raise `overcommit` of a LibvirtHost. A machine that is bound to a host stays there."
            crd Nothing,
    }
}

/// Rule [`Code::LargerThanHosts`]. What the stored block asks for already is not refused.
fn room(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    if !lookup.is_on_libvirt() {
        return;
    }
    let hosts = eligible(lookup);
    let is_dedicated = hardware::dedicated(lookup.merged).value == Some(true);
    let rooms = hosts
        .iter()
        .map(|host| Some((&**host, host.left(NOTHING, is_dedicated)?)));
    // A host that was never reached may have any size.
    let Some(rooms) = rooms.collect::<Option<Vec<_>>>() else {
        return;
    };
    let most_cpu = most(&rooms, |all| all.cpu);
    if let Some((vcpus, (value, path))) = vcpus(lookup)
        && let Some((host, most)) = most_cpu.filter(|(_, most)| vcpus > *most)
        && lookup.stored.is_none_or(|old| {
            let asks_for_shared = old.has_dedicated_cpus() && !is_dedicated;
            vcpus > old.cpu.vcpus() || asks_for_shared
        })
    {
        let asked = counted(vcpus, "vCPU");
        let sharing = if host.dedicated_cpus > 0 && !is_dedicated {
            " without dedicated CPUs"
        } else {
            ""
        };
        let most = format!(
            "{} for all its Machines{sharing} together",
            counted(most, "vCPU")
        );
        let detail = detail(lookup, &asked, host, &most);
        findings.deny(larger(path, &detail).value(value));
        findings.miss(Reference::Hosts);
    }
    let most_memory = most(&rooms, |all| all.memory);
    let leaf = largest_memory(lookup.merged);
    let memory = leaf.value.and_then(|text| text.parse::<Bytes>().ok());
    if let Some(memory) = memory
        && let Some((host, most)) = most_memory.filter(|(_, most)| memory > *most)
        && lookup.stored.is_none_or(|old| memory > old.memory.max_size)
    {
        let asked = format!("{memory} of memory");
        let most = format!("{most} of memory for all its Machines together");
        let detail = detail(lookup, &asked, host, &most);
        let text = leaf.value.unwrap_or_default();
        findings.deny(larger(leaf.path, &detail).text(text));
        findings.miss(Reference::Hosts);
    }
}

/// The hosts that the Machine may be on: the one that it is bound to, else those that it selects.
fn eligible(lookup: &Lookup<'_>) -> Vec<Arc<HostRow>> {
    let selector = lookup.merged.user().node_selector.clone();
    let selector = selector.unwrap_or_default();
    let mut hosts = lookup.catalog.hosts();
    hosts.retain(|host| match lookup.bound_host {
        Some(bound) => host.name == bound,
        None => host.matches(&selector),
    });
    hosts
}

/// The host that has the most of a resource, and how much it has.
fn most<'h, T: Copy + Ord>(
    hosts: &[(&'h HostRow, HostResources)],
    amount: impl Fn(&HostResources) -> T,
) -> Option<(&'h HostRow, T)> {
    let amounts = hosts.iter().map(|(host, all)| (*host, amount(all)));
    // Of equal ones the first by name.
    amounts.rev().max_by_key(|(_, amount)| *amount)
}

/// The vCPUs that the Machine asks for, and their largest factor with its field.
fn vcpus(lookup: &Lookup<'_>) -> Option<(u32, (i64, FieldPath))> {
    let [cores, threads, sockets, _] = cpu_leaves(lookup.merged);
    let factors = [cores, threads, sockets].map(|leaf| (leaf.value.unwrap_or(1), leaf.path));
    let mut vcpus = 1_u32;
    for (count, _) in factors {
        vcpus = vcpus.saturating_mul(u32::try_from(count).ok()?);
    }
    Some((vcpus, largest(factors)?))
}

fn detail(lookup: &Lookup<'_>, asked: &str, host: &HostRow, most: &str) -> String {
    let host = &host.name;
    if lookup.bound_host.is_some() {
        return format!(
            "asks for {asked}, and its host '{host}' has {most}; ask for less, or raise overcommit of the LibvirtHost"
        );
    }
    format!(
        "asks for {asked}, and no LibvirtHost that it may be on has more than {most} ('{host}'); ask for less, or raise overcommit of a LibvirtHost"
    )
}

fn larger(path: FieldPath, detail: &str) -> Violation {
    Violation::new(path, Code::LargerThanHosts, Kind::Invalid, detail)
}
