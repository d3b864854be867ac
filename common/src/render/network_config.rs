//! Network data of cloud-init, version 2, that follow from the addresses of a Machine's cards.
//!
//! Every card is listed, because cloud-init configures no card that is not: a card without addresses asks a DHCP server.
//! A card is found by its MAC address, so that its name in the guest does not depend on the order of the PCI bus.

use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::address::Family;
use crate::api::normalized::NormalizedNetwork;
use crate::bounds::INTERFACE_NAME_MAX;
use crate::mac::Mac;
use crate::names;

use super::identity::Identity;

/// Metric of the default route of a card that comes before every card with DHCP. Of a route by DHCP it is 100 with
/// netplan and NetworkManager, so the first card of the spec has the default route.
const METRIC_BEFORE_DHCP: usize = 50;
/// Metric of the default route of a card that comes after one with DHCP.
const METRIC_AFTER_DHCP: usize = 200;

/// What a guest is to know about one of its network cards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CardConfig {
    /// Its addresses; without any, the guest asks a DHCP server.
    pub addresses: Vec<CardAddress>,
    /// MTU of the network segment in bytes; `None`: the NetworkConfiguration has none.
    pub mtu: Option<i64>,
    /// Addresses of the name servers of the NetworkConfiguration.
    pub dns: Vec<IpAddr>,
    /// Domains in which names are searched.
    pub search_domains: Vec<String>,
}

/// An address of a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct CardAddress {
    /// IP address of the card, without the prefix.
    pub address: IpAddr,
    /// Length of the prefix of its subnet, in bits.
    pub prefix: u8,
    /// Address of the router to other networks; `None`: the subnet has none.
    pub gateway: Option<IpAddr>,
}

/// The network data of a Machine with these cards; `None`: no card has an address, and cloud-init does what it does
/// without network data. `config` returns what is known of a card of this name.
pub fn network_config<'c>(
    machine: &Identity<'_>,
    cards: &[NormalizedNetwork],
    config: impl Fn(&str) -> Option<&'c CardConfig>,
) -> Option<String> {
    let nothing = CardConfig::default();
    let cards: Vec<_> = cards
        .iter()
        .map(|card| (card, config(&card.name).unwrap_or(&nothing)))
        .collect();
    let has_address = |config: &CardConfig| !config.addresses.is_empty();
    if !cards.iter().any(|(_, config)| has_address(config)) {
        return None;
    }
    let first_dhcp = cards.iter().position(|(_, config)| !has_address(config));
    let metric = |index: usize| {
        let base = match first_dhcp {
            Some(dhcp) if dhcp < index => METRIC_AFTER_DHCP,
            _ => METRIC_BEFORE_DHCP,
        };
        (cards.len() > 1).then_some(base + index)
    };
    let ethernets: Map<String, Value> = cards
        .iter()
        .enumerate()
        .map(|(index, (card, config))| {
            let mac = card.mac_address.unwrap_or_else(|| machine.mac(&card.name));
            let ethernet = ethernet(&card.name, mac, config, metric(index));
            (card.name.clone(), ethernet)
        })
        .collect();
    // JSON is valid YAML, and needs no rules for quotes.
    let config = json!({"version": 2, "ethernets": ethernets});
    Some(format!("{config}\n"))
}

fn ethernet(name: &str, mac: Mac, config: &CardConfig, metric: Option<usize>) -> Value {
    let mut ethernet = json!({
        "match": {"macaddress": mac.to_string()},
        "set-name": interface(name),
    });
    if let Some(mtu) = config.mtu {
        ethernet["mtu"] = mtu.into();
    }
    if config.addresses.is_empty() {
        ethernet["dhcp4"] = true.into();
        // A network without a DHCP server does not delay the boot.
        ethernet["optional"] = true.into();
        return ethernet;
    }
    let addresses = config.addresses.iter();
    let addresses = addresses.map(|it| format!("{}/{}", it.address, it.prefix));
    ethernet["addresses"] = addresses.collect();
    let routes: Vec<_> = Family::ALL
        .into_iter()
        .filter_map(|family| {
            let mut addresses = config.addresses.iter();
            let of_family = |it: &&CardAddress| Family::of(it.address) == family;
            let gateway = addresses
                .by_ref()
                .filter(of_family)
                .find_map(|it| it.gateway)?;
            let everywhere = match family {
                Family::V4 => "0.0.0.0/0",
                Family::V6 => "::/0",
            };
            let mut route = json!({"to": everywhere, "via": gateway});
            if let Some(metric) = metric {
                route["metric"] = metric.into();
            }
            Some(route)
        })
        .collect();
    if !routes.is_empty() {
        ethernet["routes"] = routes.into();
    }
    let mut resolvers = Map::new();
    if !config.dns.is_empty() {
        resolvers.insert("addresses".into(), json!(config.dns));
    }
    if !config.search_domains.is_empty() {
        resolvers.insert("search".into(), json!(config.search_domains));
    }
    if !resolvers.is_empty() {
        ethernet["nameservers"] = resolvers.into();
    }
    ethernet
}

/// Name of the interface of a card in the guest: that of the card, cut with a digest if Linux has no such name.
fn interface(name: &str) -> String {
    const NAME_PART: usize = 8;
    const DIGEST_BYTES: usize = 3;
    if name.len() <= INTERFACE_NAME_MAX {
        return name.to_owned();
    }
    let first: String = name.chars().take(NAME_PART).collect();
    format!("{first}-{}", names::digest(name, DIGEST_BYTES))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::choice::NicModel;

    const WEB: Identity<'_> = Identity {
        cluster: "cluster",
        namespace: "prod",
        name: "web",
        uid: "uid",
    };

    fn card(name: &str) -> NormalizedNetwork {
        NormalizedNetwork {
            boot_order: None,
            ip_addresses: vec![],
            mac_address: Some("52:54:00:00:00:01".parse().unwrap()),
            model: NicModel::Virtio,
            name: name.into(),
            network_name: None,
        }
    }

    fn address(address: &str, prefix: u8, gateway: Option<&str>) -> CardAddress {
        CardAddress {
            address: address.parse().unwrap(),
            prefix,
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        }
    }

    fn rendered(cards: &[(&str, CardConfig)]) -> Option<Value> {
        let configs: BTreeMap<_, _> = cards.iter().map(|(name, config)| (*name, config)).collect();
        let cards: Vec<_> = cards.iter().map(|(name, _)| card(name)).collect();
        let text = network_config(&WEB, &cards, |name| configs.get(name).copied())?;
        Some(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn without_an_address_there_are_no_network_data() {
        assert_eq!(rendered(&[]), None);
        let mtu = CardConfig {
            mtu: Some(9000),
            ..CardConfig::default()
        };
        assert_eq!(rendered(&[("eth0", mtu)]), None);
    }

    #[test]
    fn a_card_has_its_addresses_routes_and_resolvers() {
        let config = CardConfig {
            addresses: vec![
                address("10.0.0.5", 24, Some("10.0.0.1")),
                address("10.0.0.6", 24, Some("10.0.0.1")),
                address("fd00::5", 64, Some("fd00::1")),
            ],
            mtu: Some(1400),
            dns: vec!["10.0.0.53".parse().unwrap()],
            search_domains: vec!["example.com".into()],
        };
        let expected = json!({"version": 2, "ethernets": {"lan": {
            "match": {"macaddress": "52:54:00:00:00:01"},
            "set-name": "lan",
            "mtu": 1400,
            "addresses": ["10.0.0.5/24", "10.0.0.6/24", "fd00::5/64"],
            "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}, {"to": "::/0", "via": "fd00::1"}],
            "nameservers": {"addresses": ["10.0.0.53"], "search": ["example.com"]},
        }}});
        assert_eq!(rendered(&[("lan", config)]), Some(expected));
    }

    #[test]
    fn every_card_is_listed_and_the_first_one_has_the_default_route() {
        let with = |text: &str, gateway: &str| CardConfig {
            addresses: vec![address(text, 24, Some(gateway))],
            ..CardConfig::default()
        };
        let all = rendered(&[
            ("lan", with("10.0.0.5", "10.0.0.1")),
            ("pod", CardConfig::default()),
            ("a-name-of-more-than-15", with("10.1.0.5", "10.1.0.1")),
        ])
        .unwrap();
        let ethernets = &all["ethernets"];
        assert_eq!(ethernets["lan"]["routes"][0]["metric"], 50);
        assert_eq!(ethernets["pod"]["dhcp4"], true);
        assert_eq!(ethernets["pod"]["match"]["macaddress"], "52:54:00:00:00:01");
        let long = &ethernets["a-name-of-more-than-15"];
        assert_eq!(long["routes"][0]["metric"], 202);
        let interface = long["set-name"].as_str().unwrap();
        assert!(interface.starts_with("a-name-o-"), "{interface}");
        assert_eq!(interface.len(), INTERFACE_NAME_MAX);
    }

    #[test]
    fn a_card_without_an_address_in_the_spec_is_found_by_the_derived_mac_address() {
        let mut nic = card("eth0");
        nic.mac_address = None;
        let config = CardConfig {
            addresses: vec![address("10.0.0.5", 24, None)],
            ..CardConfig::default()
        };
        let text = network_config(&WEB, &[nic], |_| Some(&config)).unwrap();
        let text: Value = serde_json::from_str(&text).unwrap();
        let mac = &text["ethernets"]["eth0"]["match"]["macaddress"];
        assert_eq!(mac.as_str().unwrap(), WEB.mac("eth0").to_string());
        assert!(text["ethernets"]["eth0"].get("routes").is_none());
    }
}
