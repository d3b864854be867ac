//! The commands of `docs/install.md` and `docs/upgrade.md`, each as it stands there, in a story.

use lab::{
    Binary, Script,
    objects::{MACHINE, condition},
    reviews::machine,
    wait,
};
use serde_json::json;

use crate::{RELEASE, blocks, chart, page, release::Release};

/// What cannot be run here: there is no container engine, there are no nodes on which a rollout could
/// come about, and the name of a Machine is the reader's.
const NOT_RUN: [&str; 6] = [
    "docker build --tag registry.example.com/kubevirt-operator:v0.1.0 .",
    "docker push registry.example.com/kubevirt-operator:v0.1.0",
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
}

const WEBHOOKS: &str = "mutatingwebhookconfigurations,validatingwebhookconfigurations";

#[tokio::test]
async fn the_commands_of_the_pages_do_what_they_say() {
    let mut story = Story::begin().await;

    // kustomize, and less of it.
    story.run("kubectl apply -k manifests/crds", "").await;
    story.run("kubectl wait", "").await;
    story.run("kubectl apply -k manifests/install", "").await;
    story.run("kubectl delete mutatingwebhook", "").await;
    story.run("kubectl delete namespace", "").await;
    assert_eq!(story.names(WEBHOOKS).await, "");
    let definitions = story.names("crd").await;
    assert!(
        definitions.contains("machines.vitistack.io"),
        "{definitions}"
    );
    story.run("kubectl apply -k manifests/install", "").await;

    // Helm takes over, goes, and comes by itself.
    story.run("helm install", "--take-ownership").await;
    story.run("helm uninstall", "").await;
    assert_eq!(story.names(WEBHOOKS).await, "");
    story.run("helm install", "--create-namespace").await;
    story.run("kubectl label namespace", "").await;
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
    story.release.helm(&reachable).await.ok().unwrap();
    let mut webhook = story.release.start(Binary::Webhook).await;
    webhook.ready().await.unwrap();
    let mut controller = story.release.start(Binary::Controller).await;
    controller.ready().await.unwrap();
    let simulator = story.release.lab.simulator(Script::Happy).await.unwrap();
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
    let unjudged = machines.told("web", "Normalized", "False", "NotNormalized");
    unjudged.await.unwrap();
    webhook.start_again().unwrap();
    webhook.ready().await.unwrap();
    story.run("kubectl annotate machines", "").await;
    let running = machines.in_phase("web", "Running").await.unwrap();
    assert_eq!(condition(&running, "Normalized")["status"], "True");
    story.run("helm upgrade", "failurePolicy=Fail").await;

    story
        .run(
            "helm upgrade",
            "--reset-then-reuse-values --set crds.install=false",
        )
        .await;
    let plain = "helm upgrade kubevirt-operator manifests/charts/kubevirt-operator \
                 --namespace kubevirt-operator-system --reset-then-reuse-values";
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
    let definitions = story.names("crd").await;
    assert!(!definitions.contains("vitistack.io"), "{definitions}");
    assert_eq!(story.names("virtualmachines").await, "");
    drop(simulator);

    let mut rest = story.commands.clone();
    rest.retain(|command| !story.run.contains(command));
    rest.sort();
    assert_eq!(rest, NOT_RUN, "run by nobody");
}
