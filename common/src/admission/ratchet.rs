//! An update is refused for what it makes worse: a fault that the stored object has as well is told
//! as a warning.

use std::collections::HashMap;

use crate::api::machine::MachineSpec;
use crate::code::Code;
use crate::normalize::Named;
use crate::violation::{Findings, Violation};

/// Turns faults of `new` into warnings that `old` has at the same item of the same list, as many of
/// a kind as `old` has.
pub(super) fn tolerate(
    findings: &mut Findings,
    new: &MachineSpec,
    old_findings: &Findings,
    old: &MachineSpec,
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

/// What a fault is about, wherever the item of a list stands, or the line of a document.
fn identity(fault: &Violation, spec: &MachineSpec) -> (String, Code, String) {
    (by_name(&fault.field, spec), fault.code, fault.identity())
}

/// A path with the name of the item in the place of its index. Elements of other lists are told
/// apart by what is said of them.
fn by_name(field: &str, spec: &MachineSpec) -> String {
    let indexed = field.strip_prefix("spec.").and_then(|rest| {
        let (list, rest) = rest.split_once('[')?;
        let (index, rest) = rest.split_once(']')?;
        Some((list, index.parse().ok()?, rest))
    });
    match indexed {
        Some((list, index, rest)) => {
            let name = item_name(spec, list, index).unwrap_or_default();
            format!("spec.{list}[{name}]{rest}")
        }
        None => field.to_owned(),
    }
}

fn item_name<'a>(spec: &'a MachineSpec, list: &str, index: usize) -> Option<&'a str> {
    match list {
        "disks" => spec.disks.as_ref()?.get(index)?.name(),
        "networks" => spec.networks.as_ref()?.get(index)?.name(),
        "cdroms" => spec.cdroms.as_ref()?.get(index)?.name(),
        _ => None,
    }
}
