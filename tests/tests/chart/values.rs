//! The values of the chart: each has an effect and a test, invalid ones are refused, and the environment variables
//! that follow from them are settings of the programs.

use std::{collections::BTreeMap, fs, process::Command};

use lab::{Binary, paths, tools};
use serde_json::Value;

use crate::{RELEASE, blocks, chart, object, page, rendered};

/// The path of a file that sets every value.
pub(crate) fn everything() -> String {
    let file = paths::repository().join("tests/tests/chart/everything.yaml");
    file.display().to_string()
}

/// Collects the path of every value that is no object, or an empty one.
fn leaves(value: &Value, path: &str, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(value, &format!("{path}.{name}"), found);
            }
        }
        _ => {
            found.insert(path.to_owned(), value.clone());
        }
    }
}

/// The file [`everything`], which other tests use, sets every value of the chart.
#[test]
fn every_chart_value_is_covered_by_a_test() {
    let read = |path: &str| {
        let text = fs::read_to_string(path).unwrap();
        lab::install::parse(&text).unwrap().remove(0)
    };
    let (mut defaults, mut tried) = (BTreeMap::new(), BTreeMap::new());
    leaves(
        &read(&format!("{}/values.yaml", chart())),
        "",
        &mut defaults,
    );
    leaves(&read(&everything()), "", &mut tried);
    let untried: Vec<_> = defaults
        .keys()
        .filter(|path| !tried.keys().any(|tried| tried.starts_with(*path)))
        .collect();
    assert_eq!(untried, [""; 0]);
}

/// Values without an effect in that file, because another value has precedence.
const OVERRULED: [&str; 2] = [
    ".image.tag",                       // by the digest
    ".webhook.certificates.secretName", // by cert-manager
];

/// Without the value, the output differs or rendering fails.
#[tokio::test]
async fn every_chart_value_changes_the_rendered_objects() {
    let home = tempfile::tempdir().unwrap();
    let helm = tools::helm_alone(home.path()).await.unwrap();
    let (file, chart) = (everything(), chart());
    let values = fs::read_to_string(&file).unwrap();
    let mut given = BTreeMap::new();
    leaves(
        &lab::install::parse(&values).unwrap().remove(0),
        "",
        &mut given,
    );
    let rendering = [
        "template",
        RELEASE,
        chart.as_str(),
        "--values",
        file.as_str(),
    ];
    let with_all = helm.run(&rendering).await.unwrap().ok().unwrap();
    let mut without_effect = Vec::new();
    for path in given.keys() {
        // Keys with dots are in maps that the chart copies unchanged.
        let Some(map) = path.split('.').find(|part| part.contains('/')) else {
            let removed = format!("--set={}=null", path.trim_start_matches('.'));
            let output = helm
                .run(&[&rendering[..], &[&removed]].concat())
                .await
                .unwrap();
            if output.stdout == with_all {
                without_effect.push(path.as_str());
            }
            continue;
        };
        assert!(with_all.contains(map), "{path}");
    }
    assert_eq!(without_effect, OVERRULED);
}

#[tokio::test]
async fn the_chart_passes_helm_lint_and_has_this_version() {
    let home = tempfile::tempdir().unwrap();
    let helm = tools::helm_alone(home.path()).await.unwrap();
    let chart = chart();
    let lint = helm.run(&["lint", "--strict", &chart]).await.unwrap();
    assert_eq!(lint.code, 0, "{lint}");
    let text = helm
        .run(&["show", "chart", &chart])
        .await
        .unwrap()
        .ok()
        .unwrap();
    let metadata = lab::install::parse(&text).unwrap().remove(0);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(metadata["version"], version);
    assert_eq!(metadata["appVersion"], format!("v{version}"));
}

#[tokio::test]
async fn an_invalid_chart_value_is_refused_with_its_path() {
    let home = tempfile::tempdir().unwrap();
    let helm = tools::helm_alone(home.path()).await.unwrap();
    for (value, reported) in [
        (
            "webhook.failurPolicy=Fail",
            "at '/webhook': additional properties 'failurPolicy' not allowed",
        ),
        (
            "webhook.failurePolicy=Maybe",
            "at '/webhook/failurePolicy': value must be one of 'Fail', 'Ignore'",
        ),
        (
            "replicaCount=two",
            "at '/replicaCount': got string, want integer",
        ),
        (
            "webhook.drainDelay=10",
            "at '/webhook/drainDelay': got number, want string",
        ),
        (
            "webhook.certificates.leafLife=7d",
            "at '/webhook/certificates/leafLife': '7d' does not match pattern '^([0-9]+(\\\\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$'",
        ),
        (
            "resources.limits.memory=1GB",
            "at '/resources/limits/memory': '1GB' does not match pattern '^[0-9]+(\\\\.[0-9]+)?([munkKMGTPE]|[KMGTPE]i)?$'",
        ),
        (
            "log.level=loud",
            "at '/log/level': value must be one of 'error', 'warn', 'info', 'debug', 'trace'",
        ),
        (
            "controller.leaderElection=false,replicaCount=2",
            "at '/replicaCount': maximum: got 2, want 1",
        ),
    ] {
        let chart = chart();
        let output = helm.run(&["template", &chart, "--set", value]).await;
        let answer = output.unwrap().refused().unwrap();
        let expected = format!(
            "Error: values don't meet the specifications of the schema(s) in the following chart(s):\n\
             kubevirt-operator:\n- {reported}\n\n"
        );
        assert_eq!(answer, expected, "{value}");
        if value.starts_with("webhook.failurPolicy") {
            assert_eq!(
                blocks(&page("install"), "text"),
                [format!("- {reported}\n")]
            );
        }
    }
}

/// A replica is not killed while it answers.
#[tokio::test]
async fn a_grace_period_that_is_shorter_than_the_drain_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let helm = tools::helm_alone(home.path()).await.unwrap();
    let with = async |delay: &str, grace: u32| {
        let values =
            format!("webhook.drainDelay={delay},webhook.terminationGracePeriodSeconds={grace}");
        let chart = chart();
        let output = helm.run(&["template", &chart, "--set", &values]).await;
        output.unwrap()
    };
    for (delay, least) in [("10s", 20), ("1m500ms", 71), ("0.5h", 1810), ("10us", 11)] {
        with(delay, least).await.ok().unwrap();
        let answer = with(delay, least - 1).await.refused().unwrap();
        for part in [
            &format!(
                "webhook.terminationGracePeriodSeconds: {} is less",
                least - 1
            ),
            &format!("webhook.drainDelay ({delay})"),
            &format!("set it to {least} or more"),
        ] {
            assert!(answer.contains(part), "{answer}");
        }
    }
}

/// The environment variables that `--help` of a program lists, with their defaults.
async fn known(binary: Binary) -> BTreeMap<String, Option<String>> {
    let path = binary.path().await.unwrap();
    let help = Command::new(path).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let value = |part: &str, mark: &str| {
        let rest = part.split_once(mark)?.1;
        rest.split_once(']').map(|(value, _)| value.to_owned())
    };
    let mut known = BTreeMap::new();
    for part in help.split("\n      --") {
        if let Some(variable) = value(part, "[env: ") {
            let name = variable.split('=').next().unwrap().to_owned();
            known.insert(name, value(part, "[default: "));
        }
    }
    assert!(known.len() > 5, "{help}");
    known
}

#[tokio::test]
async fn variables_of_the_deployments_are_settings_of_the_programs() {
    let home = tempfile::tempdir().unwrap();
    let helm = tools::helm_alone(home.path()).await.unwrap();
    let everything = format!("--values={}", everything());
    let defaults = rendered(&helm, &[]).await;
    let changed = rendered(&helm, &[&everything]).await;
    for (binary, name) in [
        (Binary::Webhook, "machine-webhook"),
        (Binary::Controller, "kubevirt-operator-controller-manager"),
    ] {
        let known = known(binary).await;
        let variables = |objects: &[Value]| {
            let deployment = object(objects, "Deployment", name);
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            container["env"].as_array().unwrap().clone()
        };
        for variable in variables(&defaults) {
            let name = variable["name"].as_str().unwrap();
            let default = known
                .get(name)
                .unwrap_or_else(|| panic!("{name} is unknown"));
            if variable["valueFrom"].is_null() {
                assert_eq!(variable["value"].as_str(), default.as_deref(), "{name}");
            }
        }
        for variable in variables(&changed) {
            let name = variable["name"].as_str().unwrap();
            // RUST_BACKTRACE is set by extraEnv.
            assert!(
                known.contains_key(name) || name == "RUST_BACKTRACE",
                "{name}"
            );
        }
    }
}
