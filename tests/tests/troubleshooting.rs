//! The situations of `docs/troubleshooting.md`: each is produced, and tells what the page says it
//! tells, word for word.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    KubevirtCrds, Options, Scenario,
    objects::condition,
    pages::{blocks, page},
};
use serde_json::{Value, json};

use environment::{Environment, machine, named};

/// What the page has that was not told yet.
struct Page {
    blocks: Vec<String>,
}

impl Page {
    fn read() -> Self {
        Self {
            blocks: blocks(&page("troubleshooting").unwrap(), "text"),
        }
    }

    /// Takes what was told off the page.
    fn has(&mut self, told: &str) {
        let before = self.blocks.len();
        self.blocks.retain(|block| block != told);
        assert!(self.blocks.len() < before, "the page does not have: {told}");
    }

    /// Waits until a Machine tells of a fault as the page does. What it tells first may lack the words
    /// of an object that is seen a moment later.
    async fn tells(&mut self, env: &Environment, name: &str, kind: &str, reason: &str) {
        let text = |machine: &Value| {
            let message = &condition(machine, kind)["message"];
            format!("{reason}: {}\n", message.as_str().unwrap_or_default())
        };
        let what = format!("to have {kind}=False, reason {reason}, in words of the page");
        let machines = env.machines();
        let told = machines.until(name, &what, |machine| {
            let condition = condition(machine, kind);
            let is_told = condition["status"] == "False" && condition["reason"] == reason;
            is_told && self.blocks.contains(&text(machine))
        });
        let told = told.await.unwrap();
        self.has(&text(&told));
    }
}

#[tokio::test]
async fn every_situation_tells_what_to_do() {
    let mut page = Page::read();
    let options = Options {
        kubevirt: KubevirtCrds::Absent,
        multus: false,
        ..Options::default()
    };
    let mut env = Environment::with(options, &[]).await;
    let machines = env.machines();
    let small = json!({"template": "small"});

    env.apply(&machine("web", &small)).await;
    page.tells(&env, "web", "VirtualMachineReady", "KubeVirtApiError")
        .await;
    let kubevirt = env.lab.install_kubevirt(KubevirtCrds::Thin);
    kubevirt.await.unwrap();
    env.simulator = env.lab.simulator(Scenario::Happy).await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();

    let scenario = Scenario::Unschedulable;
    env.simulator.set("default", "big", scenario);
    env.apply(&machine("big", &small)).await;
    page.tells(&env, "big", "Ready", "InsufficientResources")
        .await;
    let big = machines.get("big").await.unwrap();
    assert_eq!(big["status"]["phase"], "Creating");

    env.simulator.set("default", "full", Scenario::PvcPending);
    env.apply(&machine("full", &small)).await;
    page.tells(&env, "full", "StorageReady", "PVCPending").await;

    env.machine_without_class("class").await;
    page.tells(&env, "class", "StorageReady", "StorageClassNotFound")
        .await;

    let eth0 = json!({"name": "eth0", "networkName": "prod"});
    let spec = json!({"template": "small", "networks": [eth0]});
    env.apply(&machine("lost", &spec)).await;
    let reason = "NetworkConfigurationNotFound";
    page.tells(&env, "lost", "NetworkReady", reason).await;
    let bridge = json!({"bridge": "br0"});
    let network = named(
        "vitistack.io/v1alpha1",
        "NetworkConfiguration",
        "prod",
        &bridge,
    );
    env.apply(&network).await;
    page.tells(&env, "lost", "NetworkReady", "NetworkFailed")
        .await;

    let typo = machine("typo", &json!({"template": "smal"})).to_string();
    let kubectl = env.lab.kubectl();
    let refused = kubectl.run_with(&["apply", "-f", "-"], typo).await.unwrap();
    assert_eq!(refused.code, 1, "{refused}");
    page.has(&refused.stderr);

    assert_eq!(page.blocks, Vec::<String>::new(), "produced by nobody");
}
