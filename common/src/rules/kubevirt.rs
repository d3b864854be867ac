//! Fields that the installed KubeVirt does not take, because of its release or of a feature gate.
//!
//! A warning, no refusal: an administrator may enable the gate after the Machines were applied. KubeVirt's own admission
//! refuses the VirtualMachine until then, and the controller reports that.

use std::collections::BTreeMap;

use crate::api::choice::{Backend, Choice as _, DeviceKind, DisplayType};
use crate::api::normalized::Normalized;
use crate::catalog::{HOST_DEVICES, KubevirtRow, Lacking, VIDEO_CONFIG};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Leaf;
use crate::violation::Findings;

use super::rule::{Check, Lookup, rules};
use super::{display, hardware};

rules! {
    "machine" Check::Lookup(warn_of_missing_features), on MACHINES, Always {
        Warn KubevirtFeatureMissing = "A field needs a newer KubeVirt, or a feature gate of KubeVirt that is not enabled."
            because "KubeVirt refuses the VirtualMachine, so that the machine is neither created nor changed."
            fix "Leave the field out, or ask an administrator to enable the gate (`spec.configuration.developerConfiguration.featureGates` of the `KubeVirt` object) or to update KubeVirt."
            crd Nothing,
    }
}

/// Rule [`Code::KubevirtFeatureMissing`]. A field that the stored block has already is not warned about again.
fn warn_of_missing_features(
    lookup: &Lookup<'_>,
    _: &mut BTreeMap<String, String>,
    findings: &mut Findings,
) {
    if lookup.backend != Backend::Kubevirt {
        return;
    }
    let Some(kubevirt) = lookup.catalog.kubevirt() else {
        return;
    };
    let video = video(lookup).map(|leaf| leaf.path);
    let usb = usb_device(lookup, &kubevirt);
    for (field, feature) in [(video, &VIDEO_CONFIG), (usb, &HOST_DEVICES)] {
        let lacking = field.and_then(|path| Some((path, kubevirt.lacks(feature)?)));
        let Some((path, lacking)) = lacking else {
            continue;
        };
        let version = &kubevirt.version;
        let of_template = path.in_template();
        let of_template = of_template.map(|field| format!("{field} of the template "));
        let of_template = of_template.unwrap_or_default();
        let text = match lacking {
            Lacking::Release(since) => format!(
                "{path}: {of_template}needs KubeVirt {since}, and this cluster has {version}, which will refuse the machine; leave it out, or update KubeVirt"
            ),
            Lacking::Gate(gate) => format!(
                "{path}: {of_template}needs KubeVirt's feature gate {gate}, which is not enabled on this cluster ({version}), so KubeVirt will refuse the machine; leave it out, or have the gate enabled"
            ),
        };
        findings.warn(Code::KubevirtFeatureMissing, &text);
    }
}

/// The requested graphics card, as far as the machine gets one and does not have it.
fn video<'a>(lookup: &Lookup<'a>) -> Option<Leaf<&'a str>> {
    let leaf = display::video(lookup.merged);
    let stored = lookup.stored.and_then(Normalized::video);
    let is_kept = stored.is_some_and(|stored| leaf.value == Some(stored.as_str()));
    let has_none = display::kind(lookup.merged).value == Some(DisplayType::None.as_str());
    (leaf.value.is_some() && !is_kept && !has_none).then_some(leaf)
}

/// The first requested USB device that the machine does not have.
fn usb_device(lookup: &Lookup<'_>, kubevirt: &KubevirtRow) -> Option<FieldPath> {
    let stored = lookup.stored.map(Normalized::devices).unwrap_or_default();
    let mut names = hardware::device_names(lookup.merged);
    let found = names.find(|(_, name)| {
        let is_kept = stored.iter().any(|device| device.device_name == *name);
        kubevirt.devices.get(*name) == Some(&DeviceKind::Usb) && !is_kept
    });
    found.map(|(path, _)| path)
}
