//! The lifecycle of a Machine, from kubectl to a running guest.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    audit::Event,
    objects::{CLAIM, EVENT, SECRET, VM, condition},
    paths, wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine, summaries};

const EXAMPLES: [&str; 4] = ["basic-vm", "cloud-init-vm", "custom-vm", "networked-vm"];

/// The examples run; their status, objects and metrics have the documented names.
#[tokio::test]
async fn the_examples_run() {
    let mut env = Environment::with_best_crds().await;
    let start = env.lab.log_position().await.unwrap();
    let examples = paths::repository().join("manifests/examples");
    let kubectl = env.lab.kubectl();
    let apply = ["apply", "-f", examples.to_str().unwrap()];
    kubectl.run(&apply).await.unwrap().ok().unwrap();
    for name in EXAMPLES {
        env.machines().until_phase(name, "Running").await.unwrap();
    }

    status_is_complete(&env).await;
    objects_have_their_names(&env).await;
    metrics_have_their_names(&mut env).await;

    let writes = env.writes_since(start).await;
    for name in EXAMPLES {
        assert_writes(&writes, name);
    }

    // A second apply changes nothing and causes no write.
    let before = env.lab.log_position().await.unwrap();
    let again = kubectl.run(&apply).await.unwrap().ok().unwrap();
    assert!(
        again.lines().all(|line| line.ends_with(" unchanged")),
        "{again}"
    );
    env.barrier("later").await;
    let writes = summaries(&env.writes_since(before).await);
    let of_others: Vec<_> = writes.iter().filter(|w| !w.contains("later")).collect();
    assert!(of_others.is_empty(), "{of_others:?}");
    a_forced_typo_changes_nothing(&env).await;
}

/// `kubectl apply --force` deletes and creates an object again if it is refused with 422, but not with our 403.
async fn a_forced_typo_changes_nothing(env: &Environment) {
    let uids = async || {
        let machine = env.machines().get("basic-vm").await.unwrap();
        let vm = env.objects(VM).get("basic-vm").await.unwrap();
        let claim = env.objects(CLAIM).get("basic-vm-root").await.unwrap();
        [machine, vm, claim].map(|object| object["metadata"]["uid"].clone())
    };
    let before = uids().await;
    let typo = machine("basic-vm", &json!({"template": "mediun"})).to_string();
    let kubectl = env.lab.kubectl();
    let force = kubectl.run_with(&["apply", "--force", "-f", "-"], typo);
    let answer = force.await.unwrap().refused().unwrap();
    assert!(answer.contains("did you mean 'medium'?"), "{answer}");
    env.barrier("after-a-typo").await;
    assert_eq!(uids().await, before);
}

async fn status_is_complete(env: &Environment) {
    let machine = env.machines().get("networked-vm").await.unwrap();
    assert_eq!(
        machine["metadata"]["finalizers"],
        json!(["machine.vitistack.io/cleanup"])
    );
    for (kind, reason) in [
        ("Ready", "Running"),
        ("Normalized", "Normalized"),
        ("VirtualMachineReady", "VMCreated"),
        ("StorageReady", "PVCBound"),
        ("NetworkReady", "NetworkConfigured"),
    ] {
        let condition = condition(&machine, kind);
        assert_eq!(condition["status"], "True", "{kind}");
        assert_eq!(condition["reason"], reason, "{kind}");
        assert_eq!(condition["observedGeneration"], 1, "{kind}");
    }
    let status = &machine["status"];
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(status["vmName"], "networked-vm");
    assert_eq!(status["vmiName"], "networked-vm");
    assert!(status["nodeName"].as_str().unwrap().starts_with("node-"));
    assert_eq!(status["ipAddresses"].as_array().unwrap().len(), 2);
    assert!(status["lastUpdated"].is_string() && status["resourceVersion"].is_string());
    let cards = status["networkInterfaces"].as_array().unwrap();
    let cards: Vec<_> = cards.iter().map(|card| &card["name"]).collect();
    assert_eq!(cards, ["eth0", "eth1"]);
    assert_eq!(
        status["volumes"],
        json!([{
            "name": "root", "claimName": "networked-vm-root", "phase": "Bound", "capacity": "40Gi",
        }])
    );

    // Events are sent concurrently with reconciliations, so they may arrive later.
    let events = env.objects(EVENT);
    wait::until("an event per transition", async || {
        let events = events.list().await?;
        let mut reasons: Vec<_> = events
            .iter()
            .filter(|event| event["regarding"]["name"] == "basic-vm")
            // Reported only if the guest takes seconds to start once its claim is bound.
            .filter(|event| event["reason"] != "Creating")
            .map(|event| (event["type"].clone(), event["reason"].clone()))
            .collect();
        reasons.sort_by_key(|(_, reason)| reason.to_string());
        let expected = [
            (json!("Normal"), json!("PVCPending")),
            (json!("Normal"), json!("Running")),
        ];
        Ok(if reasons == expected {
            Ok(())
        } else {
            Err(reasons)
        })
    })
    .await
    .unwrap();
}

async fn objects_have_their_names(env: &Environment) {
    let machines = env.machines();
    let labels = |name: &str| {
        json!({
            "vitistack.io/managed-by": "kubevirt-operator",
            "vitistack.io/machine": name,
        })
    };
    let owned = |object: &Value, machine: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array().unwrap();
        assert_eq!(owners.len(), 1);
        assert_eq!(owners[0]["kind"], "Machine");
        assert_eq!(owners[0]["uid"], machine["metadata"]["uid"]);
    };

    let custom = machines.get("custom-vm").await.unwrap();
    let vm = env.objects(VM).get("custom-vm").await.unwrap();
    owned(&vm, &custom);
    assert_eq!(vm["metadata"]["labels"], labels("custom-vm"));
    assert_eq!(
        vm["metadata"]["annotations"]["machine.vitistack.io/machine-uid"],
        custom["metadata"]["uid"]
    );
    assert_eq!(vm["spec"]["runStrategy"], "Always");
    let domain = &vm["spec"]["template"]["spec"]["domain"];
    assert_eq!(domain["cpu"]["cores"], 4);
    assert_eq!(domain["memory"]["guest"], "8Gi");

    let claims = env.objects(CLAIM);
    for (disk, size, class) in [("root", "20Gi", "standard"), ("data", "100Gi", "fast-ssd")] {
        let claim = claims.get(&format!("custom-vm-{disk}")).await.unwrap();
        let metadata = &claim["metadata"];
        assert_eq!(metadata["labels"]["vitistack.io/machine"], "custom-vm");
        assert_eq!(metadata["labels"]["vitistack.io/disk"], disk);
        assert_eq!(metadata["ownerReferences"], Value::Null);
        let storage = &claim["spec"]["resources"]["requests"]["storage"];
        assert_eq!(
            (storage, &claim["spec"]["storageClassName"]),
            (&json!(size), &json!(class))
        );
    }

    let vm = env.objects(VM).get("cloud-init-vm").await.unwrap();
    let guest = &vm["spec"]["template"]["spec"];
    let volumes = guest["volumes"].as_array().unwrap();
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == "cloudinitdisk");
    let written = machines.get("cloud-init-vm").await.unwrap();
    assert_eq!(
        volume.unwrap()["cloudInitNoCloud"]["userData"],
        written["spec"]["cloudInit"]["userData"]
    );
}

async fn metrics_have_their_names(env: &mut Environment) {
    // A missing network counts as an error.
    let lost = json!({"template": "small", "networks": [{"name": "eth0", "networkName": "lost"}]});
    env.apply(&machine("lost", &lost)).await;
    env.machines()
        .until_condition(
            "lost",
            "NetworkReady",
            "False",
            "NetworkConfigurationNotFound",
        )
        .await
        .unwrap();
    let samples = [
        r#"kubevirt_operator_machines_total{phase="Running",template="medium"} 2"#,
        r#"kubevirt_operator_machines_total{phase="Failed",template="small"} 1"#,
        r#"kubevirt_operator_virtual_machines_total{status="Running"} 4"#,
        r#"kubevirt_operator_reconciliation_duration_seconds_count{controller="Machine"} "#,
        r#"kubevirt_operator_reconciliation_errors_total{controller="Machine",error_type="NetworkConfigurationNotFound"} "#,
        r#"kubevirt_operator_storage_provisioning_duration_seconds_count{storage_class="fast-ssd"} 1"#,
        r#"kubevirt_operator_network_configuration_errors_total{network_name="other"} "#,
    ];
    let controller = &mut env.controller;
    wait::until("the metrics", async || {
        let text = controller.metrics().await?;
        let missing: Vec<_> = samples
            .iter()
            .filter(|sample| !text.lines().any(|line| line.starts_with(**sample)))
            .collect();
        Ok(if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("without {missing:#?}\n{text}"))
        })
    })
    .await
    .unwrap();
    assert!(
        !controller.metrics().await.unwrap().contains("basic-vm"),
        "the name of a Machine is in a label"
    );
}

/// At most five writes on a Machine until it runs, two on its VirtualMachine, one on each child.
fn assert_writes(writes: &[Event], name: &str) {
    let on = |resource: &str| {
        let of = |event: &&Event| {
            event.resource == resource
                && (event.name == name || event.name.starts_with(&format!("{name}-")))
        };
        writes
            .iter()
            .filter(of)
            .map(Event::summary)
            .collect::<Vec<_>>()
    };
    let machine = on("machines");
    assert!(machine.len() <= 5, "{machine:?}");
    let vm = on("virtualmachines");
    assert!(vm.len() <= 2, "{vm:?}");
    let mut claims = on("persistentvolumeclaims");
    let all = claims.len();
    claims.dedup();
    assert_eq!(claims.len(), all, "one write per claim: {claims:?}");
}

#[tokio::test]
async fn power_and_disks_follow_the_spec() {
    let env = Environment::new().await;
    let machines = env.machines();
    let spec = json!({
        "template": "small", "guestShutdownStops": true,
        "disks": [{"name": "data", "size": "10Gi", "storageClass": "fast-ssd"}],
    });
    env.apply(&machine("web", &spec)).await;
    machines.until_phase("web", "Running").await.unwrap();

    // A shutdown inside the guest: the Machine is off, and the spec is unchanged.
    env.simulator
        .guest_shutdown("default", "web")
        .await
        .unwrap();
    machines
        .until_condition("web", "Ready", "True", "Stopped")
        .await
        .unwrap();
    let vm = env.objects(VM).get("web").await.unwrap();
    assert_eq!(vm["spec"]["runStrategy"], "RerunOnFailure");

    let patch = |spec: Value| json!({"spec": spec});
    machines
        .merge("web", &patch(json!({"powerState": "Stopped"})))
        .await
        .unwrap();
    let halted = |vm: &Value| vm["spec"]["runStrategy"] == "Halted";
    env.objects(VM)
        .until("web", "to be halted", halted)
        .await
        .unwrap();
    machines
        .until_condition("web", "Ready", "True", "Stopped")
        .await
        .unwrap();
    machines
        .merge("web", &patch(json!({"powerState": "Running"})))
        .await
        .unwrap();
    machines
        .until_condition("web", "Ready", "True", "Running")
        .await
        .unwrap();

    let grown = json!([{"name": "data", "size": "12Gi", "storageClass": "fast-ssd"}]);
    machines
        .merge("web", &patch(json!({"disks": grown})))
        .await
        .unwrap();
    machines
        .until("web", "to have the larger disk", |web| {
            let volumes = web["status"]["volumes"].as_array();
            volumes.is_some_and(|all| all.iter().any(|volume| volume["capacity"] == "12Gi"))
        })
        .await
        .unwrap();

    // A change that the running guest cannot get is pending until the guest is restarted.
    let cores = json!({"resources": {"cpu": {"cores": 4}}});
    machines.merge("web", &patch(cores)).await.unwrap();
    let restart = machines.until_condition("web", "RestartRequired", "True", "RestartRequired");
    assert_eq!(
        restart.await.unwrap()["status"]["pendingChanges"],
        json!([{"field": "cpu.cores", "current": "1", "desired": "4", "action": "Restart"}])
    );
    let off = patch(json!({"powerState": "Stopped"}));
    machines.merge("web", &off).await.unwrap();
    machines
        .until_condition("web", "Ready", "True", "Stopped")
        .await
        .unwrap();
    let on = patch(json!({"powerState": "Running"}));
    machines.merge("web", &on).await.unwrap();
    let web = machines.until_condition("web", "Ready", "True", "Running");
    let web = web.await.unwrap();
    assert_eq!(web["status"]["pendingChanges"], Value::Null);
    assert_eq!(condition(&web, "RestartRequired"), &Value::Null);
}

/// Cloud-init data that is too long for a VirtualMachine is stored in a Secret of the operator.
#[tokio::test]
async fn long_user_data_is_stored_in_a_secret() {
    let env = Environment::new().await;
    let text = format!("#cloud-config\n# {}\n", "long ".repeat(1000));
    let spec = json!({"template": "small", "cloudInit": {"userData": text}});
    env.apply(&machine("web", &spec)).await;
    let web = env.machines().until_phase("web", "Running").await.unwrap();
    let secret = env.objects(SECRET).get("web-cloudinit").await.unwrap();
    assert_eq!(
        secret["metadata"]["ownerReferences"][0]["uid"],
        web["metadata"]["uid"]
    );
    let kubectl = env.lab.kubectl();
    let read = kubectl.run(&[
        "get",
        "secret",
        "web-cloudinit",
        "-o",
        "go-template={{.data.userdata | base64decode}}",
    ]);
    assert_eq!(read.await.unwrap().ok().unwrap(), text);

    // The Machine waits for a Secret of the user.
    let cloud_init = json!({"secretRef": {"name": "mine", "key": "data"}});
    let spec = json!({"template": "small", "cloudInit": cloud_init});
    env.apply(&machine("waits", &spec)).await;
    let machines = env.machines();
    let reason = "CloudInitSecretNotFound";
    machines
        .until_condition("waits", "VirtualMachineReady", "False", reason)
        .await
        .unwrap();
    env.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"data": "#cloud-config\n"},
        "metadata": {"name": "mine", "namespace": "default"},
    }))
    .await;
    machines.until_phase("waits", "Running").await.unwrap();
}
