//! Cores that grow while the guest runs.

use lab::wait;
use serde_json::{Value, json};

use crate::environment::{Environment, machine};

fn with_cores(cores: u32) -> Value {
    let cpu = json!({"cores": cores, "maxCores": 3});
    json!({"resources": {"cpu": cpu, "memory": {"size": "256Mi"}}})
}

/// The vCPUs that the running guest has, counted by QEMU, and those that it can get.
async fn vcpus(env: &Environment) -> [String; 2] {
    let domain = env.domain("vm").await;
    let most = env
        .virsh(&["vcpucount", &domain, "--live", "--maximum"])
        .await;
    let info = env.virsh(&["vcpuinfo", &domain]).await;
    let running = info.lines().filter(|line| line.starts_with("VCPU:"));
    [running.count().to_string(), most.trim().to_owned()]
}

async fn until_vcpus(env: &Environment, what: &str, expected: [&str; 2]) {
    wait::until(what, async || {
        let counts = vcpus(env).await;
        Ok((counts == expected)
            .then_some(())
            .ok_or(counts.join(" of ")))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn cores_grow_in_a_running_guest_and_shrink_at_its_restart() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("vm", &with_cores(1)).await;
    env.until_reachable("vm").await;
    let booted = env.until_report("vm", "its boot", |_| true).await;
    assert_eq!(vcpus(&env).await, ["1", "3"]);

    let kubectl = env.lab.kubectl();
    let apply = async |cores| {
        let machine = machine("vm", &with_cores(cores));
        let output = kubectl.apply(&machine).await.unwrap();
        assert_eq!(output.code, 0, "{output}");
        output.stderr
    };
    let warnings = apply(3).await;
    assert!(!warnings.contains("RestartRequired"), "{warnings}");
    until_vcpus(&env, "the guest to have three vCPUs", ["3", "3"]).await;
    let has_all = |vm: &Value| {
        let status = &vm["status"];
        status["vcpus"] == 3
            && status["pendingChanges"]
                .as_array()
                .is_none_or(Vec::is_empty)
    };
    env.until("vm", "to have nothing pending", has_all).await;
    env.assert_same_run(&booted).await;

    let warnings = apply(2).await;
    let text =
        "spec.resources.cpu.cores: changes from 3 to 2 at the next restart [RestartRequired]";
    assert!(warnings.contains(text), "{warnings}");
    let waits = env
        .until("vm", "to wait for a restart", |vm| {
            vm["status"]["pendingChanges"].get(0).is_some()
        })
        .await;
    assert_eq!(
        waits["status"]["pendingChanges"],
        json!([{"field": "cpu.sockets", "current": "3", "desired": "2", "action": "Restart"}])
    );
    assert_eq!(vcpus(&env).await, ["3", "3"]);
    env.assert_same_run(&booted).await;

    env.machines().request_restart("vm", "now").await.unwrap();
    let again = env
        .until_report("vm", "another boot", |report| report.boot != booted.boot)
        .await;
    assert_eq!(again.boots, 2, "another root disk");
    assert_eq!(vcpus(&env).await, ["2", "3"]);
    let is_done = |vm: &Value| {
        let pending = vm["status"]["pendingChanges"].as_array();
        vm["status"]["vcpus"] == 2 && pending.is_none_or(Vec::is_empty)
    };
    env.until("vm", "to have nothing pending", is_done).await;
}
