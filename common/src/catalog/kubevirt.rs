//! What the installed KubeVirt offers: its release, its feature gates, the devices that it permits, and whether it migrates
//! guests by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::choice::DeviceKind;

/// A minor release of KubeVirt, such as 1.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(u32, u32);

impl Display for Release {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Reads a version such as `v1.9.0` or `v1.9.0-rc.1-dirty`.
impl FromStr for Release {
    type Err = ();

    fn from_str(version: &str) -> Result<Self, ()> {
        let version = version.strip_prefix('v').unwrap_or(version);
        let mut parts = version.split('.').map(|part| part.parse().ok());
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self(major, minor)),
            _ => Err(()),
        }
    }
}

/// The release from which on KubeVirt enables every gate of stage Beta by itself (KubeVirt's enhancement 229).
const BETA_IS_ENABLED: Release = Release(1, 9);

/// A feature of KubeVirt that a feature gate guards. The releases are those of `pkg/virt-config/featuregate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name of the gate.
    pub gate: &'static str,
    /// First release that has the feature.
    pub since: Release,
    /// First release in which it is of stage Beta.
    pub beta: Option<Release>,
    /// First release in which it needs no gate.
    pub general: Option<Release>,
}

/// The model of the graphics card.
pub const VIDEO_CONFIG: Feature = Feature {
    gate: "VideoConfig",
    since: Release(1, 6),
    beta: Some(Release(1, 7)),
    general: Some(Release(1, 9)),
};

/// The oldest release of KubeVirt that the operator is made for.
pub const OLDEST_KUBEVIRT: Release = Release(1, 7);

/// Host devices that are no graphics processors, which USB devices are given by.
pub const HOST_DEVICES: Feature = Feature {
    gate: "HostDevices",
    since: Release(0, 36),
    beta: None,
    general: None,
};

/// Disks and media that are plugged into the running guest, and out of it, when they enter or leave the VirtualMachine.
pub const DECLARATIVE_HOTPLUG: Feature = Feature {
    gate: "DeclarativeHotplugVolumes",
    since: Release(1, 6),
    beta: Some(Release(1, 9)),
    general: None,
};

/// Another network of a card that a running guest has.
pub const LIVE_UPDATE_NETWORK: Feature = Feature {
    gate: "LiveUpdateNADRef",
    since: Release(1, 8),
    beta: None,
    general: Some(Release(1, 9)),
};

/// The size of a volume that has grown, in the guest that has it. A running guest gets it at once. Without the feature, a
/// block volume has it at the next start of the guest, and a volume with a file system, on which the disk is a file, keeps
/// its size in the guest.
pub const EXPAND_DISKS: Feature = Feature {
    gate: "ExpandDisks",
    since: Release(0, 48),
    beta: None,
    general: Some(Release(1, 8)),
};

/// Why KubeVirt does not offer a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The feature came with this release.
    Release(Release),
    /// This gate is not enabled.
    Gate(&'static str),
}

/// The parts of the `KubeVirt` object that rules and the controller read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubevirtRow {
    /// Version that runs, such as `v1.9.0`; empty until KubeVirt has reported it.
    pub version: String,
    /// Feature gates that an administrator has enabled. What a release enables by itself is not listed.
    pub enabled: BTreeSet<String>,
    /// Feature gates that an administrator has disabled.
    pub disabled: BTreeSet<String>,
    /// Whether KubeVirt migrates a guest by itself so that a change takes effect.
    pub migrates: bool,
    /// Whether every change of a running guest waits for its restart: `vmRolloutStrategy` is `Stage`. KubeVirt's default
    /// is `LiveUpdate` since 1.5.
    #[serde(default)]
    pub stages: bool,
    /// `vmStateStorageClass`: name of the storage class of the claims with the state of guests; `None`: the default class.
    #[serde(default)]
    pub state_class: Option<String>,
    /// Devices that it permits, by name of the resource of nodes.
    #[serde(default)]
    pub devices: BTreeMap<String, DeviceKind>,
}

impl KubevirtRow {
    /// The row of a `KubeVirt` object with this spec and status. What is malformed is as if it was not set.
    pub fn new(spec: &Value, status: &Value) -> Self {
        let developer = &spec["configuration"]["developerConfiguration"];
        let methods = &spec["workloadUpdateStrategy"]["workloadUpdateMethods"];
        let version = &status["observedKubeVirtVersion"];
        Self {
            version: version.as_str().unwrap_or_default().to_owned(),
            enabled: texts(&developer["featureGates"])
                .map(str::to_owned)
                .collect(),
            disabled: texts(&developer["disabledFeatureGates"])
                .map(str::to_owned)
                .collect(),
            migrates: texts(methods).any(|method| method == "LiveMigrate"),
            stages: spec["configuration"]["vmRolloutStrategy"] == "Stage",
            state_class: spec["configuration"]["vmStateStorageClass"]
                .as_str()
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            devices: permitted_devices(&spec["configuration"]["permittedHostDevices"]),
        }
    }

    /// Whether a release older than [`OLDEST_KUBEVIRT`] runs; `false` if the version is not known.
    pub fn is_too_old(&self) -> bool {
        self.release().is_some_and(|runs| runs < OLDEST_KUBEVIRT)
    }

    /// Whether KubeVirt has a storage class for the state of guests. `exists`: whether the cluster has the class of this
    /// name; `has_default`: whether it has a default class.
    pub fn stores_state(&self, exists: impl Fn(&str) -> bool, has_default: bool) -> bool {
        self.state_class.as_deref().map_or(has_default, exists)
    }

    /// The release that runs; `None`: its version is not known.
    fn release(&self) -> Option<Release> {
        self.version.parse().ok()
    }

    /// Whether KubeVirt offers a feature; `None`: its version is not known.
    pub fn offers(&self, feature: &Feature) -> Option<bool> {
        self.release().map(|_| self.lacks(feature).is_none())
    }

    /// Why KubeVirt does not offer a feature; `None` if it does, or if its version is not known.
    pub fn lacks(&self, feature: &Feature) -> Option<Lacking> {
        let runs = self.release()?;
        let reached = |release: Option<Release>| release.is_some_and(|release| runs >= release);
        if runs < feature.since {
            return Some(Lacking::Release(feature.since));
        }
        let is_default = runs >= BETA_IS_ENABLED
            && reached(feature.beta)
            && !self.disabled.contains(feature.gate);
        let is_offered =
            reached(feature.general) || is_default || self.enabled.contains(feature.gate);
        (!is_offered).then_some(Lacking::Gate(feature.gate))
    }
}

fn permitted_devices(permitted: &Value) -> BTreeMap<String, DeviceKind> {
    let lists = [
        ("pciHostDevices", DeviceKind::Pci),
        ("mediatedDevices", DeviceKind::Pci),
        ("usb", DeviceKind::Usb),
    ];
    let devices = lists.into_iter().flat_map(|(list, kind)| {
        let items = permitted[list].as_array().into_iter().flatten();
        items.filter_map(move |item| Some((item["resourceName"].as_str()?.to_owned(), kind)))
    });
    devices.collect()
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(version: &str, gates: &Value) -> KubevirtRow {
        let spec = json!({"configuration": {"developerConfiguration": gates}});
        KubevirtRow::new(&spec, &json!({"observedKubeVirtVersion": version}))
    }

    #[test]
    fn the_object_is_read_and_what_is_malformed_is_as_if_it_was_not_set() {
        let spec = json!({
            "workloadUpdateStrategy": {"workloadUpdateMethods": ["Evict", "LiveMigrate"]},
            "configuration": {"vmRolloutStrategy": "Stage", "vmStateStorageClass": "shared", "developerConfiguration": {
                "featureGates": ["HostDevices", 5], "disabledFeatureGates": ["Template"],
            }, "permittedHostDevices": {
                "pciHostDevices": [{"pciVendorSelector": "10DE:20B0", "resourceName": "nvidia.com/A100"}, 5],
                "mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/T4-1Q"}],
                "usb": [{"resourceName": "kubevirt.io/token", "selectors": []}],
            }},
        });
        let read = KubevirtRow::new(&spec, &json!({"observedKubeVirtVersion": "v1.9.0"}));
        let expected = KubevirtRow {
            version: "v1.9.0".into(),
            enabled: ["HostDevices".to_owned()].into(),
            disabled: ["Template".to_owned()].into(),
            migrates: true,
            stages: true,
            state_class: Some("shared".into()),
            devices: [
                ("kubevirt.io/token".to_owned(), DeviceKind::Usb),
                ("nvidia.com/A100".to_owned(), DeviceKind::Pci),
                ("nvidia.com/T4-1Q".to_owned(), DeviceKind::Pci),
            ]
            .into(),
        };
        assert_eq!(read, expected);
        let spec = json!({"workloadUpdateStrategy": {"workloadUpdateMethods": 5}});
        let malformed = KubevirtRow::new(&spec, &json!("Deployed"));
        assert_eq!(malformed, KubevirtRow::default());
    }

    #[test]
    fn a_release_before_1_7_is_too_old() {
        for (version, expected) in [
            ("v1.6.4", true),
            ("v0.59.0", true),
            ("v1.7.0-rc.0", false),
            ("v2.0.0", false),
            ("", false),
            ("main", false),
        ] {
            assert_eq!(row(version, &json!({})).is_too_old(), expected, "{version}");
        }
    }

    #[test]
    fn a_feature_is_offered_by_release_by_gate_and_from_1_9_on_by_stage() {
        let (none, video) = (json!({}), json!({"featureGates": ["VideoConfig"]}));
        let off = json!({"disabledFeatureGates": ["Devices"]});
        let beta = Feature {
            gate: "Devices",
            since: Release(1, 8),
            beta: Some(Release(1, 9)),
            general: None,
        };
        let gate = Some(Lacking::Gate("VideoConfig"));
        for (version, gates, feature, expected) in [
            (
                "v1.5.2",
                &video,
                &VIDEO_CONFIG,
                Some(Lacking::Release(Release(1, 6))),
            ),
            ("v1.6.0", &none, &VIDEO_CONFIG, gate),
            ("v1.8.3-rc.1", &none, &VIDEO_CONFIG, gate),
            ("v1.8.3", &video, &VIDEO_CONFIG, None),
            ("1.9.0", &none, &VIDEO_CONFIG, None),
            ("v1.10.1", &none, &VIDEO_CONFIG, None),
            ("", &none, &VIDEO_CONFIG, None),
            ("main", &none, &VIDEO_CONFIG, None),
            ("v1.8.0", &none, &beta, Some(Lacking::Gate("Devices"))),
            ("v1.9.0", &none, &beta, None),
            ("v1.9.0", &off, &beta, Some(Lacking::Gate("Devices"))),
        ] {
            let row = row(version, gates);
            assert_eq!(row.lacks(feature), expected, "{version} {gates}");
            let is_known = !matches!(version, "" | "main");
            let offers = is_known.then_some(expected.is_none());
            assert_eq!(row.offers(feature), offers, "{version} {gates}");
        }
    }

    #[test]
    fn disks_are_plugged_in_with_the_gate_and_from_1_9_on_unless_it_is_disabled() {
        let gate = DECLARATIVE_HOTPLUG.gate;
        let (none, on) = (json!({}), json!({"featureGates": [gate]}));
        let off = json!({"disabledFeatureGates": [gate]});
        for (version, gates, expected) in [
            ("v1.7.0", &none, false),
            ("v1.7.0", &on, true),
            ("v1.8.4", &none, false),
            ("v1.8.4", &on, true),
            ("v1.9.0", &none, true),
            ("v1.9.0", &off, false),
            ("v1.10.0", &none, true),
        ] {
            let offers = row(version, gates).offers(&DECLARATIVE_HOTPLUG);
            assert_eq!(offers, Some(expected), "{version} {gates}");
        }
    }

    #[test]
    fn disks_grow_in_the_guest_with_the_gate_and_from_1_8_on() {
        let (none, on) = (json!({}), json!({"featureGates": [EXPAND_DISKS.gate]}));
        let off = json!({"disabledFeatureGates": [EXPAND_DISKS.gate]});
        for (version, gates, expected) in [
            ("v1.7.2", &none, false),
            ("v1.7.2", &on, true),
            ("v1.8.0", &none, true),
            ("v1.9.0", &off, true),
        ] {
            let offers = row(version, gates).offers(&EXPAND_DISKS);
            assert_eq!(offers, Some(expected), "{version} {gates}");
        }
    }
}
