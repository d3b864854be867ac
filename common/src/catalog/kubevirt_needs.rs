//! What a Machine needs of the settings of KubeVirt.

use super::KubevirtRow;
use crate::api::normalized::Normalized;

/// A setting that Machines may need, most of them of the `KubeVirt` object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KubevirtSetting {
    /// Devices that guests may have.
    PermittedHostDevices,
    /// How a change of a VirtualMachine reaches its guest.
    RolloutStrategy,
    /// Storage class of the state of guests.
    StateStorageClass,
    /// How guests get what only a new instance gives them.
    UpdateMethods,
}

impl KubevirtSetting {
    /// Every setting.
    pub const ALL: [Self; 4] = [
        Self::PermittedHostDevices,
        Self::RolloutStrategy,
        Self::StateStorageClass,
        Self::UpdateMethods,
    ];

    /// The field of the `KubeVirt` object.
    pub fn field(self) -> &'static str {
        match self {
            Self::PermittedHostDevices => "permittedHostDevices",
            Self::RolloutStrategy => "vmRolloutStrategy",
            Self::StateStorageClass => "vmStateStorageClass",
            Self::UpdateMethods => "workloadUpdateMethods",
        }
    }
}

/// What a Machine on KubeVirt needs of these settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubevirtNeeds {
    /// Whether its vCPUs or its memory may grow while it runs.
    grows: bool,
    /// Whether EFI variables or the content of a TPM outlast its guest.
    keeps_state: bool,
    /// Names of its devices.
    devices: Box<[Box<str>]>,
}

impl From<&Normalized> for KubevirtNeeds {
    fn from(block: &Normalized) -> Self {
        let (cpu, memory) = (&block.cpu, &block.memory);
        let devices = block.devices().iter();
        Self {
            grows: cpu.max_sockets > cpu.sockets || memory.max_size > memory.size,
            keeps_state: block.keeps_state(),
            devices: devices
                .map(|device| device.device_name.as_str().into())
                .collect(),
        }
    }
}

impl KubevirtNeeds {
    /// The settings that do not provide what the Machine needs. `stores_state`: see [`KubevirtRow::stores_state`].
    pub fn missing(
        &self,
        kubevirt: &KubevirtRow,
        stores_state: bool,
    ) -> impl Iterator<Item = KubevirtSetting> {
        let mut devices = self.devices.iter();
        let refuses = devices.any(|name| !kubevirt.devices.contains_key(&**name));
        let is_missing = [
            (KubevirtSetting::PermittedHostDevices, refuses),
            (
                KubevirtSetting::RolloutStrategy,
                self.grows && kubevirt.stages,
            ),
            (
                KubevirtSetting::StateStorageClass,
                self.keeps_state && !stores_state,
            ),
            (
                KubevirtSetting::UpdateMethods,
                self.grows && !kubevirt.migrates,
            ),
        ];
        is_missing
            .into_iter()
            .filter_map(|(setting, is_missing)| is_missing.then_some(setting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::choice::DeviceKind;

    fn missing(
        needs: &KubevirtNeeds,
        kubevirt: &KubevirtRow,
        classes: &[&str],
    ) -> Vec<&'static str> {
        let exists = |class: &str| classes.contains(&class);
        let stores_state = kubevirt.stores_state(exists, classes.contains(&"default"));
        let missing = needs.missing(kubevirt, stores_state);
        missing.map(KubevirtSetting::field).collect()
    }

    #[test]
    fn a_machine_lacks_only_settings_that_it_needs() {
        let needs = KubevirtNeeds {
            grows: true,
            keeps_state: true,
            devices: ["nvidia.com/T4".into()].into(),
        };
        let bare = KubevirtRow {
            stages: true,
            ..KubevirtRow::default()
        };
        let all = KubevirtSetting::ALL.map(KubevirtSetting::field);
        assert_eq!(missing(&needs, &bare, &["fast"]), all);
        assert_eq!(missing(&KubevirtNeeds::default(), &bare, &[]), [""; 0]);
        let full = KubevirtRow {
            migrates: true,
            devices: [("nvidia.com/T4".to_owned(), DeviceKind::Pci)].into(),
            ..KubevirtRow::default()
        };
        assert_eq!(missing(&needs, &full, &["default"]), [""; 0]);
    }

    #[test]
    fn the_state_of_guests_needs_the_class_that_is_named_or_a_default() {
        let needs = KubevirtNeeds {
            keeps_state: true,
            ..KubevirtNeeds::default()
        };
        for (named, classes, expected) in [
            (None, &["fast"][..], true),
            (None, &["fast", "default"], false),
            (Some("fast"), &["fast"], false),
            (Some("gone"), &["fast", "default"], true),
        ] {
            let kubevirt = KubevirtRow {
                state_class: named.map(str::to_owned),
                ..KubevirtRow::default()
            };
            let is_missing = !missing(&needs, &kubevirt, classes).is_empty();
            assert_eq!(is_missing, expected, "{named:?} of {classes:?}");
        }
    }
}
