//! Volumes that are kept, until the annotation releases them, and volumes that are deleted later than their Machine.

use lab::{
    objects::{HOST, Objects},
    wait,
};
use serde_json::{Value, json};

use crate::environment::{Environment, root};

/// A Machine that is off, with a root disk and this disk.
fn with_disk(name: &str, policy: &str) -> Value {
    let disk =
        json!({"name": name, "size": "64Mi", "storageClass": "local", "reclaimPolicy": policy});
    json!({"disks": [root(), disk], "powerState": "Stopped"})
}

/// Waits until a Machine is off with this disk on its host.
async fn until_off(env: &Environment, name: &str, disk: &str) {
    let is_off = |machine: &Value| {
        let volume = &machine["status"]["volumes"][1];
        machine["status"]["phase"] == "Stopped"
            && volume["name"] == disk
            && volume["phase"] == "Bound"
    };
    env.until(name, "to be off with its disks", is_off).await;
}

/// Runs the command of the warning, and waits until the controller has removed the annotation.
async fn release(env: &Environment, name: &str, disk: &str) {
    let annotation = format!("machine.vitistack.io/release-volume={disk}");
    let annotate = ["annotate", "machine", "-n", "default", name, &annotation];
    let kubectl = env.lab.kubectl();
    kubectl.run(&annotate).await.unwrap().ok().unwrap();
    let released = |machine: &Value| {
        let annotations = &machine["metadata"]["annotations"];
        annotations["machine.vitistack.io/release-volume"].is_null()
    };
    env.until(name, "to have no annotation any more", released)
        .await;
}

fn hosts(env: &Environment) -> Objects {
    env.lab.objects(HOST, "")
}

#[tokio::test]
async fn a_renamed_disk_keeps_its_volume_until_the_annotation_releases_it() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("kept", &with_disk("data", "Delete")).await;
    until_off(&env, "kept", "data").await;
    let first = env.files_of(".data.");
    assert_eq!(first.len(), 1);

    env.apply("kept", &with_disk("data2", "Delete")).await;
    until_off(&env, "kept", "data2").await;
    let domain = env.domain("kept").await;
    wait::until("the domain's metadata to keep the volume", async || {
        let uri = "https://vitistack.io/machine/v1";
        let metadata = env.virsh(&["metadata", &domain, uri]).await;
        let is_kept = metadata.contains("Retain") && metadata.contains(".data2.");
        Ok(is_kept.then_some(()).ok_or(metadata))
    })
    .await
    .unwrap();
    assert_eq!(env.files_of(".data."), first);
    // What counts in the quota of the namespace.
    let lists =
        |machine: &Value| machine["status"]["keptVolumes"][0]["claimName"] == first[0].as_str();
    let kept = env.until("kept", "to list the kept volume", lists).await;
    let kept = &kept["status"]["keptVolumes"][0];
    assert_eq!(
        (&kept["name"], &kept["capacity"]),
        (&json!("data"), &json!("64Mi"))
    );

    release(&env, "kept", "data").await;
    let lists_none = |machine: &Value| machine["status"]["keptVolumes"].get(0).is_none();
    env.until("kept", "to list no kept volume", lists_none)
        .await;
    assert_eq!(env.files_of(".data."), [""; 0]);
    assert_eq!(env.files_of(".data2.").len(), 1);
    env.delete("kept").await;
    assert_eq!(env.files_of(".data2."), [""; 0]);
}

#[tokio::test]
async fn a_volume_of_a_deleted_machine_is_released_through_the_next_machine_of_its_name() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("kept", &with_disk("data", "Retain")).await;
    until_off(&env, "kept", "data").await;
    let former = env.files_of(".data.");
    env.delete("kept").await;
    assert_eq!(env.files_of(".data."), former);
    let listed = |host: &Value| host["status"]["keptVolumes"][0]["volume"] == former[0].as_str();
    let host = hosts(&env)
        .until("here", "to list the volume", listed)
        .await;
    let kept = host.unwrap()["status"]["keptVolumes"][0].clone();
    assert_eq!(
        (&kept["machine"], &kept["disk"], &kept["size"]),
        (&json!("default/kept"), &json!("data"), &json!("64Mi"))
    );

    // A Machine of another name releases nothing.
    env.apply("other", &with_disk("more", "Delete")).await;
    until_off(&env, "other", "more").await;
    release(&env, "other", "data").await;
    assert_eq!(env.files_of(".data."), former);

    env.apply("kept", &with_disk("data", "Delete")).await;
    until_off(&env, "kept", "data").await;
    assert_eq!(env.files_of(".data.").len(), 2);
    release(&env, "kept", "data").await;
    let left = env.files_of(".data.");
    assert!(left.len() == 1 && left != former, "{left:?}");
    let none = |host: &Value| host["status"]["keptVolumes"].get(0).is_none();
    hosts(&env)
        .until("here", "to list no volume", none)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_a_tombstone_lists_is_deleted_once_every_pool_can_be_read_and_the_tombstone_with_it() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("gone", &with_disk("data", "Retain")).await;
    until_off(&env, "gone", "data").await;
    let target = env.volumes.display().to_string() + "-extra";
    env.virsh(&["pool-define-as", "extra", "dir", "--target", &target])
        .await;
    env.delete("gone").await;
    assert_eq!(env.files_of(".root.").len(), 1);
    let listed = |host: &Value| {
        let volumes = host["status"]["tombstones"][0]["volumes"].as_array();
        volumes.is_some_and(|volumes| volumes.len() == 1)
    };
    hosts(&env)
        .until("here", "to list the volume to delete", listed)
        .await
        .unwrap();
    env.virsh(&["pool-undefine", "extra"]).await;
    let none = |host: &Value| host["status"]["tombstones"].get(0).is_none();
    hosts(&env)
        .until("here", "to have no tombstone", none)
        .await
        .unwrap();
    assert_eq!(env.files_of(".root."), [""; 0]);
    let data = env.files_of(".data.");
    let host = hosts(&env).get("here").await.unwrap();
    assert_eq!(host["status"]["keptVolumes"][0]["volume"], data[0].as_str());
    assert!(env.domains().await.is_empty());

    // No Machine of the name is there to release it: an administrator does.
    let annotation = format!("machine.vitistack.io/release-volume=volumes/{}", data[0]);
    let annotate = ["annotate", "libvirthost", "here", &annotation];
    let kubectl = env.lab.kubectl();
    kubectl.run(&annotate).await.unwrap().ok().unwrap();
    let none = |host: &Value| host["status"]["keptVolumes"].get(0).is_none();
    hosts(&env)
        .until("here", "to list no volume", none)
        .await
        .unwrap();
    assert_eq!(env.files_of(".data."), [""; 0]);
}
