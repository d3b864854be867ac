//! The rules' cases in a cluster with the objects of the tables. All are sent to the API server, and its answer is compared
//! literally with the lines of the tables; so is the output of kubectl for a sample of them that has every code.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeSet, time::Duration};

use common::code::Code;
use hyper::{Method, Request, header::CONTENT_TYPE};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
    client::Body,
    core::{ApiResource, GroupVersionKind},
};
use lab::{
    Kubectl, Lab, Options, Output, ProgramUnderTest, storage_class,
    tables::{self, Case},
    wait,
};
use serde_json::{Value, json};

/// Minimum numbers of cases, all and those of the sample that kubectl sends.
const REFUSED_MIN: [usize; 2] = [450, 150];
const WARNED_MIN: [usize; 2] = [50, 20];

/// Codes that depend on other Machines and claims of the catalog, or on an address that is derived from the cluster's
/// uid. Their cases are not in the sample.
const OF_OTHERS: [Code; 4] = [
    Code::MacInUse,
    Code::NameInUse,
    Code::ClaimInUse,
    Code::VolumeInUse,
];

/// Claims of the catalog that disks are cloned from, or are on, with their access modes.
const SOURCES: [(&str, &str); 6] = [
    ("golden", "ReadWriteOnce"),
    ("golden.v1-2", "ReadWriteOnce"),
    ("iso", "ReadWriteOnce"),
    ("common", "ReadWriteMany"),
    ("pool", "ReadWriteMany"),
    (KEPT, "ReadWriteOnce"),
];

/// A claim that was kept of a disk `kept` of a Machine `web`.
const KEPT: &str = "web-kept";

/// A template that the CRDs refuse today; no case of the sample uses it.
const MISLABELLED: &str = "mislabelled";

/// Cases that never reach the webhook: kubectl or the API server rejects the values.
const REJECTED_BEFORE_REVIEW: [&str; 2] = [
    "a value of the wrong type hides no other",
    "a label that is no text",
];

fn of_ours(kind: &str, name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    });
    if !tables::is_cluster_scoped(kind) {
        object["metadata"]["namespace"] = json!("default");
    }
    object
}

/// The cluster that the catalog `default` describes. Its templates are created before the
/// webhook starts. One would be refused by the CRDs: a valid template of the same name is stored instead.
async fn cluster() -> (Lab, ProgramUnderTest) {
    let mut lab = Lab::with(Options {
        controller_manager: false,
        storage_classes: false,
        ..Options::default()
    })
    .await
    .unwrap();
    let catalog = tables::catalog("default").unwrap();
    for name in &catalog.storage_classes {
        let default = catalog.default_storage_class.as_ref() == Some(name);
        lab.apply(&storage_class(name, default, true))
            .await
            .unwrap();
    }
    for (name, template) in catalog.templates {
        let mut spec = template.content;
        if let Some(text) = template.deprecated {
            spec["deprecated"] = json!(text);
        }
        if name == MISLABELLED {
            spec = json!({});
        }
        lab.apply(&of_ours("MachineTemplate", &name, &spec))
            .await
            .unwrap();
    }
    for name in &catalog.networks {
        let network = of_ours("NetworkConfiguration", name, &json!({"bridge": "br0"}));
        lab.apply(&network).await.unwrap();
    }
    for (name, (bridge, vlan)) in &catalog.segments {
        let mut spec = json!({"bridge": bridge});
        if let Some(vlan) = vlan {
            spec["vlan"] = json!(vlan);
        }
        let network = of_ours("NetworkConfiguration", name, &spec);
        lab.apply(&network).await.unwrap();
    }
    for (name, host) in catalog.hosts {
        let mut object = of_ours("LibvirtHost", &name, &host.spec);
        object["metadata"]["labels"] = json!(host.labels);
        lab.apply(&object).await.unwrap();
    }
    for (name, spec) in &catalog.images {
        lab.apply(&of_ours("MachineImage", name, spec))
            .await
            .unwrap();
    }
    for (name, mode) in SOURCES {
        let spec = json!({
            "accessModes": [mode],
            "resources": {"requests": {"storage": "1Gi"}},
        });
        let mut metadata = json!({"name": name, "namespace": "default"});
        if name == KEPT {
            metadata["labels"] = json!({
                "vitistack.io/managed-by": "kubevirt-operator",
                "vitistack.io/machine": "web", "vitistack.io/disk": "kept",
            });
        }
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec,
        });
        lab.apply(&claim).await.unwrap();
    }
    let webhook = lab.webhook(&[]).await.unwrap();
    (lab, webhook)
}

/// Every plain case about this cluster that does not depend on third-party objects.
fn plain_cases() -> Vec<Case> {
    let cases = common::rules::FAMILIES
        .into_iter()
        .flat_map(|family| tables::table(family).unwrap());
    let is_reported = |case: &Case, code: &Code| {
        let end = format!("[{code}]");
        reported(case).any(|line| line.ends_with(&end))
    };
    cases
        .filter(|case| case.is_plain() && case.catalog == "default")
        .filter(|case| !REJECTED_BEFORE_REVIEW.contains(&case.name.as_str()))
        .filter(|case| case.spec["template"] != MISLABELLED)
        .filter(|case| !OF_OTHERS.iter().any(|code| is_reported(case, code)))
        .collect()
}

fn reported(case: &Case) -> impl Iterator<Item = &String> {
    case.refuses.iter().chain(&case.warns)
}

/// Whether a case is the first creation or update in which a code is refused or warned of, or nothing is.
fn is_first(case: &Case, seen: &mut BTreeSet<(bool, String)>) -> bool {
    let codes = reported(case).filter_map(|line| line.rsplit_once('['));
    let codes = codes.map(|(_, code)| code.to_owned());
    let none = reported(case).next().is_none().then(String::new);
    let codes = codes.chain(none).map(|code| (case.old.is_some(), code));
    // Not `any`, which would stop at the first new one.
    codes.filter(|code| seen.insert(code.clone())).count() > 0
}

/// The output of kubectl for a refused creation.
fn invalid(case: &Case) -> String {
    let (kind, name) = (&case.kind, case.object()["metadata"]["name"].clone());
    match &case.refuses[..] {
        [line] => format!("The {kind} {name} is invalid: {line}\n"),
        lines => format!("The {kind} {name} is invalid: \n{}", bullets(lines)),
    }
}

/// The output of kubectl for a forbidden server-side apply.
fn forbidden(case: &Case) -> String {
    let denied = denied(case.refuses.len());
    format!(
        "Error from server (Forbidden): {denied}:\n{}",
        bullets(&case.refuses)
    )
}

/// How the API server begins the message of a refusal with so many faults.
fn denied(faults: usize) -> String {
    let faults = match faults {
        1 => "1 fault".to_owned(),
        count => format!("{count} faults"),
    };
    format!("admission webhook \"mutate.machines.vitistack.io\" denied the request: {faults}")
}

fn bullets(lines: &[String]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| format!("* {line}\n")).collect();
    lines.concat()
}

/// The output of kubectl without warnings, which the tables list for accepted objects only.
fn refusal(stderr: &str) -> String {
    let lines = stderr.split_inclusive('\n');
    lines
        .filter(|line| !line.starts_with("Warning: "))
        .collect()
}

/// Whether these are the warnings of an accepted object. Notes, such as what a Machine was normalized to, are warnings
/// without a code; a table need not have them.
fn is_warned(case: &Case, warnings: &[String]) -> bool {
    // Almost every case has blank disks only.
    let boot = "[NothingToBoot]";
    let checks_boot = case.warns.iter().any(|line| line.ends_with(boot));
    let lines = warnings.iter();
    let lines: Vec<&String> = lines
        .filter(|line| checks_boot || !line.ends_with(boot))
        .collect();
    let is_note = |line: &&String| !line.ends_with(']');
    let reported: Vec<&String> = match &case.notes {
        Some(_) => lines,
        None => lines.into_iter().filter(|line| !is_note(line)).collect(),
    };
    let wanted = case.warns.iter().chain(case.notes.iter().flatten());
    reported.into_iter().eq(wanted)
}

/// The warnings that kubectl prints. It prints nothing else of an object that is accepted.
fn printed_warnings(stderr: &str) -> Vec<String> {
    let warnings = stderr.lines().map(|line| line.strip_prefix("Warning: "));
    let warnings: Option<Vec<_>> = warnings.map(|it| it.map(str::to_owned)).collect();
    warnings.unwrap_or_else(|| vec![format!("no warning: {stderr} []")])
}

/// Limit of the time until the webhook knows that a Machine is gone, on a busy machine.
const CACHE_DELAY: Duration = Duration::from_mins(1);

/// The field manager of `kubectl apply --server-side`.
const MANAGER: &str = "kubectl";

const CREATE: &[&str] = &["create", "--dry-run=server", "-f", "-"];
const UPDATE: &[&str] = &["apply", "--server-side", "--dry-run=server", "-f", "-"];

async fn send(kubectl: &Kubectl, args: &[&str], object: &Value) -> Output {
    kubectl.run_with(args, object.to_string()).await.unwrap()
}

/// The answer of the API server to a write.
#[derive(Debug)]
struct Answer {
    status: u16,
    warnings: Vec<String>,
    body: Value,
}

impl Answer {
    /// The lines of the faults, as kubectl prints them: a refused creation is invalid, with a cause for each fault, and a
    /// refused apply is forbidden, with all of them in the message. `None`: it is neither.
    fn faults(&self, is_creation: bool) -> Option<Vec<String>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if is_creation && self.status == 422 && self.body["reason"] == "Invalid" {
            let causes = self.body["details"]["causes"].as_array();
            let causes = causes.into_iter().flatten();
            let line = |it: &Value| format!("{}: {}", text(&it["field"]), text(&it["message"]));
            return Some(causes.map(line).collect());
        }
        if is_creation || self.status != 403 || self.body["reason"] != "Forbidden" {
            return None;
        }
        let message = text(&self.body["message"]);
        let (first, faults) = message.split_once(":\n* ")?;
        let faults: Vec<_> = faults.trim_end().split("\n* ").map(str::to_owned).collect();
        (first == denied(faults.len())).then_some(faults)
    }
}

/// The text of a header `Warning: 299 - "text"`.
fn warning_in(header: &str) -> String {
    let quoted = header.strip_prefix("299 - \"").unwrap();
    let quoted = quoted.strip_suffix('"').unwrap();
    let mut text = String::new();
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    text
}

/// Sends an object to the API server as a dry run, as kubectl does: a creation, or a server-side apply to the object
/// of this name.
async fn dry_run(lab: &Lab, kind: &str, object: &Value, name: Option<&str>) -> Answer {
    let objects = api(lab, kind);
    let path = objects.resource_url();
    let query = "dryRun=All&fieldValidation=Strict";
    let (method, uri, content) = match name {
        None => (Method::POST, format!("{path}?{query}"), "application/json"),
        Some(name) => (
            Method::PATCH,
            format!("{path}/{name}?{query}&fieldManager={MANAGER}&force=true"),
            "application/apply-patch+yaml",
        ),
    };
    let request = Request::builder().method(method).uri(uri);
    let request = request.header(CONTENT_TYPE, content);
    let request = request.body(Body::from(object.to_string().into_bytes()));
    let response = lab.client().send(request.unwrap()).await.unwrap();
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|header| str::from_utf8(header.as_bytes()).unwrap());
    Answer {
        status: response.status().as_u16(),
        warnings: warnings.map(warning_in).collect(),
        body: serde_json::from_slice(&response.into_body().collect_bytes().await.unwrap()).unwrap(),
    }
}

/// Stores the object that a case changes. Returns its name. An error: it is refused, which may be because of the Machine of
/// the case before.
async fn store(lab: &Lab, case: &Case, old: &Value) -> kube::Result<String> {
    let name = old["metadata"]["name"].as_str().unwrap();
    // As kubectl: otherwise its apply would conflict with another field manager.
    let parameters = PatchParams::apply(MANAGER).force();
    let objects = api(lab, &case.kind);
    objects.patch(name, &parameters, &Patch::Apply(old)).await?;
    if let Some(status) = case.old.as_ref().and_then(|old| old.status.as_ref()) {
        let patch = Patch::Merge(json!({"status": status}));
        let parameters = PatchParams::default();
        objects.patch_status(name, &parameters, &patch).await?;
    }
    Ok(name.to_owned())
}

/// Why the answers to a case are not those of its table, if they are not: those of the API server, and of kubectl if it is
/// part of the sample.
async fn failure(lab: &Lab, kubectl: Option<&Kubectl>, case: &Case) -> Option<String> {
    let (mut object, mut stored) = (case.object(), None);
    if let Some(old) = case.old_object() {
        let name = match store(lab, case, &old).await {
            Ok(name) => name,
            Err(error) => return Some(format!("{}: {error}\n{case:?}", case.name)),
        };
        object["metadata"]["name"] = json!(name);
        stored = Some(name);
    }
    let answer = dry_run(lab, &case.kind, &object, stored.as_deref()).await;
    let mut wrong = if case.refuses.is_empty() {
        answer.status >= 300 || !is_warned(case, &answer.warnings)
    } else {
        answer.faults(stored.is_none()).as_ref() != Some(&case.refuses)
    };
    let mut shown = format!("{answer:?}");
    if let Some(kubectl) = kubectl {
        let (arguments, expected) = match stored {
            None => (CREATE, invalid as fn(&Case) -> String),
            Some(_) => (UPDATE, forbidden as fn(&Case) -> String),
        };
        let output = send(kubectl, arguments, &object).await;
        wrong |= if case.refuses.is_empty() {
            output.code != 0 || !is_warned(case, &printed_warnings(&output.stderr))
        } else {
            output.code != 1 || refusal(&output.stderr) != expected(case)
        };
        shown = format!("{shown}\n{output}");
    }
    if let Some(name) = stored {
        let delete = DeleteParams::default();
        api(lab, &case.kind).delete(&name, &delete).await.unwrap();
    }
    wrong.then(|| format!("{}\n{shown}\n{case:?}", case.name))
}

/// As [`failure`], until there is none. For a moment the webhook still knows the Machine of the case before, which may have
/// the same addresses.
async fn lasting_failure(lab: &Lab, kubectl: Option<&Kubectl>, case: &Case) -> Option<String> {
    let answered = wait::until_within(CACHE_DELAY, &case.name, async || {
        Ok(failure(lab, kubectl, case).await.map_or(Ok(()), Err))
    });
    answered.await.err().map(|error| format!("{error:#}"))
}

fn api(lab: &Lab, kind: &str) -> Api<DynamicObject> {
    let group = GroupVersionKind::gvk("vitistack.io", "v1alpha1", kind);
    let resource = ApiResource::from_gvk(&group);
    let client = lab.client().clone();
    if tables::is_cluster_scoped(kind) {
        Api::all_with(client, &resource)
    } else {
        Api::namespaced_with(client, "default", &resource)
    }
}

#[tokio::test]
async fn the_api_server_and_kubectl_answer_with_the_lines_of_the_tables() {
    let (lab, _webhook) = cluster().await;
    let kubectl = lab.kubectl();
    let mut seen = BTreeSet::new();
    let (mut refused, mut warned, mut failures) = ([0, 0], [0, 0], vec![]);
    for case in plain_cases() {
        let is_in_sample = is_first(&case, &mut seen);
        let kubectl = Some(&kubectl).filter(|_| is_in_sample);
        let counts = match lasting_failure(&lab, kubectl, &case).await {
            Some(failure) => {
                failures.push(failure);
                continue;
            }
            None if !case.refuses.is_empty() => &mut refused,
            None if !case.warns.is_empty() => &mut warned,
            None => continue,
        };
        counts[0] += 1;
        counts[1] += usize::from(is_in_sample);
    }
    println!("{refused:?} refused, {warned:?} warned of: all, and through kubectl");
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures.join("\n")
    );
    let enough = |counts: [usize; 2], least: [usize; 2]| {
        counts
            .iter()
            .zip(least)
            .all(|(count, least)| *count >= least)
    };
    assert!(
        enough(refused, REFUSED_MIN) && enough(warned, WARNED_MIN),
        "{refused:?}, {warned:?}"
    );
}
