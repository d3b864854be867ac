//! What may become of each field of a Machine that exists: one table, every field in it once.

/// What a change of a field does to a Machine that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Takes effect while the machine runs.
    Live,
    /// Up: takes effect while the machine runs, if the storage class allows it. Down: refused.
    Grows,
    /// Allowed; a running machine has it after its next restart, and a warning says so.
    Restart,
    /// Allowed; only a new instance reads it, and a warning says so.
    NewInstance,
    /// Refused while the machine runs, and goes on running.
    Stopped,
    /// Refused.
    Fixed,
    /// Judged by what it resolves to, field by field.
    Resolved,
}

impl Policy {
    /// Every policy.
    pub const ALL: &'static [Self] = &[
        Self::Live,
        Self::Grows,
        Self::Restart,
        Self::NewInstance,
        Self::Stopped,
        Self::Fixed,
        Self::Resolved,
    ];
}

macro_rules! fields {
    ($( $policy:ident { $( $field:ident = $path:literal, )+ } )+) => {
        /// A field of the intent, or all fields below one. An item of a list is its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field { $($( #[doc = concat!("`", $path, "`")] $field, )+)+ }

        impl Field {
            /// Every field, policy by policy.
            pub const ALL: &'static [Self] = &[$($(Self::$field,)+)+];

            /// Its path below `spec`, lists without indices.
            pub fn path(self) -> &'static str {
                match self { $($(Self::$field => $path,)+)+ }
            }

            /// What a change of it does.
            pub fn policy(self) -> Policy {
                match self { $($(Self::$field => Policy::$policy,)+)+ }
            }
        }
    };
}

fields! {
    Resolved {
        Template = "template",
    }
    Live {
        PowerState = "powerState",
        GuestShutdownStops = "guestShutdownStops",
        DiskReclaimPolicy = "disks[].reclaimPolicy",
    }
    Grows {
        DiskSize = "disks[].size",
    }
    Restart {
        Cores = "resources.cpu.cores",
        Threads = "resources.cpu.threads",
        Sockets = "resources.cpu.sockets",
        MaxSockets = "resources.cpu.maxSockets",
        MemorySize = "resources.memory.size",
        MaxMemorySize = "resources.memory.maxSize",
        Disk = "disks[].name",
        DiskRemove = "disks[].remove",
        DiskBus = "disks[].bus",
        Nic = "networks[].name",
        NicNetwork = "networks[].networkName",
        NicModel = "networks[].model",
        NicMac = "networks[].macAddress",
        BootOrder = "bootOrder",
        Cdrom = "cdroms[].name",
        CdromImage = "cdroms[].image",
        CdromSize = "cdroms[].size",
        CdromStorageClass = "cdroms[].storageClass",
        Acpi = "domain.features.acpi",
        Apic = "domain.features.apic",
        Hyperv = "domain.features.hyperv",
        NodeSelector = "nodeSelector",
    }
    NewInstance {
        UserData = "cloudInit.userData",
        NetworkData = "cloudInit.networkData",
        MetaData = "cloudInit.metaData",
        UserDataSecret = "cloudInit.secretRef",
        NetworkDataSecret = "cloudInit.networkDataSecretRef",
    }
    Stopped {
        MachineType = "domain.machine.type",
        Efi = "domain.firmware.bootloader.efi",
        SecureBoot = "domain.firmware.bootloader.secureBoot",
    }
    Fixed {
        Backend = "backend",
        DiskStorageClass = "disks[].storageClass",
        DiskAccessMode = "disks[].accessMode",
        DiskVolumeMode = "disks[].volumeMode",
        DiskImage = "disks[].image",
        DiskSelector = "disks[].selector",
        DiskVolumeName = "disks[].volumeName",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::api::machine::MachineSpec;

    /// The paths of all fields below a schema; maps and references to other objects are one field.
    fn leaves(schema: &Value, root: &Value, path: &str, found: &mut BTreeSet<String>) {
        let resolved = |schema: &Value| -> Value {
            let target = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#'));
            target.map_or_else(|| schema.clone(), |it| root.pointer(it).unwrap().clone())
        };
        let schema = resolved(schema);
        if let Some(any) = schema["anyOf"].as_array() {
            let only = any.iter().find(|schema| schema["type"] != "null").unwrap();
            return leaves(only, root, path, found);
        }
        if let Some(properties) = schema["properties"].as_object() {
            for (name, property) in properties {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(property, root, &path, found);
            }
        } else if resolved(&schema["items"])["properties"].is_object() {
            leaves(&schema["items"], root, &format!("{path}[]"), found);
        } else {
            found.insert(path.to_owned());
        }
    }

    #[test]
    fn every_field_of_the_intent_has_exactly_one_policy() {
        let schema = serde_json::to_value(schemars::schema_for!(MachineSpec)).unwrap();
        let mut fields = BTreeSet::new();
        leaves(&schema, &schema, "", &mut fields);
        fields.retain(|path| path != "normalized" && !path.starts_with("normalized."));
        fields.retain(|path| !path.starts_with("normalized["));
        assert!(fields.len() > 40, "{fields:?}");
        let covers = |field: &Field, path: &str| {
            let rest = path.strip_prefix(field.path());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        for path in &fields {
            let policies = Field::ALL.iter().filter(|field| covers(field, path));
            assert_eq!(policies.count(), 1, "{path}");
        }
        for field in Field::ALL {
            let stands = fields.iter().any(|path| covers(field, path));
            assert!(stands, "{} is no field", field.path());
        }
    }
}
