//! An update is refused only for new faults: a fault that the stored object also has becomes a warning.

use std::collections::HashMap;

use crate::api::machine::MachineSpec;
use crate::api::machine_image::MachineImageSpec;
use crate::api::machine_policy::MachinePolicySpec;
use crate::api::network::NetworkConfigurationSpec;
use crate::code::Code;
use crate::normalize::Named;
use crate::rules::libvirthosts::intent::HostIntent;
use crate::violation::{Findings, Violation};

/// A spec whose lists have named items.
pub(super) trait NamedItems {
    /// The name of an item of a list, if it has one.
    fn item_name(&self, list: &str, index: usize) -> Option<&str>;
}

/// Turns a fault of `new` into a warning if `old` has the same fault at the list item of the same name.
/// Of several identical faults, at most as many become warnings as `old` has. Runs before [`Findings::dedupe`]: a new fault
/// is no consequence of one that becomes a warning.
pub(super) fn ratchet<S: NamedItems>(
    findings: &mut Findings,
    new: &S,
    old_findings: &Findings,
    old: &S,
) {
    let mut remaining: HashMap<_, usize> = HashMap::new();
    for fault in &old_findings.violations {
        *remaining.entry(identity(fault, old)).or_default() += 1;
    }
    findings.ratchet(|fault| {
        let left = remaining.get_mut(&identity(fault, new));
        let Some(left) = left.filter(|left| **left > 0) else {
            return false;
        };
        *left -= 1;
        true
    });
}

/// Checks a spec, as an update of the stored one if there is one, and turns faults that the stored spec
/// also has into warnings. The stored spec is checked as an update of itself.
pub(super) fn check_against_stored<S: NamedItems>(
    new: &S,
    stored: Option<(S, Findings)>,
    check: impl Fn(&S, Option<&S>, &mut Findings),
    findings: &mut Findings,
) {
    check(new, stored.as_ref().map(|(old, _)| old), findings);
    if let Some((old, mut old_findings)) = stored.filter(|_| !findings.accepted()) {
        check(&old, Some(&old), &mut old_findings);
        ratchet(findings, new, &old_findings, &old);
    }
    findings.dedupe();
}

/// Identity of a fault that does not change when a list item or a line of a document moves.
fn identity(fault: &Violation, spec: &impl NamedItems) -> (String, Code, String) {
    (
        path_by_name(&fault.field, spec),
        fault.code,
        fault.identity(),
    )
}

/// A path with the item's name in place of its index. Elements of lists without names differ by their
/// messages.
fn path_by_name(field: &str, spec: &impl NamedItems) -> String {
    let indexed = field.strip_prefix("spec.").and_then(|rest| {
        let (list, rest) = rest.split_once('[')?;
        let (index, rest) = rest.split_once(']')?;
        Some((list, index.parse().ok()?, rest))
    });
    match indexed {
        Some((list, index, rest)) => {
            let name = spec.item_name(list, index).unwrap_or_default();
            format!("spec.{list}[{name}]{rest}")
        }
        None => field.to_owned(),
    }
}

impl NamedItems for MachineSpec {
    fn item_name(&self, list: &str, index: usize) -> Option<&str> {
        match list {
            "disks" => self.disks.as_ref()?.get(index)?.name(),
            "networks" => self.networks.as_ref()?.get(index)?.name(),
            "cdroms" => self.cdroms.as_ref()?.get(index)?.name(),
            _ => None,
        }
    }
}

impl NamedItems for HostIntent {
    fn item_name(&self, list: &str, index: usize) -> Option<&str> {
        match list {
            "storage" => self.storage.as_ref()?.get(index)?.storage_class.as_deref(),
            "networks" => self.networks.as_ref()?.get(index)?.name.as_deref(),
            _ => None,
        }
    }
}

impl NamedItems for MachinePolicySpec {
    fn item_name(&self, _: &str, _: usize) -> Option<&str> {
        None
    }
}

impl NamedItems for MachineImageSpec {
    fn item_name(&self, _: &str, _: usize) -> Option<&str> {
        None
    }
}

impl NamedItems for NetworkConfigurationSpec {
    fn item_name(&self, _: &str, _: usize) -> Option<&str> {
        None
    }
}
