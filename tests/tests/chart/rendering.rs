//! What chart and components render to: alike, taken by the API server, in the strictest Pod Security
//! Standard, with settings that the programs know; and which values the chart refuses.

use std::{collections::BTreeMap, fs, process::Command};

use lab::{Binary, Lab, OPERATOR_NAMESPACE, Options, paths, thin_crd, tools};
use serde_json::{Value, json};

use crate::{RELEASE, bare, blocks, chart, kustomized, object, page, rendered, template};

/// Each component of kustomize, and the values that do the same.
const COMPONENTS: [(&str, &[&str]); 3] = [
    ("cert-manager", &["--set=certManager.enabled=true"]),
    ("ignore-failures", &["--set=webhook.failurePolicy=Ignore"]),
    (
        "priority-class",
        &["--set=priorityClassName=system-cluster-critical"],
    ),
];

/// A folder with a kustomization.yaml that lies beside a checkout in `kubevirt-operator`.
fn beside_a_checkout(lab: &Lab, name: &str, kustomization: &str) -> String {
    let folder = lab.path(name);
    fs::create_dir_all(&folder).unwrap();
    // kustomize takes no absolute paths.
    let here = folder.canonicalize().unwrap();
    let up = "../".repeat(here.components().count() - 1);
    let root = paths::repository()
        .canonicalize()
        .unwrap()
        .display()
        .to_string();
    let checkout = format!("- {up}{}/", root.trim_start_matches('/'));
    let text = kustomization.replace("- kubevirt-operator/", &checkout);
    fs::write(folder.join("kustomization.yaml"), text).unwrap();
    here.display().to_string()
}

/// A folder of kustomize with the installation and a component.
fn overlay(lab: &Lab, component: &str) -> String {
    let text = format!(
        "resources:\n- kubevirt-operator/manifests/install\n\
         components:\n- kubevirt-operator/manifests/components/{component}\n"
    );
    beside_a_checkout(lab, component, &text)
}

/// What the page shows: all components, and an image of one's own.
fn overlay_of_the_page(lab: &Lab) -> String {
    let text = blocks(&page("install"), "yaml").remove(0);
    for (component, _) in COMPONENTS {
        assert!(
            text.contains(&format!("/components/{component}\n")),
            "{component}"
        );
    }
    beside_a_checkout(lab, "of-the-page", &text)
}

/// By kind and name, without what only Helm has.
fn comparable(objects: Vec<Value>) -> BTreeMap<(String, String), Value> {
    let keep = json!({"helm.sh/resource-policy": "keep"});
    let mut comparable = BTreeMap::new();
    for mut object in objects {
        let metadata = object["metadata"].as_object_mut().unwrap();
        if metadata.get("annotations") == Some(&keep) {
            metadata.remove("annotations");
        }
        if let Some(Value::Array(variables)) =
            object.pointer_mut("/spec/template/spec/containers/0/env")
        {
            variables.sort_by_key(|variable| variable["name"].as_str().unwrap().to_owned());
        }
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let name = (text(&object["kind"]), text(&object["metadata"]["name"]));
        assert_eq!(comparable.insert(name, object), None);
    }
    comparable
}

#[tokio::test]
async fn chart_and_kustomize_install_the_same() {
    let lab = bare().await;
    let (helm, kubectl) = (lab.helm().await.unwrap(), lab.kubectl());
    let same = async |values: &[&str], folder: &str| {
        let chart = comparable(rendered(&helm, values).await);
        let mut install = comparable(kustomized(&kubectl, folder).await);
        // Helm makes it with --create-namespace.
        let namespace = ("Namespace".to_owned(), OPERATOR_NAMESPACE.to_owned());
        assert!(install.remove(&namespace).is_some());
        let names = |objects: &BTreeMap<_, _>| objects.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&chart), names(&install), "{values:?}");
        for (name, object) in &chart {
            assert_eq!(*object, install[name], "{values:?}: {name:?}");
        }
    };
    let install = paths::repository().join("manifests/install");
    same(&[], &install.display().to_string()).await;
    for (component, values) in COMPONENTS {
        same(values, &overlay(&lab, component)).await;
    }
}

#[tokio::test]
async fn everything_rendered_is_accepted_by_the_api_server() {
    let lab = bare().await;
    let (helm, kubectl) = (lab.helm().await.unwrap(), lab.kubectl());
    let labels = json!({
        "pod-security.kubernetes.io/enforce": "restricted",
        // A Deployment whose pods would be refused is a warning of its own.
        "pod-security.kubernetes.io/warn": "restricted",
    });
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": OPERATOR_NAMESPACE, "labels": labels},
    });
    lab.apply(&namespace).await.unwrap();
    for (group, version, kind) in [
        ("cert-manager.io", "v1", "Issuer"),
        ("cert-manager.io", "v1", "Certificate"),
        ("monitoring.coreos.com", "v1", "PodMonitor"),
        ("monitoring.coreos.com", "v1", "PrometheusRule"),
    ] {
        let crd = thin_crd(group, version, kind, &[], false);
        lab.apply(&crd).await.unwrap();
    }
    lab.crds_served().await.unwrap();

    let dry = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
    ];
    let accepted = async |text: String, what: &str| {
        let output = kubectl.run_with(&dry, &text).await.unwrap();
        assert_eq!(output.code, 0, "{what}: {output}");
        assert_eq!(output.stderr, "", "{what}");
        output.stdout
    };
    let everything = format!("--values={}", everything());
    for values in [
        &[][..],
        &[everything.as_str()],
        // Of one's own, and none at all.
        &["--set=webhook.certificates.secretName=own"],
        &["--set=certManager.enabled=true"],
        &["--set=controller.leaderElection=false"],
        &["--set=networkPolicy.enabled=false,webhook.podDisruptionBudget.enabled=false"],
        &["--set=crds.install=false,resources=null,webhook.resources=null"],
        &["--set=webhook.topologySpreadConstraints=null"],
    ] {
        accepted(template(&helm, values).await, &format!("{values:?}")).await;
    }
    for folder in [overlay(&lab, "cert-manager"), overlay_of_the_page(&lab)] {
        let text = kubectl.run(&["kustomize", &folder]).await.unwrap();
        accepted(text.ok().unwrap(), &folder).await;
    }
}

/// Where every value is given.
fn everything() -> String {
    let file = paths::repository().join("tests/tests/chart/everything.yaml");
    file.display().to_string()
}

/// Every path to a value that is no object, or an empty one.
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

/// What [`everything_rendered_is_accepted_by_the_api_server`] tries is everything.
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

/// What nothing can show for, because another value wins over it.
const OVERRULED: [&str; 2] = [
    ".image.tag",                       // by the digest
    ".webhook.certificates.secretName", // by cert-manager
];

/// Each value does something: without it, something else is rendered, or nothing at all.
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
        // Names with dots in them are of maps that the chart takes as they are.
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
async fn the_chart_is_sound_and_of_this_version() {
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
    for (value, told) in [
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
        let said = output.unwrap().refused().unwrap();
        let expected = format!(
            "Error: values don't meet the specifications of the schema(s) in the following chart(s):\n\
             kubevirt-operator:\n- {told}\n\n"
        );
        assert_eq!(said, expected, "{value}");
        if value.starts_with("webhook.failurPolicy") {
            assert_eq!(blocks(&page("install"), "text"), [format!("- {told}\n")]);
        }
    }
}

/// A Pod as a Deployment would make it.
fn pod(deployment: &Value) -> Value {
    let template = &deployment["spec"]["template"];
    let mut metadata = template["metadata"].clone();
    metadata["name"] = deployment["metadata"]["name"].clone();
    metadata["namespace"] = OPERATOR_NAMESPACE.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

#[tokio::test]
async fn pods_are_taken_by_the_strictest_pod_security_standard() {
    // Its namespace enforces it, and has the ServiceAccounts of both.
    let options = Options {
        operator: true,
        ..Options::bare()
    };
    let lab = Lab::with(options).await.unwrap();
    let (helm, kubectl) = (lab.helm().await.unwrap(), lab.kubectl());
    let create = ["create", "--dry-run=server", "-f", "-"];
    let everything = format!("--values={}", everything());
    let install = paths::repository().join("manifests/install");
    for objects in [
        kustomized(&kubectl, &install.display().to_string()).await,
        kustomized(&kubectl, &overlay_of_the_page(&lab)).await,
        rendered(&helm, &[]).await,
        rendered(&helm, &[&everything]).await,
    ] {
        for name in ["machine-webhook", "kubevirt-operator-controller-manager"] {
            let pod = pod(object(&objects, "Deployment", name));
            let output = kubectl.run_with(&create, pod.to_string()).await.unwrap();
            assert_eq!(
                output.ok().unwrap(),
                format!("pod/{name} created (server dry run)\n")
            );

            let mut privileged = pod.clone();
            privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
            let output = kubectl.run_with(&create, privileged.to_string()).await;
            let told = output.unwrap().refused().unwrap();
            let expected = format!(
                "pods \"{name}\" is forbidden: violates PodSecurity \"restricted:latest\": privileged"
            );
            assert!(told.contains(&expected), "{told}");
        }
    }
}

/// The settings that a program knows, with their defaults, as `--help` tells them.
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
async fn settings_are_known_to_the_programs() {
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
            // The one in extraEnv.
            assert!(
                known.contains_key(name) || name == "RUST_BACKTRACE",
                "{name}"
            );
        }
    }
}
