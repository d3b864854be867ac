//! The release of addresses: of Machines that are gone, and of cards that are gone.
//!
//! A guest keeps an address until its operating system is configured again, whatever the spec says now. So a lock is deleted
//! only if the Machine of its uid does not exist and no guest of it is left, or if the guest does not have the address.
//! Both are checked live, right before the deletion, which names uid and version of the lock.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use common::address::Family;
use common::api::status::MachineStatus;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};

use super::objects::{Lock, MachineAddress, parsed};
use crate::addresses::is_reachable;
use crate::caches::Caches;
use crate::client::{ApiError, GuardedClient};
use crate::machine::{CachedMachine, Machine};
use crate::objects::Meta as _;

/// Time between two searches for locks without a Machine. The search reads caches only, and a Machine that is created right
/// after another one was deleted waits that long for its address.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);

/// What is known of guests beside their Machines.
pub trait Guests: Send + Sync {
    /// Whether anything of a Machine of this uid is left that may run.
    fn exists(&self, namespace: &str, name: &str, uid: &str) -> bool;
}

/// Releases the addresses of Machines that are gone, for as long as the process runs.
pub async fn release_addresses(
    caches: Caches,
    guests: Vec<Arc<dyn Guests>>,
    api: GuardedClient,
) -> Infallible {
    let mut ticks = tokio::time::interval(SEARCH_INTERVAL);
    loop {
        ticks.tick().await;
        if !api.may_write() {
            continue;
        }
        for lock in abandoned(&caches) {
            let holder = &lock.holder;
            let mut guests = guests.iter();
            if guests.any(|it| it.exists(&holder.namespace, &holder.name, &holder.uid)) {
                continue;
            }
            if let Err(error) = release_if_gone(&lock, &api).await {
                let (address, error) = (&*lock.name, error.message());
                tracing::warn!(address, error, "an address was not released, trying again");
            }
        }
    }
}

/// Locks whose Machine the cache does not have.
fn abandoned(caches: &Caches) -> Vec<Lock> {
    let mut abandoned = vec![];
    caches.addresses.for_each_summary(|_, lock| {
        let holder = &lock.holder;
        let key = kube::runtime::reflector::ObjectRef::new(&holder.name).within(&holder.namespace);
        let machine = caches.machines.get(&key);
        if machine.is_none_or(|machine| machine.uid() != holder.uid) {
            abandoned.push(lock.clone());
        }
    });
    abandoned
}

/// Deletes a lock if the API server does not have its Machine.
async fn release_if_gone(lock: &Lock, api: &GuardedClient) -> Result<(), ApiError> {
    let locks: Api<MachineAddress> = Api::all(api.client());
    let Some(stored) = api.read(locks.get_opt(&lock.name)).await? else {
        return Ok(());
    };
    let holder = &stored.spec.machine_ref;
    if *holder != lock.holder {
        return Ok(());
    }
    let machine = machine(&holder.namespace, &holder.name, api).await?;
    if machine.is_some_and(|machine| machine.uid() == holder.uid) {
        return Ok(());
    }
    delete(&stored, api).await
}

/// Releases the locks of a Machine that none of its cards needs, and whose address its guest does not have. `needed`:
/// names of the locks that cards need.
pub(super) async fn release_unneeded(
    machine: &Machine,
    needed: &BTreeSet<String>,
    held: &[MachineAddress],
    api: &GuardedClient,
) {
    let unneeded = held
        .iter()
        .filter(|lock| !needed.contains(lock.name()) && guest_lacks(lock, machine));
    for lock in unneeded {
        if let Err(error) = release_if_lacking(lock, machine, api).await {
            let (address, error) = (lock.name(), error.message());
            tracing::warn!(address, error, "an address was not released, trying again");
        }
    }
}

/// Whether the guest of a Machine does not have an address, as far as its status says: it reports another address of the
/// family for the card, or it runs as the Machine is now, without the card.
fn guest_lacks(lock: &MachineAddress, machine: &Machine) -> bool {
    let card = &lock.spec.machine_ref.card;
    let address = parsed(&lock.spec.address);
    let cards = machine.desired().into_iter().flat_map(|it| &it.networks);
    let is_wanted = cards.into_iter().any(|it| it.name == *card);
    match reported(&machine.status, card) {
        // A guest that has just started may have only an address of the link, or of the other family.
        Some(reported) => address.is_some_and(|own| {
            let reported = reported.iter();
            let reported = reported.filter_map(|text| parsed(without_prefix(text)));
            let of_family = |it: &IpAddr| is_reachable(*it) && Family::of(*it) == Family::of(own);
            let all: Vec<_> = reported.filter(of_family).collect();
            !all.is_empty() && !all.contains(&own)
        }),
        // A guest that is off or starts reports no cards, and may get this one.
        None => !is_wanted && machine.desired().is_some() && shows_its_cards(machine),
    }
}

/// Whether the status has the cards of a running guest, which are those that the Machine has now.
fn shows_its_cards(machine: &Machine) -> bool {
    let status = &machine.status;
    let mut cards = status.network_interfaces.iter();
    status.observed_generation == machine.generation()
        && status.pending_changes.is_empty()
        && cards.any(|card| card.mac_address.is_some())
}

/// Addresses that the guest reports of a card; `None`: it has no such card.
fn reported<'s>(status: &'s MachineStatus, card: &str) -> Option<&'s [String]> {
    let mut cards = status.network_interfaces.iter();
    let card = cards.find(|it| it.name == card)?;
    let is_of_guest = card.mac_address.is_some() || !card.ip_addresses.is_empty();
    is_of_guest.then_some(&card.ip_addresses)
}

fn without_prefix(text: &str) -> &str {
    text.split_once('/').map_or(text, |(address, _)| address)
}

/// Deletes a lock if the Machine as it is stored now has no use of it.
async fn release_if_lacking(
    lock: &MachineAddress,
    observed: &Machine,
    api: &GuardedClient,
) -> Result<(), ApiError> {
    let Some(stored) = machine(observed.namespace(), observed.name(), api).await? else {
        return Ok(());
    };
    // Whatever changed since it was observed, the next pass sees it.
    let is_as_observed = stored.uid() == observed.uid()
        && stored.desired().map(|it| &it.networks) == observed.desired().map(|it| &it.networks);
    if is_as_observed && guest_lacks(lock, &stored) {
        delete(lock, api).await?;
    }
    Ok(())
}

async fn machine(
    namespace: &str,
    name: &str,
    api: &GuardedClient,
) -> Result<Option<Machine>, ApiError> {
    let machines: Api<CachedMachine> = Api::namespaced(api.client(), namespace);
    let machine = api.read(machines.get_opt(name)).await?;
    Ok(machine.map(|machine| machine.decompress()))
}

async fn delete(lock: &MachineAddress, api: &GuardedClient) -> Result<(), ApiError> {
    let locks: Api<MachineAddress> = Api::all(api.client());
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(lock.uid().to_owned()),
            resource_version: lock.metadata.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    match api.write(locks.delete(lock.name(), &params)).await {
        Ok(_) => tracing::info!(address = lock.name(), "released an address"),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use common::api::status::{InterfaceStatus, PendingChange};
    use common::render::CardAddress;

    use super::*;
    use crate::fixtures::{block, machine, nic};

    fn lock(machine: &Machine) -> MachineAddress {
        let address = CardAddress {
            address: "10.0.0.5".parse().unwrap(),
            prefix: 24,
            gateway: None,
        };
        MachineAddress::new(machine, "eth0", "br0", address)
    }

    /// A Machine with these cards, whose guest reports addresses of `eth0`; `None`: it has no such card.
    fn reporting(cards: &[&str], reported: Option<&[&str]>) -> Machine {
        let mut block = block();
        block.networks = cards.iter().map(|card| nic(card, Some("lan"))).collect();
        let mut machine = machine(block);
        let text = |text: &&str| (*text).to_owned();
        let interface = reported.map(|reported| InterfaceStatus {
            name: "eth0".into(),
            mac_address: Some("02:00:00:00:00:01".into()),
            allocated_addresses: vec!["10.0.0.5".into()],
            ip_addresses: reported.iter().map(text).collect(),
        });
        machine.status.network_interfaces = interface.into_iter().collect();
        machine
    }

    #[test]
    fn an_address_is_released_only_if_the_guest_says_that_it_has_another_or_has_no_such_card() {
        for (cards, reported, lacks) in [
            (&["eth0"][..], None, false),
            (&["eth0"], Some(&[][..]), false),
            (&["eth0"], Some(&["10.0.0.5/24"]), false),
            (&["eth0"], Some(&["10.0.0.6", "10.0.0.5"]), false),
            (&["eth0"], Some(&["10.0.0.6"]), true),
            (&["eth0"], Some(&["fe80::1", "2001:db8::5"]), false),
            (&["eth1"], Some(&["10.0.0.5"]), false),
            (&["eth1"], Some(&[]), false),
            (&["eth1"], Some(&["10.0.0.6"]), true),
            // It is off or starts.
            (&["eth1"], None, false),
        ] {
            let machine = reporting(cards, reported);
            let lock = lock(&machine);
            assert_eq!(
                guest_lacks(&lock, &machine),
                lacks,
                "{cards:?} {reported:?}"
            );
        }
    }

    #[test]
    fn the_address_of_a_removed_card_is_released_once_the_guest_runs_without_the_card() {
        let mut machine = reporting(&["eth1"], Some(&["10.0.0.5"]));
        let lock = lock(&machine);
        machine.status.network_interfaces[0].name = "eth1".into();
        machine.metadata.generation = Some(6);
        machine.status.observed_generation = machine.generation();
        assert!(guest_lacks(&lock, &machine));
        machine.status.pending_changes.push(PendingChange {
            field: "networks[eth0]".into(),
            current: "absent".into(),
            desired: "present".into(),
            action: "Restart".into(),
        });
        assert!(!guest_lacks(&lock, &machine));
        machine.status.pending_changes.clear();
        machine.metadata.generation = Some(7);
        assert!(!guest_lacks(&lock, &machine));
    }

    #[test]
    fn a_lock_is_of_one_machine_by_uid() {
        let machine = reporting(&["eth0"], None);
        let mut other = machine.clone();
        other.metadata.uid = Some("another".into());
        assert!(lock(&machine).is_held_by(&machine));
        assert!(!lock(&machine).is_held_by(&other));
        assert_eq!(lock(&machine).name(), lock(&other).name());
    }
}
