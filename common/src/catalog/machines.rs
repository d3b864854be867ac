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
use std::net::IpAddr;
use std::sync::Arc;

use super::machine_row::{Card, ClaimUser, MachineName, MachineRow, OtherCard};
use super::usage::{Sum, Usage};
use crate::mac::Mac;
use crate::names;

/// Machines by name and by MAC address.
#[derive(Clone, Debug, Default)]
pub struct Machines {
    namespaces: HashMap<Arc<str>, Namespace>,
    /// Several Machines can have the same address: on different segments, or because they were created
    /// at the same time and neither review could see the other.
    macs: BTreeSet<(Mac, Arc<str>, Arc<str>)>,
    /// The same of IP addresses.
    addresses: BTreeSet<(IpAddr, Arc<str>, Arc<str>)>,
}

#[derive(Clone, Debug, Default)]
struct Namespace {
    rows: HashMap<Arc<str>, MachineRow>,
    /// Sum over all rows.
    usage: Sum,
    /// Sum of the kept volumes.
    kept: Sum,
    /// The Machines that have disks on an existing claim, by its name.
    existing_claims: HashMap<Box<str>, BTreeSet<Arc<str>>>,
}

impl Machines {
    /// Adds or replaces the row of a Machine. Returns its previous row, which counts as [`MachineRow::unless_reported`] says.
    pub fn insert(&mut self, machine: MachineName<'_>, row: MachineRow) -> Option<MachineRow> {
        let before = self.take(machine);
        let row = row.unless_reported(before.as_ref());
        let known = self.namespaces.get_key_value(machine.namespace);
        let key: Arc<str> = known.map_or_else(|| machine.namespace.into(), |(key, _)| key.clone());
        let name: Arc<str> = machine.name.into();
        let cards = row.cards.iter();
        let macs = cards.map(|card| (card.mac, Arc::clone(&key), Arc::clone(&name)));
        self.macs.extend(macs);
        let addresses = row.cards.iter().flat_map(|card| &card.addresses);
        let addresses = addresses.map(|address| (*address, Arc::clone(&key), Arc::clone(&name)));
        self.addresses.extend(addresses);
        let namespace = self.namespaces.entry(key).or_default();
        for claim in row.existing_claims() {
            let users = namespace.existing_claims.entry(claim.into());
            users.or_default().insert(Arc::clone(&name));
        }
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
        for claim in row.existing_claims() {
            if let Some(users) = namespace.existing_claims.get_mut(claim) {
                users.remove(&name);
                if users.is_empty() {
                    namespace.existing_claims.remove(claim);
                }
            }
        }
        for card in &row.cards {
            let entry = (card.mac, Arc::clone(&key), Arc::clone(&name));
            self.macs.remove(&entry);
            for address in &card.addresses {
                let entry = (*address, Arc::clone(&key), Arc::clone(&name));
                self.addresses.remove(&entry);
            }
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

    /// Names of the Machines of a namespace, in no order.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &str> {
        let namespace = self.namespaces.get(namespace).into_iter();
        namespace.flat_map(|namespace| namespace.rows.keys().map(|name| &**name))
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

    /// The cards of other Machines that have this IP address, on whichever segment.
    pub fn others_with_address<'a>(
        &'a self,
        machine: MachineName<'a>,
        address: IpAddr,
    ) -> impl Iterator<Item = (MachineName<'a>, &'a Card)> {
        let holders = self
            .addresses
            .range((address, Arc::default(), Arc::default())..);
        let holders = holders.take_while(move |(held, ..)| *held == address);
        let holders = holders.map(|(_, namespace, name)| MachineName { namespace, name });
        let others = holders.filter(move |holder| *holder != machine);
        let rows = others.filter_map(move |other| Some((other, self.get(other)?)));
        rows.flat_map(move |(other, row)| {
            let cards = row.cards.iter();
            let cards = cards.filter(move |card| card.addresses.contains(&address));
            cards.map(move |card| (other, card))
        })
    }

    /// [`Catalog::others_with_mac`](super::Catalog::others_with_mac) for implementations with this index.
    pub fn owned_others_with_mac(&self, machine: MachineName<'_>, mac: Mac) -> Vec<OtherCard> {
        owned(self.others_with_mac(machine, mac))
    }

    /// [`Catalog::others_with_address`](super::Catalog::others_with_address) for implementations with this index.
    pub fn owned_others_with_address(
        &self,
        machine: MachineName<'_>,
        address: IpAddr,
    ) -> Vec<OtherCard> {
        owned(self.others_with_address(machine, address))
    }

    /// The other Machines that have one of the row's MAC addresses, on whichever segment. For IP addresses there are locks.
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

    /// The Machines that have a disk on an existing claim of this name.
    pub fn with_existing_claim<'a>(
        &'a self,
        namespace: &str,
        claim: &str,
    ) -> impl Iterator<Item = &'a str> {
        let namespace = self.namespaces.get(namespace);
        let users = namespace.and_then(|namespace| namespace.existing_claims.get(claim));
        users.into_iter().flatten().map(|machine| &**machine)
    }

    /// The other Machines of the namespace that have a claim, or are to have it: as the volume of a disk of their own, or
    /// as an existing claim.
    pub fn claim_users(&self, machine: MachineName<'_>, claim: &str) -> Vec<ClaimUser> {
        let namespace = machine.namespace;
        let own = self.disks_with_claim(namespace, claim);
        let own = own.map(|(name, disk)| ClaimUser {
            machine: name.to_owned(),
            own_disk: Some(disk.to_owned()),
            is_shareable: false,
        });
        let existing = self.with_existing_claim(namespace, claim).map(|name| {
            let row = self.get(MachineName { namespace, name });
            let claims = row.into_iter().flat_map(|row| &row.existing_claims);
            let mut same = claims.filter(|it| *it.name == *claim);
            ClaimUser {
                machine: name.to_owned(),
                own_disk: None,
                is_shareable: same.all(|claim| claim.is_shareable),
            }
        });
        own.chain(existing)
            .filter(|user| user.machine != machine.name)
            .collect()
    }

    /// Other Machines that use a claim of this Machine, or a claim that this Machine uses.
    pub fn sharing_claim(&self, machine: MachineName<'_>, row: &MachineRow) -> BTreeSet<String> {
        let own = row.disks();
        let own = own.map(|disk| names::claim(machine.name, disk));
        let claims = own.chain(row.existing_claims().map(str::to_owned));
        let users = claims.flat_map(|claim| self.claim_users(machine, &claim));
        users.map(|user| user.machine).collect()
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

fn owned<'a>(cards: impl Iterator<Item = (MachineName<'a>, &'a Card)>) -> Vec<OtherCard> {
    let cards = cards.map(|(other, card)| OtherCard {
        namespace: other.namespace.to_owned(),
        machine: other.name.to_owned(),
        card: card.clone(),
    });
    cards.collect()
}

#[cfg(test)]
mod tests;
