//! The webhook as it is asked in a cluster: a real API server, a catalog, a Machine that uses it.

use std::{
    fmt,
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use lab::{
    Binary, Lab, Options, Shipped,
    objects::{self, MACHINE, NETWORK},
    reviews, wait,
};
use serde_json::{Value, json};

use super::load::Question;

/// Objects made at a time.
const HANDS: usize = 16;

/// The template of the Machine in question, and its network; they are there from the first.
const TEMPLATE: &str = "bench-0";

/// How much there is to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) machines: usize,
    /// And as many networks.
    pub(crate) templates: usize,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            machines,
            templates,
        } = self;
        write!(f, "{machines} Machines, {templates} templates and networks")
    }
}

/// A control plane and the webhook in it. Dropped from top to bottom.
pub(crate) struct Scene {
    webhook: Shipped,
    pub(crate) lab: Lab,
    /// From the start of the process to its readiness.
    pub(crate) started: Duration,
    size: Size,
}

impl Scene {
    /// Starts one that knows nothing yet.
    pub(crate) async fn start() -> Result<Self> {
        Binary::Webhook.path().await?;
        let options = Options {
            operator: true,
            storage_classes: true,
            ..Options::bare()
        };
        let mut lab = Lab::with(options).await?;
        lab.register_webhooks().await?;
        let start = Instant::now();
        let mut webhook = lab.start_webhook(&[]).await?;
        webhook.ready().await?;
        Ok(Self {
            started: start.elapsed(),
            webhook,
            lab,
            size: Size {
                machines: 0,
                templates: 0,
            },
        })
    }

    /// Makes objects, through the webhook, until there are so many, and waits until it has heard of
    /// all of them.
    pub(crate) async fn grow(&mut self, size: Size) -> Result<()> {
        let (templates, networks) = (
            self.lab.objects(objects::TEMPLATE, ""),
            self.lab.objects(NETWORK, "default"),
        );
        for_each(self.size.templates..size.templates, async |number| {
            templates.create(&template(number)).await?;
            networks.create(&network(number)).await
        })
        .await?;
        let machines = self.lab.objects(MACHINE, "default");
        for_each(self.size.machines..size.machines, async |number| {
            let machine = neighbour(number, number % size.templates);
            machines.create(&machine).await
        })
        .await?;
        self.size = size;
        let Size {
            machines,
            templates,
        } = size;
        let known = [
            ("machines", machines),
            ("machinetemplates", templates),
            ("networkconfigurations", templates),
        ]
        .map(|(kind, count)| format!("machine_webhook_catalog_objects{{kind=\"{kind}\"}} {count}"));
        wait::until("the catalog to be complete", async || {
            let metrics = self.webhook.metrics().await?;
            let told = |line: &String| metrics.lines().any(|it| it == line);
            let missing: Vec<_> = known.iter().filter(|line| !told(line)).collect();
            Ok(if missing.is_empty() {
                Ok(())
            } else {
                Err(format!("{missing:?}"))
            })
        })
        .await
    }

    /// The creation of a Machine at both stages, with the answers that are right; and its deletion, which
    /// no rule judges: what it takes, every review does.
    pub(crate) async fn questions(&mut self) -> Result<[Question; 3]> {
        let machine = machine();
        let creation = reviews::creation(UID, &machine);
        let mutate = self.question("mutate", MUTATE, &creation).await?;
        let response: Value = serde_json::from_slice(&mutate.answer)?;
        let patch = response["response"]["patch"].as_str().context("a patch")?;
        let patch: Value = serde_json::from_slice(&STANDARD.decode(patch)?)?;
        let mut normalized = machine.clone();
        normalized["spec"]["normalized"] = patch[0]["value"].clone();
        let creation = reviews::creation(UID, &normalized);
        let validate = self.question("validate", VALIDATE, &creation).await?;
        let deletion = reviews::review(UID, "DELETE", &Value::Null, &machine);
        let pass = self.question("pass", MUTATE, &deletion).await?;
        Ok([mutate, validate, pass])
    }

    async fn question(
        &mut self,
        name: &'static str,
        path: &'static str,
        review: &Value,
    ) -> Result<Question> {
        let mut question = Question {
            name,
            process: self.webhook(),
            address: self.lab.webhook_address(),
            ca: self.lab.ca_bundle().await?,
            path,
            body: review.to_string().into(),
            answer: Bytes::new(),
        };
        let answer = question.connect().await?;
        let answer = { answer }.post(path, question.body.clone()).await?;
        let response = &answer.json()?["response"];
        ensure!(
            response["allowed"] == true && response["uid"] == UID,
            "not a right answer to {name}: {}",
            answer.text()
        );
        question.answer = answer.body;
        Ok(question)
    }

    /// The id of the webhook's process.
    pub(crate) fn webhook(&mut self) -> u32 {
        self.webhook.process().id()
    }
}

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

const MUTATE: &str = "/mutate?timeout=3s";
const VALIDATE: &str = "/validate?timeout=3s";

/// A Machine as somebody writes it who needs a little more than a template.
fn machine() -> Value {
    let spec = json!({
        "template": TEMPLATE,
        "resources": {"cpu": {"cores": 4}, "memory": {"size": "8Gi"}},
        "disks": [{"name": "data", "size": "100Gi", "storageClass": "fast-ssd"}],
        "networks": [{"name": "eth0", "networkName": TEMPLATE}],
    });
    reviews::machine("web", &spec)
}

/// A Machine that is there already, on one of the networks.
fn neighbour(number: usize, network: usize) -> Value {
    let spec = json!({
        "template": "small",
        "networks": [{"name": "eth0", "networkName": format!("bench-{network}")}],
    });
    reviews::machine(&format!("bench-{number}"), &spec)
}

/// Does something with each number, some at a time.
async fn for_each(
    numbers: Range<usize>,
    something: impl AsyncFn(usize) -> Result<()>,
) -> Result<()> {
    stream::iter(numbers)
        .map(|number| something(number))
        .buffer_unordered(HANDS)
        .try_collect()
        .await
}

fn template(number: usize) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachineTemplate",
        "metadata": {"name": format!("bench-{number}")},
        "spec": {
            "resources": {"cpu": {"cores": 2}, "memory": {"size": "4Gi"}},
            "disks": [{"name": "root", "size": "40Gi", "storageClass": "default"}],
        },
    })
}

fn network(number: usize) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": format!("bench-{number}"), "namespace": "default"},
        "spec": {"bridge": "br-bench", "vlan": number % 4_000 + 1},
    })
}
