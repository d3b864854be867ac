//! Disks that are kept: they count in the quota of their namespace until their owner releases them.
//!
//! ```text
//! KubeVirt  claim that was created for a disk which its Machine does not have ───────────┐
//! libvirt   volumes of disks that left a spec, in the status of the Machine ─────────────┼─▶ storage of the namespace
//!           volumes of deleted Machines, in the status of the LibvirtHost ───────────────┘
//! ```

use std::collections::BTreeMap;

use super::claims::Claims;
use super::machine_row::{MachineName, MachineRow};
use super::machines::Machines;
use super::usage::{Usage, amount};
use crate::api::choice::Backend;
use crate::api::libvirt_host::LibvirtHostStatus;

/// A Machine that asks for a share of the quota.
#[derive(Clone, Debug)]
pub struct QuotaRequest<'a> {
    /// Its namespace, and its name, which is empty until the API server has generated it.
    pub machine: MachineName<'a>,
    /// The backend that runs it.
    pub backend: Backend,
    /// Names of its disks. One that was kept is used again, so it does not count twice: on KubeVirt the claim of any
    /// former Machine of the name, on libvirt a volume of this very Machine.
    pub disks: Vec<&'a str>,
    /// Names of the disks that it has already.
    pub had: Vec<&'a str>,
}

/// What counts in the quota of a namespace before a Machine gets what it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// What is not the Machine's: other Machines, and the disks that are kept, except those that it uses again.
    pub others: Usage,
    /// The kept disks that the Machine uses again and has not had. They occupy storage already, so they are no growth.
    pub returning: Usage,
}

/// What the namespace of a Machine uses of its quota: the other Machines, and the disks that are kept.
pub fn usage_beside<'h>(
    machines: &Machines,
    claims: &Claims,
    hosts: impl IntoIterator<Item = &'h KeptByNamespace>,
    request: &QuotaRequest<'_>,
) -> Counted {
    let kept = kept_disks(machines, claims, hosts, request);
    Counted {
        others: machines.usage_of_others(request.machine).plus(kept.others),
        ..kept
    }
}

/// The disks that are kept in the namespace of a Machine.
pub fn kept_disks<'h>(
    machines: &Machines,
    claims: &Claims,
    hosts: impl IntoIterator<Item = &'h KeptByNamespace>,
    request: &QuotaRequest<'_>,
) -> Counted {
    let QuotaRequest {
        machine,
        backend,
        disks,
        had,
    } = request;
    let uses = |of, disk: &str| *backend == of && disks.contains(&disk);
    let own_claims = claims.of_disks(machine.namespace);
    let returning = own_claims
        .filter(|(name, disk, _)| {
            *name == machine.name && uses(Backend::Kubevirt, disk) && !had.contains(disk)
        })
        .map(|(.., size)| size);
    let returning = sum(returning);
    let claims = kept_claims(machines, claims, machine.namespace);
    let claims = claims
        .filter(|(name, disk, _)| !(*name == machine.name && uses(Backend::Kubevirt, disk)))
        .map(|(.., size)| size);
    let own = machines.get(*machine);
    let used_again = own
        .into_iter()
        .flat_map(MachineRow::kept)
        .filter(|(disk, _)| uses(Backend::Libvirt, disk))
        .map(|(_, size)| size);
    let used_again = sum(used_again);
    Counted {
        others: machines
            .kept(machine.namespace)
            .minus(used_again)
            .plus(sum(claims))
            .plus(kept_of_deleted(hosts, machine.namespace)),
        returning: returning.plus(used_again),
    }
}

/// What a namespace uses of its quota: all its Machines, and the disks that are kept.
pub fn usage_of_namespace<'h>(
    machines: &Machines,
    claims: &Claims,
    hosts: impl IntoIterator<Item = &'h KeptByNamespace>,
    namespace: &str,
) -> Usage {
    let claims = kept_claims(machines, claims, namespace).map(|(.., size)| size);
    machines
        .usage(namespace)
        .plus(machines.kept(namespace))
        .plus(sum(claims))
        .plus(kept_of_deleted(hosts, namespace))
}

fn sum(sizes: impl Iterator<Item = u64>) -> Usage {
    Usage::of_storage(sizes.fold(0, u64::saturating_add))
}

/// Claims that were created for a disk which no Machine has any more: name of the Machine, name of the disk, bytes.
fn kept_claims<'c>(
    machines: &'c Machines,
    claims: &'c Claims,
    namespace: &'c str,
) -> impl Iterator<Item = (&'c str, &'c str, u64)> {
    claims.of_disks(namespace).filter(move |(name, disk, _)| {
        let machine = MachineName { namespace, name };
        !machines.has_disk(machine, disk)
    })
}

/// Bytes of the volumes that a libvirt host has of deleted Machines, by namespace.
pub type KeptByNamespace = BTreeMap<String, u64>;

/// The sums over the volumes that the status of a libvirt host lists as kept, and over those that it could not delete yet.
pub fn kept_by_namespace(status: &LibvirtHostStatus) -> KeptByNamespace {
    let kept = status.kept_volumes.iter();
    let kept = kept.map(|volume| (&volume.machine, volume.size));
    let tombstones = status.tombstones.iter();
    let deleted = tombstones.flat_map(|tombstone| {
        let volumes = tombstone.volumes.iter().flatten();
        volumes.map(|volume| (&tombstone.machine, volume.size))
    });
    let mut sums = KeptByNamespace::new();
    for (machine, size) in kept.chain(deleted) {
        let (namespace, _) = machine.split_once('/').unwrap_or_default();
        let sum = sums.entry(namespace.to_owned()).or_default();
        *sum = sum.saturating_add(size.map(amount).unwrap_or_default());
    }
    sums
}

fn kept_of_deleted<'h>(
    hosts: impl IntoIterator<Item = &'h KeptByNamespace>,
    namespace: &str,
) -> Usage {
    sum(hosts
        .into_iter()
        .filter_map(|kept| kept.get(namespace).copied()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::normalized::fixture::block;
    use crate::names;

    fn machine(name: &str) -> MachineName<'_> {
        MachineName {
            namespace: "prod",
            name,
        }
    }

    fn claims(of: &[(&str, &str, u64)]) -> Claims {
        let mut claims = Claims::default();
        for (machine, disk, size) in of {
            let label = |key: &str| match key {
                names::LABEL_MANAGED_BY => Some(names::MANAGED_BY),
                names::LABEL_MACHINE => Some(*machine),
                names::LABEL_DISK => Some(*disk),
                _ => None,
            };
            claims.insert("prod", &names::claim(machine, disk), label, *size, false);
        }
        claims
    }

    /// A block with the disk `root`.
    fn request<'a>(name: &'a str, backend: Backend, disks: &[&'a str]) -> QuotaRequest<'a> {
        QuotaRequest {
            machine: machine(name),
            backend,
            disks: disks.to_vec(),
            had: vec!["root"],
        }
    }

    fn storage_of_others(machines: &Machines, claims: &Claims, name: &str, disks: &[&str]) -> u64 {
        let request = request(name, Backend::Kubevirt, disks);
        usage_beside(machines, claims, [], &request).others.storage
    }

    #[test]
    fn a_claim_counts_while_no_machine_has_its_disk() {
        let mut machines = Machines::default();
        let claims = claims(&[("web", "root", 20), ("web", "data", 10), ("old", "data", 5)]);
        let both = || MachineRow::new([], ["root", "data"]);
        machines.insert(machine("web"), both());
        assert_eq!(storage_of_others(&machines, &claims, "db", &["root"]), 5);

        // The disk leaves the spec.
        machines.insert(machine("web"), MachineRow::new([], ["root"]));
        assert_eq!(storage_of_others(&machines, &claims, "db", &["root"]), 15);
        assert_eq!(storage_of_others(&machines, &claims, "web", &["root"]), 15);
        // It comes back, and takes the claim over.
        let asked = ["root", "data"];
        assert_eq!(storage_of_others(&machines, &claims, "web", &asked), 5);
        let on_libvirt = request("web", Backend::Libvirt, &asked);
        let usage = usage_beside(&machines, &claims, [], &on_libvirt);
        assert_eq!(usage.others.storage, 15, "its volumes are no claims");

        machines.remove(machine("web"));
        assert_eq!(storage_of_others(&machines, &claims, "db", &["root"]), 35);
        assert_eq!(storage_of_others(&machines, &claims, "web", &asked), 5);
    }

    #[test]
    fn a_kept_disk_that_comes_back_counts_already() {
        let mut machines = Machines::default();
        let claims = claims(&[("web", "root", 20), ("web", "data", 10), ("db", "data", 5)]);
        machines.insert(machine("web"), MachineRow::new([], ["root"]));
        let of = |claims: &Claims, machines: &Machines, backend, disks: &[&'static str]| {
            let request = request("web", backend, disks);
            usage_beside(machines, claims, [], &request)
                .returning
                .storage
        };
        let both = ["root", "data"];
        assert_eq!(of(&claims, &machines, Backend::Kubevirt, &["root"]), 0);
        assert_eq!(of(&claims, &machines, Backend::Kubevirt, &both), 10);
        // The spec of the Machine has it already.
        machines.insert(machine("web"), MachineRow::new([], both));
        assert_eq!(of(&claims, &machines, Backend::Kubevirt, &both), 10);
        assert_eq!(of(&claims, &machines, Backend::Libvirt, &both), 0);

        let volumes = [("root", 20), ("data", 4)];
        let row = MachineRow::default().keeping(&block(Backend::Libvirt), volumes);
        machines.insert(machine("web"), row);
        let none = Claims::default();
        assert_eq!(of(&none, &machines, Backend::Libvirt, &["root"]), 0);
        assert_eq!(of(&none, &machines, Backend::Libvirt, &both), 4);
    }

    #[test]
    fn a_claim_that_was_created_for_no_machine_does_not_count() {
        let mut claims = Claims::default();
        claims.insert("prod", "theirs", |_| None, 50, false);
        let machines = Machines::default();
        assert_eq!(storage_of_others(&machines, &claims, "web", &[]), 0);
    }

    #[test]
    fn volumes_that_hosts_keep_count_in_the_namespace_of_their_machine() {
        let mut machines = Machines::default();
        let volumes = [("root", 9), ("data", 4), ("log", 2)];
        let row = MachineRow::default().keeping(&block(Backend::Libvirt), volumes);
        machines.insert(machine("web"), row);
        let kept = |machine: &str, size: Option<&str>| {
            let volume = json!({
                "machine": machine, "uid": "u", "disk": "data", "pool": "vms", "volume": "v", "size": size,
            });
            serde_json::from_value(volume).unwrap()
        };
        let mut status = LibvirtHostStatus {
            kept_volumes: vec![
                kept("prod/old", Some("100")),
                kept("prod/old", Some("200")),
                kept("test/old", Some("5Gi")),
                kept("prod/unread", None),
            ],
            ..LibvirtHostStatus::default()
        };
        let host = kept_by_namespace(&status);
        let of_others = |name, disks: &[&'static str]| {
            let request = request(name, Backend::Libvirt, disks);
            usage_beside(&machines, &Claims::default(), [&host], &request)
                .others
                .storage
        };
        assert_eq!(of_others("db", &["data"]), 306);
        // Its own kept volumes are no part of what a Machine asks for, unless it uses them again.
        assert_eq!(of_others("web", &["root"]), 306);
        assert_eq!(of_others("web", &["root", "data"]), 302);

        // Neither do volumes that the host could not delete yet leave the quota with their Machine.
        let tombstone = json!([{"machine": "prod/gone", "uid": "u", "since": "2026-11-28T09:00:00Z", "volumes": [
            {"pool": "vms", "volume": "a", "size": "40"}, {"pool": "vms", "volume": "b"},
        ]}, {"machine": "prod/unknown", "uid": "v", "since": "2026-11-28T09:00:00Z"}]);
        status.tombstones = serde_json::from_value(tombstone).unwrap();
        assert_eq!(kept_by_namespace(&status)["prod"], 340);
    }
}
