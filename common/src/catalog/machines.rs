//! Index of the values that must be unique: MAC addresses on network segments, names of claims in a namespace.
//!
//! ```text
//! namespace ── name ──▶ row: network and MAC of each card, names of disks with a claim
//! (MAC, namespace, name), sorted: the Machines with an address
//! ```
//! The segment of a card is not stored: it depends on objects that may come later than the Machine.
//! Claims need no index of their own: a claim's name can be split into Machine and disk at each of its
//! dashes only. Every query takes a few lookups, however many Machines there are.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::unreadable;
use super::usage::{Sum, Usage};
use crate::api::choice::Backend;
use crate::api::normalized::{ExistingDisk, Normalized};
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
    /// Its IP addresses: those of the block and those that the controller has allocated.
    pub addresses: Box<[IpAddr]>,
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

/// A claim that a disk of a Machine is on as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExistingClaim {
    name: Box<str>,
    is_shareable: bool,
}

/// Another Machine that has a claim, or is to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUser {
    /// Name of the Machine.
    pub machine: String,
    /// Its disk whose own volume the claim is; `None`: the claim existed before the Machine, which names it.
    pub own_disk: Option<String>,
    /// Whether the Machine lets others have the claim at the same time.
    pub is_shareable: bool,
}

/// The name by which Machines are compared that are on one claim, or on one volume of a libvirt host.
fn existing_key(disk: &ExistingDisk) -> Cow<'_, str> {
    match &disk.volume_name {
        Some(volume) => volume_key(volume).into(),
        None => disk.source().into(),
    }
}

/// The same of a volume of a libvirt host. No claim has a name with a slash.
pub(crate) fn volume_key(volume: &str) -> String {
    format!("volume/{volume}")
}

/// The values of a Machine that no other Machine may have, and its share of the quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRow {
    cards: Box<[Card]>,
    /// Names separated by blanks, which no name contains. One text instead of a list keeps the row small.
    disks: Box<str>,
    /// Existing claims that its disks are on.
    existing_claims: Box<[ExistingClaim]>,
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
            existing_claims: Box::default(),
            usage: Usage::default(),
            kept: Box::default(),
        }
    }

    /// The row of a Machine with this block. `derived` gives the address of a card whose spec has none.
    pub fn of(block: &Normalized, derived: impl Fn(&str) -> Mac) -> Self {
        let cards = block.networks.iter().map(|nic| Card {
            network: nic.network_name.as_deref().map(Into::into),
            mac: nic.mac_address.unwrap_or_else(|| derived(&nic.name)),
            addresses: nic.ip_addresses.as_slice().into(),
            backend: block.backend,
        });
        // On the pod network each Machine is alone, so its address cannot conflict.
        let cards = cards.filter(|card| card.network.is_some() || card.backend == Backend::Libvirt);
        let disks = block.disks.iter().map(|disk| disk.name.as_str());
        // Names of volumes on a libvirt host contain the Machine's uid, and names of CD-ROM claims a
        // digest, so they cannot conflict.
        let has_claims = block.backend == Backend::Kubevirt;
        let existing = block.existing_disks.iter();
        let existing: Vec<_> = existing
            .map(|disk| (existing_key(disk), disk.shareable))
            .collect();
        let existing = existing.iter().map(|(key, shareable)| (&**key, *shareable));
        Self {
            usage: Usage::of(block),
            ..Self::new(cards, disks.filter(|_| has_claims)).with_existing_claims(existing)
        }
    }

    /// The row with disks on these existing claims, each with whether it is shareable.
    #[must_use]
    pub fn with_existing_claims<'a>(
        mut self,
        claims: impl IntoIterator<Item = (&'a str, bool)>,
    ) -> Self {
        let claims = claims.into_iter();
        let claims = claims.map(|(name, is_shareable)| ExistingClaim {
            name: name.into(),
            is_shareable,
        });
        self.existing_claims = claims.collect();
        self
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
        let has = |name: &str| block.all_disks().iter().any(|disk| disk.name() == name);
        if block.backend == Backend::Libvirt {
            let left = volumes.into_iter().filter(|(disk, _)| !has(disk));
            self.kept = left.map(|(disk, size)| (disk.into(), size)).collect();
        }
        self
    }

    /// The row with addresses that the controller has allocated to cards of the block, by name of the card.
    #[must_use]
    pub fn with_allocated<'n>(
        mut self,
        block: &Normalized,
        allocated: impl IntoIterator<Item = (&'n str, IpAddr)>,
    ) -> Self {
        let allocated: Vec<_> = allocated.into_iter().collect();
        let nics = block.networks.iter();
        let nics =
            nics.filter(|nic| nic.network_name.is_some() || block.backend == Backend::Libvirt);
        for (card, nic) in self.cards.iter_mut().zip(nics) {
            let own = allocated.iter().filter(|(name, _)| *name == nic.name);
            let new = own.map(|(_, address)| *address);
            let new: Vec<_> = new.filter(|it| !card.addresses.contains(it)).collect();
            if !new.is_empty() {
                card.addresses = card.addresses.iter().copied().chain(new).collect();
            }
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

    /// Names of the existing claims that its disks are on.
    fn existing_claims(&self) -> impl Iterator<Item = &str> {
        self.existing_claims.iter().map(|claim| &*claim.name)
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
    /// Adds or replaces the row of a Machine. Returns its previous row.
    pub fn insert(&mut self, machine: MachineName<'_>, row: MachineRow) -> Option<MachineRow> {
        let before = self.take(machine);
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

    /// The other Machines that have a claim of this one, or one that it has a disk on.
    pub fn sharing_claim(&self, machine: MachineName<'_>, row: &MachineRow) -> BTreeSet<String> {
        let own = row.disks.split_ascii_whitespace();
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
