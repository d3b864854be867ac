//! Passes over a Machine that the quota of its namespace holds.

use kube::runtime::watcher::Event;

use super::*;
use crate::quota::objects::{Namespace, PolicyObject};

/// Gives the namespace of the Machine so many vCPUs.
fn set_quota(harness: &Harness, cpu: u32) {
    let caches = &harness.context.caches;
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    caches.namespaces.apply(Event::Apply(namespace), |_| {});
    let policy: PolicyObject = serde_json::from_value(json!({
        "metadata": {"name": "tenants"},
        "spec": {"namespaceSelector": {}, "quota": {"cpu": cpu}},
    }))
    .unwrap();
    caches.policies.apply(Event::Apply(policy), |_| {});
}

/// Status and reason of the condition `Scheduled` in the last status that was written.
fn scheduled(sent: &[(String, Value)]) -> Option<(String, String)> {
    let (_, body) = sent
        .iter()
        .rfind(|(path, _)| path == "machines/web/status")?;
    let conditions = body["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|it| it["type"] == "Scheduled")?;
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    Some((text("status"), text("reason")))
}

fn held() -> (String, String) {
    ("False".to_owned(), "QuotaExceeded".to_owned())
}

#[tokio::test]
async fn of_a_new_machine_beyond_the_quota_only_the_status_is_written() {
    let mut harness = Harness::new(Scripted::with(vec![create(None)]), LeaseGuard::Always);
    harness.machine.metadata.finalizers = None;
    harness.machine.status = MachineStatus::default();
    set_quota(&harness, 1);
    assert_eq!(harness.pass().await, [""; 0]);
    let sent = harness.sent();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].1["status"]["phase"], "Pending");
    assert_eq!(scheduled(&sent), Some(held()));

    set_quota(&harness, 2);
    harness.machine.metadata.resource_version = Some("2".into());
    assert_eq!(harness.pass().await, ["observe", "create"]);
}

#[tokio::test]
async fn the_backend_of_a_machine_that_would_grow_beyond_the_quota_receives_held_growth() {
    let steps = vec![create(None), SWITCH];
    let mut harness = Harness::new(Scripted::with(steps), LeaseGuard::Always);
    set_quota(&harness, 2);
    harness.machine.status.phase = Some(common::api::choice::Phase::Running);
    assert_eq!(harness.pass().await, ["observe", "create", "switch off"]);

    let mut grown = fixtures::block();
    grown.cpu.cores = 4;
    let status = harness.machine.status.clone();
    let finalizers = harness.machine.metadata.finalizers.clone();
    harness.machine = fixtures::machine(grown);
    harness.machine.status = status;
    harness.machine.metadata.finalizers = finalizers;
    assert_eq!(harness.pass().await, ["observe", "switch off"]);
    let sent = harness.sent();
    assert_eq!(scheduled(&sent), Some(held()));
    let (_, body) = &sent[0];
    let conditions: MachineStatus = serde_json::from_value(body["status"].clone()).unwrap();
    harness.machine.status = conditions;
    harness.machine.metadata.resource_version = Some("2".into());
    harness.pass().await;
    assert_eq!(harness.sent(), [], "the status is written once");

    set_quota(&harness, 4);
    assert_eq!(harness.pass().await, ["observe", "create", "switch off"]);
}

/// The watch of namespaces fails, or is late.
#[tokio::test(start_paused = true)]
async fn a_machine_of_a_namespace_that_is_not_reported_says_so_if_that_lasts() {
    let mut harness = Harness::new(Scripted::with(vec![create(None)]), LeaseGuard::Always);
    harness.machine.status = MachineStatus::default();
    set_quota(&harness, 1);
    let namespaces = &harness.context.caches.namespaces;
    let namespace = namespaces.get("", "default").unwrap();
    namespaces.apply(Event::Delete((*namespace).clone()), |_| {});
    assert_eq!(harness.pass().await, [""; 0]);
    assert_eq!(harness.sent(), []);

    let mut passes = 0;
    let sent = loop {
        advance(Duration::from_secs(61)).await;
        assert_eq!(harness.pass().await, [""; 0]);
        let sent = harness.sent();
        passes += 1;
        if !sent.is_empty() || passes > 5 {
            break sent;
        }
    };
    let [message] = messages(&sent)[..] else {
        panic!("{sent:?}");
    };
    assert!(message.contains("has not reported 'default'"), "{message}");
}
