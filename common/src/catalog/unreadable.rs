//! What a Machine uses whose block this release cannot read: one that a later release wrote, or none at all.
//!
//! Each amount is taken from the block as far as it has the form that this release knows, else from the spec. What
//! neither says is not known, because templates are not looked up again: such a Machine counts at least one vCPU.

use std::collections::BTreeSet;

use serde_json::Value;

use super::usage::{Usage, amount};
use crate::quantity::Bytes;

/// What such a Machine uses of the quota of its namespace.
pub(super) fn usage(spec: &Value) -> Usage {
    let either = |read: fn(&Value) -> Option<u64>, block: &str, own: &str| {
        let read = |path| spec.pointer(path).and_then(read);
        read(block).or_else(|| read(own))
    };
    let cpu = either(vcpus, "/normalized/cpu", "/resources/cpu");
    let memory = either(memory, "/normalized/memory", "/resources/memory");
    let disks = either(sizes, "/normalized/disks", "/disks");
    let cdroms = either(sizes, "/normalized/cdroms", "/cdroms");
    Usage {
        cpu: cpu.unwrap_or(1),
        memory: memory.unwrap_or_default(),
        storage: disks
            .unwrap_or_default()
            .saturating_add(cdroms.unwrap_or_default()),
    }
}

/// Names of its disks that have claims.
pub(super) fn disks_with_claims(spec: &Value) -> BTreeSet<&str> {
    let backend = ["/normalized/backend", "/backend"].map(|path| spec.pointer(path));
    if backend.into_iter().flatten().next() == Some(&Value::from("libvirt")) {
        return BTreeSet::new();
    }
    let lists = ["/normalized/disks", "/disks"].map(|path| spec.pointer(path));
    let disks = lists.into_iter().flatten().filter_map(Value::as_array);
    let names = disks
        .flatten()
        .filter(|disk| disk.get("claimName").is_none())
        .filter_map(|disk| disk.get("name")?.as_str());
    // Names with blanks are none that admission accepts; the row separates names by blanks.
    names.filter(|name| !name.contains(' ')).collect()
}

fn vcpus(cpu: &Value) -> Option<u64> {
    let factors = ["sockets", "cores", "threads"].map(|name| cpu.get(name)?.as_u64());
    let known = factors.into_iter().flatten();
    known.reduce(u64::saturating_mul)
}

/// A guest can use its largest memory.
fn memory(memory: &Value) -> Option<u64> {
    let sizes = ["maxSize", "size"].map(|name| bytes(memory.get(name)?));
    sizes.into_iter().flatten().max()
}

/// `None` if no item has a size.
fn sizes(items: &Value) -> Option<u64> {
    let sizes = items.as_array()?.iter();
    let sizes = sizes.filter_map(|item| bytes(item.get("size")?));
    sizes.reduce(u64::saturating_add)
}

fn bytes(value: &Value) -> Option<u64> {
    let bytes: Bytes = value.as_str()?.parse().ok()?;
    Some(amount(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GI: u64 = 1 << 30;

    #[test]
    fn each_amount_is_that_of_the_block_else_that_of_the_spec() {
        let spec = json!({
            "resources": {"cpu": {"cores": 64}, "memory": {"size": "1Ti"}},
            "disks": [{"name": "root", "size": "20Gi"}, {"name": "data", "size": "10Gi"}],
            "normalized": {
                "version": 9,
                "cpu": {"sockets": 2, "cores": 3, "threads": 1, "shares": [1]},
                "memory": {"size": "2Gi", "maxSize": "4Gi"},
                "volumes": {},
            },
        });
        let expected = Usage {
            cpu: 6,
            memory: 4 * GI,
            storage: 30 * GI,
        };
        assert_eq!(usage(&spec), expected);
        assert_eq!(disks_with_claims(&spec), ["data", "root"].into());
    }

    #[test]
    fn a_machine_of_which_nothing_can_be_read_counts_one_vcpu() {
        let least = Usage {
            cpu: 1,
            ..Usage::default()
        };
        for spec in [
            json!(null),
            json!({"template": "small"}),
            json!({"normalized": {"cpu": "many", "memory": [], "disks": [7]}, "disks": "all"}),
        ] {
            assert_eq!(usage(&spec), least, "{spec}");
            assert!(disks_with_claims(&spec).is_empty());
        }
    }

    #[test]
    fn forged_amounts_do_not_overflow() {
        let huge = json!({
            "normalized": {
                "cpu": {"sockets": u64::MAX, "cores": u64::MAX},
                "disks": [{"size": "16Ei"}, {"size": "16Ei"}],
                "cdroms": [{"size": "16Ei"}],
            },
        });
        let usage = usage(&huge);
        assert_eq!((usage.cpu, usage.storage), (u64::MAX, u64::MAX));
    }

    #[test]
    fn the_disks_of_a_machine_on_libvirt_have_no_claims() {
        let spec = json!({"normalized": {"backend": "libvirt", "disks": [{"name": "root"}]}});
        assert!(disks_with_claims(&spec).is_empty());
    }
}
