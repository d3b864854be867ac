//! The pools, the networks and the daemon of a host fail, one after the other, while a guest runs.

use lab::objects::{HOST, condition, is_reported};
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
        env.until("vm", "to be planned", is_reported).await;
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

/// A pool is undefined: its Machines can be deleted, and no volume is. A network is undefined: the guests on it can be
/// stopped. libvirt lists neither any more.
#[tokio::test]
async fn machines_are_deleted_and_stopped_while_their_pool_or_network_is_undefined() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let monitor = env.monitor();
    env.apply("vm", &json!({})).await;
    env.apply("other", &json!({"powerState": "Stopped"})).await;
    env.until_reachable("vm").await;
    let is_off = |machine: &Value| {
        machine["status"]["phase"] == "Stopped"
            && machine["status"]["volumes"][0]["phase"] == "Bound"
    };
    env.until("other", "to be off with its disk", is_off).await;
    let files = env.files();
    assert_eq!(env.files_of("other").len(), 1);

    env.virsh(&["pool-destroy", "volumes"]).await;
    env.virsh(&["pool-undefine", "volumes"]).await;
    host_reports(&env, "PoolsReady", "False").await;
    env.delete("other").await;
    let hosts = env.lab.objects(HOST, "");
    let is_recorded = |host: &Value| host["status"]["tombstones"][0]["machine"] == "default/other";
    let recorded = hosts.until("here", "to have a tombstone", is_recorded);
    recorded.await.unwrap();
    assert_eq!(env.files(), files);
    assert_eq!(env.domains().await.len(), 2, "its definition stays");
    let volumes = env.volumes.display().to_string();
    let define = ["pool-define-as", "volumes", "dir", "--target", &volumes];
    env.virsh(&define).await;
    env.virsh(&["pool-start", "volumes"]).await;
    let has_none = |host: &Value| host["status"]["tombstones"].get(0).is_none();
    let removed = hosts.until("here", "to have no tombstone", has_none);
    removed.await.unwrap();
    assert_eq!(env.files_of("other"), [""; 0]);
    assert_eq!(env.domains().await.len(), 1);

    env.virsh(&["net-destroy", "default"]).await;
    env.virsh(&["net-undefine", "default"]).await;
    host_reports(&env, "NetworksReady", "False").await;
    let names_command = |machine: &Value| {
        let message = &condition(machine, "NetworkReady")["message"];
        message
            .as_str()
            .unwrap_or_default()
            .contains("virsh net-start default")
    };
    env.until("vm", "to name the command", names_command).await;
    let stop = json!({"spec": {"powerState": "Stopped"}});
    env.machines().merge("vm", &stop).await.unwrap();
    let is_off = |machine: &Value| machine["status"]["phase"] == "Stopped";
    env.until("vm", "to be off", is_off).await;
    assert_eq!(monitor.finish().unwrap(), [""; 0]);
}

async fn host_reports(env: &Environment, kind: &str, status: &str) {
    let hosts = env.lab.objects(HOST, "");
    let is_reported = |host: &Value| condition(host, kind)["status"] == status;
    let what = format!("to report {kind}={status}");
    hosts.until("here", &what, is_reported).await.unwrap();
}
