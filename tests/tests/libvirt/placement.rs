//! Several hosts: libvirt's test driver with sizes from a file, and one that never answers.

use std::fs;

use common::quantity::Bytes;
use lab::objects::{HOST, condition, condition_message};
use serde_json::{Value, json};

use crate::environment::{self, Environment};

/// The test driver's description of a host with its pools and networks.
fn node(cpus: u32, gigabytes: u32, pools: &[&str]) -> String {
    let pool = |name: &&str| {
        format!("<pool type='dir'><name>{name}</name><target><path>/{name}</path></target></pool>")
    };
    let pools = pools.iter().map(pool).collect::<Vec<_>>().concat();
    format!(
        "<node><cpu><mhz>2000</mhz><model>x86_64</model><nodes>1</nodes><sockets>1</sockets>\
         <cores>{cpus}</cores><threads>1</threads><active>{cpus}</active></cpu>\
         <memory>{}</memory><network><name>default</name><bridge name='virbr0'/>\
         <ip address='192.168.122.1' netmask='255.255.255.0'/></network>{pools}</node>",
        gigabytes * 1024 * 1024
    )
}

fn host(name: &str, uri: &str, class: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "LibvirtHost",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "uri": uri,
            "virtType": "qemu",
            "storage": [
                {"storageClass": "everywhere", "pool": "main"},
                {"storageClass": class, "pool": class},
            ],
            "networks": [
                {"name": "default", "type": "network", "source": "default"},
                {"name": format!("br-{class}"), "type": "network", "source": "default"},
            ],
        },
    })
}

/// A Machine with these resources, storage class and node selector.
fn requirements(cores: u32, memory: &str, class: &str, selector: &Value) -> Value {
    json!({
        "resources": {"cpu": {"cores": cores}, "memory": {"size": memory}},
        "disks": [{"name": "root", "size": "1Gi", "storageClass": class}],
        "nodeSelector": selector,
    })
}

/// Two hosts of libvirt's test driver instead of the one that runs guests.
async fn two_hosts(env: &Environment) {
    let hosts = env.lab.objects(HOST, "");
    hosts.delete("here").await.unwrap();
    hosts.until_gone("here").await.unwrap();
    for (name, zone) in [("east", "a"), ("west", "b")] {
        let file = env.libvirt.path(&format!("{name}.xml"));
        fs::write(&file, node(16, 64, &["main", "own"])).unwrap();
        let uri = format!("test://{}", file.display());
        let labels = json!({"topology.kubernetes.io/zone": zone});
        let host = host(name, &uri, "own", &labels);
        env.lab.apply(&host).await.unwrap();
        let ready = hosts.until_condition(name, "Ready", "True", "Ready");
        ready.await.unwrap();
    }
}

#[tokio::test]
async fn machines_of_a_group_are_placed_on_different_hosts() {
    let Some(env) = Environment::new().await else {
        return;
    };
    two_hosts(&env).await;
    let machines = env.machines();
    let in_group = |group: &Value| {
        let mut spec = requirements(1, "1Gi", "everywhere", &json!({}));
        spec["placement"] = json!({"antiAffinityGroup": group});
        spec
    };
    for (group, more) in [
        (json!({"name": "by-host", "required": true}), "Host"),
        (
            json!({"name": "by-zone", "required": true, "scope": "Zone"}),
            "Zone",
        ),
    ] {
        let name = |number: usize| format!("{}-{number}", more.to_lowercase());
        let spec = in_group(&group);
        // Both at once: neither is in the cache of the other's pass.
        let (first, second) = (name(0), name(1));
        tokio::join!(env.apply(&first, &spec), env.apply(&second, &spec));
        let mut on = Vec::new();
        for name in [&first, &second] {
            let placed = machines.until(name, "to be placed", |machine| {
                machine["status"]["host"].is_string()
            });
            on.push(placed.await.unwrap()["status"]["host"].clone());
        }
        assert_ne!(on[0], on[1], "{group}");
        let third = name(2);
        env.apply(&third, &spec).await;
        let waits = machines.until_condition(&third, "Ready", "False", "NoHostFits");
        let waits = waits.await.unwrap();
        let message = condition_message(&waits, "Ready").unwrap();
        assert!(message.contains("is on this host"), "{message}");
    }
}

#[tokio::test]
async fn a_machine_is_placed_on_a_host_that_satisfies_its_requirements() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.lab.objects(HOST, "").delete("here").await.unwrap();
    env.lab.objects(HOST, "").until_gone("here").await.unwrap();
    for (name, cpus, memory, class) in [("large", 16, 64, "slow"), ("small", 4, 8, "fast")] {
        let file = env.libvirt.path(&format!("{name}.xml"));
        fs::write(&file, node(cpus, memory, &["main", class])).unwrap();
        let uri = format!("test://{}", file.display());
        let labels = json!({"size": name});
        env.lab
            .apply(&host(name, &uri, class, &labels))
            .await
            .unwrap();
        let hosts = env.lab.objects(HOST, "");
        let reported = hosts
            .until_condition(name, "Ready", "True", "Ready")
            .await
            .unwrap();
        assert_eq!(reported["status"]["capacity"]["cpu"], cpus);
    }
    let away = host(
        "away",
        "test:///no-such-file.xml",
        "away",
        &json!({"size": "none"}),
    );
    env.lab.apply(&away).await.unwrap();
    let hosts = env.lab.objects(HOST, "");
    hosts
        .until_condition("away", "Reachable", "False", "Unreachable")
        .await
        .unwrap();

    let network = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": "fast", "namespace": "default"},
        "spec": {"bridge": "br-fast"},
    });
    env.lab.apply(&network).await.unwrap();
    let everywhere = json!({});
    let mut by_network = requirements(1, "1Gi", "everywhere", &everywhere);
    by_network["networks"] = json!([{"name": "eth0", "networkName": "fast"}]);
    for (name, spec, on) in [
        (
            "by-room",
            requirements(1, "1Gi", "everywhere", &everywhere),
            "large",
        ),
        (
            "by-cpu",
            requirements(8, "1Gi", "everywhere", &everywhere),
            "large",
        ),
        (
            "by-memory",
            requirements(1, "32Gi", "everywhere", &everywhere),
            "large",
        ),
        ("by-network", by_network, "small"),
        (
            "by-class",
            requirements(1, "1Gi", "fast", &everywhere),
            "small",
        ),
        (
            "by-label",
            requirements(1, "1Gi", "everywhere", &json!({"size": "small"})),
            "small",
        ),
    ] {
        env.apply(name, &spec).await;
        let machine = env
            .until(name, "to be placed", |it| it["status"]["host"].is_string())
            .await;
        assert_eq!(machine["status"]["host"], on, "{name}");
    }

    // No host fits: the Machine waits, and the condition lists what each host lacks.
    env.apply(
        "nowhere",
        &requirements(64, "1Gi", "everywhere", &everywhere),
    )
    .await;
    let waiting = env
        .until("nowhere", "to report why it waits", |it| {
            condition(it, "Ready")["status"] == "False"
        })
        .await;
    assert_eq!(waiting["status"]["phase"], "Pending");
    let why = condition_message(&waiting, "Ready").unwrap();
    for part in [
        "large: has ",
        "small: has ",
        "away: cannot be reached",
        "64 are needed",
    ] {
        assert!(why.contains(part), "{why}");
    }
}

/// A Machine with a blank disk on the host with this label.
fn blank(memory: &str, at: &str) -> Value {
    json!({
        "resources": {"cpu": {"cores": 1}, "memory": {"size": memory}},
        "disks": [{"name": "root", "size": "1Gi", "storageClass": "local"}],
        "nodeSelector": {"at": at},
    })
}

/// The LibvirtHost `here` with a label, and with 12Gi for Machines.
async fn limit_here(env: &Environment) {
    let hosts = env.lab.objects(HOST, "");
    let reported = hosts.get("here").await.unwrap();
    let capacity = reported["status"]["capacity"]["memory"].as_str().unwrap();
    let capacity: Bytes = capacity.parse().unwrap();
    let reserved = Bytes::new(capacity.get() - Bytes::mib(12 * 1024).get());
    let mut here = environment::host();
    here["metadata"]["labels"] = json!({"at": "here"});
    here["spec"]["reserved"] = json!({"memory": reserved});
    env.lab.apply(&here).await.unwrap();
    let is_limited = |host: &Value| host["status"]["allocatable"]["memory"] == "12Gi";
    let what = "to have 12Gi for Machines";
    hosts.until("here", what, is_limited).await.unwrap();
}

#[tokio::test]
async fn a_forged_host_in_the_status_starts_no_second_domain() {
    let Some(env) = Environment::new().await else {
        return;
    };
    limit_here(&env).await;
    env.lab
        .apply(&environment::test_driver_host())
        .await
        .unwrap();
    let hosts = env.lab.objects(HOST, "");
    let reported = hosts.until_condition("there", "Ready", "True", "Ready");
    reported.await.unwrap();

    let is_ready = |machine: &Value| condition(machine, "Ready")["status"] == "True";
    env.apply("web", &blank("128Mi", "here")).await;
    env.until("web", "to run", is_ready).await;
    for forged in [json!("there"), json!(null)] {
        let status = json!({"status": {"host": forged}});
        env.machines().merge_status("web", &status).await.unwrap();
        let is_back = |machine: &Value| machine["status"]["host"] == "here" && is_ready(machine);
        env.until("web", "to be here again", is_back).await;
    }
    // Another Machine there: that host was polled after the status was forged.
    env.apply("app", &blank("128Mi", "there")).await;
    let app = env.until("app", "to run", is_ready).await;
    assert_eq!(app["status"]["host"], "there");
    let polled = hosts.until("there", "to have a domain", |host| {
        host["status"]["domains"]["ours"] != 0
    });
    let domains = &polled.await.unwrap()["status"]["domains"];
    assert_eq!(domains["ours"], 1, "the domain of app");
    assert_eq!(env.domains().await.len(), 1);
}

#[tokio::test]
async fn a_machine_that_asks_for_more_memory_than_there_is_takes_none_from_others() {
    let Some(env) = Environment::new().await else {
        return;
    };
    limit_here(&env).await;
    let is_ready = |machine: &Value| condition(machine, "Ready")["status"] == "True";
    for name in ["greedy", "web"] {
        env.apply(name, &blank("512Mi", "here")).await;
        env.until(name, "to run", is_ready).await;
    }
    // More than its host has at all is refused at admission.
    let patch = json!({"spec": {"resources": {"memory": {"size": "12Ti"}}}}).to_string();
    let args = ["patch", "machine", "greedy", "--type=merge", "-p", &patch];
    let refused = env.lab.kubectl().run(&args).await.unwrap();
    let text = refused.refused().unwrap();
    assert!(
        text.contains("its host 'here' has 12Gi of memory"),
        "{text}"
    );
    assert!(text.contains("[LargerThanHosts]"), "{text}");
    // More than others leave is not given, and the guest goes on.
    env.apply("greedy", &blank("12Gi", "here")).await;
    let has_no_room = |machine: &Value| condition(machine, "Scheduled")["reason"] == "NoRoom";
    let greedy = env.until("greedy", "to get no room", has_no_room).await;
    assert!(is_ready(&greedy), "{}", greedy["status"]);
    let condition = condition(&greedy, "Scheduled");
    let text = condition["message"].as_str().unwrap();
    assert!(text.contains("has room for 11776Mi memory"), "{text}");
    let domain = env.domain("greedy").await;
    let xml = env.virsh(&["dumpxml", "--inactive", &domain]).await;
    assert!(xml.contains("<memory unit='KiB'>524288</memory>"), "{xml}");
    // Others get what is left.
    env.apply("app", &blank("1Gi", "here")).await;
    env.until("app", "to run", is_ready).await;
}
