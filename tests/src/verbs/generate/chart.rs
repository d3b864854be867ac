//! What of the Helm chart follows from the other manifests.
//!
//! ```text
//! CRDs ──────────────────────────────► templates/crds/*.yaml       kept by an uninstall
//! install/{controller,webhook}-rbac ─► templates/*-rbac.yaml       ┐ the namespace and what
//! install/webhook-configurations ────► templates/webhook-…yaml     ┘ values decide, put in
//! monitoring/{rules,dashboard} ──────► files/                      what is no template
//! ```
//! The rest of the chart is written by hand; a test compares what it renders with `manifests/install`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use common::api::crd_files;
use lab::{OPERATOR_NAMESPACE, paths};
use serde_json::json;

const CHART: &str = "manifests/charts/kubevirt-operator";
/// Nothing else is in this folder.
pub(super) const CRDS: &str = "manifests/charts/kubevirt-operator/templates/crds";

/// A text of the installation, and what stands for it in the chart.
type Change = (&'static str, &'static str);

const CONTROLLER_RBAC: [Change; 1] = [(
    "ServiceAccount
metadata:
  name: kubevirt-operator-controller-manager
",
    "ServiceAccount
metadata:
  name: kubevirt-operator-controller-manager
  {{- with .Values.controller.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
",
)];

const WEBHOOK_RBAC: [Change; 1] = [(
    "ServiceAccount
metadata:
  name: machine-webhook
",
    "ServiceAccount
metadata:
  name: machine-webhook
  {{- with .Values.webhook.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
",
)];

const CONFIGURATIONS: [Change; 4] = [
    (
        "metadata:
  name: machine-webhook
",
        "metadata:
  name: machine-webhook
  {{- if .Values.certManager.enabled }}
  annotations:
    cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/machine-webhook
  {{- end }}
",
    ),
    (
        "failurePolicy: Fail",
        "failurePolicy: {{ .Values.webhook.failurePolicy }}",
    ),
    (
        "timeoutSeconds: 3",
        "timeoutSeconds: {{ .Values.webhook.timeoutSeconds }}",
    ),
    ("port: 443", "port: {{ .Values.webhook.servicePort }}"),
];

/// Every file with its content.
pub(super) fn files() -> Result<BTreeMap<PathBuf, String>> {
    let chart = paths::repository().join(CHART);
    let mut files = BTreeMap::new();
    for crd in crd_files()? {
        let mut definition = crd.definition;
        definition["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
        let yaml = serde_saphyr::to_string(&definition)?;
        no_template(&yaml)?;
        let text = format!("{{{{- if .Values.crds.install }}}}\n{yaml}{{{{- end }}}}\n");
        files.insert(
            chart.join("templates/crds").join(crd.file),
            header("the Rust types", &text),
        );
    }
    for (name, changes) in [
        ("controller-rbac.yaml", CONTROLLER_RBAC.as_slice()),
        ("webhook-rbac.yaml", WEBHOOK_RBAC.as_slice()),
        ("webhook-configurations.yaml", CONFIGURATIONS.as_slice()),
    ] {
        let source = Path::new("manifests/install").join(name);
        let text = changed(&read(&source)?, changes)
            .with_context(|| format!("a template of {}", source.display()))?;
        let text = header(&source.display().to_string(), &text);
        files.insert(chart.join("templates").join(name), text);
    }
    let rules = read(Path::new("manifests/monitoring/rules.yaml"))?;
    let spec = rules.find("\nspec:\n").context("rules without a spec")?;
    files.insert(
        chart.join("files/rules.yaml"),
        header("manifests/monitoring/rules.yaml", &rules[spec + 1..]),
    );
    let dashboard = read(Path::new("manifests/monitoring/dashboard.json"))?;
    files.insert(chart.join("files/dashboard.json"), dashboard);
    Ok(files)
}

fn header(source: &str, text: &str) -> String {
    format!("# Generated from {source} by `cargo lab generate`.\n{text}")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(paths::repository().join(path))
        .with_context(|| format!("reading {}", path.display()))
}

/// Braces would be taken for a template's.
fn no_template(text: &str) -> Result<()> {
    ensure!(!text.contains("{{"), "a manifest with double braces");
    Ok(())
}

/// The text with every change made; each must have a place, or the chart would lack what it is for.
fn changed(text: &str, changes: &[Change]) -> Result<String> {
    no_template(text)?;
    let namespace = format!("namespace: {OPERATOR_NAMESPACE}");
    let mut text = text.replace(&namespace, "namespace: {{ .Release.Namespace }}");
    ensure!(
        !text.contains(OPERATOR_NAMESPACE),
        "the namespace stands where a release's cannot be put"
    );
    for (from, to) in changes {
        ensure!(text.contains(from), "it has no {from:?}");
        text = text.replace(from, to);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_without_a_place_is_told() {
        let told = |text, changes: &[Change]| changed(text, changes).unwrap_err().to_string();
        assert_eq!(told("a: 1", &[("b: 1", "b: 2")]), "it has no \"b: 1\"");
        assert_eq!(told("a: '{{'", &[]), "a manifest with double braces");
        let host = "host: a.kubevirt-operator-system.svc";
        let expected = "the namespace stands where a release's cannot be put";
        assert_eq!(told(host, &[]), expected);
    }
}
