//! Addresses of PCI devices, as `lspci -D` prints them.

use std::fmt;
use std::str::FromStr;

/// The address of a function of a PCI device. Its text is `dddd:bb:ss.f` in lower-case hexadecimal digits, such as
/// `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u16,
    bus: u8,
    slot: u8,
    function: u8,
}

/// The text is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the address of a PCI device as 'lspci -D' prints it, such as '0000:3b:00.0'")]
pub struct PciAddressError;

/// Slots of a bus are numbered with five bits.
const SLOT_MAX: u8 = 0x1f;
/// Functions of a device are numbered with three bits.
const FUNCTION_MAX: u8 = 7;

impl PciAddress {
    /// The address of these numbers; `None` if one is too large.
    pub fn new(domain: u16, bus: u8, slot: u8, function: u8) -> Option<Self> {
        (slot <= SLOT_MAX && function <= FUNCTION_MAX).then_some(Self {
            domain,
            bus,
            slot,
            function,
        })
    }

    /// Domain, bus, slot and function.
    pub fn parts(self) -> [u16; 4] {
        let [bus, slot, function] = [self.bus, self.slot, self.function].map(u16::from);
        [self.domain, bus, slot, function]
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [domain, bus, slot, function] = self.parts();
        write!(f, "{domain:04x}:{bus:02x}:{slot:02x}.{function}")
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = || {
            let (rest, function) = text.split_once('.')?;
            let mut parts = rest.split(':');
            let (domain, bus, slot) = (parts.next()?, parts.next()?, parts.next()?);
            let number = |digits: &str| u16::from_str_radix(digits, 16).ok();
            let small = |digits: &str| u8::try_from(number(digits)?).ok();
            Self::new(number(domain)?, small(bus)?, small(slot)?, small(function)?)
        };
        // Only the text that is printed, so that equal devices are equal texts.
        let address: Option<Self> = parsed();
        let address = address.filter(|address| address.to_string() == text);
        address.ok_or(PciAddressError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_text_that_lspci_prints_and_no_other() {
        for text in ["0000:3b:00.0", "ffff:ff:1f.7", "0001:00:0a.3"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "3b:00.0",
            "0000:3B:00.0",
            "0:3b:0.0",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "0000:3b:00",
            "0000:3b:00.0 ",
            "+000:3b:00.0",
            "10000:3b:00.0",
            "0000:3b:00:00.0",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(PciAddressError), "{text}");
        }
    }
}
