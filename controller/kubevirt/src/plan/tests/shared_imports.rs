//! MachineImages: imported once, and cloned for each disk.

use common::api::choice::{Phase, ReclaimPolicy};
use common::api::machine::Image;
use common::api::normalized::ImagePin;
use common::quantity::Bytes;
use serde_json::json;

use super::{message, phase, reported};
use crate::environment::{FakeCluster, decode};
use crate::objects::DataVolume;
use controller_core::fixtures::{block, disk, machine};

/// A Machine whose disk `data` is filled with a MachineImage.
fn of_image() -> FakeCluster {
    let mut block = block();
    let mut data = disk("data", ReclaimPolicy::Delete);
    data.image = Some(Image {
        name: Some("debian-13".into()),
        url: Some("https://images.example.com/debian.qcow2".into()),
        ..Image::default()
    });
    data.image_pin = Some(ImagePin {
        data_source: None,
        efi: None,
        min_disk_size: Bytes::mib(3 * 1024),
        os: None,
    });
    block.disks.push(data);
    FakeCluster::new(machine(block))
}

fn import(environment: &mut FakeCluster) -> &mut DataVolume {
    assert_eq!(environment.imports.len(), 1);
    environment.imports.values_mut().next().unwrap()
}

#[test]
fn a_volume_is_cloned_once_the_import_of_its_image_has_finished() {
    let mut environment = of_image();
    environment.settle();
    assert!(environment.data_volumes.is_empty());
    assert_eq!(
        reported(&environment, "StorageReady"),
        ("False", "ImageImporting")
    );
    import(&mut environment).status = decode(json!({
        "phase": "ImportInProgress", "progress": "42.50%",
    }));
    environment.settle();
    let volumes = &environment.machine().status.volumes;
    assert_eq!(volumes[1].progress.as_deref(), Some("40%"));

    import(&mut environment).status.phase = "Succeeded".into();
    let name = environment.imports.keys().next().unwrap().clone();
    assert_eq!(environment.pass(), ["created DataVolume web-data"]);
    let source = environment.data_volumes["web-data"].spec.source.pvc.clone();
    let source = source.unwrap();
    assert_eq!((&*source.namespace, &*source.name), ("images", &*name));
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));

    // The import is not needed any more.
    environment.imports.clear();
    assert_eq!(environment.settle(), [""; 0]);
}

#[test]
fn a_failing_import_is_reported_with_the_text_of_cdi() {
    let mut environment = of_image();
    environment.settle();
    import(&mut environment).status = decode(json!({
        "phase": "ImportInProgress", "conditions": [
            {"type": "Running", "status": "False", "reason": "Error", "message": "404"},
        ],
    }));
    environment.settle();
    assert_eq!(
        reported(&environment, "StorageReady"),
        ("False", "ImageImportFailed")
    );
    let text = message(&environment, "StorageReady");
    assert!(text.ends_with("CDI tries again: 404"), "{text}");
}

#[test]
fn an_import_that_goes_under_an_unfinished_clone_is_made_again() {
    let mut environment = of_image();
    environment.settle();
    import(&mut environment).status.phase = "Succeeded".into();
    environment.pass();
    environment.imports.clear();
    let actions = environment.pass();
    assert_eq!(environment.imports.len(), 1, "{actions:?}");
}

#[test]
fn a_data_volume_of_others_that_has_the_name_of_an_import_is_not_cloned() {
    let mut environment = of_image();
    environment.settle();
    import(&mut environment).metadata.labels = None;
    import(&mut environment).status.phase = "Succeeded".into();
    environment.settle();
    assert!(environment.data_volumes.is_empty());
    assert_eq!(
        reported(&environment, "StorageReady"),
        ("False", "NameConflict")
    );
}

#[test]
fn a_machine_reports_that_its_image_has_another_source_now() {
    let mut environment = of_image();
    environment.outdated_images = vec!["debian-13".into()];
    environment.settle();
    assert_eq!(
        reported(&environment, "Normalized"),
        ("True", "ImageOutdated")
    );
}
