//! Attacks through the image of a disk on the shared host.

use std::{fs, future, process::Command, time::Duration};

use lab::{load, objects::condition_message};
use serde_json::{Value, json};

use crate::{
    blue::CANARY,
    red::Red,
    tenants::{Tenants, from_image},
};

/// Waits until the import of the image of red's Machine has failed, and returns the message.
async fn failure(tenants: &Tenants, name: &str) -> String {
    let machines = Red::machines(&tenants.lab);
    let (kind, reason) = ("StorageReady", "ImageImportFailed");
    let failed = machines.until_condition(name, kind, "False", reason);
    let failed = failed.await.unwrap();
    let message = condition_message(&failed, kind).unwrap();
    message.to_owned()
}

/// The files of both pools that belong neither to blue nor to the administrator.
fn files(tenants: &Tenants) -> Vec<String> {
    let entries = tenants.pools.iter().map(|pool| fs::read_dir(pool).unwrap());
    let names = entries.flatten().map(|it| it.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter(|name| !name.starts_with("blue-")).collect()
}

pub(crate) async fn naming_the_disk_of_another_machine_as_an_image(tenants: &Tenants) {
    let volumes = tenants.blue.volumes();
    assert_eq!(
        volumes.len(),
        2,
        "of a running Machine and of a deleted one"
    );
    for volume in volumes {
        let content = fs::read(&volume).unwrap();
        let canary = CANARY.as_bytes();
        assert!(content.windows(canary.len()).any(|part| part == canary));
        let name = volume.file_name().unwrap().to_str().unwrap();
        let image = json!({"volume": name});
        let mut attack = from_image("red", "thief", &image);
        tenants.red.refused(&attack, "[ImageVolumeReserved]").await;
        attack["spec"]["disks"][0]["image"] = Value::Null;
        attack["spec"]["cdroms"] = json!([{"name": "iso", "image": image}]);
        tenants.red.refused(&attack, "[ImageVolumeReserved]").await;
    }
}

pub(crate) async fn an_image_that_names_a_file_of_the_host(tenants: &Tenants) {
    let libvirt = tenants.virsh();
    let secret = libvirt.path("shadow");
    fs::write(&secret, CANARY.repeat(1000)).unwrap();
    let overlay = libvirt.path("overlay.qcow2");
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .args([&secret, &overlay])
        .status();
    assert!(made.unwrap().success());
    let before = files(tenants);
    let url = tenants
        .server
        .serve("os/overlay.qcow2", fs::read(&overlay).unwrap());
    tenants
        .red
        .create(&from_image("red", "thief", &json!({"url": url})))
        .await;
    let why = failure(tenants, "thief").await;
    assert!(why.contains("has the backing file"), "{why}");
    assert_eq!(files(tenants), before, "nothing of it is on the host");
}

/// Of the server that the host's `imageSources` name, only a part is listed.
pub(crate) async fn an_image_from_a_private_address(tenants: &Tenants) {
    let (red, server) = (&tenants.red, &tenants.server);
    let hidden = server.serve("internal/data.raw", CANARY.repeat(1000).into_bytes());
    let attack = from_image("red", "thief", &json!({"url": hidden}));
    red.refused(&attack, "[ImageSourceNotAllowed]").await;
    // A name for the same address is refused before anything is connected, too.
    let number = hidden.replace("127.0.0.1", "2130706433");
    let attack = from_image("red", "thief", &json!({"url": number}));
    red.refused(&attack, "[ImageSourceNotAllowed]").await;
    let url = server.redirect("os/latest.raw", "internal/data.raw");
    red.create(&from_image("red", "thief", &json!({"url": url})))
        .await;
    let why = failure(tenants, "thief").await;
    assert!(why.contains("spec.imageSources"), "{why}");
    assert!(server.requests("os/latest.raw") > 0);
    assert_eq!(
        server.requests("internal/data.raw"),
        0,
        "it followed the redirect"
    );
}

/// Images of others are fetched meanwhile, and the controller answers its probes.
pub(crate) async fn a_server_that_never_answers(tenants: &Tenants) {
    let never = json!({"url": tenants.server.url("os/never.raw")});
    for name in ["slow-0", "slow-1", "slow-2", "slow-3", "slow-4"] {
        tenants.red.create(&from_image("red", name, &never)).await;
    }
    let url = tenants.server.serve("os/small.raw", vec![7; 1 << 20]);
    let other = from_image("blue", "newcomer", &json!({"url": url}));
    tenants.lab.apply(&other).await.unwrap();
    let machines = tenants.machines("blue");
    let ready = machines.until_condition("newcomer", "Ready", "True", "Running");
    ready.await.unwrap();
    assert!(tenants.server.requests("os/never.raw") > 0);
    let (span, no_others) = (Duration::from_secs(1), future::ready(Ok(())));
    let mut controller = tenants.controller.lock().await;
    let noticed = load::notice(
        &tenants.lab,
        &mut controller,
        "slow images",
        span,
        no_others,
    );
    let noticed = noticed.await.unwrap();
    assert!(noticed.peak_mib < noticed.limit_mib, "{noticed}");
    tenants.delete("blue", "newcomer").await;
}
