//! Alerts, recording rules and dashboard ask for what the programs really export.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use bytes::Bytes;
use lab::{http, objects::TEMPLATE, pages::page, paths, wait};
use promql_parser::{
    label::MatchOp,
    parser::{self, AggregateExpr, Expr, LabelModifier, VectorSelector},
};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// Names of metrics, and the labels each was seen with.
type Exported = BTreeMap<String, BTreeSet<String>>;

/// An expression, and where it stands.
struct Asked {
    place: String,
    expression: String,
    /// What it is recorded as.
    record: Option<String>,
}

#[tokio::test]
async fn exported_metrics_are_those_that_dashboards_and_alerts_query() {
    let exported = everything_happens().await;
    let mut asked = rules();
    asked.extend(dashboard());
    assert!(asked.len() > 30, "{} expressions", asked.len());

    let mut known = exported.clone();
    let mut used = BTreeSet::new();
    let mut problems = Vec::new();
    for Asked {
        place,
        expression,
        record,
    } in &asked
    {
        let parsed = match parser::parse(expression) {
            Ok(parsed) => parsed,
            Err(error) => {
                problems.push(format!("{place}: {error}"));
                continue;
            }
        };
        let (mut selectors, mut labels) = (Vec::new(), BTreeSet::new());
        walk(&parsed, &mut selectors, &mut labels);
        assert!(!selectors.is_empty(), "{place} asks for nothing");
        let mut available = BTreeSet::new();
        for selector in selectors {
            let name = selector.name.clone().unwrap();
            let Some(has) = known.get(&name) else {
                problems.push(format!("{place}: {name} is exported by nobody"));
                continue;
            };
            for matcher in &selector.matchers.matchers {
                assert_eq!(matcher.op, MatchOp::Equal, "{place}");
                if !has.contains(&matcher.name) {
                    problems.push(format!("{place}: {name} has no label {}", matcher.name));
                }
            }
            available.extend(has.iter().cloned());
            used.insert(name);
        }
        for label in labels.iter().filter(|label| !available.contains(*label)) {
            problems.push(format!("{place}: there is no label {label}"));
        }
        if let Some(record) = record {
            labels.remove("le");
            known.insert(record.clone(), labels);
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");

    // And nothing is exported that nobody shows.
    let family = |name: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        let end = ends.into_iter().find_map(|end| name.strip_suffix(end));
        end.unwrap_or(name).to_owned()
    };
    let used: BTreeSet<_> = used.iter().map(|name| family(name)).collect();
    let families: BTreeSet<_> = exported.keys().map(|name| family(name)).collect();
    let unused: Vec<_> = families.difference(&used).collect();
    assert!(unused.is_empty(), "no panel, no alert: {unused:?}");

    // And each is on the page, which has no other.
    let page = page("operate").unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter(|row| row.starts_with(|letter: char| letter.is_ascii_lowercase()));
    let told: BTreeSet<_> = rows
        .map(|row| row.split('`').next().unwrap().to_owned())
        .collect();
    assert_eq!(told, families);
}

/// Every alert is explained.
#[test]
fn alerts_say_what_to_do() {
    let folder = paths::repository().join("manifests/monitoring");
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    for alert in groups().iter().filter_map(|rule| rule["alert"].as_str()) {
        assert!(readme.contains(&format!("| `{alert}` |")), "{alert}");
    }
}

/// Makes both programs count everything they can count; tells what they export then.
async fn everything_happens() -> Exported {
    let mut env = Environment::new().await;
    // A refusal, a warning, a live read, a request that is no review.
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
    // A volume, a VirtualMachine, an error.
    env.barrier("web").await;
    let machines = env.machines();
    let told = machines.until_condition(
        "lost",
        "NetworkReady",
        "False",
        "NetworkConfigurationNotFound",
    );
    told.await.unwrap();

    // Gauges are counted now and then.
    wait::until("the gauges", async || {
        let text = env.controller.metrics().await?;
        let shown = text.contains("kubevirt_operator_virtual_machines_total{")
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

fn groups() -> Vec<Value> {
    let file = paths::repository().join("manifests/monitoring/rules.yaml");
    let text = fs::read_to_string(file).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = rules["spec"]["groups"].as_array().unwrap();
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    rules.cloned().collect()
}

fn rules() -> Vec<Asked> {
    let asked = |rule: &Value| {
        let text = |field: &str| rule[field].as_str().map(ToOwned::to_owned);
        Asked {
            place: text("alert").or(text("record")).unwrap(),
            expression: text("expr").unwrap(),
            record: text("record"),
        }
    };
    groups().iter().map(asked).collect()
}

fn dashboard() -> Vec<Asked> {
    let file = paths::repository().join("manifests/monitoring/dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
    let targets = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(|target| Asked {
            place: format!("panel {}", panel["title"]),
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
