//! Secrets of users and of the programs appear nowhere else.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lab::{
    Binary, OPERATOR_NAMESPACE, ProgramUnderTest,
    audit::LogPosition,
    objects::{EVENT, SECRET},
};

use crate::environment::Environment;
use crate::lifecycle::{CANARY, words};

/// No part of a secret is in logs (at level trace), metrics, events or status.
pub(crate) async fn assert_not_disclosed(env: &mut Environment, start: LogPosition) {
    let mut secrets = words();
    // The tokens of the programs, and the private keys of the webhook.
    for binary in [Binary::Controller, Binary::Webhook] {
        let file = env.lab.path(&format!("{}-1.kubeconfig", binary.name()));
        let kubeconfig: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let token = &kubeconfig["users"][0]["user"]["token"];
        secrets.push(token.as_str().unwrap().to_owned());
    }
    let ca = env.lab.objects(SECRET, OPERATOR_NAMESPACE);
    let ca = ca.get("machine-webhook-ca").await.unwrap();
    for name in ["ca.key", "ca-old.key", "ca-next.key"] {
        let Some(key) = ca["data"][name].as_str() else {
            continue;
        };
        let pem = String::from_utf8(STANDARD.decode(key).unwrap()).unwrap();
        secrets.push(pem.lines().nth(1).unwrap().to_owned());
        secrets.push(key.to_owned());
    }
    assert!(secrets.len() > 7, "{}", secrets.len());

    let mut reported = Vec::new();
    for program in [&mut env.controller, &mut env.webhook] {
        assert!(is_loud(program));
        reported.push(program.log());
        reported.push(program.metrics().await.unwrap());
    }
    for namespace in ["default", OPERATOR_NAMESPACE] {
        let events = env.lab.objects(EVENT, namespace).list().await.unwrap();
        reported.push(serde_json::to_string(&events).unwrap());
    }
    // Every status that the controller has written.
    let (controller, mut statuses) = (Binary::Controller.user(), 0);
    for event in env.lab.requests_since(start).await.unwrap() {
        if event.user == controller && event.subresource == "status" {
            statuses += 1;
            reported.push(event.content.to_string());
        }
        // The audit annotations of reviews.
        reported.push(event.annotations.to_string());
    }
    assert!(statuses > 10, "{statuses}");
    for secret in &secrets {
        for text in &reported {
            let line = text.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(line, None, "{CANARY}: {secret}");
        }
    }
}

/// Whether libraries log at level trace, too.
fn is_loud(program: &ProgramUnderTest) -> bool {
    let lines = program.log_lines();
    let loud = lines.iter().filter(|line| line["level"] == "trace");
    loud.count() > 100
}
