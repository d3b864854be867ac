//! Objects that the cache does not have: live reads, their limits, and reviews that are refused without them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::api::MachineTemplate;
use common::catalog::{NetworkRow, StorageClassRow};
use common::violation::Reference;
use serde_json::{Value, json};
use webhook::catalog::{Cache, LiveRow, template_row};

use crate::harness::app_with;
use crate::{Live, app, create, denied, send_review};

fn live_template(name: &str, class: &str) -> (Reference, LiveRow) {
    let template: MachineTemplate = serde_json::from_value(json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachineTemplate",
        "metadata": {"name": name},
        "spec": {
            "resources": {"memory": {"size": "2Gi"}},
            "disks": [{"name": "root", "size": "10Gi", "storageClass": class}],
        },
    }))
    .unwrap();
    let row = Arc::new(template_row(template));
    (
        Reference::Template(name.into()),
        LiveRow::Template(name.into(), row),
    )
}

#[tokio::test]
async fn missing_references_are_read_live_also_those_that_a_live_object_names() {
    let class = LiveRow::StorageClass("fresh".into(), StorageClassRow::default());
    let live = Live {
        found: Arc::new(Mutex::new(vec![
            live_template("new", "fresh"),
            (Reference::StorageClass("fresh".into()), class),
            (
                Reference::Network("prod".into()),
                LiveRow::Network("default".into(), "prod".into(), NetworkRow::default()),
            ),
        ])),
        ..Live::default()
    };
    let spec = json!({"template": "new", "networks": [{"name": "eth0", "networkName": "prod"}]});
    let answer = send_review(app(live.clone()), "/mutate", &create(&spec)).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    assert_eq!(
        answer["response"]["patch"][0]["value"]["disks"][0]["storageClass"],
        "fresh"
    );
    let warnings = answer["response"]["warnings"].to_string();
    assert!(!warnings.contains("NotFound"), "{warnings}");
    assert_eq!(live.reads.load(Ordering::Relaxed), 3, "one read each");
}

#[tokio::test]
async fn a_cached_reference_causes_no_live_read_and_a_missing_one_causes_one() {
    let live = Live::default();
    send_review(
        app(live.clone()),
        "/mutate",
        &create(&json!({"template": "small"})),
    )
    .await;
    assert_eq!(live.reads.load(Ordering::Relaxed), 0);
    let answer = send_review(
        app(live.clone()),
        "/mutate",
        &create(&json!({"template": "smal"})),
    )
    .await;
    assert_eq!(denied(&answer), ["spec.template"]);
    assert_eq!(live.reads.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_machine_with_many_wrong_names_causes_at_most_sixteen_reads() {
    let live = Live::default();
    let nic = |number: u32| json!({"name": format!("eth{number}"), "networkName": format!("net-{number}")});
    let networks: Vec<_> = (0..32).map(nic).collect();
    let spec = json!({"template": "small", "networks": networks});
    let answer = send_review(app(live.clone()), "/mutate", &create(&spec)).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    assert_eq!(live.reads.load(Ordering::Relaxed), 16);
}

#[tokio::test(start_paused = true)]
async fn a_live_read_without_answer_is_given_up_after_half_a_second() {
    let live = Live {
        never_answers: true,
        ..Live::default()
    };
    let began = tokio::time::Instant::now();
    let answer = send_review(
        app(live),
        "/mutate?timeout=3s",
        &create(&json!({"template": "smal"})),
    )
    .await;
    let status = &answer["response"]["status"];
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&504.into(), &"Timeout".into())
    );
    let text = "MachineTemplate 'smal' was not read from the API server in time; try again";
    assert_eq!(status["message"], text);
    // The clock moves only while everything waits.
    assert_eq!(began.elapsed(), Duration::from_millis(500));
}

#[tokio::test]
async fn a_reference_whose_live_read_fails_is_answered_503_and_never_reported_as_missing() {
    let live = Live {
        fails: true,
        ..Live::default()
    };
    let create = create(&json!({"template": "smal"}));
    let answer = send_review(app(live.clone()), "/mutate", &create).await;
    let status = &answer["response"]["status"];
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&503.into(), &"ServiceUnavailable".into())
    );
    let text = "MachineTemplate 'smal' could not be read from the API server; try again";
    assert_eq!(status["message"], text);

    // What only causes a warning does not prevent a write.
    let networks = json!([{"name": "eth0", "networkName": "prod"}]);
    let spec = json!({"template": "small", "networks": networks});
    let answer = send_review(app(live), "/mutate", &self::create(&spec)).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
}

#[tokio::test]
async fn a_review_without_time_left_is_refused_with_its_uid() {
    let answer = send_review(
        app(Live::default()),
        "/mutate?timeout=100ms",
        &create(&json!({"template": "small"})),
    )
    .await;
    assert_eq!(answer["response"]["status"]["code"], 504);
    assert_eq!(answer["response"]["allowed"], false);
}

#[tokio::test]
async fn an_invalid_timeout_parameter_is_ignored() {
    for query in [
        "timeout=soon",
        "timeout=%ff",
        "timeout=1&timeout=2",
        "",
        "&&=",
    ] {
        let review = create(&json!({"template": "small"}));
        let path = format!("/mutate?{query}");
        let answer = send_review(app(Live::default()), &path, &review).await;
        assert_eq!(answer["response"]["allowed"], true, "{query}");
    }
}

#[tokio::test]
async fn a_review_before_the_cache_is_complete_is_refused_as_unavailable() {
    let app = app_with(Cache::default(), Live::default());
    let answer = send_review(app, "/mutate", &create(&json!({"template": "smal"}))).await;
    let status = &answer["response"]["status"];
    assert_eq!(
        (&status["code"], &status["reason"], &status["details"]),
        (&json!(503), &json!("ServiceUnavailable"), &Value::Null),
        "{answer}"
    );
}
