//! The action of `status.pendingChanges`, by the table of update effects.

use crate::api::choice::{Backend, PendingAction};

use super::effects::{Effect, Field};

/// What brings a pending change into effect.
///
/// `field` is a path of the block as `status.pendingChanges` has it, such as `disks[data].bus`.
/// `in_progress`: whether the backend is applying the change to the running guest, or can.
///
/// A change that the table does not allow on a running guest needs a restart whatever the backend
/// reports, so the action is never one that admission has not announced.
pub fn pending_action(backend: Backend, field: &str, in_progress: bool) -> PendingAction {
    match pending_effect(backend, field) {
        _ if !in_progress => PendingAction::Restart,
        Some(Effect::Live | Effect::HotPlugOrRestart | Effect::Grow) => PendingAction::HotPlug,
        Some(Effect::LiveMigrationOrRestart | Effect::NextMigrationOrRestart) => {
            PendingAction::LiveMigration
        }
        _ => PendingAction::Restart,
    }
}

/// The effect of a change of a field, by its path in the block; `None`: it is no field of the table.
pub fn pending_effect(backend: Backend, field: &str) -> Option<Effect> {
    changed_field(field).map(|field| field.effect(backend))
}

/// The row of the table for a path of the block.
fn changed_field(path: &str) -> Option<Field> {
    let (list, rest) = match path.split_once('[') {
        Some((list, rest)) => (list, rest.split_once(']').map(|(_, rest)| rest)),
        None => (path, None),
    };
    let field = match (list, rest) {
        // In the block, the cores are those of a socket, which a running guest keeps as it is.
        ("cpu.cores" | "cpu.threads", _) => Field::Threads,
        ("cpu.sockets", _) => Field::Sockets,
        ("cpu.maxSockets", _) => Field::MaxSockets,
        ("memory.size", _) => Field::MemorySize,
        ("memory.maxSize", _) => Field::MaxMemorySize,
        ("cpu.model", _) => Field::CpuModel,
        ("cpu.dedicated", _) => Field::DedicatedCpu,
        ("memory.hugepages", _) => Field::Hugepages,
        ("devices", _) => Field::Devices,
        ("watchdog", _) => Field::Watchdog,
        ("probes.readiness", _) => Field::Readiness,
        ("probes.liveness", _) => Field::Liveness,
        ("machineType", _) => Field::MachineType,
        ("firmware", _) => Field::Efi,
        ("firmware.persistent", _) => Field::PersistentEfi,
        ("tpm", _) => Field::Tpm,
        ("clock.timezone", _) => Field::Clock,
        ("terminationGracePeriodSeconds", _) => Field::GracePeriod,
        ("evictionStrategy", _) => Field::EvictionStrategy,
        ("placement.antiAffinityGroup", _) => Field::Group,
        ("placement.tolerations", _) => Field::Tolerations,
        ("placement.priorityClassName", _) => Field::PriorityClass,
        ("metadata.labels", _) => Field::Labels,
        ("metadata.annotations", _) => Field::Annotations,
        ("backendOverrides", _) => Field::BackendOverrides,
        ("placement.affinity", _) => Field::Affinity,
        ("placement.topologySpreadConstraints", _) => Field::TopologySpread,
        ("features.acpi", _) => Field::Acpi,
        ("features.apic", _) => Field::Apic,
        ("features.hyperv", _) => Field::Hyperv,
        ("display.type", _) => Field::DisplayType,
        ("display.video", _) => Field::DisplayVideo,
        ("display.passwordSecretRef", _) => Field::DisplayPassword,
        ("console.log", _) => Field::ConsoleLog,
        ("nodeSelector", _) => Field::NodeSelector,
        ("cloudInit", _) => Field::UserData,
        ("os", _) => Field::Os,
        ("cloudInit.sysprep", _) => Field::Sysprep,
        ("cloudInit.secretRef", _) => Field::UserDataSecret,
        ("cloudInit.networkDataSecretRef", _) => Field::NetworkDataSecret,
        ("disks", Some("")) => Field::Disk,
        ("disks", Some(".size")) => Field::DiskSize,
        ("disks", Some(".bus")) => Field::DiskBus,
        ("disks", Some(".serial")) => Field::DiskSerial,
        ("disks", Some(".shareable")) => Field::DiskShareable,
        ("disks", Some(".accessMode")) => Field::DiskAccessMode,
        ("disks", Some(".volume")) => Field::DiskImage,
        ("networks", Some("")) => Field::Nic,
        ("networks", Some(".networkName" | ".mtu")) => Field::NicNetwork,
        ("networks", Some(".model")) => Field::NicModel,
        ("networks", Some(".macAddress")) => Field::NicMac,
        ("networks", Some(".ipAddresses")) => Field::NicAddresses,
        ("cdroms", Some("")) => Field::Cdrom,
        ("cdroms", Some(".image")) => Field::CdromImage,
        ("disks" | "networks" | "cdroms", Some(".bootOrder")) => Field::BootOrder,
        _ => return None,
    };
    Some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_other_than_restart_requires_a_live_effect_in_the_table() {
        use PendingAction::{HotPlug, LiveMigration, Restart};
        for (field, kubevirt, libvirt) in [
            ("cpu.sockets", LiveMigration, HotPlug),
            ("memory.size", LiveMigration, HotPlug),
            ("cpu.cores", Restart, Restart),
            ("cpu.model", Restart, Restart),
            ("cpu.dedicated", Restart, Restart),
            ("memory.hugepages", Restart, Restart),
            ("devices[gpu]", Restart, Restart),
            ("watchdog", Restart, Restart),
            ("probes.readiness", Restart, HotPlug),
            ("probes.liveness", Restart, Restart),
            ("disks[data]", HotPlug, HotPlug),
            ("disks[data].size", HotPlug, HotPlug),
            ("disks[data].bus", Restart, Restart),
            ("disks[data].serial", Restart, Restart),
            ("disks[data].shareable", Restart, Restart),
            ("networks[eth0]", LiveMigration, HotPlug),
            ("networks[eth0].networkName", LiveMigration, Restart),
            ("nodeSelector", LiveMigration, Restart),
            ("networks[eth0].model", Restart, Restart),
            ("display.type", Restart, Restart),
            ("display.video", Restart, Restart),
            ("console.log", Restart, Restart),
            ("cdroms[iso]", Restart, Restart),
            ("cdroms[iso].image", HotPlug, HotPlug),
            ("firmware.persistent", Restart, HotPlug),
            ("tpm", Restart, Restart),
            ("clock.timezone", Restart, Restart),
            ("terminationGracePeriodSeconds", Restart, HotPlug),
            ("evictionStrategy", Restart, Restart),
            ("placement.antiAffinityGroup", Restart, Restart),
            ("placement.tolerations", LiveMigration, Restart),
            ("placement.priorityClassName", Restart, Restart),
            ("placement.affinity", Restart, Restart),
            ("backendOverrides", Restart, Restart),
            ("metadata.annotations", Restart, Restart),
            ("metadata.labels", Restart, Restart),
            ("placement.topologySpreadConstraints", Restart, Restart),
            ("cloudInit", Restart, Restart),
            ("os", Restart, Restart),
            ("cloudInit.sysprep", Restart, Restart),
            ("cloudInit.secretRef", Restart, Restart),
            ("unknown", Restart, Restart),
        ] {
            assert_eq!(
                pending_action(Backend::Kubevirt, field, true),
                kubevirt,
                "{field}"
            );
            assert_eq!(
                pending_action(Backend::Libvirt, field, true),
                libvirt,
                "{field}"
            );
            for backend in [Backend::Kubevirt, Backend::Libvirt] {
                assert_eq!(pending_action(backend, field, false), Restart, "{field}");
            }
        }
    }
}
