//! The table of update effects, row by row, with a guest that runs in QEMU.

use common::api::choice::Backend;
use common::rules::update::Field;
use lab::objects::{condition, is_reported};
use serde_json::{Value, json};

use crate::environment::{self, Environment};
use crate::subject::{Cases, OtherMachine, Subject, network, secret, template};

/// A Machine of which every field can be changed.
fn before() -> Value {
    json!({
        "template": "with-scratch",
        "backend": "libvirt",
        "resources": {"cpu": {"cores": 1}, "memory": {"size": "256Mi"}},
        "disks": [
            environment::root(),
            {"name": "data", "size": "1Gi", "storageClass": "local"},
            {"name": "scratch"},
        ],
        "networks": [
            {"name": "eth0"},
            {"name": "lan", "networkName": "lan"},
            {"name": "wan", "networkName": "lan"},
        ],
        "cdroms": [{"name": "tools", "image": {"volume": "tools.iso"}}],
        "cloudInit": {"userData": "#cloud-config\n"},
    })
}

/// Creates what the Machine names.
async fn create_surroundings(env: &Environment) {
    let images = env.libvirt.path("pools").join("images");
    let content = env.lab.path("medium.iso");
    std::fs::write(&content, "medium").unwrap();
    for medium in ["tools.iso", "other.iso"] {
        let volume = env.libvirt.volume(&images, medium, &content);
        volume.await.unwrap();
    }
    // Disks of the template come first, and the firmware starts the first one.
    let disk = |name: &str| json!({"name": name, "size": "1Gi", "storageClass": "local"});
    for object in [
        template(&json!(["root", "scratch"].map(disk))),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "screen", "namespace": "default"},
            "stringData": {"password": "secret"},
        }),
        network("lan", "br-second", "10.9.0.0/24"),
        network("other", "default", "10.10.0.0/24"),
        secret("first"),
        secret("second"),
    ] {
        env.lab.apply(&object).await.unwrap();
    }
}

/// Runs a Machine. A guest that boots answers no request to take something out.
async fn run(env: &Environment, name: &str, spec: &Value) -> Value {
    let machine = lab::reviews::machine(name, spec);
    env.lab.apply_when_admitted(&machine).await.unwrap();
    env.until_booted(name).await;
    machine
}

#[tokio::test]
async fn each_change_has_the_announced_effect_on_libvirt() {
    let Some(env) = Environment::new().await else {
        return;
    };
    create_surroundings(&env).await;
    let machine = run(&env, "web", &before()).await;
    let mut web = Subject::new(Backend::Libvirt, &env.lab, machine);
    web.tries(&Cases::read(include_str!("effects.yaml"))).await;
    web.labels_and_annotates("example.com/team=a").await;
    web.has_everything_after_a_restart().await;
    for (name, other) in OtherMachine::read(include_str!("effects_others.yaml")) {
        let machine = run(&env, &name, &other.spec).await;
        let changed = Subject::changed(Backend::Libvirt, &env.lab, machine, &other.cases);
        web.include(changed.await);
    }
    more_cards_than_ports(&env).await;
    web.assert_all_but(&[
        (Field::Template, "it resolves to other rows"),
        (Field::Drivers, "it is announced at the disks and cards"),
        (Field::Sysprep, "it is a part of Windows"),
        (Field::DedicatedCpu, "hardware"),
        (Field::Hugepages, "the host has none"),
        (Field::Devices, "the host has none"),
        (Field::ConsoleLog, "the host has no pool for logs: display"),
        (Field::PersistentEfi, "firmware"),
        (
            Field::DiskShareable,
            "it is of claims, which libvirt has none of",
        ),
        (Field::CdromSize, "the host reads the image in place"),
        (
            Field::CdromStorageClass,
            "the host reads the image in place",
        ),
    ]);
}

/// More cards than a running guest has free ports for: the others wait for the restart, and the Machine is in order.
async fn more_cards_than_ports(env: &Environment) {
    let card = |index: usize| json!({"name": format!("card{index}"), "networkName": "lan"});
    let mut spec = json!({
        "template": "small",
        "backend": "libvirt",
        "resources": {"memory": {"size": "256Mi"}},
        "disks": [environment::root()],
        "networks": [card(0)],
    });
    run(env, "ports", &spec).await;
    spec["networks"] = (0..9).map(card).collect();
    let machine = lab::reviews::machine("ports", &spec);
    env.lab.apply(&machine).await.unwrap();
    let waits = |machine: &Value| {
        let changes = machine["status"]["pendingChanges"].as_array();
        let actions = changes
            .into_iter()
            .flatten()
            .map(|change| &change["action"]);
        let actions: Vec<_> = actions.collect();
        let restarts = actions.iter().filter(|action| **action == "Restart");
        (actions.len(), restarts.count())
    };
    let is_settled = |machine: &Value| {
        let (all, restarts) = waits(machine);
        is_reported(machine)
            && all > 0
            && all == restarts
            && condition(machine, "Ready")["status"] == "True"
    };
    let machine = env
        .until("ports", "to have cards that wait", is_settled)
        .await;
    // Of eight, at least four are plugged in.
    assert!(waits(&machine).0 <= 4, "{}", machine["status"]);
    for power in ["Stopped", "Running"] {
        spec["powerState"] = power.into();
        let machine = lab::reviews::machine("ports", &spec);
        env.lab.apply(&machine).await.unwrap();
        let is_there = |machine: &Value| machine["status"]["phase"] == power;
        env.until("ports", power, is_there).await;
    }
    let has_all = |machine: &Value| waits(machine).0 == 0;
    env.until("ports", "to have all cards", has_all).await;
}
