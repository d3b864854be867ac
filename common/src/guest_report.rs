//! What a guest reports about itself through its agent. The guest decides what that is, so it is cut to limits
//! before anything is computed from it.

use crate::bounds::{GUEST_ADDRESS_MAX, GUEST_ADDRESSES_MAX, GUEST_TEXT_MAX};

/// Counts the addresses that are read of one guest: no more than [`GUEST_ADDRESSES_MAX`], whichever cards they are
/// reported for. All others are not even looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressLimit {
    left: usize,
}

impl Default for AddressLimit {
    fn default() -> Self {
        Self {
            left: GUEST_ADDRESSES_MAX,
        }
    }
}

impl AddressLimit {
    /// The next reported addresses, as far as the limit goes. Empty texts and texts that are longer than
    /// [`GUEST_ADDRESS_MAX`] are no addresses; they are left out, and count.
    pub fn take<T: AsRef<str>>(&mut self, reported: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut addresses: Vec<T> = reported.into_iter().take(self.left).collect();
        self.left -= addresses.len();
        addresses.retain(|address| (1..=GUEST_ADDRESS_MAX).contains(&address.as_ref().len()));
        addresses
    }
}

/// A reported name, cut after the last character that ends within [`GUEST_TEXT_MAX`].
pub fn text(reported: &str) -> &str {
    &reported[..reported.floor_char_boundary(GUEST_TEXT_MAX)]
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn of_sixty_thousand_addresses_only_the_first_ones_are_looked_at() {
        let handled = Cell::new(0);
        let reported = || {
            (0..60_000).map(|number| {
                handled.set(handled.get() + 1);
                format!("2001:db8::{number:x}")
            })
        };
        let mut limit = AddressLimit::default();
        let first = limit.take(reported());
        assert_eq!(first.len(), GUEST_ADDRESSES_MAX);
        assert_eq!(limit.take(reported()), [""; 0]);
        assert_eq!(handled.get(), GUEST_ADDRESSES_MAX);
    }

    #[test]
    fn the_limit_is_one_of_all_cards_together() {
        let mut limit = AddressLimit::default();
        let read = |count| vec!["10.0.0.1"; count];
        assert_eq!(limit.take(read(60)).len(), 60);
        assert_eq!(limit.take(read(60)).len(), GUEST_ADDRESSES_MAX - 60);
    }

    #[test]
    fn a_text_that_is_too_long_for_an_address_is_left_out() {
        let (longest, longer) = ("f".repeat(64), "f".repeat(65));
        let reported = ["", longest.as_str(), longer.as_str(), "10.0.0.1"];
        let read = AddressLimit::default().take(reported);
        assert_eq!(read, [longest.as_str(), "10.0.0.1"]);
    }

    #[test]
    fn a_name_is_cut_between_two_characters() {
        assert_eq!(text("Fedora Linux"), "Fedora Linux");
        assert_eq!(text(&"a".repeat(300)), "a".repeat(256));
        // The 86th character, of three bytes, would end at 258.
        assert_eq!(text(&"€".repeat(128)), "€".repeat(85));
    }
}
