//! Disks and media with an image: imported, cloned, retained, and reported if the import fails.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    Cdi, Options, Scenario,
    audit::Event,
    objects::{CLAIM, DATA_VOLUME, EVENT, INSTANCE, VM, condition, condition_message},
};
use serde_json::{Value, json};

use environment::{Environment, machine, summaries};

const URL: &str = "https://images.example.com/debian.qcow2";
const CHECKSUM: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The message of a condition of a Machine.
fn says<'a>(machine: &'a Value, kind: &str) -> &'a str {
    condition_message(machine, kind).unwrap()
}

/// The number of the controller's requests with this verb for DataVolumes.
fn count(events: &[Event], verb: &str) -> usize {
    let imports = events.iter().filter(|it| it.resource == "datavolumes");
    imports.filter(|event| event.verb == verb).count()
}

/// A Machine whose root disk is filled with an image.
fn filled(name: &str, image: &Value) -> Value {
    machine(
        name,
        &json!({"template": "small", "disks": [{"name": "root", "image": image}]}),
    )
}

#[tokio::test]
async fn a_guest_is_created_after_the_import_of_its_image() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let start = env.lab.log_position().await.unwrap();
    env.simulator.set("default", "web", Scenario::ImportFails);
    let image = json!({"url": URL, "checksum": CHECKSUM});
    env.apply(&filled("web", &image)).await;

    // CDI retries for ever, so that the failure is not final.
    let fails = machines.until_condition("web", "StorageReady", "False", "ImageImportFailed");
    let fails = fails.await.unwrap();
    assert!(
        says(&fails, "StorageReady").ends_with("expected status code 200, got 404"),
        "{}",
        says(&fails, "StorageReady")
    );
    assert_eq!(fails["status"]["phase"], "Creating");
    assert_eq!(condition(&fails, "Ready")["reason"], "ImageImportFailed");
    let source = &env.objects(DATA_VOLUME).get("web-root").await.unwrap()["spec"]["source"];
    assert_eq!(*source, json!({"http": image}));

    env.simulator.set("default", "web", Scenario::ImportHangs);
    let importing = |web: &Value| web["status"]["volumes"][0]["progress"] == "40%";
    let web = machines.until("web", "to be imported", importing).await;
    let web = web.unwrap();
    assert_eq!(condition(&web, "StorageReady")["reason"], "ImageImporting");
    assert_eq!(web["status"]["volumes"][0]["phase"], "Bound");
    assert!(env.objects(VM).find("web").await.unwrap().is_none());

    env.simulator.set("default", "web", Scenario::Happy);
    let web = machines.until_phase("web", "Running").await.unwrap();
    assert_eq!(condition(&web, "StorageReady")["reason"], "PVCBound");
    assert_eq!(web["status"]["volumes"][0].get("progress"), None);
    // The claim is no longer owned by the DataVolume: deleting that deletes no disk.
    env.objects(DATA_VOLUME)
        .until_gone("web-root")
        .await
        .unwrap();
    let claim = claims.get("web-root").await.unwrap();
    assert_eq!(claim["metadata"].get("ownerReferences"), None);
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "20Gi");

    let writes = env.writes_since(start).await;
    let made = (count(&writes, "create"), count(&writes, "delete"));
    assert_eq!(made, (1, 1), "{:#?}", summaries(&writes));
}

#[tokio::test]
async fn a_retained_disk_is_kept_unless_its_import_is_incomplete() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let spec = json!({"template": "small", "disks": [
        {"name": "root", "image": {"url": URL}},
        {"name": "data", "size": "10Gi", "image": {"url": URL}, "reclaimPolicy": "Retain"},
    ]});
    env.apply(&machine("web", &spec)).await;
    machines.until_phase("web", "Running").await.unwrap();
    let kept = claims.get("web-data").await.unwrap();
    // Another Machine is deleted while its disk is being imported.
    env.simulator.set("default", "half", Scenario::ImportHangs);
    env.apply(&machine("half", &spec)).await;
    let importing = |half: &Value| half["status"]["volumes"][1]["progress"] == "40%";
    machines
        .until("half", "to be imported", importing)
        .await
        .unwrap();

    for name in ["web", "half"] {
        machines.delete(name).await.unwrap();
    }
    for name in ["web", "half"] {
        machines.until_gone(name).await.unwrap();
        claims.until_gone(&format!("{name}-root")).await.unwrap();
        for disk in ["root", "data"] {
            let import = format!("{name}-{disk}");
            env.objects(DATA_VOLUME).until_gone(&import).await.unwrap();
        }
    }
    claims.until_gone("half-data").await.unwrap();

    // The retained disk is found by its label, and is adopted without another import.
    let found = env.lab.kubectl();
    let found = found
        .run(&["get", "pvc", "-l", "vitistack.io/machine=web", "-o", "name"])
        .await
        .unwrap();
    assert_eq!(found.ok().unwrap().trim(), "persistentvolumeclaim/web-data");
    let left = claims.get("web-data").await.unwrap();
    assert_eq!(left["metadata"]["uid"], kept["metadata"]["uid"]);
    assert_eq!(left["metadata"].get("ownerReferences"), None);
    let start = env.lab.log_position().await.unwrap();
    env.apply(&machine("web", &spec)).await;
    machines.until_phase("web", "Running").await.unwrap();
    let back = claims.get("web-data").await.unwrap();
    assert_eq!(back["metadata"]["uid"], kept["metadata"]["uid"]);
    let writes = env.writes_since(start).await;
    let imports: Vec<_> = writes
        .iter()
        .filter(|event| event.resource == "datavolumes" && event.verb == "create")
        .map(|event| event.name.as_str())
        .collect();
    assert_eq!(imports, ["web-root"]);
}

#[tokio::test]
async fn an_import_waits_until_cdi_is_installed_and_can_verify_its_checksum() {
    let options = Options {
        cdi: Cdi::Absent,
        ..Options::default()
    };
    let env = Environment::with(options, &[]).await;
    let machines = env.machines();
    let image = json!({"url": URL, "checksum": CHECKSUM});
    env.apply(&filled("safe", &image)).await;
    env.apply(&filled("web", &json!({"url": URL}))).await;
    for name in ["safe", "web"] {
        let reported =
            machines.until_condition(name, "StorageReady", "False", "ImageImportUnavailable");
        let reported = reported.await.unwrap();
        assert!(says(&reported, "StorageReady").contains("install CDI"));
        assert_eq!(reported["status"]["phase"], "Failed");
    }

    env.lab.install_cdi(Cdi::WithoutChecksums).await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();
    // This CDI would accept the image and ignore the checksum.
    let unable = |safe: &Value| {
        let ready = condition(safe, "StorageReady");
        let says = ready["message"].as_str();
        ready["reason"] == "ImageImportUnavailable"
            && says.is_some_and(|says| says.contains("install CDI v1.65 or newer"))
    };
    machines
        .until("safe", "to report that CDI is too old", unable)
        .await
        .unwrap();
    let imports = env.objects(DATA_VOLUME);
    assert!(imports.find("safe-root").await.unwrap().is_none());

    env.lab.install_cdi(Cdi::Current).await.unwrap();
    machines.until_phase("safe", "Running").await.unwrap();
}

#[tokio::test]
async fn a_disk_is_cloned_once_its_source_claim_exists() {
    let env = Environment::new().await;
    let machines = env.machines();
    let clone = json!({"persistentVolumeClaim": "golden"});
    env.apply(&filled("web", &clone)).await;
    let waits = machines.until_condition("web", "StorageReady", "False", "ImageImporting");
    let waits = waits.await.unwrap();
    let says = says(&waits, "StorageReady");
    assert!(says.starts_with("PersistentVolumeClaim 'golden'"), "{says}");
    // An import is progress, not a warning.
    let events = env.objects(EVENT);
    let event = events.until_event("web", "ImageImporting", "").await;
    assert_eq!(event.unwrap()["type"], "Normal");
    let source = &env.objects(DATA_VOLUME).get("web-root").await.unwrap()["spec"]["source"];
    assert_eq!(
        *source,
        json!({"pvc": {"namespace": "default", "name": "golden"}})
    );

    let golden = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "golden", "namespace": "default"},
        "spec": {
            "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "5Gi"}},
        },
    });
    env.apply(&golden).await;
    machines.until_phase("web", "Running").await.unwrap();
}

/// With the binding mode WaitForFirstConsumer no image can be imported before the VirtualMachine exists.
#[tokio::test]
async fn an_import_on_wait_for_first_consumer_storage_completes() {
    let env = Environment::new().await;
    env.simulator.set_all(Scenario::FirstConsumer);
    env.apply(&filled("web", &json!({"url": URL}))).await;
    env.machines().until_phase("web", "Running").await.unwrap();
    env.objects(DATA_VOLUME)
        .until_gone("web-root")
        .await
        .unwrap();
    let claim = env.objects(CLAIM).get("web-root").await.unwrap();
    assert_eq!(claim["metadata"].get("ownerReferences"), None);
}

#[tokio::test]
async fn a_changed_medium_is_in_the_drive_after_a_restart() {
    let env = Environment::new().await;
    // Without the feature gate, KubeVirt changes no media of running guests.
    env.simulator.install(8, &[]).await.unwrap();
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let with = |medium: &str, size: &str, power: &str| {
        let url = format!("docker://registry.example.com/{medium}");
        let drive = json!({
            "name": "installer", "size": size, "storageClass": "standard", "image": {"url": url},
        });
        let spec = json!({"template": "small", "powerState": power, "cdroms": [drive]});
        machine("web", &spec)
    };
    let medium = |web: &Value| {
        let claim = &web["status"]["volumes"][1]["claimName"];
        claim.as_str().unwrap().to_owned()
    };
    env.apply(&with("debian", "1Gi", "Running")).await;
    let first = medium(&machines.until_phase("web", "Running").await.unwrap());

    env.apply(&with("drivers", "1Gi", "Running")).await;
    let another = |web: &Value| {
        web["status"]["volumes"][1]["claimName"] != json!(first)
            && condition(web, "RestartRequired")["status"] == "True"
    };
    let changed = machines.until("web", "to have another medium", another);
    let changed = changed.await.unwrap();
    let pending = &changed["status"]["pendingChanges"][0];
    assert_eq!(pending["field"], "cdroms[installer].image");
    let second = medium(&changed);
    assert!(
        claims.find(&first).await.unwrap().is_some(),
        "the volume that the guest uses was deleted"
    );

    env.apply(&with("drivers", "1Gi", "Stopped")).await;
    machines.until_phase("web", "Stopped").await.unwrap();
    claims.until_gone(&first).await.unwrap();
    env.apply(&with("drivers", "1Gi", "Running")).await;
    machines.until_phase("web", "Running").await.unwrap();
    let guest = env.objects(INSTANCE).get("web").await.unwrap();
    let volumes = guest["spec"]["volumes"].as_array().unwrap();
    let has = |claim: &str| {
        let name = |volume: &Value| volume["persistentVolumeClaim"]["claimName"] == claim;
        volumes.iter().any(name)
    };
    assert!(has(&second) && !has(&first), "{volumes:?}");

    // A larger size of the same medium gets a new claim, because a volume of a medium is never expanded.
    env.apply(&with("drivers", "2Gi", "Running")).await;
    let larger = |web: &Value| {
        web["status"]["volumes"][1]["capacity"] == "2Gi"
            && condition(web, "RestartRequired")["status"] == "True"
    };
    let changed = machines.until("web", "to have a larger medium", larger);
    let third = medium(&changed.await.unwrap());
    assert!(third != second && claims.find(&second).await.unwrap().is_some());
    let request = "for the medium";
    machines.request_restart("web", request).await.unwrap();
    claims.until_gone(&second).await.unwrap();
    let done = |web: &Value| {
        web["status"]["pendingChanges"].is_null() && condition(web, "Ready")["reason"] == "Running"
    };
    let web = machines
        .until("web", "to be restarted", done)
        .await
        .unwrap();
    assert_eq!(medium(&web), third);
}
