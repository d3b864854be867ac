//! A lifecycle of Machines with confidential data, in which the programs send every kind of request to the API server.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lab::{
    Lab, OPERATOR_NAMESPACE, Options, Scenario, Subresources,
    audit::LogPosition,
    objects::{ADDRESS, ATTACHMENT, DATA_VOLUME, NETWORK, POLICY, SECRET},
    wait,
};
use serde_json::{Value, json};

use crate::environment::{Environment, machine};

/// The Secret with the CA of the webhook.
const CA: &str = "machine-webhook-ca";

/// Confidential input of users.
pub(crate) const CANARY: &str = "canary-7f3a";

/// The forms in which it may be disclosed: plain and base64.
pub(crate) fn words() -> Vec<String> {
    // Base64 encodes groups of three bytes: one of these is the encoding, whatever the number of bytes before.
    let encoded = (0..3).map(|before| {
        let text = format!("{}{CANARY}", " ".repeat(before));
        let encoded = STANDARD.encode(text);
        encoded.get(4..12).unwrap_or_default().to_owned()
    });
    encoded.chain([CANARY.to_owned()]).collect()
}

/// User data that is too long for a VirtualMachine, so that a Secret is created.
fn long(word: &str) -> String {
    format!(
        "#cloud-config\npassword: {CANARY}-{word}\nchpasswd:\n  expire: false\n# {}\n",
        "long ".repeat(1_000)
    )
}

fn secret(word: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "mine", "namespace": "default"},
        "stringData": {"data": format!("#cloud-config\npassword: {CANARY}-{word}\n")},
    })
}

fn network(mtu: u32) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
        "metadata": {"name": "lan", "namespace": "default"},
        "spec": {"bridge": "br-lan", "mtu": mtu, "ipam": {"subnets": [{"cidr": "10.0.0.0/24"}]}},
    })
}

fn web(word: &str, size: &str) -> Value {
    let spec = json!({
        "template": "small",
        "disks": [
            {"name": "root", "image": {"url": "https://images.example.com/debian.qcow2"}},
            {"name": "data", "size": size, "storageClass": "fast-ssd"},
        ],
        "networks": [{"name": "eth0", "networkName": "lan"}],
        "cloudInit": {"userData": long(word), "networkData": format!("# {CANARY}\nversion: 2\n")},
    });
    machine("web", &spec)
}

/// All programs, at log level trace.
pub(crate) async fn env() -> (Environment, LogPosition) {
    let all = [("LOG_LEVEL", "trace")];
    // The CA is replaced while the test runs. On a busy machine, an API server may use a bundle some seconds late, and the
    // webhook may be as late with its next leaf.
    let fast_rotation = [
        ("LOG_LEVEL", "trace"),
        ("CA_LIFE", "54s"),
        ("LEAF_LIFE", "12s"),
        ("CA_PROPAGATION", "4s"),
        ("CERTIFICATE_POLL", "500ms"),
    ];
    let mut lab = Lab::with(Options::default()).await.unwrap();
    let start = lab.log_position().await.unwrap();
    let webhook = lab.webhook(&fast_rotation).await.unwrap();
    let controller = lab.controller(&all).await.unwrap();
    let simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let env = Environment {
        simulator,
        controller,
        webhook,
        lab,
    };
    (env, start)
}

/// An image that gets a status, and a Machine that names one and a PriorityClass which do not exist.
async fn describe_image(env: &Environment) {
    let image = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineImage",
        "metadata": {"name": "debian-13"},
        "spec": {"source": {"url": "https://images.example.com/debian.qcow2"}, "minDiskSize": "3Gi"},
    });
    env.apply(&image).await;
    let disk = json!({"name": "root", "image": {"name": "debian-31"}});
    let placement = json!({"priorityClassName": "none-has-this-name"});
    let unknown = json!({"template": "small", "disks": [disk], "placement": placement});
    let unknown = machine("unknown", &unknown);
    env.lab.apply(&unknown).await.unwrap_err();
    let image = env.lab.objects(lab::objects::IMAGE, "");
    let described = |image: &Value| image["status"]["usedBy"] == 0;
    image
        .until("debian-13", "to have a status", described)
        .await
        .unwrap();
}

/// Creates, changes, restarts and deletes a network, a Machine with each kind of disk and a Secret of the operator, and
/// a Machine with a Secret of its user.
pub(crate) async fn run(env: &Environment) {
    let machines = env.machines();
    let ca = env.lab.objects(SECRET, OPERATOR_NAMESPACE);
    let ca_of = |secret: &Value| secret["data"]["ca.crt"].clone();
    let first_ca = ca_of(&ca.get(CA).await.unwrap());
    let policy = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachinePolicy",
        "metadata": {"name": "all"},
        "spec": {"namespaceSelector": {}, "quota": {"cpu": 100}},
    });
    env.apply(&policy).await;
    describe_image(env).await;
    env.apply(&network(1_500)).await;
    env.apply(&secret("first")).await;
    let disk = json!({"name": "root", "storageClass": "replicated", "accessMode": "ReadWriteMany"});
    let copies = json!({
        "template": "small", "disks": [disk],
        "cloudInit": {"secretRef": {"name": "mine", "key": "data"}},
    });
    env.apply(&machine("copies", &copies)).await;
    // An import that fails at first.
    env.simulator.set("default", "web", Scenario::ImportFails);
    env.apply(&web("first", "10Gi")).await;
    let fails = machines.until_condition("web", "StorageReady", "False", "ImageImportFailed");
    fails.await.unwrap();
    env.simulator.set("default", "web", Scenario::Happy);
    for name in ["web", "copies"] {
        machines.until_phase(name, "Running").await.unwrap();
    }

    let reported = |policy: &Value| policy["status"]["highest"]["cpu"] == 2;
    let policies = env.lab.objects(POLICY, "");
    policies
        .until("all", "to show the use", reported)
        .await
        .unwrap();

    // Every field that can change is changed.
    env.apply(&network(9_000)).await;
    env.apply(&secret("second")).await;
    env.apply(&web("second", "12Gi")).await;
    let jumbo = |attachment: &Value| attachment.to_string().contains("9000");
    let attachments = env.objects(ATTACHMENT);
    attachments
        .until("lan", "to have its MTU", jumbo)
        .await
        .unwrap();
    let reported = machines.until_condition("copies", "RestartRequired", "True", "RestartRequired");
    reported.await.unwrap();
    requested(env).await;
    repeated(env).await;
    refused(env).await;

    // Deletion during an import, and of everything else.
    env.simulator.set("default", "half", Scenario::ImportHangs);
    let disk = json!({"name": "root", "image": {"url": "https://images.example.com/debian.qcow2"}});
    let half = json!({"template": "small", "deletionProtection": true, "disks": [disk]});
    env.apply(&machine("half", &half)).await;
    let importing = |half: &Value| half["status"]["volumes"][0]["progress"] == "40%";
    machines
        .until("half", "to be imported", importing)
        .await
        .unwrap();
    let protected = |import: &Value| {
        !import["metadata"]["labels"]["vitistack.io/deletion-protection"].is_null()
    };
    let imports = env.objects(DATA_VOLUME);
    imports
        .until("half-root", "to be protected", protected)
        .await
        .unwrap();
    let unprotected = json!({"spec": {"deletionProtection": false}});
    machines.merge("half", &unprotected).await.unwrap();
    for name in ["web", "copies", "half"] {
        machines.delete(name).await.unwrap();
    }
    for name in ["web", "copies", "half"] {
        machines.until_gone(name).await.unwrap();
    }
    let addresses = env.lab.objects(ADDRESS, "");
    wait::until("the addresses to be released", async || {
        let held = addresses.list().await?;
        Ok(if held.is_empty() { Ok(()) } else { Err(held) })
    })
    .await
    .unwrap();
    env.objects(NETWORK).delete("lan").await.unwrap();
    env.objects(NETWORK).until_gone("lan").await.unwrap();
    without_kubevirt(env).await;
    let is_another = |secret: &Value| ca_of(secret) != first_ca;
    ca.until(CA, "to be replaced", is_another).await.unwrap();
}

/// Restarts, resets and moves the guest of the Machine `copies`.
async fn requested(env: &Environment) {
    let machines = env.machines();
    let request = async |annotation: &str| {
        let patch = json!({"metadata": {"annotations": {annotation: "now"}}});
        machines.merge("copies", &patch).await.unwrap();
    };
    env.restart("copies", "now").await;
    let runs = machines.until_condition("copies", "Ready", "True", "Running");
    runs.await.unwrap();
    let kubevirt = Subresources::start(env.lab.client()).await.unwrap();
    request("machine.vitistack.io/reset-requested").await;
    let is_reset = |machine: &Value| machine["status"]["lastReset"]["result"] == "Done";
    machines
        .until("copies", "to be reset", is_reset)
        .await
        .unwrap();
    assert_eq!(kubevirt.resets("default", "copies"), 1);
    request("machine.vitistack.io/migrate-requested").await;
    let moved = |machine: &Value| machine["status"]["lastMigration"]["result"] == "Succeeded";
    machines
        .until("copies", "to be moved", moved)
        .await
        .unwrap();
}

/// Creates and deletes a Machine after KubeVirt was removed.
async fn without_kubevirt(env: &Environment) {
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    for kind in ["virtualmachines", "virtualmachineinstances"] {
        let crd = format!("{kind}.kubevirt.io");
        let delete = ["delete", "crd", &crd];
        kubectl.run(&delete).await.unwrap().ok().unwrap();
    }
    let late = machine("late", &json!({"template": "small"}));
    env.apply(&late).await;
    let lacks =
        machines.until_condition("late", "VirtualMachineReady", "False", "KubeVirtApiError");
    lacks.await.unwrap();
    machines.delete("late").await.unwrap();
    machines.until_gone("late").await.unwrap();
}

/// The same transition occurs twice, so that an event is patched with a count.
async fn repeated(env: &Environment) {
    let machines = env.machines();
    for power in ["Stopped", "Running", "Stopped", "Running"] {
        let patch = json!({"spec": {"powerState": power}});
        machines.merge("web", &patch).await.unwrap();
        machines
            .until_condition("web", "Ready", "True", power)
            .await
            .unwrap();
    }
}

/// Sends refused objects, and bodies that are no review.
async fn refused(env: &Environment) {
    let faulty = json!({
        "template": CANARY,
        "resources": {"memory": {"size": CANARY}},
        "disks": [{"name": "root", "size": "20Gi", "storageClass": CANARY}],
        "networks": [{"name": "eth0", "networkName": CANARY, "macAddress": CANARY}],
        "cloudInit": {"userData": format!("#cloud-config\npassword: {CANARY}\n"), "metaData": {CANARY: CANARY}},
    });
    let kubectl = env.lab.kubectl();
    let create = ["create", "--validate=false", "-f", "-"];
    let faulty = machine("faulty", &faulty).to_string();
    kubectl
        .run_with(&create, faulty)
        .await
        .unwrap()
        .refused()
        .unwrap();
    for broken in [
        format!("{{\"{CANARY}"),
        json!({"request": CANARY}).to_string(),
        json!({"request": {"uid": "1", "object": CANARY}}).to_string(),
    ] {
        let mut connection = env.lab.connect_webhook().await.unwrap();
        connection.post("/mutate", broken).await.unwrap();
    }
}
