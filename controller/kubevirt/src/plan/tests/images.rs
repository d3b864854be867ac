//! Disks and media that are filled with an image.

use common::api::choice::{Phase, ReclaimPolicy};
use common::api::machine::Image;
use common::api::normalized::NormalizedCdrom;
use common::names;
use common::quantity::Bytes;
use serde_json::json;

use super::{edit, message, phase, told};
use crate::environment::moves::{owner, show_import};
use crate::environment::{World, claims_of, decode};
use controller_core::fixtures::{block, disk, machine};
use controller_core::objects::Meta as _;

fn image(url: &str) -> Image {
    Image {
        url: Some(url.to_owned()),
        ..Image::default()
    }
}

/// A Machine whose disk `data` is filled.
fn filled(image: Image, policy: ReclaimPolicy) -> World {
    let mut block = block();
    block.disks.push(disk("data", policy));
    block.disks[1].image = Some(image);
    World::new(machine(block))
}

fn from_the_web(policy: ReclaimPolicy) -> World {
    filled(image("https://images.example.com/debian.qcow2"), policy)
}

/// Status and reason of `StorageReady`, and what it says.
fn storage(world: &World) -> (&str, &str, &str) {
    let (status, reason) = told(world, "StorageReady");
    (status, reason, message(world, "StorageReady"))
}

/// Name, phase and progress of each volume.
fn volumes(world: &World) -> Vec<(&str, &str, Option<&str>)> {
    let volumes = world.machine().status.volumes.iter();
    volumes
        .map(|volume| {
            let phase = volume.phase.as_deref().unwrap();
            (volume.name.as_str(), phase, volume.progress.as_deref())
        })
        .collect()
}

#[test]
fn a_guest_is_made_when_its_image_is_there() {
    let mut world = from_the_web(ReclaimPolicy::Delete);
    let first = [
        "added the finalizer",
        "made PersistentVolumeClaim web-root",
        "made DataVolume web-data",
    ];
    assert_eq!(world.pass(), first);
    assert_eq!(phase(&world), Some(Phase::Creating));
    let (status, reason, text) = storage(&world);
    assert_eq!((status, reason), ("False", "ImageImporting"));
    assert!(text.contains("'data' is being imported"), "{text}");
    assert_eq!(told(&world, "Ready"), ("False", "ImageImporting"));
    assert_eq!(
        volumes(&world),
        [("root", "Pending", None), ("data", "Pending", None)]
    );

    world.kubevirt_moves();
    world.kubevirt_moves();
    let import = world.data_volumes.get_mut("web-data").unwrap();
    import.status.progress = "42.50%".into();
    assert_eq!(world.pass(), [""; 0]);
    assert_eq!(
        volumes(&world),
        [("root", "Bound", None), ("data", "Bound", Some("40%"))]
    );

    let done = world.settle();
    assert_eq!(
        done,
        [
            "released PersistentVolumeClaim web-data from its DataVolume",
            "made the VirtualMachine"
        ]
    );
    assert_eq!(phase(&world), Some(Phase::Running));
    assert_eq!(told(&world, "StorageReady"), ("True", "PVCBound"));
    assert_eq!(volumes(&world)[1], ("data", "Bound", None));
    assert!(world.data_volumes.is_empty());
    let claim = &world.claims["web-data"];
    assert_eq!(claim.data_volume(), None);
    assert!(claim.belongs_to("web", "uid-of-web"));

    // From now on it is a disk like all others.
    let larger = Bytes::mib(30 * 1024);
    edit(&mut world, |block| block.disks[1].size = larger);
    assert_eq!(world.settle(), ["changed PersistentVolumeClaim web-data"]);
}

#[test]
fn storage_that_waits_for_the_guest_gets_one() {
    let mut world = from_the_web(ReclaimPolicy::Delete);
    world.first_consumer = true;
    world.pass();
    assert!(world.vm.is_none());
    world.kubevirt_moves();
    world.kubevirt_moves();
    assert_eq!(
        world.data_volumes["web-data"].status.phase,
        "WaitForFirstConsumer"
    );
    assert_eq!(world.pass(), ["made the VirtualMachine"]);
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
    assert!(world.data_volumes.is_empty());
    assert_eq!(world.claims["web-data"].data_volume(), None);
}

#[test]
fn a_failed_import_is_told_in_the_words_of_cdi() {
    let mut world = from_the_web(ReclaimPolicy::Delete);
    world.pass();
    world.kubevirt_moves();
    let says = |world: &mut World, phase: &str, reason: &str| {
        let import = world.data_volumes.get_mut("web-data").unwrap();
        show_import(import, phase);
        import.status.conditions = decode(json!([{
            "type": "Running", "status": "False", "reason": reason, "message": "404 Not Found",
        }]));
        world.pass();
    };
    says(&mut world, "ImportInProgress", "Error");
    let (status, reason, text) = storage(&world);
    assert_eq!((status, reason), ("False", "ImageImportFailed"));
    assert!(text.contains("CDI tries again: 404 Not Found"), "{text}");
    assert_eq!(
        phase(&world),
        Some(Phase::Creating),
        "CDI goes on by itself"
    );
    assert!(world.vm.is_none());

    says(&mut world, "ImportScheduled", "Pending");
    let (_, reason, text) = storage(&world);
    assert_eq!(reason, "ImageImporting");
    assert!(text.ends_with("CDI says: 404 Not Found"), "{text}");

    says(&mut world, "Failed", "Error");
    let (_, reason, text) = storage(&world);
    assert_eq!(reason, "ImageImportFailed");
    assert!(text.contains("delete DataVolume web-data"), "{text}");
    assert_eq!(phase(&world), Some(Phase::Failed));
    world
        .data_volumes
        .get_mut("web-data")
        .unwrap()
        .metadata
        .deletion_timestamp = Some(crate::environment::sometime());
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
}

#[test]
fn without_cdi_it_is_said_what_to_do_and_waited_for() {
    let mut world = from_the_web(ReclaimPolicy::Delete);
    world.cdi = false;
    world.settle();
    let (status, reason, text) = storage(&world);
    assert_eq!((status, reason), ("False", "ImageImportUnavailable"));
    assert!(text.contains("install CDI"), "{text}");
    assert_eq!(phase(&world), Some(Phase::Failed));
    assert!(world.vm.is_none() && !world.claims.contains_key("web-data"));
    world.cdi = true;
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
}

#[test]
fn a_checksum_that_nobody_would_verify_is_refused() {
    let unverified = Image {
        checksum: Some("sha256:0".into()),
        ..image("docker://quay.io/containerdisks/debian:13")
    };
    let mut world = filled(unverified, ReclaimPolicy::Delete);
    world.settle();
    let (_, reason, text) = storage(&world);
    assert_eq!(reason, "ImageImportFailed");
    assert!(text.contains("put the digest into the url"), "{text}");
    assert!(world.data_volumes.is_empty() && world.vm.is_none());
}

#[test]
fn a_clone_waits_for_what_it_is_of() {
    let clone = Image {
        persistent_volume_claim: Some("golden".into()),
        ..Image::default()
    };
    let mut world = filled(clone, ReclaimPolicy::Delete);
    world.pass();
    assert!(world.data_volumes.contains_key("web-data"));
    let (_, reason, text) = storage(&world);
    assert_eq!(reason, "ImageImporting");
    assert!(
        text.contains("'golden'") && text.contains("create it"),
        "{text}"
    );
    let golden = json!({"metadata": {"name": "golden", "uid": "golden"}});
    world.claims.insert("golden".into(), decode(golden));
    world.pass();
    assert!(storage(&world).2.contains("is being imported"));
}

#[test]
fn a_disk_of_an_import_is_kept_when_it_is_whole_and_comes_back_as_it_was() {
    let mut world = from_the_web(ReclaimPolicy::Retain);
    world.settle();
    let uid = world.claims["web-data"].uid().to_owned();
    let before = world.clone();
    world.delete_machine();
    world.settle();
    assert_eq!(world.claims.keys().collect::<Vec<_>>(), ["web-data"]);
    assert_eq!(
        world.claims["web-data"].machine(),
        Some("web"),
        "found by its label"
    );

    let mut again = from_the_web(ReclaimPolicy::Retain);
    again.claims = world.claims;
    let done = again.settle();
    assert!(
        !done.iter().any(|action| action.contains("DataVolume")),
        "{done:?}"
    );
    assert_eq!(again.claims["web-data"].uid(), uid);
    assert_eq!(phase(&again), Some(Phase::Running));

    // The import has just come to its end when the Machine is deleted.
    let mut world = before;
    let mut import: crate::objects::DataVolume = decode(json!({
        "metadata": world.claims["web-data"].metadata, "status": {"phase": "Succeeded"},
    }));
    import.metadata.uid = Some("import".into());
    let claim = world.claims.get_mut("web-data").unwrap();
    claim.metadata.owner_references = Some(vec![owner(&import)]);
    world.data_volumes.insert("web-data".into(), import);
    world.delete_machine();
    world.settle();
    assert_eq!(world.claims["web-data"].data_volume(), None);
    assert!(world.data_volumes.is_empty());
}

#[test]
fn half_an_image_is_not_kept() {
    let mut world = from_the_web(ReclaimPolicy::Retain);
    world.pass();
    world.kubevirt_moves();
    world.kubevirt_moves();
    assert_eq!(
        world.data_volumes["web-data"].status.phase,
        "ImportInProgress"
    );
    world.delete_machine();
    // A plan that has not seen the end of the import ends nothing.
    let plan = world.plan();
    let mut later = world.clone();
    show_import(later.data_volumes.get_mut("web-data").unwrap(), "Succeeded");
    later.carry_out(&plan, plan.steps().count());
    assert!(later.machine().has_finalizer(names::FINALIZER));
    later.settle();
    assert_eq!(later.claims.keys().collect::<Vec<_>>(), ["web-data"]);

    world.pass();
    world.collect_garbage();
    assert!(world.claims.is_empty() && world.data_volumes.is_empty());
}

#[test]
fn an_import_of_somebody_else_is_left_alone() {
    let theirs = json!({
        "metadata": {"name": "web-data", "namespace": "default", "uid": "theirs"},
        "status": {"phase": "Succeeded"},
    });
    let mut world = from_the_web(ReclaimPolicy::Delete);
    world.data_volumes.insert("web-data".into(), decode(theirs));
    world.pass();
    let (_, reason, text) = storage(&world);
    assert_eq!(reason, "NameConflict");
    assert!(text.contains("DataVolume 'web-data' exists"), "{text}");
    world.delete_machine();
    world.pass();
    assert!(!world.data_volumes["web-data"].is_deleting());
}

#[test]
fn a_claim_that_goes_with_its_import_is_no_disk() {
    let mut world = from_the_web(ReclaimPolicy::Delete);
    world.pass();
    world.kubevirt_moves();
    world.kubevirt_moves();
    // Somebody deletes the DataVolume; the claim is bound and still there.
    world.data_volumes.clear();
    assert_eq!(world.pass(), [""; 0]);
    assert!(world.vm.is_none());
    world.claims.remove("web-data");
    assert_eq!(world.pass(), ["made DataVolume web-data"]);
}

#[test]
fn another_medium_is_another_claim() {
    let mut block = block();
    block.cdroms = vec![NormalizedCdrom {
        boot_order: None,
        image: Some(image("https://images.example.com/debian.iso")),
        name: "installer".into(),
        size: Some(Bytes::mib(5 * 1024)),
        storage_class: Some("standard".into()),
    }];
    let mut world = World::new(machine(block));
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
    let media = |world: &World| -> Vec<String> {
        let claims = world.claims.values();
        let media = claims.filter(|claim| claim.label(names::LABEL_DISK) == Some("installer"));
        media.map(|claim| claim.name().to_owned()).collect()
    };
    let first = media(&world);
    assert_eq!(first.len(), 1);

    edit(&mut world, |block| {
        block.cdroms[0].image = Some(image("https://images.example.com/drivers.iso"));
    });
    world.settle();
    assert_eq!(media(&world).len(), 2, "the guest still has the first");
    let has: Vec<_> = claims_of(world.vm.as_ref().unwrap())
        .map(str::to_owned)
        .collect();
    assert!(!has.contains(&first[0]));
    world.instance = None;
    world.settle();
    let second = media(&world);
    assert_eq!(second.len(), 1);
    assert_ne!(first, second);
    assert!(has.contains(&second[0]));
}
