//! Ranges of addresses that are searched often.
//!
//! A network has up to 512 ranges, and each address of them can be taken: a walk of all ranges for each taken address would
//! be millions of comparisons for one card. So the ranges are prepared once, and each question about an address takes a
//! binary search.
//!
//! ```text
//! ranges of the spec   .20-.29  .10-.19  .50      positions 0-9, 10-19, 20: which address a card gets
//! joined               .10-.29           .50      how many are taken, and whether any is left
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::address::AddressRange;

/// Ranges of addresses.
#[derive(Clone, Debug)]
pub(super) struct Ranges {
    /// In the order of the spec, each with the number of addresses in those before it.
    positioned: Vec<(u128, AddressRange)>,
    /// Number of their addresses. One that is in two ranges counts twice.
    total: u128,
    /// The same addresses, each once, ascending. No two of these ranges overlap or follow each other.
    joined: Vec<AddressRange>,
}

impl Ranges {
    /// Prepares these ranges.
    pub(super) fn new(ranges: Vec<AddressRange>) -> Self {
        let mut total = 0_u128;
        let positioned = ranges.iter().map(|range| {
            let position = total;
            total = total.saturating_add(range.len());
            (position, *range)
        });
        let positioned = positioned.collect();
        Self {
            positioned,
            total,
            joined: joined(ranges),
        }
    }

    /// Number of addresses. One that is in two ranges counts twice.
    pub(super) const fn total(&self) -> u128 {
        self.total
    }

    /// The address at a position of the ranges in their order.
    pub(super) fn nth(&self, position: u128) -> Option<IpAddr> {
        let behind = self
            .positioned
            .partition_point(|(first, _)| *first <= position);
        let (first, range) = self.positioned.get(behind.checked_sub(1)?)?;
        range.nth(position - first)
    }

    /// The addresses in the order of the ranges.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let ranges = self.positioned.iter();
        ranges.flat_map(|(_, range)| (0..range.len()).map_while(|at| range.nth(at)))
    }

    /// Whether an address is in one of the ranges.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let before = self.joined.partition_point(|range| range.last() < address);
        let range = self.joined.get(before);
        range.is_some_and(|range| range.contains(address))
    }

    /// How many of these addresses are in the ranges.
    pub(super) fn count(&self, addresses: &BTreeSet<IpAddr>) -> usize {
        let ranges = self.joined.iter();
        let counts = ranges.map(|range| addresses.range(range.first()..=range.last()).count());
        counts.sum()
    }

    /// Whether each address of the ranges is in one of two sets.
    pub(super) fn are_within(&self, one: &BTreeSet<IpAddr>, other: &BTreeSet<IpAddr>) -> bool {
        let lengths = self.joined.iter().map(|range| range.len());
        let different = lengths.fold(0, u128::saturating_add);
        let is = |count: usize| u128::try_from(count) == Ok(different);
        // Most networks have more addresses than both sets, and then none needs to be looked up.
        let are_enough = u128::try_from(one.len() + other.len()).is_ok_and(|it| it >= different);
        let further = |address: &&IpAddr| self.contains(**address) && !one.contains(*address);
        are_enough && is(self.count(one) + other.iter().filter(further).count())
    }
}

/// The same addresses in as few ranges as possible, ascending.
fn joined(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
    ranges.sort_unstable();
    let mut joined: Vec<AddressRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        let both = joined.last().and_then(|last| last.joined(range));
        if both.is_some() {
            joined.pop();
        }
        joined.push(both.unwrap_or(range));
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Ranges {
        Ranges::new(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn shown(ranges: &Ranges) -> Vec<String> {
        ranges.joined.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranges_that_overlap_or_follow_each_other_are_joined() {
        let ranges = ranges(&[
            "10.0.0.20-10.0.0.29",
            "fd00::1",
            "10.0.0.10-10.0.0.19",
            "10.0.0.50",
            "10.0.0.12-10.0.0.14",
            "255.255.255.255",
            "fd00::2",
        ]);
        let expected = [
            "10.0.0.10-10.0.0.29",
            "10.0.0.50",
            "255.255.255.255",
            "fd00::1-fd00::2",
        ];
        assert_eq!(shown(&ranges), expected);
        assert_eq!(ranges.total(), 27);
        for (address, is_in) in [
            ("10.0.0.9", false),
            ("10.0.0.10", true),
            ("10.0.0.30", false),
            ("10.0.0.50", true),
            ("10.0.0.51", false),
            ("fd00::2", true),
            ("fd00::3", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(ranges.contains(address), is_in, "{address}");
        }
    }

    #[test]
    fn an_address_is_found_by_its_position_in_the_order_of_the_spec() {
        let ranges = ranges(&["10.0.0.20-10.0.0.21", "10.0.0.10", "10.0.0.20"]);
        let at = |position| Some(ranges.nth(position)?.to_string());
        let found: Vec<_> = (0..4).filter_map(at).collect();
        let all = ["10.0.0.20", "10.0.0.21", "10.0.0.10", "10.0.0.20"];
        assert_eq!(found, all);
        assert_eq!(ranges.nth(4), None);
        assert_eq!(ranges.nth(u128::MAX), None);
        let in_order: Vec<_> = ranges.addresses().map(|it| it.to_string()).collect();
        assert_eq!(in_order, all);
        assert_eq!(Ranges::new(vec![]).nth(0), None);
    }

    #[test]
    fn addresses_in_both_sets_are_counted_once() {
        let ranges = ranges(&["10.0.0.1-10.0.0.3", "10.0.0.2-10.0.0.4"]);
        let taken = addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"]);
        assert_eq!(ranges.count(&taken), 3);
        assert!(!ranges.are_within(&taken, &addresses(&["10.0.0.3", "10.0.0.8"])));
        assert!(ranges.are_within(&taken, &addresses(&["10.0.0.3", "10.0.0.4"])));
        let all = ranges.addresses().collect();
        assert!(ranges.are_within(&all, &BTreeSet::new()));
        assert!(Ranges::new(vec![]).are_within(&BTreeSet::new(), &BTreeSet::new()));
    }
}
