//! NetworkConfigurations.

use crate::api::network::NetworkConfigurationSpec;
use crate::api::schema::INTERFACE_NAME_MAX;
use crate::code::Code;
use crate::normalize::{Leaf, Place};
use crate::violation::{Findings, Kind, Violation};

use super::form;

/// Every rule about the form of one.
pub(crate) fn check(spec: &NetworkConfigurationSpec, findings: &mut Findings) {
    range(
        "vlan",
        spec.vlan,
        1,
        4094,
        Code::InvalidVlan,
        "leave it out for untagged",
        findings,
    );
    bridge(spec, findings);
    range(
        "mtu",
        spec.mtu,
        68,
        65535,
        Code::InvalidMtu,
        "leave it out for the bridge's own",
        findings,
    );
    form::object_name(
        Leaf {
            value: spec.network_attachment_definition.as_deref(),
            place: Place::Field("networkAttachmentDefinition"),
        },
        findings,
    );
}

/// Rules [`Code::InvalidVlan`] (IEEE 802.1Q) and [`Code::InvalidMtu`] (RFC 791 and the size of the
/// field).
fn range(
    field: &'static str,
    value: Option<i64>,
    min: i64,
    max: i64,
    code: Code,
    otherwise: &str,
    findings: &mut Findings,
) {
    if let Some(value) = value
        && !(min..=max).contains(&value)
    {
        let detail = format!("must be from {min} to {max}; {otherwise}");
        findings
            .deny(Violation::new(Place::Field(field), code, Kind::Invalid, detail).value(value));
    }
}

/// Rules [`Code::BridgeRequired`] and [`Code::InvalidBridge`].
fn bridge(spec: &NetworkConfigurationSpec, findings: &mut Findings) {
    let place = Place::Field("bridge");
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
        None => {}
        Some(name) => {
            let fits = (1..=INTERFACE_NAME_MAX).contains(&name.len())
                && !name
                    .chars()
                    .any(|c| c.is_whitespace() || c == '/' || c == ':')
                && name != "."
                && name != "..";
            if !fits {
                let detail = format!(
                    "must be the name of a Linux interface: at most {INTERFACE_NAME_MAX} bytes without blanks, '/' and ':'"
                );
                findings.deny(
                    Violation::new(place, Code::InvalidBridge, Kind::Invalid, detail).text(name),
                );
            }
        }
    }
}

/// Rule [`Code::SegmentChanged`].
pub(crate) fn change(
    old: &NetworkConfigurationSpec,
    new: &NetworkConfigurationSpec,
    findings: &mut Findings,
) {
    let shown = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    let fields = [
        (
            "vlan",
            old.vlan.map(|vlan| vlan.to_string()),
            new.vlan.map(|vlan| vlan.to_string()),
        ),
        ("bridge", old.bridge.clone(), new.bridge.clone()),
    ];
    for (field, old, new) in fields {
        if old != new {
            let detail = format!(
                "cannot change from {} to {}: another segment is another NetworkConfiguration; create one and change the Machines",
                shown(old),
                shown(new)
            );
            findings.deny(Violation::new(
                Place::Field(field),
                Code::SegmentChanged,
                Kind::Forbidden,
                detail,
            ));
        }
    }
}
