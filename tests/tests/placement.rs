//! Machines of a group are kept apart, tainted nodes are kept free, and hardware of nodes is given to guests: the nodes that
//! guests get, and the condition of a Machine whose guest gets none.
mod environment;

use std::collections::BTreeSet;

use anyhow::Result;
use lab::{
    Scenario,
    objects::{INSTANCE, POD, condition, condition_message},
    wait::until,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

fn in_group(name: &str, required: bool) -> Value {
    let group = json!({"name": "db", "required": required});
    let spec = json!({"template": "small", "placement": {"antiAffinityGroup": group}});
    machine(name, &spec)
}

#[tokio::test]
async fn machines_of_a_group_run_on_different_nodes_and_wait_if_they_require_that() {
    let env = Environment::with_best_crds().await;
    let machines = env.machines();
    let mut nodes = BTreeSet::new();
    for name in ["a", "b", "c"] {
        env.apply(&in_group(name, true)).await;
        let runs = machines.until_phase(name, "Running").await.unwrap();
        nodes.insert(runs["status"]["nodeName"].as_str().unwrap().to_owned());
    }
    assert_eq!(nodes.len(), 3, "{nodes:?}");

    env.apply(&in_group("d", true)).await;
    let waits = machines.until_condition("d", "Ready", "False", "InsufficientResources");
    let waits = waits.await.unwrap();
    let message = condition_message(&waits, "Ready").unwrap();
    assert!(message.contains("anti-affinity"), "{message}");
    let freed = machines.get("b").await.unwrap();
    machines.delete("b").await.unwrap();
    let runs = machines.until_phase("d", "Running").await.unwrap();
    assert_eq!(runs["status"]["nodeName"], freed["status"]["nodeName"]);

    // A Machine that prefers another node is started beside one that prefers that, too.
    for name in ["a", "c", "d"] {
        env.apply(&in_group(name, false)).await;
        let pending = machines.until(name, "to have a pending change", |machine| {
            machine["status"]["pendingChanges"][0]["field"] == "placement.antiAffinityGroup"
        });
        let pending = pending.await.unwrap();
        let change = &pending["status"]["pendingChanges"][0];
        assert_eq!(
            (&change["current"], &change["desired"], &change["action"]),
            (
                &json!("db by Host, required"),
                &json!("db by Host, preferred"),
                &json!("Restart")
            )
        );
        assert_eq!(condition(&pending, "Ready")["reason"], "Running");
    }
    env.apply(&in_group("e", false)).await;
    machines.until_phase("e", "Running").await.unwrap();
}

#[tokio::test]
async fn a_guest_runs_on_tainted_nodes_only_if_it_tolerates_the_taint() {
    let env = Environment::with_best_crds().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    let taint = ["taint", "nodes", "--all", "dedicated=db:NoSchedule"];
    kubectl.run(&taint).await.unwrap().ok().unwrap();
    let tolerant = |effect: &str| {
        let toleration = json!({"key": "dedicated", "value": "db", "effect": effect});
        let placement = json!({"tolerations": [toleration]});
        machine("db", &json!({"template": "small", "placement": placement}))
    };
    env.apply(&machine("db", &json!({"template": "small"})))
        .await;
    let waits = machines.until_condition("db", "Ready", "False", "InsufficientResources");
    let waits = waits.await.unwrap();
    let message = condition_message(&waits, "Ready").unwrap();
    assert!(message.contains("untolerated taint"), "{message}");

    // A pod that waits is recreated with the next start of the guest.
    env.apply(&tolerant("NoSchedule")).await;
    let runs = machines.until_phase("db", "Running").await.unwrap();
    assert_eq!(runs["status"]["pendingChanges"], Value::Null);

    env.simulator.set_all(Scenario::NoMigration);
    env.apply(&tolerant("NoExecute")).await;
    let pending = machines.until("db", "to have a pending change", |machine| {
        !machine["status"]["pendingChanges"].is_null()
    });
    let pending = pending.await.unwrap();
    let change = &pending["status"]["pendingChanges"][0];
    assert_eq!(change["field"], "placement.tolerations");
    assert_eq!(change["current"], "dedicated=db:NoSchedule");
    assert_eq!(change["desired"], "dedicated=db:NoExecute");
    assert_eq!(change["action"], "Restart");
}

#[tokio::test]
async fn a_guest_is_placed_by_its_affinity_and_a_change_of_it_waits_for_a_restart() {
    let env = Environment::with_best_crds().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    let placed = |key: &str, skew: i64| {
        let requirement = json!({"key": key, "operator": "In", "values": ["7"]});
        let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [requirement]}]});
        let spread = json!({
            "maxSkew": skew, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}},
        });
        machine(
            "web",
            &json!({"template": "small", "placement": {
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
                "topologySpreadConstraints": [spread],
            }}),
        )
    };
    let apply = async |machine: Value| kubectl.apply(&machine).await.unwrap();
    let refused = apply(placed("a/b/c", 0)).await.refused().unwrap();
    for place in [
        "spec.placement.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key",
        "spec.placement.topologySpreadConstraints[0].maxSkew",
    ] {
        assert!(refused.contains(place), "{refused}");
    }
    assert_eq!(apply(placed("rack", 1)).await.code, 0);
    let waits = machines.until_condition("web", "Ready", "False", "InsufficientResources");
    let waits = waits.await.unwrap();
    let message = condition_message(&waits, "Ready").unwrap();
    assert!(message.contains("node affinity/selector"), "{message}");
    let label = ["label", "node", "node-3", "rack=7"];
    kubectl.run(&label).await.unwrap().ok().unwrap();
    let runs = machines.until_phase("web", "Running").await.unwrap();
    assert_eq!(runs["status"]["nodeName"], "node-3");
    let instance = env.objects(INSTANCE).get("web").await.unwrap();
    assert_eq!(
        instance["spec"]["topologySpreadConstraints"][0]["maxSkew"],
        1
    );

    let changed = apply(placed("rack", 2)).await;
    assert_eq!(
        changed.stderr.matches("[RestartRequired]").count(),
        1,
        "{}",
        changed.stderr
    );
    let changed = apply(machine("web", &json!({"template": "small"}))).await;
    assert_eq!(
        changed.stderr.matches("[RestartRequired]").count(),
        2,
        "{}",
        changed.stderr
    );
    let change = |field: &str| json!({"field": field, "current": "as it was", "desired": "as it is now", "action": "Restart"});
    let expected = json!([
        change("placement.affinity"),
        change("placement.topologySpreadConstraints"),
    ]);
    machines
        .until("web", "to have both pending", |web| {
            web["status"]["pendingChanges"] == expected
        })
        .await
        .unwrap();
}

/// What KubeVirt permits and a PriorityClass, which the webhook knows when this returns.
async fn permit(env: &Environment) -> Result<()> {
    let permitted = json!({
        "pciHostDevices": [{"pciVendorSelector": "10DE:20B0", "resourceName": "nvidia.com/A100"}],
        "usb": [{"resourceName": "kubevirt.io/token", "selectors": [{"vendor": "1050", "product": "0407"}]}],
    });
    env.simulator.permit_devices(&permitted).await?;
    let kubectl = env.lab.kubectl();
    let class = ["create", "priorityclass", "high", "--value=1000"];
    kubectl.run(&class).await?.ok()?;
    let probe = machine(
        "probe",
        &json!({
            "template": "small", "powerState": "Stopped",
            "devices": [{"name": "gpu", "deviceName": "nvidia.com/A100"}],
            "resources": {"memory": {"hugepages": "2Mi"}},
        }),
    );
    // Both tables are filled when the device is accepted and the huge pages are warned of.
    until("the webhook to know devices and nodes", async || {
        let dry_run = ["apply", "--dry-run=server", "-f", "-"];
        let answer = kubectl.run_with(&dry_run, probe.to_string()).await?;
        let knows = answer.stderr.contains("no node offers huge pages") && answer.code == 0;
        Ok(knows.then_some(()).ok_or(answer.stderr))
    })
    .await
}

#[tokio::test]
async fn hardware_of_a_node_is_checked_at_admission_and_given_to_the_guest() {
    let env = Environment::with_best_crds().await;
    // USB devices and dedicated CPUs are behind gates in every release.
    let gates = ["HostDevices", "CPUManager"];
    env.simulator.install(9, &gates).await.unwrap();
    permit(&env).await.unwrap();
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    let equipped = |device: &str, class: &str| {
        machine(
            "db",
            &json!({
                "template": "small",
                "devices": [
                    {"name": "gpu", "deviceName": device},
                    {"name": "token", "deviceName": "kubevirt.io/token"},
                ],
                "resources": {"cpu": {"model": "Skylake-Server", "dedicated": true}, "memory": {"hugepages": "2Mi"}},
                "placement": {"priorityClassName": class},
            }),
        )
    };
    let apply = async |machine: Value| kubectl.apply(&machine).await.unwrap();
    let refused = apply(equipped("nvidia.com/A10", "hihg"))
        .await
        .refused()
        .unwrap();
    for fault in [
        "spec.devices[0].deviceName: Not found: \"nvidia.com/A10\": did you mean 'nvidia.com/A100'?",
        "spec.placement.priorityClassName: Not found: \"hihg\": did you mean 'high'?",
    ] {
        assert!(refused.contains(fault), "{refused}");
    }
    let accepted = apply(equipped("nvidia.com/A100", "high")).await;
    assert_eq!(accepted.code, 0, "{}", accepted.stderr);
    assert_eq!(
        accepted.stderr.matches("[NotOfferedByNodes]").count(),
        5,
        "{}",
        accepted.stderr
    );
    let waits = async |text: &str| {
        let waits = machines.until("db", "to wait for a node", |machine| {
            condition(machine, "Ready")["reason"] == "InsufficientResources"
                && condition_message(machine, "Ready").is_some_and(|it| it.contains(text))
        });
        waits.await.unwrap()
    };
    waits("node affinity/selector").await;
    waits("It needs a node with the CPU model Skylake-Server, dedicated CPUs, huge pages of 2Mi, the device nvidia.com/A100, the device kubevirt.io/token.").await;

    let labels = [
        "label",
        "node",
        "node-2",
        "cpumanager=true",
        "cpu-model.node.kubevirt.io/Skylake-Server=true",
    ];
    kubectl.run(&labels).await.unwrap().ok().unwrap();
    waits("Insufficient nvidia.com/A100").await;
    let offers = json!({"hugepages-2Mi": "4Gi", "nvidia.com/A100": "1", "kubevirt.io/token": "1"});
    env.set_allocatable("node-2", &offers).await;
    let runs = machines.until_phase("db", "Running").await.unwrap();
    assert_eq!(runs["status"]["nodeName"], "node-2");
    let instance = env.objects(INSTANCE).get("db").await.unwrap();
    let domain = &instance["spec"]["domain"];
    let gpu = json!([{"name": "gpu", "deviceName": "nvidia.com/A100"}]);
    assert_eq!(domain["devices"]["gpus"], gpu);
    let token = json!([{"name": "token", "deviceName": "kubevirt.io/token"}]);
    assert_eq!(domain["devices"]["hostDevices"], token);
    assert_eq!(domain["cpu"]["dedicatedCpuPlacement"], true);
    assert_eq!(domain["cpu"]["model"], "Skylake-Server");
    assert_eq!(domain["memory"]["hugepages"]["pageSize"], "2Mi");
    let pod = env.objects(POD).list().await.unwrap().remove(0);
    assert_eq!(pod["spec"]["priorityClassName"], "high");
    assert_eq!(pod["spec"]["priority"], 1000);

    // What admission announces is what is pending.
    let changed = apply(machine("db", &json!({"template": "small"}))).await;
    assert_eq!(changed.code, 0, "{}", changed.stderr);
    let announced = changed.stderr.matches("[RestartRequired]").count();
    assert_eq!(announced, 5, "{}", changed.stderr);
    assert!(
        changed.stderr.contains("spec.devices: "),
        "{}",
        changed.stderr
    );
    // One line announces both devices.
    let pending = machines.until("db", "to have pending changes", |machine| {
        let list = machine["status"]["pendingChanges"].as_array();
        list.is_some_and(|list| list.len() == announced + 1)
    });
    let pending = pending.await.unwrap();
    for change in pending["status"]["pendingChanges"].as_array().unwrap() {
        assert_eq!(change["action"], "Restart", "{change}");
    }
}
