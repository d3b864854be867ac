//! A sample of the rules' cases through kubectl, in a cluster with the objects of the tables: the output is compared
//! literally with the lines of the tables.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use common::code::Code;
use lab::{
    Kubectl, Lab, Options, Output, ProgramUnderTest, storage_class,
    tables::{self, Case},
};
use serde_json::{Value, json};

/// Minimum numbers of cases in the sample.
const REFUSED_MIN: usize = 50;
const WARNED_MIN: usize = 10;

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
fn sample() -> Vec<Case> {
    let cases = common::rules::FAMILIES
        .into_iter()
        .flat_map(|family| tables::table(family).unwrap());
    let is_reported = |case: &Case, code: &Code| {
        let mut lines = case.refuses.iter().chain(&case.warns);
        lines.any(|line| line.ends_with(&format!("[{code}]")))
    };
    cases
        .filter(|case| case.is_plain() && case.catalog == "default")
        .filter(|case| !REJECTED_BEFORE_REVIEW.contains(&case.name.as_str()))
        .filter(|case| case.spec["template"] != MISLABELLED)
        .filter(|case| !OF_OTHERS.iter().any(|code| is_reported(case, code)))
        .collect()
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
    let denied = "Error from server (Forbidden): admission webhook \"mutate.machines.vitistack.io\" denied the request: ";
    let faults = match case.refuses.len() {
        1 => "1 fault".to_owned(),
        count => format!("{count} faults"),
    };
    format!("{denied}{faults}:\n{}", bullets(&case.refuses))
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

/// What kubectl prints of an object that is accepted. Notes, such as what a Machine was normalized to, are warnings
/// without a code; a table need not have them.
fn is_warned(case: &Case, stderr: &str) -> bool {
    // Almost every case has blank disks only.
    let boot = "[NothingToBoot]";
    let judges_boot = case.warns.iter().any(|line| line.ends_with(boot));
    let lines = stderr.lines();
    let lines: Vec<&str> = lines
        .filter(|line| judges_boot || !line.ends_with(boot))
        .collect();
    let is_note = |line: &&str| !line.ends_with(']');
    let reported: Vec<&str> = match &case.notes {
        Some(_) => lines,
        None => lines.into_iter().filter(|line| !is_note(line)).collect(),
    };
    let wanted = case.warns.iter().chain(case.notes.iter().flatten());
    reported
        .into_iter()
        .eq(wanted.map(|line| format!("Warning: {line}")))
}

const CREATE: &[&str] = &["create", "--dry-run=server", "-f", "-"];
const APPLY: &[&str] = &["apply", "--server-side", "-f", "-"];
const UPDATE: &[&str] = &["apply", "--server-side", "--dry-run=server", "-f", "-"];

async fn send(kubectl: &Kubectl, args: &[&str], object: &Value) -> Output {
    kubectl.run_with(args, object.to_string()).await.unwrap()
}

/// The difference between the output of kubectl for a case and the expected one, if any.
async fn failure(kubectl: &Kubectl, case: &Case) -> Option<String> {
    let (output, expected) = match case.old_object() {
        None => {
            let output = send(kubectl, CREATE, &case.object()).await;
            (output, invalid as fn(&Case) -> String)
        }
        Some(old) => {
            let stored = send(kubectl, APPLY, &old).await;
            assert_eq!(stored.code, 0, "{}: {stored}", case.name);
            if let Some(status) = case.old.as_ref().and_then(|old| old.status.as_ref()) {
                let name = old["metadata"]["name"].as_str().unwrap();
                let status = json!({ "status": status }).to_string();
                let patch = ["patch", &case.kind, name, "--subresource=status"];
                let patch = [&patch[..], &["--type=merge", "-p", &status]].concat();
                kubectl.run(&patch).await.unwrap().ok().unwrap();
            }
            let mut new = case.object();
            new["metadata"]["name"] = old["metadata"]["name"].clone();
            let output = send(kubectl, UPDATE, &new).await;
            let name = old["metadata"]["name"].as_str().unwrap();
            let delete = ["delete", &case.kind, name];
            kubectl.run(&delete).await.unwrap().ok().unwrap();
            (output, forbidden as fn(&Case) -> String)
        }
    };
    let as_expected = if case.refuses.is_empty() {
        output.code == 0 && is_warned(case, &output.stderr)
    } else {
        output.code == 1 && refusal(&output.stderr) == expected(case)
    };
    (!as_expected).then(|| format!("{}\n{output}\n{case:?}", case.name))
}

#[tokio::test]
async fn kubectl_prints_the_lines_of_the_tables() {
    let (lab, _webhook) = cluster().await;
    let kubectl = lab.kubectl();
    let (mut refused, mut warned, mut failures) = (0, 0, vec![]);
    for case in sample() {
        match failure(&kubectl, &case).await {
            Some(failure) => failures.push(failure),
            None if !case.refuses.is_empty() => refused += 1,
            None if !case.warns.is_empty() => warned += 1,
            None => {}
        }
    }
    println!("{refused} refused, {warned} warned of");
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(
        refused >= REFUSED_MIN && warned >= WARNED_MIN,
        "{refused}, {warned}"
    );
}
