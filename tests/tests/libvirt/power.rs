//! A guest that shuts itself down.

use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn a_guest_that_shuts_down_starts_again_or_stays_off() {
    let Some(stage) = Stage::new().await else {
        return;
    };
    let ends = "#cloud-config\n# lab: power off at the first boot\n";
    for (name, stops) in [("again", false), ("stays", true)] {
        let spec = json!({"guestShutdownStops": stops, "cloudInit": {"userData": ends}});
        stage.apply(name, &spec).await;
    }
    let stays = stage
        .until("stays", "to be off", |it| {
            it["status"]["phase"] == "Stopped"
        })
        .await;
    assert_eq!(
        stays["spec"].get("powerState"),
        None,
        "the wish is the user's"
    );
    let again = stage
        .tells("again", "its second boot", |it| it.boots == 2)
        .await;
    assert_eq!(again.user_data, ends);
    stage
        .until("again", "to run", |it| it["status"]["phase"] == "Running")
        .await;

    // Off by wish, then on by wish.
    for power in ["Stopped", "Running"] {
        let spec = json!({
            "guestShutdownStops": true, "cloudInit": {"userData": ends}, "powerState": power,
        });
        stage.apply("stays", &spec).await;
        let generation =
            stage.machines().get("stays").await.unwrap()["metadata"]["generation"].clone();
        stage
            .until("stays", "to be seen", |it| {
                it["status"]["observedGeneration"] == generation
            })
            .await;
    }
    let report = stage
        .tells("stays", "its second boot", |it| it.boots == 2)
        .await;
    assert_eq!(report.user_data, ends);
}
