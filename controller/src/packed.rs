//! A value at rest, as its JSON text, compressed: a fifth of the memory that its fields take.
//!
//! A controller keeps every Machine and all that was made of it, and looks at each of them twice a
//! minute when nothing happens. What a pass needs is opened for the pass, in some microseconds each.

use std::fmt;
use std::marker::PhantomData;

use lz4_flex::block::{compress_prepend_size, decompress_size_prepended};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A `T` at rest.
pub(crate) struct Packed<T> {
    compressed: Box<[u8]>,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Packed<T> {
    fn clone(&self) -> Self {
        Self {
            compressed: self.compressed.clone(),
            value: PhantomData,
        }
    }
}

/// Whatever is equal decodes to equal values.
impl<T> PartialEq for Packed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.compressed == other.compressed
    }
}

/// Without the content, which may be a user's.
impl<T> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} bytes)", self.compressed.len())
    }
}

impl<T: Serialize + DeserializeOwned> Packed<T> {
    #[expect(
        clippy::expect_used,
        reason = "derived, with texts as keys: what is kept here always encodes"
    )]
    pub(crate) fn of(value: &T) -> Self {
        let text = serde_json::to_vec(value).expect("a value that encodes");
        let compressed = compress_prepend_size(&text);
        Self {
            // A copy, so that nothing is left over behind it.
            compressed: compressed.as_slice().into(),
            value: PhantomData,
        }
    }

    #[expect(
        clippy::expect_used,
        reason = "the text is that of a value, and a test decodes one of every kind"
    )]
    pub(crate) fn open(&self) -> T {
        let text = decompress_size_prepended(&self.compressed).expect("what was compressed");
        serde_json::from_slice(&text).expect("the text of a value")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::data_volume::DataVolume;
    use crate::fixtures;
    use crate::machine::{Machine, Stored};
    use crate::objects::{
        Attachment, Claim, Instance, Network, Secret, StorageClass, Template, VirtualMachine,
    };

    fn comes_back<T: Serialize + DeserializeOwned + fmt::Debug>(value: &T) {
        let back = Packed::of(value).open();
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
    fn every_kind_comes_back_as_it_was() {
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
        comes_back(&decoded::<VirtualMachine>(&json!({
            "spec": {"runStrategy": "Always", "template": {"metadata": {"annotations": {"machine.vitistack.io/user-data": "7-a"}}, "spec": guest}},
            "status": {"printableStatus": "Running", "conditions": conditions},
        })));
        comes_back(&decoded::<Instance>(&json!({"spec": guest, "status": {
            "phase": "Running", "nodeName": "node-1", "guestOSInfo": {"name": "Fedora", "kernelRelease": "6"},
            "interfaces": [{"name": "a", "mac": "02:00:00:00:00:01", "ipAddresses": ["10.0.0.1"]}],
            "conditions": conditions, "currentCPUTopology": {"sockets": 2}, "memory": {"guestCurrent": "1Gi"},
        }})));
        comes_back(&decoded::<Claim>(&json!({
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1500M"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}, "conditions": [{"type": "NodeResizeError", "status": "True"}]},
        })));
        comes_back(&decoded::<DataVolume>(&json!({"status": {
            "phase": "ImportInProgress", "progress": "12.5%", "conditions": conditions,
        }})));
        comes_back(&decoded::<Secret>(&json!({})));
        comes_back(&decoded::<StorageClass>(
            &json!({"allowVolumeExpansion": true}),
        ));
        comes_back(&decoded::<Network>(
            &json!({"spec": {"vlan": 100, "bridge": "br0"}}),
        ));
        comes_back(&decoded::<Attachment>(&json!({"spec": {"config": "{}"}})));
        comes_back(&decoded::<Template>(
            &json!({"spec": {"cpu": {"cores": 2}}}),
        ));
    }

    #[test]
    fn a_machine_comes_back_as_it_was() {
        let mut machine = fixtures::machine(fixtures::block());
        machine.status = fixtures::ready("False", "PVCPending");
        machine.cloud_init = serde_json::from_value(json!({
            "user": {"Inline": "#cloud-config\n"}, "network": {"Secret": {"name": "a", "key": "b"}},
            "meta": {"instance-id": "x"},
        }))
        .unwrap();
        comes_back::<Machine>(&machine);
        let stored = Stored::from(machine.clone());
        assert_eq!(format!("{:?}", stored.open()), format!("{machine:?}"));
        for block in [
            crate::machine::Block::Missing,
            crate::machine::Block::Stale,
            crate::machine::Block::Unreadable("why".into()),
        ] {
            machine.block = block;
            comes_back::<Machine>(&machine);
        }
    }

    #[test]
    fn nothing_of_the_content_is_printed() {
        let packed = Packed::of(&"secret".repeat(10));
        assert!(!format!("{packed:?}").contains("secret"));
    }
}
