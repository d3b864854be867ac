//! Limits of a single Machine.

use std::fmt;

use crate::api::choice::Backend;
use crate::api::normalized::{Normalized, NormalizedCdrom, NormalizedDisk};
use crate::bounds::VCPUS_MAX;
use crate::catalog::Policy;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Merged;
use crate::rules::rule::{Check, PolicySubject, rules};
use crate::rules::{boot, disks, hardware, sizing};
use crate::violation::{Findings, Kind, Violation};
use crate::words::counted;

rules! {
    "policies" Check::Policy(limits), on MACHINES, Always {
        Refuse LimitExceeded = "A size or number of the Machine is beyond the limit of a MachinePolicy."
            because "The administrator decides how large a Machine of the namespace may be."
            fix "Take at most what the message names. A Machine that is larger since before the policy may keep its size, and may shrink."
            crd Nothing,
    }
}

/// Rule [`Code::LimitExceeded`]. What the rest of the rules refuses is not compared with a limit.
fn limits(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let (merged, stored, limits) = (machine.merged, machine.stored, &policy.limits);
    let mut scratch = Findings::default();

    if let Some((vcpus, path)) = counted_vcpus(merged, machine.backend) {
        let stored = stored.map(|block| u128::from(block.counted_vcpus()));
        let amount = Amount::new(vcpus.into(), stored, limits.cpu, |limit| {
            counted(limit, "vCPU")
        });
        amount.check(path, policy, findings);
    }
    if let Some(memory) = sizing::guest_memory(merged, &mut scratch) {
        let stored = stored.map(|block| block.memory.max_size);
        let amount = Amount::new(memory.max_size, stored, limits.memory, |limit| {
            format!("{limit} of memory")
        });
        amount.check(sizing::largest_memory(merged).path, policy, findings);
    }
    for item in disks::existing::own(merged, machine.backend) {
        if let Some(size) = disks::size(merged, item, &mut scratch) {
            let stored = stored.and_then(|block| stored_disk(block, item.name().value?));
            let stored = stored.map(|disk| disk.size);
            let path = item.pick("size", |disk| disk.size.as_deref()).path;
            let amount = Amount::new(size, stored, limits.disk, |limit| {
                format!("{limit} for a disk")
            });
            amount.check(path, policy, findings);
        }
    }
    for item in &merged.cdroms {
        if let Some(size) = boot::cdrom_size(item, machine.backend, &mut scratch) {
            let stored = stored.and_then(|block| stored_cdrom(block, item.name().value?)?.size);
            let path = item.pick("size", |cdrom| cdrom.size.as_deref()).path;
            let amount = Amount::new(size, stored, limits.disk, |limit| {
                format!("{limit} for a disk")
            });
            amount.check(path, policy, findings);
        }
    }
    let disks = stored.map(|block| {
        let count = block.disks.len() + block.existing_disks.len();
        count as u128
    });
    let amount = Amount::new(merged.disks.len() as u128, disks, limits.disks, |limit| {
        counted(limit, "disk")
    });
    amount.check(FieldPath::field("disks"), policy, findings);
    // A Machine that lists no card gets one.
    let cards = merged.networks.len().max(1) as u128;
    let stored = stored.map(|block| block.networks.len() as u128);
    let amount = Amount::new(cards, stored, limits.networks, |limit| {
        counted(limit, "network card")
    });
    amount.check(FieldPath::field("networks"), policy, findings);
}

/// The vCPUs that count, as [`Normalized::counted_vcpus`], and the field where their number is best changed.
pub(super) fn counted_vcpus(merged: &Merged<'_>, backend: Backend) -> Option<(u32, FieldPath)> {
    let cpu = sizing::topology(merged, VCPUS_MAX, &mut Findings::default())?;
    let most = cpu.most_vcpus();
    let is_dedicated = hardware::dedicated(merged).value == Some(true);
    Some(
        if backend == Backend::Libvirt && is_dedicated && most > cpu.vcpus() {
            (most, sizing::max_sockets(merged).path)
        } else {
            (cpu.vcpus(), sizing::largest_factor(merged))
        },
    )
}

fn stored_disk<'b>(block: &'b Normalized, name: &str) -> Option<&'b NormalizedDisk> {
    block.disks.iter().find(|disk| disk.name == name)
}

fn stored_cdrom<'b>(block: &'b Normalized, name: &str) -> Option<&'b NormalizedCdrom> {
    block.cdroms.iter().find(|cdrom| cdrom.name == name)
}

/// An amount of a Machine, and its limit.
struct Amount<T> {
    value: T,
    /// The amount of the stored Machine.
    stored: Option<T>,
    limit: Option<T>,
    /// The limit as messages say it.
    shown: fn(&T) -> String,
}

impl<T: PartialOrd + fmt::Display> Amount<T> {
    fn new(value: T, stored: Option<T>, limit: Option<T>, shown: fn(&T) -> String) -> Self {
        Self {
            value,
            stored,
            limit,
            shown,
        }
    }

    /// Rule [`Code::LimitExceeded`], unless the stored Machine has as much.
    fn check(self, path: FieldPath, policy: &Policy, findings: &mut Findings) {
        let Self {
            value,
            stored,
            limit: Some(limit),
            shown,
        } = self
        else {
            return;
        };
        if value > limit && stored.is_none_or(|stored| value > stored) {
            let policy = &policy.name;
            let detail = format!("policy '{policy}' allows at most {}", shown(&limit));
            let fault = Violation::new(path, Code::LimitExceeded, Kind::Forbidden, detail);
            findings.deny(fault.value(value));
        }
    }
}
