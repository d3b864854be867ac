//! A block for unit tests.

use serde_json::json;

use super::Normalized;
use crate::api::choice::Backend;

/// A block with one disk.
pub(crate) fn block(backend: Backend) -> Normalized {
    let block = json!({
        "version": 1,
        "intentHash": "sha256:0",
        "backend": backend,
        "powerState": "Running",
        "guestShutdownStops": false,
        "cpu": {"sockets": 1, "cores": 1, "threads": 1, "maxSockets": 1},
        "memory": {"size": "2Gi", "maxSize": "2Gi"},
        "machineType": "q35",
        "firmware": {"type": "bios"},
        "features": {"acpi": true, "apic": true, "hyperv": false},
        "disks": [{
            "name": "root", "size": "20Gi", "storageClass": "standard",
            "accessMode": "ReadWriteOnce", "volumeMode": "Filesystem", "bus": "virtio",
            "bootOrder": 1, "reclaimPolicy": "Delete",
        }],
        "cdroms": [],
        "networks": [],
        "nodeSelector": {},
    });
    serde_json::from_value(block).unwrap()
}
