//! Machines and clusters in which the laws are examined.

use common::api::choice::{PowerState, ReclaimPolicy};
use common::api::machine::{CloudInit, Image, SecretKeyRef};
use common::api::normalized::{ImagePin, Normalized, NormalizedTpm};
use common::names;
use common::quantity::Bytes;
use common::render::{CloudInitPlan, SecretKey};
use controller_core::fixtures::{annotate, block, disk, existing_disk, machine, nic};
use controller_core::laws::Environment as _;
use controller_core::machine::Block;
use controller_core::objects::Meta as _;
use serde_json::json;

use super::{FakeCluster, decode};

/// A Machine with a disk that is deleted with it and one that is kept, a Secret for cloud-init, and a network.
pub(super) fn new() -> FakeCluster {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    block.networks = vec![nic("eth0", Some("prod"))];
    let mut machine = machine(block);
    machine.cloud_init = CloudInitPlan::from(&CloudInit {
        user_data: Some("#".repeat(4000)),
        ..CloudInit::default()
    });
    let mut cluster = FakeCluster::new(machine);
    cluster.add_network("prod", "br0");
    cluster
}

/// A Machine whose disk is made of an image.
pub(super) fn importing() -> FakeCluster {
    let mut block = block();
    block.disks[0].image = Some(Image {
        url: Some("https://images.example.com/debian.qcow2".into()),
        ..Image::default()
    });
    FakeCluster::new(machine(block))
}

/// A Machine whose user data is in a Secret of the user.
pub(super) fn with_secret() -> FakeCluster {
    let mut cluster = new();
    let (name, key) = ("mine", "userdata");
    cluster.machine_mut().cloud_init = CloudInitPlan::from(&CloudInit {
        secret_ref: Some(SecretKeyRef {
            name: Some(name.into()),
            key: Some(key.into()),
        }),
        ..CloudInit::default()
    });
    let (name, key) = (name.into(), key.into());
    cluster.write_secret(&SecretKey { name, key }, "#cloud-config");
    cluster
}

/// A Machine with a disk on an existing claim.
pub(super) fn existing() -> FakeCluster {
    let mut block = block();
    block.existing_disks.push(existing_disk("old", "old-disk"));
    let mut environment = FakeCluster::new(machine(block));
    let claim = json!({
        "metadata": {"name": "old-disk", "namespace": "default", "uid": "uid-of-old-disk"},
        "status": {"phase": "Bound"},
    });
    environment.claims.insert("old-disk".into(), decode(claim));
    environment
}

/// A Machine whose guest waits for a node, and whose spec has changed since.
pub(super) fn waiting() -> FakeCluster {
    let mut cluster = new();
    cluster.is_full = true;
    cluster.settle();
    let machine = cluster.machine_mut();
    let mut block = machine.desired().expect("the Machine has a block").clone();
    block.cpu.cores = 1;
    machine.block = Block::Matching(Box::new(block));
    cluster
}

/// A Machine whose image is downloaded without an end.
pub(super) fn hanging() -> FakeCluster {
    let mut cluster = importing();
    cluster.imports_hang = true;
    cluster
}

/// A Machine for whose guest no node has room.
pub(super) fn full() -> FakeCluster {
    let mut cluster = new();
    cluster.is_full = true;
    cluster
}

/// A Machine whose storage class was deleted after its admission.
pub(super) fn without_class() -> FakeCluster {
    let mut cluster = new();
    cluster.classes.clear();
    cluster
}

/// A Machine whose network was deleted after its admission.
pub(super) fn without_network() -> FakeCluster {
    let mut cluster = new();
    cluster.networks.clear();
    cluster
}

/// A Machine whose existing claim another VirtualMachine uses.
pub(super) fn with_taken_claim() -> FakeCluster {
    let mut cluster = existing();
    cluster.use_volume("old-disk");
    cluster
}

/// A Machine whose disk was kept of a former Machine, and another VirtualMachine uses it.
pub(super) fn with_taken_kept_claim() -> FakeCluster {
    let mut cluster = new();
    cluster.settle();
    cluster.delete_machine();
    cluster.settle();
    let mut next = new().machine().clone();
    next.metadata.uid = Some("uid-of-next".into());
    cluster.machine = Some(next);
    cluster.use_volume("web-data");
    cluster
}

/// A Machine of a cluster without KubeVirt.
pub(super) fn without_kubevirt() -> FakeCluster {
    let mut cluster = new();
    cluster.kubevirt = false;
    cluster
}

fn edit(cluster: &mut FakeCluster, change: impl FnOnce(&mut Normalized)) {
    let machine = cluster.machine_mut();
    let mut block = machine.desired().expect("the Machine has a block").clone();
    change(&mut block);
    machine.block = Block::Matching(Box::new(block));
}

/// A Machine of which every object that can be changed has to be.
pub(super) fn changed() -> FakeCluster {
    let mut cluster = new();
    cluster.settle();
    cluster.add_network("prod", "br1");
    let machine = cluster.machine_mut();
    machine.is_protected = true;
    machine.cloud_init = CloudInitPlan::from(&CloudInit {
        user_data: Some("-".repeat(4000)),
        ..CloudInit::default()
    });
    cluster
}

/// A Machine whose disk is a clone of a MachineImage.
pub(super) fn of_machine_image() -> FakeCluster {
    let mut block = block();
    block.disks[0].image = Some(Image {
        name: Some("debian-13".into()),
        url: Some("https://images.example.com/debian.qcow2".into()),
        ..Image::default()
    });
    block.disks[0].image_pin = Some(ImagePin {
        data_source: None,
        efi: None,
        min_disk_size: Bytes::mib(1024),
        os: None,
    });
    FakeCluster::new(machine(block))
}

/// A Machine whose guest has a TPM, the content of which is kept with a disk.
pub(super) fn with_state() -> FakeCluster {
    let mut cluster = new();
    edit(&mut cluster, |block| {
        block.tpm = Some(NormalizedTpm { persistent: true });
    });
    cluster.settle();
    let owner = cluster.vm.as_ref().expect("there is a VirtualMachine");
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": owner.uid(),
    });
    let claim = json!({
        "metadata": {
            "name": "persistent-state-for-web-x2x9k", "namespace": "default", "uid": "uid-of-state",
            "resourceVersion": "1", "labels": {names::LABEL_STATE: "web"}, "ownerReferences": [owner],
        },
        "status": {"phase": "Bound"},
    });
    let claim: crate::objects::Claim = decode(claim);
    cluster.claims.insert(claim.name().to_owned(), claim);
    cluster
}

/// A Machine that is off and has lost a disk. Its user has confirmed that it is made anew, and that state is discarded of
/// which there is none.
pub(super) fn confirmed() -> FakeCluster {
    let mut cluster = new();
    cluster.settle();
    edit(&mut cluster, |block| {
        block.power_state = PowerState::Stopped;
    });
    cluster.settle();
    cluster.claims.remove("web-data");
    cluster.settle();
    let machine = cluster.machine_mut();
    annotate(machine, names::ANNOTATION_RECREATE_VOLUME, "data");
    annotate(machine, names::ANNOTATION_DISCARD_STATE, "efi, tpm");
    cluster
}

/// A Machine with a guest that runs, and with this annotation.
fn requesting(annotation: &str) -> FakeCluster {
    let mut cluster = new();
    cluster.settle();
    annotate(cluster.machine_mut(), annotation, "now");
    cluster
}

/// A Machine that is restarted when no node has room for its guest any more.
pub(super) fn restarting() -> FakeCluster {
    let mut cluster = requesting(names::ANNOTATION_RESTART_REQUESTED);
    cluster.is_full = true;
    cluster
}

/// A Machine whose guest is moved to another node, without an end.
pub(super) fn migrating() -> FakeCluster {
    let mut cluster = requesting(names::ANNOTATION_MIGRATE_REQUESTED);
    cluster.migrations_hang = true;
    cluster
}

/// A Machine whose guest is to be moved to another node, which the API server does not take.
pub(super) fn unmoved() -> FakeCluster {
    let mut cluster = migrating();
    cluster.failing.insert("virtualmachineinstancemigrations");
    cluster
}

/// A Machine whose guest is to be reset, which KubeVirt does not answer.
pub(super) fn resetting() -> FakeCluster {
    let mut cluster = requesting(names::ANNOTATION_RESET_REQUESTED);
    cluster.failing.insert("subresources.kubevirt.io");
    cluster
}
