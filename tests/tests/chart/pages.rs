//! Runs every command of `docs/install.md` and `docs/upgrade.md` unchanged, in the order in which an administrator needs
//! them.

use std::fs;

use lab::{
    Binary, Scenario, WEBHOOK_CONFIGURATION,
    objects::{MACHINE, condition},
    pages::{Quotes, code_spans, rows, section},
    paths,
    reviews::machine,
    wait,
};
use serde_json::json;

use crate::{RELEASE, blocks, chart, page, release::Release};

/// Commands that cannot run here: there is no cert-manager, no container engine, no registry and no node on which a rollout
/// could finish (the suite `node` runs these), the name of a Machine is a placeholder, and a release build takes minutes.
const NOT_RUN: [&str; 10] = [
    "cmctl renew machine-webhook --namespace kubevirt-operator-system",
    "docker build --build-arg GIT_COMMIT=$(git rev-parse HEAD) --tag registry.example.com/kubevirt-operator:v0.1.0 .",
    "docker push registry.example.com/kubevirt-operator:v0.1.0",
    "helm push target/kubevirt-operator-0.1.0.tgz oci://registry.example.com/helm",
    "kubectl -n kubevirt-operator-system rollout undo deployment kubevirt-operator-controller-manager",
    "kubectl -n kubevirt-operator-system rollout undo deployment machine-webhook",
    "kubectl patch machine <name> --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
    "kubectl patch networkconfiguration <name> --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
    "skopeo copy --preserve-digests oci-archive:target/image/kubevirt-operator.tar:v0.1.0 docker://registry.example.com/kubevirt-operator:v0.1.0",
    "tests/lab image --tag registry.example.com/kubevirt-operator:v0.1.0",
];

/// The commands of both pages, and which of them have been run.
struct Session {
    release: Release,
    commands: Vec<String>,
    run: Vec<String>,
}

impl Session {
    async fn start() -> Self {
        let pages = [page("install"), page("upgrade")].concat();
        let blocks = blocks(&pages, "console").concat();
        Self {
            release: Release::none().await,
            commands: blocks.lines().map(str::to_owned).collect(),
            run: Vec::new(),
        }
    }

    /// Runs the one command of the pages that starts and contains this; fails unless it succeeds.
    async fn run(&mut self, start: &str, part: &str) -> String {
        let fits = |line: &&String| line.starts_with(start) && line.contains(part);
        let mut found: Vec<_> = self.commands.iter().filter(fits).cloned().collect();
        found.dedup();
        assert_eq!(found.len(), 1, "{start} … {part}: {found:#?}");
        let command = found.remove(0);
        let output = self.release.shell(&command).await.ok().unwrap();
        self.run.push(command);
        output
    }

    async fn names(&self, kinds: &str) -> String {
        let get = ["get", kinds, "--all-namespaces", "--output=name"];
        self.release.kubectl(&get).await.ok().unwrap()
    }

    /// Installs, removes everything except the CRDs, and installs again.
    async fn with_kustomize(&mut self) {
        self.run("kubectl apply -k manifests/crds", "").await;
        self.run("kubectl wait", "").await;
        self.run("kubectl apply -k manifests/install", "").await;
        self.run("kubectl delete mutatingwebhook", "").await;
        self.run("kubectl delete namespace", "").await;
        assert_eq!(self.names(WEBHOOKS).await, "");
        let definitions = self.names("crd").await;
        assert!(
            definitions.contains("machines.vitistack.io"),
            "{definitions}"
        );
        self.run("kubectl apply -k manifests/install", "").await;
    }

    /// Helm does not overwrite a field that was changed by hand, except with `--force-conflicts`.
    async fn upgrade_after_a_change_by_hand(&mut self) {
        let ignore = r#"[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]"#;
        let mutating = [
            "patch",
            "mutatingwebhookconfiguration",
            WEBHOOK_CONFIGURATION,
        ];
        let patch = [&mutating[..], &["--type=json", "-p", ignore]].concat();
        self.release.kubectl(&patch).await.ok().unwrap();
        let refused = self.release.shell(UPGRADE).await.refused().unwrap();
        let upgrade = page("upgrade");
        let mut quotes = Quotes::of(section(&upgrade, "With Helm").unwrap());
        quotes.produced(&refused).unwrap();
        quotes.finish().unwrap();
        self.run(
            "helm upgrade",
            "--reset-then-reuse-values --force-conflicts",
        )
        .await;
    }
}

/// Enforces the Pod Security Standard; the chart's notes show it while the namespace has no such label.
const LABEL: &str = "kubectl label namespace kubevirt-operator-system \
                     pod-security.kubernetes.io/enforce=restricted";

/// The plain upgrade of `docs/upgrade.md`.
const UPGRADE: &str = "helm upgrade kubevirt-operator manifests/charts/kubevirt-operator \
                       --namespace kubevirt-operator-system --reset-then-reuse-values";

const WEBHOOKS: &str = "mutatingwebhookconfigurations,validatingwebhookconfigurations";

/// The names in the table of metrics for the first stage of a rollout.
fn metrics_to_watch(page: &str) -> Vec<String> {
    let part = section(page, "Roll out in two stages").unwrap();
    let rows = rows(part);
    let names = rows.iter().filter_map(|row| code_spans(row[0]).next());
    let names: Vec<_> = names
        .map(|name| name.split('{').next().unwrap_or(name).to_owned())
        .collect();
    assert!(!names.is_empty());
    names
}

/// The recording rules, which export metrics of their own.
fn rules() -> String {
    fs::read_to_string(paths::repository().join("manifests/monitoring/rules.yaml")).unwrap()
}

#[tokio::test]
async fn every_command_of_the_pages_succeeds_and_has_its_effect() {
    let mut session = Session::start().await;

    session.with_kustomize().await;

    // Helm adopts the objects, removes them, and installs them without kustomize.
    session.run("helm install", "--take-ownership").await;
    session.run("helm uninstall", "").await;
    assert_eq!(session.names(WEBHOOKS).await, "");
    // kustomize created the namespace, with the label; Helm creates one without.
    session.run("kubectl delete namespace", "").await;
    let notes = session.run("helm install", "--create-namespace").await;
    assert!(notes.contains(LABEL), "{notes}");
    session.run(LABEL, "").await;
    let deployments = session
        .run("kubectl -n kubevirt-operator-system get deployments", "")
        .await;
    assert!(deployments.contains("machine-webhook"), "{deployments}");

    // There are no nodes: the test starts the programs, and the Service leads to them.
    let (chart, port) = (chart(), session.release.port());
    let reachable = [
        "upgrade",
        RELEASE,
        &chart,
        "--reset-then-reuse-values",
        &port,
    ];
    let notes = session.release.helm(&reachable).await.ok().unwrap();
    assert!(!notes.contains(LABEL), "{notes}");
    let mut webhook = session.release.start(Binary::Webhook).await;
    webhook.ready().await.unwrap();
    let mut controller = session.release.start(Binary::Controller).await;
    controller.ready().await.unwrap();
    let simulator = session
        .release
        .lab
        .simulator(Scenario::Happy)
        .await
        .unwrap();
    session.run("helm test", "").await;
    let exported = webhook.metrics().await.unwrap();

    // Without a webhook the Machine is stored unvalidated; afterwards it is validated.
    session.run("helm upgrade", "failurePolicy=Ignore").await;
    webhook.kill();
    let machines = session.release.lab.objects(MACHINE, "default");
    let web = machine("web", &json!({"template": "small"}));
    // The API server applies the changed failure policy after a moment.
    wait::until("the Machine to be stored", async || {
        let applied = session.release.lab.apply(&web).await;
        Ok(applied.map_err(|error| format!("{error:#}")))
    })
    .await
    .unwrap();
    let unvalidated = machines.until_condition("web", "Normalized", "False", "NotNormalized");
    unvalidated.await.unwrap();
    let metrics = ["get", "--raw", "/metrics"];
    let metrics = session.release.kubectl(&metrics).await.ok().unwrap();
    let fail_open = "apiserver_admission_webhook_fail_open_count";
    let counted = format!("{fail_open}{{name=\"mutate.machines.vitistack.io\",");
    assert!(metrics.contains(&counted));
    let exported = [metrics, exported, rules()].concat();
    for metric in metrics_to_watch(&page("install")) {
        assert!(exported.contains(&metric), "{metric}");
    }
    webhook.start_again().unwrap();
    webhook.ready().await.unwrap();
    session.run("kubectl annotate machines", "").await;
    let running = machines.until_phase("web", "Running").await.unwrap();
    assert_eq!(condition(&running, "Normalized")["status"], "True");
    session.run("helm upgrade", "failurePolicy=Fail").await;

    session.upgrade_after_a_change_by_hand().await;
    session
        .run(
            "helm upgrade",
            "--reset-then-reuse-values --set crds.install=false",
        )
        .await;
    session
        .run("kubectl patch validatingwebhookconfiguration", "")
        .await;
    assert!(session.commands.iter().any(|command| command == UPGRADE));
    session.release.shell(UPGRADE).await.ok().unwrap();
    session.run.push(UPGRADE.to_owned());

    // Uninstall everything, in the order of the page.
    session.run("kubectl delete machines", "").await;
    session
        .run("kubectl delete networkconfigurations", "")
        .await;
    session.run("kubectl annotate crd", "").await;
    session.run("helm uninstall", "").await;
    controller.stop().await.unwrap();
    session.run("kubectl delete crd", "").await;
    session.run("kubectl delete namespace", "").await;
    session.run("helm package", "").await;
    let definitions = session.names("crd").await;
    assert!(!definitions.contains("vitistack.io"), "{definitions}");
    assert_eq!(session.names("virtualmachines").await, "");
    drop(simulator);

    let mut rest = session.commands.clone();
    rest.retain(|command| !session.run.contains(command));
    rest.sort();
    assert_eq!(rest, NOT_RUN, "commands that this test does not run");
}
