//! Several hosts: libvirt's test driver with sizes from a file, and one that never answers.

use std::fs;

use lab::{
    objects::{HOST, condition},
    wait,
};
use serde_json::{Value, json};

use crate::environment::Environment;

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
    let why = condition(&waiting, "Ready")["message"].as_str().unwrap();
    for part in [
        "large: has ",
        "small: has ",
        "away: cannot be reached",
        "64 are needed",
    ] {
        assert!(why.contains(part), "{why}");
    }
}

/// Two hosts of the test driver, `alpha` and `beta`, with 8 CPUs and 12 GiB each.
async fn two_hosts(env: &Environment) {
    let hosts = env.lab.objects(HOST, "");
    hosts.delete("here").await.unwrap();
    hosts.until_gone("here").await.unwrap();
    for name in ["alpha", "beta"] {
        let file = env.libvirt.path(&format!("{name}.xml"));
        fs::write(&file, node(8, 12, &["main", name])).unwrap();
        let uri = format!("test://{}", file.display());
        let host = host(name, &uri, name, &json!({"name": name}));
        env.lab.apply(&host).await.unwrap();
        let reported = hosts.until_condition(name, "Ready", "True", "Ready");
        reported.await.unwrap();
    }
}

async fn domains_on(env: &Environment, host: &str) -> Value {
    let host = env.lab.objects(HOST, "").get(host).await.unwrap();
    host["status"]["domains"]["ours"].clone()
}

#[tokio::test]
async fn a_forged_host_in_the_status_starts_no_second_domain() {
    let Some(env) = Environment::new().await else {
        return;
    };
    two_hosts(&env).await;
    let spec = requirements(1, "1Gi", "everywhere", &json!({"name": "alpha"}));
    env.apply("web", &spec).await;
    let runs = |machine: &Value| {
        let is_known = condition(machine, "Ready")["status"] == "True";
        is_known && machine["status"]["host"] == "alpha"
    };
    env.until("web", "to run on alpha", runs).await;
    for forged in [json!("beta"), json!(null)] {
        let patch = json!({"status": {"host": forged}}).to_string();
        let args = [
            "patch",
            "machine",
            "web",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        env.lab.kubectl().run(&args).await.unwrap().ok().unwrap();
        env.until("web", "to be on alpha again", runs).await;
    }
    // Another Machine on beta: its host was polled after the status was forged.
    let spec = requirements(1, "1Gi", "everywhere", &json!({"name": "beta"}));
    env.apply("app", &spec).await;
    wait::until("the domain of app on beta", async || {
        let domains = domains_on(&env, "beta").await;
        Ok(if domains == 1 {
            Ok(())
        } else {
            Err(domains.to_string())
        })
    })
    .await
    .unwrap();
    assert_eq!(domains_on(&env, "alpha").await, 1);
    let app = env.machines().get("app").await.unwrap();
    assert_eq!(app["status"]["host"], "beta");
}

#[tokio::test]
async fn a_machine_that_asks_for_a_whole_fleet_of_memory_takes_nothing_from_others() {
    let Some(env) = Environment::new().await else {
        return;
    };
    two_hosts(&env).await;
    let on_alpha = json!({"name": "alpha"});
    let grown = |memory: &str| requirements(1, memory, "everywhere", &on_alpha);
    let is_ready = |machine: &Value| condition(machine, "Ready")["status"] == "True";
    env.apply("greedy", &grown("512Mi")).await;
    env.apply("web", &grown("8Gi")).await;
    for name in ["greedy", "web"] {
        env.until(name, "to run", is_ready).await;
    }
    // More than its host has at all is refused at the prompt.
    let patch =
        |memory: &str| json!({"spec": {"resources": {"memory": {"size": memory}}}}).to_string();
    let kubectl = env.lab.kubectl();
    let huge = patch("12Ti");
    let args = ["patch", "machine", "greedy", "--type=merge", "-p", &huge];
    let refused = kubectl.run(&args).await.unwrap();
    let text = refused.refused().unwrap();
    assert!(text.contains("its host 'alpha' has 12Gi memory"), "{text}");
    assert!(text.contains("[LargerThanHosts]"), "{text}");
    // More than others leave is not given.
    env.apply("greedy", &grown("10Gi")).await;
    let greedy = env
        .until("greedy", "to get no room", |machine| {
            condition(machine, "Scheduled")["reason"] == "NoRoom"
        })
        .await;
    assert!(is_ready(&greedy), "{}", greedy["status"]);
    let text = condition(&greedy, "Scheduled")["message"].as_str().unwrap();
    assert!(text.contains("has room for 4Gi memory"), "{text}");
    // Others get what is left.
    env.apply("app", &grown("3Gi")).await;
    env.until("app", "to run", is_ready).await;
}
