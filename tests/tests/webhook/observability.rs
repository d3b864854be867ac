//! Reviews in the metrics, in the log, and in the API server's audit log.

use lab::{Lab, ProgramUnderTest, reviews};
use serde_json::{Value, json};

use crate::lab;

/// Confidential input of users.
const CANARY: &str = "canary-7f3a";

/// A Machine with confidential values in many fields, valid and faulty ones.
fn faulty() -> Value {
    let spec = json!({
        "template": CANARY,
        "resources": {"memory": {"size": CANARY}},
        "networks": [{"name": "eth0", "model": CANARY, "macAddress": CANARY}],
        "cloudInit": {
            "userData": format!("#cloud-config\npassword: {CANARY}\n"),
            "metaData": {CANARY: CANARY},
        },
        "nodeSelector": {CANARY: CANARY},
        CANARY: {"nested": CANARY},
    });
    let mut machine = reviews::machine("web", &spec);
    machine["metadata"]["labels"] = json!({CANARY: CANARY});
    machine["metadata"]["annotations"] = json!({CANARY: CANARY});
    machine
}

const FAULTS: &str = "InvalidMac,InvalidQuantity,TemplateNotFound,UnsupportedNicModel";

async fn create(lab: &Lab, machine: &Value, dry_run: bool) -> lab::Output {
    let mut create = vec!["create", "--validate=false", "-f", "-"];
    if dry_run {
        create.push("--dry-run=server");
    }
    let kubectl = lab.kubectl();
    kubectl
        .run_with(&create, machine.to_string())
        .await
        .unwrap()
}

fn refusals(webhook: &ProgramUnderTest) -> Vec<Value> {
    let mut lines = webhook.log_lines();
    lines.retain(|line| line["message"] == "refused");
    lines
}

#[tokio::test]
async fn a_refusal_is_logged_as_one_line_with_names_and_codes() {
    let mut lab = lab().await;
    let webhook = lab.webhook(&[]).await.unwrap();
    let refused = create(&lab, &faulty(), false).await.refused().unwrap();
    assert!(refused.contains("[TemplateNotFound]"), "{refused}");
    create(&lab, &faulty(), true).await.refused().unwrap();
    create(
        &lab,
        &reviews::machine("good", &json!({"template": "small"})),
        false,
    )
    .await
    .ok()
    .unwrap();

    let lines = refusals(&webhook);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (mut line, dry_run) in lines.into_iter().zip([false, true]) {
        line.as_object_mut().unwrap().remove("timestamp");
        assert_eq!(
            line,
            json!({
                "level": "info",
                "message": "refused",
                "namespace": "default",
                "kind": "Machine",
                "name": "web",
                "stage": "mutate",
                "operation": "create",
                "dry_run": dry_run,
                "user": "admin",
                "faults": 4,
                "codes": FAULTS,
                "target": "webhook::review_log",
            })
        );
    }
}

/// The lines of all other levels are part of those of these levels.
#[tokio::test]
async fn no_log_level_discloses_user_input() {
    for level in ["info", "debug", "trace"] {
        let mut lab = lab().await;
        let webhook = lab.webhook(&[("LOG_LEVEL", level)]).await.unwrap();
        create(&lab, &faulty(), false).await.refused().unwrap();
        // Also errors that occur before the object is parsed.
        for broken in [
            format!("{{\"{CANARY}"),
            json!({"request": CANARY}).to_string(),
        ] {
            let mut connection = lab.connect_webhook().await.unwrap();
            connection.post("/mutate", broken).await.unwrap();
        }
        let log = webhook.log();
        let leak = log.lines().find(|line| line.contains(CANARY));
        assert_eq!(leak, None, "{level}");
        assert_eq!(refusals(&webhook).len(), 1, "{level}: {log}");
    }
}

#[tokio::test]
async fn the_audit_log_contains_the_codes_of_a_review() {
    let mut lab = lab().await;
    let _webhook = lab.webhook(&[]).await.unwrap();
    let mark = lab.log_position().await.unwrap();
    create(&lab, &faulty(), false).await.refused().unwrap();
    let missing = json!({
        "template": "small",
        "networks": [{"name": "eth0", "networkName": "prod"}],
    });
    let warned = create(&lab, &reviews::machine("warned", &missing), false).await;
    warned.ok().unwrap();

    let events = lab.requests_since(mark).await.unwrap();
    let writes = events
        .iter()
        .filter(|event| event.resource == "machines" && event.verb == "create");
    let codes: Vec<_> = writes
        .map(|event| {
            let codes = &event.annotations["mutate.machines.vitistack.io/codes"];
            (event.code, codes.as_str().unwrap())
        })
        .collect();
    assert_eq!(
        codes,
        [
            (422, FAULTS),
            (201, "NetworkConfigurationNotFound,NothingToBoot")
        ]
    );
}

/// The lines of a metric, without its name.
fn series<'a>(metrics: &'a str, name: &str) -> Vec<&'a str> {
    let lines = metrics.lines();
    let mut series: Vec<_> = lines.filter_map(|line| line.strip_prefix(name)).collect();
    series.sort_unstable();
    series
}

#[tokio::test]
async fn reviews_are_counted_by_request_and_answer_and_timed() {
    let mut lab = lab().await;
    let mut webhook = lab.webhook(&[]).await.unwrap();
    create(&lab, &faulty(), false).await.refused().unwrap();
    let good = reviews::machine(
        "good",
        &json!({"template": "small", "networks": [{"name": "eth0", "networkName": "prod"}]}),
    );
    create(&lab, &good, false).await.ok().unwrap();
    let annotate = [
        "annotate",
        "machine",
        "good",
        "machine.vitistack.io/refresh-template=x",
    ];
    lab.kubectl().run(&annotate).await.unwrap().ok().unwrap();
    let mut connection = lab.connect_webhook().await.unwrap();
    connection.post("/mutate", "{}").await.unwrap();
    let nothing = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "1"},
    });
    connection
        .post("/mutate", nothing.to_string())
        .await
        .unwrap();

    let metrics = webhook.metrics().await.unwrap();
    assert_eq!(
        series(&metrics, "machine_webhook_reviews_total"),
        [
            r#"{stage="mutate",operation="create",kind="Machine",outcome="denied"} 1"#,
            r#"{stage="mutate",operation="create",kind="Machine",outcome="patched"} 1"#,
            r#"{stage="mutate",operation="unknown",kind="other",outcome="error"} 1"#,
            r#"{stage="mutate",operation="update",kind="Machine",outcome="patched"} 1"#,
            r#"{stage="validate",operation="create",kind="Machine",outcome="allowed"} 1"#,
            r#"{stage="validate",operation="update",kind="Machine",outcome="allowed"} 1"#,
        ]
    );
    let about = r#"stage="mutate",operation="create",kind="Machine""#;
    let codes: Vec<String> = FAULTS
        .split(',')
        .map(|code| format!("{{{about},code=\"{code}\"}} 1"))
        .collect();
    assert_eq!(series(&metrics, "machine_webhook_rejections_total"), codes);
    assert_eq!(
        series(&metrics, "machine_webhook_warnings_total"),
        ["NetworkConfigurationNotFound", "NothingToBoot"]
            .map(|code| format!("{{{about},code=\"{code}\"}} 1"))
    );
    assert_eq!(
        series(&metrics, "machine_webhook_http_errors_total"),
        [r#"{status="400"} 1"#]
    );
    assert_eq!(
        series(&metrics, "machine_webhook_catalog_lookups_total"),
        [
            r#"{kind="network",outcome="absent"} 2"#,
            r#"{kind="template",outcome="absent"} 1"#
        ]
    );
    let buckets = series(
        &metrics,
        r#"machine_webhook_review_duration_seconds_bucket{stage="validate",le="#,
    );
    for bound in ["0.0005", "0.001", "0.005", "0.025", "0.1", "+Inf"] {
        let bound = format!("\"{bound}\"}} ");
        assert!(
            buckets.iter().any(|line| line.starts_with(&bound)),
            "{bound}: {buckets:?}"
        );
    }
    let counts = series(&metrics, "machine_webhook_review_duration_seconds_count");
    assert_eq!(counts, [r#"{stage="mutate"} 4"#, r#"{stage="validate"} 2"#]);
}
