//! Changes of a running Machine: which take effect at once, which are pending, and how the status reports them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use std::slice::from_ref;

use lab::{
    Scenario,
    objects::{CLAIM, CLASS, INSTANCE, SECRET, VM, condition, condition_message, is_restarted},
};
use serde_json::{Value, json};

use environment::{Environment, is_reported, machine, pending, summaries};

fn says<'a>(machine: &'a Value, kind: &str) -> &'a str {
    condition_message(machine, kind).unwrap()
}

#[tokio::test]
async fn a_secret_that_changes_is_pending_until_the_guest_is_restarted() {
    let mut env = Environment::new().await;
    let (machines, vms) = (env.machines(), env.objects(VM));
    let write = async |text: &str, team: &str| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "mine", "namespace": "default", "labels": {"team": team}},
            "stringData": {"userdata": text, "mine": text},
        });
        env.apply(&secret).await;
        let secret = env.objects(SECRET).get("mine").await.unwrap();
        let version = secret["metadata"]["resourceVersion"].as_str();
        version.unwrap().to_owned()
    };
    let text = "#cloud-config\nhostname: first\n";
    write(text, "a").await;
    // KubeVirt reads the Secret of one Machine itself; that of the other is copied.
    let both = [("refers", "userdata"), ("copies", "mine")];
    for (name, key) in both {
        let cloud_init = json!({"secretRef": {"name": "mine", "key": key}});
        let spec = json!({"template": "small", "cloudInit": cloud_init});
        env.apply(&machine(name, &spec)).await;
    }
    for (name, _) in both {
        machines.until_phase(name, "Running").await.unwrap();
    }

    // A write that does not change the content is no pending change.
    let old = write(text, "b").await;
    for (name, _) in both {
        let knows = |vm: &Value| {
            let annotations = &vm["spec"]["template"]["metadata"]["annotations"];
            let mark = annotations["machine.vitistack.io/user-data"].as_str();
            mark.is_some_and(|mark| mark.starts_with(&format!("{old}-")))
        };
        vms.until(name, "to know the version", knows).await.unwrap();
    }
    let restart = |machine: &Value| condition(machine, "RestartRequired").clone();
    for (name, _) in both {
        let machine = machines.get(name).await.unwrap();
        assert_eq!(
            (pending(&machine), restart(&machine)),
            (vec![], Value::Null)
        );
    }

    let new = write("#cloud-config\nhostname: second\n", "b").await;
    for (name, _) in both {
        let reported = machines.until_condition(name, "RestartRequired", "True", "RestartRequired");
        let reported = reported.await.unwrap();
        let changes = pending(&reported);
        assert_eq!(changes.len(), 1, "{changes:?}");
        let [field, current, desired, action] = changes[0];
        assert_eq!((field, action), ("cloudInit.secretRef", "Restart"));
        assert!(current.starts_with("resourceVersion "), "{current}");
        assert_eq!(desired, format!("resourceVersion {new}"));
        let message = says(&reported, "RestartRequired");
        assert!(message.contains("on a new instance only"), "{message}");
        assert!(!reported["status"].to_string().contains("second"));
        assert_eq!(condition(&reported, "Ready")["reason"], "Running");
    }
    let copy = env.objects(SECRET).get("copies-cloudinit").await.unwrap();
    let original = env.objects(SECRET).get("mine").await.unwrap();
    assert_eq!(copy["data"]["userdata"], original["data"]["userdata"]);

    // A restarted controller writes nothing.
    let start = env.lab.log_position().await.unwrap();
    env.controller.stop().await.unwrap();
    env.controller.start_again().unwrap();
    env.controller.ready().await.unwrap();
    env.barrier("later").await;
    let mut writes = summaries(&env.writes_since(start).await);
    writes.retain(|write| !write.contains("later"));
    assert!(writes.is_empty(), "{writes:?}");

    let request = "for the new Secret";
    for (name, _) in both {
        machines.request_restart(name, request).await.unwrap();
    }
    for (name, _) in both {
        let done = |machine: &Value| {
            is_restarted(machine, request) && condition(machine, "Ready")["reason"] == "Running"
        };
        let done = machines.until(name, "to be restarted", done).await.unwrap();
        assert_eq!((pending(&done), restart(&done)), (vec![], Value::Null));
    }
}

#[tokio::test]
async fn a_volume_expansion_is_reported_until_it_is_done() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let sized = |size: &str| {
        let data = json!({"name": "data", "size": size, "storageClass": "fast-ssd"});
        json!({"template": "small", "disks": [data]})
    };
    env.apply(&machine("web", &sized("10Gi"))).await;
    machines.until_phase("web", "Running").await.unwrap();

    env.simulator.set("default", "web", Scenario::Resizing);
    env.apply(&machine("web", &sized("12Gi"))).await;
    let grows = "PersistentVolumeClaim web-data grows from 10Gi to 12Gi";
    let reported = machines.until_condition("web", "StorageReady", "True", "PVCResizing");
    let reported = reported.await.unwrap();
    assert_eq!(says(&reported, "StorageReady"), grows);
    assert_eq!(reported["status"]["volumes"][1]["capacity"], "10Gi");
    assert_eq!(condition(&reported, "Ready")["reason"], "Running");

    env.simulator.set("default", "web", Scenario::ResizePending);
    let waits = |web: &Value| says(web, "StorageReady") != grows;
    let waits = machines.until("web", "to wait for the file system", waits);
    let waits = waits.await.unwrap();
    let says_so = format!("{grows}; the volume has, its file system follows on the node");
    assert!(says(&waits, "StorageReady").starts_with(&says_so));

    env.simulator.set("default", "web", Scenario::Happy);
    let done = machines.until_condition("web", "StorageReady", "True", "PVCBound");
    let done = done.await.unwrap();
    assert_eq!(done["status"]["volumes"][1]["capacity"], "12Gi");

    // The class forbids expansion after admission has accepted the larger size.
    let pause = async |paused: Value| {
        let annotations = json!({"machine.vitistack.io/paused": paused});
        let patch = json!({"metadata": {"annotations": annotations}});
        machines.merge("web", &patch).await.unwrap();
    };
    let allow = async |allowed: bool| {
        let patch = json!({"allowVolumeExpansion": allowed});
        let classes = env.lab.objects(CLASS, "");
        classes.merge("fast-ssd", &patch).await.unwrap();
    };
    pause(json!("true")).await;
    machines
        .until_condition("web", "Paused", "True", "Paused")
        .await
        .unwrap();
    machines
        .merge("web", &json!({"spec": sized("14Gi")}))
        .await
        .unwrap();
    allow(false).await;
    let start = env.lab.log_position().await.unwrap();
    pause(Value::Null).await;
    let reason = "VolumeExpansionNotAllowed";
    let fixed = machines
        .until_condition("web", "Ready", "False", reason)
        .await
        .unwrap();
    let message = says(&fixed, "StorageReady");
    assert!(
        message.contains("disk 'data' cannot grow from 12Gi to 14Gi"),
        "{message}"
    );
    assert!(message.contains("StorageClass 'fast-ssd'"), "{message}");
    assert_eq!(fixed["status"]["phase"], "Running");
    let writes = summaries(&env.writes_since(start).await);
    let written = writes
        .iter()
        .any(|write| write.contains("persistentvolumeclaims"));
    assert!(
        !written,
        "the controller requests what the API server refuses: {writes:?}"
    );

    allow(true).await;
    let has = |claim: &Value| claim["status"]["capacity"]["storage"] == "14Gi";
    claims
        .until("web-data", "to have grown", has)
        .await
        .unwrap();
    let ready = |web: &Value| {
        condition(web, "Ready")["reason"] == "Running"
            && condition(web, "StorageReady")["reason"] == "PVCBound"
    };
    machines.until("web", "to be ready", ready).await.unwrap();
}

#[tokio::test]
async fn sockets_and_memory_grow_in_a_running_guest() {
    let env = Environment::with_best_crds().await;
    let (machines, instances) = (env.machines(), env.objects(INSTANCE));
    let shared =
        json!({"name": "root", "storageClass": "replicated", "accessMode": "ReadWriteMany"});
    let of = |disk: &Value, cpu: Value, memory: Value| json!({"template": "small", "disks": [disk], "resources": {"cpu": cpu, "memory": memory}});
    let room = |sockets: u32, size: &str| {
        (
            json!({"sockets": sockets, "maxSockets": 4}),
            json!({"size": size, "maxSize": "8Gi"}),
        )
    };
    let alone = json!({"name": "root"});
    let (cpu, memory) = room(1, "2Gi");
    let small = of(&shared, cpu.clone(), memory.clone());
    env.apply(&machine("grows", &small)).await;
    // Its disk is ReadWriteOnce, so it cannot migrate, which KubeVirt's hot-plug needs.
    env.apply(&machine("stays", &of(&alone, cpu, memory))).await;
    let without = json!({"template": "small", "disks": [shared]});
    env.apply(&machine("plain", &without)).await;
    for name in ["grows", "stays", "plain"] {
        machines.until_phase(name, "Running").await.unwrap();
    }

    let before = instances.get("grows").await.unwrap();
    let (cpu, memory) = room(4, "8Gi");
    env.apply(&machine("grows", &of(&shared, cpu, memory)))
        .await;
    let grown = |instance: &Value| {
        let domain = &instance["spec"]["domain"];
        domain["cpu"]["sockets"] == 4 && domain["memory"]["guest"] == "8Gi"
    };
    let instance = instances.until("grows", "to be as large as it may", grown);
    let instance = instance.await.unwrap();
    assert_eq!(instance["metadata"]["uid"], before["metadata"]["uid"]);
    let done = |web: &Value| is_reported(web) && pending(web).is_empty();
    let web = machines
        .until("grows", "to have nothing pending", done)
        .await
        .unwrap();
    assert_eq!(condition(&web, "RestartRequired"), &Value::Null);
    assert_eq!(condition(&web, "Ready")["reason"], "Running");

    // A changed maximum needs a restart.
    let (_, memory) = room(4, "8Gi");
    let cpu = json!({"sockets": 4, "maxSockets": 8});
    env.apply(&machine("grows", &of(&shared, cpu, memory)))
        .await;
    let restart = async |name: &str| {
        let reported = machines.until_condition(name, "RestartRequired", "True", "RestartRequired");
        reported.await.unwrap()
    };
    let reported = restart("grows").await;
    assert_eq!(
        pending(&reported),
        [["cpu.maxSockets", "4", "8", "Restart"]]
    );

    // Without a maximum nothing can be hot-plugged.
    let cpu = json!({"sockets": 2});
    let plain = json!({"template": "small", "disks": [shared], "resources": {"cpu": cpu}});
    env.apply(&machine("plain", &plain)).await;
    let reported = restart("plain").await;
    let expected = [
        ["cpu.sockets", "1", "2", "Restart"],
        ["cpu.maxSockets", "1", "2", "Restart"],
    ];
    assert_eq!(pending(&reported), expected);

    let (cpu, memory) = room(2, "2Gi");
    env.apply(&machine("stays", &of(&alone, cpu, memory))).await;
    let sockets = ["cpu.sockets", "1", "2", "Restart"];
    assert_eq!(pending(&restart("stays").await), [sockets]);
    let (cpu, memory) = room(2, "4Gi");
    env.apply(&machine("stays", &of(&alone, cpu, memory))).await;
    let both = [sockets, ["memory.size", "2Gi", "4Gi", "Restart"]];
    let reported = |stays: &Value| pending(stays) == both;
    machines
        .until("stays", "to wait for both", reported)
        .await
        .unwrap();
}

/// What admission announces, what the status says and what happens to the guest agree.
#[tokio::test]
async fn cores_grow_in_a_running_guest_and_shrink_at_its_restart() {
    let env = Environment::with_best_crds().await;
    let (machines, instances) = (env.machines(), env.objects(INSTANCE));
    let kubectl = env.lab.kubectl();
    let shared = json!({
        "name": "root", "storageClass": "replicated",
        "accessMode": "ReadWriteMany", "volumeMode": "Block",
    });
    let with = |name: &str, disk: &Value, cores: u32| {
        let cpu = json!({"cores": cores, "maxCores": 4});
        machine(
            name,
            &json!({"template": "small", "disks": [disk], "resources": {"cpu": cpu}}),
        )
    };
    let apply = async |name: &str, disk: &Value, cores: u32| {
        let output = kubectl.apply(&with(name, disk, cores)).await.unwrap();
        assert_eq!(output.code, 0, "{output}");
        output.stderr
    };
    let alone = json!({"name": "root"});
    let warning = apply("stays", &alone, 1).await;
    assert!(warning.contains("[GrowthNotLive]"), "{warning}");
    let warning = apply("grows", &shared, 1).await;
    assert!(!warning.contains("GrowthNotLive"), "{warning}");
    for (name, migratable) in [("grows", "True"), ("stays", "False")] {
        machines.until_phase(name, "Running").await.unwrap();
        let is_reported = |it: &Value| condition(it, "LiveMigratable")["status"] == migratable;
        let reported = machines.until(name, "to say whether it can migrate", is_reported);
        reported.await.unwrap();
    }
    let before = instances.get("grows").await.unwrap();
    // The webhook's watch of the KubeVirt object follows a moment later.
    lab::wait::until(
        "the webhook to know how KubeVirt is configured",
        async || {
            let dry_run = ["apply", "--dry-run=server", "-f", "-"];
            let grown = with("grows", &shared, 4).to_string();
            let output = kubectl.run_with(&dry_run, grown).await?;
            let is_live = !output.stderr.contains("RestartRequired");
            Ok(is_live.then_some(()).ok_or(output))
        },
    )
    .await
    .unwrap();

    let warning = apply("grows", &shared, 4).await;
    assert!(!warning.contains("RestartRequired"), "{warning}");
    let grown = |instance: &Value| instance["spec"]["domain"]["cpu"]["sockets"] == 4;
    let instance = instances.until("grows", "to have four cores", grown);
    let instance = instance.await.unwrap();
    assert_eq!(instance["metadata"]["uid"], before["metadata"]["uid"]);
    let cpu = &instance["spec"]["domain"]["cpu"];
    assert_eq!((&cpu["cores"], &cpu["maxSockets"]), (&json!(1), &json!(4)));
    let done = |it: &Value| is_reported(it) && pending(it).is_empty() && it["status"]["vcpus"] == 4;
    let web = machines.until("grows", "to have nothing pending", done);
    assert_eq!(
        condition(&web.await.unwrap(), "RestartRequired"),
        &Value::Null
    );

    let warning = apply("grows", &shared, 2).await;
    let text =
        "spec.resources.cpu.cores: changes from 4 to 2 at the next restart [RestartRequired]";
    assert!(warning.contains(text), "{warning}");
    let waits = machines.until_condition("grows", "RestartRequired", "True", "RestartRequired");
    let fewer = ["cpu.sockets", "4", "2", "Restart"];
    assert_eq!(pending(&waits.await.unwrap()), [fewer]);
    let instance = instances.get("grows").await.unwrap();
    assert_eq!(instance["metadata"]["uid"], before["metadata"]["uid"]);

    let warning = apply("stays", &alone, 2).await;
    let why = "changes from 1 to 2 at the next restart, because KubeVirt cannot move the guest";
    assert!(warning.contains(why), "{warning}");
    let waits = machines.until_condition("stays", "RestartRequired", "True", "RestartRequired");
    let more = ["cpu.sockets", "1", "2", "Restart"];
    assert_eq!(pending(&waits.await.unwrap()), [more]);
}

fn disk_names(instance: &Value) -> Vec<String> {
    let disks = instance.pointer("/spec/domain/devices/disks").unwrap();
    let names = disks.as_array().unwrap().iter();
    names
        .map(|disk| disk["name"].as_str().unwrap().to_owned())
        .collect()
}

/// KubeVirt's release and gates decide what admission announces, what the status says, and what happens to the guest.
#[tokio::test]
async fn disks_are_plugged_into_a_running_guest_and_out_of_it_where_kubevirt_can() {
    let env = Environment::with_best_crds().await;
    let (machines, instances) = (env.machines(), env.objects(INSTANCE));
    let kubectl = env.lab.kubectl();
    let with = |disks: &[Value]| machine("web", &json!({"template": "small", "disks": disks}));
    let apply = async |disks: &[Value]| {
        let output = kubectl.apply(&with(disks)).await.unwrap();
        assert_eq!(output.code, 0, "{output}");
        output.stderr
    };
    let announced = async |disks: &[Value], text: &str, warns: bool| {
        env.until_announced(&with(disks), text, warns).await;
    };
    let has = async |names: &[&str]| {
        let has = |it: &Value| disk_names(it) == names;
        instances
            .until("web", "to have these disks", has)
            .await
            .unwrap()
    };

    apply(&[]).await;
    machines.until_phase("web", "Running").await.unwrap();
    let first = has(&["root"]).await["metadata"]["uid"].clone();
    let data = json!({"name": "data", "size": "1Gi"});
    let on_sata = json!({"name": "logs", "size": "1Gi", "bus": "sata"});

    // KubeVirt 1.8 does it with a gate only.
    env.simulator.install(8, &[]).await.unwrap();
    announced(from_ref(&data), "at the next restart", true).await;
    let warning = apply(from_ref(&data)).await;
    let text = "spec.disks[0].name: 'data' is attached at the next restart [RestartRequired]";
    assert!(warning.contains(text), "{warning}");
    let waits = env
        .until_pending("web", &[["disks[data]", "absent", "present", "Restart"]])
        .await;
    assert_eq!(condition(&waits, "RestartRequired")["status"], "True");
    has(&["root"]).await;
    env.simulator
        .install(8, &["DeclarativeHotplugVolumes"])
        .await
        .unwrap();
    // The claims of the guest are read again with the next change of its VirtualMachine.
    env.simulator.set("default", "web", Scenario::Happy);
    let plugged = has(&["root", "data"]).await;
    assert_eq!(plugged["metadata"]["uid"], first);
    let web = env.until_pending("web", &[]).await;
    assert_eq!(condition(&web, "RestartRequired"), &Value::Null);
    let vm = env.objects(VM).get("web").await.unwrap();
    let volumes = vm.pointer("/spec/template/spec/volumes").unwrap();
    let is_plugged = |at: usize| &volumes[at]["persistentVolumeClaim"]["hotpluggable"];
    assert_eq!([is_plugged(0), is_plugged(1)], [&Value::Null, &json!(true)]);
    assert_eq!(condition(&vm, "RestartRequired"), &Value::Null);

    // Out of it again; the claim is kept. A bus that takes no disks while the guest runs waits for the restart.
    announced(&[], "at the next restart", false).await;
    let warning = apply(from_ref(&on_sata)).await;
    assert!(!warning.contains("'data' is detached"), "{warning}");
    assert!(
        warning.contains("'logs' is attached at the next restart"),
        "{warning}"
    );
    let unplugged = has(&["root"]).await;
    assert_eq!(unplugged["metadata"]["uid"], first);
    env.until_pending("web", &[["disks[logs]", "absent", "present", "Restart"]])
        .await;
    assert!(env.objects(CLAIM).find("web-data").await.unwrap().is_some());

    // KubeVirt 1.9 does it by itself, also while something else waits for a restart.
    env.simulator.install(9, &[]).await.unwrap();
    let warning = apply(&[on_sata.clone(), data.clone()]).await;
    assert!(!warning.contains("RestartRequired"), "{warning}");
    let plugged = has(&["root", "data"]).await;
    assert_eq!(plugged["metadata"]["uid"], first);
    env.until_pending("web", &[["disks[logs]", "absent", "present", "Restart"]])
        .await;

    // A guest that is started again has all of them.
    machines.request_restart("web", "now").await.unwrap();
    let restarted = has(&["root", "logs", "data"]).await;
    assert_ne!(restarted["metadata"]["uid"], first);
    env.until_pending("web", &[]).await;
}
