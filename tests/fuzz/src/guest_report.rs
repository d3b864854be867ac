//! What a guest reports: whatever it is, no more of it is read than the limits allow.

use std::cell::Cell;

use common::bounds::{GUEST_ADDRESS_MAX, GUEST_ADDRESSES_MAX, GUEST_TEXT_MAX};
use common::guest_report::{self, AddressLimit};

/// The input is the name of a system, and the addresses of network cards: one in each line, and an empty line
/// between two cards.
pub fn limits(data: &[u8]) {
    let Ok(input) = str::from_utf8(data) else {
        return;
    };
    name(input);
    addresses(input);
}

/// The name stays as it is within the limit; a longer one loses whole characters at its end, and no more than needed.
fn name(input: &str) {
    let cut = guest_report::text(input);
    assert!(input.starts_with(cut));
    assert!(cut.len() <= GUEST_TEXT_MAX);
    assert_eq!(guest_report::text(cut), cut);
    if let Some(next) = input[cut.len()..].chars().next() {
        assert!(cut.len() + next.len_utf8() > GUEST_TEXT_MAX);
    }
}

/// Of all cards together, the first addresses are looked at; those that are read are some of them, in their order.
fn addresses(input: &str) {
    let looked_at = Cell::new(0);
    let mut limit = AddressLimit::default();
    let mut read = Vec::new();
    for card in input.split("\n\n") {
        let reported = card.lines();
        read.extend(limit.take(reported.inspect(|_| looked_at.set(looked_at.get() + 1))));
    }
    let all = || input.split("\n\n").flat_map(str::lines);
    assert_eq!(looked_at.get(), all().count().min(GUEST_ADDRESSES_MAX));
    let is_address = |text: &&str| !text.is_empty() && text.len() <= GUEST_ADDRESS_MAX;
    let expected: Vec<_> = all().take(GUEST_ADDRESSES_MAX).filter(is_address).collect();
    assert_eq!(read, expected);
}
