//! The webhook as it is asked in a cluster: a real API server, a catalog, a Machine that uses it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use lab::{Binary, Lab, Options, Shipped, reviews, wait};
use serde_json::{Value, json};

use super::load::Question;

/// Objects made at a time.
const HANDS: usize = 8;

/// The template and the networks of the Machine in question, which are there from the first.
const TEMPLATE: &str = "bench-0";

/// A control plane and the webhook in it. Dropped from top to bottom.
pub(crate) struct Scene {
    webhook: Shipped,
    pub(crate) lab: Lab,
    /// From the start of the process to its readiness.
    pub(crate) started: Duration,
    objects: usize,
}

impl Scene {
    /// Starts one with so many templates and networks.
    pub(crate) async fn start(objects: usize) -> Result<Self> {
        Binary::Webhook.path().await?;
        let options = Options {
            operator: true,
            storage_classes: true,
            ..Options::bare()
        };
        let mut lab = Lab::with(options).await?;
        make(&lab, 0..objects).await?;
        lab.register_webhooks().await?;
        let start = Instant::now();
        let mut webhook = lab.start_webhook(&[]).await?;
        webhook.ready().await?;
        Ok(Self {
            started: start.elapsed(),
            webhook,
            lab,
            objects,
        })
    }

    /// Makes more of them, through the webhook, until there are `objects`, and waits until it has
    /// heard of each.
    pub(crate) async fn grow(&mut self, objects: usize) -> Result<()> {
        make(&self.lab, self.objects..objects).await?;
        self.objects = objects;
        let last = objects - 1;
        wait::until("the catalog to be complete", async || {
            let before = self.lookups().await?;
            let mut connection = self.lab.connect_webhook().await?;
            let review = review(&machine(&format!("bench-{last}"), last));
            connection.post("/mutate", review).await?;
            let after = self.lookups().await?;
            Ok(if before == after { Ok(()) } else { Err(after) })
        })
        .await
    }

    /// How often the webhook has had to ask the API server.
    async fn lookups(&mut self) -> Result<Vec<String>> {
        let metrics = self.webhook.metrics().await?;
        let lookups = metrics
            .lines()
            .filter(|line| line.starts_with("machine_webhook_catalog_lookups_total"));
        Ok(lookups.map(str::to_owned).collect())
    }

    /// The creation of a Machine at both stages, with the answers that are right.
    pub(crate) async fn questions(&mut self) -> Result<[Question; 2]> {
        let machine = machine(TEMPLATE, 0);
        let mutate = self
            .question("mutate", "/mutate?timeout=3s", &machine)
            .await?;
        let response: Value = serde_json::from_slice(&mutate.answer)?;
        let patch = response["response"]["patch"].as_str().context("a patch")?;
        let patch: Value = serde_json::from_slice(&STANDARD.decode(patch)?)?;
        let mut normalized = machine;
        normalized["spec"]["normalized"] = patch[0]["value"].clone();
        let validate = self.question("validate", "/validate?timeout=3s", &normalized);
        Ok([mutate, validate.await?])
    }

    async fn question(
        &mut self,
        name: &'static str,
        path: &'static str,
        machine: &Value,
    ) -> Result<Question> {
        let mut question = Question {
            name,
            process: self.webhook(),
            address: self.lab.webhook_address(),
            ca: self.lab.ca_bundle().await?,
            path,
            body: review(machine),
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

fn review(machine: &Value) -> Bytes {
    reviews::creation(UID, machine).to_string().into()
}

/// A Machine as somebody writes it who needs a little more than a template.
fn machine(template: &str, network: usize) -> Value {
    let spec = json!({
        "template": template,
        "resources": {"cpu": {"cores": 4}, "memory": {"size": "8Gi"}},
        "disks": [{"name": "data", "size": "100Gi", "storageClass": "fast-ssd"}],
        "networks": [{"name": "eth0", "networkName": format!("bench-{network}")}],
    });
    reviews::machine("web", &spec)
}

/// Makes a template and a network of each number.
async fn make(lab: &Lab, numbers: std::ops::Range<usize>) -> Result<()> {
    let objects = numbers.flat_map(|number| [template(number), network(number)]);
    stream::iter(objects)
        .map(async |object| lab.apply(&object).await)
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
