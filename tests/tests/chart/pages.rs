//! The commands of `docs/install.md` and `docs/upgrade.md`, each as it stands there, in a story.

use lab::{
    Binary, Scenario, WEBHOOK_CONFIGURATION,
    objects::{MACHINE, condition},
    reviews::machine,
    wait,
};
use serde_json::json;

use crate::{RELEASE, blocks, chart, page, release::Release};

/// What cannot be run here: there are no container engine and no registry, there are no nodes on which a rollout could
/// come about, and the name of a Machine is the reader's.
const NOT_RUN: [&str; 7] = [
    "docker build --build-arg GIT_COMMIT=$(git rev-parse HEAD) --tag registry.example.com/kubevirt-operator:v0.1.0 .",
    "docker push registry.example.com/kubevirt-operator:v0.1.0",
    "helm push target/kubevirt-operator-0.1.0.tgz oci://registry.example.com/helm",
    "kubectl -n kubevirt-operator-system rollout undo deployment kubevirt-operator-controller-manager",
    "kubectl -n kubevirt-operator-system rollout undo deployment machine-webhook",
    "kubectl patch machine <name> --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
    "kubectl patch networkconfiguration <name> --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
];

/// The commands of both pages, and which of them have been run.
struct Story {
    release: Release,
    commands: Vec<String>,
    run: Vec<String>,
}

impl Story {
    async fn begin() -> Self {
        let pages = [page("install"), page("upgrade")].concat();
        let blocks = blocks(&pages, "console").concat();
        Self {
            release: Release::none().await,
            commands: blocks.lines().map(str::to_owned).collect(),
            run: Vec::new(),
        }
    }

    /// Runs the commands of the pages that begin so and have this in them; they have to succeed.
    async fn run(&mut self, start: &str, with: &str) -> String {
        let fits = |line: &&String| line.starts_with(start) && line.contains(with);
        let mut found: Vec<_> = self.commands.iter().filter(fits).cloned().collect();
        found.dedup();
        assert_eq!(found.len(), 1, "{start} … {with}: {found:#?}");
        let command = found.remove(0);
        let said = self.release.shell(&command).await.ok().unwrap();
        self.run.push(command);
        said
    }

    async fn names(&self, kinds: &str) -> String {
        let get = ["get", kinds, "--all-namespaces", "--output=name"];
        self.release.kubectl(&get).await.ok().unwrap()
    }

    /// Installed, removed without the definitions, and installed again.
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
}

/// What holds the namespace to the strictest standard; the notes tell of it where it is not so.
const LABEL: &str = "kubectl label namespace kubevirt-operator-system \
                     pod-security.kubernetes.io/enforce=restricted";

const WEBHOOKS: &str = "mutatingwebhookconfigurations,validatingwebhookconfigurations";

#[tokio::test]
async fn the_commands_of_the_pages_do_what_they_say() {
    let mut story = Story::begin().await;

    story.with_kustomize().await;

    // Helm takes over, goes, and comes by itself.
    story.run("helm install", "--take-ownership").await;
    story.run("helm uninstall", "").await;
    assert_eq!(story.names(WEBHOOKS).await, "");
    // Its namespace was kustomize's, with the label.
    story.run("kubectl delete namespace", "").await;
    let notes = story.run("helm install", "--create-namespace").await;
    assert!(notes.contains(LABEL), "{notes}");
    story.run(LABEL, "").await;
    let deployments = story
        .run("kubectl -n kubevirt-operator-system get deployments", "")
        .await;
    assert!(deployments.contains("machine-webhook"), "{deployments}");

    // What nodes would do.
    let (chart, port) = (chart(), story.release.port());
    let reachable = [
        "upgrade",
        RELEASE,
        &chart,
        "--reset-then-reuse-values",
        &port,
    ];
    let notes = story.release.helm(&reachable).await.ok().unwrap();
    assert!(!notes.contains(LABEL), "{notes}");
    let mut webhook = story.release.start(Binary::Webhook).await;
    webhook.ready().await.unwrap();
    let mut controller = story.release.start(Binary::Controller).await;
    controller.ready().await.unwrap();
    let simulator = story.release.lab.simulator(Scenario::Happy).await.unwrap();
    story.run("helm test", "").await;

    // Nobody answers, and it is let in; then it is judged.
    story.run("helm upgrade", "failurePolicy=Ignore").await;
    webhook.kill();
    let machines = story.release.lab.objects(MACHINE, "default");
    let web = machine("web", &json!({"template": "small"}));
    // The API server takes a moment to hear of the policy.
    wait::until("the Machine to be let in", async || {
        let applied = story.release.lab.apply(&web).await;
        Ok(applied.map_err(|error| format!("{error:#}")))
    })
    .await
    .unwrap();
    let unjudged = machines.until_condition("web", "Normalized", "False", "NotNormalized");
    unjudged.await.unwrap();
    let metrics = ["get", "--raw", "/metrics"];
    let metrics = story.release.kubectl(&metrics).await.ok().unwrap();
    let let_in = "apiserver_admission_webhook_fail_open_count";
    assert!(page("install").contains(&format!("`{let_in}{{name=~\".*vitistack.io\"}}`")));
    let counted = format!("{let_in}{{name=\"mutate.machines.vitistack.io\",");
    assert!(metrics.contains(&counted));
    webhook.start_again().unwrap();
    webhook.ready().await.unwrap();
    story.run("kubectl annotate machines", "").await;
    let running = machines.until_phase("web", "Running").await.unwrap();
    assert_eq!(condition(&running, "Normalized")["status"], "True");
    story.run("helm upgrade", "failurePolicy=Fail").await;

    // Changed by hand in an emergency: Helm does not undo that unasked.
    let ignore = r#"[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]"#;
    let mutating = [
        "patch",
        "mutatingwebhookconfiguration",
        WEBHOOK_CONFIGURATION,
    ];
    let patch = [&mutating[..], &["--type=json", "-p", ignore]].concat();
    story.release.kubectl(&patch).await.ok().unwrap();
    let plain = "helm upgrade kubevirt-operator manifests/charts/kubevirt-operator \
                 --namespace kubevirt-operator-system --reset-then-reuse-values";
    let refused = story.release.shell(plain).await.refused().unwrap();
    let told = blocks(&page("upgrade"), "text").remove(0);
    assert!(refused.ends_with(&told), "{refused}");
    story
        .run(
            "helm upgrade",
            "--reset-then-reuse-values --force-conflicts",
        )
        .await;

    story
        .run(
            "helm upgrade",
            "--reset-then-reuse-values --set crds.install=false",
        )
        .await;
    assert!(story.commands.iter().any(|command| command == plain));
    story.release.shell(plain).await.ok().unwrap();
    story.run.push(plain.to_owned());

    // Everything goes, in the order of the page.
    story.run("kubectl delete machines", "").await;
    story.run("kubectl delete networkconfigurations", "").await;
    story.run("helm uninstall", "").await;
    controller.stop().await.unwrap();
    story.run("kubectl delete crd", "").await;
    story.run("kubectl delete namespace", "").await;
    story.run("helm package", "").await;
    let definitions = story.names("crd").await;
    assert!(!definitions.contains("vitistack.io"), "{definitions}");
    assert_eq!(story.names("virtualmachines").await, "");
    drop(simulator);

    let mut rest = story.commands.clone();
    rest.retain(|command| !story.run.contains(command));
    rest.sort();
    assert_eq!(rest, NOT_RUN, "run by nobody");
}
