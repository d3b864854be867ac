//! Volumes that exist before their Machine, disks that change while it runs, and a restore from a backup.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    Scenario,
    objects::{
        CLAIM, DATA_VOLUME, INSTANCE, Kind, MACHINE, SECRET, VM, VOLUME, condition,
        condition_message,
    },
};
use serde_json::{Value, json};

use environment::{Environment, machine, summaries};

const URL: &str = "https://images.example.com/debian.qcow2";

/// A volume that was created by hand.
fn volume(name: &str, class: &str, size: &str, content: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"content": content}},
        "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "disks.example.com", "volumeHandle": name},
        },
    })
}

#[tokio::test]
async fn existing_volumes_are_bound_by_name_and_by_label() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    for volume in [
        volume("small-logs", "fast-ssd", "1Gi", "logs"),
        volume("other", "fast-ssd", "5Gi", "mail"),
        volume("logs", "fast-ssd", "5Gi", "logs"),
    ] {
        env.apply(&volume).await;
    }
    let labels = json!({"matchLabels": {"content": "logs"}});
    let spec = json!({"template": "small", "disks": [
        {"name": "old", "size": "10Gi", "storageClass": "standard", "volumeName": "disk-of-2019"},
        {"name": "logs", "size": "5Gi", "storageClass": "fast-ssd", "selector": labels},
    ]});
    env.apply(&machine("web", &spec)).await;
    let waits = machines.until("web", "to wait for one volume", |web| {
        let says = condition_message(web, "StorageReady");
        says.is_some_and(|says| says.starts_with("waiting for PersistentVolumeClaim web-old to be"))
    });
    waits.await.unwrap();
    let disk = volume("disk-of-2019", "standard", "20Gi", "disk");
    env.apply(&disk).await;

    let web = machines.until_phase("web", "Running").await.unwrap();
    let volumes = web["status"]["volumes"].as_array().unwrap();
    let sizes: Vec<_> = volumes.iter().map(|volume| &volume["capacity"]).collect();
    assert_eq!(sizes, ["20Gi", "20Gi", "5Gi"]);
    for (claim, volume) in [("web-old", "disk-of-2019"), ("web-logs", "logs")] {
        let made = claims.get(claim).await.unwrap();
        assert_eq!(made["spec"]["volumeName"], volume);
        let volumes = env.lab.objects(VOLUME, "");
        let bound = volumes.get(volume).await.unwrap();
        assert_eq!(
            bound["spec"]["claimRef"]["uid"], made["metadata"]["uid"],
            "{volume}"
        );
    }
    assert_eq!(condition(&web, "StorageReady")["reason"], "PVCBound");
}

/// An imported disk can be expanded like any other, and an import does not affect a running guest.
#[tokio::test]
async fn an_imported_disk_grows_and_another_is_imported_beside_a_running_guest() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let image = json!({"url": URL});
    let root = |size: &str| json!({"name": "root", "size": size, "storageClass": "fast-ssd", "image": image});
    let with = |disks: &[Value]| machine("web", &json!({"template": "small", "disks": disks}));
    env.apply(&with(&[root("20Gi")])).await;
    machines.until_phase("web", "Running").await.unwrap();
    let before = claims.get("web-root").await.unwrap();
    let guest = env.objects(INSTANCE).get("web").await.unwrap();

    let start = env.lab.log_position().await.unwrap();
    env.apply(&with(&[root("25Gi")])).await;
    let grown = |web: &Value| {
        web["status"]["volumes"][0]["capacity"] == "25Gi"
            && condition(web, "StorageReady")["reason"] == "PVCBound"
    };
    machines.until("web", "to have grown", grown).await.unwrap();
    let after = claims.get("web-root").await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let writes = summaries(&env.writes_since(start).await);
    let imported = writes.iter().any(|write| write.contains("datavolumes"));
    assert!(!imported, "nothing is imported again: {writes:?}");

    env.simulator.set("default", "web", Scenario::ImportHangs);
    let tools = json!({"name": "tools", "size": "5Gi", "image": {"url": URL}});
    let both = with(&[root("25Gi"), tools]);
    env.apply(&both).await;
    let importing = |web: &Value| web["status"]["volumes"][1]["progress"] == "40%";
    let imports = machines.until("web", "to import", importing).await.unwrap();
    assert_eq!(
        condition(&imports, "StorageReady")["reason"],
        "ImageImporting"
    );
    assert_eq!(condition(&imports, "Ready")["reason"], "Running");
    let vm = env.objects(VM).get("web").await.unwrap();
    let disks = |object: &Value| {
        let disks = object["domain"]["devices"]["disks"].as_array().unwrap();
        disks.len()
    };
    assert_eq!(
        disks(&vm["spec"]["template"]["spec"]),
        1,
        "the guest has a disk whose import is incomplete"
    );

    env.simulator.set("default", "web", Scenario::Happy);
    let instances = env.objects(INSTANCE);
    let plugged = |runs: &Value| disks(&runs["spec"]) == 2;
    let runs = instances.until("web", "to have both disks", plugged);
    let runs = runs.await.unwrap();
    assert_eq!(runs["metadata"]["uid"], guest["metadata"]["uid"]);
    let nothing_pending = |web: &Value| web["status"]["pendingChanges"].is_null();
    let reported = machines.until("web", "to have the disk plugged in", nothing_pending);
    let reported = reported.await.unwrap();
    assert!(condition(&reported, "RestartRequired").is_null());
    env.objects(DATA_VOLUME)
        .until_gone("web-tools")
        .await
        .unwrap();
}

/// The object as a backup restores it: with its name, labels, annotations and finalizers, and with another uid.
fn kept(object: &Value) -> Value {
    let old = &object["metadata"];
    let mut kept = object.clone();
    kept["metadata"] = json!({
        "name": old["name"], "namespace": old["namespace"],
        "labels": old["labels"], "annotations": old["annotations"], "finalizers": old["finalizers"],
    });
    if let Some(kept) = kept.as_object_mut() {
        kept.remove("status");
    }
    kept
}

#[tokio::test]
async fn a_machine_and_its_claims_are_restored_from_a_backup() {
    let mut env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let spec = json!({
        "template": "small",
        "disks": [
            {"name": "root", "image": {"url": URL}},
            {"name": "data", "size": "10Gi", "storageClass": "fast-ssd", "reclaimPolicy": "Retain"},
        ],
        "cloudInit": {"metaData": {"role": "db"}},
    });
    let mut web = machine("web", &spec);
    web["metadata"]["labels"] = json!({"cluster.vitistack.io/cluster-name": "prod"});
    env.apply(&web).await;
    let before = machines.until_phase("web", "Running").await.unwrap();
    env.objects(DATA_VOLUME)
        .until_gone("web-root")
        .await
        .unwrap();
    let names = ["web-data", "web-root"];
    let mut backup = Vec::new();
    for name in names {
        let mut claim = kept(&claims.get(name).await.unwrap());
        // A backup restores the data into a new volume.
        claim["spec"]["volumeName"].take();
        backup.push(claim);
    }
    backup.push(kept(&machines.get("web").await.unwrap()));

    delete_all_objects(&mut env).await;
    let start = env.lab.log_position().await.unwrap();
    env.controller.start_again().unwrap();
    env.controller.ready().await.unwrap();
    let (claims_of_backup, machine_of_backup) = backup.split_at(2);
    for claim in claims_of_backup {
        claims.create(claim).await.unwrap();
    }
    let mut restored = Vec::new();
    for name in names {
        restored.push(claims.get(name).await.unwrap()["metadata"]["uid"].clone());
    }
    machines.create(&machine_of_backup[0]).await.unwrap();

    let after = machines.until_phase("web", "Running").await.unwrap();
    let uid = &after["metadata"]["uid"];
    assert_ne!(*uid, before["metadata"]["uid"]);
    assert_eq!(after["spec"]["normalized"], before["spec"]["normalized"]);
    let all = claims.list().await.unwrap();
    let found: Vec<_> = all.iter().map(|claim| &claim["metadata"]["uid"]).collect();
    assert_eq!(
        found,
        restored.iter().collect::<Vec<_>>(),
        "other claims than the restored ones"
    );
    for claim in &all {
        let annotations = &claim["metadata"]["annotations"];
        assert_eq!(annotations["machine.vitistack.io/machine-uid"], *uid);
    }
    let mut writes = env.writes_since(start).await;
    writes.retain(|event| ["create", "delete"].contains(&event.verb.as_str()));
    let made: Vec<_> = writes.iter().map(|event| &event.resource).collect();
    assert_eq!(made, ["secrets"], "{:#?}", summaries(&writes));
    for (kind, name) in [(VM, "web"), (SECRET, "web-cloudinit")] {
        let object = env.objects(kind).get(name).await.unwrap();
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["machine.vitistack.io/machine-uid"], *uid);
    }

    // The retained disk is still kept on deletion.
    machines.delete("web").await.unwrap();
    machines.until_gone("web").await.unwrap();
    claims.until_gone("web-root").await.unwrap();
    let left = claims.get("web-data").await.unwrap();
    assert_eq!(left["metadata"]["uid"], restored[0]);
}

/// Deletes everything of the Machine `web` while the controller is stopped.
async fn delete_all_objects(env: &mut Environment) {
    env.controller.stop().await.unwrap();
    let free = json!({"metadata": {"finalizers": null}});
    let lose = async |kind: Kind, name: &str| {
        let objects = env.objects(kind);
        objects.merge(name, &free).await.unwrap();
        objects.delete(name).await.unwrap();
    };
    lose(MACHINE, "web").await;
    for name in ["web-data", "web-root"] {
        lose(CLAIM, name).await;
    }
    for (kind, name) in [
        (MACHINE, "web"),
        (CLAIM, "web-data"),
        (CLAIM, "web-root"),
        // Garbage collection deletes the dependents.
        (VM, "web"),
        (SECRET, "web-cloudinit"),
        (INSTANCE, "web"),
    ] {
        env.objects(kind).until_gone(name).await.unwrap();
    }
}
