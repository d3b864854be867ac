//! Machines that cannot continue: the condition names the cause, and they continue once it is gone.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    Scenario,
    objects::{CLAIM, QUOTA, TEMPLATE, VM, condition, condition_message},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// A failure of KubeVirt, the scheduler or the storage is reported in a condition until its cause is gone.
#[tokio::test]
async fn a_machine_that_failed_runs_once_the_cause_is_gone() {
    let env = Environment::new().await;
    let machines = env.machines();
    for (name, scenario) in [
        ("crashes", Scenario::Crash),
        ("no-room", Scenario::Unschedulable),
        ("no-disk", Scenario::PvcPending),
    ] {
        env.simulator.set("default", name, scenario);
        let spec = json!({"template": "small"});
        env.apply(&machine(name, &spec)).await;
    }
    let ready = async |name: &str, kind: &str, reason: &str| {
        machines
            .until_condition(name, kind, "False", reason)
            .await
            .unwrap()
    };
    let failed = ready("crashes", "VirtualMachineReady", "VMFailed").await;
    assert_eq!(failed["status"]["phase"], "Failed");
    let counted = machines.until("crashes", "to have failed twice", |machine| {
        let message = condition_message(machine, "Ready");
        let (begin, middle) = (
            "KubeVirt reports CrashLoopBackOff: ",
            "; KubeVirt starts it again at ",
        );
        let parts = message.and_then(|it| it.strip_prefix(begin)?.split_once(middle));
        parts.is_some_and(|(count, next)| {
            count == "the guest ended 2 times before it ran" && next.starts_with("20")
        })
    });
    counted.await.unwrap();
    // The scheduler's message is in the instance, which may be observed a moment later.
    let waits = machines.until("no-room", "to report the scheduler's message", |machine| {
        let ready = condition(machine, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["reason"] == "InsufficientResources" && message.ends_with("3 Insufficient memory.")
    });
    assert_eq!(waits.await.unwrap()["status"]["phase"], "Creating");
    let waits = ready("no-disk", "StorageReady", "PVCPending").await;
    assert_eq!(waits["status"]["phase"], "Creating");

    env.simulator.set_all(Scenario::Happy);
    for name in ["crashes", "no-room", "no-disk"] {
        machines
            .until_condition(name, "Ready", "True", "Running")
            .await
            .unwrap();
    }
}

/// Without the webhook there is no block: the controller creates nothing, and the condition states the reason and the
/// fix.
#[tokio::test]
async fn the_controller_does_nothing_unless_the_block_matches_the_spec() {
    let env = Environment::new().await;
    let machines = env.machines();
    for name in ["stale", "forged"] {
        env.apply(&machine(name, &json!({"template": "small"})))
            .await;
        machines.until_phase(name, "Running").await.unwrap();
    }

    env.lab.unregister_webhooks().await.unwrap();
    let spec = json!({"template": "small"});
    let missing = "missing";
    wait::until("the webhook not to be called any more", async || {
        // The API server may drop the mutating webhook before the validating one, which requires the block.
        if let Err(error) = env.lab.apply(&machine(missing, &spec)).await {
            return Ok(Err(format!("{error:#}")));
        }
        let made = machines.get(missing).await?;
        if made["spec"]["normalized"].is_null() {
            return Ok(Ok(()));
        }
        machines.delete(missing).await?;
        machines.until_gone(missing).await?;
        Ok(Err("reviewed".to_owned()))
    })
    .await
    .unwrap();
    env.apply(&machine("typo", &json!({"template": "smal"})))
        .await;
    machines
        .merge(
            "stale",
            &json!({"spec": {"resources": {"cpu": {"cores": 4}}}}),
        )
        .await
        .unwrap();

    // The digest of the spec still matches.
    let forged = json!({"spec": {"normalized": {"memory": {"size": "1Ei", "maxSize": "1Ei"}}}});
    machines.merge("forged", &forged).await.unwrap();

    let reported = machines
        .until_condition("forged", "Normalized", "False", "NotNormalized")
        .await
        .unwrap();
    let message = condition_message(&reported, "Normalized").unwrap();
    let why = "(memory.size is 1Ei, and it must be from 32Mi to 12Ti)";
    assert!(message.contains(why), "{message}");

    let reported = machines
        .until_condition(missing, "Normalized", "False", "NotNormalized")
        .await
        .unwrap();
    let message = condition_message(&reported, "Normalized").unwrap();
    assert!(
        message.contains("machine.vitistack.io/refresh-template"),
        "{message}"
    );
    assert_eq!(reported["status"]["phase"], "Pending");
    assert_eq!(reported["metadata"]["finalizers"], Value::Null);
    machines
        .until_condition("stale", "Normalized", "False", "Stale")
        .await
        .unwrap();
    let reported = machines.until_condition("typo", "Normalized", "False", "TemplateNotFound");
    let reported = reported.await.unwrap();
    let message = condition_message(&reported, "Ready").unwrap();
    assert!(message.contains("template 'smal' not found"), "{message}");
    let template = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineTemplate",
        "metadata": {"name": "smal"},
        "spec": {"resources": {"cpu": {"cores": 1}, "memory": {"size": "1Gi"}}},
    });
    let templates = env.lab.objects(TEMPLATE, "");
    templates.create(&template).await.unwrap();
    machines
        .until_condition("typo", "Normalized", "False", "NotNormalized")
        .await
        .unwrap();
    assert!(env.objects(VM).find(missing).await.unwrap().is_none());
    assert!(
        env.objects(CLAIM)
            .find("missing-root")
            .await
            .unwrap()
            .is_none()
    );
    let vm = env.objects(VM).get("stale").await.unwrap();
    assert_eq!(cores(&vm), 1);

    env.lab.register_webhooks().await.unwrap();
    env.until_renormalized(missing).await;
    machines.until_phase(missing, "Running").await.unwrap();
    env.until_renormalized("stale").await;
    env.until_renormalized("forged").await;
    machines
        .until_condition("stale", "Normalized", "True", "Normalized")
        .await
        .unwrap();
    env.objects(VM)
        .until("stale", "to have four cores", |vm| cores(vm) == 4)
        .await
        .unwrap();
}

fn cores(vm: &Value) -> u64 {
    let cpu = &vm["spec"]["template"]["spec"]["domain"]["cpu"];
    cpu["cores"].as_u64().unwrap()
}

/// The condition quotes the API server's refusal, and the controller tries again.
#[tokio::test]
async fn a_refusal_by_the_api_server_is_reported_in_a_condition() {
    let env = Environment::new().await;
    let quota = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight", "namespace": "default"},
        "spec": {"hard": {"persistentvolumeclaims": "0"}},
    });
    let quotas = env.objects(QUOTA);
    quotas.create(&quota).await.unwrap();
    let probe = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let kubectl = env.lab.kubectl();
    // No controller computes quotas here: a quota is enforced once its status is set.
    let none = json!({"persistentvolumeclaims": "0"});
    let counted = json!({"status": {"hard": none, "used": none}}).to_string();
    let count = "patch resourcequota tight --subresource=status --type=merge -p";
    let mut count: Vec<_> = count.split(' ').collect();
    count.push(&counted);
    kubectl.run(&count).await.unwrap().ok().unwrap();
    wait::until("the quota to be in force", async || {
        let create = ["create", "--dry-run=server", "-f", "-"];
        let output = kubectl.run_with(&create, probe.to_string()).await?;
        Ok(if output.stderr.contains("quota") {
            Ok(())
        } else {
            Err(output)
        })
    })
    .await
    .unwrap();
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    let machines = env.machines();
    let reported = machines.until("web", "to report the quota", |web| {
        let message = condition_message(web, "StorageReady");
        message.is_some_and(|message| message.contains("quota"))
    });
    let reported = reported.await.unwrap();
    assert_eq!(reported["status"]["phase"], "Failed");
    assert_eq!(condition(&reported, "Ready")["status"], "False");
    quotas.delete("tight").await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();
}

/// A field that KubeVirt does not take is warned about at admission; KubeVirt's refusal is in a condition until an
/// administrator enables the gate.
#[tokio::test]
async fn a_field_that_needs_a_feature_gate_is_warned_about_and_waits_for_it() {
    let env = Environment::new().await;
    let kubectl = env.lab.kubectl();
    let web = machine(
        "web",
        &json!({"template": "small", "display": {"video": "virtio"}}),
    );
    let answers = async |dry_run: &str, part: &str, is_expected: bool| {
        // The watch on the KubeVirt object, and the API server's on the policy, follow a moment later.
        wait::until(&format!("{is_expected} for {part:?}"), async || {
            let apply = ["apply", dry_run, "-f", "-"];
            let output = kubectl.run_with(&apply, web.to_string()).await?;
            let says = output.stderr.contains(part) == is_expected;
            Ok(says.then_some(()).ok_or(output))
        })
        .await
        .unwrap();
    };
    let (dry_run, warning) = ("--dry-run=server", "[KubevirtFeatureMissing]");
    answers(dry_run, warning, false).await;

    env.simulator.install(8, &[]).await.unwrap();
    answers(dry_run, "spec.display.video: needs KubeVirt's feature gate VideoConfig, which is not enabled on this cluster (v1.8.0)", true).await;
    answers("--dry-run=none", warning, true).await;
    let machines = env.machines();
    let refused = machines.until("web", "to report KubeVirt's refusal", |web| {
        let message = condition_message(web, "Ready");
        message
            .is_some_and(|message| message.contains("the VideoConfig feature gate is not enabled"))
    });
    refused.await.unwrap();
    assert_eq!(env.objects(VM).list().await.unwrap(), [Value::Null; 0]);

    env.simulator.install(8, &["VideoConfig"]).await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();
    // What the Machine has already is not warned about again; a new Machine is not either.
    answers(dry_run, warning, false).await;
    let vm = env.objects(VM).get("web").await.unwrap();
    let devices = &vm["spec"]["template"]["spec"]["domain"]["devices"];
    assert_eq!(devices["video"]["type"], "virtio");
}
