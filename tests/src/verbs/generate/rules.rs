//! `docs/rules.md`: every rule with its code and an example, which is a case of the rules' tests.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};
use common::api::choice::Backend;
use common::code::{Code, CrdCoverage, Severity};
use common::rules::update::{Effect, Field};
use common::rules::{FAMILIES, codes};
use lab::paths;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The page in Markdown.
pub(crate) fn page() -> Result<String> {
    let mut page = HEAD.to_owned();
    updates(&mut page);
    crd_coverage(&mut page);
    let codes = codes();
    for family in FAMILIES {
        let cases = table(family)?;
        let _ = write!(page, "\n## {family}\n");
        for code in codes.iter().filter(|code| code.family() == family) {
            rule(&mut page, *code, &cases)?;
        }
    }
    Ok(page)
}

const HEAD: &str = "\
# Rules

Generated from the code and from the tables of its tests by `tests/lab generate`.

Every rule has a code, which is the same in kubectl's message, in the metric
`machine_webhook_rejections_total`, in the audit annotation and here. A rule *refuses* or *warns*. On an
update, a fault that the stored object also has is a warning, so that other fields can be changed before it
is fixed. While an object is being deleted, only changes of its spec are validated.
";

/// The table of update effects, with one row for all fields with the same effects.
fn updates(page: &mut String) {
    page.push_str(
        "\n## What an update may change\n\nThe webhook compares the values that the old and the new \
         spec resolve to: a switch to a template with the same values is no change. A warning announces a \
         change that becomes effective at the next restart of a running machine, or only in a new instance. \
         Until the guest was restarted the change is in `status.pendingChanges`.\n\nThe volume of a disk that \
         leaves the spec is kept on both backends, whatever its `reclaimPolicy` \
         ([DiskKept](#diskkept)). A change that would discard EFI variables or the content of a TPM is refused until it is \
         confirmed ([StateDiscarded](#statediscarded)). On KubeVirt the image of a disk may be replaced by another one until it is \
         in the volume.\n\n| changed field | on KubeVirt | on libvirt |\n|---|---|---|\n",
    );
    let effects = |field: Field| [Backend::Kubevirt, Backend::Libvirt].map(|it| field.effect(it));
    let mut rows: Vec<([Effect; 2], Vec<String>)> = Vec::new();
    for field in Field::ALL.iter().copied() {
        let path = format!("`{}`", field.path());
        match rows.iter_mut().find(|(it, _)| *it == effects(field)) {
            Some((_, paths)) => paths.push(path),
            None => rows.push((effects(field), vec![path])),
        }
    }
    for ([kubevirt, libvirt], paths) in rows {
        let (kubevirt, libvirt) = (kubevirt.describe(), libvirt.describe());
        let _ = writeln!(page, "| {} | {kubevirt} | {libvirt} |", paths.join(", "));
    }
}

/// The table of the rules that the CRDs enforce without the webhook.
fn crd_coverage(page: &mut String) {
    page.push_str(
        "\n## Where a rule is enforced\n\nThe webhook enforces all rules. It answers before the API server \
         applies the schema, and reports all faults at once. Rules that a schema or CEL can express are in \
         the CRDs as well, and apply when the webhook is bypassed. The controller does not act on a Machine \
         without a block that matches its spec. A test sends every case to an API server that has only the \
         CRDs.\n\n| the CRD refuses | rules |\n|---|---|\n",
    );
    for (coverage, name) in [
        (CrdCoverage::All, "all of what the webhook refuses"),
        (
            CrdCoverage::Some,
            "the part that does not depend on a template or a setting, in the usual spelling",
        ),
        (
            CrdCoverage::Nothing,
            "nothing: the rule depends on other objects, on labels or annotations, on the resolved values or on the content of a text",
        ),
    ] {
        let codes = codes()
            .into_iter()
            .filter(|code| code.severity() != Severity::Warn && code.crd_coverage() == coverage);
        let codes: Vec<_> = codes
            .map(|code| format!("[{code}](#{})", code.as_str().to_lowercase()))
            .collect();
        let _ = writeln!(page, "| {name} | {} |", codes.join(", "));
    }
}

/// The fields of a case that an example needs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    metadata: Option<Value>,
    text: Option<String>,
    old: Option<Old>,
    #[serde(default)]
    refuses: Vec<String>,
    #[serde(default)]
    warns: Vec<String>,
    /// Other fields, such as another catalog, settings or a block.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Old {
    #[serde(default)]
    spec: Value,
}

fn table(family: &str) -> Result<Vec<Case>> {
    let path = paths::repository().join(format!("common/tests/cases/{family}.yaml"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
}

impl Case {
    /// The expected messages, refusals first.
    fn lines(&self) -> impl Iterator<Item = &str> {
        self.refuses.iter().chain(&self.warns).map(String::as_str)
    }

    fn line(&self, code: Code) -> Option<&str> {
        let end = format!("[{code}]");
        self.lines().find(|line| line.ends_with(&end))
    }

    /// Sort key for examples: the case with the fewest special conditions, messages and bytes is the
    /// easiest to read.
    fn reading_effort(&self) -> (usize, usize, usize) {
        let unusual = ["catalog", "earlier", "settings", "earlierSettings", "block"];
        let unusual = unusual
            .into_iter()
            .filter(|key| self.rest.contains_key(*key));
        let text = self.text.iter().map(String::len).sum::<usize>();
        let spec = self.spec.to_string().len() + text;
        (unusual.count(), self.lines().count(), spec)
    }

    /// The object as a user would write it.
    fn shown(&self) -> Result<String> {
        if let Some(text) = &self.text {
            return Ok(format!("{}\n", text.trim_end()));
        }
        let mut shown = String::new();
        if let Some(kind) = &self.kind {
            let _ = writeln!(shown, "kind: {kind}");
        }
        if let Some(metadata) = &self.metadata {
            shown += &yaml("metadata", metadata)?;
        }
        if let Some(old) = &self.old {
            shown += "# before\n";
            shown += &yaml("spec", &old.spec)?;
            shown += "# after\n";
        }
        shown += &yaml("spec", &self.spec)?;
        Ok(shown)
    }
}

fn yaml(key: &str, value: &Value) -> Result<String> {
    let object = Value::Object([(key.to_owned(), value.clone())].into_iter().collect());
    Ok(serde_saphyr::to_string(&object)?)
}

/// What the controller does about objects that two replicas of the webhook admitted in the same moment.
const IN_CONTROLLER: [(Code, &str); 2] = [
    (
        Code::QuotaExceeded,
        "exceed the quota together, the controller creates nothing for the younger one, or holds its growth, until there is room (condition `Scheduled`)",
    ),
    (
        Code::MacInUse,
        "have one address, the controller does not start the younger one (condition `NetworkReady`)",
    ),
];

/// Who enforces a rule that no CRD has.
fn enforcement(code: Code) -> String {
    let mut held = IN_CONTROLLER.iter();
    match held.find(|(known, _)| *known == code) {
        Some((_, what)) => format!(
            " The webhook enforces it. If two of its replicas admit Machines in the same moment that {what}."
        ),
        None => " Only the webhook enforces it.".to_owned(),
    }
}

fn rule(page: &mut String, code: Code, cases: &[Case]) -> Result<()> {
    let reported = cases
        .iter()
        .filter_map(|case| Some((case, case.line(code)?)));
    let (example, line) = reported
        .min_by_key(|(case, _)| case.reading_effort())
        .with_context(|| format!("no case is reported under {code}"))?;
    let verdict = match code.severity() {
        Severity::Refuse => "refuses",
        Severity::Warn => "warns",
        Severity::Setting => "refuses or warns, depending on a setting",
    };
    let crd = match code.crd_coverage() {
        _ if code.severity() == Severity::Warn => String::new(),
        CrdCoverage::All => " The CRD also refuses it.".to_owned(),
        CrdCoverage::Some => " The CRD also refuses a part of it.".to_owned(),
        CrdCoverage::Nothing => enforcement(code),
    };
    let (what, why, fix) = (code.what(), code.why(), code.fix());
    let object = example.shown()?;
    let _ = write!(
        page,
        "\n### {code}\n\n*{verdict}.* {what} {why}\n\n**Fix:** {fix}{crd}\n\n```yaml\n{object}```\n```text\n{line}\n```\n"
    );
    Ok(())
}
