//! The IP addresses of a guest, by network card.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use common::guest_report::AddressLimit;
use common::mac::Mac;

/// The IP addresses of a guest's network cards, as far as the limit for one guest goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct CardAddresses {
    cards: BTreeMap<Mac, BTreeSet<IpAddr>>,
    limit: AddressLimit,
}

impl CardAddresses {
    /// No addresses yet of these cards.
    pub(crate) fn of(cards: impl Iterator<Item = Mac>) -> Self {
        Self {
            cards: cards.map(|mac| (mac, BTreeSet::new())).collect(),
            limit: AddressLimit::default(),
        }
    }

    /// Adds what is reported of a card. Interfaces that are no card of the guest, such as the bridges of a container
    /// engine, are left out: nothing of them is read.
    pub(crate) fn add<T: AsRef<str>>(&mut self, mac: &str, reported: impl IntoIterator<Item = T>) {
        let mac = mac.parse::<Mac>();
        let Some(known) = mac.ok().and_then(|mac| self.cards.get_mut(&mac)) else {
            return;
        };
        let addresses = self.limit.take(reported).into_iter();
        known.extend(addresses.filter_map(|text| text.as_ref().parse::<IpAddr>().ok()));
    }

    /// The addresses of a card.
    pub(crate) fn of_card(&self, mac: Mac) -> impl Iterator<Item = IpAddr> {
        self.cards.get(&mac).into_iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MAC: &str = "02:00:00:00:00:01";

    fn addresses() -> CardAddresses {
        CardAddresses::of([MAC.parse().unwrap()].into_iter())
    }

    fn known(addresses: &CardAddresses) -> Vec<String> {
        let known = addresses.of_card(MAC.parse().unwrap());
        known.map(|address| address.to_string()).collect()
    }

    #[test]
    fn of_sixty_thousand_addresses_that_an_agent_reports_sixty_four_are_read() {
        let handled = Cell::new(0);
        let reported = || {
            (0..60_000).map(|number| {
                handled.set(handled.get() + 1);
                format!("2001:db8::{number:x}")
            })
        };
        let mut addresses = addresses();
        addresses.add("02:00:00:00:00:99", reported());
        assert_eq!(handled.get(), 0, "it is no card of the guest");
        for _ in 0..3 {
            addresses.add(MAC, reported());
        }
        assert_eq!(handled.get(), 64);
        assert_eq!(known(&addresses).len(), 64);
    }

    #[test]
    fn only_addresses_of_the_card_are_kept() {
        let mut addresses = addresses();
        let long = format!("10.0.0.1{}", " ".repeat(100));
        addresses.add(
            "02-00-00-00-00-01",
            ["fe80::1", "10.0.0.2", "127.0.0.1", "no address", &long],
        );
        addresses.add("no MAC", ["10.0.0.3"]);
        assert_eq!(known(&addresses), ["10.0.0.2", "127.0.0.1", "fe80::1"]);
    }
}
