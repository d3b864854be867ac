//! What a guest is given: data for cloud-init in the form of objects, of the Machine and of its template, on KubeVirt.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use std::fs;

use lab::objects::{SECRET, TEMPLATE, VM, condition};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// As a user writes it: kubectl reads the mode as the number 420.
const MACHINE: &str = "\
apiVersion: vitistack.io/v1alpha1
kind: Machine
metadata: {name: web, namespace: default}
spec:
  template: prepared
  cloudInit:
    cloudConfig:
      users:
      - default
      - {name: ops, groups: [adm, sudo]}
      write_files:
      - {path: /etc/motd, content: \"hello\\n\", permissions: 0644}
    metaData: {role: db}
";

fn volume(vm: &Value) -> &Value {
    let volumes = vm["spec"]["template"]["spec"]["volumes"].as_array();
    let mut volumes = volumes.unwrap().iter();
    volumes.find(|it| it["name"] == "cloudinitdisk").unwrap()
}

#[tokio::test]
async fn objects_of_the_machine_and_of_its_template_reach_the_guest_as_text() {
    let env = Environment::new().await;
    let kubectl = env.lab.kubectl();
    let template = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineTemplate",
        "metadata": {"name": "prepared"},
        "spec": {
            "resources": {"memory": {"size": "1Gi"}},
            "disks": [{"name": "root", "size": "5Gi"}],
            "cloudInit": {
                "cloudConfig": {"hostname": "template"},
                "networkConfig": {"version": 2, "ethernets": {"eth0": {"dhcp4": true}}},
                "metaData": {"role": "web", "rack": "7"},
            },
        },
    });
    env.apply(&template).await;
    let file = env.lab.path("web.yaml");
    fs::write(&file, MACHINE).unwrap();
    let file = file.display().to_string();
    let applied = kubectl.run(&["apply", "-f", &file]).await.unwrap();
    assert!(
        applied.stderr.contains(
            "spec.cloudInit.cloudConfig.write_files[0].permissions: should be a text of octal digits"
        ),
        "{applied:?}"
    );
    applied.ok().unwrap();
    env.machines().until_phase("web", "Running").await.unwrap();

    // With metadata every part is in the operator's Secret.
    let secret = env.objects(SECRET).get("web-cloudinit").await.unwrap();
    let read = async |key: &str| {
        let template = format!("go-template={{{{index .data \"{key}\" | base64decode}}}}");
        let words = ["get", "secret", "web-cloudinit", "-o", &template];
        kubectl.run(&words).await.unwrap().ok().unwrap()
    };
    assert_eq!(secret["data"].as_object().unwrap().len(), 3);
    assert_eq!(
        read("user-data").await,
        r#"#cloud-config
{"users":["default",{"groups":["adm","sudo"],"name":"ops"}],"write_files":[{"content":"hello\n","path":"/etc/motd","permissions":420}]}"#
    );
    assert_eq!(
        read("network-config").await,
        r#"{"ethernets":{"eth0":{"dhcp4":true}},"version":2}"#
    );
    let meta: Value = serde_json::from_str(&read("meta-data").await).unwrap();
    assert_eq!((&meta["role"], &meta["rack"]), (&json!("db"), &json!("7")));

    // Without metadata a short object is in the VirtualMachine.
    let spec = json!({"template": "small", "cloudInit": {"cloudConfig": {"hostname": "plain"}}});
    env.apply(&machine("plain", &spec)).await;
    env.machines()
        .until_phase("plain", "Running")
        .await
        .unwrap();
    let vm = env.objects(VM).get("plain").await.unwrap();
    assert_eq!(
        volume(&vm)["cloudInitNoCloud"]["userData"],
        "#cloud-config\n{\"hostname\":\"plain\"}"
    );

    // A change of the template reaches no Machine that has its content.
    let changed = json!({"spec": {"cloudInit": {"cloudConfig": {"hostname": "changed"}}}});
    let templates = env.lab.objects(TEMPLATE, "");
    templates.merge("prepared", &changed).await.unwrap();
    let block = env.machines().get("web").await.unwrap()["spec"]["normalized"].clone();
    assert_eq!(
        block["template"]["content"]["cloudInit"]["cloudConfig"],
        json!({"hostname": "template"})
    );
}

#[tokio::test]
async fn a_fault_in_an_object_is_refused_at_its_path() {
    let env = Environment::new().await;
    let twice = json!({"userData": "#cloud-config\n", "cloudConfig": {"hostname": "web"}});
    let wrong = json!({"cloudConfig": {"users": [{"name": ["ops"]}]}});
    for (data, causes) in [
        (
            twice,
            "spec.cloudInit.cloudConfig: Forbidden: is the same part as spec.cloudInit.userData; give one of the two [CloudInitGivenTwice]",
        ),
        (
            wrong,
            "spec.cloudInit.cloudConfig.users[0].name: Invalid value: must be a text, is a list [InvalidCloudConfig]",
        ),
    ] {
        let spec = json!({"template": "small", "cloudInit": data});
        let refused = env.lab.apply(&machine("web", &spec)).await.unwrap_err();
        assert!(format!("{refused:#}").contains(causes), "{refused:#}");
    }
}

/// The kubelet waits for the Secret, and the VirtualMachine does not show it; the Machine names it.
#[tokio::test]
async fn an_answer_file_of_windows_setup_reaches_the_guest_from_its_secret() {
    let env = Environment::new().await;
    let spec = json!({
        "template": "small", "os": "windows",
        "cloudInit": {"sysprep": {"secretRef": {"name": "answers"}}},
    });
    env.apply(&machine("win", &spec)).await;
    let machines = env.machines();
    let waits = machines.until("win", "to name the Secret", |win| {
        let ready = condition(win, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["reason"] == "CloudInitSecretNotFound" && message.contains("Secret 'answers'")
    });
    waits.await.unwrap();
    env.apply(&json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "answers", "namespace": "default"},
        "stringData": {"autounattend.xml": "<unattend/>"},
    }))
    .await;
    machines.until_phase("win", "Running").await.unwrap();
    let vm = env.objects(VM).get("win").await.unwrap();
    assert_eq!(
        volume(&vm)["sysprep"],
        json!({"secret": {"name": "answers"}})
    );
    let disks = vm["spec"]["template"]["spec"]["domain"]["devices"]["disks"].as_array();
    let mut disks = disks.unwrap().iter();
    let drive = disks.find(|disk| disk["name"] == "cloudinitdisk").unwrap();
    assert_eq!(drive["cdrom"]["bus"], "sata");
    // The answers stay in the user's Secret.
    let copy = env.objects(SECRET).find("win-cloudinit").await.unwrap();
    assert_eq!(copy, None);
}
