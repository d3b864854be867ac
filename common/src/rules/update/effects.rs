//! The table of update effects: what a change of each field of a Machine does on each backend.
//!
//! Warnings and refusals of admission, the action of `status.pendingChanges` and the documentation
//! are views of this table.

use crate::api::choice::Backend;

/// What a change of a field does to a Machine that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Takes effect while the machine runs.
    Live,
    /// The backend changes the running guest in place if the guest can take it; else it takes effect at its next restart.
    /// What a guest on libvirt can take is in `render::libvirt::hotplug`, and how many devices in `render::libvirt::ports`.
    HotPlugOrRestart,
    /// The backend migrates the running guest for it if the guest can take it; else it takes effect at its next restart.
    LiveMigrationOrRestart,
    /// The backend does not migrate the running guest for it: it takes effect at the next live migration, whatever that is for,
    /// or at the next restart.
    NextMigrationOrRestart,
    /// Accepted; a Machine stays where it is, off or running, and a requested move chooses the other host by it.
    NextMove,
    /// Accepted; a running machine has it after its next restart.
    Restart,
    /// Accepted; cloud-init acts on it only in a new instance, after the Machine was deleted and created again.
    NewInstance,
    /// Larger: takes effect while the machine runs, if the storage can grow. Smaller: refused.
    Grow,
    /// Refused while the machine runs and is to keep running.
    RefusedWhileRunning,
    /// Refused.
    Refused,
    /// Accepted without any effect on the machine.
    Nothing,
    /// Depends on the fields that it resolves to; each has its own effect.
    Resolved,
}

impl Effect {
    /// The effect as text, after "A change of this field".
    pub fn describe(self) -> &'static str {
        match self {
            Self::Live => "takes effect while the machine runs",
            Self::HotPlugOrRestart => {
                "takes effect while the machine runs if the guest can take it, else at the next restart"
            }
            Self::LiveMigrationOrRestart => {
                "takes effect by a live migration if the guest can take it, else at the next restart"
            }
            Self::NextMigrationOrRestart => "takes effect at the next live migration or restart",
            Self::NextMove => "takes effect at the next move to another host",
            Self::Restart => "takes effect at the next restart",
            Self::NewInstance => "takes effect on a new instance only",
            Self::Grow => {
                "larger: takes effect while the machine runs, if the storage can grow; smaller: is refused"
            }
            Self::RefusedWhileRunning => "is refused while the machine runs and is to keep running",
            Self::Refused => "is refused",
            Self::Nothing => "has no effect",
            Self::Resolved => "has the effect of the fields that it resolves to",
        }
    }
}

/// Declares the table: field, path below `spec` or from `metadata` on, effect on KubeVirt, effect on libvirt.
macro_rules! effects {
    ($( $field:ident $path:literal $kubevirt:ident $libvirt:ident, )+) => {
        /// A field of the spec or the metadata, or all fields below one. The name of a list item means adding or removing the item.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field { $( #[doc = concat!("`", $path, "`")] $field, )+ }

        impl Field {
            /// Every field, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$field,)+];

            /// Path below `spec`, or from `metadata` on; lists without indices.
            pub fn path(self) -> &'static str {
                match self { $(Self::$field => $path,)+ }
            }

            /// What a change does on this backend.
            pub fn effect(self, backend: Backend) -> Effect {
                match (self, backend) {
                    $(
                        (Self::$field, Backend::Kubevirt) => Effect::$kubevirt,
                        (Self::$field, Backend::Libvirt) => Effect::$libvirt,
                    )+
                }
            }
        }
    };
}

effects! {
    // Field          path below spec              KubeVirt               libvirt
    Template          "template"                   Resolved               Resolved,
    Backend           "backend"                    Refused                Refused,
    PowerState        "powerState"                 Live                   Live,
    GuestShutdownStops "guestShutdownStops"         Live                   Live,
    DeletionProtection "deletionProtection"         Live                   Live,
    // The firmware follows from it.
    Os                "os"                         RefusedWhileRunning    RefusedWhileRunning,
    Drivers           "drivers"                    Restart                Restart,
    // With maxCores, and on Windows, the cores are sockets.
    Cores             "resources.cpu.cores"        LiveMigrationOrRestart HotPlugOrRestart,
    Threads           "resources.cpu.threads"      Restart                Restart,
    Sockets           "resources.cpu.sockets"      LiveMigrationOrRestart HotPlugOrRestart,
    MaxSockets        "resources.cpu.maxSockets"   Restart                Restart,
    MaxCores          "resources.cpu.maxCores"     Restart                Restart,
    MemorySize        "resources.memory.size"      LiveMigrationOrRestart HotPlugOrRestart,
    MaxMemorySize     "resources.memory.maxSize"   Restart                Restart,
    CpuModel          "resources.cpu.model"        Restart                Restart,
    DedicatedCpu      "resources.cpu.dedicated"    Restart                Restart,
    Hugepages         "resources.memory.hugepages" Restart                Restart,
    Devices           "devices"                    Restart                Restart,
    Watchdog          "watchdog"                   Restart                Restart,
    // On libvirt the controller asks the agent, by the channel that every domain has.
    Readiness         "probes.readiness"           Restart                Live,
    Liveness          "probes.liveness"            Restart                Refused,
    // The guest loses a removed disk with this effect; its volume is kept, see `kept`.
    // KubeVirt plugs in and out with a feature gate, see `Warnings::offers`.
    Disk              "disks[].name"               HotPlugOrRestart       HotPlugOrRestart,
    DiskRemove        "disks[].remove"             HotPlugOrRestart       HotPlugOrRestart,
    // The guest has the new size at once; on KubeVirt before 1.8 with a feature gate, see `Warnings::offers`.
    DiskSize          "disks[].size"               Grow                   Grow,
    DiskBus           "disks[].bus"                Restart                Restart,
    DiskSerial        "disks[].serial"             Restart                Restart,
    DiskReclaimPolicy "disks[].reclaimPolicy"      Live                   Live,
    DiskStorageClass  "disks[].storageClass"       Refused                Refused,
    DiskAccessMode    "disks[].accessMode"         Refused                Refused,
    DiskVolumeMode    "disks[].volumeMode"         Refused                Refused,
    DiskImage         "disks[].image"              Refused                Refused,
    DiskClaimName     "disks[].claimName"          Refused                Refused,
    DiskShareable     "disks[].shareable"          Restart                Restart,
    DiskSelector      "disks[].selector"           Refused                Refused,
    DiskVolumeName    "disks[].volumeName"         Refused                Refused,
    // KubeVirt applies both by a live migration. It starts one by itself if the cluster allows it.
    Nic               "networks[].name"            LiveMigrationOrRestart HotPlugOrRestart,
    NicNetwork        "networks[].networkName"     LiveMigrationOrRestart Restart,
    NicModel          "networks[].model"           Restart                Restart,
    NicMac            "networks[].macAddress"      Restart                Restart,
    // The network configuration of cloud-init has them; a new one does not change the instance id of the seed. So it is never
    // pending on libvirt, also not when a card is added or removed.
    NicAddresses      "networks[].ipAddresses"     NewInstance            NewInstance,
    BootOrder         "bootOrder"                  Restart                Restart,
    Cdrom             "cdroms[].name"              Restart                Restart,
    // KubeVirt changes media with a feature gate, see `Warnings::offers`, in drives that are `hotpluggable`.
    CdromImage        "cdroms[].image"             HotPlugOrRestart       Live,
    // The image is imported again. A libvirt host reads it in place, so these fields of an imported volume are unused.
    CdromSize         "cdroms[].size"              HotPlugOrRestart       Nothing,
    CdromStorageClass "cdroms[].storageClass"      HotPlugOrRestart       Nothing,
    // On a libvirt host a new content is a new instance id in the seed, so cloud-init acts on it at the next start.
    UserData          "cloudInit.userData"         NewInstance            Restart,
    NetworkData       "cloudInit.networkData"      NewInstance            Restart,
    CloudConfig       "cloudInit.cloudConfig"      NewInstance            Restart,
    NetworkConfig     "cloudInit.networkConfig"    NewInstance            Restart,
    MetaData          "cloudInit.metaData"         NewInstance            Restart,
    UserDataSecret    "cloudInit.secretRef"        NewInstance            Restart,
    NetworkDataSecret "cloudInit.networkDataSecretRef" NewInstance            Restart,
    // Windows Setup reads its answer file once.
    Sysprep           "cloudInit.sysprep"          NewInstance            NewInstance,
    DisplayType       "display.type"               Restart                Restart,
    DisplayVideo      "display.video"              Restart                Restart,
    // A change of the Secret's content takes effect while the guest runs, too. KubeVirt's VNC takes no password.
    DisplayPassword   "display.passwordSecretRef"  Refused                Live,
    ConsoleLog        "console.log"                Restart                Restart,
    MachineType       "domain.machine.type"        RefusedWhileRunning    RefusedWhileRunning,
    Acpi              "domain.features.acpi"       Restart                Restart,
    Apic              "domain.features.apic"       Restart                Restart,
    Hyperv            "domain.features.hyperv"     Restart                Restart,
    Efi               "domain.firmware.bootloader.efi" RefusedWhileRunning    RefusedWhileRunning,
    SecureBoot        "domain.firmware.bootloader.secureBoot" RefusedWhileRunning    RefusedWhileRunning,
    // A libvirt host keeps the variables in a file in any case; without persistence each start begins with new ones.
    PersistentEfi     "domain.firmware.bootloader.persistent" Restart                Live,
    Clock             "domain.clock"               Restart                Restart,
    // A libvirt host is asked to shut the guest down by the controller, which also counts the time.
    GracePeriod       "terminationGracePeriodSeconds" Restart                Live,
    EvictionStrategy  "evictionStrategy"           Restart                Refused,
    Tpm               "domain.devices.tpm"         Restart                Restart,
    // The pod that the guest runs in keeps its group. A Machine that is bound to a libvirt host stays there until it is moved.
    Group             "placement.antiAffinityGroup" Restart                NextMove,
    // KubeVirt places the guest on another node when it is migrated, but does not migrate it for that. A Machine that is bound to
    // a libvirt host stays there until it is moved.
    NodeSelector      "nodeSelector"               NextMigrationOrRestart NextMove,
    Tolerations       "placement.tolerations"      NextMigrationOrRestart Refused,
    BackendOverrides  "backendOverrides"           Restart                Refused,
    // KubeVirt copies them into the running instance, but not to its pod.
    Affinity          "placement.affinity"         Restart                Refused,
    TopologySpread    "placement.topologySpreadConstraints" Restart                Refused,
    PriorityClass     "placement.priorityClassName" Restart                Refused,
    // No review announces a change of labels or annotations: only the status does. On KubeVirt the guest has labels outside
    // reserved domains, and the annotations that a MachinePolicy allows.
    Labels            "metadata.labels"            Restart                Nothing,
    Annotations       "metadata.annotations"       Restart                Nothing,
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
    fn every_field_of_the_spec_has_exactly_one_row_in_the_table() {
        let schema = serde_json::to_value(schemars::schema_for!(MachineSpec)).unwrap();
        let mut fields = BTreeSet::new();
        leaves(&schema, &schema, "", &mut fields);
        fields.retain(|path| path != "normalized" && !path.starts_with("normalized."));
        fields.retain(|path| !path.starts_with("normalized["));
        assert!(fields.len() > 40, "{fields:?}");
        fields.extend(["metadata.annotations", "metadata.labels"].map(str::to_owned));
        let covers = |field: &Field, path: &str| {
            let rest = path.strip_prefix(field.path());
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('.') || rest.starts_with("[].")
            })
        };
        for path in &fields {
            let rows = Field::ALL.iter().filter(|field| covers(field, path));
            assert_eq!(rows.count(), 1, "{path}");
        }
        for field in Field::ALL {
            let exists = fields.iter().any(|path| covers(field, path));
            assert!(exists, "{} is no field", field.path());
        }
    }
}
