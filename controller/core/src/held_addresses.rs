//! The addresses that a Machine has in a pass.

use std::collections::BTreeMap;
use std::time::Duration;

use common::render::{CardAddress, CardConfig};

use crate::conditions::Fault;

/// Pause after an address could not be locked because the API server did not answer. No event reports that it answers
/// again; one of several that is restarted is replaced by another within seconds.
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
