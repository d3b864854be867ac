//! NetworkConfigurations.

use std::ops::RangeInclusive;

use crate::api::network::NetworkConfigurationSpec;
use crate::bounds::{MTU_MAX, MTU_MIN, VLAN_MAX, VLAN_MIN};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Leaf;
use crate::violation::{Findings, Kind, Violation};
use crate::words::quoted;

use super::form;
use super::rule::{Check, rules};

rules! {
    "networkconfigurations" Check::Network(segment), on NETWORKS, Create {
        Refuse BridgeRequired = "A NetworkConfiguration names neither a bridge nor an existing definition."
            because "Without one it is undefined where the machines are attached."
            fix "Name a bridge, or an existing NetworkAttachmentDefinition."
            crd All,
        Refuse InvalidBridge = "The name of a bridge cannot be the name of a Linux interface."
            because "No Linux interface can have this name."
            fix "Write the name as `ip link` shows it."
            crd All,
        Refuse InvalidVlan = "A VLAN tag is not from 1 to 4094."
            because "IEEE 802.1Q has the tags from 1 to 4094."
            fix "Take one of them, or leave it out for untagged."
            crd All,
    }
    "networkconfigurations" Check::Network(change), on NETWORKS, Update, and [BridgeRequired] {
        Refuse SegmentChanged = "The VLAN or the bridge of an existing NetworkConfiguration changes."
            because "Running machines would be moved to another segment, or stay behind on the old one."
            fix "Create another NetworkConfiguration and change the Machines."
            crd All,
    }
    "networkconfigurations" Check::Network(mtu), on NETWORKS, Always {
        Refuse InvalidMtu = "An MTU is not from 68 to 65535."
            because "IP needs at least 68 bytes, and the field ends at 65535."
            fix "Take a value within, or leave it out for the bridge's own."
            crd All,
    }
    "networkconfigurations" Check::Network(definition), on NETWORKS, Always, and [InvalidObjectName] {}
}

pub(super) const VLANS: RangeInclusive<i64> = VLAN_MIN..=VLAN_MAX;

const DEFINITION: FieldPath = FieldPath::field("networkAttachmentDefinition");

/// Rules [`Code::InvalidVlan`], [`Code::BridgeRequired`] and [`Code::InvalidBridge`]: bridge and VLAN of
/// a new object. Those of a stored object cannot change, so they are not checked again.
fn segment(
    spec: &NetworkConfigurationSpec,
    _: Option<&NetworkConfigurationSpec>,
    findings: &mut Findings,
) {
    let range = Range {
        allowed: VLANS,
        code: Code::InvalidVlan,
        otherwise: "leave it out for untagged",
    };
    range.check("vlan", spec.vlan, findings);
    bridge(spec, findings);
}

/// Rule [`Code::InvalidMtu`].
fn mtu(
    spec: &NetworkConfigurationSpec,
    _: Option<&NetworkConfigurationSpec>,
    findings: &mut Findings,
) {
    let range = Range {
        allowed: MTU_MIN..=MTU_MAX,
        code: Code::InvalidMtu,
        otherwise: "leave it out for the bridge's own",
    };
    range.check("mtu", spec.mtu, findings);
}

/// Rule [`Code::InvalidObjectName`] for the name of a NetworkAttachmentDefinition.
fn definition(
    spec: &NetworkConfigurationSpec,
    _: Option<&NetworkConfigurationSpec>,
    findings: &mut Findings,
) {
    let definition = Leaf {
        value: spec.network_attachment_definition.as_deref(),
        path: DEFINITION,
    };
    form::object_name(definition, findings);
}

/// Rules [`Code::InvalidVlan`] and [`Code::InvalidMtu`] (RFC 791 and the size of the
/// field).
struct Range {
    allowed: RangeInclusive<i64>,
    code: Code,
    otherwise: &'static str,
}

impl Range {
    fn check(&self, field: &'static str, value: Option<i64>, findings: &mut Findings) {
        let Self {
            allowed,
            code,
            otherwise,
        } = self;
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            let (min, max) = (allowed.start(), allowed.end());
            let detail = format!("must be from {min} to {max}; {otherwise}");
            let fault = Violation::new(FieldPath::field(field), *code, Kind::Invalid, detail);
            findings.deny(fault.value(value));
        }
    }
}

/// Rules [`Code::BridgeRequired`] and [`Code::InvalidBridge`].
fn bridge(spec: &NetworkConfigurationSpec, findings: &mut Findings) {
    let path = FieldPath::field("bridge");
    match spec.bridge.as_deref() {
        None if spec.network_attachment_definition.is_none() => {
            let detail = "name the bridge on the nodes, or an existing definition in networkAttachmentDefinition";
            findings.deny(Violation::new(
                path,
                Code::BridgeRequired,
                Kind::Required,
                detail,
            ));
        }
        Some(name) if !form::is_interface(name) => {
            findings.deny(form::invalid_interface(path, name));
        }
        None | Some(_) => {}
    }
}

/// Rule [`Code::SegmentChanged`], and [`Code::BridgeRequired`] for one that has no bridge.
fn change(
    new: &NetworkConfigurationSpec,
    old: Option<&NetworkConfigurationSpec>,
    findings: &mut Findings,
) {
    let Some(old) = old else { return };
    let number = |value: Option<i64>| value.map(|value| value.to_string());
    let text = |value: &Option<String>| value.as_deref().map(quoted);
    let fields = [
        ("vlan", number(old.vlan), number(new.vlan)),
        ("bridge", text(&old.bridge), text(&new.bridge)),
    ];
    for (field, old, new) in fields.into_iter().filter(|(_, old, new)| old != new) {
        let [old, new] = [old, new].map(|value| value.unwrap_or_else(|| "none".to_owned()));
        let detail = format!(
            "cannot change from {old} to {new}: another segment is another NetworkConfiguration; create one and change the Machines"
        );
        findings.deny(Violation::new(
            FieldPath::field(field),
            Code::SegmentChanged,
            Kind::Forbidden,
            detail,
        ));
    }
    let has_nothing = new.bridge.is_none() && new.network_attachment_definition.is_none();
    if old.bridge.is_none() && has_nothing {
        let detail =
            "is the only definition of this NetworkConfiguration: keep it, or name another one";
        findings.deny(Violation::new(
            DEFINITION,
            Code::BridgeRequired,
            Kind::Required,
            detail,
        ));
    }
}
