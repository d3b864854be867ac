//! One Machine in a namespace does not wait for hundreds in another.

mod environment;

use std::time::Duration;

use lab::{
    Binary, Options,
    audit::Event,
    objects::{VM, namespace},
    wait,
};
use serde_json::json;

use environment::{Environment, machine};

/// Several times the number of Machines that the controller reconciles concurrently, which is 100.
const FLEET: usize = 400;
/// Limit for the whole fleet on two busy cores. The test compares the order of creations, not their times.
const FLEET_LIMIT: Duration = Duration::from_mins(10);

#[tokio::test]
async fn one_machine_is_created_before_most_of_a_fleet_in_another_namespace() {
    let mut env = Environment::with(Options::default(), &[]).await;
    env.apply(&namespace("alone", &json!({}))).await;
    // The whole fleet is queued when the controller starts.
    assert!(env.controller.stop().await.unwrap().success());
    let spec = json!({"template": "small"});
    env.fleet(FLEET, &spec).await;
    let before = env.lab.log_position().await.unwrap();
    env.controller.start_again().unwrap();
    let vms = env.objects(VM);
    wait::until_at_once("the first of the fleet", async || {
        let made = vms.list().await?.len();
        Ok(if made > 0 {
            Ok(())
        } else {
            Err("none is created")
        })
    })
    .await
    .unwrap();

    let mut alone = machine("alone", &spec);
    alone["metadata"]["namespace"] = "alone".into();
    env.apply(&alone).await;
    let vms = env.lab.objects(VM, "alone");
    wait::until_within(FLEET_LIMIT, "the one of the other namespace", async || {
        Ok(vms
            .find("alone")
            .await?
            .map(drop)
            .ok_or("it is not created"))
    })
    .await
    .unwrap();

    let (mut waits, mut is_made, mut fleet_first) = (false, false, 0);
    let mut fleet_before = 0;
    let controller = Binary::Controller.user();
    let look = |event: Event| {
        let alone = event.namespace == "alone";
        match event.resource.as_str() {
            "machines" => waits |= alone && event.verb != "get",
            "virtualmachines" if event.user == controller && event.wrote() => {
                is_made |= alone;
                fleet_before += usize::from(!waits);
                fleet_first += usize::from(waits && !is_made);
            }
            _ => {}
        }
    };
    env.lab.for_each_request(before, look).await.unwrap();
    assert!(is_made);
    assert!(
        fleet_before < FLEET / 2,
        "{fleet_before} of {FLEET} VirtualMachines were created before it"
    );
    assert!(
        fleet_first < FLEET / 2,
        "it waited for {fleet_first} of {FLEET} VirtualMachines"
    );
}
