//! What ends or stops in the middle: the daemon, QEMU, the controller. Never a second domain, never a lost volume.

use std::time::Duration;

use lab::{objects::condition, wait};
use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn interruptions_cost_no_guest_and_no_volume() {
    let Some(mut stage) = Stage::new().await else {
        return;
    };
    a_controller_that_dies_between_placement_and_define(&mut stage).await;
    a_daemon_that_is_killed(&mut stage).await;
    a_daemon_that_hangs(&mut stage).await;
    a_guest_that_is_killed(&stage).await;
    a_controller_that_dies_while_it_deletes(&mut stage).await;
}

/// While libvirt hangs the controller gets as far as the placement and no further.
async fn a_controller_that_dies_between_placement_and_define(stage: &mut Stage) {
    stage.libvirt.freeze().unwrap();
    stage.apply("vm", &json!({})).await;
    stage
        .until("vm", "to be placed", |it| it["status"]["host"] == "here")
        .await;
    stage.controller.kill();
    stage.libvirt.thaw().unwrap();
    stage.controller.start_again().unwrap();
    // And once more as soon as there is a domain, whether it runs by then or not.
    let only = stage.domain("vm").await;
    let all = || stage.libvirt.virsh(&["list", "--all", "--name"]);
    wait::until_within(
        Duration::from_mins(1),
        "the domain to be defined",
        async || {
            let told = all().await?.stdout;
            Ok(told.contains(&only).then_some(()).ok_or(told))
        },
    )
    .await
    .unwrap();
    stage.controller.kill();
    stage.controller.start_again().unwrap();
    stage.reachable("vm").await;
    assert_eq!(stage.domains().await, [only].into());
    let first = stage.tells("vm", "its first boot", |_| true).await;
    assert_eq!(first.boots, 1, "it was started once");
}

/// Guests go on without their daemon, and are found by the next.
async fn a_daemon_that_is_killed(stage: &mut Stage) {
    let before = stage.tells("vm", "anything", |_| true).await;
    stage.libvirt.kill();
    unknown(stage).await;
    stage.libvirt.start_again().await.unwrap();
    stage.reachable("vm").await;
    let after = stage.tells("vm", "anything", |_| true).await;
    assert_eq!(after.boot, before.boot);
}

async fn a_daemon_that_hangs(stage: &mut Stage) {
    let before = stage.tells("vm", "anything", |_| true).await;
    stage.libvirt.freeze().unwrap();
    unknown(stage).await;
    // A deletion waits for it, and does not forget what is there.
    stage.machines().delete("vm").await.unwrap();
    let finalizers = stage.machines().get("vm").await.unwrap();
    let finalizers = &finalizers["metadata"]["finalizers"];
    assert_eq!(finalizers, &json!(["machine.vitistack.io/cleanup"]));
    stage.libvirt.thaw().unwrap();
    wait::until_within(Duration::from_mins(2), "vm to be gone", async || {
        Ok(stage
            .machines()
            .find("vm")
            .await?
            .map_or(Ok(()), |it| Err(it["status"].to_string())))
    })
    .await
    .unwrap();
    assert!(stage.domains().await.is_empty());
    assert!(stage.files().is_empty(), "{:?}", stage.files());
    assert_eq!(before.boots, 1);
}

/// QEMU alone is gone: the guest was to run, so it is started again, with the disk it had.
async fn a_guest_that_is_killed(stage: &Stage) {
    stage.apply("killed", &json!({})).await;
    stage.reachable("killed").await;
    let before = stage
        .tells("killed", "its first boot", |it| it.boots == 1)
        .await;
    let domain = stage.domain("killed").await;
    stage.libvirt.kill_guest(&domain).await.unwrap();
    let after = stage
        .tells("killed", "another boot", |it| it.boot != before.boot)
        .await;
    assert_eq!(after.boots, 2);
    assert_eq!(stage.domains().await, [domain].into());
}

/// Whenever it dies on the way from a running guest to nothing, the next one finishes it.
async fn a_controller_that_dies_while_it_deletes(stage: &mut Stage) {
    stage.machines().delete("killed").await.unwrap();
    let domain = stage.domain("killed").await;
    wait::until_within(Duration::from_mins(2), "the guest to be off", async || {
        let told = stage.libvirt.virsh(&["domstate", &domain]).await?;
        // Undefined already: then what is left are its volumes.
        Ok((told.code != 0 || told.stdout.trim() == "shut off")
            .then_some(())
            .ok_or(told.stdout))
    })
    .await
    .unwrap();
    stage.controller.kill();
    stage.controller.start_again().unwrap();
    wait::until_within(
        Duration::from_mins(2),
        "the Machine to be gone",
        async || {
            Ok(stage
                .machines()
                .find("killed")
                .await?
                .map_or(Ok(()), |it| Err(it["status"].to_string())))
        },
    )
    .await
    .unwrap();
    assert!(stage.domains().await.is_empty());
    assert!(stage.files().is_empty(), "{:?}", stage.files());
}

/// Waits until the Machine says that nobody knows, and that what was known last still stands.
async fn unknown(stage: &Stage) {
    let machine = stage
        .until("vm", "to say Unknown", |it| {
            condition(it, "Ready")["status"] == "Unknown"
        })
        .await;
    assert_eq!(machine["status"]["phase"], "Running");
    assert_eq!(machine["status"]["host"], "here");
    assert!(
        machine["status"]["ipAddresses"].get(0).is_some(),
        "{}",
        machine["status"]
    );
}
