//! Bodies that are no review, or not a whole one.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::{Live, UID, app, create, send, send_review};

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
