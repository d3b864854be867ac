//! Changes that KubeVirt applies by a live migration: what is pending, what the Machine says of the guest, and which
//! networks are in use.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    Eviction, Scenario,
    objects::{INSTANCE, MIGRATION, NETWORK, VM, condition, condition_message},
};
use serde_json::{Value, json};

use environment::{Environment, machine};

const NOTHING: [[&str; 4]; 0] = [];

/// A Machine whose guest KubeVirt can migrate (`moves`) or not (`stays`), with these fields.
fn guest(name: &str, more: &Value) -> Value {
    let disk = match name {
        "moves" => {
            json!({"name": "root", "storageClass": "replicated", "accessMode": "ReadWriteMany"})
        }
        _ => json!({"name": "root"}),
    };
    let mut spec = json!({"template": "small", "disks": [disk]});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    machine(name, &spec)
}

async fn networks(env: &Environment) {
    for (name, bridge) in [("prod", "br0"), ("test", "br1")] {
        env.apply(&json!({
            "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
            "metadata": {"name": name, "namespace": "default"}, "spec": {"bridge": bridge},
        }))
        .await;
    }
}

fn restart_required(vm: &Value) -> bool {
    condition(vm, "RestartRequired")["status"] == "True"
}

#[tokio::test]
async fn a_card_that_cannot_be_plugged_in_is_pending_and_leaves_nothing_when_it_is_removed() {
    let env = Environment::with_best_crds().await;
    let (machines, vms, instances) = (env.machines(), env.objects(VM), env.objects(INSTANCE));
    networks(&env).await;
    let cards = |names: &[&str]| {
        let extra = names
            .iter()
            .map(|name| json!({"name": name, "networkName": "prod"}));
        let all: Vec<_> = [json!({"name": "eth0"})].into_iter().chain(extra).collect();
        guest("stays", &json!({"networks": all}))
    };
    env.apply(&cards(&[])).await;
    let stays = machines.until_phase("stays", "Running").await.unwrap();
    let migratable = condition(&stays, "LiveMigratable");
    assert_eq!(migratable["reason"], "DisksNotLiveMigratable");
    assert_eq!(migratable["status"], "False");

    env.apply(&cards(&["eth1"])).await;
    let added = ["networks[eth1]", "absent", "present", "Restart"];
    let stays = env.until_pending("stays", &[added]).await;
    let message = condition_message(&stays, "RestartRequired");
    let message = message.unwrap();
    let why = "KubeVirt cannot apply it by a live migration (DisksNotLiveMigratable: ";
    assert!(message.contains(why), "{message}");
    assert_eq!(condition(&stays, "MigrationRequired"), &Value::Null);
    // KubeVirt's instance has the card, and its VirtualMachine says nothing.
    let waits = |instance: &Value| {
        let interfaces = &instance["spec"]["domain"]["devices"]["interfaces"];
        interfaces[1]["name"] == "eth1"
            && condition(instance, "MigrationRequired")["reason"] == "AutoMigrationPending"
    };
    instances
        .until("stays", "to wait for a migration", waits)
        .await
        .unwrap();
    assert!(!restart_required(&vms.get("stays").await.unwrap()));
    env.until_pending("stays", &[added]).await;

    env.apply(&cards(&[])).await;
    vms.until("stays", "to need a restart for KubeVirt", restart_required)
        .await
        .unwrap();
    let stays = env.until_pending("stays", &NOTHING).await;
    assert_eq!(condition(&stays, "RestartRequired"), &Value::Null);
    env.barrier("later").await;
    env.until_pending("stays", &NOTHING).await;

    // KubeVirt keeps its condition while the VM is off; a Machine that is off has nothing to restart for.
    let power = |state: &str| json!({"spec": {"powerState": state}});
    machines.merge("stays", &power("Stopped")).await.unwrap();
    let off = machines.until_condition("stays", "Ready", "True", "Stopped");
    let off = off.await.unwrap();
    assert!(restart_required(&vms.get("stays").await.unwrap()));
    assert_eq!(condition(&off, "RestartRequired"), &Value::Null);
    assert_eq!(condition(&off, "LiveMigratable"), &Value::Null);
    machines.merge("stays", &power("Running")).await.unwrap();
    let on = machines.until_condition("stays", "Ready", "True", "Running");
    on.await.unwrap();
    let agrees = |vm: &Value| !restart_required(vm);
    vms.until("stays", "to need no restart", agrees)
        .await
        .unwrap();

    // A card that leaves a guest which has it waits for a restart.
    env.apply(&cards(&["eth1"])).await;
    env.until_pending("stays", &[added]).await;
    env.restart("stays", "for eth1").await;
    env.until_pending("stays", &NOTHING).await;
    env.apply(&cards(&[])).await;
    let removed = ["networks[eth1]", "present", "absent", "Restart"];
    env.until_pending("stays", &[removed]).await;
}

#[tokio::test]
async fn cards_networks_and_node_labels_take_effect_with_a_migration() {
    let env = Environment::with_best_crds().await;
    let (machines, networks_of) = (env.machines(), env.objects(NETWORK));
    networks(&env).await;
    let with = |network: &str, extra: &[&str], disk: &str| {
        let mut cards = vec![json!({"name": "eth0", "networkName": network})];
        cards.extend(
            extra
                .iter()
                .map(|name| json!({"name": name, "networkName": "test"})),
        );
        guest(
            "moves",
            &json!({"networks": cards, "nodeSelector": {"disk": disk}}),
        )
    };
    env.apply(&with("prod", &[], "ssd")).await;
    let moves = machines.until_phase("moves", "Running").await.unwrap();
    let node = moves["status"]["nodeName"].clone();
    assert_eq!(condition(&moves, "LiveMigratable")["status"], "True");

    // The cluster migrates by itself.
    env.apply(&with("prod", &["eth1"], "ssd")).await;
    let migrated = |machine: &Value| machine["status"]["nodeName"] != node;
    let migrated = machines.until("moves", "to be on another node", migrated);
    migrated.await.unwrap();
    let moves = env.until_pending("moves", &NOTHING).await;
    let cards = moves["status"]["networkInterfaces"].as_array().unwrap();
    assert_eq!(cards.len(), 2);
    assert_eq!(condition(&moves, "RestartRequired"), &Value::Null);

    // The cluster does not.
    env.simulator.set_all(Scenario::NoMigration);
    env.simulator.set_update_methods(&[]).await.unwrap();
    env.apply(&with("test", &["eth1"], "ssd")).await;
    let network = "networks[eth0].networkName";
    let network = [network, "default/prod", "default/test", "LiveMigration"];
    let moves = env.until_pending("moves", &[network]).await;
    let required = condition(&moves, "MigrationRequired");
    let message = required["message"].as_str().unwrap();
    assert!(message.contains("networks[eth0].networkName"), "{message}");
    assert_eq!(condition(&moves, "RestartRequired"), &Value::Null);
    // Who migrates is a fact of the cluster, and the Machine says it.
    let says = |part: &'static str| {
        let what = format!("to say {part}");
        let is_said = move |machine: &Value| {
            let message = condition_message(machine, "MigrationRequired");
            message.is_some_and(|message| message.contains(part))
        };
        let machines = env.machines();
        async move { machines.until("moves", &what, is_said).await.unwrap() }
    };
    says("does not migrate it by itself on this cluster").await;
    env.simulator
        .set_update_methods(&["Evict", "LiveMigrate"])
        .await
        .unwrap();
    says("migrates it by itself, as its workloadUpdateMethods").await;
    env.simulator.set_update_methods(&[]).await.unwrap();
    says("does not migrate it by itself on this cluster").await;
    env.apply(&with("test", &["eth1"], "hdd")).await;
    let labels = ["nodeSelector", "disk=ssd", "disk=hdd", "LiveMigration"];
    env.until_pending("moves", &[network, labels]).await;
    // Only the pod of the guest is on the network now.
    let kubectl = env.lab.kubectl();
    let delete = ["delete", "networkconfiguration", "prod", "--wait=false"];
    kubectl.run(&delete).await.unwrap().ok().unwrap();
    env.barrier("later").await;
    assert!(networks_of.find("prod").await.unwrap().is_some());

    env.simulator.migrate("default", "moves").await.unwrap();
    let moves = env.until_pending("moves", &NOTHING).await;
    assert_eq!(condition(&moves, "MigrationRequired"), &Value::Null);
    networks_of.until_gone("prod").await.unwrap();
}

#[tokio::test]
async fn a_drained_guest_is_treated_as_its_eviction_strategy_says() {
    let env = Environment::with_best_crds().await;
    let machines = env.machines();
    env.simulator.set_all(Scenario::NoMigration);
    let started = async |name: &str, strategy: &str| {
        let spec = json!({"evictionStrategy": strategy});
        env.apply(&guest(name, &spec)).await;
        machines.until_phase(name, "Running").await.unwrap();
        env.simulator.evict("default", name).await.unwrap()
    };
    assert_eq!(started("stays", "External").await, Eviction::Waits);
    let requested =
        machines.until_condition("stays", "EvictionRequested", "True", "EvictionRequested");
    let requested = requested.await.unwrap();
    let message = condition_message(&requested, "EvictionRequested").unwrap();
    assert!(message.contains("evictionStrategy: External"), "{message}");
    assert_eq!(condition(&requested, "Ready")["reason"], "Running");

    // A shutdown by the drain is none by the guest: the Machine is to run, and starts again.
    let machine = machines.get("stays").await.unwrap();
    let node = machine["status"]["nodeName"].clone();
    assert_eq!(started("leaves", "None").await, Eviction::Allowed);
    let stopped = machines.until("leaves", "to be shut down", |machine| {
        machine["status"]["phase"] != "Running"
    });
    stopped.await.unwrap();
    machines.until_phase("leaves", "Running").await.unwrap();

    env.apply(&guest("stays", &json!({"evictionStrategy": "LiveMigrate"})))
        .await;
    env.until_pending(
        "stays",
        &[["evictionStrategy", "External", "LiveMigrate", "Restart"]],
    )
    .await;
    let stays = machines.get("stays").await.unwrap();
    assert_eq!(stays["status"]["nodeName"], node);
}

/// What a drain of the node does with each guest is known before, and is what happens.
#[tokio::test]
async fn a_node_is_drained_of_guests_that_can_move_and_of_others() {
    let env = Environment::with_best_crds().await;
    let machines = env.machines();
    env.until_node("node-3").await;
    env.cordon("cordon", &["node-2", "node-3"]).await;
    for (name, strategy, effect) in [
        ("moves", "LiveMigrate", "can move"),
        ("leaves", "LiveMigrateIfPossible", "shuts it down"),
        ("stays", "LiveMigrate", "waits until the guest is stopped"),
    ] {
        let strategy = json!({"evictionStrategy": strategy});
        env.apply(&guest(name, &strategy)).await;
        let is_known = |machine: &Value| {
            let message = condition_message(machine, "LiveMigratable");
            machine["status"]["nodeName"] == "node-1"
                && message.is_some_and(|message| message.contains(effect))
        };
        let what = "to run on node-1, and to say what a drain does";
        machines.until(name, what, is_known).await.unwrap();
    }
    let instances = env.objects(INSTANCE);
    let uid = async |name: &str| instances.get(name).await.unwrap()["metadata"]["uid"].clone();
    let before = [uid("moves").await, uid("leaves").await, uid("stays").await];

    env.cordon("uncordon", &["node-2", "node-3"]).await;
    env.cordon("cordon", &["node-1"]).await;
    let evict = async |name: &str| env.simulator.evict("default", name).await.unwrap();
    assert_eq!(evict("moves").await, Eviction::Waits);
    assert_eq!(evict("leaves").await, Eviction::Allowed);
    assert_eq!(evict("stays").await, Eviction::Refused);
    for name in ["moves", "leaves"] {
        let runs_elsewhere = |machine: &Value| {
            machine["status"]["nodeName"] != "node-1"
                && condition(machine, "Ready")["reason"] == "Running"
        };
        let what = "to run on another node";
        machines.until(name, what, runs_elsewhere).await.unwrap();
    }
    assert_eq!(uid("moves").await, before[0], "it was not started again");
    assert_ne!(uid("leaves").await, before[1], "it was started again");
    assert_eq!(uid("stays").await, before[2]);
    let stays = machines.get("stays").await.unwrap();
    assert_eq!(stays["status"]["nodeName"], "node-1");

    // The drain goes on once the user has stopped the guest.
    let stop = json!({"evictionStrategy": "LiveMigrate", "powerState": "Stopped"});
    env.apply(&guest("stays", &stop)).await;
    machines.until_phase("stays", "Stopped").await.unwrap();
}

#[tokio::test]
async fn an_eviction_and_its_migration_are_reported() {
    let env = Environment::with_best_crds().await;
    let machines = env.machines();
    env.apply(&guest("moves", &json!({}))).await;
    let moves = machines.until_phase("moves", "Running").await.unwrap();
    let node = moves["status"]["nodeName"].as_str().unwrap().to_owned();
    env.simulator.set_all(Scenario::NoMigration);
    env.simulator.evict("default", "moves").await.unwrap();
    let evicted =
        machines.until_condition("moves", "EvictionRequested", "True", "EvictionRequested");
    let evicted = evicted.await.unwrap();
    let message = condition_message(&evicted, "EvictionRequested");
    assert!(message.unwrap().contains(&node), "{message:?}");
    assert_eq!(condition(&evicted, "Ready")["reason"], "Running");

    let migration = |state: &Value| json!({"status": {"migrationState": state}});
    let instances = env.objects(INSTANCE);
    let failed = json!({
        "completed": true, "failed": true, "failureReason": "the target pod was not scheduled",
        "sourceNode": node, "targetNode": "node-9",
    });
    instances.merge("moves", &migration(&failed)).await.unwrap();
    let failed = machines.until_condition("moves", "Migrating", "False", "MigrationFailed");
    let failed = failed.await.unwrap();
    let message = condition_message(&failed, "Migrating").unwrap();
    assert!(message.ends_with("the target pod was not scheduled"));

    env.simulator.set_all(Scenario::Happy);
    let migrated = |machine: &Value| {
        machine["status"]["nodeName"] != json!(node)
            && condition(machine, "EvictionRequested").is_null()
            && condition(machine, "Migrating").is_null()
    };
    let migrated = machines.until("moves", "to be on another node", migrated);
    let migrated = migrated.await.unwrap();
    assert_eq!(condition(&migrated, "Ready")["reason"], "Running");
}

#[tokio::test]
async fn a_guest_is_moved_on_request_and_whatever_ends_a_migration_is_reported() {
    let env = Environment::new().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    for name in ["moves", "stays"] {
        env.apply(&guest(name, &json!({}))).await;
        machines
            .until_condition(name, "Ready", "True", "Running")
            .await
            .unwrap();
    }
    let request = async |name: &str, annotations: &[&str]| {
        let annotate = ["annotate", "--overwrite", "machine", name];
        let annotate = [&annotate[..], annotations].concat();
        kubectl.run(&annotate).await.unwrap().ok().unwrap();
    };
    let ended = async |name: &str, request: &str, result: &str| {
        let machine = machines.until(name, "to have ended its migration", |machine| {
            let last = &machine["status"]["lastMigration"];
            last["request"] == request && last["result"] == result
        });
        let mut last = machine.await.unwrap()["status"]["lastMigration"].take();
        assert!(last["migration"].is_null(), "{last}");
        last["message"].take().as_str().unwrap().to_owned()
    };

    // To a named node, without a restart.
    let before = env.objects(INSTANCE).get("moves").await.unwrap();
    let present = before["status"]["nodeName"].as_str().unwrap();
    let target = ["node-1", "node-2"]
        .into_iter()
        .find(|node| *node != present);
    let to = format!("machine.vitistack.io/migrate-to={}", target.unwrap());
    request(
        "moves",
        &["machine.vitistack.io/migrate-requested=new switch", &to],
    )
    .await;
    let message = ended("moves", "new switch", "Succeeded").await;
    assert_eq!(message, format!("the guest runs on {}", target.unwrap()));
    let after = env.objects(INSTANCE).get("moves").await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["status"]["nodeName"], target.unwrap());
    let moved = |machine: &Value| machine["status"]["nodeName"] == target.unwrap();
    machines
        .until("moves", "to name the node", moved)
        .await
        .unwrap();
    let made = env.objects(MIGRATION).list().await.unwrap();
    assert_eq!(made.len(), 1, "{made:#?}");
    let owner = &made[0]["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "Machine", "{owner}");

    // Its disk is on one node, and a name with a blank is no node.
    let immovable =
        machines.until_condition("stays", "LiveMigratable", "False", "DisksNotLiveMigratable");
    immovable.await.unwrap();
    let now = "machine.vitistack.io/migrate-requested=now";
    for (annotation, code, why) in [
        (now, "[MigrationNotPossible]", "a PVC is not shared"),
        (
            "machine.vitistack.io/migrate-to=node 2",
            "[InvalidMigrationTarget]",
            "node 2",
        ),
    ] {
        let answer = kubectl
            .run(&["annotate", "machine", "stays", annotation])
            .await;
        let refused = answer.unwrap().refused().unwrap();
        assert!(refused.contains(code) && refused.contains(why), "{refused}");
    }

    // No node takes it, and the user gives up.
    env.simulator.set("default", "moves", Scenario::NoMigration);
    request(
        "moves",
        &[
            "machine.vitistack.io/migrate-requested=again",
            "machine.vitistack.io/migrate-to-",
        ],
    )
    .await;
    let waits = |machine: &Value| {
        let message = machine["status"]["lastMigration"]["message"].as_str();
        message.is_some_and(|it| it.starts_with("a node for the guest is looked for"))
    };
    let open = machines.until("moves", "to look for a node", waits).await;
    let open = &open.unwrap()["status"]["lastMigration"];
    let name = open["migration"].as_str().unwrap();
    env.objects(MIGRATION).delete(name).await.unwrap();
    let message = ended("moves", "again", "Failed").await;
    assert!(message.contains("was deleted"), "{message}");
    env.barrier("later").await;
    assert_eq!(env.objects(MIGRATION).list().await.unwrap().len(), 1);
}
