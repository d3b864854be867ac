//! Networks that the policies of a namespace allow.

use crate::api::choice::Backend;
use crate::api::network::NetworkConfigurationSpec;
use crate::catalog::{Bridge, Policy};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::rules::networks::network_name;
use crate::rules::rule::{Check, PolicySubject, rules};
use crate::violation::{Findings, Kind, Violation};

use super::message::allows;

rules! {
    "policies" Check::Policy(cards), on MACHINES, Always {
        Refuse NetworkNotAllowed = "A MachinePolicy does not allow the network of a network card, or the bridge and VLAN of a NetworkConfiguration."
            because "The administrator decides which networks a namespace reaches."
            fix "Take a network that the message lists; a card that names no network is on the pod network, or on the default network of a libvirt host."
            crd Nothing,
    }
    "policies" Check::NetworkPolicy(segment), on NETWORKS, Always, and [NetworkNotAllowed] {}
}

/// Rule [`Code::NetworkNotAllowed`] for the network cards of a Machine. A NetworkConfiguration that does not exist is
/// compared with the policies when it is created.
fn cards(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let code = Code::NetworkNotAllowed;
    let merged = machine.merged;
    if merged.networks.is_empty() && merged.is_complete() && !policy.allows_pod_network {
        let path = FieldPath::field("networks");
        let detail = no_pod_network(machine, policy);
        findings.deny(Violation::new(path, code, Kind::Required, detail));
    }
    for leaf in merged.networks.iter().map(network_name) {
        let Some(name) = leaf.value else {
            if merged.is_complete() && !policy.allows_pod_network {
                let detail = no_pod_network(machine, policy);
                findings.deny(Violation::new(leaf.path, code, Kind::Required, detail));
            }
            continue;
        };
        let Some(row) = machine.catalog.network(machine.machine.namespace, name) else {
            continue;
        };
        if machine.backend == Backend::Libvirt && is_closed(policy, row.bridge.as_deref()) {
            let policy = &policy.name;
            let detail = format!(
                "is the default network of a host, which policy '{policy}' does not allow; take a NetworkConfiguration of another bridge"
            );
            findings.deny(Violation::new(leaf.path, code, Kind::Forbidden, detail).text(name));
            continue;
        }
        // A definition is what KubeVirt attaches, whatever bridge the NetworkConfiguration names beside it.
        let is_defined = machine.backend == Backend::Kubevirt && row.definition.is_some();
        let bridge = row.bridge.as_deref().filter(|_| !is_defined);
        if let Some(bridges) = not_allowed(policy, bridge, row.vlan) {
            let segment = segment_text(bridge, row.vlan);
            let allowed = allowed_text(policy, bridges, bridge);
            let detail = format!("is {segment}; {allowed}");
            findings.deny(Violation::new(leaf.path, code, Kind::Forbidden, detail).text(name));
        }
    }
}

fn no_pod_network(machine: &PolicySubject<'_>, policy: &Policy) -> String {
    let network = match machine.backend {
        Backend::Kubevirt => "the pod network",
        Backend::Libvirt => "the default network of a host",
    };
    let policy = &policy.name;
    format!("policy '{policy}' does not allow {network}; name a NetworkConfiguration")
}

/// Rule [`Code::NetworkNotAllowed`] for a NetworkConfiguration.
fn segment(spec: &NetworkConfigurationSpec, policy: &Policy, findings: &mut Findings) {
    let code = Code::NetworkNotAllowed;
    let bridge = spec.bridge.as_deref();
    // A Machine on libvirt may already name it.
    let may_run_on_libvirt = policy.backends.as_ref();
    let may_run_on_libvirt = may_run_on_libvirt.is_none_or(|it| it.contains(&Backend::Libvirt));
    if let Some(name) = bridge.filter(|_| may_run_on_libvirt && is_closed(policy, bridge)) {
        let policy = &policy.name;
        let detail = format!(
            "is the default network of libvirt hosts, which policy '{policy}' does not allow; name another bridge"
        );
        let path = FieldPath::field("bridge");
        findings.deny(Violation::new(path, code, Kind::Forbidden, detail).text(name));
        return;
    }
    if let (Some(name), Some(bridges)) = (bridge, not_allowed(policy, bridge, spec.vlan)) {
        let segment = segment_text(bridge, spec.vlan);
        let detail = format!("is {segment}; {}", allowed_text(policy, bridges, bridge));
        let path = FieldPath::field("bridge");
        findings.deny(Violation::new(path, code, Kind::Forbidden, detail).text(name));
    }
    if let (Some(name), Some(bridges)) = (&spec.network_attachment_definition, &policy.bridges) {
        let detail = format!(
            "is an existing definition, whose segment is not known; {}",
            allowed_text(policy, bridges, bridge)
        );
        let path = FieldPath::field("networkAttachmentDefinition");
        findings.deny(Violation::new(path, code, Kind::Forbidden, detail).text(name));
    }
}

/// Whether a bridge stands for the default network of libvirt hosts, and the policy closes that. A card without a
/// NetworkConfiguration is on the same network, so whatever `bridges` allows does not open it.
fn is_closed(policy: &Policy, bridge: Option<&str>) -> bool {
    !policy.allows_pod_network && bridge == Some(names::DEFAULT_NETWORK)
}

/// The bridges of the policy, if none of them allows the segment. A segment without a bridge is that of an existing
/// definition.
fn not_allowed<'p>(
    policy: &'p Policy,
    bridge: Option<&str>,
    vlan: Option<i64>,
) -> Option<&'p [Bridge]> {
    let bridges = policy.bridges.as_deref()?;
    let is_allowed = |name| bridges.iter().any(|it| it.allows(name, vlan));
    (!bridge.is_some_and(is_allowed)).then_some(bridges)
}

fn segment_text(bridge: Option<&str>, vlan: Option<i64>) -> String {
    match (bridge, vlan) {
        (None, _) => "an existing definition, whose segment is not known".to_owned(),
        (Some(bridge), None) => format!("untagged on bridge '{bridge}'"),
        (Some(bridge), Some(vlan)) => format!("VLAN {vlan} on bridge '{bridge}'"),
    }
}

/// `policy 'tenants' allows br-prod (VLAN 100-199, 300), br0`.
fn allowed_text(policy: &Policy, bridges: &[Bridge], bridge: Option<&str>) -> String {
    let texts = bridges.iter().map(|item| {
        let mut text = item.name.to_string();
        let ranges = item.vlans.iter().flatten().map(|range| {
            let (first, last) = (range.start(), range.end());
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        });
        let ranges: Vec<_> = ranges.collect();
        match &item.vlans {
            None => {}
            Some(_) if ranges.is_empty() => text.push_str(" (untagged)"),
            Some(_) => text = format!("{text} (VLAN {})", ranges.join(", ")),
        }
        text
    });
    allows(policy, bridge.unwrap_or_default(), texts.collect())
}
