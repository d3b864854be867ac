//! The lifecycle of a Helm release: installed with older CRDs, upgraded, tested, uninstalled, installed again.

use std::{fs, path::Path};

use lab::{
    Binary, OPERATOR_NAMESPACE, ProgramUnderTest, Scenario,
    objects::{MACHINE, VM},
    paths, wait,
};
use serde_json::{Value, json};

use crate::{RELEASE, chart, page, release::Release};

/// A field of the block that the older chart's CRD lacks.
const FIELD: &str = "powerState";

/// A copy of the chart as it was before [`FIELD`].
fn older_chart(folder: &Path) -> String {
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    let chart = chart();
    let mut folders = vec![Path::new(&chart).to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                copy(&path, &folder.join(path.strip_prefix(&chart).unwrap()));
            }
        }
    }
    let path = folder.join("templates/crds/machines.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let is_template = |line: &&str| line.starts_with("{{");
    let yaml: Vec<_> = text.lines().filter(|line| !is_template(line)).collect();
    let mut crd = lab::install::parse(&yaml.join("\n")).unwrap().remove(0);
    let block = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/normalized";
    let block = crd.pointer_mut(block).unwrap();
    assert!(
        block["properties"]
            .as_object_mut()
            .unwrap()
            .remove(FIELD)
            .is_some()
    );
    let required = block["required"].as_array_mut().unwrap();
    required.retain(|field| field != FIELD);
    fs::write(path, crd.to_string()).unwrap();
    folder.display().to_string()
}

/// An entry's `caBundle`, which must be there.
fn bundle(entry: &Value) -> &str {
    entry["clientConfig"]["caBundle"].as_str().unwrap()
}

async fn unready(webhook: &mut ProgramUnderTest) -> String {
    let address = webhook.health_address().await.unwrap();
    wait::until("the webhook to be unready for one reason", async || {
        let answer = lab::http::get(address, "/readyz").await?;
        let text = answer.text();
        // A check that has not run yet has no reason.
        let is_known = !text.contains("not yet");
        let one = answer.status == 500 && text.lines().count() == 1 && is_known;
        Ok(if one { Ok(text) } else { Err(text) })
    })
    .await
    .unwrap()
}

/// Without the operator, Machines, guests and CRDs stay, and the API server calls no webhook.
async fn assert_usable_without_operator(it: &Release) {
    let machines = it.lab.objects(MACHINE, "default");
    for kind in [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ] {
        let list = it.kubectl(&["get", kind, "--output=name"]).await;
        assert_eq!(list.ok().unwrap(), "");
    }
    let all = "deployments,services,networkpolicies,poddisruptionbudgets";
    let list = [
        "get",
        all,
        "--output=name",
        "--namespace",
        OPERATOR_NAMESPACE,
    ];
    assert_eq!(it.kubectl(&list).await.ok().unwrap(), "");
    let guest = it.lab.objects(VM, "default").get("basic-vm").await.unwrap();
    let change = r#"{"spec":{"resources":{"cpu":{"cores":3}}}}"#;
    let patch = ["patch", "machine", "basic-vm", "--type=merge", "-p", change];
    // The API server may call a webhook for a moment after its configuration was deleted.
    wait::until("the Machine to be changed", async || {
        let output = it.kubectl(&patch).await;
        Ok(output.ok())
    })
    .await
    .unwrap();
    let again = it.lab.objects(VM, "default").get("basic-vm").await.unwrap();
    assert_eq!(
        again["metadata"]["resourceVersion"],
        guest["metadata"]["resourceVersion"]
    );
    // The finalizer blocks the deletion until a controller runs again.
    let delete = ["delete", "machine", "basic-vm", "--wait=false"];
    it.kubectl(&delete).await.ok().unwrap();
    let finalizers = machines.get("basic-vm").await.unwrap()["metadata"]["finalizers"].take();
    assert_eq!(finalizers, json!(["machine.vitistack.io/cleanup"]));
}

#[tokio::test]
async fn a_release_is_upgraded_uninstalled_and_installed_again() {
    let mut it = Release::none().await;
    let older = older_chart(&it.lab.path("older"));
    let (chart, port) = (chart(), it.port());

    // Installed, of a release whose CRD lacks a field of the block.
    let install = ["install", RELEASE, &older, "--create-namespace", &port];
    let notes = it.helm(&install).await.ok().unwrap();
    assert!(notes.contains("helm test kubevirt-operator --namespace kubevirt-operator-system"));
    let crds = it.lab.crds_served();
    crds.await.unwrap();
    let mut webhook = it.start(Binary::Webhook).await;
    let reported = unready(&mut webhook).await;
    assert!(
        reported.ends_with(&format!("it lacks spec.normalized.{FIELD}\n")),
        "{reported}"
    );
    assert!(page("upgrade").contains(&reported), "{reported}");
    let (ca, before) = (it.ca().await, it.entries().await);
    assert_eq!(before.len(), 7);

    // Upgraded: the CRD is the new one, the CA is unchanged.
    let timeout = "--set=webhook.timeoutSeconds=5";
    let upgrade = [
        "upgrade",
        RELEASE,
        &chart,
        "--reset-then-reuse-values",
        timeout,
    ];
    it.helm(&upgrade).await.ok().unwrap();
    webhook.ready().await.unwrap();
    assert_eq!(it.ca().await, ca);
    for (before, entry) in before.iter().zip(it.entries().await) {
        assert_eq!(bundle(&entry), bundle(before));
        // A warning is not worth a wait.
        let warns = entry["name"] == "warn-of-deletion.machines.vitistack.io";
        assert_eq!(entry["timeoutSeconds"], if warns { 1 } else { 5 });
    }

    // Roll back to the older programs with the newer CRDs, and upgrade again.
    for (chart, crds) in [(&older, "false"), (&chart, "true")] {
        let crds = format!("--set=crds.install={crds}");
        let upgrade = [
            "upgrade",
            RELEASE,
            chart,
            "--reset-then-reuse-values",
            &crds,
        ];
        it.helm(&upgrade).await.ok().unwrap();
        let crd = it.get("crd", "machines.vitistack.io").await;
        let schema = crd["spec"]["versions"][0]["schema"].to_string();
        assert!(schema.contains(&format!("\"{FIELD}\"")));
    }
    webhook.ready().await.unwrap();

    // Without leader election and back: the API server allows no part of the other strategy.
    for (elects, strategy) in [("false", "Recreate"), ("true", "RollingUpdate")] {
        let elects = format!("--set=controller.leaderElection={elects}");
        let upgrade = ["upgrade", RELEASE, &chart, "--reuse-values", &elects];
        it.helm(&upgrade).await.ok().unwrap();
        let deployment = it.get("deployment", Binary::Controller.account()).await;
        assert_eq!(deployment["spec"]["strategy"]["type"], strategy);
    }

    // Machines go through the webhook by its Service, under the name in its certificate.
    let mut controller = it.start(Binary::Controller).await;
    controller.ready().await.unwrap();
    let simulator = it.lab.simulator(Scenario::Happy).await.unwrap();
    let apply = async |example: &str| {
        let file = paths::repository().join("manifests/examples").join(example);
        let file = file.display().to_string();
        it.lab.kubectl().run(&["apply", "-f", &file]).await.unwrap()
    };
    apply("basic-vm.yaml").await.ok().unwrap();
    let refused = apply("faulty/machine.yaml").await.refused().unwrap();
    assert!(refused.contains("[TemplateNotFound]"), "{refused}");
    let machines = it.lab.objects(MACHINE, "default");
    machines.until_phase("basic-vm", "Running").await.unwrap();
    let test = it.helm(&["test", RELEASE]).await;
    assert_eq!(test.code, 0, "{test}");
    webhook.stop().await.unwrap();
    let reported = it.helm(&["test", RELEASE]).await.refused().unwrap();
    assert!(
        reported.contains("failed calling webhook \"mutate.machines.vitistack.io\""),
        "{reported}"
    );

    it.helm(&["uninstall", RELEASE]).await.ok().unwrap();
    controller.stop().await.unwrap();
    assert_usable_without_operator(&it).await;

    // Installed again, with the CA of the first installation.
    let install = ["install", RELEASE, &chart, &port];
    it.helm(&install).await.ok().unwrap();
    let mut webhook = it.start(Binary::Webhook).await;
    webhook.ready().await.unwrap();
    assert_eq!(it.ca().await["data"], ca["data"]);
    let mut controller = it.start(Binary::Controller).await;
    controller.ready().await.unwrap();
    machines.until_gone("basic-vm").await.unwrap();
    drop(simulator);
}
