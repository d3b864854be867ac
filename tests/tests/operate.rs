//! `docs/operate.md`: what it says of a day without the webhook, tried in that order.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    objects::{VM, condition},
    pages::{blocks, page},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// The commands and the quotation of the part about the webhook that is down.
fn told() -> (Vec<String>, String) {
    let page = page("operate").unwrap();
    let (_, part) = page.split_once("## Break the glass").unwrap();
    let (part, _) = part.split_once("\n## ").unwrap();
    let commands = blocks(part, "console").concat();
    let quotation = blocks(part, "text").concat();
    (
        commands.lines().map(str::to_owned).collect(),
        quotation.trim().to_owned(),
    )
}

fn strategy(vm: &Value) -> &str {
    vm["spec"]["runStrategy"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_guest_is_stopped_without_the_webhook_and_writes_get_through_when_they_must() {
    let (commands, quotation) = told();
    let [
        pause,
        halt,
        stop,
        go_on,
        ignore_mutating,
        ignore_validating,
        judge,
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
    assert!(refused.contains(&quotation), "{refused}");
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
    run(go_on).await;
    let let_go = machines
        .until("web", "to be acted on again", |machine| {
            condition(machine, "Paused").is_null()
        })
        .await
        .unwrap();
    assert_eq!(let_go["status"]["phase"], "Stopped");
    let vm = vms.get("web").await.unwrap();
    assert_eq!(strategy(&vm), "Halted", "the controller undid nothing");

    // Nobody judges: what is written gets through, and waits.
    assert!(env.webhook.stop().await.unwrap().success());
    run(ignore_mutating).await;
    run(ignore_validating).await;
    let start = r#"kubectl patch machine web --type=merge -p '{"spec":{"powerState":"Running"}}'"#;
    // The API server takes a moment to hear of the policy.
    wait::until("the change to be let in", async || {
        let told = kubectl.shell(start, &[]).await?;
        Ok(if told.code == 0 { Ok(()) } else { Err(told) })
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
    run(judge).await;
    machines.until_phase("web", "Running").await.unwrap();
}
