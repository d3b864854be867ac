//! The deletion of a Machine: in order, resumed after interruptions, and only of the Machine's own objects.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod environment;

use lab::{
    Cdi, KubevirtCrds, Options, Scenario,
    audit::Event,
    objects::{CLAIM, INSTANCE, MACHINE, SECRET, VM, condition_message},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine, summaries};

fn deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The position of the last request with this verb for this object.
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
async fn deleting_a_running_machine_follows_the_order_and_keeps_retained_disks() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let spec = json!({
        "template": "small",
        "disks": [{"name": "data", "size": "10Gi", "reclaimPolicy": "Retain"}],
    });
    env.apply(&machine("web", &spec)).await;
    let web = machines.until_phase("web", "Running").await.unwrap();
    let kept = claims.get("web-data").await.unwrap();

    // While the guest ignores its shutdown, none of its objects is deleted.
    env.simulator.set("default", "web", Scenario::Stuck);
    let start = env.lab.log_position().await.unwrap();
    machines.delete("web").await.unwrap();
    env.objects(INSTANCE)
        .until("web", "to be shut down", deleting)
        .await
        .unwrap();
    let waits = machines
        .until_condition("web", "Ready", "False", "Deleting")
        .await
        .unwrap();
    let message = condition_message(&waits, "Ready").unwrap();
    assert!(
        message.contains("VirtualMachine web is being shut down"),
        "{message}"
    );
    env.barrier("later").await;
    assert!(machines.find("web").await.unwrap().is_some());
    for name in ["web-root", "web-data"] {
        assert!(!deleting(&claims.get(name).await.unwrap()), "{name}");
    }

    env.simulator.set("default", "web", Scenario::Happy);
    machines.until_gone("web").await.unwrap();
    claims.until_gone("web-root").await.unwrap();
    let events = env.lab.requests_since(start).await.unwrap();
    let at = |verb, resource, name| position(&events, verb, resource, name);
    let order = [
        at("delete", "virtualmachines", "web"),
        // KubeVirt removes its finalizers: the guest has ended, its VirtualMachine is gone.
        at("patch", "virtualmachineinstances", "web"),
        at("patch", "virtualmachines", "web"),
        at("delete", "persistentvolumeclaims", "web-root"),
        at("patch", "machines", "web"),
    ];
    assert!(order.is_sorted(), "{order:?}: {:#?}", summaries(&events));

    // The retained claim is kept, and a new Machine of the same name adopts it.
    let left = claims.get("web-data").await.unwrap();
    assert_eq!(left["metadata"]["uid"], kept["metadata"]["uid"]);
    let annotations = &left["metadata"]["annotations"];
    assert_eq!(
        annotations["machine.vitistack.io/retained-from"],
        web["metadata"]["uid"]
    );
    env.apply(&machine("web", &spec)).await;
    let again = machines.until_phase("web", "Running").await.unwrap();
    let back = claims.get("web-data").await.unwrap();
    assert_eq!(back["metadata"]["uid"], kept["metadata"]["uid"]);
    assert_eq!(
        back["metadata"]["annotations"]["machine.vitistack.io/machine-uid"],
        again["metadata"]["uid"]
    );
}

#[tokio::test]
async fn a_claim_of_another_owner_is_not_changed() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    // Created after the review of the Machine, which would have refused it.
    env.simulator.set_all(Scenario::PvcPending);
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "web-root", "namespace": "default"},
        "spec": {
            "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
        },
    });
    env.lab.unregister_webhooks().await.unwrap();
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    env.apply(&claim).await;
    let before = claims.get("web-root").await.unwrap();
    env.lab.register_webhooks().await.unwrap();
    env.until_renormalized("web").await;

    let reported = machines
        .until_condition("web", "StorageReady", "False", "NameConflict")
        .await
        .unwrap();
    let message = condition_message(&reported, "StorageReady").unwrap();
    assert!(
        message.contains("PersistentVolumeClaim 'web-root' exists"),
        "{message}"
    );
    assert!(env.objects(VM).find("web").await.unwrap().is_none());
    machines.delete("web").await.unwrap();
    machines.until_gone("web").await.unwrap();
    assert_eq!(claims.get("web-root").await.unwrap(), before);
}

/// A backup of a Machine is restored without the Machine: its VirtualMachine runs on its claims. The user creates the
/// Machine again, which finds its name taken, and deletes it.
#[tokio::test]
async fn claims_of_a_restored_virtual_machine_survive_the_deletion_of_a_machine_of_its_name() {
    let env = Environment::new().await;
    let (machines, claims, vms) = (env.machines(), env.objects(CLAIM), env.objects(VM));
    let web = machine("web", &json!({"template": "small"}));
    env.apply(&web).await;
    machines.until_phase("web", "Running").await.unwrap();
    let saved = [
        claims.get("web-root").await.unwrap(),
        vms.get("web").await.unwrap(),
    ];
    machines.delete("web").await.unwrap();
    machines.until_gone("web").await.unwrap();
    claims.until_gone("web-root").await.unwrap();
    for saved in &saved {
        let metadata = &saved["metadata"];
        let mut restored = json!({
            "apiVersion": saved["apiVersion"], "kind": saved["kind"], "spec": saved["spec"],
            "metadata": {
                "name": metadata["name"], "namespace": "default",
                "labels": metadata["labels"], "annotations": metadata["annotations"],
            },
        });
        restored["spec"]["volumeName"].take();
        env.apply(&restored).await;
    }
    let runs = |instance: &Value| instance["status"]["phase"] == "Running";
    let guest = env.objects(INSTANCE).until("web", "to run", runs).await;
    let (guest, claim) = (guest.unwrap(), claims.get("web-root").await.unwrap());

    env.apply(&web).await;
    let conflict = machines.until_condition("web", "VirtualMachineReady", "False", "NameConflict");
    conflict.await.unwrap();
    machines.delete("web").await.unwrap();
    env.barrier("later").await;
    let left = claims.get("web-root").await.unwrap();
    assert_eq!(left["metadata"]["uid"], claim["metadata"]["uid"]);
    assert!(!deleting(&left), "{left}");
    let instance = env.objects(INSTANCE).get("web").await.unwrap();
    assert_eq!(instance["metadata"]["uid"], guest["metadata"]["uid"]);
    assert!(!deleting(&instance));
}

#[tokio::test]
async fn a_controller_killed_during_a_deletion_resumes_it() {
    let mut env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.until_phase("web", "Running").await.unwrap();

    env.simulator.set("default", "web", Scenario::Stuck);
    machines.delete("web").await.unwrap();
    env.objects(VM)
        .until("web", "to be deleted", deleting)
        .await
        .unwrap();
    env.controller.kill();
    // All conditions that it waited for are met while it is stopped.
    env.simulator.set("default", "web", Scenario::Happy);
    env.objects(VM).until_gone("web").await.unwrap();
    assert!(deleting(&machines.get("web").await.unwrap()));
    assert!(!deleting(&claims.get("web-root").await.unwrap()));

    env.controller.start_again().unwrap();
    machines.until_gone("web").await.unwrap();
    claims.until_gone("web-root").await.unwrap();
}

/// The controller is killed after each of its first writes, one after the other. It still creates each object once, and
/// deletes all of them.
#[tokio::test]
async fn a_crash_after_any_write_is_repaired_by_the_next_start() {
    let mut env = Environment::with(Options::default(), &[("LEADER_ELECTION", "false")]).await;
    let machines = env.machines();
    let start = env.lab.log_position().await.unwrap();
    env.controller.kill();
    let spec = json!({"template": "small", "cloudInit": {"metaData": {"role": "db"}}});
    env.apply(&machine("web", &spec)).await;
    crash_until(&mut env, |web| web["status"]["phase"] == "Running").await;
    machines.until_phase("web", "Running").await.unwrap();
    // Each object was created once.
    let writes = env.writes_since(start).await;
    assert!(
        writes.iter().all(|event| event.verb != "delete"),
        "{:#?}",
        summaries(&writes)
    );
    for (kind, name) in [(CLAIM, "web-root"), (SECRET, "web-cloudinit"), (VM, "web")] {
        let objects = env.objects(kind).list().await.unwrap();
        let names = objects.iter().map(|object| &object["metadata"]["name"]);
        assert_eq!(names.collect::<Vec<_>>(), [name]);
    }

    env.controller.kill();
    machines.delete("web").await.unwrap();
    crash_until(&mut env, Value::is_null).await;
    machines.until_gone("web").await.unwrap();
    for (kind, name) in [(CLAIM, "web-root"), (VM, "web"), (SECRET, "web-cloudinit")] {
        env.objects(kind).until_gone(name).await.unwrap();
    }
}

/// Starts the controller and kills it after its next write, until the Machine `web` fits.
async fn crash_until(env: &mut Environment, fits: impl Fn(&Value) -> bool) {
    let mut crashes = 0;
    loop {
        let start = env.lab.log_position().await.unwrap();
        env.controller.start_again().unwrap();
        let there = wait::until("a write, or the state that ends the loop", async || {
            let web = env.machines().find("web").await?.unwrap_or_default();
            if fits(&web) {
                return Ok(Ok(true));
            }
            let writes = env.writes_since(start).await;
            Ok(if writes.is_empty() {
                Err(web["status"].clone())
            } else {
                Ok(false)
            })
        });
        if there.await.unwrap() {
            break;
        }
        env.controller.kill();
        crashes += 1;
    }
    assert!(
        crashes > 0,
        "the controller was never killed between its writes"
    );
}

/// `kubectl delete namespace` with a running Machine in it.
#[tokio::test]
async fn deleting_a_namespace_deletes_its_machines() {
    let env = Environment::new().await;
    let kubectl = env.lab.kubectl();
    let create = ["create", "namespace", "team"];
    kubectl.run(&create).await.unwrap().ok().unwrap();
    let mut web = machine("web", &json!({"template": "small"}));
    web["metadata"]["namespace"] = "team".into();
    env.apply(&web).await;
    let machines = env.lab.objects(MACHINE, "team");
    machines.until_phase("web", "Running").await.unwrap();
    let delete = ["delete", "namespace", "team", "--timeout=10m"];
    kubectl.run(&delete).await.unwrap().ok().unwrap();
    assert!(machines.find("web").await.unwrap().is_none());
}

/// Kinds that are not installed do not block a deletion.
#[tokio::test]
async fn a_machine_is_deleted_in_a_cluster_without_kubevirt() {
    let options = Options {
        kubevirt: KubevirtCrds::Absent,
        multus: false,
        cdi: Cdi::Absent,
        ..Options::default()
    };
    let env = Environment::with(options, &[]).await;
    let machines = env.machines();
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    let reported =
        machines.until_condition("web", "VirtualMachineReady", "False", "KubeVirtApiError");
    let reported = reported.await.unwrap();
    let message = condition_message(&reported, "VirtualMachineReady").unwrap();
    assert!(
        message.starts_with("KubeVirt is not installed"),
        "{message}"
    );
    machines.delete("web").await.unwrap();
    machines.until_gone("web").await.unwrap();
    env.objects(CLAIM).until_gone("web-root").await.unwrap();
}

/// The claims of a label that are not being deleted.
async fn labelled(env: &Environment, key: &str, value: &str) -> Vec<Value> {
    let claims = env.objects(CLAIM).list().await.unwrap();
    let claims = claims.into_iter().filter(|claim| !deleting(claim));
    claims
        .filter(|claim| claim["metadata"]["labels"][key] == value)
        .collect()
}

/// Deletes the VirtualMachine of a Machine by hand. The claim with the state of its guest is still there when another guest
/// runs. If it is to be kept after the Machine, it has no owner.
async fn outlives_its_vm(env: &Environment, name: &str, is_kept: bool) {
    let owned = wait::until("the owners of the claim", async || {
        let claims = labelled(env, "persistent-state-for", name).await;
        let owners = claims[0]["metadata"]["ownerReferences"].to_string();
        let has_owners = if is_kept {
            owners == "null"
        } else {
            owners.contains(r#""kind":"Machine""#)
        };
        Ok((claims.len() == 1 && has_owners)
            .then(|| claims[0]["metadata"]["uid"].clone())
            .ok_or(owners))
    });
    let before = owned.await.unwrap();
    let vms = env.objects(VM);
    let old = vms.get(name).await.unwrap()["metadata"]["uid"].clone();
    vms.delete(name).await.unwrap();
    let is_another = |vm: &Value| vm["metadata"]["uid"] != old && vm["status"]["ready"] == true;
    vms.until(name, "to be another one that runs", is_another)
        .await
        .unwrap();
    // The garbage collector has seen that the VirtualMachine is gone.
    let collected = wait::until("the owner that is gone to be removed", async || {
        let claims = labelled(env, "persistent-state-for", name).await;
        let owners = claims
            .first()
            .map(|claim| claim["metadata"]["ownerReferences"].to_string());
        let is_gone = owners
            .as_ref()
            .is_none_or(|owners| !owners.contains(&old.to_string()));
        Ok(is_gone.then_some(claims).ok_or(owners))
    });
    let after = collected.await.unwrap();
    let uids: Vec<_> = after
        .iter()
        .map(|claim| &claim["metadata"]["uid"])
        .collect();
    assert_eq!(uids, [&before]);
    env.machines().until_phase(name, "Running").await.unwrap();
}

#[tokio::test]
async fn the_claim_of_efi_variables_and_tpm_goes_with_the_disks_or_stays_with_them() {
    let env = Environment::new().await;
    let machines = env.machines();
    for (name, policy) in [("goes", "Delete"), ("stays", "Retain")] {
        let spec = json!({
            "template": "small",
            "disks": [{"name": "root", "reclaimPolicy": policy}],
            "domain": {
                "devices": {"tpm": {"persistent": true}},
                "firmware": {"bootloader": {"efi": true}},
            },
        });
        env.apply(&machine(name, &spec)).await;
        machines.until_phase(name, "Running").await.unwrap();
        outlives_its_vm(&env, name, policy == "Retain").await;
        // Argo CD prunes like this: the garbage collector deletes what the Machine owns, too.
        let delete = ["delete", "machine", name, "--cascade=foreground"];
        env.lab.kubectl().run(&delete).await.unwrap().ok().unwrap();
        machines.until_gone(name).await.unwrap();
    }
    let stays = labelled(&env, "vitistack.io/retained-state", "stays").await;
    assert_eq!(stays.len(), 1);
    assert_eq!(stays[0]["metadata"]["ownerReferences"], Value::Null);
    assert!(
        labelled(&env, "persistent-state-for", "stays")
            .await
            .is_empty()
    );
    wait::until("the claim of 'goes' to be deleted", async || {
        let left = labelled(&env, "persistent-state-for", "goes").await;
        Ok(if left.is_empty() {
            Ok(())
        } else {
            Err(left.len())
        })
    })
    .await
    .unwrap();
}
