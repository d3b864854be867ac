//! IP addresses of Machines: which they need, the locks that they hold, and the release of those locks.
//!
//! ```text
//! pass of a Machine   needs (pure) ─▶ held? ── yes ──▶ given to the backend with the Machine
//!                                      │ no
//!                                      ▼
//!                     create the MachineAddress: its name is the address on its segment, so creating it is the lock
//!                                      │ exists already: another Machine has it ─▶ NetworkReady=False
//! all the time        MachineAddresses whose Machine is gone ─▶ read the Machine live ─▶ delete
//! ```
//! The API server decides who gets an address: two replicas, two namespaces and a restored backup all create an object of
//! the same name. Machines without addresses of their own cost no read and no write.

mod acquire;
mod needs;
mod objects;
mod release;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::render::{CardAddress, CardConfig, network_config};
use kube::runtime::reflector::ObjectRef;

pub(crate) use self::acquire::acquire;
pub use self::objects::{Lock, MachineAddress};
pub use self::release::{Guests, release_addresses};
pub use self::usage::{Attachments, publish};

use crate::conditions::Fault;
use crate::machine::{CachedMachine, Machine};
use crate::objects::Meta as _;

/// Pause after an address could not be locked because the API server did not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The addresses of a Machine in a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addresses {
    /// Addresses that the Machine holds, by name of the card.
    pub held: BTreeMap<String, Vec<CardAddress>>,
    /// What its guest is to know of its cards, by name.
    pub configs: BTreeMap<String, CardConfig>,
    /// Why it does not hold all that it needs.
    pub fault: Option<AddressFault>,
}

/// Why a Machine does not hold all addresses that it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressFault {
    /// For the condition `NetworkReady`.
    pub fault: Fault,
    /// Whether another Machine has an address of this one: then the guest must not start.
    pub is_in_use: bool,
    /// Whether it may succeed without a change that an event reports, so that a pass has to follow.
    pub is_transient: bool,
}

impl Addresses {
    /// Time until the next pass, if no event may start one.
    pub(crate) fn retry(&self) -> Option<Duration> {
        let fault = self.fault.as_ref()?;
        fault.is_transient.then_some(RETRY_INTERVAL)
    }

    /// Whether a guest that is off must stay off, because another Machine has its address.
    pub fn keeps_off(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.is_in_use)
    }
}

impl Machine {
    /// Gives the guest its addresses by cloud-init, unless the user gives network data.
    pub(crate) fn render_addresses(&mut self, cluster: &str) {
        let Some(block) = self.desired() else { return };
        let configs = &self.addresses.configs;
        let identity = self.identity(cluster);
        let network = network_config(&identity, &block.networks, |card| configs.get(card));
        let plan = std::mem::take(&mut self.cloud_init);
        self.cloud_init = plan.with_network_configuration(network);
    }
}

/// Segments on which Machines wait for an address, by namespace and name of the Machine.
type Segments = BTreeMap<(String, String), BTreeSet<String>>;

/// Machines that wait for an address. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Arc<Mutex<Segments>>);

impl Waiting {
    fn with<T>(&self, change: impl FnOnce(&mut Segments) -> T) -> T {
        // No statement under this lock leaves the map inconsistent, so a poisoned lock is safe to use.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the segments on which a Machine waits.
    fn set(&self, machine: &Machine, segments: BTreeSet<String>) {
        let key = (machine.namespace().to_owned(), machine.name().to_owned());
        self.with(|waiting| {
            if segments.is_empty() {
                waiting.remove(&key);
            } else {
                waiting.insert(key, segments);
            }
        });
    }

    /// The Machines that wait for an address of a segment.
    pub(crate) fn on(&self, segment: &str) -> Vec<ObjectRef<CachedMachine>> {
        self.with(|waiting| {
            let all = waiting.iter();
            let waiting = all.filter(|(_, segments)| segments.contains(segment));
            let machines =
                waiting.map(|((namespace, name), _)| ObjectRef::new(name).within(namespace));
            machines.collect()
        })
    }
}

/// An address as the objects have it: as text that may be anything.
fn parsed(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}
