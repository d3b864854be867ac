//! Network segments: which network cards receive each other's frames.
//!
//! ```text
//! KubeVirt  NetworkConfiguration ─┬─ networkAttachmentDefinition ─┬─ an administrator's ──▶ Definition
//!                                 │                               └─ of a NetworkConfiguration's name ─┐
//!                                 └─ bridge, vlan ─┬─ its bridge, vlan ────────────────────────────────┘
//! libvirt   NetworkConfiguration ─── bridge, vlan ─┼─▶ Bridge ◀─ the same network of a host by another name
//!           no networkName ───────── default ──────┘
//! ```

use std::collections::HashMap;

use super::hosts::NetworkRow;
use super::machine_row::OtherCard;
use crate::api::choice::{Backend, HostNetworkType};
use crate::api::libvirt_host::HostNetwork;
use crate::names;

/// A network segment. Bridges of one name are one segment, whichever node or host they are on: a
/// NetworkConfiguration describes both, and no rule knows where a Machine will run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A VLAN of a bridge, or its untagged frames.
    Bridge {
        /// Name of the bridge; `default` for the default network of libvirt hosts.
        bridge: String,
        /// VLAN tag; `None` for untagged frames.
        vlan: Option<i64>,
    },
    /// A NetworkAttachmentDefinition that an administrator wrote.
    Definition {
        /// Namespace of the definition, which is that of the Machine.
        namespace: String,
        /// `networkAttachmentDefinition` of the NetworkConfiguration.
        name: String,
    },
    /// A NetworkConfiguration that does not exist, or has no bridge.
    Unknown {
        /// Namespace of the Machine, where the NetworkConfiguration is expected.
        namespace: String,
        /// `networkName` of the network card.
        name: String,
    },
}

impl Segment {
    /// The segment of a card of a Machine in `namespace`. `row`: the NetworkConfiguration of this name in that namespace,
    /// if it exists. `None`: the pod network, on which each Machine is alone.
    pub fn of(
        namespace: &str,
        network: Option<&str>,
        backend: Backend,
        row: impl Fn(&str) -> Option<NetworkRow>,
    ) -> Option<Self> {
        let Some(network) = network else {
            return (backend == Backend::Libvirt).then(|| Self::Bridge {
                bridge: names::DEFAULT_NETWORK.to_owned(),
                vlan: None,
            });
        };
        let namespace = namespace.to_owned();
        let NetworkRow {
            bridge,
            vlan,
            definition,
            ipam: _,
        } = row(network).unwrap_or_default();
        let definition = definition.filter(|_| backend == Backend::Kubevirt);
        Some(match (definition, bridge) {
            (Some(name), _) => {
                // The controller names the definition of a bridge like the NetworkConfiguration. A definition with the name
                // of a NetworkConfiguration counts as made from its bridge, even if the NetworkConfiguration now names
                // another definition: the controller may have created it earlier.
                let made_of = row(&name).and_then(|row| Some((row.bridge?, row.vlan)));
                match made_of {
                    Some((bridge, vlan)) => Self::Bridge { bridge, vlan },
                    None => Self::Definition { namespace, name },
                }
            }
            (None, Some(bridge)) => Self::Bridge { bridge, vlan },
            (None, None) => Self::Unknown {
                namespace,
                name: network.to_owned(),
            },
        })
    }

    /// The segment in one word. A bridge has no slash in its name, so two segments never have the same; `None`: it is
    /// not known which segment it is.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Bridge { bridge, vlan: None } => Some(bridge.clone()),
            Self::Bridge {
                bridge,
                vlan: Some(vlan),
            } => Some(format!("{bridge}/{vlan}")),
            Self::Definition { namespace, name } => Some(format!("definition/{namespace}/{name}")),
            Self::Unknown { .. } => None,
        }
    }

    /// Whether cards on both segments receive each other's frames: they are one segment, or a host has one network for
    /// both. `hosts`: the networks of each LibvirtHost.
    pub fn meets<'h>(
        &self,
        other: &Self,
        mut hosts: impl Iterator<Item = &'h [HostNetwork]>,
    ) -> bool {
        if self == other {
            return true;
        }
        hosts.any(|networks| {
            let source = self.source(networks);
            source.is_some() && source == other.source(networks)
        })
    }

    /// What a host connects the cards of this segment to.
    fn source<'h>(
        &self,
        networks: &'h [HostNetwork],
    ) -> Option<(HostNetworkType, &'h str, Option<i64>)> {
        let Self::Bridge { bridge, vlan } = self else {
            return None;
        };
        let mut offers = networks.iter();
        let offer = offers.find(|offer| offer.name == *bridge && offer.carries(*vlan))?;
        // Only Open vSwitch has several VLANs behind one source.
        let vlan = vlan.filter(|_| offer.kind == HostNetworkType::Ovs);
        Some((offer.kind, &offer.source, vlan))
    }
}

/// The cards that are on a segment. Thousands may have one address on networks that do not exist: each network is compared
/// once. `row`: the NetworkConfiguration of a namespace and a name, if it exists. `hosts`: the networks of each LibvirtHost.
pub fn on_segment<'h, H>(
    mut others: Vec<OtherCard>,
    of_card: &Segment,
    row: impl Fn(&str, &str) -> Option<NetworkRow>,
    hosts: impl Fn() -> H,
) -> Vec<OtherCard>
where
    H: Iterator<Item = &'h [HostNetwork]>,
{
    let mut compared = HashMap::new();
    let mut meets = |other: &OtherCard| {
        let (network, backend) = (other.card.network.clone(), other.card.backend);
        let key = (other.namespace.clone(), network, backend);
        *compared
            .entry(key)
            .or_insert_with_key(|(namespace, network, _)| {
                let row = |name: &str| row(namespace, name);
                let segment = Segment::of(namespace, network.as_deref(), backend, row);
                segment.is_some_and(|segment| segment.meets(of_card, hosts()))
            })
    };
    others.retain(|other| meets(other));
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bridge: Option<&str>, vlan: Option<i64>, definition: Option<&str>) -> NetworkRow {
        NetworkRow {
            bridge: bridge.map(Into::into),
            vlan,
            definition: definition.map(Into::into),
            ipam: None,
        }
    }

    fn offer(name: &str, kind: HostNetworkType, source: &str) -> HostNetwork {
        HostNetwork {
            name: name.into(),
            kind,
            source: source.into(),
            vlans: None,
            port_isolation: None,
            allow_mac_spoofing: None,
        }
    }

    fn on(bridge: &str, vlan: Option<i64>) -> Segment {
        let row = row(Some(bridge), vlan, None);
        Segment::of("a", Some("lan"), Backend::Libvirt, |_| Some(row.clone())).unwrap()
    }

    #[test]
    fn a_bridge_and_a_vlan_are_one_segment_in_every_namespace_and_on_both_backends() {
        let of = |namespace, backend, row: NetworkRow| {
            Segment::of(namespace, Some("lan"), backend, |_| Some(row.clone()))
        };
        let kubevirt = of("a", Backend::Kubevirt, row(Some("br0"), Some(7), None));
        let libvirt = of("b", Backend::Libvirt, row(Some("br0"), Some(7), None));
        assert_eq!(kubevirt, libvirt);
        assert_ne!(
            kubevirt,
            of("a", Backend::Kubevirt, row(Some("br0"), None, None))
        );
        assert_ne!(
            kubevirt,
            of("a", Backend::Kubevirt, row(Some("br1"), Some(7), None))
        );
    }

    #[test]
    fn a_definition_is_a_segment_of_its_namespace_on_kubevirt_only() {
        let both = |name: &str| (name == "lan").then(|| row(Some("br0"), None, Some("nad")));
        let of = |namespace, backend| Segment::of(namespace, Some("lan"), backend, both);
        let expected = Segment::Definition {
            namespace: "a".into(),
            name: "nad".into(),
        };
        assert_eq!(of("a", Backend::Kubevirt), Some(expected));
        assert_ne!(of("a", Backend::Kubevirt), of("b", Backend::Kubevirt));
        assert_eq!(of("a", Backend::Libvirt), Some(on("br0", None)));
    }

    #[test]
    fn a_definition_that_was_made_of_a_bridge_is_the_segment_of_the_bridge() {
        let rows = |name: &str| match name {
            "lan" => Some(row(Some("br0"), Some(7), None)),
            "alias" | "other" => Some(row(None, None, Some("lan"))),
            "own" => Some(row(Some("br1"), None, Some("own"))),
            "indirect" => Some(row(None, None, Some("alias"))),
            _ => None,
        };
        let of = |network| Segment::of("a", Some(network), Backend::Kubevirt, rows);
        assert_eq!(of("alias"), Some(on("br0", Some(7))));
        assert_eq!(of("alias"), of("lan"));
        assert_eq!(of("alias"), of("other"));
        assert_eq!(of("own"), Some(on("br1", None)));
        let expected = Segment::Definition {
            namespace: "a".into(),
            name: "alias".into(),
        };
        assert_eq!(
            of("indirect"),
            Some(expected),
            "no definition is made of 'alias'"
        );
    }

    #[test]
    fn an_unknown_network_is_a_segment_by_its_name_and_the_pod_network_is_none() {
        let of = |namespace, network, backend| Segment::of(namespace, network, backend, |_| None);
        let unknown = of("a", Some("lan"), Backend::Kubevirt);
        assert_eq!(unknown, of("a", Some("lan"), Backend::Libvirt));
        assert_ne!(unknown, of("b", Some("lan"), Backend::Kubevirt));
        assert_eq!(of("a", None, Backend::Kubevirt), None);
        assert_eq!(of("a", None, Backend::Libvirt), Some(on("default", None)));
    }

    #[test]
    fn two_names_of_one_network_of_a_host_are_one_segment() {
        use HostNetworkType::{Bridge, Network, Ovs};
        let networks = [
            offer("default", Bridge, "br0"),
            offer("prod", Bridge, "br0"),
            offer("nat", Network, "br0"),
            offer("sdn", Ovs, "br-int"),
            offer("sdn-too", Ovs, "br-int"),
        ];
        let meet = |a: &Segment, b: &Segment| a.meets(b, [&networks[..]].into_iter());
        assert!(meet(&on("default", None), &on("prod", None)));
        assert!(
            !meet(&on("default", None), &on("nat", None)),
            "another kind"
        );
        assert!(meet(&on("sdn", Some(7)), &on("sdn-too", Some(7))));
        assert!(!meet(&on("sdn", Some(7)), &on("sdn-too", Some(8))));
        assert!(!meet(&on("absent", None), &on("missing", None)));
        assert!(!on("default", None).meets(&on("prod", None), [].into_iter()));
    }
}
