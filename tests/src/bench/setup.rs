//! The webhook to measure: a real API server, a catalog, and reviews of a Machine that uses it.

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
    Binary, Lab, Options, ProgramUnderTest,
    objects::{self, MACHINE, NETWORK},
    reviews, wait,
};
use serde_json::{Value, json};

use super::load::Request;

/// Objects created concurrently.
const CONCURRENCY: usize = 16;

/// The template and the network of the reviewed Machine; both exist in every catalog.
const TEMPLATE: &str = "bench-0";

/// The size of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) machines: usize,
    /// The number of templates, and of networks.
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

/// A control plane and the webhook in it. The fields are dropped in this order.
pub(crate) struct Setup {
    webhook: ProgramUnderTest,
    pub(crate) lab: Lab,
    /// From the start of the process to its readiness.
    pub(crate) started: Duration,
    size: Size,
}

impl Setup {
    /// Starts both with an empty catalog.
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

    /// Creates objects through the webhook up to this size, and waits until its catalog has all of them.
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
            let machine = existing_machine(number, number % size.templates);
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
            let reported = |line: &String| metrics.lines().any(|it| it == line);
            let missing: Vec<_> = known.iter().filter(|line| !reported(line)).collect();
            Ok(if missing.is_empty() {
                Ok(())
            } else {
                Err(format!("{missing:?}"))
            })
        })
        .await
    }

    /// Reviews of a Machine's creation by both webhooks, and of its deletion, which no rule applies to: its cost is
    /// the overhead of every review.
    pub(crate) async fn requests(&mut self) -> Result<[Request; 3]> {
        let machine = machine();
        let creation = reviews::creation(UID, &machine);
        let mutate = self.request("mutate", MUTATE, &creation).await?;
        let response: Value = serde_json::from_slice(&mutate.answer)?;
        let patch = response["response"]["patch"].as_str().context("a patch")?;
        let patch: Value = serde_json::from_slice(&STANDARD.decode(patch)?)?;
        let mut normalized = machine.clone();
        normalized["spec"]["normalized"] = patch[0]["value"].clone();
        let creation = reviews::creation(UID, &normalized);
        let validate = self.request("validate", VALIDATE, &creation).await?;
        let deletion = reviews::review(UID, "DELETE", &Value::Null, &machine);
        let pass = self.request("pass", MUTATE, &deletion).await?;
        Ok([mutate, validate, pass])
    }

    async fn request(
        &mut self,
        name: &'static str,
        path: &'static str,
        review: &Value,
    ) -> Result<Request> {
        let mut request = Request {
            name,
            process: self.webhook(),
            address: self.lab.webhook_address(),
            ca: self.lab.ca_bundle().await?,
            path,
            body: review.to_string().into(),
            answer: Bytes::new(),
        };
        let answer = request.connect().await?;
        let answer = { answer }.post(path, request.body.clone()).await?;
        let response = &answer.json()?["response"];
        ensure!(
            response["allowed"] == true && response["uid"] == UID,
            "an unexpected response to {name}: {}",
            answer.text()
        );
        request.answer = answer.body;
        Ok(request)
    }

    /// The id of the webhook's process.
    pub(crate) fn webhook(&mut self) -> u32 {
        self.webhook.process().id()
    }
}

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

const MUTATE: &str = "/mutate?timeout=3s";
const VALIDATE: &str = "/validate?timeout=3s";

/// A Machine that overrides some fields of its template.
fn machine() -> Value {
    let spec = json!({
        "template": TEMPLATE,
        "resources": {"cpu": {"cores": 4}, "memory": {"size": "8Gi"}},
        "disks": [{"name": "data", "size": "100Gi", "storageClass": "fast-ssd"}],
        "networks": [{"name": "eth0", "networkName": TEMPLATE}],
    });
    reviews::machine("web", &spec)
}

/// A Machine of the catalog, on one of the networks.
fn existing_machine(number: usize, network: usize) -> Value {
    let spec = json!({
        "template": "small",
        "networks": [{"name": "eth0", "networkName": format!("bench-{network}")}],
    });
    reviews::machine(&format!("bench-{number}"), &spec)
}

/// Calls `create` with each number, [`CONCURRENCY`] at a time.
async fn for_each(numbers: Range<usize>, create: impl AsyncFn(usize) -> Result<()>) -> Result<()> {
    stream::iter(numbers)
        .map(|number| create(number))
        .buffer_unordered(CONCURRENCY)
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
