//! The pools, the networks and the daemon of a host fail, one after the other, while a guest runs.

use lab::objects::{HOST, condition};
use serde_json::{Value, json};

use crate::environment::Environment;

#[tokio::test]
async fn a_part_of_a_host_that_fails_costs_no_volume_and_starts_no_second_guest() {
    let Some(mut env) = Environment::new().await else {
        return;
    };
    let monitor = env.monitor();
    env.apply("vm", &json!({})).await;
    env.until_reachable("vm").await;
    let first = env.until_report("vm", "its boot", |it| it.boots == 1).await;
    let files = env.files();
    let volumes = env.volumes.display().to_string();
    let mut is_protected = false;
    let define = ["pool-define-as", "volumes", "dir", "--target", &volumes];
    for (kind, faults, repairs) in [
        (
            "PoolsReady",
            &[&["pool-destroy", "volumes"][..]][..],
            &[&["pool-start", "volumes"][..]][..],
        ),
        (
            "PoolsReady",
            &[&["pool-destroy", "volumes"], &["pool-undefine", "volumes"]],
            &[&define, &["pool-start", "volumes"]],
        ),
        (
            "PoolsReady",
            &[&["pool-destroy", "images"]],
            &[&["pool-start", "images"]],
        ),
        (
            "NetworksReady",
            &[&["net-destroy", "default"]],
            &[&["net-start", "default"]],
        ),
    ] {
        for fault in faults {
            env.virsh(fault).await;
        }
        host_reports(&env, kind, "False").await;
        // A pass plans with what can be observed: it has when the status is of this change.
        is_protected = !is_protected;
        let change = json!({"spec": {"deletionProtection": is_protected}});
        env.machines().merge("vm", &change).await.unwrap();
        let is_planned =
            |vm: &Value| vm["status"]["observedGeneration"] == vm["metadata"]["generation"];
        env.until("vm", "to be planned", is_planned).await;
        assert_eq!(env.domains().await.len(), 1, "{faults:?}");
        assert_eq!(env.files(), files, "{faults:?}");
        for repair in repairs {
            env.virsh(repair).await;
        }
        host_reports(&env, kind, "True").await;
        env.assert_same_run(&first).await;
    }
    env.libvirt.kill();
    host_reports(&env, "Reachable", "False").await;
    env.libvirt.start_again().await.unwrap();
    host_reports(&env, "Reachable", "True").await;
    let is_ready = |vm: &Value| condition(vm, "Ready")["status"] == "True";
    env.until("vm", "to be ready again", is_ready).await;
    env.assert_same_run(&first).await;
    assert_eq!(env.files(), files);
    assert_eq!(monitor.finish().unwrap(), [""; 0]);
}

async fn host_reports(env: &Environment, kind: &str, status: &str) {
    let hosts = env.lab.objects(HOST, "");
    let is_reported = |host: &Value| condition(host, kind)["status"] == status;
    let what = format!("to report {kind}={status}");
    hosts.until("here", &what, is_reported).await.unwrap();
}
