//! The commands of `docs/operate.md` for an outage of the webhook, run in the order of the page.

mod environment;

use lab::{
    objects::{VM, condition},
    pages::{Quotes, blocks, page, section},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// The heading of the section that this test follows.
const SECTION: &str = "When the webhook is down";

fn strategy(vm: &Value) -> &str {
    vm["spec"]["runStrategy"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn without_the_webhook_a_guest_can_be_stopped_and_writes_can_pass_unvalidated() {
    let page = page("operate").unwrap();
    let part = section(&page, SECTION).unwrap();
    let mut quotes = Quotes::of(part);
    let commands = blocks(part, "console").concat();
    let commands: Vec<_> = commands.lines().collect();
    let [
        pause,
        halt,
        stop,
        unpause,
        ignore_mutating,
        ignore_validating,
        refresh,
    ] = &commands[..]
    else {
        panic!("{commands:#?}");
    };
    let mut env = Environment::new().await;
    let kubectl = env.lab.kubectl();
    let run = async |command: &str| kubectl.shell(command, &[]).await.unwrap().ok().unwrap();
    let (machines, vms) = (env.machines(), env.objects(VM));
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.until_phase("web", "Running").await.unwrap();

    assert!(env.webhook.stop().await.unwrap().success());
    let refused = kubectl.shell(stop, &[]).await.unwrap().refused().unwrap();
    quotes.produced(&refused).unwrap();
    quotes.finish().unwrap();
    run(pause).await;
    machines
        .until_condition("web", "Paused", "True", "Paused")
        .await
        .unwrap();
    run(halt).await;
    machines.until_phase("web", "Stopped").await.unwrap();

    env.webhook.start_again().unwrap();
    env.webhook.ready().await.unwrap();
    run(stop).await;
    run(unpause).await;
    let unpaused = machines
        .until("web", "to be reconciled again", |machine| {
            condition(machine, "Paused").is_null()
        })
        .await
        .unwrap();
    assert_eq!(unpaused["status"]["phase"], "Stopped");
    let vm = vms.get("web").await.unwrap();
    assert_eq!(strategy(&vm), "Halted", "the controller reverts nothing");

    // Without validation the spec is stored, but its block is of the former spec.
    assert!(env.webhook.stop().await.unwrap().success());
    run(ignore_mutating).await;
    run(ignore_validating).await;
    let start = r#"kubectl patch machine web --type=merge -p '{"spec":{"powerState":"Running"}}'"#;
    // The API server applies the changed failure policy after a moment.
    wait::until("the change to be accepted", async || {
        let output = kubectl.shell(start, &[]).await?;
        Ok(output.ok())
    })
    .await
    .unwrap();
    machines
        .until_condition("web", "Normalized", "False", "Stale")
        .await
        .unwrap();
    let vm = vms.get("web").await.unwrap();
    assert_eq!(strategy(&vm), "Halted");
    env.webhook.start_again().unwrap();
    env.webhook.ready().await.unwrap();
    run(refresh).await;
    machines.until_phase("web", "Running").await.unwrap();
}
