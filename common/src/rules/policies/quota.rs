//! Quota of a namespace: what all its Machines together may have.

use crate::api::normalized::Normalized;
use crate::catalog::{Counted, Policy, QuotaRequest, Resource, Usage, amount};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::rules::policies::limits::counted_vcpus;
use crate::rules::rule::{Check, PolicySubject, rules};
use crate::rules::{boot, disks, sizing};
use crate::violation::{Findings, Kind, Violation};

rules! {
    "policies" Check::Policy(quota), on MACHINES, Always {
        Refuse QuotaExceeded = "With this Machine, the Machines and the kept disks of the namespace would have more than a MachinePolicy gives the namespace."
            because "The administrator shares the capacity among namespaces. Stopped Machines count, too, because they can be started at any time, and so do disks that are kept, because they occupy storage."
            fix "Make the Machine smaller, delete another one or a disk that is kept, or ask the administrator for more."
            crd Nothing,
    }
}

/// Rule [`Code::QuotaExceeded`], unless the stored Machine and the kept disks that it takes back have as much. What other rules refuse counts as nothing.
fn quota(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let quota = policy.quota;
    if !quota.is_set() {
        return;
    }
    let disks = disks::existing::own(machine.merged, machine.backend);
    let stored_disks = machine.stored.into_iter().flat_map(|stored| &stored.disks);
    let Counted { others, returning } = machine.catalog.usage_beside(&QuotaRequest {
        machine: machine.machine,
        backend: machine.backend,
        disks: disks.filter_map(|item| item.name().value).collect(),
        had: stored_disks.map(|disk| disk.name.as_str()).collect(),
    });
    let stored = machine.stored.filter(|_| machine.merged.is_complete());
    let leaving = stored.map_or(0, |stored| leaving(stored, machine));
    let asked = asked(machine).plus(Usage::of_storage(leaving));
    let has = machine.stored.map(Usage::of).unwrap_or_default();
    for excess in quota.excess(&policy.name, others, asked, has.plus(returning)) {
        // Where the amount is changed.
        let path = match excess.resource {
            Resource::Cpu => counted_vcpus(machine.merged, machine.backend)
                .map_or_else(|| sizing::largest_factor(machine.merged), |(_, path)| path),
            Resource::Memory => sizing::largest_memory(machine.merged).path,
            Resource::Storage => FieldPath::field("disks"),
        };
        let fault = Violation::new(path, Code::QuotaExceeded, Kind::Forbidden, excess.detail);
        findings.deny(fault.value(excess.asked));
    }
}

/// Bytes of the stored disks that the Machine no longer has. Their volumes are kept, so they still count.
fn leaving(stored: &Normalized, machine: &PolicySubject<'_>) -> u64 {
    let asked = &machine.merged.disks;
    let stays = |name: &str| asked.iter().any(|item| item.name().value == Some(name));
    let leaving = stored.disks.iter().filter(|disk| !stays(&disk.name));
    let sizes = leaving.map(|disk| amount(disk.size));
    sizes.fold(0, u64::saturating_add)
}

/// What the Machine would use.
fn asked(machine: &PolicySubject<'_>) -> Usage {
    let merged = machine.merged;
    let mut scratch = Findings::default();
    let cpu = counted_vcpus(merged, machine.backend);
    let memory = sizing::guest_memory(merged, &mut scratch);
    let mut storage = 0;
    for item in disks::existing::own(merged, machine.backend) {
        let size = disks::size(merged, item, &mut scratch);
        storage = size.map(amount).unwrap_or_default().saturating_add(storage);
    }
    for item in &merged.cdroms {
        let size = boot::cdrom_size(item, machine.backend, &mut scratch);
        storage = size.map(amount).unwrap_or_default().saturating_add(storage);
    }
    Usage {
        cpu: cpu.map_or(0, |(vcpus, _)| vcpus.into()),
        memory: memory.map_or(0, |memory| amount(memory.max_size)),
        storage,
    }
}
