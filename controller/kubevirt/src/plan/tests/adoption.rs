//! Objects that an earlier release made are adopted: nothing is written, and no guest restarts.

use controller_core::fixtures::without_texts;
use controller_core::machine::{CachedMachine, Machine};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::reported;
use crate::environment::FakeCluster;

/// A running Machine with block version 1, and all its objects, as release 0.1.0 made them.
const RELEASE_0_1_0: &str = include_str!("adoption/release-0.1.0.json");

fn read<T: DeserializeOwned>(objects: &Value, key: &str) -> T {
    serde_json::from_value(objects[key].clone()).unwrap()
}

fn machine(object: Value) -> Machine {
    let cached: CachedMachine = serde_json::from_value(object).unwrap();
    cached.decompress()
}

fn cluster(objects: &Value) -> FakeCluster {
    let mut cluster = FakeCluster::new(machine(objects["machine"].clone()));
    cluster.vm = Some(read(objects, "virtualMachine"));
    cluster.instance = Some(read(objects, "instance"));
    cluster.claims = read(objects, "claims");
    cluster.secret = Some(read(objects, "secret"));
    cluster.networks = read(objects, "networks");
    cluster.attachments = read(objects, "attachments");
    cluster
}

#[test]
fn objects_of_an_earlier_release_are_adopted_without_a_write() {
    let objects: Value = serde_json::from_str(RELEASE_0_1_0).unwrap();
    let mut cluster = cluster(&objects);
    assert!(cluster.machine().desired().is_some(), "the block is read");
    let plan = cluster.plan();
    let steps: Vec<_> = plan.steps().map(|step| step.to_string()).collect();
    assert_eq!(steps, [""; 0]);
    // Texts may be plainer now; nothing else of the status may differ, not even a time.
    let written = cluster.machine().status.clone();
    let planned = plan.status.clone().unwrap_or_else(|| written.clone());
    assert_eq!(without_texts(planned), without_texts(written));
    assert_eq!(cluster.settle(), [""; 0]);
    assert_eq!(cluster.restarted, [""; 0]);
}

#[test]
fn a_status_field_with_an_unknown_value_is_lost_alone() {
    let mut objects: Value = serde_json::from_str(RELEASE_0_1_0).unwrap();
    let status = &mut objects["machine"]["status"];
    status["phase"] = "Hibernating".into();
    status["someday"] = true.into();
    let mut cluster = cluster(&objects);
    assert_eq!(reported(&cluster, "Ready").0, "True");
    assert_eq!(cluster.settle(), [""; 0], "only the status is written");
    assert_eq!(cluster.restarted, [""; 0]);
    assert_eq!(super::phase(&cluster), Some(super::Phase::Running));
}
