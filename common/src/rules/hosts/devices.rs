//! Devices and CPUs that a Machine has for itself, among what LibvirtHosts offer.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalog::{HostRow, Need};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Merged;
use crate::violation::{Findings, Kind, Violation};
use crate::words::{did_you_mean, nearest_first};

use super::super::{form, hardware, sizing};
use super::requirement::Requirement;

/// The devices that a Machine requests, each name once, at the first device of it.
pub(super) fn requirements<'a>(merged: &Merged<'a>) -> impl Iterator<Item = Requirement<'a>> {
    let mut counts: BTreeMap<&str, (usize, FieldPath)> = BTreeMap::new();
    for (path, name) in hardware::device_names(merged) {
        // A name that no device can have is reported as such.
        if form::is_resource_name(name) {
            counts.entry(name).or_insert((0, path)).0 += 1;
        }
    }
    let counts = counts.into_iter();
    counts.map(|(name, (count, path))| Requirement {
        need: Need::devices(name, count),
        path,
        value: Some(name),
    })
}

/// Rule [`Code::DeviceNotOffered`].
pub(super) fn not_offered(
    requirement: &Requirement<'_>,
    (name, count): (&str, usize),
    hosts: &[Arc<HostRow>],
    findings: &mut Findings,
) {
    let offering = hosts.iter().filter_map(|host| {
        let offered = host.devices.get(name)?;
        Some((*offered, host.name.as_str()))
    });
    // Of hosts that offer equally many the first by name.
    let most = offering.rev().max_by_key(|(offered, _)| *offered);
    let detail = if let Some((offered, host)) = most {
        format!(
            "{count} are asked for, and no LibvirtHost offers more than {offered} ('{host}'); ask for fewer, or add some to a LibvirtHost"
        )
    } else {
        let known = hosts.iter().flat_map(|host| host.devices.keys());
        let mut known: Vec<_> = known.cloned().collect();
        known.sort_unstable();
        known.dedup();
        let nearest = did_you_mean(name, known.iter().map(String::as_str));
        let known = nearest_first(name, known);
        format!("{nearest}no LibvirtHost offers it; devices of LibvirtHosts: {known}")
    };
    findings.deny(requirement.fault(Code::DeviceNotOffered, Kind::Invalid, detail));
}

/// The CPUs that a Machine requests for its vCPUs alone. Counts that are out of their range are reported as such.
pub(super) fn dedicated_cpus<'a>(merged: &Merged<'a>) -> Option<Requirement<'a>> {
    let dedicated = hardware::dedicated(merged);
    let [cores, threads, sockets, most] = sizing::cpu_leaves(merged).map(|leaf| leaf.value);
    let sockets = sockets.unwrap_or(1).max(most.unwrap_or(1));
    let counts = [cores.unwrap_or(1), threads.unwrap_or(1), sockets];
    let counts = counts.map(|count| usize::try_from(count).unwrap_or(0));
    let count = counts.into_iter().fold(1, usize::saturating_mul);
    (dedicated.value == Some(true)).then_some(Requirement {
        need: Need::DedicatedCpus(count),
        path: dedicated.path,
        value: None,
    })
}

/// Rule [`Code::DedicatedCpusNotOffered`].
pub(super) fn cpus_not_offered(
    requirement: &Requirement<'_>,
    count: usize,
    hosts: &[Arc<HostRow>],
    findings: &mut Findings,
) {
    let offering = hosts.iter().filter(|host| host.dedicated_cpus > 0);
    let most = offering.rev().max_by_key(|host| host.dedicated_cpus);
    let detail = if let Some(host) = most {
        format!(
            "{count} are needed for all vCPUs up to maxSockets, and no LibvirtHost has more than {} ('{}'); ask for fewer vCPUs, or add CPUs to dedicatedCpus of a LibvirtHost",
            host.dedicated_cpus, host.name
        )
    } else {
        "no LibvirtHost has CPUs for single guests; set dedicatedCpus of one, or drop it".to_owned()
    };
    let code = Code::DedicatedCpusNotOffered;
    let fault = Violation::new(requirement.path, code, Kind::Forbidden, detail);
    findings.deny(fault);
}
