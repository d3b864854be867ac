//! Two releases at once, one of which writes another version of the block: in whatever order the API server calls
//! them, no write is refused, and no stored block is rewritten.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use common::api::normalized::BLOCK_VERSION;
use lab::{
    Binary, Lab, Options, Scenario,
    objects::{MACHINE, Objects, condition},
    reviews::machine,
    wait,
};
use serde_json::{Value, json};

fn block(machine: &Value) -> &Value {
    &machine["spec"]["normalized"]
}

/// The block of a Machine after a write that must be accepted.
async fn merged(machines: &Objects, name: &str, patch: Value) -> Value {
    machines.merge(name, &patch).await.unwrap();
    machines.get(name).await.unwrap()
}

#[tokio::test]
async fn two_releases_serve_side_by_side_without_refusals_or_rewrites() {
    let mut lab = Lab::with(Options::default()).await.unwrap();
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let this = lab.webhook_address().port();
    let machines = lab.objects(MACHINE, "default");
    let spec = json!({"template": "small"});
    lab.apply(&machine("before", &spec)).await.unwrap();
    let before = machines.get("before").await.unwrap();

    // The controller is upgraded first: that of the next release reads the blocks of both.
    let mut controller = lab.start_next(Binary::Controller).await.unwrap();
    controller.ready().await.unwrap();
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let mut next_webhook = lab.start_next(Binary::Webhook).await.unwrap();
    next_webhook.ready().await.unwrap();
    let next = next_webhook.address("listen").await.unwrap().port();

    for (round, (mutating, validating)) in [(this, next), (next, this), (next, next), (this, this)]
        .into_iter()
        .enumerate()
    {
        lab.register_webhooks_at(mutating, validating)
            .await
            .unwrap();
        let (version, bus) = if mutating == next {
            (BLOCK_VERSION + 1, "scsi")
        } else {
            (BLOCK_VERSION, "virtio")
        };
        let name = format!("web-{round}");
        // The API server applies the new address after a moment.
        wait::until("the release that was registered to answer", async || {
            let probe = machine(&name, &spec);
            lab.apply(&probe).await?;
            let stored = machines.get(&name).await?;
            if block(&stored)["version"] == version {
                return Ok(Ok(()));
            }
            machines.delete(&name).await?;
            machines.until_gone(&name).await?;
            Ok(Err(block(&stored)["version"].clone()))
        })
        .await
        .unwrap();
        let made = machines.get(&name).await.unwrap();
        assert_eq!(block(&made)["disks"][0]["bus"], bus);

        // An unchanged Machine keeps its block, whichever release reviews it.
        for (old, name) in [(&before, "before"), (&made, name.as_str())] {
            lab.apply(&machine(name, &spec)).await.unwrap();
            let labelled =
                json!({"metadata": {"labels": {"vitistack.io/round": round.to_string()}}});
            let again = merged(&machines, name, labelled).await;
            assert_eq!(block(&again), block(old), "{mutating} {validating}");
            // The object with its block and an annotation without a meaning to the webhook.
            let refresh = json!({"machine.vitistack.io/refresh-template": ""});
            let patch = json!({"metadata": {"annotations": refresh}, "spec": again["spec"]});
            assert_eq!(block(&merged(&machines, name, patch).await), block(old));
        }

        // A changed Machine gets a block of the reviewing release, with the template that the old block has.
        let other = format!("changed-{round}");
        lab.apply(&machine(&other, &spec)).await.unwrap();
        for (mutating, validating, version) in [
            (this, next, BLOCK_VERSION),
            (next, this, BLOCK_VERSION + 1),
            (this, next, BLOCK_VERSION),
        ] {
            lab.register_webhooks_at(mutating, validating)
                .await
                .unwrap();
            let mut cores = 1;
            let stored = wait::until("a change to be written", async || {
                cores = cores % 8 + 1;
                let patch = json!({"spec": {"resources": {"cpu": {"cores": cores}}}});
                machines.merge(&other, &patch).await?;
                let stored = machines.get(&other).await?;
                let written = block(&stored)["version"] == version;
                Ok(if written { Ok(stored) } else { Err(version) })
            })
            .await
            .unwrap();
            assert_eq!(block(&stored)["cpu"]["cores"], cores);
            assert_eq!(block(&stored)["template"], block(&before)["template"]);
        }
    }

    // The controller accepts the blocks of both releases.
    for stored in machines.list().await.unwrap() {
        let name = stored["metadata"]["name"].as_str().unwrap();
        let running = machines.until_phase(name, "Running").await.unwrap();
        assert_eq!(
            condition(&running, "Normalized")["status"],
            "True",
            "{name}"
        );
    }
    assert!(webhook.stop().await.unwrap().success());
}
