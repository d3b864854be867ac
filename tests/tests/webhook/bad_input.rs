//! Any input gets a review response with its uid or an HTTP error with the reason; other clients are served.

use lab::{Lab, reviews};
use serde_json::{Value, json};

use crate::{JSON, assert_healthy, lab, response, review, send, with_spec};

const NOT_A_REVIEW: &str = "not an AdmissionReview of admission.k8s.io/v1: ";

/// The valid review with one change.
fn changed(change: impl FnOnce(&mut Value)) -> String {
    let mut review = review();
    change(&mut review);
    review.to_string()
}

fn nest(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn disks(count: usize) -> String {
    let disk = |index| json!({"name": format!("d{index}"), "size": "1Gi"});
    let disks: Vec<Value> = (0..count).map(disk).collect();
    json!({"template": "small", "disks": disks}).to_string()
}

#[tokio::test]
async fn a_body_that_is_no_review_is_refused_with_the_reason() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let without_uid = changed(|review| {
        review["request"].as_object_mut().unwrap().remove("uid");
    });
    let empty_uid = changed(|review| review["request"]["uid"] = json!(""));
    let number = changed(|review| review["request"]["uid"] = json!(7));
    for (body, reason) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("{\"kind\":", "EOF while parsing a value at line 1 column 8"),
        ("kind: Machine", "expected value at line 1 column 1"),
        (
            &nest(100_000),
            "invalid type: sequence, expected a string at line 1 column 1",
        ),
        (&without_uid, "missing field `uid` at line 1 column 748"),
        (
            &number,
            "invalid type: integer `7`, expected a string at line 1 column 685",
        ),
    ] {
        let answer = send(&lab, "/mutate", JSON, body.to_owned()).await;
        assert_eq!(answer.text(), format!("{NOT_A_REVIEW}{reason}\n"));
        assert_eq!(answer.status, 400);
    }
    let answer = send(&lab, "/mutate", JSON, empty_uid).await;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (400, "request.uid is empty\n")
    );
    let answer = send(&lab, "/mutate", JSON, &b"\xff\xfe"[..]).await;
    let reason = "the body is not UTF-8: invalid utf-8 sequence of 1 bytes from index 0\n";
    assert_eq!((answer.status, answer.text().as_str()), (400, reason));

    for (method, path, content_type, status, text) in [
        (
            "POST",
            "/mutate",
            "application/yaml",
            415,
            "send an AdmissionReview with Content-Type: application/json\n",
        ),
        ("GET", "/mutate", JSON, 405, "send reviews with POST\n"),
        ("DELETE", "/validate", JSON, 405, "send reviews with POST\n"),
        (
            "POST",
            "/",
            JSON,
            404,
            "send reviews to /mutate or /validate\n",
        ),
        (
            "POST",
            "/mutate/x",
            JSON,
            404,
            "send reviews to /mutate or /validate\n",
        ),
    ] {
        let mut connection = lab.connect_webhook().await.unwrap();
        let body = review().to_string().into();
        let answer = connection
            .send(method, path, content_type, body)
            .await
            .unwrap();
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (status, text),
            "{method} {path}"
        );
    }
    assert_healthy(&lab, &mut webhook).await;
}

#[tokio::test]
async fn a_review_with_a_uid_is_answered_with_that_uid() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    let accepts = "but this webhook accepts AdmissionReview of admission.k8s.io/v1";
    let beta = changed(|review| review["apiVersion"] = json!("admission.k8s.io/v1beta1"));
    let pod = changed(|review| review["kind"] = json!("Pod"));
    let patch = changed(|review| review["request"]["operation"] = json!("PATCH"));
    let empty = changed(|review| review["request"]["object"] = Value::Null);
    let mut no_text = review().to_string().into_bytes();
    let place = no_text
        .windows(5)
        .position(|bytes| bytes == b"small")
        .unwrap();
    no_text[place] = 0xff;
    for (body, version, message) in [
        (
            beta.into_bytes(),
            "v1beta1",
            format!("got AdmissionReview admission.k8s.io/v1beta1, {accepts}"),
        ),
        (
            pod.into_bytes(),
            "v1",
            format!("got Pod admission.k8s.io/v1, {accepts}"),
        ),
        (
            patch.into_bytes(),
            "v1",
            format!(
                "{NOT_A_REVIEW}unknown variant `PATCH`, expected one of `CREATE`, `UPDATE`, \
                 `DELETE`, `CONNECT` at line 1 column 369"
            ),
        ),
        (
            empty.into_bytes(),
            "v1",
            "the review has no object".to_owned(),
        ),
        (
            no_text,
            "v1",
            format!("the body is not UTF-8: invalid utf-8 sequence of 1 bytes from index {place}"),
        ),
    ] {
        for path in ["/mutate", "/validate"] {
            let answer = send(&lab, path, JSON, body.clone()).await;
            let response = response(&answer);
            assert_eq!(response["allowed"], false);
            assert_eq!(
                response["status"],
                json!({"status": "Failure", "code": 400, "reason": "BadRequest", "message": message})
            );
            let spoken = answer.json().unwrap()["apiVersion"].take();
            assert_eq!(spoken, format!("admission.k8s.io/{version}"));
        }
    }
    assert_healthy(&lab, &mut webhook).await;
}

/// Specs as JSON text, each with its faults.
fn specs() -> Vec<(String, &'static [&'static str])> {
    vec![
        (
            "{}".into(),
            &[
                "spec.resources.memory.size: Required value: give a size such as '2Gi', or a template that has one [MemoryRequired]",
            ],
        ),
        (
            "null".into(),
            &["spec: Required value: give a spec: it describes the desired state [SpecRequired]"],
        ),
        (
            "\"small\"".into(),
            &["spec: Invalid value: \"small\": must be an object [WrongType]"],
        ),
        (
            "[]".into(),
            &["spec: Invalid value: a list: must be an object [WrongType]"],
        ),
        (
            disks(20_000),
            &["spec.disks: Too many: has 20000 items; at most 64 are allowed [TooMany]"],
        ),
        (
            json!({"template": nest(5_000)})
                .to_string()
                .replace('"', "")
                .replace("template", "\"template\""),
            &[
                "spec: Invalid value: the object cannot be read (recursion limit exceeded at line 1 column 248) [Unreadable]",
            ],
        ),
        (
            json!({
                "template": 7,
                "powerState": true,
                "resources": {"cpu": {"cores": "four"}, "memory": []},
                "disks": [7, {"name": {}}],
                "networks": {},
            })
            .to_string(),
            &[
                "spec.template: Invalid value: 7: must be a text; put it in quotes [WrongType]",
                "spec.powerState: Invalid value: true: must be a text; put it in quotes [WrongType]",
                "spec.resources.cpu.cores: Invalid value: \"four\": must be a whole number, without quotes [WrongType]",
                "spec.resources.memory: Invalid value: a list: must be an object [WrongType]",
                "spec.disks[0]: Invalid value: 7: must be an object [WrongType]",
                "spec.disks[1].name: Invalid value: an object: must be a text [WrongType]",
                "spec.networks: Invalid value: an object: must be a list [WrongType]",
            ],
        ),
    ]
}

/// The text of a refusal.
fn refusal(faults: &[&str]) -> String {
    let count = match faults.len() {
        1 => "1 fault:".to_owned(),
        count => format!("{count} faults:"),
    };
    let lines = faults.iter().map(|fault| format!("\n* {fault}"));
    lines.fold(count, |text, line| text + &line)
}

#[tokio::test]
async fn faults_of_an_object_are_refused_directly_and_through_the_api_server() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    for (spec, faults) in specs() {
        let response = response(&send(&lab, "/mutate", JSON, with_spec(&spec)).await);
        let status = &response["status"];
        assert_eq!(response["allowed"], false);
        assert_eq!(
            (&status["code"], &status["reason"]),
            (&json!(422), &json!("Invalid"))
        );
        assert_eq!(status["message"], refusal(faults));
        let causes = status["details"]["causes"].as_array().unwrap();
        let reported = |cause: &Value| {
            format!(
                "{}: {}",
                cause["field"].as_str().unwrap(),
                cause["message"].as_str().unwrap()
            )
        };
        assert_eq!(causes.iter().map(reported).collect::<Vec<_>>(), faults);

        let (code, message) = create(&lab, &spec).await;
        let denied = "admission webhook \"mutate.machines.vitistack.io\" denied the request: ";
        assert_eq!(message, format!("{denied}{}", refusal(faults)));
        assert_eq!(code, 422);
    }

    // The API server refuses unknown fields. In a review that is sent directly they are no fault.
    let unknown = r#"{"template": "small", "colour": "red"}"#;
    let (code, message) = create(&lab, unknown).await;
    assert_eq!(code, 400);
    assert_eq!(
        message,
        "Machine in version \"v1alpha1\" cannot be handled as a Machine: \
         strict decoding error: unknown field \"spec.colour\""
    );
    let response = response(&send(&lab, "/mutate", JSON, with_spec(unknown)).await);
    assert_eq!(response["allowed"], true);
    assert_healthy(&lab, &mut webhook).await;
}

/// Code and message of the API server's refusal to create a Machine. It gives the webhook two or three seconds, and is asked
/// again if that was too short on a busy machine.
async fn create(lab: &Lab, spec: &str) -> (u16, String) {
    let machine = reviews::machine("web", &json!("SPEC")).to_string();
    let machine = machine.replace("\"SPEC\"", spec);
    let path = "/apis/vitistack.io/v1alpha1/namespaces/default/machines?fieldValidation=Strict";
    let answer = lab::wait::until("the webhook's answer", async || {
        let request = hyper::Request::post(path)
            .header("content-type", JSON)
            .body(machine.clone().into_bytes())?;
        let error = lab.client().request::<Value>(request).await.unwrap_err();
        let kube::Error::Api(status) = &error else {
            unreachable!("{error}")
        };
        let answer = (status.code, status.message.clone());
        let is_late = answer.1.ends_with("context deadline exceeded");
        Ok(if is_late { Err(answer.1) } else { Ok(answer) })
    });
    answer.await.unwrap()
}
