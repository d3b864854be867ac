//! A fleet that does not change causes no reads and no writes.

mod environment;

use std::time::Duration;

use anyhow::Result;
use lab::{Binary, Options, ProgramUnderTest, wait};
use serde_json::json;

use environment::{Environment, machine, summaries};

const MACHINES: usize = 200;
/// Machines that wait for a network that does not exist.
const WAITING: usize = 50;
/// Limit of the time until all Machines run, on two busy cores.
const ALL_RUN: Duration = Duration::from_mins(10);

#[tokio::test]
async fn a_restart_with_two_hundred_machines_writes_nothing() {
    // Each Machine would be reconciled each second if that were still done for Machines with nothing to do.
    let settings = [("RECONCILE_INTERVAL", "1s")];
    let mut env = Environment::with(Options::default(), &settings).await;
    let spec = json!({"template": "small", "guestShutdownStops": true});
    env.fleet(MACHINES, &spec).await;
    let cards = json!([{"name": "eth0", "networkName": "missing"}]);
    for number in 0..WAITING {
        let spec = json!({"template": "small", "networks": cards});
        env.apply(&machine(&format!("waits-{number}"), &spec)).await;
    }
    let machines = env.machines();
    wait::until_within(ALL_RUN, "all Machines to run", async || {
        let all = machines.list().await?;
        let running = all
            .iter()
            .filter(|machine| machine["status"]["phase"] == "Running");
        let running = running.count();
        Ok(if running == MACHINES {
            Ok(())
        } else {
            Err(running)
        })
    })
    .await
    .unwrap();
    env.barrier("before").await;

    let status = env.controller.stop().await.unwrap();
    assert_eq!(status.code(), Some(0));
    let before = env.lab.log_position().await.unwrap();
    env.controller.start_again().unwrap();
    env.controller.ready().await.unwrap();
    wait::until("a pass over every Machine", async || {
        let passes = passes(&mut env.controller).await?;
        Ok(if passes >= MACHINES + WAITING {
            Ok(())
        } else {
            Err(passes)
        })
    })
    .await
    .unwrap();
    let events = env.lab.requests_since(before).await.unwrap();
    let controller = Binary::Controller.user();
    let by_controller: Vec<_> = events
        .into_iter()
        .filter(|event| event.user == controller && !event.is_lease())
        .collect();
    let written: Vec<_> = by_controller.iter().filter(|event| event.wrote()).collect();
    assert!(written.is_empty(), "{written:#?}");
    // A list in pages of eight and a watch per kind, of pods as of the others, and the identity of the cluster: no single
    // object is read. With twenty kinds these are fifty requests, and the further pages of the kinds of which each Machine
    // has one object: Machines, VirtualMachines, instances, claims and pods.
    let pages = 5 * (MACHINES + WAITING).div_ceil(8);
    assert!(
        by_controller.len() < 60 + pages,
        "{:#?}",
        summaries(&by_controller)
    );

    // The controller still reacts to events, but makes no further pass over the others, ready or waiting.
    env.barrier("after").await;
    let passes = passes(&mut env.controller).await.unwrap();
    assert!(passes < (MACHINES + WAITING) * 3 / 2, "{passes} passes");
}

/// Passes since the start of the controller.
async fn passes(controller: &mut ProgramUnderTest) -> Result<usize> {
    const COUNT: &str =
        r#"kubevirt_operator_reconciliation_duration_seconds_count{controller="Machine"} "#;
    let text = controller.metrics().await?;
    let count = text.lines().find_map(|line| line.strip_prefix(COUNT));
    Ok(count.map_or(Ok(0), str::parse)?)
}
