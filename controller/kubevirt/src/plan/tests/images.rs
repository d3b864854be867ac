//! Disks and media with an image.

use common::api::choice::{Phase, ReclaimPolicy};
use common::api::machine::Image;
use common::api::normalized::NormalizedCdrom;
use common::names;
use common::quantity::Bytes;
use serde_json::json;

use super::{edit, message, phase, reported};
use crate::environment::moves::{owner, set_import_phase};
use crate::environment::{FakeCluster, claims_of, decode};
use controller_core::fixtures::{block, disk, machine};
use controller_core::objects::Meta as _;

pub(super) fn image(url: &str) -> Image {
    Image {
        url: Some(url.to_owned()),
        ..Image::default()
    }
}

/// A Machine whose disk `data` has an image.
fn filled(image: Image, policy: ReclaimPolicy) -> FakeCluster {
    let mut block = block();
    block.disks.push(disk("data", policy));
    block.disks[1].image = Some(image);
    FakeCluster::new(machine(block))
}

fn from_the_web(policy: ReclaimPolicy) -> FakeCluster {
    filled(image("https://images.example.com/debian.qcow2"), policy)
}

/// Status, reason and message of `StorageReady`.
fn storage(environment: &FakeCluster) -> (&str, &str, &str) {
    let (status, reason) = reported(environment, "StorageReady");
    (status, reason, message(environment, "StorageReady"))
}

/// Name, phase and progress of each volume.
fn volumes(environment: &FakeCluster) -> Vec<(&str, &str, Option<&str>)> {
    let volumes = environment.machine().status.volumes.iter();
    volumes
        .map(|volume| {
            let phase = volume.phase.as_deref().unwrap();
            (volume.name.as_str(), phase, volume.progress.as_deref())
        })
        .collect()
}

#[test]
fn the_virtual_machine_is_created_once_the_image_is_imported() {
    let mut environment = from_the_web(ReclaimPolicy::Delete);
    let first = [
        "added the finalizer",
        "created PersistentVolumeClaim web-root",
        "created DataVolume web-data",
    ];
    assert_eq!(environment.pass(), first);
    assert_eq!(phase(&environment), Some(Phase::Creating));
    let (status, reason, text) = storage(&environment);
    assert_eq!((status, reason), ("False", "ImageImporting"));
    assert!(text.contains("'data' is being imported"), "{text}");
    assert_eq!(reported(&environment, "Ready"), ("False", "ImageImporting"));
    assert_eq!(
        volumes(&environment),
        [("root", "Pending", None), ("data", "Pending", None)]
    );

    environment.advance_kubevirt();
    environment.advance_kubevirt();
    let import = environment.data_volumes.get_mut("web-data").unwrap();
    import.status.progress = "42.50%".into();
    assert_eq!(environment.pass(), [""; 0]);
    assert_eq!(
        volumes(&environment),
        [("root", "Bound", None), ("data", "Bound", Some("40%"))]
    );

    let done = environment.settle();
    assert_eq!(
        done,
        [
            "released PersistentVolumeClaim web-data from its DataVolume",
            "created the VirtualMachine"
        ]
    );
    assert_eq!(phase(&environment), Some(Phase::Running));
    assert_eq!(reported(&environment, "StorageReady"), ("True", "PVCBound"));
    assert_eq!(volumes(&environment)[1], ("data", "Bound", None));
    assert!(environment.data_volumes.is_empty());
    let claim = &environment.claims["web-data"];
    assert_eq!(claim.data_volume(), None);
    assert!(claim.belongs_to("web", "uid-of-web"));

    // The finished claim is treated like any other disk.
    let larger = Bytes::mib(30 * 1024);
    edit(&mut environment, |block| block.disks[1].size = larger);
    assert_eq!(
        environment.settle(),
        ["updated PersistentVolumeClaim web-data"]
    );
}

#[test]
fn a_first_consumer_class_gets_the_guest_before_the_import() {
    let mut environment = from_the_web(ReclaimPolicy::Delete);
    environment.first_consumer = true;
    environment.pass();
    assert!(environment.vm.is_none());
    environment.advance_kubevirt();
    environment.advance_kubevirt();
    assert_eq!(
        environment.data_volumes["web-data"].status.phase,
        "WaitForFirstConsumer"
    );
    assert_eq!(environment.pass(), ["created the VirtualMachine"]);
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
    assert!(environment.data_volumes.is_empty());
    assert_eq!(environment.claims["web-data"].data_volume(), None);
}

#[test]
fn an_import_on_a_class_that_cdi_does_not_know_says_so_before_it_fails() {
    let mut environment = from_the_web(ReclaimPolicy::Delete);
    environment.unprofiled.insert("another".into());
    environment.pass();
    let (_, reason, text) = storage(&environment);
    assert_eq!(reason, "ImageImporting");
    assert!(!text.contains("StorageProfile"), "{text}");
    environment.unprofiled.insert("standard".into());
    environment.pass();
    let (_, reason, text) = storage(&environment);
    assert_eq!(reason, "ImageImporting");
    let cause = "the StorageProfile 'standard' of CDI names no access mode of this class";
    let remedy = "see that the class provides ReadWriteOnce volumes of the mode Filesystem";
    assert!(text.contains(cause) && text.contains(remedy), "{text}");
}

#[test]
fn a_failed_import_quotes_cdi() {
    let mut environment = from_the_web(ReclaimPolicy::Delete);
    environment.pass();
    environment.advance_kubevirt();
    let set_import = |environment: &mut FakeCluster, phase: &str, reason: &str| {
        let import = environment.data_volumes.get_mut("web-data").unwrap();
        set_import_phase(import, phase);
        import.status.conditions = decode(json!([{
            "type": "Running", "status": "False", "reason": reason, "message": "404 Not Found",
        }]));
        environment.pass();
    };
    set_import(&mut environment, "ImportInProgress", "Error");
    let (status, reason, text) = storage(&environment);
    assert_eq!((status, reason), ("False", "ImageImportFailed"));
    assert!(text.contains("CDI tries again: 404 Not Found"), "{text}");
    assert_eq!(
        phase(&environment),
        Some(Phase::Creating),
        "CDI continues automatically"
    );
    assert!(environment.vm.is_none());

    set_import(&mut environment, "ImportScheduled", "Pending");
    let (_, reason, text) = storage(&environment);
    assert_eq!(reason, "ImageImporting");
    assert!(text.ends_with("CDI reports: 404 Not Found"), "{text}");

    // CDI makes no claim, and does not try to.
    let import = environment.data_volumes.get_mut("web-data").unwrap();
    set_import_phase(import, "Pending");
    import.status.conditions = decode(json!([{
        "type": "Bound", "status": "False", "reason": "ErrClaimNotValid",
        "message": "no accessMode specified in StorageProfile fast",
    }]));
    environment.pass();
    let (_, reason, text) = storage(&environment);
    assert_eq!(reason, "ImageImportFailed");
    assert!(text.ends_with("specified in StorageProfile fast"), "{text}");

    set_import(&mut environment, "Failed", "Error");
    let (_, reason, text) = storage(&environment);
    assert_eq!(reason, "ImageImportFailed");
    assert!(text.contains("delete DataVolume web-data"), "{text}");
    assert_eq!(phase(&environment), Some(Phase::Failed));
    environment
        .data_volumes
        .get_mut("web-data")
        .unwrap()
        .metadata
        .deletion_timestamp = Some(crate::environment::some_time());
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
}

#[test]
fn a_machine_with_an_image_waits_for_cdi_and_reports_it() {
    let mut environment = from_the_web(ReclaimPolicy::Delete);
    environment.cdi = false;
    environment.settle();
    let (status, reason, text) = storage(&environment);
    assert_eq!((status, reason), ("False", "ImageImportUnavailable"));
    assert!(text.contains("install CDI"), "{text}");
    assert_eq!(phase(&environment), Some(Phase::Failed));
    assert!(environment.vm.is_none() && !environment.claims.contains_key("web-data"));
    environment.cdi = true;
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
}

#[test]
fn a_checksum_that_cdi_cannot_verify_is_refused() {
    let unverified = Image {
        checksum: Some("sha256:0".into()),
        ..image("docker://quay.io/containerdisks/debian:13")
    };
    let mut environment = filled(unverified, ReclaimPolicy::Delete);
    environment.settle();
    let (_, reason, text) = storage(&environment);
    assert_eq!(reason, "ImageImportFailed");
    assert!(text.contains("put the digest into the url"), "{text}");
    assert!(environment.data_volumes.is_empty() && environment.vm.is_none());
}

#[test]
fn a_clone_waits_for_its_source_claim() {
    let clone = Image {
        persistent_volume_claim: Some("golden".into()),
        ..Image::default()
    };
    let mut environment = filled(clone, ReclaimPolicy::Delete);
    environment.pass();
    assert!(environment.data_volumes.contains_key("web-data"));
    let (_, reason, text) = storage(&environment);
    assert_eq!(reason, "ImageImporting");
    assert!(
        text.contains("'golden'") && text.contains("create it"),
        "{text}"
    );
    let golden = json!({"metadata": {"name": "golden", "uid": "golden"}});
    environment.claims.insert("golden".into(), decode(golden));
    environment.pass();
    assert!(storage(&environment).2.contains("is being imported"));
}

#[test]
fn a_finished_import_is_kept_and_adopted_like_any_disk() {
    let mut environment = from_the_web(ReclaimPolicy::Retain);
    environment.settle();
    let uid = environment.claims["web-data"].uid().to_owned();
    let before = environment.clone();
    environment.delete_machine();
    environment.settle();
    assert_eq!(environment.claims.keys().collect::<Vec<_>>(), ["web-data"]);
    assert_eq!(
        environment.claims["web-data"].machine(),
        Some("web"),
        "found by its label"
    );

    let mut again = from_the_web(ReclaimPolicy::Retain);
    again.claims = environment.claims;
    let done = again.settle();
    assert!(
        !done.iter().any(|action| action.contains("DataVolume")),
        "{done:?}"
    );
    assert_eq!(again.claims["web-data"].uid(), uid);
    assert_eq!(phase(&again), Some(Phase::Running));

    // The import finishes just before the Machine is deleted.
    let mut environment = before;
    let mut import: crate::objects::DataVolume = decode(json!({
        "metadata": environment.claims["web-data"].metadata, "status": {"phase": "Succeeded"},
    }));
    import.metadata.uid = Some("import".into());
    let claim = environment.claims.get_mut("web-data").unwrap();
    claim.metadata.owner_references = Some(vec![owner(&import)]);
    environment.data_volumes.insert("web-data".into(), import);
    environment.delete_machine();
    environment.settle();
    assert_eq!(environment.claims["web-data"].data_volume(), None);
    assert!(environment.data_volumes.is_empty());
}

#[test]
fn the_claim_of_an_unfinished_import_is_not_kept() {
    let mut environment = from_the_web(ReclaimPolicy::Retain);
    environment.pass();
    environment.advance_kubevirt();
    environment.advance_kubevirt();
    assert_eq!(
        environment.data_volumes["web-data"].status.phase,
        "ImportInProgress"
    );
    environment.delete_machine();
    // A plan from before the end of the import deletes nothing.
    let plan = environment.plan();
    let mut later = environment.clone();
    set_import_phase(later.data_volumes.get_mut("web-data").unwrap(), "Succeeded");
    later.carry_out(&plan, plan.steps().count());
    assert!(later.machine().has_finalizer(names::FINALIZER));
    later.settle();
    assert_eq!(later.claims.keys().collect::<Vec<_>>(), ["web-data"]);

    environment.pass();
    environment.collect_garbage();
    assert!(environment.claims.is_empty() && environment.data_volumes.is_empty());
}

#[test]
fn an_import_of_another_owner_is_not_changed() {
    let theirs = json!({
        "metadata": {"name": "web-data", "namespace": "default", "uid": "theirs"},
        "status": {"phase": "Succeeded"},
    });
    let mut environment = from_the_web(ReclaimPolicy::Delete);
    environment
        .data_volumes
        .insert("web-data".into(), decode(theirs));
    environment.pass();
    let (_, reason, text) = storage(&environment);
    assert_eq!(reason, "NameConflict");
    assert!(text.contains("DataVolume 'web-data' exists"), "{text}");
    environment.delete_machine();
    environment.pass();
    assert!(!environment.data_volumes["web-data"].is_deleting());
}

#[test]
fn a_claim_whose_data_volume_is_gone_is_no_disk() {
    let mut environment = from_the_web(ReclaimPolicy::Delete);
    environment.pass();
    environment.advance_kubevirt();
    environment.advance_kubevirt();
    // A user deletes the DataVolume; the claim is bound and still there.
    environment.data_volumes.clear();
    assert_eq!(environment.pass(), [""; 0]);
    assert!(environment.vm.is_none());
    environment.claims.remove("web-data");
    assert_eq!(environment.pass(), ["created DataVolume web-data"]);
}

#[test]
fn a_changed_medium_gets_a_claim_of_its_own() {
    let mut block = block();
    block.cdroms = vec![NormalizedCdrom {
        hotpluggable: false,
        image_pin: None,
        boot_order: None,
        image: Some(image("https://images.example.com/debian.iso")),
        name: "installer".into(),
        size: Some(Bytes::mib(5 * 1024)),
        storage_class: Some("standard".into()),
    }];
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
    let media = |environment: &FakeCluster| -> Vec<String> {
        let claims = environment.claims.values();
        let media = claims.filter(|claim| claim.label(names::LABEL_DISK) == Some("installer"));
        media.map(|claim| claim.name().to_owned()).collect()
    };
    let first = media(&environment);
    assert_eq!(first.len(), 1);

    edit(&mut environment, |block| {
        block.cdroms[0].image = Some(image("https://images.example.com/drivers.iso"));
    });
    environment.settle();
    assert_eq!(
        media(&environment).len(),
        2,
        "the guest still has the first"
    );
    let has: Vec<_> = claims_of(environment.vm.as_ref().unwrap())
        .map(str::to_owned)
        .collect();
    assert!(!has.contains(&first[0]));
    environment.instance = None;
    environment.settle();
    let second = media(&environment);
    assert_eq!(second.len(), 1);
    assert_ne!(first, second);
    assert!(has.contains(&second[0]));
}
