//! The end of a Machine: in order, whatever happens in between, and only of what is its own.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod stage;

use lab::{
    Cdi, KubevirtCrds, Options, Script,
    audit::Event,
    objects::{CLAIM, INSTANCE, MACHINE, SECRET, VM, condition},
    wait,
};
use serde_json::{Value, json};

use stage::{Stage, machine, summaries};

fn deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Where in a list of requests the last one is that does this to that.
fn position(events: &[Event], verb: &str, resource: &str, name: &str) -> usize {
    let found = events.iter().rposition(|event| {
        event.wrote()
            && (event.verb.as_str(), event.resource.as_str()) == (verb, resource)
            && (event.name.as_str(), event.subresource.as_str()) == (name, "")
    });
    found.unwrap_or_else(|| {
        let all = summaries(events).join("\n");
        panic!("no {verb} of {resource} {name} in:\n{all}")
    })
}

#[tokio::test]
async fn a_running_machine_goes_in_order_and_keeps_what_is_to_be_kept() {
    let stage = Stage::new().await;
    let (machines, claims) = (stage.machines(), stage.objects(CLAIM));
    let spec = json!({
        "template": "small",
        "disks": [{"name": "data", "size": "10Gi", "reclaimPolicy": "Retain"}],
    });
    stage.apply(&machine("web", &spec)).await;
    let web = machines.in_phase("web", "Running").await.unwrap();
    let kept = claims.get("web-data").await.unwrap();

    // The guest ignores its shutdown: nothing is taken from it.
    stage.simulator.set("default", "web", Script::Stuck);
    let start = stage.lab.mark().await.unwrap();
    machines.delete("web").await.unwrap();
    stage
        .objects(INSTANCE)
        .until("web", "to be shut down", deleting)
        .await
        .unwrap();
    let waits = machines
        .told("web", "Ready", "False", "Deleting")
        .await
        .unwrap();
    let message = condition(&waits, "Ready")["message"].as_str().unwrap();
    assert!(
        message.contains("VirtualMachine web is being shut down"),
        "{message}"
    );
    stage.barrier("later").await;
    assert!(machines.find("web").await.unwrap().is_some());
    for name in ["web-root", "web-data"] {
        assert!(!deleting(&claims.get(name).await.unwrap()), "{name}");
    }

    stage.simulator.set("default", "web", Script::Happy);
    machines.gone("web").await.unwrap();
    claims.gone("web-root").await.unwrap();
    let events = stage.lab.asked_since(start).await.unwrap();
    let at = |verb, resource, name| position(&events, verb, resource, name);
    let order = [
        at("delete", "virtualmachines", "web"),
        // KubeVirt takes its finalizers away: the guest has ended, its VirtualMachine is gone.
        at("patch", "virtualmachineinstances", "web"),
        at("patch", "virtualmachines", "web"),
        at("delete", "persistentvolumeclaims", "web-root"),
        at("patch", "machines", "web"),
    ];
    assert!(order.is_sorted(), "{order:?}: {:#?}", summaries(&events));

    // Kept, with what is on it, for a Machine of the name that wants it.
    let left = claims.get("web-data").await.unwrap();
    assert_eq!(left["metadata"]["uid"], kept["metadata"]["uid"]);
    let annotations = &left["metadata"]["annotations"];
    assert_eq!(
        annotations["machine.vitistack.io/retained-from"],
        web["metadata"]["uid"]
    );
    stage.apply(&machine("web", &spec)).await;
    let again = machines.in_phase("web", "Running").await.unwrap();
    let back = claims.get("web-data").await.unwrap();
    assert_eq!(back["metadata"]["uid"], kept["metadata"]["uid"]);
    assert_eq!(
        back["metadata"]["annotations"]["machine.vitistack.io/machine-uid"],
        again["metadata"]["uid"]
    );
}

#[tokio::test]
async fn a_claim_of_somebody_else_is_left_alone() {
    let stage = Stage::new().await;
    let (machines, claims) = (stage.machines(), stage.objects(CLAIM));
    // Made after the review of the Machine, which would have refused it.
    stage.simulator.set_all(Script::PvcPending);
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "web-root", "namespace": "default"},
        "spec": {
            "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
        },
    });
    stage.lab.unregister_webhooks().await.unwrap();
    stage
        .apply(&machine("web", &json!({"template": "small"})))
        .await;
    stage.apply(&claim).await;
    let before = claims.get("web-root").await.unwrap();
    stage.lab.register_webhooks().await.unwrap();
    stage.heal("web").await;

    let told = machines
        .told("web", "StorageReady", "False", "NameConflict")
        .await
        .unwrap();
    let message = condition(&told, "StorageReady")["message"]
        .as_str()
        .unwrap();
    assert!(
        message.contains("PersistentVolumeClaim 'web-root' exists"),
        "{message}"
    );
    assert!(stage.objects(VM).find("web").await.unwrap().is_none());
    machines.delete("web").await.unwrap();
    machines.gone("web").await.unwrap();
    assert_eq!(claims.get("web-root").await.unwrap(), before);
}

#[tokio::test]
async fn a_controller_that_is_killed_on_the_way_goes_on_where_it_was() {
    let mut stage = Stage::new().await;
    let (machines, claims) = (stage.machines(), stage.objects(CLAIM));
    stage
        .apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.in_phase("web", "Running").await.unwrap();

    stage.simulator.set("default", "web", Script::Stuck);
    machines.delete("web").await.unwrap();
    stage
        .objects(VM)
        .until("web", "to be deleted", deleting)
        .await
        .unwrap();
    stage.controller.kill();
    // All that it waited for happens while it is away.
    stage.simulator.set("default", "web", Script::Happy);
    stage.objects(VM).gone("web").await.unwrap();
    assert!(deleting(&machines.get("web").await.unwrap()));
    assert!(!deleting(&claims.get("web-root").await.unwrap()));

    stage.controller.start_again().unwrap();
    machines.gone("web").await.unwrap();
    claims.gone("web-root").await.unwrap();
}

/// Killed after each of its first writes, one after the other, the controller still brings a
/// Machine up, and down again, with one of everything and nothing left.
#[tokio::test]
async fn a_crash_after_any_write_does_no_harm() {
    let mut stage = Stage::with(Options::default(), &[("LEADER_ELECTION", "false")]).await;
    let machines = stage.machines();
    let start = stage.lab.mark().await.unwrap();
    stage.controller.kill();
    let spec = json!({"template": "small", "cloudInit": {"metaData": {"role": "db"}}});
    stage.apply(&machine("web", &spec)).await;
    crash_until(&mut stage, |web| web["status"]["phase"] == "Running").await;
    machines.in_phase("web", "Running").await.unwrap();
    // One of everything, each made once.
    let writes = stage.writes_since(start).await;
    assert!(
        writes.iter().all(|event| event.verb != "delete"),
        "{:#?}",
        summaries(&writes)
    );
    for (kind, name) in [(CLAIM, "web-root"), (SECRET, "web-cloudinit"), (VM, "web")] {
        let objects = stage.objects(kind).list().await.unwrap();
        let names = objects.iter().map(|object| &object["metadata"]["name"]);
        assert_eq!(names.collect::<Vec<_>>(), [name]);
    }

    stage.controller.kill();
    machines.delete("web").await.unwrap();
    crash_until(&mut stage, Value::is_null).await;
    machines.gone("web").await.unwrap();
    for (kind, name) in [(CLAIM, "web-root"), (VM, "web"), (SECRET, "web-cloudinit")] {
        stage.objects(kind).gone(name).await.unwrap();
    }
}

/// Starts the controller and kills it after its next write, until the Machine `web` fits.
async fn crash_until(stage: &mut Stage, fits: impl Fn(&Value) -> bool) {
    let mut crashes = 0;
    loop {
        let start = stage.lab.mark().await.unwrap();
        stage.controller.start_again().unwrap();
        let there = wait::until("a write, or the end", async || {
            let web = stage.machines().find("web").await?.unwrap_or_default();
            if fits(&web) {
                return Ok(Ok(true));
            }
            let writes = stage.writes_since(start).await;
            Ok(if writes.is_empty() {
                Err(web["status"].clone())
            } else {
                Ok(false)
            })
        });
        if there.await.unwrap() {
            break;
        }
        stage.controller.kill();
        crashes += 1;
    }
    assert!(crashes > 0, "it was too fast to be killed on its way");
}

/// `kubectl delete namespace` with a running Machine in it.
#[tokio::test]
async fn a_namespace_takes_its_machines_with_it() {
    let stage = Stage::new().await;
    let kubectl = stage.lab.kubectl();
    let create = ["create", "namespace", "team"];
    kubectl.run(&create).await.unwrap().ok().unwrap();
    let mut web = machine("web", &json!({"template": "small"}));
    web["metadata"]["namespace"] = "team".into();
    stage.apply(&web).await;
    let machines = stage.lab.objects(MACHINE, "team");
    machines.in_phase("web", "Running").await.unwrap();
    let delete = ["delete", "namespace", "team", "--timeout=60s"];
    kubectl.run(&delete).await.unwrap().ok().unwrap();
    assert!(machines.find("web").await.unwrap().is_none());
}

/// What is not installed keeps nothing alive.
#[tokio::test]
async fn a_machine_goes_where_kubevirt_never_was() {
    let options = Options {
        kubevirt: KubevirtCrds::Absent,
        multus: false,
        cdi: Cdi::Absent,
        ..Options::default()
    };
    let stage = Stage::with(options, &[]).await;
    let machines = stage.machines();
    stage
        .apply(&machine("web", &json!({"template": "small"})))
        .await;
    let told = machines.told("web", "VirtualMachineReady", "False", "KubeVirtApiError");
    let told = told.await.unwrap();
    let message = condition(&told, "VirtualMachineReady")["message"]
        .as_str()
        .unwrap();
    assert!(
        message.starts_with("KubeVirt is not installed"),
        "{message}"
    );
    machines.delete("web").await.unwrap();
    machines.gone("web").await.unwrap();
    stage.objects(CLAIM).gone("web-root").await.unwrap();
}
