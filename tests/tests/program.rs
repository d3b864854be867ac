//! machine-controller as a program: its settings, its start in any order, its end, its replicas.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod stage;

use std::{process::Stdio, time::Duration};

use lab::{
    Binary, KubevirtCrds, Lab, OPERATOR_NAMESPACE, Options, Script, Shipped, http,
    objects::{LEASE, MACHINE, condition},
    saboteur::Saboteur,
    wait,
};
use serde_json::json;
use tokio::process::Command;

use stage::{Stage, machine};

/// What the design promises: a second replica acts after so long at most.
const TAKEOVER: Duration = Duration::from_secs(15);

/// Runs it with one setting to its end.
async fn run(setting: (&str, &str)) -> (Option<i32>, String) {
    let path = Binary::Controller.path().await.unwrap();
    let output = Command::new(path)
        .env_clear()
        .env(setting.0, setting.1)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(wait::PATIENCE, output).await;
    let output = output.unwrap().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn a_wrong_setting_ends_the_start_with_one_clear_line() {
    for (name, value, told) in [
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
        assert!(text.contains(told), "{name}={value}: {text}");
    }
}

async fn not_ready(controller: &mut Shipped, why: &str) {
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

/// The controller first, then the API server, then our kinds, then the webhook, then KubeVirt.
#[tokio::test]
async fn programs_start_in_any_order() {
    let options = Options {
        kubevirt: KubevirtCrds::Absent,
        ..Options::default()
    };
    let mut lab = Lab::with(options).await.unwrap();
    let mut controller = lab.start_controller(&[]).await.unwrap();
    controller.kill();
    let kubectl = lab.kubectl();
    let kinds = lab::paths::repository().join("manifests/crds");
    let delete = ["delete", "-k", kinds.to_str().unwrap()];
    kubectl.run(&delete).await.unwrap().ok().unwrap();

    lab.stop_api_server();
    controller.start_again().unwrap();
    not_ready(&mut controller, "API server").await;
    // It can be ended while it waits, too.
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
    let lacks = machines.told("web", "VirtualMachineReady", "False", "KubeVirtApiError");
    lacks.await.unwrap();
    lab.install_kubevirt(KubevirtCrds::Thin).await.unwrap();
    let _simulator = lab.simulator(Script::Happy).await.unwrap();
    machines.in_phase("web", "Running").await.unwrap();
}

#[tokio::test]
async fn an_api_server_that_was_away_is_survived() {
    let mut stage = Stage::new().await;
    stage.barrier("before").await;
    stage.lab.stop_api_server();
    // Long enough to lose the Lease, which nobody else can take.
    wait::until("the controller to stop acting", async || {
        stage.controller.process().check_alive()?;
        let log = stage.controller.log();
        Ok(if log.contains("the Lease is lost") {
            Ok(())
        } else {
            Err(())
        })
    })
    .await
    .unwrap();
    stage.lab.start_api_server().await.unwrap();
    stage.controller.ready().await.unwrap();
    stage.webhook.ready().await.unwrap();
    // KubeVirt's part is not what is tried here: its stand-in begins anew.
    stage.simulator = stage.lab.simulator(Script::Happy).await.unwrap();
    stage.barrier("after").await;
    stage.machines().delete("before").await.unwrap();
    stage.machines().gone("before").await.unwrap();
    stage.controller.process().check_alive().unwrap();
}

#[tokio::test]
async fn another_replica_takes_over_and_an_end_is_clean() {
    let mut stage = Stage::new().await;
    stage.barrier("first").await;
    let lease = stage.lab.objects(LEASE, OPERATOR_NAMESPACE);
    let holder = async || {
        let lease = lease.get("kubevirt-operator").await.unwrap();
        lease["spec"]["holderIdentity"].clone()
    };
    let first = holder().await;
    let mut second = stage.lab.controller(&[]).await.unwrap();
    assert_eq!(holder().await, first, "one acts");

    // Killed: the Lease has to run out.
    stage.controller.kill();
    let spec = json!({"template": "small"});
    stage.apply(&machine("second", &spec)).await;
    wait::until_within(TAKEOVER, "the second to act", async || {
        let now = holder().await;
        Ok(if now == first { Err(now) } else { Ok(()) })
    })
    .await
    .unwrap();
    let machines = stage.machines();
    machines.in_phase("second", "Running").await.unwrap();

    // Ended: the Lease is given back, and nobody has to wait for it.
    stage.controller.start_again().unwrap();
    stage.controller.ready().await.unwrap();
    let status = second.stop().await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", second.log());
    stage.barrier("third").await;
    assert!(!second.log().contains("panicked"));

    let status = stage.controller.stop().await.unwrap();
    assert_eq!(status.code(), Some(0));
    let told = machines.get("third").await.unwrap();
    assert_eq!(condition(&told, "Ready")["reason"], "Running");
}

/// The leader cannot reach the API server, and somebody else can.
#[tokio::test]
async fn a_leader_that_is_cut_off_writes_no_more() {
    let mut lab = Lab::start().await.unwrap();
    let _webhook = lab.webhook(&[]).await.unwrap();
    let _simulator = lab.simulator(Script::Happy).await.unwrap();
    let account = Binary::Controller.account();
    let client = lab.account_client(OPERATOR_NAMESPACE, account);
    let way = Saboteur::open(client.await.unwrap()).await.unwrap();
    let kubeconfig = way.kubeconfig();
    let mut leader = lab.start_controller_at(&kubeconfig, &[]).await.unwrap();
    leader.ready().await.unwrap();
    let machines = lab.objects(MACHINE, "default");
    let spec = json!({"template": "small"});
    lab.apply(&machine("first", &spec)).await.unwrap();
    machines.in_phase("first", "Running").await.unwrap();
    let mut other = lab.controller(&[]).await.unwrap();

    let lease = lab.objects(LEASE, OPERATOR_NAMESPACE);
    let holder = async || {
        anyhow::Ok(lease.get("kubevirt-operator").await?["spec"]["holderIdentity"].clone())
    };
    let before = holder().await.unwrap();
    way.cut(true);
    wait::until_within(TAKEOVER, "the other to act", async || {
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

    // It can write again, and knows that it may not.
    let written = way.writes();
    way.cut(false);
    leader.ready().await.unwrap();
    lab.apply(&machine("second", &spec)).await.unwrap();
    machines.in_phase("second", "Running").await.unwrap();
    machines.delete("first").await.unwrap();
    machines.gone("first").await.unwrap();
    assert_eq!(way.writes(), written);

    // It is still there, and acts when it is its turn.
    other.stop().await.unwrap();
    machines.delete("second").await.unwrap();
    machines.gone("second").await.unwrap();
    assert_ne!(way.writes(), written);
    leader.process().check_alive().unwrap();
}

/// The lines are JSON, with the fields the reference names.
#[tokio::test]
async fn the_log_is_for_machines_too() {
    let stage = Stage::new().await;
    stage.barrier("web").await;
    let log = stage.controller.log();
    let lines = stage.controller.log_lines();
    assert_eq!(lines.len(), log.lines().count(), "{log}");
    let line = lines
        .iter()
        .find(|line| line["message"] == "the Machine is Running now");
    let line = line.unwrap();
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
