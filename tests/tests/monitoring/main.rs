//! Alerts, recording rules, dashboard and documentation use the metrics that the programs export.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod alerts;
#[path = "../environment/mod.rs"]
mod environment;
mod lab_alerts;
mod rules;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use bytes::Bytes;
use lab::{
    http,
    objects::{HOST, POLICY, TEMPLATE},
    pages::{code_spans, page, rows, section},
    paths, wait,
};
use promql_parser::{
    label::MatchOp,
    parser::{self, AggregateExpr, Expr, LabelModifier, VectorSelector},
};
use serde_json::{Value, json};

use environment::{Environment, machine};
use rules::{groups, rules_of};

/// Names of metrics, and the labels each was seen with.
type Exported = BTreeMap<String, BTreeSet<String>>;

/// A PromQL expression of the manifests.
struct Query {
    /// The alert, recording rule or panel that has it.
    source: String,
    expression: String,
    /// Name of the metric that it is recorded as.
    record: Option<String>,
}

#[tokio::test]
async fn every_metric_is_exported_used_and_documented() {
    let exported = everything_happens().await;
    let mut queries = recorded_and_alerts();
    queries.extend(dashboard());
    assert!(queries.len() > 30, "{} expressions", queries.len());

    let mut known = exported.clone();
    let mut used = BTreeSet::new();
    let mut problems = Vec::new();
    for Query {
        source,
        expression,
        record,
    } in &queries
    {
        let parsed = match parser::parse(expression) {
            Ok(parsed) => parsed,
            Err(error) => {
                problems.push(format!("{source}: {error}"));
                continue;
            }
        };
        let (mut selectors, mut labels) = (Vec::new(), BTreeSet::new());
        walk(&parsed, &mut selectors, &mut labels);
        assert!(!selectors.is_empty(), "{source} selects no metric");
        let mut available = BTreeSet::new();
        for selector in selectors {
            let name = selector.name.clone().unwrap();
            let Some(has) = known.get(&name) else {
                problems.push(format!("{source}: no program exports {name}"));
                continue;
            };
            for matcher in &selector.matchers.matchers {
                let selects = matches!(matcher.op, MatchOp::Equal | MatchOp::Re(_));
                assert!(selects, "{source} {:?}", matcher.op);
                if !has.contains(&matcher.name) {
                    problems.push(format!("{source}: {name} has no label {}", matcher.name));
                }
            }
            available.extend(has.iter().cloned());
            used.insert(name);
        }
        for label in labels.iter().filter(|label| !available.contains(*label)) {
            problems.push(format!("{source}: there is no label {label}"));
        }
        if let Some(record) = record {
            labels.remove("le");
            known.insert(record.clone(), labels);
        }
    }
    // The samples of the alerts' tests are of series that exist.
    for series in alerts::cases().iter().flat_map(|case| case.series.keys()) {
        let (name, labels) = sample(&format!("{series} "));
        let labels: BTreeSet<_> = labels.into_iter().collect();
        if exported.get(&name) != Some(&labels) {
            problems.push(format!("alerts.yaml: no program exports {series}"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");

    // Every exported metric has a panel or an alert.
    let family = |name: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        let end = ends.into_iter().find_map(|end| name.strip_suffix(end));
        end.unwrap_or(name).to_owned()
    };
    let used: BTreeSet<_> = used.iter().map(|name| family(name)).collect();
    let families: BTreeSet<_> = exported.keys().map(|name| family(name)).collect();
    let unused: Vec<_> = families.difference(&used).collect();
    assert!(unused.is_empty(), "no panel, no alert: {unused:?}");

    // The page documents exactly the exported metrics.
    let page = page("operate").unwrap();
    let documented: BTreeSet<_> = rows(section(&page, "Metrics").unwrap())
        .iter()
        .filter_map(|row| code_spans(row[0]).next().map(str::to_owned))
        .collect();
    assert_eq!(documented, families);
}

#[test]
fn every_alert_is_documented_and_every_documented_alert_exists() {
    let folder = paths::repository().join("manifests/monitoring");
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    let documented: BTreeSet<_> = rows(&readme)
        .iter()
        .filter_map(|row| code_spans(row[0]).next().map(str::to_owned))
        .collect();
    let rules = rules_of(&groups());
    let alerts = rules.iter().filter_map(|rule| rule["alert"].as_str());
    assert_eq!(documented, alerts.map(str::to_owned).collect());
}

/// Causes every event that the programs count, and returns the metrics that they export then.
async fn everything_happens() -> Exported {
    let mut env = Environment::new().await;
    // A refusal, a warning, a live read, and a request that is no review.
    let kubectl = env.lab.kubectl();
    let wrong = machine("wrong", &json!({"template": "none"})).to_string();
    let refused = kubectl
        .run_with(&["apply", "-f", "-"], wrong)
        .await
        .unwrap();
    refused.refused().unwrap();
    let old = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineTemplate",
        "metadata": {"name": "old"},
        "spec": {"deprecated": "use small", "resources": {"cpu": {"cores": 1}, "memory": {"size": "1Gi"}}},
    });
    env.lab.objects(TEMPLATE, "").create(&old).await.unwrap();
    let lost = json!({"template": "old", "networks": [{"name": "eth0", "networkName": "lost"}]});
    env.apply(&machine("lost", &lost)).await;
    let mut webhook = env.lab.connect_webhook().await.unwrap();
    let no_review = webhook
        .send("GET", "/mutate", "text/plain", Bytes::new())
        .await;
    assert_eq!(no_review.unwrap().status, 405);
    let host = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "LibvirtHost",
        "metadata": {"name": "alpha"},
        "spec": {
            "uri": "test:///default", "virtType": "qemu",
            "storage": [{"storageClass": "local", "pool": "default-pool"}],
        },
    });
    env.lab.objects(HOST, "").create(&host).await.unwrap();
    let policy = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachinePolicy",
        "metadata": {"name": "all"},
        "spec": {"namespaceSelector": {}, "quota": {"cpu": 100}},
    });
    env.lab.objects(POLICY, "").create(&policy).await.unwrap();
    // A volume, a VirtualMachine, an error.
    env.barrier("web").await;
    let machines = env.machines();
    let reported = machines.until_condition(
        "lost",
        "NetworkReady",
        "False",
        "NetworkConfigurationNotFound",
    );
    reported.await.unwrap();

    // Gauges are computed periodically.
    wait::until("the gauges", async || {
        let text = env.controller.metrics().await?;
        let shown = text.contains("kubevirt_operator_virtual_machines_total{")
            && text.contains("kubevirt_operator_libvirt_host_up{")
            && text.contains("kubevirt_operator_libvirt_pool_disks{")
            && text.contains("kubevirt_operator_quota_hard{")
            && text.contains(r#"template="small""#);
        Ok(if shown { Ok(()) } else { Err(text) })
    })
    .await
    .unwrap();
    let mut exported = Exported::new();
    let admin = env.webhook.address("admin").await.unwrap();
    let metrics = env.controller.address("metrics").await.unwrap();
    for address in [admin, metrics] {
        let text = http::get(address, "/metrics").await.unwrap().text();
        for line in text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
        {
            let (name, labels) = sample(line);
            exported.entry(name).or_default().extend(labels);
        }
    }
    exported
}

/// Name and labels of a line of the exposition; no value of ours has a comma or a brace.
fn sample(line: &str) -> (String, Vec<String>) {
    let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
    let labels = rest
        .strip_prefix('{')
        .map_or("", |rest| rest.split_once('}').unwrap().0);
    let labels = labels
        .split(',')
        .filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
    (name.to_owned(), labels.collect())
}

fn recorded_and_alerts() -> Vec<Query> {
    let query = |rule: &Value| {
        let text = |field: &str| rule[field].as_str().map(ToOwned::to_owned);
        Query {
            source: text("alert").or(text("record")).unwrap(),
            expression: text("expr").unwrap(),
            record: text("record"),
        }
    };
    rules_of(&groups()).iter().map(query).collect()
}

fn dashboard() -> Vec<Query> {
    let file = paths::repository().join("manifests/monitoring/dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
    let targets = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(|target| Query {
            source: format!("panel {}", panel["title"]),
            expression: target["expr"].as_str().unwrap().to_owned(),
            record: None,
        })
    });
    targets.collect()
}

/// Collects the selectors of an expression, and the labels it groups by.
fn walk<'a>(
    expr: &'a Expr,
    selectors: &mut Vec<&'a VectorSelector>,
    labels: &mut BTreeSet<String>,
) {
    match expr {
        Expr::Aggregate(AggregateExpr { expr, modifier, .. }) => {
            if let Some(LabelModifier::Include(by)) = modifier {
                labels.extend(by.labels.iter().cloned());
            }
            walk(expr, selectors, labels);
        }
        Expr::Binary(binary) => {
            walk(&binary.lhs, selectors, labels);
            walk(&binary.rhs, selectors, labels);
        }
        Expr::Call(call) => {
            for argument in &call.args.args {
                walk(argument, selectors, labels);
            }
        }
        Expr::VectorSelector(selector) => selectors.push(selector),
        Expr::MatrixSelector(matrix) => selectors.push(&matrix.vs),
        Expr::Paren(inner) => walk(&inner.expr, selectors, labels),
        Expr::Unary(inner) => walk(&inner.expr, selectors, labels),
        Expr::Subquery(inner) => walk(&inner.expr, selectors, labels),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}
