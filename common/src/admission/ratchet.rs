//! An update is refused for what it makes worse: a fault that the stored object has as well is told
//! as a warning.

use std::collections::HashMap;

use crate::api::machine::MachineSpec;
use crate::api::network::NetworkConfigurationSpec;
use crate::code::Code;
use crate::normalize::Named;
use crate::rules::libvirthosts::intent::HostIntent;
use crate::violation::{Findings, Violation};

/// A spec whose lists have items with names.
pub(super) trait Items {
    /// The name of an item of a list, if it has one.
    fn item_name(&self, list: &str, index: usize) -> Option<&str>;
}

/// Turns faults of `new` into warnings that `old` has at the same item of the same list, as many of
/// a kind as `old` has.
pub(super) fn tolerate<S: Items>(
    findings: &mut Findings,
    new: &S,
    old_findings: &Findings,
    old: &S,
) {
    let mut known: HashMap<_, usize> = HashMap::new();
    for fault in &old_findings.violations {
        *known.entry(identity(fault, old)).or_default() += 1;
    }
    findings.tolerate(|fault| {
        let left = known.get_mut(&identity(fault, new));
        let Some(left) = left.filter(|left| **left > 0) else {
            return false;
        };
        *left -= 1;
        true
    });
}

/// Judges a spec against what is stored, which is judged against itself: neither depends on more.
pub(super) fn judge<S: Items>(
    new: &S,
    stored: Option<(S, Findings)>,
    check: fn(&S, Option<&S>, &mut Findings),
    findings: &mut Findings,
) {
    check(new, stored.as_ref().map(|(old, _)| old), findings);
    findings.settle();
    if let Some((old, mut known)) = stored.filter(|_| !findings.accepted()) {
        check(&old, Some(&old), &mut known);
        tolerate(findings, new, &known, &old);
    }
}

/// What a fault is about, wherever the item of a list stands, or the line of a document.
fn identity(fault: &Violation, spec: &impl Items) -> (String, Code, String) {
    (by_name(&fault.field, spec), fault.code, fault.identity())
}

/// A path with the name of the item in the place of its index. Elements of other lists are told
/// apart by what is said of them.
fn by_name(field: &str, spec: &impl Items) -> String {
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

impl Items for MachineSpec {
    fn item_name(&self, list: &str, index: usize) -> Option<&str> {
        match list {
            "disks" => self.disks.as_ref()?.get(index)?.name(),
            "networks" => self.networks.as_ref()?.get(index)?.name(),
            "cdroms" => self.cdroms.as_ref()?.get(index)?.name(),
            _ => None,
        }
    }
}

impl Items for HostIntent {
    fn item_name(&self, list: &str, index: usize) -> Option<&str> {
        match list {
            "storage" => self.storage.as_ref()?.get(index)?.storage_class.as_deref(),
            "networks" => self.networks.as_ref()?.get(index)?.name.as_deref(),
            _ => None,
        }
    }
}

impl Items for NetworkConfigurationSpec {
    fn item_name(&self, _: &str, _: usize) -> Option<&str> {
        None
    }
}
