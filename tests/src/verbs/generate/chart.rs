//! The parts of the Helm chart that are generated from the other manifests.
//!
//! ```text
//! CRDs ──────────────────────────────► templates/crds/*.yaml       not removed by an uninstall
//! install/{controller,webhook}-rbac ─► templates/*-rbac.yaml       ┐ with the namespace and
//! install/webhook-{configurations,policy} ─► templates/webhook-…   │ the chart's values inserted
//! install/user-roles ────────────────► templates/user-roles.yaml   │
//! install/deletion-protection ───────► templates/deletion-…yaml    ┘
//! monitoring/{rules,dashboard} ──────► files/                      copied, not templates
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
/// All files of this folder are generated.
pub(super) const CRDS: &str = "manifests/charts/kubevirt-operator/templates/crds";

/// A text of the installation and its replacement in the chart.
type Replacement = (&'static str, &'static str);

const CONTROLLER_RBAC: [Replacement; 2] = [
    (
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
    ),
    (
        "  name: kubevirt-operator-images
  namespace: {{ .Release.Namespace }}
",
        "  name: kubevirt-operator-images
  namespace: {{ .Values.controller.imageNamespace | default .Release.Namespace }}
",
    ),
];

const WEBHOOK_RBAC: [Replacement; 4] = [
    (
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
    ),
    // With a certificate from outside, the webhook writes neither caBundle nor a Secret. Who may create the Secret that
    // it reads could make it one with the token of another account.
    (
        "# RBAC cannot limit create to a name: the name is not known when the request is authorized.
- apiGroups: [\"\"]
  resources: [secrets]
  verbs: [create]
",
        "{{- if not (include \"kubevirt-operator.certificate\" .) }}
# RBAC cannot limit create to a name: the name is not known when the request is authorized.
- apiGroups: [\"\"]
  resources: [secrets]
  verbs: [create]
{{- end }}
",
    ),
    (
        "verbs: [get, list, watch, update]",
        "verbs: [get, list, watch{{ if not (include \"kubevirt-operator.certificate\" .) }}, update{{ end }}]",
    ),
    (
        "verbs: [get, list, watch, patch]",
        "verbs: [get, list, watch{{ if not (include \"kubevirt-operator.certificate\" .) }}, patch{{ end }}]",
    ),
];

const CONFIGURATIONS: [Replacement; 4] = [
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

/// All generated files with their content.
pub(super) fn files() -> Result<BTreeMap<PathBuf, String>> {
    let chart = paths::repository().join(CHART);
    let mut files = BTreeMap::new();
    for crd in crd_files()? {
        let mut definition = crd.definition;
        definition["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
        let yaml = serde_saphyr::to_string(&definition)?;
        ensure_no_braces(&yaml)?;
        let text = format!("{{{{- if .Values.crds.install }}}}\n{yaml}{{{{- end }}}}\n");
        files.insert(
            chart.join("templates/crds").join(crd.file),
            header("the Rust types", &text),
        );
    }
    for (name, replacements) in [
        ("controller-rbac.yaml", CONTROLLER_RBAC.as_slice()),
        ("webhook-rbac.yaml", WEBHOOK_RBAC.as_slice()),
        ("webhook-configurations.yaml", CONFIGURATIONS.as_slice()),
        ("webhook-policy.yaml", &[]),
        ("user-roles.yaml", &[]),
        ("deletion-protection.yaml", &[]),
    ] {
        let source = Path::new("manifests/install").join(name);
        let text = with_replacements(&read(&source)?, replacements)
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

/// Helm would read double braces as a template.
fn ensure_no_braces(text: &str) -> Result<()> {
    ensure!(!text.contains("{{"), "a manifest with double braces");
    Ok(())
}

/// The text with all replacements. Each replaced text must occur, or the chart would lack a value.
fn with_replacements(text: &str, replacements: &[Replacement]) -> Result<String> {
    ensure_no_braces(text)?;
    let namespace = format!("namespace: {OPERATOR_NAMESPACE}");
    let mut text = text.replace(&namespace, "namespace: {{ .Release.Namespace }}");
    ensure!(
        !text.contains(OPERATOR_NAMESPACE),
        "the namespace occurs in a text that is not replaced"
    );
    for (from, to) in replacements {
        ensure!(text.contains(from), "it has no {from:?}");
        text = text.replace(from, to);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_cannot_be_replaced_is_an_error() {
        let error = |text, changes: &[Replacement]| {
            with_replacements(text, changes).unwrap_err().to_string()
        };
        assert_eq!(error("a: 1", &[("b: 1", "b: 2")]), "it has no \"b: 1\"");
        assert_eq!(error("a: '{{'", &[]), "a manifest with double braces");
        let host = "host: a.kubevirt-operator-system.svc";
        let expected = "the namespace occurs in a text that is not replaced";
        assert_eq!(error(host, &[]), expected);
    }
}
