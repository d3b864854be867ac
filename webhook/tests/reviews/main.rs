//! Reviews as the API server sends them, answered by the router.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::violation::Reference;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use webhook::catalog::{Found, LiveRow, Lookup, ReadError};

mod bodies;
#[path = "../harness/mod.rs"]
mod harness;
mod live_reads;
mod quotas;
mod verdicts;

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
