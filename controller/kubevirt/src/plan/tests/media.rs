//! Media that KubeVirt changes in the drives of a running guest.

use common::api::normalized::NormalizedCdrom;
use common::names;
use common::quantity::Bytes;
use serde_json::json;

use super::images::image;
use super::pending::{kubevirt, pending, running};
use super::{edit, reported};
use crate::environment::{FakeCluster, claims_of, decode};
use controller_core::fixtures::{block, machine};
use controller_core::objects::Meta as _;

const GATE: &str = "DeclarativeHotplugVolumes";

fn drive(hotpluggable: bool) -> NormalizedCdrom {
    NormalizedCdrom {
        boot_order: None,
        hotpluggable,
        image: None,
        image_pin: None,
        name: "tools".into(),
        size: None,
        storage_class: None,
    }
}

/// Puts a medium into the drive, or takes it out.
fn put(environment: &mut FakeCluster, medium: Option<&str>) {
    edit(environment, |block| {
        let drive = &mut block.cdroms[0];
        drive.image = medium.map(|it| image(&format!("https://images.example.com/{it}.iso")));
        drive.size = medium.map(|_| Bytes::mib(1024));
        drive.storage_class = medium.map(|_| "standard".into());
    });
    environment.settle();
}

/// KubeVirt plugs in and out what the VirtualMachine says, and reports the volume in this phase.
fn plug(environment: &mut FakeCluster, phase: &str) {
    let template = environment.vm.as_ref().unwrap().spec.template.spec.clone();
    let instance = environment.instance.as_mut().unwrap();
    let volumes = template.volumes.iter();
    let volumes = volumes.filter(|volume| volume.is_plugged_in()).map(|volume| {
        let info = json!({"claimName": volume.claim()});
        decode(json!({
            "name": volume.name, "hotplugVolume": {}, "phase": phase, "persistentVolumeClaimInfo": info,
        }))
    });
    instance.status.volume_status = volumes.collect();
    instance.spec = template;
    environment.settle();
}

fn media(environment: &FakeCluster) -> Vec<String> {
    let claims = environment.claims.values();
    let media = claims.filter(|claim| claim.label(names::LABEL_DISK) == Some("tools"));
    media.map(|claim| claim.name().to_owned()).collect()
}

fn with(drive: NormalizedCdrom, gates: &[&str]) -> FakeCluster {
    let mut block = block();
    block.cdroms = vec![drive];
    let mut environment = FakeCluster::new(machine(block));
    environment.settings = Some(kubevirt("v1.8.4", gates));
    environment.settle();
    environment
}

#[test]
fn a_medium_is_plugged_in_and_out_and_its_claim_goes_with_it() {
    let mut environment = with(drive(true), &[GATE]);
    assert_eq!(pending(&environment), [[""; 4]; 0], "an empty drive");

    put(&mut environment, Some("debian"));
    let first = media(&environment);
    let change = ["cdroms[tools].image", "none", &first[0], "HotPlug"];
    assert_eq!(pending(&environment), [change]);
    let vm = environment.vm.as_ref().unwrap();
    let volume = &vm.spec.template.spec.volumes[1];
    assert!(volume.is_plugged_in() && !volume.is_foreign("web"));
    plug(&mut environment, "Pending");
    assert_eq!(pending(&environment), [change], "not in the guest yet");
    plug(&mut environment, "Ready");
    assert_eq!(pending(&environment), [[""; 4]; 0]);
    assert_eq!(reported(&environment, "RestartRequired").0, "");

    put(&mut environment, Some("drivers"));
    let both = media(&environment);
    assert_eq!(both.len(), 2, "the guest still has the first");
    let second = both.into_iter().find(|claim| *claim != first[0]).unwrap();
    let change = ["cdroms[tools].image", &first[0], &second, "HotPlug"];
    assert_eq!(pending(&environment), [change]);
    // The instance has lost the volume, and the guest is about to.
    let instance = environment.instance.as_mut().unwrap();
    instance.spec.volumes.truncate(1);
    environment.settle();
    assert_eq!(media(&environment).len(), 2);
    plug(&mut environment, "Ready");
    assert_eq!(media(&environment), [second]);

    put(&mut environment, None);
    assert_eq!(pending(&environment)[0][2..], ["none", "HotPlug"]);
    let drives = &environment.vm.as_ref().unwrap().spec.template.spec.domain;
    assert_eq!(drives.devices.disks.len(), 2, "the drive stays");
    plug(&mut environment, "Ready");
    assert_eq!(pending(&environment), [[""; 4]; 0]);
    assert_eq!(media(&environment), [""; 0]);
}

#[test]
fn a_medium_waits_for_a_restart_without_the_gate_and_in_a_drive_of_an_earlier_release() {
    for (hotpluggable, gates) in [(true, &[][..]), (false, &[GATE])] {
        let mut environment = with(drive(hotpluggable), gates);
        put(&mut environment, Some("debian"));
        plug(&mut environment, "Ready");
        let first = media(&environment);
        put(&mut environment, Some("drivers"));
        let changes = pending(&environment);
        assert_eq!(changes[0][0], "cdroms[tools].image");
        assert_eq!(
            (changes[0][1], changes[0][3]),
            (first[0].as_str(), "Restart")
        );
        assert_eq!(media(&environment).len(), 2);
    }
    // One that the guest was started with stays, although the VirtualMachine has it as one that is plugged in.
    let mut environment = with(drive(false), &[GATE]);
    put(&mut environment, Some("debian"));
    plug(&mut environment, "Ready");
    edit(&mut environment, |block| {
        block.cdroms[0].hotpluggable = true;
    });
    environment.settle();
    put(&mut environment, None);
    assert_eq!(pending(&environment)[0][3], "Restart");
}

#[test]
fn a_drive_that_is_added_or_removed_waits_for_a_restart() {
    let mut environment = running();
    environment.settings = Some(kubevirt("v1.8.4", &[GATE]));
    edit(&mut environment, |block| block.cdroms = vec![drive(false)]);
    environment.settle();
    let change = ["cdroms[tools]", "absent", "present", "Restart"];
    assert_eq!(pending(&environment), [change]);

    let mut environment = with(drive(true), &[GATE]);
    put(&mut environment, Some("debian"));
    plug(&mut environment, "Ready");
    edit(&mut environment, |block| block.cdroms.clear());
    environment.settle();
    let change = ["cdroms[tools]", "present", "absent", "Restart"];
    assert_eq!(pending(&environment), [change]);
}

#[test]
fn a_medium_that_others_put_into_an_empty_drive_stays_and_is_no_second_drive() {
    let mut environment = with(drive(true), &[GATE]);
    let source = json!({"claimName": "rescue", "hotpluggable": true});
    let vm = environment.vm.as_mut().unwrap();
    let volumes = &mut vm.spec.template.spec.volumes;
    volumes.push(decode(
        json!({"name": "tools", "persistentVolumeClaim": source}),
    ));
    assert_eq!(environment.settle(), [""; 0]);
    edit(&mut environment, |block| block.cpu.cores = 1);
    environment.settle();
    let vm = environment.vm.as_ref().unwrap();
    assert!(claims_of(vm).any(|claim| claim == "rescue"));
    assert_eq!(vm.spec.template.spec.domain.devices.disks.len(), 2);
    // The Machine's own medium replaces it.
    put(&mut environment, Some("debian"));
    let vm = environment.vm.as_ref().unwrap();
    assert!(claims_of(vm).all(|claim| claim != "rescue"));
}
