//! The objects that the chart and the kustomize components render: both render the same, the API server accepts them,
//! and their pods satisfy the Pod Security Standard `restricted`.

use std::{collections::BTreeMap, fs};

use lab::{Lab, OPERATOR_NAMESPACE, Options, paths, thin_crd};
use serde_json::{Value, json};

use crate::{bare, blocks, kustomized, object, page, rendered, template, values::everything};

/// Each component of kustomize, and the values with the same effect.
const COMPONENTS: [(&str, &[&str]); 3] = [
    ("cert-manager", &["--set=certManager.enabled=true"]),
    ("ignore-failures", &["--set=webhook.failurePolicy=Ignore"]),
    (
        "priority-class",
        &["--set=priorityClassName=system-cluster-critical"],
    ),
];

/// A folder with a kustomization.yaml beside a checkout in `kubevirt-operator`.
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

/// The overlay that the page shows: all components, and another image.
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

/// The objects by kind and name, without the labels that only Helm sets.
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
async fn chart_and_kustomize_render_the_same_objects() {
    let lab = bare().await;
    let (helm, kubectl) = (lab.helm().await.unwrap(), lab.kubectl());
    let same = async |values: &[&str], folder: &str| {
        let chart = comparable(rendered(&helm, values).await);
        let mut install = comparable(kustomized(&kubectl, folder).await);
        // Helm creates the namespace with --create-namespace.
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

/// With a certificate from outside, the webhook may only read webhook configurations and Secrets.
#[tokio::test]
async fn with_a_certificate_from_outside_the_webhook_may_write_no_configuration_and_no_secret() {
    let lab = bare().await;
    let (helm, kubectl) = (lab.helm().await.unwrap(), lab.kubectl());
    let install = paths::repository().join("manifests/install");
    let own = rendered(&helm, &[]).await;
    assert_eq!(own_writes(&own), ["patch", "create", "update"]);
    let own = kustomized(&kubectl, &install.display().to_string()).await;
    assert_eq!(own_writes(&own), ["patch", "create", "update"]);
    for values in [
        "--set=certManager.enabled=true",
        "--set=webhook.certificates.secretName=own",
    ] {
        assert_eq!(own_writes(&rendered(&helm, &[values]).await), [""; 0]);
    }
    let component = kustomized(&kubectl, &overlay(&lab, "cert-manager")).await;
    assert_eq!(own_writes(&component), [""; 0]);
}

/// The verbs that change webhook configurations and Secrets, in the roles of the webhook.
fn own_writes(objects: &[Value]) -> Vec<String> {
    let kinds = ["ClusterRole", "Role"];
    let granted = kinds.map(|kind| object(objects, kind, "machine-webhook"));
    let rules = granted
        .iter()
        .flat_map(|role| role["rules"].as_array().unwrap());
    let guarded = rules.filter(|rule| {
        let resources = rule["resources"].as_array().unwrap();
        resources.iter().any(|resource| {
            let resource = resource.as_str().unwrap();
            resource == "secrets" || resource.ends_with("webhookconfigurations")
        })
    });
    let verbs = guarded.flat_map(|rule| rule["verbs"].as_array().unwrap());
    let verbs = verbs.map(|verb| verb.as_str().unwrap().to_owned());
    verbs
        .filter(|verb| !["get", "list", "watch"].contains(&verb.as_str()))
        .collect()
}

#[tokio::test]
async fn everything_rendered_is_accepted_by_the_api_server() {
    let lab = bare().await;
    let (helm, kubectl) = (lab.helm().await.unwrap(), lab.kubectl());
    let labels = json!({
        "pod-security.kubernetes.io/enforce": "restricted",
        // The API server warns of a Deployment whose pods it would refuse.
        "pod-security.kubernetes.io/warn": "restricted",
    });
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": OPERATOR_NAMESPACE, "labels": labels},
    });
    lab.apply(&namespace).await.unwrap();
    // That of everything.yaml for images.
    let images = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "machine-images"},
    });
    lab.apply(&images).await.unwrap();
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
        // An existing Secret, cert-manager, and no leader election.
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

/// A Pod as a Deployment would create it.
fn pod(deployment: &Value) -> Value {
    let template = &deployment["spec"]["template"];
    let mut metadata = template["metadata"].clone();
    metadata["name"] = deployment["metadata"]["name"].clone();
    metadata["namespace"] = OPERATOR_NAMESPACE.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

#[tokio::test]
async fn pods_satisfy_the_restricted_pod_security_standard() {
    // The installed namespace enforces the standard, and has the ServiceAccounts of both programs.
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
            let reported = output.unwrap().refused().unwrap();
            let expected = format!(
                "pods \"{name}\" is forbidden: violates PodSecurity \"restricted:latest\": privileged"
            );
            assert!(reported.contains(&expected), "{reported}");
        }
    }
}
