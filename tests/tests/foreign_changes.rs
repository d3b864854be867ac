//! Guests that end, are evicted, or are changed by other clients of KubeVirt; and KubeVirt that does not answer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, EvictParams, ListParams},
};
use lab::{
    Admission, Options, Scenario,
    objects::{CLAIM, EVENT, INSTANCE, VM, condition, condition_message},
};
use serde_json::{Value, json};

use environment::{Environment, machine, named};

/// A Machine whose guest stays off when it shuts itself down.
fn stays_off(name: &str) -> Value {
    machine(
        name,
        &json!({"template": "small", "guestShutdownStops": true}),
    )
}

async fn running(env: &Environment, machine: &Value) -> Value {
    let name = machine["metadata"]["name"].as_str().unwrap();
    env.apply(machine).await;
    let machines = env.machines();
    machines
        .until_condition(name, "Ready", "True", "Running")
        .await
        .unwrap();
    env.objects(INSTANCE).get(name).await.unwrap()
}

/// Waits until another instance than this one runs, and the Machine says so.
async fn runs_again(env: &Environment, name: &str, before: &Value) {
    let another = |instance: &Value| {
        instance["metadata"]["uid"] != before["metadata"]["uid"]
            && instance["status"]["phase"] == "Running"
    };
    let instances = env.objects(INSTANCE);
    instances
        .until(name, "to be another one", another)
        .await
        .unwrap();
    let machines = env.machines();
    machines
        .until_condition(name, "Ready", "True", "Running")
        .await
        .unwrap();
}

async fn pod_of(env: &Environment, name: &str) -> (Api<Pod>, String) {
    let pods: Api<Pod> = Api::default_namespaced(env.lab.client().clone());
    let selector = ListParams::default().labels(&format!("vm.kubevirt.io/name={name}"));
    let found = pods.list(&selector).await.unwrap().items.pop().unwrap();
    (pods, found.metadata.name.unwrap())
}

/// The note of the first event about a Machine with this reason that contains `text`.
async fn event(env: &Environment, name: &str, reason: &str, text: &str) -> String {
    let events = env.objects(EVENT);
    let event = events.until_event(name, reason, text).await.unwrap();
    event["note"].as_str().unwrap().to_owned()
}

/// Eviction and deletion of the pod end a guest as its own shutdown does, and only that stops the Machine.
#[tokio::test]
async fn an_evicted_guest_starts_again_and_only_its_own_shutdown_stops_it() {
    let env = Environment::with_best_crds().await;
    let before = running(&env, &stays_off("web")).await;
    let (pods, pod) = pod_of(&env, "web").await;
    // The pod stays until the controller has seen it, however busy this machine is.
    env.simulator.set("default", "web", Scenario::Stuck);
    pods.evict(&pod, &EvictParams::default()).await.unwrap();
    let machines = env.machines();
    let why_restarting = async || {
        let restarting = machines.until_condition("web", "Ready", "False", "Restarting");
        condition(&restarting.await.unwrap(), "Ready")["message"].clone()
    };
    let cause =
        format!("the guest is started again: its pod {pod} was evicted (EvictionByEvictionAPI)");
    assert_eq!(why_restarting().await, cause);
    env.simulator.set("default", "web", Scenario::Happy);
    runs_again(&env, "web", &before).await;
    event(&env, "web", "Restarted", &cause["the guest is ".len()..]).await;
    let usual = |vm: &Value| vm["spec"]["runStrategy"] == "RerunOnFailure";
    let vms = env.objects(VM);
    vms.until("web", "to have its strategy again", usual)
        .await
        .unwrap();

    let before = env.objects(INSTANCE).get("web").await.unwrap();
    let (pods, pod) = pod_of(&env, "web").await;
    env.simulator.set("default", "web", Scenario::Stuck);
    pods.delete(&pod, &DeleteParams::default()).await.unwrap();
    let deleted = format!("the guest is started again: its pod {pod} was deleted");
    assert_eq!(why_restarting().await, deleted);
    env.simulator.set("default", "web", Scenario::Happy);
    runs_again(&env, "web", &before).await;
    vms.until("web", "to have its strategy again", usual)
        .await
        .unwrap();

    env.simulator
        .guest_shutdown("default", "web")
        .await
        .unwrap();
    let stopped = machines.until_condition("web", "Ready", "True", "Stopped");
    let stopped = stopped.await.unwrap();
    let message = condition_message(&stopped, "Ready").unwrap();
    assert!(message.contains("stays off"), "{message}");
    env.objects(INSTANCE).until_gone("web").await.unwrap();
    env.barrier("later").await;
    assert!(env.objects(INSTANCE).find("web").await.unwrap().is_none());

    // A restart request starts a guest that is off.
    machines.request_restart("web", "on again").await.unwrap();
    runs_again(&env, "web", &before).await;
}

/// The controller was on the drained node, too: it finds the guest gone and the node cordoned.
#[tokio::test]
async fn a_guest_of_a_drained_node_starts_again_even_if_no_controller_watched() {
    let mut env = Environment::new().await;
    let before = running(&env, &stays_off("web")).await;
    let other = running(&env, &stays_off("db")).await;
    assert!(env.controller.stop().await.unwrap().success());
    let node = before["status"]["nodeName"].as_str().unwrap();
    env.cordon("cordon", &[node]).await;
    let (pods, pod) = pod_of(&env, "web").await;
    pods.evict(&pod, &EvictParams::default()).await.unwrap();
    env.objects(INSTANCE).until_gone("web").await.unwrap();
    env.controller.start_again().unwrap();
    runs_again(&env, "web", &before).await;

    // On a node that is there, a guest that ended meanwhile has shut itself down.
    assert!(env.controller.stop().await.unwrap().success());
    env.cordon("uncordon", &[node]).await;
    env.simulator.guest_shutdown("default", "db").await.unwrap();
    env.objects(INSTANCE).until_gone("db").await.unwrap();
    env.controller.start_again().unwrap();
    env.machines()
        .until_condition("db", "Ready", "True", "Stopped")
        .await
        .unwrap();
    assert_eq!(other["status"]["phase"], "Running");
}

/// Lowering what was requested is enough: nobody has to restart a guest that never ran.
#[tokio::test]
async fn a_guest_that_never_ran_is_replaced_when_the_spec_changes() {
    let env = Environment::new().await;
    for (name, stops) in [("web", false), ("db", true)] {
        env.simulator.set("default", name, Scenario::Unschedulable);
        let spec = json!({
            "template": "small", "guestShutdownStops": stops, "resources": {"memory": {"size": "64Gi"}},
        });
        env.apply(&machine(name, &spec)).await;
        let machines = env.machines();
        machines
            .until_condition(name, "Ready", "False", "InsufficientResources")
            .await
            .unwrap();
        let before = env.objects(INSTANCE).get(name).await.unwrap();
        let patch = json!({"spec": {"resources": {"memory": {"size": "1Gi"}}}});
        machines.merge(name, &patch).await.unwrap();
        let lowered = |instance: &Value| {
            instance["metadata"]["uid"] != before["metadata"]["uid"]
                && instance["spec"]["domain"]["memory"]["guest"] == "1Gi"
        };
        let instances = env.objects(INSTANCE);
        instances
            .until(name, "to have less memory", lowered)
            .await
            .unwrap();
        // KubeVirt counts the instance that never ran as a failed start.
        let counts = |vm: &Value| vm["status"]["startFailure"]["consecutiveFailCount"] == 1;
        let vms = env.objects(VM);
        vms.until(name, "to count a failed start", counts)
            .await
            .unwrap();
        env.simulator.set("default", name, Scenario::Happy);
        runs_again(&env, name, &before).await;
    }
}

/// `virtctl stop` is no reboot: it is reported with what to write instead, and undone once the guest is down. Also of a
/// guest with `guestShutdownStops`, whose VirtualMachine `virtctl stop` does not change.
#[tokio::test]
async fn a_foreign_stop_is_reported_and_undone_only_after_the_guest_is_down() {
    let env = Environment::new().await;
    let (machines, vms) = (env.machines(), env.objects(VM));
    let spec = json!({"template": "small"});
    let mut guests = Vec::new();
    for guest in [machine("web", &spec), stays_off("db")] {
        guests.push(running(&env, &guest).await);
    }
    for name in ["web", "db"] {
        env.simulator.set("default", name, Scenario::Stuck);
        env.simulator.stop("default", name).await.unwrap();
    }
    for name in ["web", "db"] {
        let stopped = machines.until_condition(name, "Ready", "False", "ForeignStop");
        let stopped = stopped.await.unwrap();
        let message = condition_message(&stopped, "Ready").unwrap();
        assert!(
            message.contains("set spec.powerState of the Machine to Stopped"),
            "{message}"
        );
    }
    env.barrier("later").await;
    let vm = vms.get("web").await.unwrap();
    assert_eq!(vm["spec"]["runStrategy"], "Halted");

    for (name, before) in ["web", "db"].iter().zip(&guests) {
        env.simulator.set("default", name, Scenario::Happy);
        runs_again(&env, name, before).await;
    }
    let note = event(&env, "web", "Restored", "spec.runStrategy").await;
    assert!(note.contains("changed by virt-api"), "{note}");
    assert!(
        note.contains("write spec.powerState of the Machine instead"),
        "{note}"
    );
    event(&env, "db", "Restarted", "another client had stopped it").await;
    let usual = |vm: &Value| vm["spec"]["runStrategy"] == "RerunOnFailure";
    vms.until("db", "to have its strategy again", usual)
        .await
        .unwrap();
}

/// The guest starts with the copy that the controller made of the Secret.
#[tokio::test]
async fn a_foreign_stop_is_undone_although_a_secret_is_missing() {
    let env = Environment::new().await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "init", "namespace": "default"},
        "stringData": {"config": "#cloud-config\n"},
    });
    env.apply(&secret).await;
    // Under another key than KubeVirt's the controller copies it.
    let init = json!({"secretRef": {"name": "init", "key": "config"}});
    let web = machine("web", &json!({"template": "small", "cloudInit": init}));
    let before = running(&env, &web).await;
    let delete = ["delete", "secret", "init"];
    env.lab.kubectl().run(&delete).await.unwrap().ok().unwrap();
    env.simulator.stop("default", "web").await.unwrap();
    runs_again(&env, "web", &before).await;
    let note = event(&env, "web", "Restored", "spec.runStrategy").await;
    assert!(note.contains("changed by virt-api"), "{note}");
}

#[tokio::test]
async fn a_foreign_stop_is_kept_by_the_setting() {
    let settings = [("ON_FOREIGN_STOP", "keep")];
    let env = Environment::with(Options::default(), &settings).await;
    let (machines, instances) = (env.machines(), env.objects(INSTANCE));
    let web = machine("web", &json!({"template": "small"}));
    let guests = [
        running(&env, &web).await,
        running(&env, &stays_off("db")).await,
    ];
    env.simulator.stop("default", "web").await.unwrap();
    // As `kubectl delete vmi`, of a guest that takes its time.
    env.simulator.set("default", "db", Scenario::Stuck);
    let delete = ["delete", "vmi", "db", "--wait=false"];
    env.lab.kubectl().run(&delete).await.unwrap().ok().unwrap();
    machines
        .until_condition("db", "Ready", "False", "ForeignStop")
        .await
        .unwrap();
    env.simulator.set("default", "db", Scenario::Happy);
    for name in ["web", "db"] {
        instances.until_gone(name).await.unwrap();
        let off = machines.until(name, "to be off", |machine| {
            condition(machine, "Ready")["reason"] == "ForeignStop"
                && machine["status"]["phase"] == "Stopped"
        });
        off.await.unwrap();
    }
    env.barrier("later").await;
    let vm = env.objects(VM).get("web").await.unwrap();
    assert_eq!(vm["spec"]["runStrategy"], "Halted");
    assert!(instances.find("db").await.unwrap().is_none());

    for (name, before) in ["web", "db"].iter().zip(&guests) {
        machines.request_restart(name, "on again").await.unwrap();
        runs_again(&env, name, before).await;
    }
}

/// `virtctl restart` of either strategy replaces the guest once; `virtctl start` of a Machine that is off is undone.
#[tokio::test]
async fn a_restart_by_virtctl_is_one_restart_and_a_start_of_a_stopped_machine_is_undone() {
    let env = Environment::new().await;
    let (machines, instances) = (env.machines(), env.objects(INSTANCE));
    let small = json!({"template": "small"});
    let guests = [machine("web", &small), stays_off("db")];
    for guest in &guests {
        let name = guest["metadata"]["name"].as_str().unwrap();
        let before = running(&env, guest).await;
        env.simulator.restart("default", name).await.unwrap();
        runs_again(&env, name, &before).await;
    }
    let uid = async |name: &str| instances.get(name).await.unwrap()["metadata"]["uid"].clone();
    let restarted = [uid("web").await, uid("db").await];

    let off = machine(
        "off",
        &json!({"template": "small", "powerState": "Stopped"}),
    );
    env.apply(&off).await;
    let stopped = async || {
        let stopped = machines.until_condition("off", "Ready", "True", "Stopped");
        stopped.await.unwrap();
    };
    stopped().await;
    env.simulator.start_machine("default", "off").await.unwrap();
    let note = event(&env, "off", "Restored", "spec.runStrategy").await;
    assert!(
        note.contains("write spec.powerState of the Machine instead"),
        "{note}"
    );
    let halted = |vm: &Value| vm["spec"]["runStrategy"] == "Halted";
    let vms = env.objects(VM);
    vms.until("off", "to be halted again", halted)
        .await
        .unwrap();
    instances.until_gone("off").await.unwrap();
    stopped().await;
    assert_eq!([uid("web").await, uid("db").await], restarted);
}

/// A volume that somebody plugged in stays through updates of the VirtualMachine; other changes are undone.
#[tokio::test]
async fn a_volume_that_others_plugged_in_stays_and_other_changes_are_restored() {
    let env = Environment::with_best_crds().await;
    let before = running(&env, &machine("web", &json!({"template": "small"}))).await;
    let claim = json!({
        "storageClassName": "fast-ssd", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    });
    env.apply(&named("v1", "PersistentVolumeClaim", "scratch", &claim))
        .await;
    env.simulator
        .add_volume("default", "web", "scratch")
        .await
        .unwrap();
    let has = |spec: &Value| {
        let volumes = spec["volumes"].as_array().unwrap();
        volumes.iter().any(|volume| volume["name"] == "scratch")
    };
    let instances = env.objects(INSTANCE);
    instances
        .until("web", "to have the volume", |it| has(&it["spec"]))
        .await
        .unwrap();
    let machines = env.machines();
    let lists = |web: &Value| {
        let exists = condition(web, "VirtualMachineReady");
        let message = exists["message"].as_str().unwrap_or_default();
        message.ends_with("volumes that the Machine does not have: scratch")
    };
    machines
        .until("web", "to list the volume", lists)
        .await
        .unwrap();

    // An update of the VirtualMachine, and a field that somebody changed.
    let patch = json!({"spec": {"resources": {"cpu": {"cores": 3}}}});
    machines.merge("web", &patch).await.unwrap();
    let updated = |vm: &Value| vm["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] == 3;
    let vms = env.objects(VM);
    let vm = vms.until("web", "to be updated", updated).await.unwrap();
    assert!(has(&vm["spec"]["template"]["spec"]));
    let disks = vm.pointer("/spec/template/spec/domain/devices/disks");
    let disks = disks.and_then(Value::as_array).unwrap();
    let disk = disks.iter().find(|disk| disk["name"] == "scratch");
    assert_eq!(disk.unwrap()["serial"], "scratch");
    let cores = json!({"template": {"spec": {"domain": {"cpu": {"cores": 7}}}}});
    vms.merge("web", &json!({"spec": cores})).await.unwrap();
    let note = event(&env, "web", "Restored", "cpu.cores").await;
    assert!(
        note.contains("write spec.resources.cpu of the Machine instead"),
        "{note}"
    );
    let vm = vms.until("web", "to be restored", updated).await.unwrap();
    assert!(has(&vm["spec"]["template"]["spec"]));
    let instance = instances.get("web").await.unwrap();
    assert!(has(&instance["spec"]));
    assert_eq!(instance["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(env.objects(CLAIM).find("scratch").await.unwrap().is_some());

    env.simulator
        .remove_volume("default", "web", "scratch")
        .await
        .unwrap();
    instances
        .until("web", "to lose the volume", |it| !has(&it["spec"]))
        .await
        .unwrap();
    machines
        .until("web", "not to list it", |web| !lists(web))
        .await
        .unwrap();
}

/// With virt-api away or hanging, a stop that was not done is no `Ready=True`.
#[tokio::test]
async fn a_stop_that_kubevirt_does_not_answer_is_reported_within_a_moment() {
    let env = Environment::new().await;
    let machines = env.machines();
    for (name, admission) in [("away", Admission::IsAway), ("hangs", Admission::Hangs)] {
        running(&env, &machine(name, &json!({"template": "small"}))).await;
        env.simulator.set_admission(admission).await.unwrap();
        let start = Instant::now();
        let patch = json!({"spec": {"powerState": "Stopped"}});
        machines.merge(name, &patch).await.unwrap();
        let reports = machines.until(name, "to report KubeVirt", |machine| {
            let ready = condition(machine, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            ready["status"] == "False"
                && ready["reason"] == "KubeVirtApiError"
                && message.starts_with("KubeVirt does not answer, so the stop of the guest")
        });
        reports.await.unwrap();
        // The controller waits for an answer for 1 s; the rest is for a busy machine. The API server itself waits for the
        // admission for 10 s.
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
        env.simulator
            .set_admission(Admission::Answers)
            .await
            .unwrap();
        machines
            .until_condition(name, "Ready", "True", "Stopped")
            .await
            .unwrap();
    }
}
