//! A folder of Machines, applied and compared with every command of kubectl: nothing drifts, whatever other writers
//! do to the Machines and to their template, until a refresh is requested.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeMap, fs, path::PathBuf};

use kube::api::PostParams;
use lab::{Kubectl, Lab, objects::MACHINE, paths, wait};
use serde_json::{Value, json};

mod environment;
mod machines;

use environment::Environment;
use machines::machine;

/// Twelve Machines in forms that users write.
const DOZEN: [(&str, &str); 12] = [
    ("built-in", "template: small"),
    ("team-web", "template: team-web"),
    ("by-label", "powerState: Running"),
    (
        "overridden",
        "template: team-web\nresources: {cpu: {cores: 3}, memory: {size: 1.5Gi}}",
    ),
    (
        "without-template",
        "resources: {memory: {size: '2147483648'}}\ndisks: [{name: root, size: '1e10'}]",
    ),
    (
        "disks",
        "template: team-web\ndisks: [{name: z, size: 500M}, {name: root, size: 30Gi, bus: sata}, {name: a, size: 1G, storageClass: default}]",
    ),
    (
        "networks",
        "template: small\nnetworks: [{name: b, networkName: storage-network, macAddress: 52-54-00-AB-CD-EF}, {name: a}]",
    ),
    (
        "cdrom",
        "template: small\nbootOrder: [cdrom, disk]\ncdroms: [{name: iso, size: 700M, image: {url: 'https://images.example.com/a.iso'}}]",
    ),
    (
        "firmware",
        "template: small\ndomain: {machine: {type: q35}, features: {hyperv: true}, firmware: {bootloader: {efi: true, secureBoot: true}}}",
    ),
    (
        "cloud-init",
        "template: small\ncloudInit: {userData: \"#cloud-config\\nhostname: web\\n\", metaData: {b: '2', a: '1'}}",
    ),
    (
        "stopped",
        "template: team-web\npowerState: Stopped\nguestShutdownStops: true\nbootOrder: []",
    ),
    (
        "nothing-left-out",
        "template: small\ndisks: []\nnetworks: []\ncdroms: []\nnodeSelector: {}\nresources: {cpu: {}}\ndomain: {}",
    ),
];

fn template(memory: &str) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachineTemplate",
        "metadata": {"name": "team-web"},
        "spec": {
            "resources": {"cpu": {"cores": 2}, "memory": {"size": memory}},
            "disks": [{"name": "root", "size": "20Gi"}],
        },
    })
}

/// The examples and the dozen, as files.
fn folder(lab: &Lab) -> PathBuf {
    let folder = lab.path("machines");
    fs::create_dir(&folder).unwrap();
    for file in fs::read_dir(paths::repository().join("manifests/examples")).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    for (name, spec) in DOZEN {
        let mut text = machine(name, spec);
        if name == "by-label" {
            let labels = "metadata:\n  labels: {vitistack.io/machine-template: team-web}";
            text = text.replace("metadata:", labels);
        }
        fs::write(folder.join(format!("{name}.yaml")), text).unwrap();
    }
    folder
}

/// Machines by name.
type Machines = BTreeMap<String, Value>;

async fn machines(lab: &Lab) -> Machines {
    let all = lab.objects(MACHINE, "default").list().await.unwrap();
    let name = |machine: &Value| machine["metadata"]["name"].as_str().unwrap().to_owned();
    all.into_iter()
        .map(|machine| (name(&machine), machine))
        .collect()
}

/// The resource version of each Machine.
fn versions(machines: &Machines) -> BTreeMap<&str, &Value> {
    let versions = machines.iter();
    versions
        .map(|(name, machine)| (name.as_str(), &machine["metadata"]["resourceVersion"]))
        .collect()
}

/// The spec and the generation of each Machine.
fn intents(machines: &Machines) -> BTreeMap<&str, [&Value; 2]> {
    let intents = machines.iter();
    intents
        .map(|(name, machine)| {
            let generation = &machine["metadata"]["generation"];
            (name.as_str(), [&machine["spec"], generation])
        })
        .collect()
}

fn blocks(machines: &Machines) -> BTreeMap<&str, &Value> {
    let blocks = machines.iter();
    blocks
        .map(|(name, machine)| (name.as_str(), &machine["spec"]["normalized"]))
        .collect()
}

/// Waits until the webhook expands the template to this amount of memory.
async fn expands_to(kubectl: &Kubectl, memory: &str) {
    wait::until("the webhook reads the template", async || {
        let create = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
        let output = kubectl
            .run_with(&create, machine("probe", "template: team-web"))
            .await?;
        let probe: Value = serde_json::from_str(&output.clone().ok()?)?;
        let size = &probe["spec"]["normalized"]["memory"]["size"];
        Ok(if size == memory { Ok(()) } else { Err(output) })
    })
    .await
    .unwrap();
}

/// A folder or file, and the field manager that applies it server-side; `None` for client-side apply.
type Applied<'a> = (Option<&'a str>, &'a str);

/// Applies and compares everything with every command and field manager: nothing changes.
async fn stays(lab: &Lab, all: &[Applied<'_>]) {
    let kubectl = lab.kubectl();
    let before = machines(lab).await;
    let dry_run: &[&str] = &["apply", "--dry-run=server"];
    let mut commands: Vec<Vec<&str>> = vec![];
    for (manager, folder) in all {
        for verb in [&["diff"], dry_run, dry_run, &["apply"]] {
            let mut args = verb.to_vec();
            if let Some(manager) = manager {
                args.extend(["--server-side", "--field-manager", manager]);
            }
            args.extend(["-f", folder]);
            commands.push(args);
        }
    }
    for args in commands {
        let output = kubectl.run(&args).await.unwrap();
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{args:?}");
        if args[0] == "diff" {
            assert_eq!(output.stdout, "", "{args:?}");
        }
        let after = machines(lab).await;
        assert_eq!(versions(&after), versions(&before), "{args:?}");
    }
    // The whole object as it was read.
    let replace = async |machines: &Machines| {
        let api = machines::api(lab.client(), "Machine");
        for (name, machine) in machines {
            let whole = serde_json::from_value(machine.clone()).unwrap();
            api.replace(name, &PostParams::default(), &whole)
                .await
                .unwrap();
        }
    };
    replace(&before).await;
    let after = machines(lab).await;
    assert_eq!(versions(&after), versions(&before));
    // The object as its author wrote it, without the block: only the field manager of the block changes.
    let mut bare = before.clone();
    for machine in bare.values_mut() {
        machine["spec"]
            .as_object_mut()
            .unwrap()
            .remove("normalized");
    }
    replace(&bare).await;
    let after = machines(lab).await;
    assert_eq!(intents(&after), intents(&before));
}

#[tokio::test]
async fn applying_a_folder_again_changes_nothing() {
    let (lab, _webhook) = machines::lab(&[]).await;
    let kubectl = lab.kubectl();
    lab.apply(&template("4Gi")).await.unwrap();
    expands_to(&kubectl, "4Gi").await;
    let path = folder(&lab);
    let folder = path.to_str().unwrap();
    kubectl
        .run(&["apply", "-f", folder])
        .await
        .unwrap()
        .ok()
        .unwrap();

    // The fields that the author wrote are stored unchanged.
    let stored = machines(&lab).await;
    assert!(stored.len() > DOZEN.len());
    for file in fs::read_dir(&path).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for written in lab::install::parse(&text).unwrap() {
            if written["kind"] == "Machine" {
                let name = written["metadata"]["name"].as_str().unwrap();
                let mut spec = stored[name]["spec"].clone();
                let block = spec.as_object_mut().unwrap().remove("normalized");
                assert!(block.is_some(), "{name}");
                assert_eq!(spec, written["spec"], "{name}");
            }
        }
    }
    stays(&lab, &[(None, folder)]).await;
    lab.apply(&template("6Gi")).await.unwrap();
    expands_to(&kubectl, "6Gi").await;
    stays(&lab, &[(None, folder)]).await;

    // Another field manager owns a label of each Machine.
    let theirs = lab.path("theirs.yaml");
    let parts = stored.keys().map(|name| {
        let labels = "metadata:\n  labels: {example.com/team: a}";
        machine(name, "nodeSelector: {example.com/zone: a}").replace("metadata:", labels)
    });
    let parts: Vec<_> = parts.collect();
    fs::write(&theirs, parts.join("---\n")).unwrap();
    let managers = [
        (Some("kustomize-controller"), folder),
        (Some("placement"), theirs.to_str().unwrap()),
    ];
    for (manager, folder) in managers {
        let manager = ["--server-side", "--field-manager", manager.unwrap()];
        let args = [&["apply"][..], &manager, &["-f", folder]].concat();
        kubectl.run(&args).await.unwrap().ok().unwrap();
    }
    let placed = machines(&lab).await;
    for (name, block) in blocks(&placed) {
        assert_eq!(
            block["nodeSelector"],
            json!({"example.com/zone": "a"}),
            "{name}"
        );
    }
    stays(&lab, &managers).await;

    // The template is edited.
    lab.apply(&template("8Gi")).await.unwrap();
    expands_to(&kubectl, "8Gi").await;
    stays(&lab, &managers).await;
    assert_eq!(versions(&machines(&lab).await), versions(&placed));

    // Changing another field keeps the old template's values; a refresh takes the new ones.
    for name in ["team-web", "overridden"] {
        let change = json!({"spec": {"guestShutdownStops": true}});
        let objects = lab.objects(MACHINE, "default");
        objects.merge(name, &change).await.unwrap();
    }
    let refresh = "machine.vitistack.io/refresh-template=once";
    let refreshed = kubectl
        .run(&["annotate", "machine", "by-label", refresh])
        .await;
    refreshed.unwrap().ok().unwrap();
    let now = machines(&lab).await;
    let blocks = blocks(&now);
    assert_eq!(blocks["team-web"]["guestShutdownStops"], true);
    assert_eq!(blocks["team-web"]["memory"]["size"], "4Gi");
    assert_eq!(blocks["overridden"]["memory"]["size"], "1536Mi");
    assert_eq!(blocks["by-label"]["memory"]["size"], "8Gi");
    stays(&lab, &managers[1..]).await;
}

/// Admission keeps the block of the old template, and the controller reports the difference.
#[tokio::test]
async fn a_machine_reports_that_its_template_has_changed() {
    let env = Environment::new().await;
    let kubectl = env.lab.kubectl();
    env.apply(&template("4Gi")).await;
    expands_to(&kubectl, "4Gi").await;
    let web = environment::machine("web", &json!({"template": "team-web"}));
    env.apply(&web).await;
    let machines = env.machines();
    machines.until_phase("web", "Running").await.unwrap();
    machines
        .until_condition("web", "Normalized", "True", "Normalized")
        .await
        .unwrap();
    let block = machines.get("web").await.unwrap()["spec"]["normalized"].clone();

    env.apply(&template("8Gi")).await;
    let outdated = machines
        .until_condition("web", "Normalized", "True", "TemplateOutdated")
        .await;
    let outdated = outdated.unwrap();
    assert_eq!(outdated["spec"]["normalized"], block);

    expands_to(&kubectl, "8Gi").await;
    let refresh = "machine.vitistack.io/refresh-template=2";
    let refreshed = kubectl.run(&["annotate", "machine", "web", refresh]).await;
    assert_eq!(
        refreshed.unwrap().stderr,
        "Warning: spec.template: resources.memory.size changes from 4Gi to 8Gi at the next restart [RestartRequired]\n"
    );
    let now = machines
        .until_condition("web", "Normalized", "True", "Normalized")
        .await
        .unwrap();
    assert_eq!(now["spec"]["normalized"]["memory"]["size"], "8Gi");
}
