//! A lab in which the webhook, the controller and the simulator of KubeVirt run.
#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    reason = "every test file takes what it needs; a test that cannot go on has failed"
)]

use futures::{StreamExt as _, stream};
use lab::{
    Binary, KubevirtCrds, Lab, Options, ProgramUnderTest, Scenario, Simulator,
    audit::{Event, LogPosition},
    objects::{CLAIM, Kind, MACHINE, Objects, is_restarted},
    wait,
};
use serde_json::{Value, json};

pub(crate) use lab::objects::is_reported;
pub(crate) use lab::reviews::machine;

/// The running programs, in the order in which they are stopped.
pub(crate) struct Environment {
    pub(crate) simulator: Simulator,
    pub(crate) controller: ProgramUnderTest,
    pub(crate) webhook: ProgramUnderTest,
    pub(crate) lab: Lab,
}

impl Environment {
    /// Everything with the default settings.
    pub(crate) async fn new() -> Self {
        Self::with(Options::default(), &[]).await
    }

    /// With KubeVirt's own CRDs if they are beside the repository.
    pub(crate) async fn with_best_crds() -> Self {
        let options = Options {
            kubevirt: KubevirtCrds::best(),
            ..Options::default()
        };
        Self::with(options, &[]).await
    }

    /// Everything, with these settings of the controller.
    pub(crate) async fn with(options: Options, settings: &[(&str, &str)]) -> Self {
        let mut lab = Lab::with(options).await.unwrap();
        let webhook = lab.webhook(&[]).await.unwrap();
        let controller = lab.controller(settings).await.unwrap();
        let simulator = lab.simulator(Scenario::Happy).await.unwrap();
        Self {
            simulator,
            controller,
            webhook,
            lab,
        }
    }

    /// The objects of a kind in the namespace of these tests.
    pub(crate) fn objects(&self, kind: Kind) -> Objects {
        self.lab.objects(kind, "default")
    }

    pub(crate) fn machines(&self) -> Objects {
        self.objects(MACHINE)
    }

    pub(crate) async fn apply(&self, object: &Value) {
        self.lab.apply(object).await.unwrap();
    }

    /// Creates a claim and waits until the storage has bound it.
    pub(crate) async fn bound_claim(&self, claim: &Value) -> Value {
        self.apply(claim).await;
        let is_bound = |claim: &Value| claim["status"]["phase"] == "Bound";
        let name = claim["metadata"]["name"].as_str().unwrap();
        let bound = self.objects(CLAIM);
        bound.until(name, "to be bound", is_bound).await.unwrap()
    }

    /// Waits until the simulator has created this node.
    pub(crate) async fn until_node(&self, node: &str) {
        let node = format!("node/{node}");
        let created = ["wait", "--for=create", &node, "--timeout=10m"];
        self.lab
            .kubectl()
            .run(&created)
            .await
            .unwrap()
            .ok()
            .unwrap();
    }

    /// `cordon` or `uncordon` for nodes.
    pub(crate) async fn cordon(&self, verb: &str, nodes: &[&str]) {
        let command = [&[verb], nodes].concat();
        self.lab
            .kubectl()
            .run(&command)
            .await
            .unwrap()
            .ok()
            .unwrap();
    }

    /// Adds what a node offers to pods.
    pub(crate) async fn set_allocatable(&self, node: &str, offers: &Value) {
        let status = json!({"status": {"allocatable": offers}}).to_string();
        let patch = [
            "patch",
            "node",
            node,
            "--subresource=status",
            "--type=merge",
        ];
        let patch = [&patch[..], &["-p", &status]].concat();
        let kubectl = self.lab.kubectl();
        kubectl.run(&patch).await.unwrap().ok().unwrap();
    }

    /// Creates so many Machines, `fleet-0` and so on.
    pub(crate) async fn fleet(&self, many: usize, spec: &Value) {
        let fleet = (0..many).map(|number| machine(&format!("fleet-{number}"), spec));
        stream::iter(fleet)
            .for_each_concurrent(8, async |machine| self.apply(&machine).await)
            .await;
    }

    /// Waits until a Machine created now runs: the controller has processed all earlier events by then.
    pub(crate) async fn barrier(&self, name: &str) {
        self.apply(&machine(name, &json!({"template": "small"})))
            .await;
        self.machines().until_phase(name, "Running").await.unwrap();
    }

    /// Restarts a Machine, which is done when this returns.
    pub(crate) async fn restart(&self, name: &str, request: &str) -> Value {
        let machines = self.machines();
        machines.request_restart(name, request).await.unwrap();
        let is_done = |it: &Value| is_restarted(it, request);
        let restarted = machines.until(name, "to be restarted", is_done).await;
        restarted.unwrap()
    }

    /// A Machine as the webhook accepts it now: two of them may conflict, because the webhook stores neither.
    pub(crate) async fn accepted(&self, machine: &Value) -> Value {
        let create = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
        let kubectl = self.lab.kubectl();
        let output = kubectl.run_with(&create, machine.to_string()).await;
        let mut machine: Value = serde_json::from_str(&output.unwrap().ok().unwrap()).unwrap();
        let metadata = machine["metadata"].as_object_mut().unwrap();
        metadata.retain(|key, _| ["name", "namespace"].contains(&key.as_str()));
        machine
    }

    /// Creates a Machine whose storage class is deleted before the controller reads the Machine: the webhook accepts
    /// only a class that exists.
    pub(crate) async fn machine_without_class(&mut self, name: &str) {
        assert!(self.controller.stop().await.unwrap().success());
        let disk = json!({"name": "root", "size": "20Gi", "storageClass": "fast-ssd"});
        let spec = json!({"template": "small", "disks": [disk]});
        self.apply(&machine(name, &spec)).await;
        let kubectl = self.lab.kubectl();
        let delete = ["delete", "storageclass", "fast-ssd"];
        kubectl.run(&delete).await.unwrap().ok().unwrap();
        self.controller.start_again().unwrap();
    }

    /// Requests a new block until the webhook, which was just registered again, writes it.
    pub(crate) async fn until_renormalized(&self, name: &str) {
        let machines = self.machines();
        let before = machines.get(name).await.unwrap()["spec"]["normalized"].clone();
        let mut attempt = 0;
        wait::until(&format!("{name} to get a new block"), async || {
            attempt += 1;
            let text = format!("attempt {attempt}");
            let refresh = json!({"machine.vitistack.io/refresh-template": text});
            let patch = json!({"metadata": {"annotations": refresh}});
            // Fails until the webhook has written its CA into the new configurations.
            if let Err(error) = machines.merge(name, &patch).await {
                return Ok(Err(error.to_string()));
            }
            let block = machines.get(name).await?["spec"]["normalized"].clone();
            Ok(if block == before {
                Err("not reviewed yet".to_owned())
            } else {
                Ok(())
            })
        })
        .await
        .unwrap();
    }

    /// Waits until the answer of a dry run has a text, or has it no more: the webhook's watch of the KubeVirt object follows
    /// a moment later.
    pub(crate) async fn until_announced(&self, object: &Value, text: &str, is_announced: bool) {
        let kubectl = self.lab.kubectl();
        wait::until("the webhook to know the gates", async || {
            let dry_run = ["apply", "--dry-run=server", "-f", "-"];
            let output = kubectl.run_with(&dry_run, object.to_string()).await?;
            let is_known = output.stderr.contains(text) == is_announced;
            Ok(is_known.then_some(()).ok_or(output))
        })
        .await
        .unwrap();
    }

    /// Waits until exactly these changes of a Machine that runs are pending.
    pub(crate) async fn until_pending(&self, name: &str, expected: &[[&str; 4]]) -> Value {
        let machines = self.machines();
        let reported = |it: &Value| {
            is_reported(it) && it["status"]["phase"] == "Running" && pending(it) == expected
        };
        let what = format!("{expected:?} to be pending");
        machines.until(name, &what, reported).await.unwrap()
    }

    /// The writes of the controller since a position, without those of its Lease and its events.
    pub(crate) async fn writes_since(&self, mark: LogPosition) -> Vec<Event> {
        let mut events = self.lab.requests_since(mark).await.unwrap();
        let controller = Binary::Controller.user();
        events.retain(|event| {
            event.user == controller
                && event.wrote()
                && !event.is_lease()
                && event.resource != "events"
        });
        events
    }
}

/// An object of the namespace of these tests.
pub(crate) fn named(version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": version, "kind": kind, "spec": spec,
        "metadata": {"name": name, "namespace": "default"},
    })
}

/// A line for each request.
pub(crate) fn summaries(events: &[Event]) -> Vec<String> {
    events.iter().map(Event::summary).collect()
}

/// Field, current value, desired value, and action of a pending change.
pub(crate) fn pending(machine: &Value) -> Vec<[&str; 4]> {
    let changes = machine["status"]["pendingChanges"].as_array();
    let changes = changes.map_or(&[][..], Vec::as_slice);
    let mut reported = Vec::new();
    for change in changes {
        let keys = ["field", "current", "desired", "action"];
        reported.push(keys.map(|key| change[key].as_str().unwrap()));
    }
    reported
}
