//! The Helm chart, rendered and installed with Helm.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod lifecycle;
mod pages;
mod release;
mod rendering;
mod values;

use lab::{Helm, Kubectl, Lab, OPERATOR_NAMESPACE, Options, install, pages::blocks, paths};
use serde_json::Value;

/// The release's name in all tests.
const RELEASE: &str = "kubevirt-operator";

/// The folder of the chart.
fn chart() -> String {
    let folder = paths::repository().join("manifests/charts/kubevirt-operator");
    folder.display().to_string()
}

/// A page of the documentation.
fn page(name: &str) -> String {
    lab::pages::page(name).unwrap()
}

async fn bare() -> Lab {
    Lab::with(Options::bare()).await.unwrap()
}

/// The output of `helm template`, without the objects of `helm test`.
async fn template(helm: &Helm, more: &[&str]) -> String {
    let chart = chart();
    let mut all = vec!["template", RELEASE, &chart, "--skip-tests"];
    all.extend(["--namespace", OPERATOR_NAMESPACE]);
    all.extend(more);
    helm.run(&all).await.unwrap().ok().unwrap()
}

/// The objects that the chart renders, with values set on the command line.
async fn rendered(helm: &Helm, more: &[&str]) -> Vec<Value> {
    install::parse(&template(helm, more).await).unwrap()
}

/// The objects that a folder of kustomize renders.
async fn kustomized(kubectl: &Kubectl, folder: &str) -> Vec<Value> {
    let output = kubectl.run(&["kustomize", folder]).await.unwrap();
    install::parse(&output.ok().unwrap()).unwrap()
}

/// The object of a kind and name.
fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let wanted = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    let found = objects.iter().find(wanted);
    assert!(found.is_some(), "there is no {kind} {name}");
    found.unwrap()
}
