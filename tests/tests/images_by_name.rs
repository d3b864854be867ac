//! MachineImages: at admission, imported once and cloned for each disk, changed and deleted.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    Lab, Scenario,
    audit::Event,
    objects::{CLAIM, DATA_VOLUME, IMAGE, VM, condition},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// Namespace of the imports: that of the operator.
const IMPORTS: &str = "kubevirt-operator-system";
const URL: &str = "https://images.example.com/debian-13.qcow2";

fn image(name: &str, url: &str) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineImage",
        "metadata": {"name": name},
        "spec": {
            "source": {"url": url}, "os": "linux", "minDiskSize": "3Gi", "firmware": {"efi": true},
        },
    })
}

fn of_image(image: &str) -> Value {
    json!({"template": "small", "disks": [{"name": "root", "image": {"name": image}}]})
}

/// Name of the only import.
async fn import(lab: &Lab) -> String {
    let imports = lab.objects(DATA_VOLUME, IMPORTS).list().await.unwrap();
    assert_eq!(imports.len(), 1, "{imports:#?}");
    imports[0]["metadata"]["name"].as_str().unwrap().to_owned()
}

fn created(events: &[Event], namespace: &str) -> usize {
    let events = events.iter().filter(|it| it.resource == "datavolumes");
    let created = events.filter(|it| it.verb == "create" && it.code == 201);
    created.filter(|it| it.namespace == namespace).count()
}

/// What kubectl answers to an object that is refused.
async fn refusal(env: &Environment, object: &Value) -> String {
    let kubectl = env.lab.kubectl();
    kubectl.apply(object).await.unwrap().refused().unwrap()
}

async fn assert_prompts(env: &Environment) {
    let unknown = refusal(env, &machine("typo", &of_image("debian-31"))).await;
    let expected = "spec.disks[0].image.name: Not found: \"debian-31\": did you mean 'debian-13'? known images: debian-13 [ImageNotFound]";
    assert!(unknown.contains(expected), "{unknown}");
    let disk = json!({"name": "root", "size": "2Gi", "image": {"name": "debian-13"}});
    let small = machine("little", &json!({"template": "small", "disks": [disk]}));
    let small = refusal(env, &small).await;
    let expected = "spec.disks[0].size: Invalid value: \"2Gi\": MachineImage 'debian-13' needs at least 3Gi; leave size out for that [DiskSmallerThanImage]";
    assert!(small.contains(expected), "{small}");
    let mut short = image("short", URL);
    short["spec"]["source"]["checksum"] = json!("sha256:abc");
    let short = refusal(env, &short).await;
    assert!(short.contains("[InvalidImageChecksum]"), "{short}");
}

#[tokio::test]
async fn ten_machines_of_one_image_are_one_import_and_ten_clones() {
    let env = Environment::new().await;
    let (machines, images) = (env.machines(), env.lab.objects(IMAGE, ""));
    let start = env.lab.log_position().await.unwrap();
    env.apply(&image("debian-13", URL)).await;
    assert_prompts(&env).await;

    // The import is reported at the Machine that waits for it, and at the image.
    env.simulator.set_all(Scenario::ImportHangs);
    env.apply(&machine("fleet-9", &of_image("debian-13"))).await;
    let importing = |web: &Value| web["status"]["volumes"][0]["progress"] == "40%";
    let web = machines.until("fleet-9", "to be imported", importing).await;
    let storage = condition(&web.unwrap(), "StorageReady").clone();
    assert_eq!(storage["reason"], "ImageImporting");
    let says = storage["message"].as_str().unwrap();
    assert!(says.contains("once for all Machines"), "{says}");
    let busy = |image: &Value| condition(image, "Ready")["reason"] == "ImageImporting";
    images
        .until("debian-13", "to be imported", busy)
        .await
        .unwrap();
    assert!(env.objects(VM).find("fleet-9").await.unwrap().is_none());

    env.simulator.set_all(Scenario::Happy);
    env.fleet(9, &of_image("debian-13")).await;
    for number in 0..10 {
        let name = format!("fleet-{number}");
        machines.until_phase(&name, "Running").await.unwrap();
    }
    let name = import(&env.lab).await;
    let events = env.writes_since(start).await;
    assert_eq!(created(&events, IMPORTS), 1);
    assert_eq!(created(&events, "default"), 10);
    let claim = env.objects(CLAIM).get("fleet-0-root").await.unwrap();
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "20Gi");
    let source = env.lab.objects(CLAIM, IMPORTS).get(&name).await.unwrap();
    assert_eq!(source["spec"]["resources"]["requests"]["storage"], "3Gi");
    let vm = env.objects(VM).get("fleet-0").await.unwrap();
    let firmware = &vm["spec"]["template"]["spec"]["domain"]["firmware"]["bootloader"];
    assert_eq!(
        *firmware,
        json!({"efi": {"persistent": true, "secureBoot": false}})
    );

    let used = |image: &Value| {
        image["status"]["usedBy"] == 10 && condition(image, "Ready")["reason"] == "Imported"
    };
    images.until("debian-13", "to be used", used).await.unwrap();
    let kubectl = env.lab.kubectl();
    let table = kubectl.run(&["get", "machineimages"]).await.unwrap();
    let table = table.ok().unwrap();
    let rows: Vec<Vec<_>> = table
        .lines()
        .map(|it| it.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["NAME", "READY", "SIZE", "USED", "BY", "AGE"]);
    assert_eq!(rows[1][..4], ["debian-13", "True", "3Gi", "10"]);

    // A new source changes no Machine. Its old import goes, because nothing waits for it.
    env.apply(&image(
        "debian-13",
        "https://images.example.com/debian-13.1.qcow2",
    ))
    .await;
    machines
        .until_condition("fleet-0", "Normalized", "True", "ImageOutdated")
        .await
        .unwrap();
    let imports = env.lab.objects(DATA_VOLUME, IMPORTS);
    imports.until_gone(&name).await.unwrap();
    let web = machines.get("fleet-0").await.unwrap();
    assert_eq!(web["spec"]["normalized"]["disks"][0]["image"]["url"], URL);
    assert_eq!(web["status"]["phase"], "Running");
}

#[tokio::test]
async fn an_image_that_is_deleted_while_it_is_imported_is_kept_for_the_machine_that_waits() {
    let env = Environment::new().await;
    let (machines, images) = (env.machines(), env.lab.objects(IMAGE, ""));
    env.simulator.set_all(Scenario::ImportHangs);
    env.apply(&image("debian-13", URL)).await;
    env.apply(&image("other", "https://images.example.com/other.qcow2"))
        .await;
    env.apply(&machine("web", &of_image("debian-13"))).await;
    let importing = |web: &Value| web["status"]["volumes"][0]["progress"] == "40%";
    machines
        .until("web", "to be imported", importing)
        .await
        .unwrap();
    let name = import(&env.lab).await;
    let imports = env.lab.objects(DATA_VOLUME, IMPORTS);
    let uid = imports.get(&name).await.unwrap()["metadata"]["uid"].clone();
    images.delete("debian-13").await.unwrap();
    images.until_gone("debian-13").await.unwrap();

    // A later pass over images has been made once another image has a new status.
    env.apply(&image("other", "https://images.example.com/another.qcow2"))
        .await;
    let seen = |image: &Value| image["status"]["observedGeneration"] == 2;
    images.until("other", "to be seen", seen).await.unwrap();
    assert_eq!(imports.get(&name).await.unwrap()["metadata"]["uid"], uid);

    env.simulator.set_all(Scenario::Happy);
    machines.until_phase("web", "Running").await.unwrap();
    imports.until_gone(&name).await.unwrap();
    wait::until("the claim of the import to be gone", async || {
        let claim = env.lab.objects(CLAIM, IMPORTS).find(&name).await?;
        Ok(claim.is_none().then_some(()).ok_or("it exists"))
    })
    .await
    .unwrap();
    machines.get("web").await.unwrap();
}
