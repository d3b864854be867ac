//! A disk on a volume that exists already: booted from as it is, by one guest at a time, and never deleted.

use std::fs;

use lab::{libvirt::image, objects::HOST, wait};
use serde_json::{Value, json};

use crate::environment::{Environment, machine};
use crate::images::qcow2;

const VOLUME: &str = "legacy-disk.qcow2";

fn on_volume() -> Value {
    json!({"disks": [{"name": "system", "volumeName": VOLUME}]})
}

#[tokio::test]
async fn a_guest_boots_from_an_existing_volume_and_the_next_machine_finds_what_it_wrote() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let folder = env.libvirt.pool("legacy").await.unwrap();
    let converted = env.libvirt.path(VOLUME);
    qcow2(&image().await.unwrap(), &converted);
    let file = env
        .libvirt
        .volume(&folder, VOLUME, &converted)
        .await
        .unwrap();
    let refused = async |object: &Value| {
        let error = env.lab.apply(object).await.unwrap_err();
        format!("{error:#}")
    };
    let first = machine("first", &on_volume());
    let answer = refused(&first).await;
    assert!(answer.contains("[VolumesNotOffered]"), "{answer}");
    let offer = json!([{"pool": "legacy", "namespaces": ["default"]}]);
    let hosts = env.lab.objects(HOST, "");
    hosts
        .merge("here", &json!({"spec": {"existingVolumes": offer}}))
        .await
        .unwrap();

    env.apply("first", &on_volume()).await;
    let first = env.until_reachable("first").await;
    let volume = &first["status"]["volumes"][0];
    assert_eq!(
        (&volume["claimName"], &volume["phase"]),
        (&json!(VOLUME), &json!("Bound"))
    );
    let report = env
        .until_report("first", "its boot", |it| it.boots == 1)
        .await;
    assert_eq!(report.serials.values().collect::<Vec<_>>(), ["system"]);
    // At admission.
    wait::until("the webhook to know the first Machine", async || {
        let error = env.lab.apply(&machine("second", &on_volume())).await;
        let answer = error.map_or_else(|error| format!("{error:#}"), |()| "accepted".to_owned());
        Ok(if answer.contains("[VolumeInUse]") {
            Ok(())
        } else {
            Err(answer)
        })
    })
    .await
    .unwrap();
    env.delete("first").await;
    assert!(file.exists());

    // A domain of somebody else has it, and is off.
    let foreign = format!(
        "<domain type='qemu'><name>theirs</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64'>hvm</type></os><devices><disk type='file' device='disk'>\
         <source file='{}'/><target dev='vda'/></disk></devices></domain>",
        file.display()
    );
    let definition = env.libvirt.path("theirs.xml");
    fs::write(&definition, foreign).unwrap();
    env.virsh(&["define", &definition.display().to_string()])
        .await;
    env.lab
        .apply_when_admitted(&machine("second", &on_volume()))
        .await
        .unwrap();
    let held = env.machines();
    let held = held.until_condition("second", "StorageReady", "False", "VolumeInUse");
    let held = held.await.unwrap();
    let conditions = held["status"]["conditions"].to_string();
    assert!(
        conditions.contains("is used by another domain of the host"),
        "{conditions}"
    );
    assert_eq!(env.domains().await, ["theirs".to_owned()].into());
    env.virsh(&["undefine", "theirs"]).await;
    env.until_report("second", "the second boot of this disk", |it| it.boots == 2)
        .await;
    env.delete("second").await;
    assert!(file.exists());
}
