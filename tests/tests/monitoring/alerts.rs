//! Alerts in the evaluator of Prometheus: each is quiet at first, fires while its cause lasts, and is resolved afterwards.

use std::{collections::BTreeMap, fs, path::Path};

use lab::tools::promtool;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::rules::{groups, rules_of};

/// An alert, with samples of its metrics that make it fire.
#[derive(Deserialize)]
pub(crate) struct Case {
    alert: String,
    /// Samples of each series, one a minute, in the notation of promtool.
    pub(crate) series: BTreeMap<String, String>,
    /// Minute before the alert fires.
    quiet: u32,
    fires: u32,
    resolves: u32,
    /// Labels of the firing alert, without its severity.
    labels: Value,
    /// The description of the firing alert.
    says: String,
}

/// The alerts of alerts.yaml.
pub(crate) fn cases() -> Vec<Case> {
    serde_saphyr::from_str(include_str!("alerts.yaml")).unwrap()
}

impl Case {
    /// The test of promtool. `rule`: the alert in rules.yaml.
    fn test(&self, rule: &Value) -> Value {
        let series = self.series.iter();
        let series = series.map(|(series, values)| json!({"series": series, "values": values}));
        let mut labels = self.labels.clone();
        labels["severity"] = rule["labels"]["severity"].clone();
        let summary = &rule["annotations"]["summary"];
        let firing = json!([{
            "exp_labels": labels,
            "exp_annotations": {"summary": summary, "description": self.says},
        }]);
        let at = |minute: u32, alerts: Value| {
            let time = format!("{minute}m");
            json!({"eval_time": time, "alertname": self.alert, "exp_alerts": alerts})
        };
        json!({
            "name": self.alert,
            "interval": "1m",
            "input_series": series.collect::<Vec<_>>(),
            "alert_rule_test": [
                at(self.quiet, json!([])), at(self.fires, firing), at(self.resolves, json!([])),
            ],
        })
    }
}

/// Runs these tests of promtool over the rules that are shipped.
pub(crate) async fn evaluate(tests: Vec<Value>, folder: &Path) {
    let rules = json!({"groups": groups()});
    fs::write(folder.join("rules.json"), rules.to_string()).unwrap();
    let file = json!({
        "rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": tests,
    });
    let tests = folder.join("tests.json");
    fs::write(&tests, file.to_string()).unwrap();
    let promtool = promtool().await.unwrap();
    let output = Command::new(promtool)
        .args(["test", "rules"])
        .arg(tests)
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

#[tokio::test]
async fn every_alert_is_quiet_then_fires_and_is_resolved_when_its_cause_is_gone() {
    let rules = rules_of(&groups());
    let cases = cases();
    let alerts = rules.iter().filter_map(|rule| rule["alert"].as_str());
    let mut alerts: Vec<_> = alerts.collect();
    let mut tested: Vec<_> = cases.iter().map(|case| case.alert.as_str()).collect();
    alerts.sort_unstable();
    tested.sort_unstable();
    assert_eq!(tested, alerts, "each alert of rules.yaml has one case");

    let test = |case: &Case| {
        let mut rules = rules.iter();
        case.test(rules.find(|rule| rule["alert"] == *case.alert).unwrap())
    };
    let folder = tempfile::tempdir().unwrap();
    evaluate(cases.iter().map(test).collect(), folder.path()).await;
}
