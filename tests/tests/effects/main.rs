//! The table of update effects, row by row, on KubeVirt with the simulator. Its counterpart for libvirt is in the
//! suite `libvirt`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../environment/mod.rs"]
mod environment;
mod subject;

use common::api::choice::Backend;
use common::rules::update::Field;
use serde_json::{Value, json};

use environment::{Environment, machine};
use subject::{Cases, OtherMachine, Subject, network, secret, template};

/// A node with everything that the changed Machine asks for.
async fn equip_node(env: &Environment) {
    let kubectl = env.lab.kubectl();
    env.until_node("node-2").await;
    let labels = [
        "label",
        "node",
        "node-2",
        "zone=a",
        "rack=1",
        "cpumanager=true",
        "cpu-model.node.kubevirt.io/Skylake-Server=true",
    ];
    kubectl.run(&labels).await.unwrap().ok().unwrap();
    let offers = json!({"hugepages-2Mi": "8Gi", "nvidia.com/A100": "1"});
    env.set_allocatable("node-2", &offers).await;
    let permitted = json!({
        "pciHostDevices": [{"pciVendorSelector": "10DE:20B0", "resourceName": "nvidia.com/A100"}],
    });
    env.simulator.permit_devices(&permitted).await.unwrap();
    let class = ["create", "priorityclass", "high", "--value=1000"];
    kubectl.run(&class).await.unwrap().ok().unwrap();
}

fn before() -> Value {
    let image = |file: &str| json!({"url": format!("https://images.example.com/{file}")});
    json!({
        "template": "with-scratch",
        "resources": {"cpu": {"cores": 1}, "memory": {"size": "1Gi"}},
        "disks": [
            {"name": "root", "size": "10Gi", "storageClass": "fast-ssd", "image": image("debian.qcow2")},
            {"name": "data", "size": "1Gi", "storageClass": "fast-ssd"},
            {"name": "scratch"},
            {"name": "legacy", "claimName": "legacy-disk"},
        ],
        "networks": [
            {"name": "eth0"},
            {"name": "lan", "networkName": "lan"},
            {"name": "wan", "networkName": "lan"},
        ],
        "cdroms": [
            {"name": "tools", "size": "1Gi", "storageClass": "fast-ssd", "image": image("tools.iso")},
        ],
        "domain": {"firmware": {"bootloader": {"efi": true, "persistent": false}}},
        "cloudInit": {"userData": "#cloud-config\n"},
    })
}

/// Runs a Machine, and makes its changes.
async fn tried(env: &Environment, name: &str, other: &OtherMachine) -> Subject {
    let machine = machine(name, &other.spec);
    env.apply(&machine).await;
    env.machines().until_phase(name, "Running").await.unwrap();
    Subject::changed(Backend::Kubevirt, &env.lab, machine, &other.cases).await
}

#[tokio::test]
async fn each_change_has_the_announced_effect_on_kubevirt() {
    let env = Environment::with_best_crds().await;
    equip_node(&env).await;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "legacy-disk", "namespace": "default"},
        "spec": {
            "storageClassName": "standard", "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    env.bound_claim(&claim).await;
    let policy = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachinePolicy", "metadata": {"name": "io"},
        "spec": {"namespaceSelector": {}, "annotations": {"allow": ["example.com/*"]}, "hardware": {"overrides": ["spec.template.spec.domain.ioThreadsPolicy"]}},
    });
    for object in [
        policy,
        template(&json!([{"name": "scratch", "size": "1Gi", "storageClass": "fast-ssd"}])),
        network("lan", "br-second", "10.9.0.0/24"),
        network("other", "br-second", "10.10.0.0/24"),
        secret("first"),
        secret("second"),
    ] {
        env.apply(&object).await;
    }
    let machine = machine("web", &before());
    env.lab.apply_when_admitted(&machine).await.unwrap();
    env.machines().until_phase("web", "Running").await.unwrap();

    let mut web = Subject::new(Backend::Kubevirt, &env.lab, machine);
    web.tries(&Cases::read(include_str!("kubevirt.yaml"))).await;
    web.labels_and_annotates("example.com/team=a").await;
    web.has_everything_after_a_restart().await;
    for (name, other) in OtherMachine::read(include_str!("kubevirt_others.yaml")) {
        web.include(tried(&env, &name, &other).await);
    }
    web.assert_all_but(&[
        (Field::Template, "it resolves to other rows"),
        (Field::Drivers, "it is announced at the disks and cards"),
    ]);
}
