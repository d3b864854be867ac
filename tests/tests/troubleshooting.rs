//! The situations of `docs/troubleshooting.md`: the test produces each of them and compares its
//! message with the page.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    KubevirtCrds, Options, Scenario,
    objects::condition,
    pages::{Quotes, page},
};
use serde_json::{Value, json};

use environment::{Environment, machine, named};

/// Waits until a condition of a Machine has a reason and a message that the page quotes. The first
/// message may lack the text of an object that is observed a moment later.
async fn reports(quotes: &mut Quotes, env: &Environment, name: &str, kind: &str, reason: &str) {
    let quote = |machine: &Value| {
        let message = &condition(machine, kind)["message"];
        format!("{reason}: {}\n", message.as_str().unwrap_or_default())
    };
    let what = format!("to have {kind}=False, reason {reason}, with a message of the page");
    let machines = env.machines();
    let reported = machines.until(name, &what, |machine| {
        let condition = condition(machine, kind);
        let matches = condition["status"] == "False" && condition["reason"] == reason;
        matches && quotes.contain(&quote(machine))
    });
    let reported = reported.await.unwrap();
    quotes.produced(&quote(&reported)).unwrap();
}

#[tokio::test]
async fn every_situation_of_the_page_reports_the_quoted_message() {
    let mut quotes = Quotes::of(&page("troubleshooting").unwrap());
    let options = Options {
        kubevirt: KubevirtCrds::Absent,
        multus: false,
        ..Options::default()
    };
    let mut env = Environment::with(options, &[]).await;
    let machines = env.machines();
    let small = json!({"template": "small"});

    env.apply(&machine("web", &small)).await;
    reports(
        &mut quotes,
        &env,
        "web",
        "VirtualMachineReady",
        "KubeVirtApiError",
    )
    .await;
    let kubevirt = env.lab.install_kubevirt(KubevirtCrds::Thin);
    kubevirt.await.unwrap();
    env.simulator = env.lab.simulator(Scenario::Happy).await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();

    let script = Scenario::Unschedulable;
    env.simulator.set("default", "big", script);
    env.apply(&machine("big", &small)).await;
    reports(&mut quotes, &env, "big", "Ready", "InsufficientResources").await;
    let big = machines.get("big").await.unwrap();
    assert_eq!(big["status"]["phase"], "Creating");

    env.simulator.set("default", "full", Scenario::PvcPending);
    env.apply(&machine("full", &small)).await;
    reports(&mut quotes, &env, "full", "StorageReady", "PVCPending").await;

    env.machine_without_class("class").await;
    reports(
        &mut quotes,
        &env,
        "class",
        "StorageReady",
        "StorageClassNotFound",
    )
    .await;

    let eth0 = json!({"name": "eth0", "networkName": "prod"});
    let spec = json!({"template": "small", "networks": [eth0]});
    env.apply(&machine("lost", &spec)).await;
    let reason = "NetworkConfigurationNotFound";
    reports(&mut quotes, &env, "lost", "NetworkReady", reason).await;
    let bridge = json!({"bridge": "br0"});
    let network = named(
        "vitistack.io/v1alpha1",
        "NetworkConfiguration",
        "prod",
        &bridge,
    );
    env.apply(&network).await;
    reports(&mut quotes, &env, "lost", "NetworkReady", "NetworkFailed").await;

    let typo = machine("typo", &json!({"template": "smal"})).to_string();
    let kubectl = env.lab.kubectl();
    let refused = kubectl.run_with(&["apply", "-f", "-"], typo).await.unwrap();
    assert_eq!(refused.code, 1, "{refused}");
    quotes.produced(&refused.stderr).unwrap();
    quotes.finish().unwrap();
}
