//! The process of machine-controller: settings, start in any order, stop, replicas, log.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use std::{net::TcpListener, process::Stdio};

use lab::{
    Binary, KubevirtCrds, Lab, OPERATOR_NAMESPACE, Options, ProgramUnderTest, Scenario,
    fault_proxy::FaultProxy,
    http,
    objects::{LEASE, MACHINE, condition},
    wait,
};
use serde_json::{Value, json};
use tokio::process::Command;

use environment::{Environment, machine};

/// Runs the controller with one setting until it exits: its exit code and output.
async fn run(setting: (&str, &str)) -> (Option<i32>, String) {
    let path = Binary::Controller.path().await.unwrap();
    let output = Command::new(path)
        .env_clear()
        .env(setting.0, setting.1)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(wait::LIMIT, output).await;
    let output = output.unwrap().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn an_invalid_setting_ends_the_program_with_one_line_that_names_it() {
    for (name, value, reported) in [
        ("RECONCILE_INTERVAL", "30", "--reconcile-interval"),
        ("RECONCILE_INTERVAL", "10ms", "at least 1s"),
        (
            "MAX_CONCURRENT_RECONCILES",
            "0",
            "--max-concurrent-reconciles",
        ),
        ("METRICS_BIND_ADDRESS", "8080", "--metrics-bind-address"),
        (
            "HEALTH_PROBE_BIND_ADDRESS",
            ":port",
            "--health-probe-bind-address",
        ),
        ("LEADER_ELECTION", "maybe", "--leader-election"),
        ("NAMESPACE", "Not A Name", "--namespace"),
        ("LOG_FORMAT", "xml", "--log-format"),
        ("KUBECONFIG", "/does/not/exist", "/does/not/exist"),
    ] {
        let (code, text) = run((name, value)).await;
        assert_eq!(code, Some(2), "{name}={value}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{name}={value}: {text}");
        assert!(text.contains(reported), "{name}={value}: {text}");
    }
}

/// A port of the node that another program has: the pod's log then says which one.
#[tokio::test]
async fn a_port_that_is_taken_ends_either_program_with_a_line_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let configuration = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "users": [{"name": "c", "user": {}}],
    });
    std::fs::write(&kubeconfig, configuration.to_string()).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let of_webhook = ["--listen", "--admin-listen"];
    let of_controller = ["--health-probe-bind-address", "--metrics-bind-address"];
    for (binary, flags) in [
        (Binary::Webhook, of_webhook),
        (Binary::Controller, of_controller),
    ] {
        for flag in flags {
            let of_flag = |it: &&str| {
                if **it == *flag {
                    &*address
                } else {
                    "127.0.0.1:0"
                }
            };
            let arguments = flags.iter().flat_map(|it| [*it, of_flag(it)]);
            let mut program = Command::new(binary.path().await.unwrap());
            program.args(arguments).env("KUBECONFIG", &kubeconfig);
            let output = program.kill_on_drop(true).output();
            let output = tokio::time::timeout(wait::LIMIT, output).await;
            let output = output.unwrap().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert_eq!(output.status.code(), Some(1), "{flag}: {text}");
            let names_it = |line: &str| line.contains(&address) && line.contains("in use");
            assert!(text.lines().any(names_it), "{flag}: {text}");
        }
    }
}

async fn not_ready(controller: &mut ProgramUnderTest, why: &str) {
    let address = controller.health_address().await.unwrap();
    wait::until(&format!("/readyz to say {why:?}"), async || {
        let answer = http::get(address, "/readyz").await?;
        Ok(if answer.status == 500 && answer.text().contains(why) {
            Ok(())
        } else {
            Err((answer.status, answer.text()))
        })
    })
    .await
    .unwrap();
    let alive = http::get(address, "/healthz").await.unwrap();
    assert_eq!(alive.status, 200);
}

/// Starts the controller first, then the API server, then our CRDs, then the webhook, then KubeVirt.
#[tokio::test]
async fn programs_may_start_before_their_dependencies() {
    let options = Options {
        kubevirt: KubevirtCrds::Absent,
        ..Options::default()
    };
    let mut lab = Lab::with(options).await.unwrap();
    let mut controller = lab.start_controller(&[]).await.unwrap();
    controller.kill();
    let kubectl = lab.kubectl();
    let kinds = lab::paths::repository().join("manifests/crds");
    let allow = [
        "annotate",
        "-k",
        kinds.to_str().unwrap(),
        "vitistack.io/allow-deletion=true",
    ];
    kubectl.run(&allow).await.unwrap().ok().unwrap();
    let delete = ["delete", "-k", kinds.to_str().unwrap()];
    kubectl.run(&delete).await.unwrap().ok().unwrap();

    lab.stop_api_server();
    controller.start_again().unwrap();
    not_ready(&mut controller, "API server").await;
    // It can also be stopped while it waits.
    let status = controller.stop().await.unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(!controller.log().contains("did not end in time"));
    controller.start_again().unwrap();
    lab.start_api_server().await.unwrap();
    not_ready(&mut controller, "Machines").await;
    let apply = ["apply", "-k", kinds.to_str().unwrap()];
    kubectl.run(&apply).await.unwrap().ok().unwrap();
    controller.ready().await.unwrap();

    let _webhook = lab.webhook(&[]).await.unwrap();
    let machines = lab.objects(MACHINE, "default");
    let web = machine("web", &json!({"template": "small"}));
    lab.apply(&web).await.unwrap();
    let lacks = machines.until_condition("web", "VirtualMachineReady", "False", "KubeVirtApiError");
    lacks.await.unwrap();
    lab.install_kubevirt(KubevirtCrds::Thin).await.unwrap();
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();
}

#[tokio::test]
async fn the_controller_resumes_after_an_outage_of_the_api_server() {
    let mut env = Environment::new().await;
    env.barrier("before").await;
    env.lab.stop_api_server();
    // Until the Lease is lost, although no other replica can acquire it.
    wait::until("the controller to stop acting", async || {
        env.controller.process().check_alive()?;
        let log = env.controller.log();
        Ok(if log.contains("the Lease is lost") {
            Ok(())
        } else {
            Err(())
        })
    })
    .await
    .unwrap();
    env.lab.start_api_server().await.unwrap();
    env.controller.ready().await.unwrap();
    env.webhook.ready().await.unwrap();
    // The simulator is not under test here: start a new one.
    env.simulator = env.lab.simulator(Scenario::Happy).await.unwrap();
    env.barrier("after").await;
    env.machines().delete("before").await.unwrap();
    env.machines().until_gone("before").await.unwrap();
    env.controller.process().check_alive().unwrap();
}

#[tokio::test]
async fn a_second_replica_takes_over_from_a_killed_and_from_a_stopped_leader() {
    let mut env = Environment::new().await;
    env.barrier("first").await;
    let lease = env.lab.objects(LEASE, OPERATOR_NAMESPACE);
    let holder = async || {
        let lease = lease.get("kubevirt-operator").await.unwrap();
        lease["spec"]["holderIdentity"].clone()
    };
    let first = holder().await;
    let mut second = env.lab.controller(&[]).await.unwrap();
    assert_eq!(holder().await, first, "one acts");

    // Killed: the Lease has to expire.
    env.controller.kill();
    let spec = json!({"template": "small"});
    env.apply(&machine("second", &spec)).await;
    wait::until("the second to act", async || {
        let now = holder().await;
        Ok(if now == first { Err(now) } else { Ok(()) })
    })
    .await
    .unwrap();
    let machines = env.machines();
    machines.until_phase("second", "Running").await.unwrap();

    // Stopped: the Lease is released, and the other replica need not wait until it expires.
    env.controller.start_again().unwrap();
    env.controller.ready().await.unwrap();
    let status = second.stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", second.log());
    env.barrier("third").await;
    assert!(!second.log().contains("panicked"));

    let status = env.controller.stop().await.unwrap();
    assert_eq!(status.code(), Some(0));
    let reported = machines.get("third").await.unwrap();
    assert_eq!(condition(&reported, "Ready")["reason"], "Running");
}

/// The leader is disconnected from the API server, another replica is not.
#[tokio::test]
async fn a_leader_disconnected_from_the_api_server_stops_writing() {
    let mut lab = Lab::start().await.unwrap();
    let _webhook = lab.webhook(&[]).await.unwrap();
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let account = Binary::Controller.account();
    let client = lab.account_client(OPERATOR_NAMESPACE, account);
    let proxy = FaultProxy::transparent(client.await.unwrap())
        .await
        .unwrap();
    let kubeconfig = proxy.kubeconfig();
    let mut leader = lab.start_controller_at(&kubeconfig, &[]).await.unwrap();
    leader.ready().await.unwrap();
    let machines = lab.objects(MACHINE, "default");
    let spec = json!({"template": "small"});
    lab.apply(&machine("first", &spec)).await.unwrap();
    machines.until_phase("first", "Running").await.unwrap();
    let mut other = lab.controller(&[]).await.unwrap();

    let lease = lab.objects(LEASE, OPERATOR_NAMESPACE);
    let holder = async || {
        anyhow::Ok(lease.get("kubevirt-operator").await?["spec"]["holderIdentity"].clone())
    };
    let before = holder().await.unwrap();
    proxy.set_disconnected(true);
    wait::until("the other to act", async || {
        let now = holder().await?;
        Ok(if now == before { Err(now) } else { Ok(()) })
    })
    .await
    .unwrap();
    assert!(
        leader.log().contains("the Lease is lost"),
        "{}",
        leader.log()
    );

    // It can write again, but no longer holds the Lease.
    let written = proxy.writes();
    proxy.set_disconnected(false);
    leader.ready().await.unwrap();
    lab.apply(&machine("second", &spec)).await.unwrap();
    machines.until_phase("second", "Running").await.unwrap();
    machines.delete("first").await.unwrap();
    machines.until_gone("first").await.unwrap();
    assert_eq!(proxy.writes(), written);

    // The process still runs, and acts again after it acquires the Lease.
    other.stop().await.unwrap();
    machines.delete("second").await.unwrap();
    machines.until_gone("second").await.unwrap();
    assert_ne!(proxy.writes(), written);
    leader.process().check_alive().unwrap();
}

#[tokio::test]
async fn every_log_line_is_json_with_documented_fields() {
    let env = Environment::new().await;
    env.barrier("web").await;
    // The line is written after the status.
    let line = wait::until("the line of the log", async || {
        let log = env.controller.log();
        let is_line = |line: &Value| line["message"] == "the Machine is Running now";
        let mut lines = env.controller.log_lines().into_iter();
        Ok(lines.find(is_line).ok_or(log))
    });
    let line = line.await.unwrap();
    let log = env.controller.log();
    let is_json = |line: &str| serde_json::from_str::<Value>(line).is_ok();
    assert!(log.lines().all(is_json), "{log}");
    for (field, value) in [
        ("level", "info"),
        ("controller", "Machine"),
        ("machine", "web"),
        ("namespace", "default"),
        ("phase", "Running"),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
}
