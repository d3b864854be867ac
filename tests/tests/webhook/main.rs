//! The webhook under test behind a real API server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_input;
mod certificates;
mod clients;
mod files;
mod hostile;
mod observability;
mod process;
mod readiness;
mod rotation;

use std::net::SocketAddr;

use bytes::Bytes;
use lab::http::{self, Connection, Response};
use lab::{Lab, Options, ProgramUnderTest, reviews, wait};
use serde_json::{Value, json};

const JSON: &str = "application/json";

/// A lab with the manifests and storage classes, which the rules need.
pub(crate) async fn lab() -> Lab {
    let options = Options {
        operator: true,
        storage_classes: true,
        ..Options::bare()
    };
    Lab::with(options).await.unwrap()
}

/// Waits until `/readyz` answers 500 with an expected text.
pub(crate) async fn unready(webhook: &mut ProgramUnderTest, expected: impl Fn(&str) -> bool) {
    let address = webhook.health_address().await.unwrap();
    wait::until("the reason for being unready", async || {
        let answer = http::get(address, "/readyz").await?;
        let reported = answer.status == 500 && expected(&answer.text());
        Ok(if reported {
            Ok(())
        } else {
            Err((answer.status, answer.text()))
        })
    })
    .await
    .unwrap();
}

pub(crate) fn review() -> Value {
    let machine = reviews::machine("web", &json!({"template": "small"}));
    reviews::creation("6f2d8a4e-1111-4222-8333-444455556666", &machine)
}

/// Sends a review to the webhook at `address`, as an API server that trusts `ca`.
pub(crate) async fn admit(address: SocketAddr, ca: &str) -> anyhow::Result<Value> {
    let mut connection = Connection::tls(address, ca.as_bytes()).await?;
    let answer = connection
        .post("/validate?timeout=3s", review().to_string())
        .await?;
    anyhow::ensure!(answer.status == 200, "{}", answer.text());
    Ok(answer.json()?["response"]["uid"].clone())
}

/// Creates a Machine as a dry run, and checks that the webhook wrote its block.
pub(crate) async fn reviewed(lab: &Lab) -> anyhow::Result<()> {
    let machine = reviews::machine("web", &json!({"template": "small"}));
    let file = lab.path("web.json");
    std::fs::write(&file, machine.to_string())?;
    let file = file.display().to_string();
    let create = ["create", "--dry-run=server", "-o", "json", "-f", &file];
    let machine: Value = serde_json::from_str(&lab.kubectl().run(&create).await?.ok()?)?;
    anyhow::ensure!(
        machine["spec"]["normalized"]["disks"].is_array(),
        "{machine}"
    );
    Ok(())
}

/// The review of a Machine whose spec is this text.
pub(crate) fn with_spec(spec: &str) -> String {
    let machine = reviews::machine("web", &json!("SPEC"));
    let review = reviews::creation(review()["request"]["uid"].as_str().unwrap(), &machine);
    review.to_string().replace("\"SPEC\"", spec)
}

pub(crate) async fn send(
    lab: &Lab,
    path: &str,
    content_type: &str,
    body: impl Into<Bytes>,
) -> Response {
    let mut connection = lab.connect_webhook().await.unwrap();
    let answer = connection.send("POST", path, content_type, body.into());
    answer.await.unwrap()
}

/// The `response` of the answer; checks that it has the uid of the review.
pub(crate) fn response(answer: &Response) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let response = answer.json().unwrap()["response"].take();
    assert_eq!(response["uid"], review()["request"]["uid"]);
    response
}

/// Checks that the webhook runs, serves, and has logged no error.
pub(crate) async fn assert_healthy(lab: &Lab, webhook: &mut ProgramUnderTest) {
    let ca = String::from_utf8(lab.ca_bundle().await.unwrap()).unwrap();
    admit(lab.webhook_address(), &ca).await.unwrap();
    webhook.process().check_alive().unwrap();
    // Every line is JSON, and none is an error or a panic.
    let log = webhook.log();
    assert_eq!(webhook.log_lines().len(), log.lines().count(), "{log}");
    let wrong = |line: &Value| line["level"] == "error";
    assert!(!webhook.log_lines().iter().any(wrong), "{log}");
}
