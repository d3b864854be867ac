//! Machines of which something is lost: the host in their status, their LibvirtHost, the volumes of their disks.

use std::{fs, path::Path};

use lab::{
    objects::{HOST, condition, condition_message},
    wait,
};
use serde_json::{Value, json};

use crate::environment::{Environment, host, root};

fn spec() -> Value {
    let data =
        json!({"name": "data", "size": "64Mi", "storageClass": "local", "reclaimPolicy": "Retain"});
    json!({"disks": [root(), data]})
}

#[tokio::test]
async fn a_machine_that_lost_its_host_is_removed_by_the_host_that_was_away_when_it_was_deleted() {
    let Some(mut env) = Environment::new().await else {
        return;
    };
    env.apply("lost", &spec()).await;
    env.until_reachable("lost").await;
    let (domain, volumes) = (env.domain("lost").await, env.files());
    let uid = env.machines().get("lost").await.unwrap()["metadata"]["uid"].clone();

    // The daemon ends, the guest runs on, and the next controller knows neither of them.
    env.controller.kill();
    env.libvirt.kill();
    let unbound = json!({"status": {"host": null}});
    env.machines().merge_status("lost", &unbound).await.unwrap();
    env.controller.start_again().unwrap();
    env.machines().delete("lost").await.unwrap();
    env.machines().until_gone("lost").await.unwrap();
    let hosts = env.lab.objects(HOST, "");
    let recorded = hosts.get("here").await.unwrap()["status"]["tombstones"].clone();
    assert_eq!(recorded[0]["machine"], "default/lost");
    assert_eq!(recorded[0]["uid"], uid);
    assert_eq!(env.files(), volumes, "nothing was deleted yet");

    env.libvirt.start_again().await.unwrap();
    let none = |host: &Value| host["status"]["tombstones"].get(0).is_none();
    hosts
        .until("here", "to have no tombstone", none)
        .await
        .unwrap();
    assert!(!env.domains().await.contains(&domain));
    let left: Vec<_> = env.files().into_iter().collect();
    assert!(
        matches!(&left[..], [data] if data.contains(".data.")),
        "{left:?}"
    );
    let kept = hosts.get("here").await.unwrap()["status"]["keptVolumes"].clone();
    assert_eq!(kept[0]["volume"], left[0].as_str());
}

/// A record of what is left needs the LibvirtHost.
#[tokio::test]
async fn a_deletion_waits_until_a_deleted_libvirt_host_is_created_again_even_if_it_is_forced() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("lost", &spec()).await;
    env.until_reachable("lost").await;
    let volumes = env.files();
    let hosts = env.lab.objects(HOST, "");
    hosts.delete("here").await.unwrap();
    hosts.until_gone("here").await.unwrap();
    let force = json!({"metadata": {"annotations": {"machine.vitistack.io/force-delete": "true"}}});
    env.machines().merge("lost", &force).await.unwrap();
    env.machines().delete("lost").await.unwrap();
    let waiting = |machine: &Value| {
        let message = condition_message(machine, "Ready");
        message.is_some_and(|message| message.contains("LibvirtHost 'here' was deleted"))
    };
    let machine = env.until("lost", "to wait for its host", waiting).await;
    let finalizers = &machine["metadata"]["finalizers"];
    assert_eq!(finalizers, &json!(["machine.vitistack.io/cleanup"]));
    assert_eq!(env.files(), volumes);

    env.lab.apply(&host()).await.unwrap();
    env.machines().until_gone("lost").await.unwrap();
    let removed = "the host to keep only what is kept";
    wait::until(removed, async || {
        let left: Vec<_> = env.files().into_iter().collect();
        let is_right = matches!(&left[..], [data] if data.contains(".data."));
        Ok(is_right.then_some(()).ok_or(left.join(", ")))
    })
    .await
    .unwrap();
    assert!(env.domains().await.is_empty());
}

/// Behind the same URI may be another host that has the same storage and no domain of the Machine, whose guest still runs.
#[tokio::test]
async fn another_host_behind_the_uri_gets_no_guest_until_it_is_confirmed() {
    const FORMER: &str = "5b5f0c1e-8a53-4a1f-9d59-0f6d2b6f7a01";
    const OTHER: &str = "c2a4c0de-1f7b-4c7e-8d8e-6a3b9e5d4f02";
    let Some(mut env) = Environment::new().await else {
        return;
    };
    env.libvirt.start_again_as(FORMER).await.unwrap();
    let hosts = env.lab.objects(HOST, "");
    let is_host = |uuid: &'static str| move |host: &Value| host["status"]["hostUUID"] == uuid;
    let recorded = "to be recorded by its UUID";
    hosts
        .until("here", recorded, is_host(FORMER))
        .await
        .unwrap();
    env.apply("web", &spec()).await;
    env.until_booted("web").await;
    let (domain, volumes) = (env.domain("web").await, env.files());

    env.libvirt.kill();
    for definition in ["etc/qemu", "run/qemu"] {
        let file = env.libvirt.path(&format!("{definition}/{domain}.xml"));
        fs::remove_file(file).unwrap();
    }
    // Those of the network cards.
    let filters = env.libvirt.path("run/nwfilter-binding");
    fs::remove_dir_all(filters).unwrap();
    env.libvirt.start_again_as(OTHER).await.unwrap();
    let confirm = format!(
        "kubectl annotate libvirthost here machine.vitistack.io/accept-host={OTHER} --overwrite"
    );
    let names_the_fix =
        |object: &Value| condition_message(object, "Ready").is_some_and(|it| it.contains(&confirm));
    env.until("web", "to wait for the former host", names_the_fix)
        .await;
    let host = hosts.until("here", "to name the fix", names_the_fix);
    let host = host.await.unwrap();
    assert_eq!(host["status"]["hostUUID"], FORMER);
    // A controller that knows the status alone does not use it either. The second Machine shows that it makes passes.
    env.controller.start_again().unwrap();
    env.apply("second", &spec()).await;
    env.until("second", "to wait for the former host", names_the_fix)
        .await;
    env.until("web", "to wait for the former host", names_the_fix)
        .await;
    assert!(env.domains().await.is_empty());
    assert_eq!(env.files(), volumes);

    env.libvirt.kill_guest(&domain).await.unwrap();
    let accept = json!({"metadata": {"annotations": {"machine.vitistack.io/accept-host": OTHER}}});
    hosts.merge("here", &accept).await.unwrap();
    hosts.until("here", recorded, is_host(OTHER)).await.unwrap();
    // The guest counts its boots on its disk.
    env.until_report("web", "the second boot", |it| it.boots == 2)
        .await;
}

/// After a restart of its host a pool is an empty folder until somebody mounts its file system.
#[tokio::test]
async fn a_disk_is_not_made_again_while_the_file_system_of_its_pool_is_not_mounted() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("lost", &spec()).await;
    env.until_booted("lost").await;
    let power = async |state: &str| {
        let patch = json!({"spec": {"powerState": state}});
        env.machines().merge("lost", &patch).await.unwrap();
    };
    power("Stopped").await;
    env.until("lost", "to be stopped", |it| {
        it["status"]["phase"] == "Stopped"
    })
    .await;
    let (domain, volumes) = (env.domain("lost").await, env.files());
    let elsewhere = tempfile::tempdir_in(env.volumes.parent().unwrap()).unwrap();
    let move_all = async |from: &Path, to: &Path| {
        for volume in &volumes {
            fs::rename(from.join(volume), to.join(volume)).unwrap();
        }
        env.virsh(&["pool-refresh", "volumes"]).await;
    };

    move_all(&env.volumes, elsewhere.path()).await;
    power("Running").await;
    let lost = |machine: &Value| condition(machine, "StorageReady")["reason"] == "VolumeLost";
    let machine = env.until("lost", "to have lost its disks", lost).await;
    let message = condition_message(&machine, "StorageReady").unwrap();
    assert!(message.contains("pool 'volumes'"), "{message}");
    assert!(env.files().is_empty(), "nothing is made in their place");
    let state = env.virsh(&["domstate", &domain]).await;
    assert_eq!(state.trim(), "shut off");

    move_all(elsewhere.path(), &env.volumes).await;
    env.until_report("lost", "its second boot", |it| it.boots == 2)
        .await;
    assert_eq!(env.files(), volumes);
}
