//! Objects of KubeVirt, CDI and Multus, and claims, with only the fields that the controller reads.

mod attachment;
mod claim;
mod conditions;
mod data_volume;
mod guest_pod;
mod guests;
mod installation;
mod launcher;
mod migration;
mod storage_profile;

pub(crate) use self::attachment::Attachment;
pub(crate) use self::claim::Claim;
pub(crate) use self::conditions::{ForeignCondition, find_condition};
pub(crate) use self::data_volume::DataVolume;
pub(crate) use self::guest_pod::GuestPod;
pub(crate) use self::guests::{
    GuestOsInfo, GuestSummary, Instance, InstanceInterface, InstanceVolume, MigrationState,
    StartFailure, VirtualMachine, attachments,
};

pub(crate) use self::installation::Installation;
pub(crate) use self::launcher::{Launcher, launchers_of};
pub(crate) use self::migration::GuestMigration;
pub(crate) use self::storage_profile::StorageProfile;

#[cfg(test)]
mod tests {
    use controller_core::fixtures::{assert_survives_compression, with_full_metadata};
    use controller_core::objects::Meta as _;
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_with_unexpected_fields_decode_without_them() {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "u"},
            "spec": {"runStrategy": 5},
            "status": {"printableStatus": "NewInSomeVersion", "conditions": null},
        }))
        .unwrap();
        assert_eq!((vm.name(), vm.uid()), ("a", "u"));
        assert_eq!(vm.spec, VirtualMachine::default().spec);
        let claim: Claim = serde_json::from_value(json!({
            "metadata": {}, "status": {"phase": "Bound", "capacity": {"storage": "many"}},
        }))
        .unwrap();
        assert_eq!(claim.status.phase, "Bound");
        assert_eq!(claim.status.capacity.storage, None);
    }

    #[test]
    fn every_kind_is_unchanged_by_compression() {
        let conditions = json!([
            {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "m"},
            {"type": "Running", "status": "False"},
        ]);
        let guest = json!({
            "domain": {"cpu": {"cores": 2, "maxSockets": 4}, "memory": {"guest": "2Gi"},
                "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}, "bootOrder": 1}], "rng": {}}},
            "networks": [{"name": "a", "multus": {"networkName": "default/prod"}}],
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "web-root"}}],
        });
        assert_survives_compression(&with_full_metadata::<VirtualMachine>(&json!({
            "spec": {"runStrategy": "Always", "template": {"metadata": {"annotations": {"machine.vitistack.io/user-data": "7-a"}}, "spec": guest}},
            "status": {"printableStatus": "Running", "conditions": conditions},
        })));
        assert_survives_compression(&with_full_metadata::<Instance>(
            &json!({"spec": guest, "status": {
                "phase": "Running", "nodeName": "node-1", "guestOSInfo": {"name": "Fedora", "kernelRelease": "6"},
                "interfaces": [{"name": "a", "mac": "02:00:00:00:00:01", "ipAddresses": ["10.0.0.1"], "infoSource": "domain", "podInterfaceName": "eth0"}],
                "volumeStatus": [{"name": "a", "hotplugVolume": {}, "persistentVolumeClaimInfo": {"claimName": "web-a"}}], "evacuationNodeName": "node-1",
                "migrationState": {"completed": true, "failed": true, "failureReason": "f", "sourceNode": "a", "targetNode": "b"},
                "conditions": conditions, "currentCPUTopology": {"sockets": 2}, "memory": {"guestCurrent": "1Gi", "guestAtBoot": "1Gi"},
            }}),
        ));
        assert_survives_compression(&with_full_metadata::<Claim>(&json!({
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1500M"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}, "conditions": [{"type": "NodeResizeError", "status": "True"}]},
        })));
        assert_survives_compression(&with_full_metadata::<DataVolume>(&json!({"status": {
            "phase": "ImportInProgress", "progress": "12.5%", "conditions": conditions,
        }})));
        assert_survives_compression(&with_full_metadata::<Attachment>(
            &json!({"spec": {"config": "{}"}}),
        ));
    }
}
