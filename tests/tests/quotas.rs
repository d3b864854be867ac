//! Quotas of namespaces with the controller: what administrators see, disks that are kept, and Machines that were
//! admitted although they exceed the quota together.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use lab::{
    Output,
    objects::{CLAIM, POLICY, VM, condition, condition_message},
};
use serde_json::{Value, json};

mod environment;
use environment::{Environment, machine};

/// A policy for every namespace.
fn policy(quota: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachinePolicy",
        "metadata": {"name": "tenants"},
        "spec": {"namespaceSelector": {}, "quota": quota},
    })
}

fn small(name: &str) -> Value {
    machine(name, &json!({"template": "small"}))
}

async fn apply(env: &Environment, object: &Value) -> Output {
    let kubectl = env.lab.kubectl();
    kubectl.apply(object).await.unwrap()
}

/// Waits until the policy's status has this use of the namespace `default`.
async fn until_used(env: &Environment, cpu: u32, storage: &str) {
    let is_used = |policy: &Value| {
        let namespaces = policy["status"]["namespaces"].as_array();
        let mut namespaces = namespaces.into_iter().flatten();
        let own = namespaces.find(|it| it["name"] == "default");
        own.is_some_and(|own| own["cpu"] == cpu && own["storage"] == storage)
    };
    let policies = env.lab.objects(POLICY, "");
    let what = format!("to show {cpu} vCPUs and {storage}");
    policies.until("tenants", &what, is_used).await.unwrap();
}

#[tokio::test]
async fn administrators_see_what_namespaces_use_and_users_what_they_exceed() {
    let mut env = Environment::new().await;
    env.apply(&policy(&json!({"cpu": 2, "storage": "60Gi"})))
        .await;
    env.barrier("web").await;
    until_used(&env, 1, "20Gi").await;
    let kubectl = env.lab.kubectl();
    let get = kubectl.run(&["get", "machinepolicies"]).await.unwrap();
    let table = get.ok().unwrap();
    let (header, row) = table.trim_end().split_once('\n').unwrap();
    for column in ["NAMESPACES", "USED CPU", "USED MEMORY", "USED STORAGE"] {
        assert!(header.contains(column), "{table}");
    }
    let cell = |column: &str| {
        let at = header.find(column).unwrap();
        row[at..].split_whitespace().next().unwrap().to_owned()
    };
    let used = ["USED CPU", "USED MEMORY", "USED STORAGE"].map(cell);
    assert_eq!(used, ["1", "2Gi", "20Gi"], "{table}");
    let selected: u32 = cell("NAMESPACES").parse().unwrap();
    assert!(selected >= 4, "default and those of Kubernetes: {table}");

    let sample = |metric: &str, resource: &str, value: &str| {
        format!(
            "kubevirt_operator_quota_{metric}{{namespace=\"default\",resource=\"{resource}\"}} {value}"
        )
    };
    let samples = [
        sample("used", "cpu", "1"),
        sample("used", "storage", "21474836480"),
        sample("hard", "cpu", "2"),
    ];
    let metrics = env.controller.metrics().await.unwrap();
    for sample in samples {
        assert!(
            metrics.lines().any(|line| line == sample),
            "{sample}\n{metrics}"
        );
    }

    let large = machine("large", &json!({"template": "medium"}));
    let refused = apply(&env, &large).await.refused().unwrap();
    assert!(
        refused.contains("spec.template: Forbidden: 2: policy 'tenants' gives the namespace 2 vCPUs, and its other Machines have 1 (resources.cpu.cores of the template) [QuotaExceeded]"),
        "{refused}"
    );
}

#[tokio::test]
async fn of_machines_that_exceed_the_quota_together_the_younger_waits_until_there_is_room() {
    let mut env = Environment::new().await;
    // Admission knows no quota yet, as one replica does not know what another one admits in the same moment.
    assert!(env.controller.stop().await.unwrap().success());
    for name in ["first", "second"] {
        env.apply(&small(name)).await;
    }
    env.apply(&policy(&json!({"cpu": 1}))).await;
    env.controller.start_again().unwrap();

    let machines = env.machines();
    let created = async |name: &str| {
        let machine = machines.get(name).await.unwrap();
        let metadata = &machine["metadata"];
        (
            metadata["creationTimestamp"].to_string(),
            metadata["uid"].to_string(),
        )
    };
    let is_first_older = created("first").await < created("second").await;
    let (older, younger) = if is_first_older {
        ("first", "second")
    } else {
        ("second", "first")
    };
    let held = machines.until_condition(younger, "Scheduled", "False", "QuotaExceeded");
    let held = held.await.unwrap();
    assert_eq!(held["status"]["phase"], "Pending");
    assert_eq!(condition(&held, "Ready")["reason"], "QuotaExceeded");
    let message = condition_message(&held, "Scheduled").unwrap();
    assert_eq!(
        message,
        "policy 'tenants' gives the namespace 1 vCPU, and its other Machines have 1; this Machine asks for 1: \
         delete or shrink another Machine, delete disks that are kept, or ask the administrator for more; the \
         Machine gets it then without another change"
    );
    machines.until_phase(older, "Running").await.unwrap();
    assert_eq!(env.objects(VM).find(younger).await.unwrap(), None);
    let claims = env.objects(CLAIM).list().await.unwrap();
    assert_eq!(claims.len(), 1, "only the older one has a disk");

    machines.delete(older).await.unwrap();
    let running = machines.until_phase(younger, "Running").await.unwrap();
    assert!(condition(&running, "Scheduled").is_null(), "{running}");
}

#[tokio::test]
async fn a_held_machine_goes_on_when_the_quota_is_raised_and_a_running_one_is_never_stopped() {
    let mut env = Environment::new().await;
    env.barrier("runs").await;
    assert!(env.controller.stop().await.unwrap().success());
    env.apply(&small("new")).await;
    env.apply(&policy(&json!({"cpu": 0}))).await;
    env.controller.start_again().unwrap();
    let machines = env.machines();
    let held = machines.until_condition("new", "Scheduled", "False", "QuotaExceeded");
    held.await.unwrap();
    let runs = machines.get("runs").await.unwrap();
    assert_eq!(runs["status"]["phase"], "Running", "{runs}");

    let raised = json!({"spec": {"quota": {"cpu": 2}}});
    let policies = env.lab.objects(POLICY, "");
    policies.merge("tenants", &raised).await.unwrap();
    machines.until_phase("new", "Running").await.unwrap();
}

#[tokio::test]
async fn a_kept_disk_counts_until_the_command_of_the_warning_deletes_its_claim() {
    let env = Environment::new().await;
    env.apply(&policy(&json!({"storage": "50Gi"}))).await;
    let with_data = json!({
        "template": "small",
        "powerState": "Stopped",
        "disks": [{"name": "data", "size": "20Gi"}],
    });
    apply(&env, &machine("web", &with_data)).await.ok().unwrap();
    env.machines().until_phase("web", "Stopped").await.unwrap();
    until_used(&env, 1, "40Gi").await;

    let without = json!({"template": "small", "powerState": "Stopped"});
    let removed = apply(&env, &machine("web", &without)).await;
    assert_eq!(removed.code, 0, "{removed}");
    let (_, command) = removed.stderr.split_once("to delete it: ").unwrap();
    let (command, _) = command.split_once(" [DiskKept]").unwrap();
    let is_kept = |claim: &Value| {
        !claim["metadata"]["annotations"]["machine.vitistack.io/retained-from"].is_null()
    };
    let claims = env.objects(CLAIM);
    claims
        .until("web-data", "to be kept", is_kept)
        .await
        .unwrap();
    until_used(&env, 1, "40Gi").await;
    let refused = apply(&env, &small("db")).await.refused().unwrap();
    assert!(
        refused.contains("spec.disks: Forbidden: 20Gi: policy 'tenants' gives the namespace 50Gi of storage, and its other Machines and kept disks have 40Gi [QuotaExceeded]"),
        "{refused}"
    );
    // The Machine itself may have its disk again.
    let again = apply(&env, &machine("web", &with_data)).await;
    assert_eq!(again.code, 0, "{again}");
    until_used(&env, 1, "40Gi").await;
    apply(&env, &machine("web", &without)).await.ok().unwrap();
    claims
        .until("web-data", "to be kept", is_kept)
        .await
        .unwrap();

    let arguments: Vec<_> = command.split(' ').skip(1).collect();
    env.lab
        .kubectl()
        .run(&arguments)
        .await
        .unwrap()
        .ok()
        .unwrap();
    until_used(&env, 1, "20Gi").await;
    env.lab.apply_when_admitted(&small("db")).await.unwrap();
}
