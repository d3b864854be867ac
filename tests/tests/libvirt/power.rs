//! A guest that shuts itself down, one that another client switches off, and one that is reset.

use lab::objects::{EVENT, condition};
use serde_json::json;

use crate::environment::Environment;

#[tokio::test]
async fn a_guest_that_shut_down_starts_again_unless_guest_shutdown_stops_is_set() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let ends = "#cloud-config\n# lab: power off at the first boot\n";
    for (name, stops) in [("again", false), ("stays", true)] {
        let spec = json!({"guestShutdownStops": stops, "cloudInit": {"userData": ends}});
        env.apply(name, &spec).await;
    }
    let stays = env
        .until("stays", "to be off", |it| {
            it["status"]["phase"] == "Stopped"
        })
        .await;
    assert_eq!(
        stays["spec"].get("powerState"),
        None,
        "the desired state is the user's"
    );
    let again = env
        .until_report("again", "its second boot", |it| it.boots == 2)
        .await;
    assert_eq!(again.user_data, ends);
    env.until("again", "to run", |it| it["status"]["phase"] == "Running")
        .await;

    // Stopped by the spec, then started by the spec.
    for power in ["Stopped", "Running"] {
        let spec = json!({
            "guestShutdownStops": true, "cloudInit": {"userData": ends}, "powerState": power,
        });
        env.apply("stays", &spec).await;
        let generation =
            env.machines().get("stays").await.unwrap()["metadata"]["generation"].clone();
        env.until("stays", "to be seen", |it| {
            it["status"]["observedGeneration"] == generation
        })
        .await;
    }
    let report = env
        .until_report("stays", "its second boot", |it| it.boots == 2)
        .await;
    assert_eq!(report.user_data, ends);
}

/// Unlike a reboot, `virsh destroy` is reported: by an event, whose message says what to write instead.
#[tokio::test]
async fn a_guest_that_virsh_switches_off_is_reported_and_started_again() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("web", &json!({})).await;
    env.until_booted("web").await;
    let domain = env.domain("web").await;
    env.virsh(&["destroy", &domain]).await;
    let events = env.lab.objects(EVENT, "default");
    let reported = events.until_event("web", "ForeignStop", "").await;
    let note = reported.unwrap()["note"].to_string();
    for part in ["virsh destroy", "started again", "spec.powerState"] {
        assert!(note.contains(part), "{note}");
    }
    env.until_report("web", "its second boot", |it| it.boots == 2)
        .await;
    env.until("web", "to run", |it| {
        condition(it, "Ready")["reason"] == "Running"
    })
    .await;
}

#[tokio::test]
async fn a_guest_boots_again_when_it_is_reset_and_its_domain_stays() {
    let Some(env) = Environment::new().await else {
        return;
    };
    env.apply("hangs", &json!({})).await;
    env.until_booted("hangs").await;
    let domain = env.domain("hangs").await;
    let before = env.virsh(&["domid", &domain]).await;
    let annotation = json!({"machine.vitistack.io/reset-requested": "now"});
    let patch = json!({"metadata": {"annotations": annotation}});
    env.machines().merge("hangs", &patch).await.unwrap();
    let reset = env.until("hangs", "to be reset", |it| {
        it["status"]["lastReset"] == json!({"request": "now", "result": "Done"})
    });
    reset.await;
    env.until_report("hangs", "its second boot", |it| it.boots == 2)
        .await;
    assert_eq!(env.virsh(&["domid", &domain]).await, before);
}
