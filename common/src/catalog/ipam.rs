//! The addresses of a network segment: what a NetworkConfiguration says about them, parsed, and the choice of a free
//! one.

mod ranges;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use sha2::{Digest as _, Sha256};

use self::ranges::Ranges;
use crate::address::{AddressRange, Cidr, Family};
use crate::api::network;

/// The addresses of a network segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipam {
    /// Its subnets, in the order of the spec.
    pub subnets: Vec<Subnet>,
    /// Name servers of its guests.
    pub dns: Vec<IpAddr>,
    /// Domains that its guests search names in.
    pub search_domains: Vec<String>,
}

/// A subnet of a network segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Network address and prefix length, such as `10.9.0.0/24`.
    pub cidr: Cidr,
    /// The router to other networks.
    pub gateway: Option<IpAddr>,
    /// What addresses are allocated from; empty: all that hosts can have.
    pub ranges: Vec<AddressRange>,
}

/// Why an address of a subnet cannot be that of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// It is the address of the network.
    Network,
    /// It is the broadcast address.
    Broadcast,
    /// It is the router's.
    Gateway,
}

/// What the address is, as in "the address is the …".
impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "address of the network",
            Self::Broadcast => "broadcast address",
            Self::Gateway => "gateway",
        })
    }
}

impl From<&network::Ipam> for Ipam {
    /// What does not parse is left out: admission reports it.
    fn from(spec: &network::Ipam) -> Self {
        let subnet = |spec: &network::Subnet| {
            Some(Subnet {
                cidr: spec.cidr.as_ref()?.parse().ok()?,
                gateway: spec.gateway.as_ref().and_then(|text| text.parse().ok()),
                ranges: parsed(spec.ranges.as_ref()),
            })
        };
        Self {
            subnets: spec.subnets.iter().flatten().filter_map(subnet).collect(),
            dns: parsed(spec.dns.as_ref()),
            search_domains: spec.search_domains.clone().unwrap_or_default(),
        }
    }
}

fn parsed<T: std::str::FromStr>(texts: Option<&Vec<String>>) -> Vec<T> {
    let texts = texts.into_iter().flatten();
    texts.filter_map(|text| text.parse().ok()).collect()
}

impl Ipam {
    /// The subnet that contains an address.
    pub fn subnet(&self, address: IpAddr) -> Option<&Subnet> {
        self.subnets.iter().find(|it| it.cidr.contains(address))
    }

    /// The families of which a network card gets an address, if none is given.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        Family::ALL.into_iter().filter(|family| {
            let mut subnets = self.subnets.iter();
            subnets.any(|subnet| subnet.cidr.family() == *family)
        })
    }

    /// The ranges that addresses of this family are allocated from.
    fn ranges(&self, family: Family) -> Vec<AddressRange> {
        let subnets = self.subnets.iter();
        let subnets = subnets.filter(|subnet| subnet.cidr.family() == family);
        subnets.flat_map(Subnet::allocatable).collect()
    }

    /// Number of addresses that can be allocated.
    pub fn size(&self) -> u128 {
        let families = Family::ALL.into_iter();
        families.fold(0, |sum, family| sum.saturating_add(self.size_of(family)))
    }

    /// Number of addresses of this family that can be allocated.
    pub fn size_of(&self, family: Family) -> u128 {
        let ranges = self.ranges(family).into_iter();
        ranges.fold(0, |sum, range| sum.saturating_add(range.len()))
    }

    /// How many of these addresses can be allocated, and not only given.
    pub fn in_ranges(&self, family: Family, addresses: &BTreeSet<IpAddr>) -> usize {
        Ranges::new(self.ranges(family)).count(addresses)
    }

    /// How many of these addresses are in a subnet.
    pub fn in_subnets(&self, addresses: &BTreeSet<IpAddr>) -> usize {
        let subnets = self.subnets.iter().map(|subnet| subnet.cidr.all());
        Ranges::new(subnets.collect()).count(addresses)
    }

    /// Whether no address of this family is free. `taken`: of this segment.
    pub fn is_full(&self, family: Family, taken: &BTreeSet<IpAddr>) -> bool {
        let ranges = Ranges::new(self.ranges(family));
        ranges.are_within(taken, &self.reserved())
    }

    /// A free address of this family. `seed` decides where the search starts, so that Machines that are created at the
    /// same time try different ones and a repeated search finds the same. `taken`: of this segment.
    pub fn free(
        &self,
        family: Family,
        seed: &str,
        taken: &BTreeSet<IpAddr>,
    ) -> Result<IpAddr, Exhausted> {
        let ranges = Ranges::new(self.ranges(family));
        let reserved = self.reserved();
        let total = ranges.total();
        let exhausted = Exhausted { family, total };
        if ranges.are_within(taken, &reserved) {
            return Err(exhausted);
        }
        let start = position(seed) % total;
        // Of one address more than are taken, one is free.
        let tries = u128::try_from(ranges.count(taken))
            .unwrap_or(u128::MAX)
            .saturating_add(1)
            .min(total);
        let candidates = (0..tries).filter_map(|offset| {
            // A sum beyond 2^128 needs ranges that no subnet has.
            let at = start.checked_add(offset).map_or(0, |at| at % total);
            ranges.nth(at)
        });
        let is_free = |address: &IpAddr| !taken.contains(address) && !reserved.contains(address);
        // Gateways and name servers are few, so they are not counted above; the second search finds what remains beside
        // them.
        let further = taken.len() + self.subnets.len() + self.dns.len() + 1;
        let mut free = candidates.chain(ranges.addresses().take(further));
        free.find(is_free).ok_or(exhausted)
    }

    /// The addresses of gateways and of name servers.
    fn reserved(&self) -> BTreeSet<IpAddr> {
        let gateways = self.subnets.iter().filter_map(|subnet| subnet.gateway);
        gateways.chain(self.dns.iter().copied()).collect()
    }
}

/// No address of a family is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The family.
    pub family: Family,
    /// Number of addresses in its ranges.
    pub total: u128,
}

impl Subnet {
    /// What addresses are allocated from: its ranges, as far as hosts can have their addresses.
    fn allocatable(&self) -> Vec<AddressRange> {
        let hosts = self.cidr.hosts();
        if self.ranges.is_empty() {
            return vec![hosts];
        }
        let ranges = self.ranges.iter();
        ranges.filter_map(|range| range.within(hosts)).collect()
    }

    /// Why a guest cannot have an address of this subnet; `None`: it can.
    pub fn reserved(&self, address: IpAddr) -> Option<Reserved> {
        if self.gateway == Some(address) {
            Some(Reserved::Gateway)
        } else if self.cidr.hosts().contains(address) {
            None
        } else if self.cidr.all().first() == address {
            Some(Reserved::Network)
        } else {
            Some(Reserved::Broadcast)
        }
    }
}

/// A number that is always the same for a seed.
fn position(seed: &str) -> u128 {
    let mut first = [0; 16];
    for (target, byte) in first.iter_mut().zip(Sha256::digest(seed)) {
        *target = byte;
    }
    u128::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::bounds::{RANGES_MAX, SUBNETS_MAX};

    fn ipam(subnets: &[(&str, Option<&str>, &[&str])]) -> Ipam {
        let text = |text: &str| text.to_owned();
        let subnet = |(cidr, gateway, ranges): &(&str, Option<&str>, &[&str])| network::Subnet {
            cidr: Some(text(cidr)),
            gateway: gateway.map(text),
            ranges: Some(ranges.iter().map(|range| text(range)).collect()),
        };
        Ipam::from(&network::Ipam {
            subnets: Some(subnets.iter().map(subnet).collect()),
            ..network::Ipam::default()
        })
    }

    fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn every_address_of_a_subnet_but_three_is_allocated_and_none_twice() {
        let ipam = ipam(&[("10.0.0.0/28", Some("10.0.0.1"), &[])]);
        let mut taken = BTreeSet::new();
        for machine in 0..13 {
            let address = ipam
                .free(Family::V4, &format!("uid-{machine}"), &taken)
                .unwrap();
            assert!(taken.insert(address), "{address} is allocated twice");
            assert_eq!(ipam.subnets[0].reserved(address), None);
        }
        assert_eq!(
            ipam.free(Family::V4, "uid", &taken),
            Err(Exhausted {
                family: Family::V4,
                total: 14
            })
        );
        taken.remove(&"10.0.0.9".parse().unwrap());
        assert_eq!(
            ipam.free(Family::V4, "uid", &taken).unwrap().to_string(),
            "10.0.0.9"
        );
    }

    #[test]
    fn ranges_limit_what_is_allocated_and_not_what_may_be_given() {
        let ipam = ipam(&[
            (
                "10.0.0.0/24",
                Some("10.0.0.10"),
                &["10.0.0.0", "10.0.0.10-10.0.0.11"],
            ),
            ("10.1.0.0/24", None, &["10.1.0.255", "10.1.0.7"]),
        ]);
        let mut taken = BTreeSet::new();
        while let Ok(address) = ipam.free(Family::V4, "uid", &taken) {
            taken.insert(address);
        }
        assert_eq!(taken, addresses(&["10.0.0.11", "10.1.0.7"]));
        let subnet = |text: &str| ipam.subnet(text.parse().unwrap()).unwrap();
        for (address, reserved) in [
            ("10.0.0.200", None),
            ("10.0.0.10", Some(Reserved::Gateway)),
            ("10.0.0.0", Some(Reserved::Network)),
            ("10.1.0.255", Some(Reserved::Broadcast)),
        ] {
            assert_eq!(
                subnet(address).reserved(address.parse().unwrap()),
                reserved,
                "{address}"
            );
        }
        assert_eq!(ipam.subnet("10.2.0.1".parse().unwrap()), None);
    }

    #[test]
    fn no_address_of_a_name_server_is_allocated() {
        let ipam = Ipam {
            dns: addresses(&["10.0.0.2"]).into_iter().collect(),
            ..ipam(&[("10.0.0.0/29", Some("10.0.0.1"), &["10.0.0.1-10.0.0.3"])])
        };
        let mut taken = BTreeSet::new();
        while let Ok(address) = ipam.free(Family::V4, "uid", &taken) {
            taken.insert(address);
        }
        assert_eq!(taken, addresses(&["10.0.0.3"]));
    }

    #[test]
    fn a_search_starts_at_the_same_address_each_time_and_at_others_for_other_machines() {
        let ipam = ipam(&[("10.0.0.0/16", None, &[]), ("fd00::/64", None, &[])]);
        assert_eq!(ipam.families().collect::<Vec<_>>(), Family::ALL);
        for family in Family::ALL {
            let first = |seed: &str| ipam.free(family, seed, &BTreeSet::new()).unwrap();
            assert_eq!(first("a"), first("a"));
            let starts: BTreeSet<_> = (0..100).map(|it| first(&format!("uid-{it}"))).collect();
            assert!(starts.len() > 95, "{} different addresses", starts.len());
        }
    }

    #[test]
    fn without_a_subnet_of_the_family_nothing_is_free() {
        let ipam = ipam(&[("fd00::/64", None, &[])]);
        let exhausted = Exhausted {
            family: Family::V4,
            total: 0,
        };
        assert_eq!(ipam.free(Family::V4, "a", &BTreeSet::new()), Err(exhausted));
    }

    #[test]
    fn of_as_many_ranges_as_are_allowed_the_last_free_address_is_found() {
        // Every second address of each subnet, so that no two ranges can be joined.
        let address = |subnet: usize, range: usize| format!("10.{subnet}.0.{}", 2 * range + 1);
        let subnets = (0..SUBNETS_MAX).map(|subnet| network::Subnet {
            cidr: Some(format!("10.{subnet}.0.0/24")),
            gateway: None,
            ranges: Some(
                (0..RANGES_MAX)
                    .map(|range| address(subnet, range))
                    .collect(),
            ),
        });
        let ipam = Ipam::from(&network::Ipam {
            subnets: Some(subnets.collect()),
            ..network::Ipam::default()
        });
        let all = (0..SUBNETS_MAX).flat_map(|it| (0..RANGES_MAX).map(move |range| (it, range)));
        let all = all.map(|(subnet, range)| address(subnet, range).parse().unwrap());
        let mut taken: BTreeSet<IpAddr> = all.collect();
        assert_eq!(ipam.in_ranges(Family::V4, &taken), 512);
        assert!(ipam.is_full(Family::V4, &taken));
        assert!(ipam.free(Family::V4, "uid", &taken).is_err());
        let last = address(7, 9).parse().unwrap();
        taken.remove(&last);
        assert!(!ipam.is_full(Family::V4, &taken));
        assert_eq!(ipam.free(Family::V4, "uid", &taken), Ok(last));
    }

    /// [`Ipam::free`] as a walk of all ranges for each address.
    fn plain_free(
        ipam: &Ipam,
        family: Family,
        seed: &str,
        taken: &BTreeSet<IpAddr>,
    ) -> Option<IpAddr> {
        let ranges = ipam.ranges(family);
        let all = ranges
            .iter()
            .flat_map(|range| (0..range.len()).filter_map(|at| range.nth(at)));
        let all: Vec<_> = all.collect();
        let is_taken_here = |it: &&IpAddr| ranges.iter().any(|range| range.contains(**it));
        let tries = all
            .len()
            .min(taken.iter().filter(is_taken_here).count() + 1);
        let start = position(seed).checked_rem(u128::try_from(all.len()).unwrap())?;
        let start = usize::try_from(start).unwrap();
        let from_start = all[start..].iter().chain(&all[..start]).take(tries);
        let from_first = all
            .iter()
            .take(taken.len() + ipam.subnets.len() + ipam.dns.len() + 1);
        let is_reserved = |it: IpAddr| {
            let mut subnets = ipam.subnets.iter();
            subnets.any(|subnet| subnet.gateway == Some(it)) || ipam.dns.contains(&it)
        };
        let mut free = from_start.chain(from_first);
        free.find(|it| !taken.contains(it) && !is_reserved(**it))
            .copied()
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, last / 16, last % 16])
    }

    /// A subnet of 16 addresses with a gateway and ranges, which may overlap.
    fn subnet(at: u8) -> impl Strategy<Value = Subnet> {
        let ranges = vec((0..16_u8, 0..16_u8), 0..4);
        (ranges, proptest::option::of(0..16_u8)).prop_map(move |(ranges, gateway)| Subnet {
            cidr: format!("10.0.{at}.0/28").parse().unwrap(),
            gateway: gateway.map(|last| address(at * 16 + last)),
            ranges: ranges
                .into_iter()
                .map(|(a, b)| {
                    let [first, last] = [a.min(b), a.max(b)].map(|it| address(at * 16 + it));
                    format!("{first}-{last}").parse().unwrap()
                })
                .collect(),
        })
    }

    proptest! {
        #[test]
        fn a_search_finds_what_a_walk_of_all_ranges_finds(
            subnets in (subnet(0), subnet(1), subnet(2)),
            dns in vec(0..48_u8, 0..3),
            free in btree_set(0..48_u8, 0..12),
            seed in "[a-z]{0,3}",
        ) {
            let ipam = Ipam {
                subnets: [subnets.2, subnets.0, subnets.1].into(),
                dns: dns.into_iter().map(address).collect(),
                ..Ipam::default()
            };
            let taken = (0..48).filter(|last| !free.contains(last)).map(address);
            let mut taken: BTreeSet<_> = taken.collect();
            // Until none is free.
            loop {
                let plain = plain_free(&ipam, Family::V4, &seed, &taken);
                prop_assert_eq!(ipam.free(Family::V4, &seed, &taken).ok(), plain);
                match plain {
                    Some(address) => taken.insert(address),
                    None => break,
                };
            }
        }
    }
}
