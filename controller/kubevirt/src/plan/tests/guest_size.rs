//! Disks that grow where KubeVirt gives a running guest their size, and where it does not.

use common::api::choice::{Choice as _, VolumeMode};
use common::names;
use common::quantity::Bytes;

use super::pending::{kubevirt, pending, running};
use super::{edit, reported};
use crate::environment::{FakeCluster, decode};
use controller_core::objects::Meta as _;
use serde_json::json;

const GIB: u64 = 1024;

/// A Machine that runs, whose disk has a volume of this mode, on a KubeVirt with these gates.
fn on(mode: VolumeMode, version: &str, gates: &[&str]) -> FakeCluster {
    let mut environment = running();
    environment.settings = Some(kubevirt(version, gates));
    edit(&mut environment, |block| block.disks[0].volume_mode = mode);
    let claim = environment.claims.get_mut("web-root").unwrap();
    claim.spec.volume_mode = Some(mode.as_str().to_owned());
    environment.settle();
    environment
}

fn grow(environment: &mut FakeCluster, gib: u64) {
    edit(environment, |block| {
        block.disks[0].size = Bytes::mib(gib * GIB);
    });
    environment.settle();
    let claim = environment.claims.get_mut("web-root").unwrap();
    claim.status.capacity.storage = Some(Bytes::mib(gib * GIB));
    environment.settle();
}

fn record(environment: &FakeCluster) -> Option<&str> {
    environment.claims["web-root"].annotation(names::ANNOTATION_SIZE_IN_GUEST)
}

#[test]
fn a_guest_that_gets_the_size_at_once_has_nothing_pending() {
    for (version, gates) in [("v1.7.2", &["ExpandDisks"][..]), ("v1.8.0", &[]), ("", &[])] {
        let mut environment = on(VolumeMode::Filesystem, version, gates);
        grow(&mut environment, 30);
        assert_eq!(record(&environment), None, "{version}");
        assert_eq!(pending(&environment), [[""; 4]; 0], "{version}");
    }
}

#[test]
fn a_block_device_has_its_size_after_a_restart() {
    let mut environment = on(VolumeMode::Block, "v1.7.2", &[]);
    grow(&mut environment, 30);
    let change = ["disks[root].size", "20Gi", "30Gi", "Restart"];
    assert_eq!(pending(&environment), [change]);
    assert_eq!(reported(&environment, "RestartRequired").0, "True");
    // The size in the guest stays that of its start, however often the volume grows.
    grow(&mut environment, 40);
    let change = ["disks[root].size", "20Gi", "40Gi", "Restart"];
    assert_eq!(pending(&environment), [change]);

    let instance = environment.instance.as_mut().unwrap();
    instance.metadata.uid = Some("another".into());
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);
    // The next growth is that of this guest.
    grow(&mut environment, 50);
    let change = ["disks[root].size", "40Gi", "50Gi", "Restart"];
    assert_eq!(pending(&environment), [change]);
}

#[test]
fn a_file_keeps_its_size_until_the_gate_is_enabled() {
    let mut environment = on(VolumeMode::Filesystem, "v1.7.2", &[]);
    grow(&mut environment, 30);
    let desired = "30Gi, with KubeVirt's feature gate ExpandDisks";
    let change = ["disks[root].size", "20Gi", desired, "Restart"];
    assert_eq!(pending(&environment), [change]);
    environment.instance = None;
    environment.settle();
    assert_eq!(pending(&environment), [change], "after a restart");

    environment.settings = Some(kubevirt("v1.7.2", &["ExpandDisks"]));
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);
    assert_eq!(record(&environment), None);
}

#[test]
fn a_claim_is_in_use_until_the_status_of_the_instance_has_left_it() {
    let mut environment = running();
    let instance = environment.instance.as_mut().unwrap();
    assert!(!instance.uses("web-gone"));
    let info = json!({"claimName": "web-gone"});
    let volume = json!({"name": "gone", "phase": "Detaching", "persistentVolumeClaimInfo": info});
    instance.status.volume_status = vec![decode(volume)];
    assert!(instance.uses("web-gone"));
}
