//! Which addresses a Machine needs. Pure.

use std::net::IpAddr;
use std::sync::Arc;

use common::address::Family;
use common::api::normalized::NormalizedNetwork;
use common::catalog::{Ipam, Segment};
use common::render::{CardAddress, CardConfig};

use crate::machine::Machine;
use crate::objects::{Meta as _, Network};

/// What a network card needs.
#[derive(Clone, Debug)]
pub(super) struct Need {
    /// Name of the card.
    pub(super) card: String,
    /// Name of its NetworkConfiguration.
    pub(super) network: String,
    /// Its segment, as MachineAddresses name it.
    pub(super) segment: String,
    /// The addresses of its NetworkConfiguration.
    pub(super) ipam: Option<Arc<Ipam>>,
    /// Addresses in the spec.
    pub(super) given: Vec<IpAddr>,
    /// MTU of the segment.
    mtu: Option<i64>,
}

impl Need {
    /// Families of which an address is to be allocated.
    pub(super) fn families(&self) -> Vec<Family> {
        match &self.ipam {
            Some(ipam) if self.given.is_empty() => ipam.families().collect(),
            Some(_) | None => vec![],
        }
    }

    /// An address with the prefix and the gateway of its subnet.
    pub(super) fn in_subnet(&self, address: IpAddr) -> Option<CardAddress> {
        let subnet = self.ipam.as_ref()?.subnet(address)?;
        Some(CardAddress {
            address,
            prefix: subnet.cidr.prefix(),
            gateway: subnet.gateway,
        })
    }

    /// Why a guest cannot have an address of its subnet. Admission refuses it as well, unless the NetworkConfiguration is newer.
    pub(super) fn reserved(&self, address: IpAddr) -> Option<String> {
        let subnet = self.ipam.as_ref()?.subnet(address)?;
        let (what, cidr) = (subnet.reserved(address)?, subnet.cidr);
        let others = cidr.hosts();
        Some(format!(
            "is the {what} of {cidr}: take another of {others} in spec.networks"
        ))
    }

    /// What the guest is to know of the card with these addresses.
    pub(super) fn config(&self, addresses: Vec<CardAddress>) -> CardConfig {
        let ipam = self.ipam.as_deref();
        CardConfig {
            addresses,
            mtu: self.mtu,
            dns: ipam.map(|ipam| ipam.dns.clone()).unwrap_or_default(),
            search_domains: ipam
                .map(|ipam| ipam.search_domains.clone())
                .unwrap_or_default(),
        }
    }
}

/// What the cards of a Machine need, in the order of the spec. A card whose NetworkConfiguration does not exist, or says
/// nothing of its segment, needs nothing: that is reported elsewhere.
pub(super) fn needs(
    machine: &Machine,
    network: impl Fn(&str) -> Option<Arc<Network>>,
) -> Vec<Need> {
    let Some(block) = machine.desired() else {
        return vec![];
    };
    let need = |card: &NormalizedNetwork| {
        let name = card.network_name.as_deref()?;
        let found = network(name)?;
        let row = |name: &str| Some(network(name)?.segment_row());
        let segment = Segment::of(machine.namespace(), Some(name), block.backend, row)?;
        Some(Need {
            card: card.name.clone(),
            network: name.to_owned(),
            segment: segment.text()?,
            ipam: found.spec.ipam.as_ref().map(|it| Arc::new(Ipam::from(it))),
            given: card.ip_addresses.clone(),
            mtu: found.spec.mtu,
        })
    };
    block.networks.iter().filter_map(need).collect()
}

/// Whether any card of a Machine may need an address, or has one. Cheap: decides whether a pass looks further.
pub(super) fn may_need(machine: &Machine, network: impl Fn(&str) -> Option<Arc<Network>>) -> bool {
    let cards = machine.desired().into_iter().flat_map(|it| &it.networks);
    let mut cards = cards.filter_map(|card| Some((card, card.network_name.as_deref()?)));
    cards.any(|(card, name)| {
        !card.ip_addresses.is_empty() || network(name).is_some_and(|it| it.spec.ipam.is_some())
    })
}
