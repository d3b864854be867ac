//! One Machine's life in a namespace of its own, and what it looks like whenever it is at rest.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use lab::{
    Lab, Shipped,
    objects::{CLAIM, DATA_VOLUME, MACHINE, NETWORK, Objects, condition},
    reviews,
    saboteur::{Fault, Saboteur},
    wait::Deadline,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    state::{self, State, Uids},
    witness::{self, STRANGER},
};

/// The settings of a controller that is alone in its namespace, and is told everything by watches.
const SETTINGS: [(&str, &str); 2] = [("LEADER_ELECTION", "false"), ("RECONCILE_INTERVAL", "10s")];

/// Within which a life comes to rest after its Machine has told that it is so: several watches tell
/// of it, one after the other. Less than the interval in which a controller looks by itself, so that
/// what only this would mend is a fault.
const REST_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What came of a life.
#[derive(Debug)]
pub(crate) struct Lived {
    /// What was there at each rest.
    pub(crate) rests: Vec<(&'static str, State)>,
    pub(crate) writes: Vec<String>,
    pub(crate) violations: Vec<String>,
    /// Whether the fault has come: the last writes of a life may be fewer in another.
    pub(crate) struck: bool,
}

impl Lived {
    /// What should not be, compared with a life that nothing has disturbed.
    pub(crate) fn problems(&self, undisturbed: &Self) -> Vec<String> {
        let mut problems = self.violations.clone();
        for ((rest, here), (_, there)) in self.rests.iter().zip(&undisturbed.rests) {
            let differences = state::differences(here, there).into_iter();
            problems.extend(differences.map(|it| format!("{rest}: {it}")));
        }
        problems
    }
}

pub(crate) struct Life<'a> {
    lab: &'a Lab,
    client: &'a Client,
    namespace: &'a str,
    fault: Option<(usize, Fault)>,
    /// The life that it is to be like.
    undisturbed: Option<&'a Lived>,
}

impl<'a> Life<'a> {
    pub(crate) fn new(
        lab: &'a Lab,
        client: &'a Client,
        namespace: &'a str,
        fault: Option<(usize, Fault)>,
        undisturbed: Option<&'a Lived>,
    ) -> Self {
        Self {
            lab,
            client,
            namespace,
            fault,
            undisturbed,
        }
    }

    /// From the first apply to the end of the Machine.
    pub(crate) async fn live(&self) -> Result<Lived> {
        self.furnish().await?;
        let witness = witness::of(self.lab, self.namespace);
        let way = Saboteur::start(
            self.client.clone(),
            Some(self.namespace),
            self.fault,
            witness,
        )
        .await?;
        let (lab, kubeconfig) = (self.lab, way.kubeconfig());
        let mut controller = lab.start_controller_at(&kubeconfig, &SETTINGS).await?;
        way.aim(controller.process().id());
        let rests = tokio::select! {
            rests = self.story() => {
                rests.with_context(|| controller.process().log_tail(15))?
            }
            failed = raise(&way, &mut controller) => return Err(failed),
        };
        Ok(Lived {
            rests,
            writes: way.writes(),
            violations: way.violations(),
            struck: way.struck(),
        })
    }

    /// What is there before: a network, and things that look like the Machine's and are not.
    async fn furnish(&self) -> Result<()> {
        let namespace = self.namespace;
        for object in [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            json!({
                "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
                "metadata": {"name": "lan", "namespace": namespace},
                "spec": {"bridge": "br-lan"},
            }),
            json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": STRANGER, "namespace": namespace},
                "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": STRANGER, "namespace": namespace,
                    "labels": {
                        "vitistack.io/managed-by": "kubevirt-operator",
                        "vitistack.io/machine": "web", "vitistack.io/disk": "old",
                    },
                    "annotations": {"machine.vitistack.io/machine-uid": "of-another-life"},
                },
                "spec": {
                    "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }),
        ] {
            self.lab.apply(&object).await?;
        }
        Ok(())
    }

    fn machines(&self) -> Objects {
        self.lab.objects(MACHINE, self.namespace)
    }

    async fn story(&self) -> Result<Vec<(&'static str, State)>> {
        let machines = self.machines();
        let (mut rests, mut uids) = (Vec::new(), Uids::new());
        let disks = |size: &str| {
            json!([
                {"name": "root", "image": {"url": "https://images.example.com/debian.qcow2"}},
                {"name": "data", "size": size, "storageClass": "fast-ssd", "reclaimPolicy": "Retain"},
            ])
        };
        let mut machine = reviews::machine(
            "web",
            &json!({
                "template": "small",
                "disks": disks("10Gi"),
                // More than fits into a VirtualMachine: a Secret is made.
                "cloudInit": {"userData": format!("#cloud-config\n# {}\n", "long ".repeat(600))},
            }),
        );
        machine["metadata"]["namespace"] = json!(self.namespace);
        self.lab.apply(&machine).await?;
        machines.told("web", "Ready", "True", "Running").await?;
        // Its claim is let go of a moment after the guest is made.
        let imports = self.lab.objects(DATA_VOLUME, self.namespace);
        imports.gone("web-root").await?;
        rests.push(self.rest("created", &mut uids).await?);

        let merge = async |spec: Value| machines.merge("web", &json!({"spec": spec})).await;
        let cards = json!([{"name": "eth0"}, {"name": "lan", "networkName": "lan"}]);
        merge(json!({"disks": disks("12Gi"), "networks": cards})).await?;
        machines
            .until("web", "to have grown and to wait for a restart", |web| {
                settled(web)
                    && capacity(web) == "12Gi"
                    && condition(web, "RestartRequired")["status"] == "True"
            })
            .await?;
        // The network follows a moment later, in a way of its own.
        let networks = self.lab.objects(NETWORK, self.namespace);
        networks.until("lan", "to be held", is_held).await?;
        rests.push(
            self.rest("with a larger disk and another NIC", &mut uids)
                .await?,
        );

        let asked = json!({"machine.vitistack.io/restart-requested": "for the NIC"});
        let patch = json!({"metadata": {"annotations": asked}});
        machines.merge("web", &patch).await?;
        machines
            .until("web", "to be restarted", is_restarted)
            .await?;
        rests.push(self.rest("restarted", &mut uids).await?);

        merge(json!({"powerState": "Stopped"})).await?;
        machines.told("web", "Ready", "True", "Stopped").await?;
        rests.push(self.rest("stopped", &mut uids).await?);

        merge(json!({"powerState": "Running"})).await?;
        machines.told("web", "Ready", "True", "Running").await?;
        rests.push(self.rest("started", &mut uids).await?);

        machines.delete("web").await?;
        machines.gone("web").await?;
        self.lab
            .objects(CLAIM, self.namespace)
            .gone("web-root")
            .await?;
        let is_free = |network: &Value| !is_held(network);
        networks.until("lan", "to be let go", is_free).await?;
        rests.push(self.rest("deleted", &mut uids).await?);
        Ok(rests)
    }

    /// What is there at this rest: as in the undisturbed life, or what it is when it does not become so.
    async fn rest(&self, rest: &'static str, uids: &mut Uids) -> Result<(&'static str, State)> {
        let mut rests = self.undisturbed.iter().flat_map(|life| &life.rests);
        let expected = rests.find(|(it, _)| *it == rest);
        let deadline = Deadline::after(REST_WITHIN);
        loop {
            let state = state::of(self.lab, self.namespace, uids).await?;
            let is_at_rest =
                expected.is_none_or(|(_, it)| state::differences(&state, it).is_empty());
            if is_at_rest || deadline.passed() {
                return Ok((rest, state));
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// Starts the controller again whenever it was killed. Ends only with an error.
async fn raise(way: &Saboteur, controller: &mut Shipped) -> anyhow::Error {
    loop {
        way.killed().await;
        if let Err(error) = controller.start_again() {
            return error;
        }
        way.aim(controller.process().id());
    }
}

/// Whether the status is about what is wished now.
fn settled(machine: &Value) -> bool {
    machine["status"]["observedGeneration"] == machine["metadata"]["generation"]
}

fn is_held(network: &Value) -> bool {
    let finalizers = network["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| all.iter().any(|it| it == "machine.vitistack.io/in-use"))
}

/// Whether the guest runs that was asked for.
fn is_restarted(machine: &Value) -> bool {
    let last = &machine["status"]["lastRestart"];
    last["request"] == "for the NIC"
        && last["replaces"].is_null()
        && machine["status"]["pendingChanges"].is_null()
        && condition(machine, "Ready")["reason"] == "Running"
}

fn capacity(machine: &Value) -> &str {
    machine["status"]["volumes"][1]["capacity"]
        .as_str()
        .unwrap_or_default()
}
