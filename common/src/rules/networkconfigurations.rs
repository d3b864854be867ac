//! NetworkConfigurations.

use std::ops::RangeInclusive;

use crate::api::network::NetworkConfigurationSpec;
use crate::code::Code;
use crate::normalize::{Leaf, Place};
use crate::violation::{Findings, Kind, Violation};
use crate::words::quoted;

use super::form;

/// The tags of IEEE 802.1Q.
pub(super) const VLANS: RangeInclusive<i64> = 1..=4094;

const DEFINITION: Place = Place::field("networkAttachmentDefinition");

/// The rules about one, against what is stored: the segment of a stored one is not judged again,
/// because it cannot change.
pub(crate) fn check(
    spec: &NetworkConfigurationSpec,
    old: Option<&NetworkConfigurationSpec>,
    findings: &mut Findings,
) {
    match old {
        None => {
            let range = Range {
                allowed: VLANS,
                code: Code::InvalidVlan,
                otherwise: "leave it out for untagged",
            };
            range.check("vlan", spec.vlan, findings);
            bridge(spec, findings);
        }
        Some(old) => change(old, spec, findings),
    }
    let range = Range {
        allowed: 68..=65535,
        code: Code::InvalidMtu,
        otherwise: "leave it out for the bridge's own",
    };
    range.check("mtu", spec.mtu, findings);
    let definition = Leaf {
        value: spec.network_attachment_definition.as_deref(),
        place: DEFINITION,
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
            let fault = Violation::new(Place::field(field), *code, Kind::Invalid, detail);
            findings.deny(fault.value(value));
        }
    }
}

/// Rules [`Code::BridgeRequired`] and [`Code::InvalidBridge`].
fn bridge(spec: &NetworkConfigurationSpec, findings: &mut Findings) {
    let place = Place::field("bridge");
    match spec.bridge.as_deref() {
        None if spec.network_attachment_definition.is_none() => {
            let detail = "name the bridge on the nodes, or an existing definition in networkAttachmentDefinition";
            findings.deny(Violation::new(
                place,
                Code::BridgeRequired,
                Kind::Required,
                detail,
            ));
        }
        Some(name) if !form::is_interface(name) => {
            findings.deny(form::invalid_interface(place, name));
        }
        None | Some(_) => {}
    }
}

/// Rule [`Code::SegmentChanged`], and [`Code::BridgeRequired`] for one that has no bridge.
fn change(old: &NetworkConfigurationSpec, new: &NetworkConfigurationSpec, findings: &mut Findings) {
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
            Place::field(field),
            Code::SegmentChanged,
            Kind::Forbidden,
            detail,
        ));
    }
    let has_nothing = new.bridge.is_none() && new.network_attachment_definition.is_none();
    if old.bridge.is_none() && has_nothing {
        let detail =
            "is all that this NetworkConfiguration stands on: keep it, or name another definition";
        findings.deny(Violation::new(
            DEFINITION,
            Code::BridgeRequired,
            Kind::Required,
            detail,
        ));
    }
}
