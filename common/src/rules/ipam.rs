//! The addresses of a NetworkConfiguration: subnets, gateways, ranges, name servers and search domains.

use std::net::IpAddr;

use crate::address::{AddressRange, Cidr};
use crate::api::network::{Ipam, NetworkConfigurationSpec, Subnet};
use crate::bounds::OBJECT_NAME_MAX;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::violation::{Findings, Kind, Location, Violation};

use super::form::is_object_name;
use super::rule::{Check, rules};

rules! {
    "networkconfigurations" Check::Network(subnets), on NETWORKS, Always {
        Refuse SubnetRequired = "The ipam of a NetworkConfiguration has no subnet, or a subnet has no cidr."
            because "Without a subnet there is no address that a Machine could get."
            fix "Give a subnet such as `10.0.0.0/24`, or leave `ipam` out."
            crd All,
        Refuse InvalidSubnet = "A subnet is not an IP network: it has another form, bits of a host, or addresses that no guest is given."
            because "Addresses, routes and the addresses that are left out follow from the network and the length of its prefix."
            fix "Take the corrected network from the message."
            crd Some,
        Refuse SubnetsOverlap = "Two subnets of a NetworkConfiguration have addresses in common."
            because "The prefix and the gateway of such an address would be those of either."
            fix "Make one of them smaller, or remove it."
            crd Nothing,
        Refuse InvalidGateway = "The gateway of a subnet is not an address of a host in the subnet."
            because "A guest reaches its router without a router only in its own subnet."
            fix "Give an address of the subnet, or leave `gateway` out for no default route."
            crd Some,
        Refuse InvalidRange = "A range of addresses cannot be read, or is not in its subnet."
            because "Guests with an address of another network reach nobody."
            fix "Give the first and the last address, both in the subnet, such as `10.0.0.10-10.0.0.99`."
            crd Some,
        Refuse RangesOverlap = "Two ranges of a subnet have addresses in common."
            because "The figures about addresses in use would count these twice."
            fix "Join the ranges, or make one of them smaller."
            crd Nothing,
    }
    "networkconfigurations" Check::Network(resolvers), on NETWORKS, Always {
        Refuse InvalidNameServer = "A name server of a network is not an IP address."
            because "Guests cannot look up the name of the server that looks up names."
            fix "Write its IP address."
            crd Some,
        Refuse InvalidSearchDomain = "A search domain of a network is not a DNS domain."
            because "Guests refuse it, or look up names that do not exist."
            fix "Write the domain in lower-case letters, such as `example.com`."
            crd All,
    }
}

const SUBNETS: FieldPath = FieldPath::field("ipam.subnets");

fn in_subnet(index: usize, field: &'static str) -> FieldPath {
    FieldPath::item("ipam.subnets", index, field)
}

/// Rules about the subnets of `ipam`.
fn subnets(
    spec: &NetworkConfigurationSpec,
    _: Option<&NetworkConfigurationSpec>,
    findings: &mut Findings,
) {
    let Some(Ipam { subnets, .. }) = &spec.ipam else {
        return;
    };
    let subnets = subnets.as_deref().unwrap_or_default();
    if subnets.is_empty() {
        let detail = "give at least one subnet, or leave ipam out";
        findings.deny(Violation::new(
            SUBNETS,
            Code::SubnetRequired,
            Kind::Required,
            detail,
        ));
    }
    let mut known: Vec<(usize, Cidr)> = Vec::new();
    for (index, subnet) in subnets.iter().enumerate() {
        let cidr = cidr(index, subnet, findings);
        if let Some(cidr) = cidr {
            overlap(index, cidr, &known, findings);
            known.push((index, cidr));
        }
        gateway(index, subnet, cidr, findings);
        ranges(index, subnet, cidr, findings);
    }
}

/// Rule [`Code::SubnetsOverlap`].
fn overlap(index: usize, cidr: Cidr, known: &[(usize, Cidr)], findings: &mut Findings) {
    let Some((other, overlapped)) = known.iter().find(|(_, it)| it.overlaps(cidr)) else {
        return;
    };
    let detail = format!(
        "overlaps with {overlapped} of spec.ipam.subnets[{other}]; make one of them smaller, or remove it"
    );
    let path = in_subnet(index, "cidr");
    let fault = Violation::new(path, Code::SubnetsOverlap, Kind::Invalid, detail);
    findings.deny(fault.text(&cidr.to_string()));
}

/// Rules [`Code::SubnetRequired`] and [`Code::InvalidSubnet`].
fn cidr(index: usize, subnet: &Subnet, findings: &mut Findings) -> Option<Cidr> {
    let path = in_subnet(index, "cidr");
    let Some(text) = subnet.cidr.as_deref() else {
        let detail = "give the network, such as 10.0.0.0/24";
        findings.deny(Violation::new(
            path,
            Code::SubnetRequired,
            Kind::Required,
            detail,
        ));
        return None;
    };
    match text.parse() {
        Ok(cidr) => Some(cidr),
        Err(error) => {
            let error: crate::address::CidrError = error;
            let fault = Violation::new(path, Code::InvalidSubnet, Kind::Invalid, error.to_string());
            findings.deny(fault.text(text));
            None
        }
    }
}

/// Rule [`Code::InvalidGateway`]. Without the network only the form of the gateway is known to be wrong.
fn gateway(index: usize, subnet: &Subnet, cidr: Option<Cidr>, findings: &mut Findings) {
    let Some(text) = subnet.gateway.as_deref() else {
        return;
    };
    let detail = match (text.parse::<IpAddr>(), cidr) {
        (Err(_), Some(cidr)) => {
            format!("is not an IP address: give one of {}", cidr.hosts())
        }
        (Err(_), None) => "is not an IP address: give one such as 10.0.0.1".to_owned(),
        (Ok(address), Some(cidr)) if !cidr.contains(address) => {
            format!("is not in {cidr}: give one of {}", cidr.hosts())
        }
        (Ok(address), Some(cidr)) if !cidr.hosts().contains(address) => {
            let hosts = cidr.hosts();
            format!("is the network or broadcast address of {cidr}: give one of {hosts}")
        }
        (Ok(_), _) => return,
    };
    let path = in_subnet(index, "gateway");
    findings.deny(Violation::new(path, Code::InvalidGateway, Kind::Invalid, detail).text(text));
}

/// Rules [`Code::InvalidRange`] and [`Code::RangesOverlap`].
fn ranges(index: usize, subnet: &Subnet, cidr: Option<Cidr>, findings: &mut Findings) {
    let mut known: Vec<AddressRange> = Vec::new();
    for (item, text) in subnet.ranges.iter().flatten().enumerate() {
        let location = || Location::from(in_subnet(index, "ranges")).key(&item.to_string());
        let mut deny = |code, detail: String| {
            findings.deny(Violation::new(location(), code, Kind::Invalid, detail).text(text));
        };
        let range: AddressRange = match text.parse() {
            Ok(range) => range,
            Err(error) => {
                let error: crate::address::RangeError = error;
                deny(Code::InvalidRange, error.to_string());
                continue;
            }
        };
        if let Some(cidr) = cidr.filter(|cidr| !cidr.all().contains_all(range)) {
            let fix = match range.within(cidr.hosts()) {
                Some(part) => format!("try '{part}'"),
                None => format!("give a part of {}", cidr.hosts()),
            };
            deny(Code::InvalidRange, format!("is not within {cidr}: {fix}"));
            continue;
        }
        if let Some(other) = known.iter().find(|it| it.overlaps(range)) {
            deny(
                Code::RangesOverlap,
                format!("overlaps with {other} of the same subnet; join the ranges"),
            );
        }
        known.push(range);
    }
}

/// Rules [`Code::InvalidNameServer`] and [`Code::InvalidSearchDomain`].
fn resolvers(
    spec: &NetworkConfigurationSpec,
    _: Option<&NetworkConfigurationSpec>,
    findings: &mut Findings,
) {
    let Some(ipam) = &spec.ipam else { return };
    for (index, text) in ipam.dns.iter().flatten().enumerate() {
        let address = text.parse::<IpAddr>();
        if address.is_ok_and(|it| !it.is_multicast() && !it.is_unspecified()) {
            continue;
        }
        let path = FieldPath::field("ipam.dns").element(index);
        let detail = "must be the IP address of a server, such as 10.0.0.53";
        findings
            .deny(Violation::new(path, Code::InvalidNameServer, Kind::Invalid, detail).text(text));
    }
    for (index, text) in ipam.search_domains.iter().flatten().enumerate() {
        if is_object_name(text.strip_suffix('.').unwrap_or(text)) {
            continue;
        }
        let path = FieldPath::field("ipam.searchDomains").element(index);
        let detail = format!(
            "must be a DNS domain of lower-case letters, digits, '-' and '.', at most {OBJECT_NAME_MAX} characters"
        );
        findings.deny(
            Violation::new(path, Code::InvalidSearchDomain, Kind::Invalid, detail).text(text),
        );
    }
}
