//! Ethernet MAC addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A MAC address of six bytes. `Display` gives lower-case hexadecimal bytes separated by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac([u8; 6]);

impl Mac {
    /// The address of these bytes.
    pub const fn new(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }

    /// The address of a network card that has none in the spec: stable, locally administered,
    /// unicast.
    pub fn derived(cluster: &str, namespace: &str, machine: &str, nic: &str) -> Self {
        // Names contain no zero byte, so the hashed text differs for each card.
        let digest = Sha256::digest([cluster, namespace, machine, nic].join("\0"));
        let [first, second, third, fourth, fifth, sixth] = [
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5],
        ];
        // IEEE 802: bit 1 of the first byte says locally administered, bit 0 multicast.
        Self([(first | 2) & !1, second, third, fourth, fifth, sixth])
    }

    /// The bytes of the address.
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }

    /// Whether frames to the address go to many receivers; a card cannot have such an address.
    /// Broadcast is among them. IEEE 802: the lowest bit of the first byte.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether frames to the address go to everyone.
    pub fn is_broadcast(self) -> bool {
        self.0 == [0xff; 6]
    }

    /// Whether every byte is zero; no card has this address.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }
}

/// A text that is not a MAC address of six bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a MAC address of six bytes")]
pub struct MacError;

impl FromStr for Mac {
    type Err = MacError;

    /// Reads what Go's `net.ParseMAC` reads for six bytes, and so what the backends read: pairs
    /// with colons, pairs with dashes, or groups of four with dots; in any case.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let (separator, digits) = match text.len() {
            17 if text.as_bytes().get(2) == Some(&b':') => (':', 2),
            17 => ('-', 2),
            14 => ('.', 4),
            _ => return Err(MacError),
        };
        let mut bytes = [0; 6];
        let mut filled = 0;
        for group in text.split(separator) {
            if group.len() != digits || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(MacError);
            }
            for start in (0..digits).step_by(2) {
                let slot = bytes.get_mut(filled).ok_or(MacError)?;
                *slot = u8::from_str_radix(&group[start..start + 2], 16).map_err(|_| MacError)?;
                filled += 1;
            }
        }
        if filled == 6 {
            Ok(Self(bytes))
        } else {
            Err(MacError)
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ":" };
            write!(f, "{separator}{byte:02x}")?;
        }
        Ok(())
    }
}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|error| serde::de::Error::custom(format!("'{text}' {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_with_colons_dashes_and_dots_are_read() {
        let mac = Mac::new([0x52, 0x54, 0, 0xab, 0xcd, 0xef]);
        for text in ["52:54:00:ab:cd:ef", "52-54-00-AB-CD-EF", "5254.00ab.cdef"] {
            assert_eq!(text.parse(), Ok(mac), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:ef:01:02",
            "52:54:00-ab-cd-ef",
            "525400abcdef",
            "5254:00ab:cdef",
            "52:54:00:ab:cd:eg",
            "+2:54:00:ab:cd:ef",
            "52.54.00.ab.cd.ef",
            "é2:54:00:ab:cd:e",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(MacError), "{text}");
        }
    }

    #[test]
    fn a_derived_address_is_stable_and_depends_on_each_part_of_its_input() {
        let mac = Mac::derived("c", "ns", "m", "eth0");
        assert_eq!(mac, Mac::derived("c", "ns", "m", "eth0"));
        assert_eq!(mac.bytes()[0] & 3, 2, "locally administered, unicast");
        let all = [
            mac,
            Mac::derived("d", "ns", "m", "eth0"),
            Mac::derived("c", "n", "sm", "eth0"),
            Mac::derived("c", "ns", "me", "th0"),
            Mac::derived("c", "ns", "m", "eth1"),
        ];
        assert_eq!(BTreeSet::from(all).len(), all.len());
    }

    proptest! {
        #[test]
        fn a_displayed_address_is_parsed_to_the_same_address(bytes: [u8; 6]) {
            prop_assert_eq!(Mac::new(bytes).to_string().parse(), Ok(Mac::new(bytes)));
        }

        #[test]
        fn parsing_any_text_never_panics(text in ".{0,20}") {
            let _ = text.parse::<Mac>();
        }
    }
}
