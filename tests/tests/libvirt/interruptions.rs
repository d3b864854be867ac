//! The daemon, QEMU and the controller are killed or frozen: there is never a second domain, and no volume is lost.

use lab::{objects::condition, wait};
use serde_json::json;

use crate::environment::{BOOT_LIMIT, Environment};

#[tokio::test]
async fn interruptions_lose_no_guest_and_no_volume() {
    let Some(mut env) = Environment::new().await else {
        return;
    };
    let monitor = env.monitor();
    a_controller_that_is_killed_between_placement_and_define(&mut env).await;
    a_daemon_that_is_killed(&mut env).await;
    a_daemon_that_does_not_answer(&mut env).await;
    a_guest_that_is_killed(&env).await;
    a_controller_that_is_killed_during_a_deletion(&mut env).await;
    assert_eq!(monitor.finish().unwrap(), [""; 0]);
}

/// While libvirt does not answer, the controller stores the placement and cannot define the domain.
async fn a_controller_that_is_killed_between_placement_and_define(env: &mut Environment) {
    env.libvirt.freeze().unwrap();
    env.apply("vm", &json!({})).await;
    env.until("vm", "to be placed", |it| it["status"]["host"] == "here")
        .await;
    env.controller.kill();
    env.libvirt.thaw().unwrap();
    env.controller.start_again().unwrap();
    // Killed again as soon as the domain is defined, whether or not it runs.
    let only = env.domain("vm").await;
    let all = || env.libvirt.virsh(&["list", "--all", "--name"]);
    wait::until_within(BOOT_LIMIT, "the domain to be defined", async || {
        let reported = all().await?.stdout;
        Ok(reported.contains(&only).then_some(()).ok_or(reported))
    })
    .await
    .unwrap();
    env.controller.kill();
    env.controller.start_again().unwrap();
    env.until_reachable("vm").await;
    assert_eq!(env.domains().await, [only].into());
    let first = env.until_report("vm", "its first boot", |_| true).await;
    assert_eq!(first.boots, 1, "it was started once");
}

/// Guests continue to run without their daemon, and the next daemon finds them.
async fn a_daemon_that_is_killed(env: &mut Environment) {
    let before = env.until_report("vm", "anything", |_| true).await;
    env.libvirt.kill();
    unknown(env).await;
    env.libvirt.start_again().await.unwrap();
    env.until_reachable("vm").await;
    let after = env.until_report("vm", "anything", |_| true).await;
    assert_eq!(after.boot, before.boot);
}

async fn a_daemon_that_does_not_answer(env: &mut Environment) {
    let before = env.until_report("vm", "anything", |_| true).await;
    env.libvirt.freeze().unwrap();
    unknown(env).await;
    // The deletion waits for the daemon, and the finalizer is kept.
    env.machines().delete("vm").await.unwrap();
    let finalizers = env.machines().get("vm").await.unwrap();
    let finalizers = &finalizers["metadata"]["finalizers"];
    assert_eq!(finalizers, &json!(["machine.vitistack.io/cleanup"]));
    env.libvirt.thaw().unwrap();
    env.until_gone("vm").await;
    assert!(env.domains().await.is_empty());
    assert!(env.files().is_empty(), "{:?}", env.files());
    assert_eq!(before.boots, 1);
}

/// Only QEMU is killed: the desired state is Running, so the guest is started again with the same disk.
async fn a_guest_that_is_killed(env: &Environment) {
    env.apply("killed", &json!({})).await;
    env.until_reachable("killed").await;
    let before = env
        .until_report("killed", "its first boot", |it| it.boots == 1)
        .await;
    let domain = env.domain("killed").await;
    env.libvirt.kill_guest(&domain).await.unwrap();
    let after = env
        .until_report("killed", "another boot", |it| it.boot != before.boot)
        .await;
    assert_eq!(after.boots, 2);
    assert_eq!(env.domains().await, [domain].into());
}

/// At whatever point of a deletion the controller is killed, the next one completes the deletion.
async fn a_controller_that_is_killed_during_a_deletion(env: &mut Environment) {
    env.machines().delete("killed").await.unwrap();
    let domain = env.domain("killed").await;
    env.until_off(&domain).await;
    env.controller.kill();
    env.controller.start_again().unwrap();
    env.until_gone("killed").await;
    assert!(env.domains().await.is_empty());
    assert!(env.files().is_empty(), "{:?}", env.files());
}

/// Waits until Ready is Unknown, while the rest of the status keeps the last observed values.
async fn unknown(env: &Environment) {
    let machine = env
        .until("vm", "to report Unknown", |it| {
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
