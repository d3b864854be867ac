//! Index of the values that must be unique: MAC addresses on network segments, names of claims in a namespace.
//!
//! ```text
//! namespace ── name ──▶ row: network and MAC of each card, names of disks with a claim
//! (MAC, namespace, name), sorted: the Machines with an address
//! ```
//! The segment of a card is not stored: it depends on objects that may come later than the Machine.
//! Claims need no index of their own: a claim's name can be split into Machine and disk at each of its
//! dashes only. Every query takes a few lookups, however many Machines there are.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::unreadable;
use super::usage::{Sum, Usage};
use crate::api::choice::Backend;
use crate::api::normalized::Normalized;
use crate::mac::Mac;
use crate::names;

use serde_json::Value;

/// Namespace and name of a Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineName<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.name`; empty until the API server has generated it.
    pub name: &'a str,
}

/// A network card whose address another card can have, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// `networkName` in the block: a NetworkConfiguration of the namespace; `None`: the default network of a libvirt host.
    pub network: Option<Box<str>>,
    /// `macAddress` in the block: written by the user, or generated at admission.
    pub mac: Mac,
    /// The backend of its Machine.
    pub backend: Backend,
}

/// A network card of another Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherCard {
    /// Namespace of its Machine.
    pub namespace: String,
    /// Name of its Machine.
    pub machine: String,
    /// Network, address and backend of that card.
    pub card: Card,
}

/// The values of a Machine that no other Machine may have, and its share of the quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRow {
    cards: Box<[Card]>,
    /// Names separated by blanks, which no name contains. One text instead of a list keeps the row small.
    disks: Box<str>,
    /// What it uses of the quota of its namespace.
    pub usage: Usage,
    /// Disks that left its spec and their kept volumes on its libvirt host, in bytes.
    kept: Box<[(Box<str>, u64)]>,
}

impl MachineRow {
    /// The row of a Machine with these cards and with claims for these disks.
    pub fn new<'a>(
        cards: impl IntoIterator<Item = Card>,
        disks: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self {
            cards: cards.into_iter().collect(),
            disks: disks.into_iter().collect::<Vec<_>>().join(" ").into(),
            usage: Usage::default(),
            kept: Box::default(),
        }
    }

    /// The row of a Machine with this block. `derived` gives the address of a card whose spec has none.
    pub fn of(block: &Normalized, derived: impl Fn(&str) -> Mac) -> Self {
        let cards = block.networks.iter().map(|nic| Card {
            network: nic.network_name.as_deref().map(Into::into),
            mac: nic.mac_address.unwrap_or_else(|| derived(&nic.name)),
            backend: block.backend,
        });
        // On the pod network each Machine is alone, so its address cannot conflict.
        let cards = cards.filter(|card| card.network.is_some() || card.backend == Backend::Libvirt);
        let disks = block.disks.iter().map(|disk| disk.name.as_str());
        // Names of volumes on a libvirt host contain the Machine's uid, and names of CD-ROM claims a
        // digest, so they cannot conflict.
        let has_claims = block.backend == Backend::Kubevirt;
        Self {
            usage: Usage::of(block),
            ..Self::new(cards, disks.filter(|_| has_claims))
        }
    }

    /// The row of a Machine whose block this release cannot read. Its addresses are not known.
    pub fn of_unreadable(spec: &Value) -> Self {
        Self {
            usage: unreadable::usage(spec),
            ..Self::new([], unreadable::disks_with_claims(spec))
        }
    }

    /// The row with kept volumes on its libvirt host: of `volumes`, by disk, those whose disk the block lacks. They may
    /// come from a status in which they are volumes of disks still, because the controller has not seen the update yet.
    #[must_use]
    pub fn keeping<'v>(
        mut self,
        block: &Normalized,
        volumes: impl IntoIterator<Item = (&'v str, u64)>,
    ) -> Self {
        let has = |name: &str| block.disks.iter().any(|disk| disk.name == name);
        if block.backend == Backend::Libvirt {
            let left = volumes.into_iter().filter(|(disk, _)| !has(disk));
            self.kept = left.map(|(disk, size)| (disk.into(), size)).collect();
        }
        self
    }

    /// Disks that left its spec and their kept volumes, in bytes. They count in the quota and stay while the Machine
    /// changes.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&str, u64)> {
        self.kept.iter().map(|(disk, size)| (&**disk, *size))
    }

    /// Bytes of its kept volumes.
    fn kept_storage(&self) -> Usage {
        let sizes = self.kept().map(|(_, size)| size);
        Usage::of_storage(sizes.fold(0, u64::saturating_add))
    }

    fn has_disk(&self, name: &str) -> bool {
        self.disks.split_ascii_whitespace().any(|disk| disk == name)
    }
}

/// Machines by name and by MAC address.
#[derive(Clone, Debug, Default)]
pub struct Machines {
    namespaces: HashMap<Arc<str>, Namespace>,
    /// Several Machines can have the same address: on different segments, or because they were created
    /// at the same time and neither review could see the other.
    macs: BTreeSet<(Mac, Arc<str>, Arc<str>)>,
}

#[derive(Clone, Debug, Default)]
struct Namespace {
    rows: HashMap<Arc<str>, MachineRow>,
    /// Sum over all rows.
    usage: Sum,
    /// Sum of the kept volumes.
    kept: Sum,
}

impl Machines {
    /// Adds or replaces the row of a Machine. Returns its previous row.
    pub fn insert(&mut self, machine: MachineName<'_>, row: MachineRow) -> Option<MachineRow> {
        let before = self.take(machine);
        let known = self.namespaces.get_key_value(machine.namespace);
        let key: Arc<str> = known.map_or_else(|| machine.namespace.into(), |(key, _)| key.clone());
        let name: Arc<str> = machine.name.into();
        let cards = row.cards.iter();
        let macs = cards.map(|card| (card.mac, Arc::clone(&key), Arc::clone(&name)));
        self.macs.extend(macs);
        let namespace = self.namespaces.entry(key).or_default();
        namespace.usage.add(row.usage);
        namespace.kept.add(row.kept_storage());
        namespace.rows.insert(name, row);
        before
    }

    /// Removes a Machine. Returns its row.
    pub fn remove(&mut self, machine: MachineName<'_>) -> Option<MachineRow> {
        let row = self.take(machine);
        let namespace = self.namespaces.get(machine.namespace);
        if namespace.is_some_and(|namespace| namespace.rows.is_empty()) {
            self.namespaces.remove(machine.namespace);
        }
        row
    }

    /// Removes a row, and leaves an empty namespace.
    fn take(&mut self, machine: MachineName<'_>) -> Option<MachineRow> {
        let (key, _) = self.namespaces.get_key_value(machine.namespace)?;
        let key = Arc::clone(key);
        let namespace = self.namespaces.get_mut(machine.namespace)?;
        let (name, row) = namespace.rows.remove_entry(machine.name)?;
        namespace.usage.remove(row.usage);
        namespace.kept.remove(row.kept_storage());
        for card in &row.cards {
            let entry = (card.mac, Arc::clone(&key), Arc::clone(&name));
            self.macs.remove(&entry);
        }
        Some(row)
    }

    /// The row of a Machine.
    pub fn get(&self, machine: MachineName<'_>) -> Option<&MachineRow> {
        self.namespaces
            .get(machine.namespace)?
            .rows
            .get(machine.name)
    }

    /// What the Machines of a namespace use of its quota, without kept volumes.
    pub fn usage(&self, namespace: &str) -> Usage {
        let namespace = self.namespaces.get(namespace);
        namespace.map_or(Usage::default(), |namespace| namespace.usage.usage())
    }

    /// Volumes that are kept of disks which left the specs of Machines of a namespace.
    pub fn kept(&self, namespace: &str) -> Usage {
        let namespace = self.namespaces.get(namespace);
        namespace.map_or(Usage::default(), |namespace| namespace.kept.usage())
    }

    /// What the other Machines of the namespace use of its quota, without kept volumes.
    pub fn usage_of_others(&self, machine: MachineName<'_>) -> Usage {
        let Some(namespace) = self.namespaces.get(machine.namespace) else {
            return Usage::default();
        };
        let mut sum = namespace.usage;
        if let Some(own) = namespace.rows.get(machine.name) {
            sum.remove(own.usage);
        }
        sum.usage()
    }

    /// Whether a Machine has a disk of this name with a claim.
    pub fn has_disk(&self, machine: MachineName<'_>, disk: &str) -> bool {
        self.get(machine).is_some_and(|row| row.has_disk(disk))
    }

    /// The rows of all Machines.
    pub fn iter(&self) -> impl Iterator<Item = (MachineName<'_>, &MachineRow)> {
        self.namespaces.iter().flat_map(|(namespace, content)| {
            let rows = content.rows.iter();
            rows.map(move |(name, row)| (MachineName { namespace, name }, row))
        })
    }

    /// The cards of other Machines that have this address, on whichever segment.
    pub fn others_with_mac<'a>(
        &'a self,
        machine: MachineName<'a>,
        mac: Mac,
    ) -> impl Iterator<Item = (MachineName<'a>, &'a Card)> {
        let holders = self.macs.range((mac, Arc::default(), Arc::default())..);
        let holders = holders.take_while(move |(held, ..)| *held == mac);
        let holders = holders.map(|(_, namespace, name)| MachineName { namespace, name });
        let others = holders.filter(move |holder| *holder != machine);
        let rows = others.filter_map(move |other| Some((other, self.get(other)?)));
        rows.flat_map(move |(other, row)| {
            let cards = row.cards.iter().filter(move |card| card.mac == mac);
            cards.map(move |card| (other, card))
        })
    }

    /// [`Catalog::others_with_mac`](super::Catalog::others_with_mac) for implementations with this index.
    pub fn owned_others_with_mac(&self, machine: MachineName<'_>, mac: Mac) -> Vec<OtherCard> {
        let others = self.others_with_mac(machine, mac);
        let others = others.map(|(other, card)| OtherCard {
            namespace: other.namespace.to_owned(),
            machine: other.name.to_owned(),
            card: card.clone(),
        });
        others.collect()
    }

    /// The other Machines that have one of the row's addresses, on whichever segment.
    pub fn sharing_address<'a>(
        &'a self,
        machine: MachineName<'a>,
        row: &'a MachineRow,
    ) -> impl Iterator<Item = MachineName<'a>> {
        let cards = row.cards.iter();
        let others = cards.flat_map(move |card| self.others_with_mac(machine, card.mac));
        others.map(|(other, _)| other)
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
mod tests;
