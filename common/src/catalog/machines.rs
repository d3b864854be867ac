//! Index of the values that must be unique in a namespace: MAC addresses on networks, names of claims.
//!
//! ```text
//! namespace ─┬─ name ──▶ row: (network, MAC) of each card on a network, names of disks with a claim
//!            └─ (MAC, name), sorted: the Machines with an address
//! ```
//! Claims need no index of their own: a claim's name can be split into Machine and disk at each of its
//! dashes only. Every query takes a few lookups, however many Machines there are.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::usage::Usage;
use crate::api::choice::Backend;
use crate::api::normalized::Normalized;
use crate::mac::Mac;
use crate::names;

/// Namespace and name of a Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MachineName<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.name`; empty until the API server has generated it.
    pub name: &'a str,
}

/// The values of a Machine that no other Machine of its namespace may have, and its share of the quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRow {
    cards: Box<[(Box<str>, Mac)]>,
    /// Names separated by blanks, which no name contains. One text instead of a list keeps the row small.
    disks: Box<str>,
    /// What it uses of the quota of its namespace.
    pub usage: Usage,
}

impl MachineRow {
    /// The row of a Machine with these addresses on networks and with claims for these disks.
    pub fn new<'a>(
        cards: impl IntoIterator<Item = (&'a str, Mac)>,
        disks: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let cards = cards.into_iter();
        Self {
            cards: cards.map(|(network, mac)| (network.into(), mac)).collect(),
            disks: disks.into_iter().collect::<Vec<_>>().join(" ").into(),
            usage: Usage::default(),
        }
    }

    /// The row of a Machine with this block. `derived` gives the address of a card whose spec has none.
    pub fn of(block: &Normalized, derived: impl Fn(&str) -> Mac) -> Self {
        let cards = block.networks.iter().filter_map(|nic| {
            // On the pod network each Machine is alone, so its address cannot conflict.
            let network = nic.network_name.as_deref()?;
            Some((
                network,
                nic.mac_address.unwrap_or_else(|| derived(&nic.name)),
            ))
        });
        let disks = block.disks.iter().map(|disk| disk.name.as_str());
        // Names of volumes on a libvirt host contain the Machine's uid, and names of CD-ROM claims a
        // digest, so they cannot conflict.
        let has_claims = block.backend == Backend::Kubevirt;
        Self {
            usage: Usage::of(block),
            ..Self::new(cards, disks.filter(|_| has_claims))
        }
    }

    fn has_mac(&self, network: &str, mac: Mac) -> bool {
        let mut cards = self.cards.iter();
        cards.any(|(known, own)| **known == *network && *own == mac)
    }

    fn has_disk(&self, name: &str) -> bool {
        self.disks.split_ascii_whitespace().any(|disk| disk == name)
    }
}

/// Machines by name and by MAC address.
#[derive(Clone, Debug, Default)]
pub struct Machines {
    namespaces: HashMap<Box<str>, Namespace>,
}

#[derive(Clone, Debug, Default)]
struct Namespace {
    rows: HashMap<Arc<str>, MachineRow>,
    /// Several Machines can have the same address: on different networks, or because they were created
    /// at the same time and neither review could see the other.
    macs: BTreeSet<(Mac, Arc<str>)>,
    /// Sum over all rows.
    usage: Usage,
}

impl Namespace {
    fn remove(&mut self, name: &str) -> Option<MachineRow> {
        let (name, row) = self.rows.remove_entry(name)?;
        for (_, mac) in &row.cards {
            self.macs.remove(&(*mac, name.clone()));
        }
        self.usage = self.usage.minus(row.usage);
        Some(row)
    }
}

impl Machines {
    /// Adds or replaces the row of a Machine. Returns its previous row.
    pub fn insert(&mut self, machine: MachineName<'_>, row: MachineRow) -> Option<MachineRow> {
        let namespace = match self.namespaces.get_mut(machine.namespace) {
            Some(namespace) => namespace,
            None => self.namespaces.entry(machine.namespace.into()).or_default(),
        };
        let before = namespace.remove(machine.name);
        let name: Arc<str> = machine.name.into();
        let macs = row.cards.iter().map(|(_, mac)| (*mac, name.clone()));
        namespace.macs.extend(macs);
        namespace.usage = namespace.usage.plus(row.usage);
        namespace.rows.insert(name, row);
        before
    }

    /// Removes a Machine. Returns its row.
    pub fn remove(&mut self, machine: MachineName<'_>) -> Option<MachineRow> {
        let namespace = self.namespaces.get_mut(machine.namespace)?;
        let row = namespace.remove(machine.name);
        if namespace.rows.is_empty() {
            self.namespaces.remove(machine.namespace);
        }
        row
    }

    /// The row of a Machine.
    pub fn get(&self, machine: MachineName<'_>) -> Option<&MachineRow> {
        self.namespaces
            .get(machine.namespace)?
            .rows
            .get(machine.name)
    }

    /// What the other Machines of the namespace use of its quota.
    pub fn usage_of_others(&self, machine: MachineName<'_>) -> Usage {
        let Some(namespace) = self.namespaces.get(machine.namespace) else {
            return Usage::default();
        };
        let own = namespace.rows.get(machine.name).map(|row| row.usage);
        namespace.usage.minus(own.unwrap_or_default())
    }

    /// The rows of all Machines.
    pub fn iter(&self) -> impl Iterator<Item = (MachineName<'_>, &MachineRow)> {
        self.namespaces.iter().flat_map(|(namespace, content)| {
            let rows = content.rows.iter();
            rows.map(move |(name, row)| (MachineName { namespace, name }, row))
        })
    }

    /// Names of the other Machines that have this address on this network.
    pub fn others_with_mac<'a>(
        &'a self,
        machine: MachineName<'a>,
        network: &'a str,
        mac: Mac,
    ) -> impl Iterator<Item = &'a str> {
        let namespace = self.namespaces.get(machine.namespace);
        let holders = namespace.into_iter().flat_map(move |namespace| {
            let holders = namespace.macs.range((mac, Arc::default())..);
            let holders = holders.take_while(move |(held, _)| *held == mac);
            holders.filter_map(|(_, name)| Some((name, namespace.rows.get(name)?)))
        });
        holders
            .filter(move |(name, row)| ***name != *machine.name && row.has_mac(network, mac))
            .map(|(name, _)| &**name)
    }

    /// Names of the other Machines that have one of the row's addresses on the same network.
    pub fn conflicts<'a>(
        &'a self,
        machine: MachineName<'a>,
        row: &'a MachineRow,
    ) -> impl Iterator<Item = &'a str> {
        let cards = row.cards.iter();
        cards.flat_map(move |(network, mac)| self.others_with_mac(machine, network, *mac))
    }

    /// The Machines and disks whose claim has this name.
    pub fn disks_with_claim<'a>(
        &'a self,
        namespace: &str,
        claim: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let namespace = self.namespaces.get(namespace);
        namespace.into_iter().flat_map(move |namespace| {
            let disks = names::disks_of_claim(claim);
            disks.filter(|(machine, disk)| {
                let row = namespace.rows.get(*machine);
                row.is_some_and(|row| row.has_disk(disk))
            })
        })
    }

    /// Number of Machines.
    pub fn len(&self) -> usize {
        let namespaces = self.namespaces.values();
        namespaces.map(|namespace| namespace.rows.len()).sum()
    }

    /// Whether there are no Machines.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const A: Mac = Mac::new([2, 0, 0, 0, 0, 0xa]);
    const B: Mac = Mac::new([2, 0, 0, 0, 0, 0xb]);

    fn machine<'a>(namespace: &'a str, name: &'a str) -> MachineName<'a> {
        MachineName { namespace, name }
    }

    fn others<'a>(machines: &'a Machines, who: MachineName<'a>, mac: Mac) -> Vec<&'a str> {
        machines.others_with_mac(who, "lan", mac).collect()
    }

    #[test]
    fn an_address_is_free_after_the_last_machine_with_it_is_removed() {
        let mut machines = Machines::default();
        let row = || MachineRow::new([("lan", A)], []);
        machines.insert(machine("prod", "db"), row());
        machines.insert(machine("prod", "app"), row());
        machines.insert(machine("test", "web"), row());
        assert_eq!(others(&machines, machine("prod", "web"), A), ["app", "db"]);
        assert_eq!(others(&machines, machine("prod", "db"), A), ["app"]);
        assert_eq!(others(&machines, machine("test", "web"), A), [""; 0]);
        assert_eq!(machines.len(), 3);

        assert_eq!(machines.remove(machine("prod", "app")), Some(row()));
        assert_eq!(others(&machines, machine("prod", "web"), A), ["db"]);
        let changed = MachineRow::new([("lan", B), ("wan", A)], []);
        assert_eq!(
            machines.insert(machine("prod", "db"), changed.clone()),
            Some(row())
        );
        assert_eq!(others(&machines, machine("prod", "web"), A), [""; 0]);
        assert_eq!(others(&machines, machine("prod", "web"), B), ["db"]);
        assert_eq!(machines.get(machine("prod", "db")), Some(&changed));
        assert_eq!(machines.remove(machine("prod", "app")), None);
        machines.remove(machine("prod", "db"));
        machines.remove(machine("test", "web"));
        assert!(machines.is_empty());
    }

    #[test]
    fn conflicts_are_other_machines_with_the_same_address_on_the_same_network() {
        let mut machines = Machines::default();
        machines.insert(
            machine("prod", "both"),
            MachineRow::new([("lan", A), ("wan", A)], []),
        );
        machines.insert(machine("prod", "lan"), MachineRow::new([("lan", A)], []));
        let row = MachineRow::new([("lan", A), ("wan", B)], []);
        let conflicts = machines.conflicts(machine("prod", "web"), &row);
        assert_eq!(conflicts.collect::<Vec<_>>(), ["both", "lan"]);
    }

    const NAMES: &[&str] = &["a", "a-b", "a-b-c", "b"];
    const DISKS: &[&str] = &["a", "b", "c", "b-c", "b-c-c"];

    /// A Machine is inserted with these cards and disks, or removed.
    type Step = (
        &'static str,
        Option<(Vec<(&'static str, u8)>, Vec<&'static str>)>,
    );

    fn step() -> impl Strategy<Value = Step> {
        let cards = vec((select(&["lan", "wan"][..]), 0..3_u8), 0..3);
        let row = (cards, vec(select(DISKS), 0..3));
        (select(NAMES), proptest::option::weighted(0.8, row))
    }

    proptest! {
        #[test]
        fn queries_return_what_a_scan_of_all_machines_finds(steps in vec(step(), 0..20)) {
            let mac = |last| Mac::new([2, 0, 0, 0, 0, last]);
            let mut machines = Machines::default();
            let mut all = std::collections::BTreeMap::new();
            for (name, held) in steps {
                let at = machine("prod", name);
                let before = match &held {
                    Some((cards, disks)) => {
                        let cards = cards.iter().map(|(network, last)| (*network, mac(*last)));
                        machines.insert(at, MachineRow::new(cards, disks.iter().copied()))
                    }
                    None => machines.remove(at),
                };
                let known = match held {
                    Some(held) => all.insert(name, held),
                    None => all.remove(name),
                };
                prop_assert_eq!(before.is_some(), known.is_some());
            }
            prop_assert_eq!(machines.len(), all.len());
            for (last, network) in (0..3).flat_map(|last| [(last, "lan"), (last, "wan")]) {
                let found = machines.others_with_mac(machine("prod", "b"), network, mac(last));
                let scanned = all.iter().filter(|(name, (cards, _))| {
                    **name != "b" && cards.contains(&(network, last))
                });
                let scanned: Vec<_> = scanned.map(|(name, _)| *name).collect();
                prop_assert_eq!(found.collect::<Vec<_>>(), scanned);
            }
            for (name, disk) in NAMES.iter().flat_map(|name| DISKS.iter().map(move |disk| (name, disk))) {
                let claim = names::claim(name, disk);
                let found: BTreeSet<_> = machines.disks_with_claim("prod", &claim).collect();
                let scanned = all.iter().flat_map(|(name, (_, disks))| disks.iter().map(|disk| (*name, *disk)));
                let scanned: BTreeSet<_> =
                    scanned.filter(|(name, disk)| names::claim(name, disk) == claim).collect();
                prop_assert_eq!(found, scanned);
            }
        }
    }
}
