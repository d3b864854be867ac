//! Objects of KubeVirt, CDI and Multus, and claims, with only the fields that the controller reads.

mod attachment;
mod claim;
mod conditions;
mod data_volume;
mod guests;

pub(crate) use self::attachment::Attachment;
pub(crate) use self::claim::Claim;
pub(crate) use self::conditions::{ForeignCondition, find_condition};
pub(crate) use self::data_volume::DataVolume;
pub(crate) use self::guests::{
    GuestOsInfo, GuestSummary, Instance, InstanceInterface, VirtualMachine, attachments,
};

#[cfg(test)]
mod tests {
    use std::fmt;

    use controller_core::cache::compressed::Compressed;
    use controller_core::objects::Meta as _;
    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

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

    fn assert_unchanged_by_compression<T: Serialize + DeserializeOwned + fmt::Debug>(value: &T) {
        let back = Compressed::new(value).decompress();
        assert_eq!(format!("{back:?}"), format!("{value:?}"));
    }

    fn decoded<T: DeserializeOwned>(object: &Value) -> T {
        let metadata = json!({
            "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7",
            "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"vitistack.io/machine": "web"}, "annotations": {"vitistack.io/x": "\"ü\n"},
            "finalizers": ["a"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "b", "uid": "c"}],
        });
        let mut object = object.clone();
        object["metadata"] = metadata;
        serde_json::from_value(object).unwrap()
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
        assert_unchanged_by_compression(&decoded::<VirtualMachine>(&json!({
            "spec": {"runStrategy": "Always", "template": {"metadata": {"annotations": {"machine.vitistack.io/user-data": "7-a"}}, "spec": guest}},
            "status": {"printableStatus": "Running", "conditions": conditions},
        })));
        assert_unchanged_by_compression(&decoded::<Instance>(&json!({"spec": guest, "status": {
            "phase": "Running", "nodeName": "node-1", "guestOSInfo": {"name": "Fedora", "kernelRelease": "6"},
            "interfaces": [{"name": "a", "mac": "02:00:00:00:00:01", "ipAddresses": ["10.0.0.1"]}],
            "conditions": conditions, "currentCPUTopology": {"sockets": 2}, "memory": {"guestCurrent": "1Gi"},
        }})));
        assert_unchanged_by_compression(&decoded::<Claim>(&json!({
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1500M"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}, "conditions": [{"type": "NodeResizeError", "status": "True"}]},
        })));
        assert_unchanged_by_compression(&decoded::<DataVolume>(&json!({"status": {
            "phase": "ImportInProgress", "progress": "12.5%", "conditions": conditions,
        }})));
        assert_unchanged_by_compression(&decoded::<Attachment>(&json!({"spec": {"config": "{}"}})));
    }
}
