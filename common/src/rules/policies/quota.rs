//! Quota of a namespace: what all its Machines together may have.

use crate::bounds::VCPUS_MAX;
use crate::catalog::{Policy, Usage, amount};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::quantity::Bytes;
use crate::rules::rule::{Check, Governed, rules};
use crate::rules::{boot, disks, sizing};
use crate::violation::{Findings, Kind, Violation};

rules! {
    "policies" Check::Policy(quota), on MACHINES, Always {
        Refuse QuotaExceeded = "With this Machine, the Machines of the namespace would have more than a MachinePolicy gives the namespace."
            because "The administrator shares the capacity among namespaces. Stopped Machines count, too, because they can be started at any time."
            fix "Make the Machine smaller, delete another one, or ask the administrator for more."
            crd Nothing,
    }
}

/// Rule [`Code::QuotaExceeded`], unless the stored Machine has as much. What other rules refuse counts as nothing.
fn quota(machine: &Governed<'_>, policy: &Policy, findings: &mut Findings) {
    let quota = policy.quota;
    if !quota.is_set() {
        return;
    }
    let others = machine.catalog.usage_of_others(machine.machine);
    let (asked, stored) = (asked(machine), machine.stored.map(Usage::of));
    let memory = sizing::largest_memory(machine.merged).path;
    let bytes = |amount: u64| Bytes::new(amount.into()).to_string();
    let parts: [Part<'_>; 3] = [
        Part {
            path: sizing::largest_factor(machine.merged),
            amount: |usage| usage.cpu,
            quota: quota.cpu,
            show: &|amount| amount.to_string(),
            what: "vCPUs",
        },
        Part {
            path: memory,
            amount: |usage| usage.memory,
            quota: quota.memory,
            show: &bytes,
            what: "of memory",
        },
        Part {
            path: FieldPath::field("disks"),
            amount: |usage| usage.storage,
            quota: quota.storage,
            show: &bytes,
            what: "of storage",
        },
    ];
    for part in parts {
        let (asked, used) = ((part.amount)(&asked), (part.amount)(&others));
        let grows = stored.is_none_or(|stored| asked > (part.amount)(&stored));
        if let Some(quota) = part.quota
            && grows
            && asked > quota.saturating_sub(used)
        {
            let (policy, what) = (&policy.name, part.what);
            let [shown, used, quota] = [asked, used, quota].map(part.show);
            let detail = format!(
                "policy '{policy}' gives the namespace {quota} {what}, and its other Machines have {used}"
            );
            let fault = Violation::new(part.path, Code::QuotaExceeded, Kind::Forbidden, detail);
            findings.deny(fault.value(shown));
        }
    }
}

/// A resource that a quota limits.
struct Part<'a> {
    /// Where the amount is changed.
    path: FieldPath,
    amount: fn(&Usage) -> u64,
    quota: Option<u64>,
    show: &'a dyn Fn(u64) -> String,
    /// What it is an amount of, as messages say it.
    what: &'static str,
}

/// What the Machine would use.
fn asked(machine: &Governed<'_>) -> Usage {
    let merged = machine.merged;
    let mut scratch = Findings::default();
    let cpu = sizing::topology(merged, VCPUS_MAX, &mut scratch);
    let memory = sizing::guest_memory(merged, &mut scratch);
    let mut storage = 0;
    for item in &merged.disks {
        let size = disks::size(merged, item, &mut scratch);
        storage = size.map(amount).unwrap_or_default().saturating_add(storage);
    }
    for item in &merged.cdroms {
        let size = boot::cdrom_size(item, machine.backend, &mut scratch);
        storage = size.map(amount).unwrap_or_default().saturating_add(storage);
    }
    Usage {
        cpu: cpu.map_or(0, |cpu| cpu.vcpus().into()),
        memory: memory.map_or(0, |memory| amount(memory.max_size)),
        storage,
    }
}
