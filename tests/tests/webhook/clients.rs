//! Client certificates: with the setting, the webhook serves only the API server.

use std::fs;
use std::path::Path;

use lab::http::Connection;
use lab::{CALLER, Caller, CallerCa, Lab, ProgramUnderTest, wait};
use serde_json::Value;

use crate::{admit, lab, response, review, reviewed};

/// Replaces a file atomically, because the webhook may read it at any moment.
fn put(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).unwrap();
    fs::rename(draft, path).unwrap();
}

/// Sends a review on a new connection with a client certificate.
async fn asked_as(lab: &Lab, caller: &Caller) -> anyhow::Result<()> {
    let ca = lab.ca_bundle().await?;
    let mut connection = Connection::tls_as(lab.webhook_address(), &ca, caller).await?;
    let answer = connection.post("/validate", review().to_string()).await?;
    response(&answer);
    Ok(())
}

/// The reasons and numbers of refused clients in the log.
fn refusals(webhook: &ProgramUnderTest) -> Vec<(String, u64)> {
    let mut lines = webhook.log_lines();
    lines.retain(|line| line["message"] == "refused clients by their certificate");
    let reported = |line: &Value| {
        assert_eq!(
            (&line["level"], &line["peer"]),
            (&"warn".into(), &"127.0.0.1".into())
        );
        (
            line["reason"].as_str().unwrap().to_owned(),
            line["refused"].as_u64().unwrap(),
        )
    };
    lines.iter().map(reported).collect()
}

#[tokio::test]
async fn only_clients_with_a_configured_ca_and_name_are_served() {
    let mut lab = lab().await;
    let file = lab.path("callers.crt");
    put(&file, lab.callers().pem());
    let file_name = file.display().to_string();
    let names = format!("other.example,{CALLER}");
    let settings = [
        ("CLIENT_CA", file_name.as_str()),
        ("CLIENT_CN", names.as_str()),
    ];
    // Health and metrics need no client certificate.
    let mut webhook = lab.webhook(&settings).await.unwrap();
    reviewed(&lab).await.unwrap();

    let strangers = CallerCa::new("strangers").unwrap();
    let sign = |name: &str, dns: &[&str]| lab.callers().sign(name, dns).unwrap();
    asked_as(&lab, &sign("somebody", &["other.example"]))
        .await
        .unwrap();
    let ca = String::from_utf8(lab.ca_bundle().await.unwrap()).unwrap();
    for (reported, outcome) in [
        (
            "received fatal alert: CertificateRequired",
            admit(lab.webhook_address(), &ca).await.map(drop),
        ),
        (
            "received fatal alert: UnknownCA",
            asked_as(&lab, &strangers.sign(CALLER, &[]).unwrap()).await,
        ),
        (
            "received fatal alert: CertificateUnknown",
            asked_as(&lab, &sign("kubelet", &["node.example"])).await,
        ),
        (
            "received fatal alert: CertificateUnknown",
            asked_as(&lab, &sign("kubelet", &[])).await,
        ),
    ] {
        let error = format!("{:#}", outcome.unwrap_err());
        assert!(error.contains(reported), "{error}");
    }
    let metrics = webhook.metrics().await.unwrap();
    let refused = "machine_webhook_connections_refused_total{reason=\"client\"} 4";
    assert!(metrics.lines().any(|line| line == refused), "{metrics}");
    // One log line for each reason within ten seconds, whatever the number of clients.
    let may = format!("\"other.example\" or \"{CALLER}\"");
    assert_eq!(
        refusals(&webhook),
        [
            ("it shows no certificate".to_owned(), 1),
            ("its certificate: UnknownIssuer".to_owned(), 1),
            (
                format!(
                    "the client is \"kubelet\" or \"node.example\", but only {may} may connect"
                ),
                1
            ),
        ]
    );
    reviewed(&lab).await.unwrap();
    webhook.stop().await.unwrap();

    // An API server with another name: its error and the webhook's log contain the reason.
    let settings = [
        ("CLIENT_CA", file_name.as_str()),
        ("CLIENT_CN", "other.example"),
    ];
    let webhook = lab.webhook(&settings).await.unwrap();
    // Go's client reads the alert before its own write fails, nearly always.
    wait::until("the API server to report the reason", async || {
        let error = format!("{:#}", reviewed(&lab).await.unwrap_err());
        assert!(error.contains("failed calling webhook"), "{error}");
        let says_why = error.contains("remote error: tls: ");
        Ok(says_why.then_some(()).ok_or(error))
    })
    .await
    .unwrap();
    let reported = refusals(&webhook);
    let expected = format!("the client is \"{CALLER}\", but only \"other.example\" may connect");
    assert_eq!(reported[0].0, expected);
}

#[tokio::test]
async fn a_changed_file_of_client_cas_is_read_again() {
    let mut lab = lab().await;
    let file = lab.path("callers.crt");
    put(&file, lab.callers().pem());
    let file_name = file.display().to_string();
    let settings = [
        ("CLIENT_CA", file_name.as_str()),
        ("CERTIFICATE_POLL", "200ms"),
    ];
    let mut webhook = lab.webhook(&settings).await.unwrap();
    let next = CallerCa::new("next callers").unwrap();
    let (old_caller, new_caller) = (
        lab.callers().sign(CALLER, &[]).unwrap(),
        next.sign("anybody", &[]).unwrap(),
    );
    asked_as(&lab, &old_caller).await.unwrap();
    assert!(asked_as(&lab, &new_caller).await.is_err());

    put(&file, &format!("{}{}", lab.callers().pem(), next.pem()));
    let served = async |caller: &Caller, wanted: bool| {
        wait::until("the other CAs", async || {
            let is = asked_as(&lab, caller).await;
            Ok(if is.is_ok() == wanted {
                Ok(())
            } else {
                Err(is)
            })
        })
        .await
        .unwrap();
    };
    served(&new_caller, true).await;
    asked_as(&lab, &old_caller).await.unwrap();
    put(&file, next.pem());
    served(&old_caller, false).await;
    asked_as(&lab, &new_caller).await.unwrap();

    // A file that is no bundle changes nothing, and is logged once.
    put(&file, "none");
    let fault = "machine_webhook_certificate_last_error_timestamp_seconds{fault=\"client-ca\"} 0";
    wait::until("the fault to be reported", async || {
        let metrics = webhook.metrics().await?;
        Ok(if metrics.lines().any(|line| line == fault) {
            Err(())
        } else {
            Ok(())
        })
    })
    .await
    .unwrap();
    asked_as(&lab, &new_caller).await.unwrap();
    let lines = webhook.log_lines();
    let mut reported = lines.iter().filter(|line| {
        line["target"] == "webhook::certificates::status" && line["level"] == "warn"
    });
    let error = format!("{file_name} is not a bundle of CA certificates: there is no certificate");
    assert_eq!(reported.next().unwrap()["error"], error.as_str());
    assert!(reported.next().is_none());
}
