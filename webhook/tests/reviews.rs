//! Reviews as the API server sends them, answered by the router itself.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::api::MachineTemplate;
use common::catalog::{NetworkRow, StorageClassRow};
use common::violation::Reference;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use webhook::catalog::{Cache, Found, template_row};
use webhook::lookup::Lookup;

mod scene;
use scene::{app_with, cache};

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

/// An API server that knows a few things the cache does not, and counts who asks.
#[derive(Clone, Default)]
struct Late {
    found: Arc<Mutex<Vec<(Reference, Found)>>>,
    reads: Arc<AtomicUsize>,
    never_answers: bool,
}

impl Lookup for Late {
    fn find<'a>(
        &'a self,
        _namespace: &'a str,
        reference: &'a Reference,
    ) -> BoxFuture<'a, Option<Found>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if self.never_answers {
                std::future::pending::<()>().await;
            }
            let found = self.found.lock().unwrap();
            found
                .iter()
                .find(|(known, _)| known == reference)
                .map(|(_, found)| found.clone())
        })
    }
}

fn app(late: Late) -> Router {
    app_with(cache(), late)
}

fn machine(spec: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": spec,
    })
}

fn review(operation: &str, object: &Value, old: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,
            "kind": {"group": "vitistack.io", "version": "v1alpha1", "kind": "Machine"},
            "resource": {"group": "vitistack.io", "version": "v1alpha1", "resource": "machines"},
            "name": "web",
            "namespace": "default",
            "operation": operation,
            "userInfo": {"username": "admin", "groups": ["a", "b"]},
            "object": object,
            "oldObject": old,
            "dryRun": false,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    })
}

fn create(spec: &Value) -> Value {
    review("CREATE", &machine(spec), &Value::Null)
}

async fn send(
    app: Router,
    path: &str,
    content_type: &str,
    body: impl Into<Body>,
) -> (StatusCode, String) {
    let request = Request::post(path)
        .header("content-type", content_type)
        .body(body.into())
        .unwrap();
    let response = app.oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// The answer to a review; its uid is right and it is an HTTP success.
async fn ask(app: Router, path: &str, review: &Value) -> Value {
    let (status, body) = send(app, path, "application/json", review.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let mut answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    if let Some(patch) = answer["response"]["patch"].as_str() {
        let decoded = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
        answer["response"]["patch"] = decoded;
    }
    answer
}

fn denied(answer: &Value) -> Vec<String> {
    assert_eq!(answer["response"]["allowed"], false, "{answer}");
    let causes = answer["response"]["status"]["details"]["causes"]
        .as_array()
        .unwrap();
    causes
        .iter()
        .map(|cause| cause["field"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_machine_becomes_its_block_and_the_validating_stage_agrees() {
    let spec = json!({"template": "small", "resources": {"cpu": {"cores": 4}}});
    let answer = ask(app(Late::default()), "/mutate?timeout=3s", &create(&spec)).await;
    insta::assert_json_snapshot!("accepted", answer);

    let mut object = machine(&spec);
    object["spec"]["normalized"] = answer["response"]["patch"][0]["value"].clone();
    let validated = ask(
        app(Late::default()),
        "/validate?timeout=3s",
        &review("CREATE", &object, &Value::Null),
    )
    .await;
    insta::assert_json_snapshot!("validated", validated);

    // Sent again with its block there is nothing to write.
    let again = ask(
        app(Late::default()),
        "/mutate",
        &review("UPDATE", &object, &object),
    )
    .await;
    assert_eq!(again["response"]["allowed"], true);
    assert_eq!(again["response"].get("patch"), None);
}

#[tokio::test]
async fn every_fault_of_a_creation_is_told_at_once() {
    let spec = json!({
        "template": "smal",
        "networks": [{"name": "eth0", "model": "vmxnet3"}],
        "bootOrder": ["floppy"],
    });
    let answer = ask(app(Late::default()), "/mutate", &create(&spec)).await;
    insta::assert_json_snapshot!("refused_creation", answer);
}

#[tokio::test]
async fn an_update_is_refused_as_forbidden() {
    let old = machine(&json!({"template": "small"}));
    let new = machine(&json!({"template": "smal"}));
    let answer = ask(
        app(Late::default()),
        "/mutate",
        &review("UPDATE", &new, &old),
    )
    .await;
    insta::assert_json_snapshot!("refused_update", answer);
}

#[tokio::test]
async fn a_value_of_the_wrong_type_is_a_refusal_with_its_path() {
    let spec = json!({"template": "small", "resources": {"cpu": {"cores": "four"}}, "networks": 7});
    let answer = ask(app(Late::default()), "/mutate", &create(&spec)).await;
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
        let answer = ask(
            app(Late::default()),
            "/mutate",
            &review("CREATE", &object, &Value::Null),
        )
        .await;
        assert!(!denied(&answer).is_empty());
    }
}

#[tokio::test]
async fn the_name_of_an_object_without_one_is_how_it_will_begin() {
    let mut object = machine(&json!({"template": "smal"}));
    object["metadata"] = json!({"generateName": "web-", "namespace": "default"});
    let mut review = review("CREATE", &object, &Value::Null);
    review["request"]["name"] = json!("");
    let answer = ask(app(Late::default()), "/mutate", &review).await;
    assert_eq!(answer["response"]["status"]["details"]["name"], "web-");
}

#[tokio::test]
async fn what_is_no_matter_of_rules_passes_whatever_it_says() {
    let bad = machine(&json!({"template": "smal"}));
    let mut deleting = bad.clone();
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut status = review("UPDATE", &bad, &bad);
    status["request"]["subResource"] = json!("status");
    for review in [
        review("DELETE", &Value::Null, &bad),
        review("CONNECT", &bad, &Value::Null),
        review("UPDATE", &deleting, &bad),
        status,
    ] {
        for path in ["/mutate", "/validate"] {
            let answer = ask(app(Late::default()), path, &review).await;
            assert_eq!(
                answer["response"],
                json!({"uid": review["request"]["uid"], "allowed": true})
            );
        }
    }
}

#[tokio::test]
async fn a_kind_without_rules_passes_with_a_word() {
    let mut review = create(&json!({}));
    review["request"]["kind"] = json!({"group": "", "version": "v1", "kind": "Pod"});
    let answer = ask(app(Late::default()), "/validate", &review).await;
    assert_eq!(answer["response"]["allowed"], true);
    assert!(
        answer["response"]["warnings"][0]
            .as_str()
            .unwrap()
            .contains("Pod")
    );
}

fn late_template(name: &str, class: &str) -> (Reference, Found) {
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
        Found::Template(name.into(), row),
    )
}

#[tokio::test]
async fn what_the_cache_does_not_have_yet_is_found_live_also_through_another_find() {
    let class = Found::StorageClass("fresh".into(), StorageClassRow::default());
    let late = Late {
        found: Arc::new(Mutex::new(vec![
            late_template("new", "fresh"),
            (Reference::StorageClass("fresh".into()), class),
            (
                Reference::Network("prod".into()),
                Found::Network("prod".into(), NetworkRow::default()),
            ),
        ])),
        ..Late::default()
    };
    let spec = json!({"template": "new", "networks": [{"name": "eth0", "networkName": "prod"}]});
    let answer = ask(app(late.clone()), "/mutate", &create(&spec)).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    assert_eq!(
        answer["response"]["patch"][0]["value"]["disks"][0]["storageClass"],
        "fresh"
    );
    let warnings = answer["response"]["warnings"].to_string();
    assert!(!warnings.contains("NotFound"), "{warnings}");
    assert_eq!(late.reads.load(Ordering::Relaxed), 3, "one read each");
}

#[tokio::test]
async fn a_hit_reads_nothing_and_a_miss_reads_once() {
    let late = Late::default();
    ask(
        app(late.clone()),
        "/mutate",
        &create(&json!({"template": "small"})),
    )
    .await;
    assert_eq!(late.reads.load(Ordering::Relaxed), 0);
    let answer = ask(
        app(late.clone()),
        "/mutate",
        &create(&json!({"template": "smal"})),
    )
    .await;
    assert_eq!(denied(&answer), ["spec.template"]);
    assert_eq!(late.reads.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_file_full_of_wrong_names_is_no_load() {
    let late = Late::default();
    let nic = |number: u32| json!({"name": format!("eth{number}"), "networkName": format!("net-{number}")});
    let networks: Vec<_> = (0..32).map(nic).collect();
    let spec = json!({"template": "small", "networks": networks});
    let answer = ask(app(late.clone()), "/mutate", &create(&spec)).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    assert_eq!(late.reads.load(Ordering::Relaxed), 16);
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_costs_half_a_second() {
    let late = Late {
        never_answers: true,
        ..Late::default()
    };
    let began = tokio::time::Instant::now();
    let answer = ask(
        app(late),
        "/mutate?timeout=3s",
        &create(&json!({"template": "smal"})),
    )
    .await;
    assert_eq!(denied(&answer), ["spec.template"]);
    let took = began.elapsed();
    let expected = Duration::from_millis(490)..Duration::from_millis(2_500);
    assert!(expected.contains(&took), "{took:?}");
}

#[tokio::test]
async fn no_time_left_is_told_with_the_uid() {
    let answer = ask(
        app(Late::default()),
        "/mutate?timeout=100ms",
        &create(&json!({"template": "small"})),
    )
    .await;
    assert_eq!(answer["response"]["status"]["code"], 504);
    assert_eq!(answer["response"]["allowed"], false);
}

#[tokio::test]
async fn a_deadline_that_cannot_be_read_is_as_none() {
    for query in [
        "timeout=soon",
        "timeout=%ff",
        "timeout=1&timeout=2",
        "",
        "&&=",
    ] {
        let review = create(&json!({"template": "small"}));
        let path = format!("/mutate?{query}");
        let answer = ask(app(Late::default()), &path, &review).await;
        assert_eq!(answer["response"]["allowed"], true, "{query}");
    }
}

#[tokio::test]
async fn nothing_is_told_to_be_missing_before_the_cluster_was_read() {
    let app = app_with(Cache::default(), Late::default());
    let answer = ask(app, "/mutate", &create(&json!({"template": "smal"}))).await;
    let status = &answer["response"]["status"];
    assert_eq!(
        (&status["code"], &status["reason"], &status["details"]),
        (&json!(503), &json!("ServiceUnavailable"), &Value::Null),
        "{answer}"
    );
}

#[tokio::test]
async fn what_has_a_uid_is_answered_whatever_else_it_is() {
    let whole = create(&json!({"template": "small"}));
    let change = |change: &dyn Fn(&mut Value)| {
        let mut review = whole.clone();
        change(&mut review);
        review
    };
    for (review, version) in [
        (
            change(&|r| r["apiVersion"] = json!("admission.k8s.io/v1beta1")),
            "admission.k8s.io/v1beta1",
        ),
        (
            change(&|r| r["apiVersion"] = json!("apps/v1")),
            "admission.k8s.io/v1",
        ),
        (
            change(&|r| r["apiVersion"] = json!(7)),
            "admission.k8s.io/v1",
        ),
        (change(&|r| r["kind"] = json!("Pod")), "admission.k8s.io/v1"),
        (
            change(&|r| r["request"]["operation"] = json!("PATCH")),
            "admission.k8s.io/v1",
        ),
        (
            change(&|r| r["request"]["kind"] = json!("Machine")),
            "admission.k8s.io/v1",
        ),
        (
            change(&|r| r["request"]["name"] = json!(["web"])),
            "admission.k8s.io/v1",
        ),
        (
            change(&|r| r["request"]["object"] = Value::Null),
            "admission.k8s.io/v1",
        ),
    ] {
        let answer = ask(app(Late::default()), "/mutate", &review).await;
        assert_eq!(answer["apiVersion"], version);
        assert_eq!(answer["response"]["allowed"], false);
        let status = &answer["response"]["status"];
        assert_eq!(
            (&status["code"], &status["reason"]),
            (&json!(400), &json!("BadRequest")),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_with_the_uid() {
    let text = create(&json!({"template": "smal"})).to_string();
    let mut body = text.into_bytes();
    let place = body.windows(4).position(|bytes| bytes == b"smal").unwrap();
    body[place] = 0xff;
    let (status, text) = send(app(Late::default()), "/mutate", "application/json", body).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["uid"], UID);
    let status = &answer["response"]["status"];
    assert_eq!(status["code"], 400);
    assert_eq!(
        status["message"],
        format!("the body is not UTF-8: invalid utf-8 sequence of 1 bytes from index {place}")
    );
}

#[tokio::test]
async fn what_has_no_uid_is_an_http_error_with_a_reason() {
    let json = "application/json";
    let deep = "[".repeat(100_000);
    let no_uid = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}"#;
    let mut empty_uid = create(&json!({"template": "small"}));
    empty_uid["request"]["uid"] = json!("");
    let empty_uid = empty_uid.to_string();
    for (content_type, body, status, reason) in [
        (json, &b""[..], 400, "EOF"),
        (json, b"{", 400, "EOF"),
        (json, b"null", 400, "AdmissionReview"),
        (json, b"\xff\xfe{}", 400, "not UTF-8"),
        (json, deep.as_bytes(), 400, "AdmissionReview"),
        (json, no_uid.as_bytes(), 400, "uid"),
        (json, empty_uid.as_bytes(), 400, "uid"),
        ("application/yaml", b"a: b", 415, "Content-Type"),
        ("text/plain", no_uid.as_bytes(), 415, "Content-Type"),
    ] {
        let (code, text) = send(app(Late::default()), "/mutate", content_type, body.to_vec()).await;
        assert_eq!(code.as_u16(), status, "{text}");
        assert!(text.contains(reason), "{text}");
    }
    let charset = "Application/JSON; charset=utf-8";
    let body = create(&json!({"template": "small"})).to_string();
    assert_eq!(
        send(app(Late::default()), "/validate", charset, body)
            .await
            .0,
        StatusCode::OK
    );
    let get = Request::get("/mutate").body(Body::empty()).unwrap();
    let response = app(Late::default()).oneshot(get).await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_nest_inside_the_object_is_refused_with_the_uid() {
    let nest = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let body = create(&json!({"template": "small"}))
        .to_string()
        .replace("\"small\"", &nest);
    let asked = send(app(Late::default()), "/mutate", "application/json", body);
    let (status, body) = tokio::time::timeout(Duration::from_secs(10), asked)
        .await
        .unwrap();
    assert_eq!(status, StatusCode::OK);
    let answer: Value =
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert_eq!(answer["response"]["allowed"], false);
    assert_eq!(answer["response"]["uid"], UID);
}
