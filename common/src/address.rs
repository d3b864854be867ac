//! IP networks and ranges of IP addresses: values that are valid once they are parsed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::bounds::SUBNET_PREFIX_MIN;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order in which a guest gets addresses of them.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Bits of an address.
    const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The address with this number; bits above those of the family are ignored.
    fn address(self, number: u128) -> IpAddr {
        match self {
            Self::V4 => {
                let [.., a, b, c, d] = number.to_be_bytes();
                Ipv4Addr::new(a, b, c, d).into()
            }
            Self::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An address as a number.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// An IP network without bits of a host, such as `10.0.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

/// A text that is not an IP network for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// It is not an address, a slash and the length of a prefix.
    #[error(
        "is not a network: write its address and the length of its prefix, such as 10.0.0.0/24"
    )]
    Form,
    /// The prefix is shorter than any network of guests has, or longer than an address.
    #[error("has a prefix of {length} bits: it must be from {SUBNET_PREFIX_MIN} to {most}")]
    Prefix {
        /// The length.
        length: u32,
        /// The longest prefix of the family.
        most: u8,
    },
    /// The address has bits behind the prefix.
    #[error("has bits of a host: try '{0}'")]
    HostBits(Cidr),
    /// Guests cannot have addresses of it: loopback, multicast, link-local or unspecified.
    #[error(
        "is a network of loopback, link-local, multicast or unspecified addresses, which no card of a guest is given"
    )]
    Special,
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) = text.split_once('/').ok_or(CidrError::Form)?;
        let address: IpAddr = address.parse().map_err(|_| CidrError::Form)?;
        let is_number =
            (1..=3).contains(&prefix.len()) && prefix.bytes().all(|b| b.is_ascii_digit());
        let length: u32 = prefix
            .parse()
            .ok()
            .filter(|_| is_number)
            .ok_or(CidrError::Form)?;
        let most = Family::of(address).bits();
        let prefix = u8::try_from(length)
            .ok()
            .filter(|it| (SUBNET_PREFIX_MIN..=most).contains(it));
        let prefix = prefix.ok_or(CidrError::Prefix { length, most })?;
        let cidr = Self::containing(address, prefix);
        if is_special(cidr.network) {
            return Err(CidrError::Special);
        }
        if cidr.network == address {
            Ok(cidr)
        } else {
            Err(CidrError::HostBits(cidr))
        }
    }
}

/// Whether no card of a guest is given this address, whatever its network.
pub fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let is_of_this_network = v4.octets()[0] == 0;
            v4.is_loopback()
                || v4.is_multicast()
                || v4.is_link_local()
                || v4.is_broadcast()
                || is_of_this_network
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                || v6.is_unspecified()
                || v6.to_ipv4_mapped().is_some()
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl Cidr {
    /// The network of this prefix that contains an address. A prefix that is longer than the address is cut.
    pub fn containing(address: IpAddr, prefix: u8) -> Self {
        let family = Family::of(address);
        let prefix = prefix.min(family.bits());
        let network = number(address) & !host_mask(family, prefix);
        Self {
            network: family.address(network),
            prefix,
        }
    }

    /// Length of its prefix in bits.
    pub const fn prefix(self) -> u8 {
        self.prefix
    }

    /// IPv4 or IPv6.
    pub const fn family(self) -> Family {
        Family::of(self.network)
    }

    /// Its first and last address.
    pub fn all(self) -> AddressRange {
        let family = self.family();
        let first = number(self.network);
        AddressRange {
            first: self.network,
            last: family.address(first | host_mask(family, self.prefix)),
        }
    }

    /// Whether an address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        self.all().contains(address)
    }

    /// Whether an address is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    /// The addresses that hosts can have: without the address of the network and, of IPv4, the broadcast address. A
    /// network of one or two addresses has neither (RFC 3021, RFC 6164).
    pub fn hosts(self) -> AddressRange {
        let all = self.all();
        let family = self.family();
        if self.prefix + 1 >= family.bits() {
            return all;
        }
        let last = match family {
            Family::V4 => family.address(number(all.last) - 1),
            Family::V6 => all.last,
        };
        AddressRange {
            first: family.address(number(all.first) + 1),
            last,
        }
    }
}

/// The bits behind a prefix.
fn host_mask(family: Family, prefix: u8) -> u128 {
    let all = match family {
        Family::V4 => u128::from(u32::MAX),
        Family::V6 => u128::MAX,
    };
    all.checked_shr(prefix.into()).unwrap_or(0) & all
}

/// Addresses of one family, from the first to the last; written `10.0.0.10-10.0.0.99`, or as a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

/// A text that is not a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// It is not an address, or two with a dash between.
    #[error(
        "is not a range: write its first and its last address, such as 10.0.0.10-10.0.0.99, or a single address"
    )]
    Form,
    /// The two addresses are of different families.
    #[error(
        "has an IPv4 address and an IPv6 address: give two addresses of the family that the subnet has"
    )]
    Families,
    /// It ends before it begins.
    #[error("ends before it begins: try '{0}'")]
    Order(AddressRange),
}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let parse = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| RangeError::Form);
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (parse(first)?, parse(last)?),
            None => (parse(text)?, parse(text)?),
        };
        if Family::of(first) != Family::of(last) {
            return Err(RangeError::Families);
        }
        if first > last {
            let (first, last) = (last, first);
            return Err(RangeError::Order(Self { first, last }));
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return self.first.fmt(f);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl AddressRange {
    /// IPv4 or IPv6.
    pub const fn family(self) -> Family {
        Family::of(self.first)
    }

    /// The first address.
    pub const fn first(self) -> IpAddr {
        self.first
    }

    /// The last address.
    pub const fn last(self) -> IpAddr {
        self.last
    }

    /// Whether an address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        Family::of(address) == self.family() && (self.first..=self.last).contains(&address)
    }

    /// Whether all addresses of the other range are in it.
    pub fn contains_all(self, other: Self) -> bool {
        self.contains(other.first) && self.contains(other.last)
    }

    /// Whether an address is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// The addresses that are in both.
    pub fn within(self, other: Self) -> Option<Self> {
        self.overlaps(other).then(|| Self {
            first: self.first.max(other.first),
            last: self.last.min(other.last),
        })
    }

    /// Both as one range, if they overlap or one follows the other.
    pub fn joined(self, other: Self) -> Option<Self> {
        let follows =
            |one: Self, other: Self| number(other.first) <= number(one.last).saturating_add(1);
        let is_one_family = self.family() == other.family();
        (is_one_family && follows(self, other) && follows(other, self)).then(|| Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        })
    }

    /// Number of addresses. The 2^128 of all IPv6 addresses would be one less: no subnet has them.
    pub fn len(self) -> u128 {
        (number(self.last) - number(self.first)).saturating_add(1)
    }

    /// A range has at least one address.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// The address at this position from 0; `None` behind the last.
    pub fn nth(self, position: u128) -> Option<IpAddr> {
        let number = number(self.first).checked_add(position)?;
        let address = self.family().address(number);
        (position < self.len()).then_some(address)
    }
}

#[cfg(test)]
mod tests;
