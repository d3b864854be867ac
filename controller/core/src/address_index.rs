//! Index of what must be unique: addresses on a network segment, names of claims in a namespace.
//!
//! Admission refuses a duplicate, but two replicas of the webhook may each have seen one of two Machines only. So the
//! controller detects duplicates, too, and a Machine gets a pass when another one that shares a value with it changes
//! or is deleted. The index answers that from rows of `common::catalog`, which admission uses as well; without it
//! every event would decompress every Machine of the namespace, which takes 0.015 ms for each (docs/performance.md).
//!
//! Reason: `of_two_conflicting_machines_that_were_both_admitted_the_older_one_continues` in `tests/tests/uniqueness.rs`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use common::api::status::MachineStatus;
use common::catalog::{
    ClaimUser, MachineName, MachineRow, Machines, OtherCard, Usage, amount, says_what_runs,
};
use common::mac::Mac;
use common::quantity::Bytes;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::conditions::ready;
use crate::machine::{CachedMachine, Machine};
use crate::objects::Meta;

/// One row per Machine. Clones share the content.
#[derive(Clone, Debug, Default)]
pub struct AddressIndex(Arc<RwLock<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// What readers see.
    machines: Machines,
    /// The list that is being received; replaces `machines` when it is complete.
    listing: Machines,
}

/// Namespace and name of a Machine.
pub(crate) fn key(machine: &impl Meta) -> MachineName<'_> {
    MachineName {
        namespace: machine.namespace(),
        name: machine.name(),
    }
}

fn row(machine: &Machine, cluster: &str) -> MachineRow {
    let derived = |nic: &str| machine.identity(cluster).mac(nic);
    let status = &machine.status;
    let volumes = status.volumes.iter().chain(&status.kept_volumes);
    let volumes = volumes.filter_map(|volume| {
        let capacity: Bytes = volume.capacity.as_ref()?.parse().ok()?;
        Some((volume.name.as_str(), amount(capacity)))
    });
    let row = machine.desired().map(|block| {
        let row = MachineRow::of(block, derived).keeping(block, volumes);
        row.with_allocated(block, allocated(status))
            .running(block, pending(machine))
    });
    row.unwrap_or_default()
}

/// What the guest has in place of what the block says; `None`: the status does not say.
fn pending(machine: &Machine) -> Option<impl Iterator<Item = (&str, &str)>> {
    let status = &machine.status;
    let changes = status.pending_changes.iter();
    let pending = changes.map(|change| (change.field.as_str(), change.current.as_str()));
    let is_unknown = ready(status).is_some_and(|(ready, _)| ready == "Unknown");
    says_what_runs(machine.generation(), status.observed_generation, is_unknown).then_some(pending)
}

/// The IP addresses that a status says are allocated, by name of the card.
fn allocated(status: &MachineStatus) -> impl Iterator<Item = (&str, IpAddr)> {
    let cards = status.network_interfaces.iter();
    cards.flat_map(|card| {
        let addresses = card.allocated_addresses.iter();
        let parsed = addresses.filter_map(|address| address.parse().ok());
        parsed.map(|address| (card.name.as_str(), address))
    })
}

/// The row of a Machine of the watch. One without a usable block counts what can be read of it.
fn row_of_cached(machine: &CachedMachine, cluster: &str) -> MachineRow {
    match &machine.unreadable {
        Some(row) => (**row).clone(),
        None => row(&machine.decompress(), cluster),
    }
}

impl AddressIndex {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        // No statement under this lock leaves the rows inconsistent, so a poisoned lock is safe to use.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an event of the watch; returns the other Machines that it concerns.
    pub fn apply(
        &self,
        event: &Event<CachedMachine>,
        cluster: &str,
    ) -> Vec<ObjectRef<CachedMachine>> {
        let inner = &mut *self.write();
        match event {
            Event::Init => inner.listing = Machines::default(),
            Event::InitApply(machine) => {
                let before = inner.machines.get(key(machine));
                let row = row_of_cached(machine, cluster).unless_reported(before);
                inner.listing.insert(key(machine), row);
            }
            Event::InitDone => {
                let listing = std::mem::take(&mut inner.listing);
                let before = std::mem::replace(&mut inner.machines, listing);
                let changed = before
                    .iter()
                    .filter(|(name, row)| inner.machines.get(*name) != Some(*row));
                // Every Machine of the list gets a pass; these are about Machines that share something with one that changed.
                return changed
                    .flat_map(|(name, row)| concerned(&inner.machines, name, row))
                    .collect();
            }
            Event::Apply(machine) => {
                let (name, row) = (key(machine), row_of_cached(machine, cluster));
                let before = inner.machines.insert(name, row.clone());
                if before.as_ref() != Some(&row) {
                    let before = before.unwrap_or_default();
                    let rows = [&before, &row];
                    return rows
                        .into_iter()
                        .flat_map(|row| concerned(&inner.machines, name, row))
                        .collect();
                }
            }
            Event::Delete(machine) => {
                let row = inner.machines.remove(key(machine)).unwrap_or_default();
                return concerned(&inner.machines, key(machine), &row).collect();
            }
        }
        Vec::new()
    }

    /// The cards of other Machines that have this MAC address, on whichever segment, by namespace and name of the Machine.
    pub fn others_with_mac(&self, machine: &impl Meta, mac: Mac) -> Vec<OtherCard> {
        let machines = &self.read().machines;
        machines.owned_others_with_mac(key(machine), mac)
    }

    /// What a Machine uses of the quota of its namespace.
    pub fn usage_of(&self, machine: &impl Meta) -> Usage {
        let inner = self.read();
        let row = inner.machines.get(key(machine));
        row.map(|row| row.usage).unwrap_or_default()
    }

    /// What the Machines of a namespace use of its quota, with volumes on their hosts that are kept.
    pub fn usage(&self, namespace: &str) -> Usage {
        let machines = &self.read().machines;
        machines.usage(namespace).plus(machines.kept(namespace))
    }

    /// The Machines of a namespace, in no order.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<ObjectRef<CachedMachine>> {
        let inner = self.read();
        let machines = inner.machines.in_namespace(namespace);
        machines
            .map(|name| ObjectRef::new(name).within(namespace))
            .collect()
    }

    /// Calls `read` with the rows.
    pub(crate) fn read_machines<T>(&self, read: impl FnOnce(&Machines) -> T) -> T {
        read(&self.read().machines)
    }

    /// The Machines that have a disk whose claim has this name, or a disk on the existing claim of this name.
    pub fn with_claim(&self, namespace: &str, claim: &str) -> Vec<ObjectRef<CachedMachine>> {
        let inner = self.read();
        let disks = inner.machines.disks_with_claim(namespace, claim);
        let existing = inner.machines.with_existing_claim(namespace, claim);
        disks
            .map(|(machine, _)| machine)
            .chain(existing)
            .map(|machine| ObjectRef::new(machine).within(namespace))
            .collect()
    }

    /// The other Machines of the namespace that have a claim, or are to have it.
    pub fn claim_users(&self, machine: &impl Meta, claim: &str) -> Vec<ClaimUser> {
        self.read().machines.claim_users(key(machine), claim)
    }
}

/// The other Machines that share an address or a claim with a row, each once, however many cards share one.
fn concerned<'a>(
    machines: &'a Machines,
    name: MachineName<'a>,
    row: &'a MachineRow,
) -> impl Iterator<Item = ObjectRef<CachedMachine>> {
    let sharing: BTreeSet<_> = machines.sharing_address(name, row).collect();
    let claims = machines.sharing_claim(name, row).into_iter();
    let claims = claims.map(|other| ObjectRef::new(&other).within(name.namespace));
    sharing
        .into_iter()
        .map(|other| ObjectRef::new(other.name).within(other.namespace))
        .chain(claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{block, machine, nic};
    use crate::machine::Block;

    /// A Machine of this name with the last byte of an address on the network `prod`.
    fn on_prod(name: &str, last: u8) -> Machine {
        let mut block = block();
        block.networks = vec![nic("eth0", Some("prod"))];
        block.networks[0].mac_address = Some(mac(last));
        let mut machine = machine(block);
        machine.metadata.name = Some(name.to_owned());
        machine
    }

    fn mac(last: u8) -> Mac {
        Mac::new([2, 0, 0, 0, 0, last])
    }

    fn apply(address_index: &AddressIndex, event: Event<Machine>) -> Vec<String> {
        let event = match event {
            Event::Init => Event::Init,
            Event::InitApply(machine) => Event::InitApply(CachedMachine::from(machine)),
            Event::InitDone => Event::InitDone,
            Event::Apply(machine) => Event::Apply(CachedMachine::from(machine)),
            Event::Delete(machine) => Event::Delete(CachedMachine::from(machine)),
        };
        names(address_index.apply(&event, "cluster"))
    }

    fn names(machines: Vec<ObjectRef<CachedMachine>>) -> Vec<String> {
        machines.into_iter().map(|machine| machine.name).collect()
    }

    /// The other Machines that have an address of this one, each once for each card.
    fn sharing(address_index: &AddressIndex, machine: &Machine) -> Vec<String> {
        let cards = &machine.desired().unwrap().networks;
        let macs = cards.iter().map(|nic| {
            let derived = || machine.identity("cluster").mac(&nic.name);
            nic.mac_address.unwrap_or_else(derived)
        });
        let others = macs.flat_map(|mac| address_index.others_with_mac(machine, mac));
        others.map(|other| other.machine).collect()
    }

    fn list(address_index: &AddressIndex, machines: Vec<Machine>) -> Vec<String> {
        assert_eq!(apply(address_index, Event::Init), [""; 0]);
        for machine in machines {
            assert_eq!(apply(address_index, Event::InitApply(machine)), [""; 0]);
        }
        apply(address_index, Event::InitDone)
    }

    #[test]
    fn a_change_of_an_address_concerns_the_other_machines_that_have_it_before_or_after() {
        let address_index = AddressIndex::default();
        list(&address_index, vec![on_prod("db", 1), on_prod("web", 2)]);
        let update = |machine| apply(&address_index, Event::Apply(machine));
        assert_eq!(update(on_prod("app", 1)), ["db"]);
        assert_eq!(update(on_prod("app", 1)), [""; 0], "nothing has changed");
        assert_eq!(
            sharing(&address_index, &on_prod("app", 1)),
            ["db"],
            "not itself"
        );
        assert_eq!(update(on_prod("app", 2)), ["db", "web"]);
        let mut stale = on_prod("app", 2);
        stale.block = Block::Stale;
        assert_eq!(update(stale), ["web"]);
        update(on_prod("app", 2));
        assert_eq!(
            apply(&address_index, Event::Delete(on_prod("app", 9))),
            ["web"]
        );
        assert_eq!(sharing(&address_index, &on_prod("web", 2)), [""; 0]);
    }

    #[test]
    fn a_machine_that_shares_several_addresses_gets_one_pass() {
        let address_index = AddressIndex::default();
        let both = |name: &str| {
            let mut machine = on_prod(name, 1);
            let mut block = machine.desired().unwrap().clone();
            block.networks.push(nic("eth1", Some("prod")));
            block.networks[1].mac_address = Some(mac(2));
            machine.block = Block::Matching(Box::new(block));
            machine
        };
        list(&address_index, vec![both("db")]);
        assert_eq!(apply(&address_index, Event::Apply(both("web"))), ["db"]);
        assert_eq!(sharing(&address_index, &both("web")), ["db", "db"]);
        assert_eq!(sharing(&address_index, &on_prod("app", 1)), ["db", "web"]);
    }

    #[test]
    fn a_machine_missing_in_a_new_list_concerns_those_that_share_its_address() {
        let address_index = AddressIndex::default();
        let both = vec![on_prod("db", 1), on_prod("web", 1)];
        assert_eq!(list(&address_index, both.clone()), [""; 0]);
        assert_eq!(list(&address_index, both), [""; 0]);
        assert_eq!(list(&address_index, vec![on_prod("web", 1)]), ["web"]);
    }

    #[test]
    fn a_derived_address_conflicts_with_the_same_address_in_a_spec() {
        let address_index = AddressIndex::default();
        let mut block = block();
        block.networks = vec![nic("eth0", Some("prod"))];
        let derived = machine(block.clone());
        block.networks[0].mac_address = Some(derived.identity("cluster").mac("eth0"));
        let mut copy = derived.clone();
        copy.metadata.name = Some("copy".into());
        copy.block = Block::Matching(Box::new(block));
        list(&address_index, vec![derived, copy.clone()]);
        assert_eq!(sharing(&address_index, &copy), ["web"]);
    }

    #[test]
    fn a_machine_of_another_namespace_that_shares_an_address_gets_a_pass() {
        let address_index = AddressIndex::default();
        let mut elsewhere = on_prod("db", 1);
        elsewhere.metadata.namespace = Some("dev".into());
        list(&address_index, vec![elsewhere]);
        let event = Event::Apply(CachedMachine::from(on_prod("web", 1)));
        let concerned = address_index.apply(&event, "cluster");
        assert_eq!(concerned, [ObjectRef::new("db").within("dev")]);
    }

    #[test]
    fn a_machine_is_found_by_the_name_of_a_claim_of_its_disks() {
        let address_index = AddressIndex::default();
        list(&address_index, vec![on_prod("a-b", 1)]);
        let found = |claim| {
            let machines = address_index.with_claim("default", claim);
            machines.into_iter().map(|machine| machine.name).collect()
        };
        let (none, own): (Vec<String>, Vec<String>) = (found("a-b-data"), found("a-b-root"));
        assert_eq!((none, own), (vec![], vec!["a-b".to_owned()]));
    }
}
