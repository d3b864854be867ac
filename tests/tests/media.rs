//! Media of CD-ROM drives and sizes of disks on KubeVirt: what admission announces is what happens to the running guest.

mod environment;

use lab::objects::{CLAIM, INSTANCE, VM};
use serde_json::{Value, json};

use environment::{Environment, is_reported, machine, pending};

const GATE: &str = "DeclarativeHotplugVolumes";

/// A Machine with a drive, empty or with a medium.
fn with_drive(medium: Option<&str>) -> Value {
    let mut drive = json!({"name": "tools"});
    if let Some(medium) = medium {
        drive["size"] = json!("1Gi");
        drive["storageClass"] = json!("standard");
        drive["image"] = json!({"url": format!("docker://registry.example.com/{medium}")});
    }
    machine("web", &json!({"template": "small", "cdroms": [drive]}))
}

/// The claim of the medium in the drive of a VirtualMachine or an instance: of its `spec` at this path.
fn medium<'a>(object: &'a Value, spec: &str) -> Option<&'a str> {
    let volumes = object.pointer(&format!("{spec}/volumes"))?.as_array()?;
    let volume = volumes.iter().find(|volume| volume["name"] == "tools")?;
    volume["persistentVolumeClaim"]["claimName"].as_str()
}

fn has_drive(object: &Value, spec: &str) -> bool {
    let disks = object.pointer(&format!("{spec}/domain/devices/disks"));
    let disks = disks.and_then(Value::as_array).into_iter().flatten();
    let mut disks = disks.filter(|disk| disk["name"] == "tools");
    disks
        .next()
        .is_some_and(|disk| disk["cdrom"]["bus"] == "sata")
        && disks.next().is_none()
}

#[tokio::test]
async fn media_enter_and_leave_the_drive_of_a_running_guest_where_kubevirt_can() {
    let env = Environment::with_best_crds().await;
    let (machines, instances, claims) = (env.machines(), env.objects(INSTANCE), env.objects(CLAIM));
    let kubectl = env.lab.kubectl();
    let apply = async |medium: Option<&str>| {
        let output = kubectl.apply(&with_drive(medium)).await.unwrap();
        assert_eq!(output.code, 0, "{output}");
        output.stderr
    };
    let refusal = "spec.cdroms[0].image: Required value: an empty drive needs KubeVirt's feature gate DeclarativeHotplugVolumes, which is enabled by default since 1.9, and not on this cluster (v1.8.0); give an image, remove the drive, or have the gate enabled [EmptyCdrom]";
    env.simulator.install(8, &[]).await.unwrap();
    env.until_announced(&with_drive(None), refusal, true).await;
    env.simulator.install(8, &[GATE]).await.unwrap();
    env.until_announced(&with_drive(None), "EmptyCdrom", false)
        .await;

    apply(None).await;
    machines.until_phase("web", "Running").await.unwrap();
    let vm = env.objects(VM).get("web").await.unwrap();
    assert!(has_drive(&vm, "/spec/template/spec"), "{vm}");
    assert_eq!(medium(&vm, "/spec/template/spec"), None);
    let first = instances.get("web").await.unwrap();
    assert!(has_drive(&first, "/spec") && medium(&first, "/spec").is_none());
    let uid = first["metadata"]["uid"].clone();

    // Put in, replaced, and taken out: without a warning and in the same guest.
    let mut before: Option<String> = None;
    for next in [Some("debian"), Some("drivers"), None] {
        let warning = apply(next).await;
        assert!(!warning.contains("Required"), "{next:?}: {warning}");
        let changed = |it: &Value| {
            let now = medium(it, "/spec");
            now != before.as_deref() && now.is_some() == next.is_some()
        };
        let guest = instances.until("web", "to have the medium", changed).await;
        let guest = guest.unwrap();
        assert_eq!(guest["metadata"]["uid"], uid, "{next:?}");
        assert!(has_drive(&guest, "/spec"), "{next:?}: {guest}");
        env.until_pending("web", &[]).await;
        if let Some(before) = before {
            claims.until_gone(&before).await.unwrap();
        }
        before = medium(&guest, "/spec").map(str::to_owned);
    }

    // Without the gate the guest keeps its medium, and the claim with it, until it is restarted.
    apply(Some("debian")).await;
    let filled = |it: &Value| medium(it, "/spec").is_some();
    let guest = instances.until("web", "to have a medium", filled).await;
    let old = medium(&guest.unwrap(), "/spec").unwrap().to_owned();
    env.simulator.install(8, &[]).await.unwrap();
    let restarts = "spec.cdroms[0].image: the medium in 'tools' changes at the next restart";
    env.until_announced(&with_drive(Some("drivers")), restarts, true)
        .await;
    env.until_announced(&with_drive(None), refusal, true).await;
    apply(Some("drivers")).await;
    let waits = |it: &Value| is_reported(it) && pending(it).iter().any(|it| it[3] == "Restart");
    let web = machines.until("web", "to wait for a restart", waits).await;
    let web = web.unwrap();
    let [["cdroms[tools].image", current, new, "Restart"]] = pending(&web)[..] else {
        panic!("{:?}", pending(&web));
    };
    assert_eq!(current, old);
    assert!(claims.find(&old).await.unwrap().is_some());
    let guest = instances.get("web").await.unwrap();
    assert_eq!(medium(&guest, "/spec"), Some(old.as_str()));
    let request = "for the medium";
    machines.request_restart("web", request).await.unwrap();
    let has_new = |it: &Value| medium(it, "/spec") == Some(new);
    let guest = instances
        .until("web", "to have the new medium", has_new)
        .await;
    assert_ne!(guest.unwrap()["metadata"]["uid"], uid);
    claims.until_gone(&old).await.unwrap();
}

/// The size of a disk in the guest, in GiB.
fn size(instance: &Value, disk: &str) -> Option<u64> {
    let volumes = instance["status"]["volumeStatus"].as_array()?;
    let volume = volumes.iter().find(|volume| volume["name"] == disk)?;
    Some(volume["size"].as_u64()? >> 30)
}

#[tokio::test]
async fn a_guest_has_the_size_of_a_grown_volume_when_admission_says_so() {
    let env = Environment::with_best_crds().await;
    let (machines, instances, claims) = (env.machines(), env.objects(INSTANCE), env.objects(CLAIM));
    let kubectl = env.lab.kubectl();
    let with = |root: u64, data: u64| {
        let size = |name: &str, size: u64| {
            let size = format!("{size}Gi");
            json!({"name": name, "size": size, "storageClass": "fast-ssd"})
        };
        let mut data = size("data", data);
        data["volumeMode"] = json!("Block");
        let disks = json!([size("root", root), data]);
        machine("web", &json!({"template": "small", "disks": disks}))
    };
    let apply = async |root: u64, data: u64| {
        let output = kubectl.apply(&with(root, data)).await.unwrap();
        assert_eq!(output.code, 0, "{output}");
        output.stderr
    };
    let guest_has = async |sizes: [u64; 2]| {
        let has = |it: &Value| ["root", "data"].map(|disk| size(it, disk)) == sizes.map(Some);
        let what = format!("to have {sizes:?} GiB");
        instances.until("web", &what, has).await.unwrap()
    };
    env.simulator.install(7, &[]).await.unwrap();
    apply(20, 1).await;
    machines.until_phase("web", "Running").await.unwrap();
    let uid = guest_has([20, 1]).await["metadata"]["uid"].clone();

    let later = "spec.disks[1].size: changes from 1Gi to 2Gi now, and in the guest at the next restart [RestartRequired]";
    env.until_announced(&with(30, 2), later, true).await;
    let warning = apply(30, 2).await;
    assert!(warning.contains(later), "{warning}");
    let never = "spec.disks[0].size: changes from 20Gi to 30Gi now, but in the guest only at a restart with KubeVirt's feature gate ExpandDisks, which is not enabled on this cluster [RestartRequired]";
    assert!(warning.contains(never), "{warning}");
    let gate = "30Gi, with KubeVirt's feature gate ExpandDisks";
    let root = ["disks[root].size", "20Gi", gate, "Restart"];
    let data = ["disks[data].size", "1Gi", "2Gi", "Restart"];
    env.until_pending("web", &[root, data]).await;
    for (claim, capacity) in [("web-root", "30Gi"), ("web-data", "2Gi")] {
        let grown = |it: &Value| it["status"]["capacity"]["storage"] == capacity;
        claims.until(claim, "to have grown", grown).await.unwrap();
    }
    let guest = guest_has([20, 1]).await;
    assert_eq!(guest["metadata"]["uid"], uid);

    // A block device has the size after a restart, the file on a volume does not.
    let request = "for the size";
    machines.request_restart("web", request).await.unwrap();
    let guest = guest_has([20, 2]).await;
    assert_ne!(guest["metadata"]["uid"], uid);
    env.until_pending("web", &[root]).await;

    // With the gate, the running guest has it at once.
    env.simulator.install(7, &["ExpandDisks"]).await.unwrap();
    env.until_announced(&with(40, 3), "RestartRequired", false)
        .await;
    let warning = apply(40, 3).await;
    assert!(!warning.contains("RestartRequired"), "{warning}");
    let same = guest_has([40, 3]).await;
    assert_eq!(same["metadata"]["uid"], guest["metadata"]["uid"]);
    env.until_pending("web", &[]).await;
}
