//! What a review is answered: the block, the refusals with every fault, and what passes.

use serde_json::{Value, json};

use crate::{Live, UID, app, create, denied, machine, review, send_review};

#[tokio::test]
async fn a_valid_machine_gets_its_block_and_the_validating_stage_allows_it() {
    let spec = json!({"template": "small", "resources": {"cpu": {"cores": 4}}});
    let answer = send_review(app(Live::default()), "/mutate?timeout=3s", &create(&spec)).await;
    insta::assert_json_snapshot!("accepted", answer);

    let mut object = machine(&spec);
    object["spec"]["normalized"] = answer["response"]["patch"][0]["value"].clone();
    let validated = send_review(
        app(Live::default()),
        "/validate?timeout=3s",
        &review("CREATE", &object, &Value::Null),
    )
    .await;
    insta::assert_json_snapshot!("validated", validated);

    // Sent again with its block, nothing is written.
    let again = send_review(
        app(Live::default()),
        "/mutate",
        &review("UPDATE", &object, &object),
    )
    .await;
    assert_eq!(again["response"]["allowed"], true);
    assert_eq!(again["response"].get("patch"), None);
}

#[tokio::test]
async fn a_refused_creation_lists_every_violation() {
    let spec = json!({
        "template": "smal",
        "networks": [{"name": "eth0", "model": "vmxnet3"}],
        "bootOrder": ["floppy"],
    });
    let answer = send_review(app(Live::default()), "/mutate", &create(&spec)).await;
    insta::assert_json_snapshot!("refused_creation", answer);
}

#[tokio::test]
async fn an_invalid_update_is_refused_as_forbidden_not_as_invalid() {
    let old = machine(&json!({"template": "small"}));
    let new = machine(&json!({"template": "smal"}));
    let answer = send_review(
        app(Live::default()),
        "/mutate",
        &review("UPDATE", &new, &old),
    )
    .await;
    insta::assert_json_snapshot!("refused_update", answer);
}

#[tokio::test]
async fn a_value_of_a_wrong_type_is_refused_with_its_path() {
    let spec = json!({"template": "small", "resources": {"cpu": {"cores": "four"}}, "networks": 7});
    let answer = send_review(app(Live::default()), "/mutate", &create(&spec)).await;
    assert_eq!(
        denied(&answer),
        ["spec.resources.cpu.cores", "spec.networks"]
    );
    for object in [
        json!(7),
        json!([]),
        json!("x"),
        json!({"metadata": 7}),
        json!({}),
    ] {
        let answer = send_review(
            app(Live::default()),
            "/mutate",
            &review("CREATE", &object, &Value::Null),
        )
        .await;
        assert!(!denied(&answer).is_empty());
    }
}

#[tokio::test]
async fn a_refusal_of_an_object_without_name_has_its_generate_name() {
    let mut object = machine(&json!({"template": "smal"}));
    object["metadata"] = json!({"generateName": "web-", "namespace": "default"});
    let mut review = review("CREATE", &object, &Value::Null);
    review["request"]["name"] = json!("");
    let answer = send_review(app(Live::default()), "/mutate", &review).await;
    assert_eq!(answer["response"]["status"]["details"]["name"], "web-");
}

#[tokio::test]
async fn deletions_connections_and_subresources_are_allowed_whatever_the_object_is() {
    let bad = machine(&json!({"template": "smal"}));
    let deleting = deleting(&bad);
    let mut released = deleting.clone();
    released["metadata"]["finalizers"] = json!([]);
    let mut status = review("UPDATE", &bad, &bad);
    status["request"]["subResource"] = json!("status");
    for review in [
        review("DELETE", &Value::Null, &bad),
        review("CONNECT", &bad, &Value::Null),
        review("UPDATE", &released, &deleting),
        status,
    ] {
        for path in ["/mutate", "/validate"] {
            let answer = send_review(app(Live::default()), path, &review).await;
            assert_eq!(
                answer["response"],
                json!({"uid": review["request"]["uid"], "allowed": true})
            );
        }
    }
}

/// The object after a deletion was requested that waits for a finalizer.
fn deleting(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["metadata"]["finalizers"] = json!(["example.com/keep"]);
    object
}

#[tokio::test]
async fn a_deletion_timestamp_exempts_no_change_of_the_spec() {
    let (good, bad) = (
        machine(&json!({"template": "small"})),
        machine(&json!({"template": "smal"})),
    );
    for review in [
        review("CREATE", &deleting(&bad), &Value::Null),
        review("UPDATE", &deleting(&bad), &deleting(&good)),
        // Only what is stored counts: a user can write the timestamp into what is sent.
        review("UPDATE", &deleting(&bad), &good),
    ] {
        for path in ["/mutate", "/validate"] {
            let answer = send_review(app(Live::default()), path, &review).await;
            assert_eq!(denied(&answer), ["spec.template"]);
        }
    }
}

#[tokio::test]
async fn the_deletion_of_a_machine_is_allowed_with_a_warning_of_each_disk_that_is_destroyed() {
    let path = "/mutate";
    let spec = json!({"template": "small"});
    let made = send_review(app(Live::default()), path, &create(&spec)).await;
    let mut stored = machine(&spec);
    stored["spec"]["normalized"] = made["response"]["patch"][0]["value"].clone();
    let delete = review("DELETE", &Value::Null, &stored);
    let answer = send_review(app(Live::default()), "/validate", &delete).await;
    assert_eq!(
        answer["response"],
        json!({"uid": UID, "allowed": true, "warnings": [
            "Machine default/web: its deletion destroys disk 'root' (20Gi, PersistentVolumeClaim web-root); reclaimPolicy: Retain keeps it",
        ]})
    );
}

#[tokio::test]
async fn a_kind_without_rules_is_allowed_with_a_warning() {
    let mut review = create(&json!({}));
    review["request"]["kind"] = json!({"group": "", "version": "v1", "kind": "Pod"});
    let answer = send_review(app(Live::default()), "/validate", &review).await;
    assert_eq!(answer["response"]["allowed"], true);
    assert!(
        answer["response"]["warnings"][0]
            .as_str()
            .unwrap()
            .contains("Pod")
    );
}
