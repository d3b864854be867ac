//! The step of a pass in which a Machine gets its addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use common::address::Family;
use common::bounds::CARD_ADDRESSES_MAX;
use common::names;
use common::render::CardAddress;
use kube::Api;
use kube::api::{ListParams, PostParams};

use super::needs::{Need, may_need, needs};
use super::objects::MachineAddress;
use super::release::release_unneeded;
use crate::caches::Caches;
use crate::client::{ApiError, GuardedClient};
use crate::conditions::Fault;
use crate::expectations::Expectations;
use crate::held_addresses::{AddressFault, Addresses};
use crate::machine::Machine;
use crate::objects::Meta as _;
use crate::writes::Written;

/// Addresses that are tried in one pass, if others take them in the same moment. A pass is repeated. Chosen: each Machine
/// begins at another address, so a second try is rare, and each is a request for which other Machines wait.
const TRIES: usize = 8;

/// Addresses that a card holds at most: those of its spec now, and as many that its guest may still have.
const HELD_MAX: usize = 2 * CARD_ADDRESSES_MAX;

/// What an attempt to lock an address found.
enum Attempt {
    /// The Machine has it.
    Held(MachineAddress),
    /// Another Machine has it.
    InUse(MachineAddress),
}

/// Where a Machine gets its addresses from.
struct Acquisition<'a> {
    machine: &'a Machine,
    caches: &'a Caches,
    api: &'a GuardedClient,
    expectations: &'a Expectations,
    /// The locks that the Machine holds.
    held: Vec<MachineAddress>,
}

/// Gives a Machine the addresses that it needs: those that it holds, and locks for the others. A Machine that is paused,
/// under deletion or without a block keeps what it holds. Nothing is read or written for a Machine without addresses.
pub(crate) async fn acquire(
    machine: &Machine,
    caches: &Caches,
    api: &GuardedClient,
    expectations: &Expectations,
) -> Addresses {
    let network = |name: &str| caches.networks.get(machine.namespace(), name);
    let mut held: Vec<_> = caches
        .addresses
        .of_machine("", machine.name())
        .into_iter()
        .filter(|lock| lock.is_held_by(machine))
        .map(Arc::unwrap_or_clone)
        .collect();
    if held.is_empty() && !may_need(machine, network) {
        caches.waiting_for_address.set(machine, BTreeSet::new());
        return Addresses::default();
    }
    // Of two locks for one need the older one counts, whichever order the cache has.
    held.sort_by_key(|lock| {
        (
            lock.metadata.creation_timestamp.clone(),
            lock.metadata.name.clone(),
        )
    });
    // Without a block nothing says what the Machine needs.
    let acts = !machine.is_deleting() && !machine.is_paused() && machine.desired().is_some();
    let mut acquisition = Acquisition {
        machine,
        caches,
        api,
        expectations,
        held,
    };
    let needs = needs(machine, network);
    if acts {
        // An address that is released meanwhile triggers another pass.
        let segments = needs.iter().map(|need| need.segment.clone());
        caches.waiting_for_address.set(machine, segments.collect());
    }
    let mut addresses = Addresses::default();
    let mut needed = BTreeSet::new();
    for need in &needs {
        let (own, fault) = acquisition.card(need, acts).await;
        addresses.fault = joined(addresses.fault, fault);
        let names = own.iter();
        needed.extend(names.map(|it| names::machine_address(&need.segment, it.address)));
        addresses
            .configs
            .insert(need.card.clone(), need.config(own));
    }
    for lock in &acquisition.held {
        let card = &lock.spec.machine_ref.card;
        let own = addresses.held.entry(card.clone()).or_default();
        own.extend(lock.address());
    }
    if addresses.fault.is_none() {
        caches.waiting_for_address.set(machine, BTreeSet::new());
        // A card whose network is not known may need any of them.
        let mut cards = machine.desired().into_iter().flat_map(|it| &it.networks);
        let is_known = cards.all(|nic| {
            nic.network_name.is_none() || needs.iter().any(|need| need.card == nic.name)
        });
        if acts && is_known {
            release_unneeded(machine, &needed, &acquisition.held, api).await;
        }
    }
    addresses
}

/// Two faults as one: that another Machine has an address counts most.
fn joined(first: Option<AddressFault>, second: Option<AddressFault>) -> Option<AddressFault> {
    match (first, second) {
        (Some(first), Some(second)) => Some(AddressFault {
            is_in_use: first.is_in_use || second.is_in_use,
            is_transient: first.is_transient || second.is_transient,
            fault: if second.is_in_use && !first.is_in_use {
                second.fault
            } else {
                first.fault
            },
        }),
        (first, second) => first.or(second),
    }
}

impl Acquisition<'_> {
    /// The addresses of a card, and why it does not have all.
    async fn card(&mut self, need: &Need, acts: bool) -> (Vec<CardAddress>, Option<AddressFault>) {
        let mut own = Vec::new();
        let mut fault = None;
        for address in &need.given {
            match self.acquire_requested(need, *address, acts).await {
                Ok(address) => own.extend(address),
                Err(error) => fault = joined(fault, Some(error)),
            }
        }
        for family in need.families() {
            match self.allocated(need, family, acts).await {
                Ok(address) => own.extend(address),
                Err(error) => fault = joined(fault, Some(error)),
            }
        }
        (own, fault)
    }

    /// The address as the guest gets it: with prefix and gateway of its subnet as it is now, else as it was.
    fn of_lock(need: &Need, lock: &MachineAddress) -> Option<CardAddress> {
        let locked = lock.address()?;
        Some(need.in_subnet(locked.address).unwrap_or(locked))
    }

    async fn acquire_requested(
        &mut self,
        need: &Need,
        address: IpAddr,
        acts: bool,
    ) -> Result<Option<CardAddress>, AddressFault> {
        let name = names::machine_address(&need.segment, address);
        if let Some(lock) = self.held.iter().find(|lock| lock.name() == name) {
            return Ok(Self::of_lock(need, lock));
        }
        if !acts {
            return Ok(None);
        }
        let unusable = |why: &str| AddressFault {
            fault: Fault::new(
                "NetworkFailed",
                format!(
                    "network card '{}' has the address {address}, which {why}; the Machine continues automatically then",
                    need.card
                ),
            ),
            is_in_use: false,
            is_transient: false,
        };
        let Some(wanted) = need.in_subnet(address) else {
            return Err(unusable(&format!(
                "no subnet in spec.ipam of NetworkConfiguration '{}' contains: add the subnet, or change ipAddresses in spec.networks",
                need.network
            )));
        };
        if let Some(why) = need.reserved(address) {
            return Err(unusable(&why));
        }
        self.has_room(need)?;
        match self.lock(need, wanted).await {
            Ok(Attempt::Held(lock)) => {
                self.held.push(lock);
                Ok(Some(wanted))
            }
            Ok(Attempt::InUse(lock)) => Err(self.in_use(need, address, &lock)),
            Err(error) => Err(unreachable(need, &error)),
        }
    }

    async fn allocated(
        &mut self,
        need: &Need,
        family: Family,
        acts: bool,
    ) -> Result<Option<CardAddress>, AddressFault> {
        let is_fitting = |lock: &&MachineAddress| {
            let of_card =
                lock.spec.machine_ref.card == need.card && lock.spec.segment == need.segment;
            let address = lock.address().map(|it| it.address);
            let fits = |it: IpAddr| Family::of(it) == family && need.in_subnet(it).is_some();
            of_card && address.is_some_and(fits)
        };
        if let Some(lock) = self.held.iter().find(is_fitting) {
            return Ok(Self::of_lock(need, lock));
        }
        let is_open = acts && !self.guest_has_card_without_address(need);
        let Some(ipam) = need.ipam.clone().filter(|_| is_open) else {
            return Ok(None);
        };
        // The cache of a replica that has just begun to lead may lack what the last one wrote. A second address for the
        // card would not be noticed, so the API server is asked before one is allocated.
        let stored = self
            .stored()
            .await
            .map_err(|error| unreachable(need, &error))?;
        if let Some(lock) = stored.iter().find(is_fitting) {
            let address = Self::of_lock(need, lock);
            self.held.push(lock.clone());
            return Ok(address);
        }
        self.has_room(need)?;
        // A guest keeps its address when its network gets another segment.
        for kept in self.on_other_segments(need, family) {
            if let Ok(Attempt::Held(lock)) = self.lock(need, kept).await {
                self.held.push(lock);
                return Ok(Some(kept));
            }
        }
        let seed = format!("{}/{}", self.machine.uid(), need.card);
        let mut taken = self.taken(&need.segment);
        for _ in 0..TRIES {
            let Ok(address) = ipam.free(family, &seed, &taken) else {
                return Err(exhausted(need, family, &taken));
            };
            taken.insert(address);
            let Some(wanted) = need.in_subnet(address) else {
                continue;
            };
            match self.lock(need, wanted).await {
                Ok(Attempt::Held(lock)) => {
                    self.held.push(lock);
                    return Ok(Some(wanted));
                }
                Ok(Attempt::InUse(_)) => {}
                Err(error) => return Err(unreachable(need, &error)),
            }
        }
        let message = format!(
            "network card '{}' has no {family} address yet: others took the {TRIES} that were tried; trying again",
            need.card
        );
        Err(AddressFault {
            fault: Fault::new("NetworkFailed", message),
            is_in_use: false,
            is_transient: true,
        })
    }

    /// Addresses of the card on other segments that fit here.
    fn on_other_segments(&self, need: &Need, family: Family) -> Vec<CardAddress> {
        let others = self.held.iter().filter(|lock| {
            lock.spec.machine_ref.card == need.card && lock.spec.segment != need.segment
        });
        let kept = others.filter_map(|lock| need.in_subnet(lock.address()?.address));
        kept.filter(|it| Family::of(it.address) == family).collect()
    }

    /// Whether the guest already has the card, but no address. cloud-init reads addresses only at first boot, so a later
    /// one would not reach the guest.
    fn guest_has_card_without_address(&self, need: &Need) -> bool {
        let mut cards = self.machine.status.network_interfaces.iter();
        let card = cards.find(|card| card.name == need.card);
        card.is_some_and(|card| card.mac_address.is_some() && card.allocated_addresses.is_empty())
    }

    /// Whether the card may hold one more address: a guest that never says which it has keeps all that it ever had.
    fn has_room(&self, need: &Need) -> Result<(), AddressFault> {
        let of_card = |lock: &&MachineAddress| lock.spec.machine_ref.card == need.card;
        let count = self.held.iter().filter(of_card).count();
        if count < HELD_MAX {
            return Ok(());
        }
        let message = format!(
            "network card '{}' holds {count} addresses that the guest may still have, and gets no more: restart the guest so that it reports what it has, or recreate the Machine",
            need.card
        );
        Err(AddressFault {
            fault: Fault::new("NetworkFailed", message),
            is_in_use: false,
            is_transient: false,
        })
    }

    /// Addresses of a segment that have a lock.
    fn taken(&self, segment: &str) -> BTreeSet<IpAddr> {
        let mut taken = BTreeSet::new();
        self.caches.addresses.for_each_summary(|_, lock| {
            if *lock.segment == *segment {
                taken.extend(lock.address);
            }
        });
        taken
    }

    /// The locks of the Machine, from the API server.
    async fn stored(&self) -> Result<Vec<MachineAddress>, ApiError> {
        let locks: Api<MachineAddress> = Api::all(self.api.client());
        let label = format!("{}={}", names::LABEL_MACHINE, self.machine.name());
        let params = ListParams::default().labels(&label);
        let list = self.api.read(locks.list(&params)).await?;
        let own = list.items.into_iter();
        Ok(own.filter(|lock| lock.is_held_by(self.machine)).collect())
    }

    /// Locks an address by creating its object; if it exists, returns its owner.
    async fn lock(&self, need: &Need, address: CardAddress) -> Result<Attempt, ApiError> {
        let lock = MachineAddress::new(self.machine, &need.card, &need.segment, address);
        let locks: Api<MachineAddress> = Api::all(self.api.client());
        let params = PostParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        match self.api.write(locks.create(&params, &lock)).await {
            Ok(created) => {
                tracing::info!(address = %address.address, segment = need.segment, "locked an address");
                let written = Written::of(&created);
                self.expectations.wrote(self.machine.uid(), written);
                Ok(Attempt::Held(created))
            }
            Err(error) if error.is_already_there() => {
                let found = self.api.read(locks.get(lock.name())).await?;
                Ok(if found.is_held_by(self.machine) {
                    Attempt::Held(found)
                } else {
                    Attempt::InUse(found)
                })
            }
            Err(error) => Err(error),
        }
    }

    /// The fault of a Machine whose address another one has. What is in another namespace is confidential.
    fn in_use(&self, need: &Need, address: IpAddr, lock: &MachineAddress) -> AddressFault {
        let holder = &lock.spec.machine_ref;
        let holder = if holder.namespace == self.machine.namespace() {
            format!("Machine '{}'", holder.name)
        } else {
            "a Machine of another namespace on the same network segment".to_owned()
        };
        let message = format!(
            "network card '{}' has the address {address}, and {holder} has it: change ipAddresses in spec.networks, or wait until the other Machine is gone; the guest is not started before, and the Machine continues automatically then",
            need.card
        );
        AddressFault {
            fault: Fault::new("AddressInUse", message),
            is_in_use: true,
            is_transient: false,
        }
    }
}

/// The fault of a Machine for which no address is left.
fn exhausted(need: &Need, family: Family, taken: &BTreeSet<IpAddr>) -> AddressFault {
    let ipam = need.ipam.as_deref();
    let total = ipam.map_or(0, |ipam| ipam.size_of(family));
    let used = ipam.map_or(0, |ipam| ipam.in_ranges(family, taken));
    let message = format!(
        "network card '{}' gets no {family} address: {used} of the {total} that NetworkConfiguration '{}' allocates are in use, and the rest are gateways: add a subnet or a range to its spec.ipam, or delete Machines; the Machine continues automatically then",
        need.card, need.network
    );
    AddressFault {
        fault: Fault::new("AddressesExhausted", message),
        is_in_use: false,
        is_transient: false,
    }
}

/// The fault of a Machine whose address could not be locked.
fn unreachable(need: &Need, error: &ApiError) -> AddressFault {
    let message = format!(
        "no address could be locked for network card '{}': {}; trying again",
        need.card,
        error.message()
    );
    AddressFault {
        fault: Fault::new("NetworkFailed", message),
        is_in_use: false,
        is_transient: true,
    }
}
