//! Reviews as the API server sends them, answered by the router.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::api::{MachinePolicy, MachineTemplate};
use common::catalog::{NetworkRow, StorageClassRow};
use common::violation::Reference;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use webhook::catalog::{Cache, Found, LiveRow, Lookup, ReadError, template_row};
use webhook::watch::WatchSink as _;

mod harness;
use harness::{app_with, cache};

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

/// An API server with a few objects that the cache does not have. Counts the reads.
#[derive(Clone, Default)]
struct Live {
    found: Arc<Mutex<Vec<(Reference, LiveRow)>>>,
    reads: Arc<AtomicUsize>,
    never_answers: bool,
    fails: bool,
}

impl Lookup for Live {
    fn find<'a>(&'a self, _namespace: &'a str, reference: &'a Reference) -> BoxFuture<'a, Found> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if self.never_answers {
                std::future::pending::<()>().await;
            }
            if self.fails {
                return Err(ReadError::Failed);
            }
            let found = self.found.lock().unwrap();
            let found = found.iter().find(|(known, _)| known == reference);
            Ok(found.map(|(_, found)| found.clone()))
        })
    }
}

fn app(live: Live) -> Router {
    app_with(cache(), live)
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

/// Sends a review and returns the response, which must have status 200 and the uid of the review.
async fn send_review(app: Router, path: &str, review: &Value) -> Value {
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

#[tokio::test]
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
    let took = began.elapsed();
    let expected = Duration::from_millis(490)..Duration::from_millis(2_500);
    assert!(expected.contains(&took), "{took:?}");
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

/// A cache with a policy for the tenants' namespaces.
fn cache_with_policy(rules: &Value) -> Cache {
    let mut policy = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachinePolicy",
        "metadata": {"name": "tenants"},
        "spec": {"namespaceSelector": {"matchLabels": {"tenancy": "shared"}}},
    });
    for (field, value) in rules.as_object().unwrap() {
        policy["spec"][field] = value.clone();
    }
    let policy: MachinePolicy = serde_json::from_value(policy).unwrap();
    let cache = cache();
    cache.policies.apply(policy);
    cache
}

/// The labels of a tenant's namespace, as a live read finds them.
fn tenant() -> Live {
    let labels = [("tenancy".to_owned(), "shared".to_owned())].into();
    let live = Live::default();
    let found = (Reference::Namespace, LiveRow::Namespace(labels));
    live.found.lock().unwrap().push(found);
    live
}

#[tokio::test]
async fn a_review_in_a_namespace_whose_labels_cannot_be_read_is_refused_as_unavailable() {
    let rules = json!({"templates": {"allow": ["large"]}});
    let review = create(&json!({"template": "small"}));
    let app = app_with(cache_with_policy(&rules), Live::default());
    let answer = send_review(app, "/mutate", &review).await;
    let status = &answer["response"]["status"];
    assert_eq!(
        (&status["code"], &status["message"]),
        (
            &json!(503),
            &json!("the labels of the namespace could not be read; try again")
        ),
        "{answer}"
    );
    let app = app_with(cache_with_policy(&rules), tenant());
    let answer = send_review(app, "/mutate", &review).await;
    assert_eq!(denied(&answer), ["spec.template"]);
    // Without a policy the labels are not needed.
    let live = Live::default();
    let answer = send_review(app_with(cache(), live.clone()), "/mutate", &review).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    assert_eq!(live.reads.load(Ordering::Relaxed), 0);
}

/// The review of a new Machine of this name with the block that the mutating stage writes.
async fn normalized(app: &Router, name: &str, cores: u32) -> Value {
    let spec = json!({"template": "small", "resources": {"cpu": {"cores": cores}}});
    let mut review = create(&spec);
    review["request"]["name"] = json!(name);
    review["request"]["object"]["metadata"]["name"] = json!(name);
    let answer = send_review(app.clone(), "/mutate", &review).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    let block = answer["response"]["patch"][0]["value"].clone();
    review["request"]["object"]["spec"]["normalized"] = block;
    review
}

#[tokio::test]
async fn machines_that_were_admitted_a_moment_ago_count_against_the_quota_except_in_dry_runs() {
    let rules = json!({"quota": {"cpu": 10}});
    let app = app_with(cache_with_policy(&rules), tenant());
    let validate = async |review: &Value| send_review(app.clone(), "/validate", review).await;
    let (first, second) = (
        normalized(&app, "first", 6).await,
        normalized(&app, "second", 6).await,
    );
    let mut dry = first.clone();
    dry["request"]["dryRun"] = json!(true);
    assert_eq!(validate(&dry).await["response"]["allowed"], true);
    assert_eq!(validate(&second).await["response"]["allowed"], true);
    assert_eq!(
        denied(&validate(&first).await),
        ["spec.resources.cpu.cores"]
    );
    // The same Machine again: its own share does not count twice.
    assert_eq!(validate(&second).await["response"]["allowed"], true);
    let third = normalized(&app, "third", 4).await;
    assert_eq!(validate(&third).await["response"]["allowed"], true);
}

/// No object exists, and that is answered only once two reviews wait for it.
struct Together {
    both_wait: tokio::sync::Barrier,
}

impl Lookup for Together {
    fn find<'a>(&'a self, _: &'a str, _: &'a Reference) -> BoxFuture<'a, Found> {
        Box::pin(async {
            self.both_wait.wait().await;
            Ok(None)
        })
    }
}

#[tokio::test]
async fn machines_that_are_reviewed_at_the_same_time_do_not_exceed_the_quota_together() {
    let cache = || {
        let cache = cache_with_policy(&json!({"quota": {"cpu": 10}}));
        let namespace = json!({"metadata": {"name": "default", "labels": {"tenancy": "shared"}}});
        let namespace: PartialObjectMeta<Namespace> = serde_json::from_value(namespace).unwrap();
        cache.namespaces.apply(namespace);
        cache
    };
    let plain = app_with(cache(), Live::default());
    let reviews = [
        normalized(&plain, "first", 6),
        normalized(&plain, "second", 6),
    ];
    let [mut first, mut second] = futures::future::join_all(reviews).await.try_into().unwrap();
    for review in [&mut first, &mut second] {
        // A network that does not exist is a warning; it is looked up after the comparison with the quota.
        let spec = &mut review["request"]["object"]["spec"];
        spec["networks"] = json!([{"name": "eth0", "networkName": "missing"}]);
        spec.as_object_mut().unwrap().remove("normalized");
        let answer = send_review(plain.clone(), "/mutate", review).await;
        let block = answer["response"]["patch"][0]["value"].clone();
        review["request"]["object"]["spec"]["normalized"] = block;
    }
    let both_wait = tokio::sync::Barrier::new(2);
    let app = app_with(cache(), Together { both_wait });
    let (first, second) = tokio::join!(
        send_review(app.clone(), "/validate", &first),
        send_review(app.clone(), "/validate", &second),
    );
    let allowed = [&first, &second].map(|answer| answer["response"]["allowed"] == true);
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 1);
    let refused = if allowed[0] { &second } else { &first };
    assert_eq!(denied(refused), ["spec.resources.cpu.cores"]);
}

#[tokio::test]
async fn a_body_with_a_uid_is_answered_with_a_review_whatever_else_is_wrong() {
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
        let answer = send_review(app(Live::default()), "/mutate", &review).await;
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
async fn a_body_that_is_not_utf8_is_refused_with_its_uid() {
    let text = create(&json!({"template": "smal"})).to_string();
    let mut body = text.into_bytes();
    let index = body.windows(4).position(|bytes| bytes == b"smal").unwrap();
    body[index] = 0xff;
    let (status, text) = send(app(Live::default()), "/mutate", "application/json", body).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["uid"], UID);
    let status = &answer["response"]["status"];
    assert_eq!(status["code"], 400);
    assert_eq!(
        status["message"],
        format!("the body is not UTF-8: invalid utf-8 sequence of 1 bytes from index {index}")
    );
}

#[tokio::test]
async fn a_body_without_uid_is_an_http_error_with_a_reason() {
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
        let (code, text) = send(app(Live::default()), "/mutate", content_type, body.to_vec()).await;
        assert_eq!(code.as_u16(), status, "{text}");
        assert!(text.contains(reason), "{text}");
    }
    let charset = "Application/JSON; charset=utf-8";
    let body = create(&json!({"template": "small"})).to_string();
    assert_eq!(
        send(app(Live::default()), "/validate", charset, body)
            .await
            .0,
        StatusCode::OK
    );
    let get = Request::get("/mutate").body(Body::empty()).unwrap();
    let response = app(Live::default()).oneshot(get).await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_deeply_nested_object_is_refused_with_its_uid() {
    let nest = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let body = create(&json!({"template": "small"}))
        .to_string()
        .replace("\"small\"", &nest);
    let response = send(app(Live::default()), "/mutate", "application/json", body);
    let (status, body) = tokio::time::timeout(Duration::from_secs(10), response)
        .await
        .unwrap();
    assert_eq!(status, StatusCode::OK);
    let answer: Value =
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert_eq!(answer["response"]["allowed"], false);
    assert_eq!(answer["response"]["uid"], UID);
}
