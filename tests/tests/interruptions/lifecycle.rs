//! The steps of one Machine in a namespace of its own, with the state of the namespace after each of them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use lab::{
    Lab, ProgramUnderTest,
    fault_proxy::{Fault, FaultProxy, Scope},
    objects::{self, CLAIM, DATA_VOLUME, MACHINE, NETWORK, Objects, condition},
    reviews,
    wait::Deadline,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    invariants::{self, EXISTING, UNRELATED},
    late,
    state::{self, State, Uids},
};

/// The settings of a controller that is alone in its namespace and reads changes from watches.
pub(crate) const SETTINGS: [(&str, &str); 2] =
    [("LEADER_ELECTION", "false"), ("RECONCILE_INTERVAL", "60s")];

/// How long the namespace may take to settle after the Machine's status shows that a step is done: several watches
/// deliver the change one after the other, on a machine that is busy with other suites. Shorter than the reconcile
/// interval, so that a state which only the periodic reconcile repairs is reported.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// Time after which nothing more happens by itself in the run that the others are compared with.
const BASELINE_PAUSE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_secs(1);

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The state at each checkpoint.
    pub(crate) checkpoints: Vec<(&'static str, State)>,
    /// All writes; a run may have fewer than the baseline.
    pub(crate) writes: Vec<String>,
    pub(crate) violations: Vec<String>,
}

impl Outcome {
    /// The violated invariants, and the differences from the run without faults.
    pub(crate) fn problems(&self, baseline: &Self) -> Vec<String> {
        let mut problems = self.violations.clone();
        for ((rest, here), (_, there)) in self.checkpoints.iter().zip(&baseline.checkpoints) {
            let differences = state::differences(here, there).into_iter();
            problems.extend(differences.map(|it| format!("{rest}: {it}")));
        }
        problems
    }
}

pub(crate) struct Lifecycle<'a> {
    lab: &'a Lab,
    client: &'a Client,
    namespace: &'a str,
    /// The kind of the write that is interrupted, its number among these, from 1, and the fault.
    fault: Option<(&'a str, usize, Fault)>,
    /// The run without faults to compare with.
    baseline: Option<&'a Outcome>,
}

impl<'a> Lifecycle<'a> {
    pub(crate) fn new(
        lab: &'a Lab,
        client: &'a Client,
        namespace: &'a str,
        fault: Option<(&'a str, usize, Fault)>,
        baseline: Option<&'a Outcome>,
    ) -> Self {
        Self {
            lab,
            client,
            namespace,
            fault,
            baseline,
        }
    }

    /// Runs all steps, from the first apply to the deletion of the Machine.
    pub(crate) async fn run(&self) -> Result<Outcome> {
        self.create_surroundings().await?;
        let check = invariants::of(self.lab, self.namespace);
        let scope = Scope {
            namespace: Some(self.namespace),
            interrupted: self.fault.map(|(kind, ..)| kind),
            ..Scope::default()
        };
        let fault = self.fault.map(|(_, number, fault)| (number, fault));
        let proxy = FaultProxy::start(self.client.clone(), scope, fault, check).await?;
        let (lab, kubeconfig) = (self.lab, proxy.kubeconfig());
        let [alone, interval] = SETTINGS;
        let settings = [alone, interval, ("IMAGE_NAMESPACE", self.namespace)];
        let mut controller = lab.start_controller_at(&kubeconfig, &settings).await?;
        proxy.set_target(controller.process().id());
        let steps = async {
            let checkpoints = self.steps().await?;
            let writes = proxy.writes();
            let late = self.late_write(&proxy).await?;
            anyhow::Ok((checkpoints, writes, late))
        };
        let (checkpoints, writes, late) = tokio::select! {
            done = steps => done.with_context(|| controller.process().log_tail(15))?,
            failed = restart_when_killed(&proxy, &mut controller) => return Err(failed),
        };
        let mut violations = proxy.violations();
        violations.extend(late);
        Ok(Outcome {
            checkpoints,
            writes,
            violations,
        })
    }

    /// Creates a network, an image, and objects that look like the Machine's but are not.
    async fn create_surroundings(&self) -> Result<()> {
        let namespace = self.namespace;
        for object in [
            objects::namespace(namespace, &json!({})),
            json!({
                "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
                "metadata": {"name": "lan", "namespace": namespace},
                // A segment of its own: a controller sees the addresses of its own run only.
                "spec": {"bridge": format!("br-{namespace}"), "ipam": {"subnets": [{"cidr": "10.8.0.0/16"}]}},
            }),
            json!({
                "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineImage",
                "metadata": {"name": namespace},
                "spec": {
                    "source": {"url": "https://images.example.com/debian.qcow2"},
                    "minDiskSize": "3Gi",
                },
            }),
            json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": UNRELATED, "namespace": namespace},
                "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": UNRELATED, "namespace": namespace,
                    "labels": {
                        "vitistack.io/managed-by": "kubevirt-operator",
                        "vitistack.io/machine": "web", "vitistack.io/disk": "old",
                    },
                    "annotations": {"machine.vitistack.io/machine-uid": "of-another-uid"},
                },
                "spec": {
                    "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": EXISTING, "namespace": namespace, "labels": {"app": "legacy"}},
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

    /// The disks of the Machine: one of a MachineImage that is deleted with it, one that is kept, and one on a claim that
    /// is used as it is.
    fn disks(&self, size: &str) -> Value {
        json!([
            {"name": "root", "image": {"name": self.namespace}},
            {"name": "data", "size": size, "storageClass": "fast-ssd", "reclaimPolicy": "Retain"},
            {"name": "legacy", "claimName": EXISTING},
        ])
    }

    fn machines(&self) -> Objects {
        self.lab.objects(MACHINE, self.namespace)
    }

    /// Creates the Machine with a disk `data` of this size, and waits until it runs.
    async fn create(&self, size: &str) -> Result<()> {
        let mut machine = reviews::machine(
            "web",
            &json!({
                "template": "small",
                "disks": self.disks(size),
                // Longer than a VirtualMachine may contain, so that a Secret is created.
                "cloudInit": {"userData": format!("#cloud-config\n# {}\n", "long ".repeat(600))},
            }),
        );
        machine["metadata"]["namespace"] = json!(self.namespace);
        // Beside other suites a read of the new image may take longer than the webhook waits.
        self.lab.apply_when_admitted(&machine).await?;
        self.machines()
            .until_condition("web", "Ready", "True", "Running")
            .await?;
        Ok(())
    }

    /// After all steps, the write that was held arrives at another Machine of the same name. Returns what it costs.
    async fn late_write(&self, proxy: &FaultProxy) -> Result<Vec<String>> {
        if !matches!(self.fault, Some((.., Fault::KilledBefore))) {
            return Ok(Vec::new());
        }
        // The kept volume has grown to this size.
        self.create("12Gi").await?;
        late::forward(self.lab, self.namespace, proxy).await
    }

    async fn steps(&self) -> Result<Vec<(&'static str, State)>> {
        let machines = self.machines();
        let (mut checkpoints, mut uids) = (Vec::new(), Uids::new());
        self.create("10Gi").await?;
        // The import is removed a moment after the guest was created.
        let imports = self.lab.objects(DATA_VOLUME, self.namespace);
        imports.until_gone("web-root").await?;
        checkpoints.push(self.checkpoint("created", &mut uids).await?);

        let merge = async |spec: Value| machines.merge("web", &json!({"spec": spec})).await;
        let cards = json!([{"name": "eth0"}, {"name": "lan", "networkName": "lan"}]);
        merge(json!({"disks": self.disks("12Gi"), "networks": cards})).await?;
        machines
            .until("web", "to have grown and to wait for a restart", |web| {
                settled(web)
                    && capacity(web) == "12Gi"
                    && condition(web, "RestartRequired")["status"] == "True"
            })
            .await?;
        // The network is updated a moment later, by a reconciler of its own.
        let networks = self.lab.objects(NETWORK, self.namespace);
        networks.until("lan", "to be in use", is_in_use).await?;
        checkpoints.push(
            self.checkpoint("with a larger disk and another NIC", &mut uids)
                .await?,
        );

        let annotations = json!({"machine.vitistack.io/restart-requested": "for the NIC"});
        let patch = json!({"metadata": {"annotations": annotations}});
        machines.merge("web", &patch).await?;
        machines
            .until("web", "to be restarted", is_restarted)
            .await?;
        checkpoints.push(self.checkpoint("restarted", &mut uids).await?);

        merge(json!({"powerState": "Stopped"})).await?;
        machines
            .until_condition("web", "Ready", "True", "Stopped")
            .await?;
        checkpoints.push(self.checkpoint("stopped", &mut uids).await?);

        merge(json!({"powerState": "Running"})).await?;
        machines
            .until_condition("web", "Ready", "True", "Running")
            .await?;
        checkpoints.push(self.checkpoint("started", &mut uids).await?);

        machines.delete("web").await?;
        machines.until_gone("web").await?;
        self.lab
            .objects(CLAIM, self.namespace)
            .until_gone("web-root")
            .await?;
        let is_free = |network: &Value| !is_in_use(network);
        networks.until("lan", "to be released", is_free).await?;
        checkpoints.push(self.checkpoint("deleted", &mut uids).await?);
        Ok(checkpoints)
    }

    /// The state at this checkpoint: as soon as it equals the baseline's, or after [`SETTLE_LIMIT`] in any case. That of
    /// the baseline itself is taken after [`BASELINE_PAUSE`], when KubeVirt has done what it does by itself.
    async fn checkpoint(
        &self,
        name: &'static str,
        uids: &mut Uids,
    ) -> Result<(&'static str, State)> {
        let mut checkpoints = self.baseline.iter().flat_map(|it| &it.checkpoints);
        let expected = checkpoints.find(|(it, _)| *it == name);
        let deadline = Deadline::after(if self.baseline.is_some() {
            SETTLE_LIMIT
        } else {
            BASELINE_PAUSE
        });
        loop {
            let state = state::of(self.lab, self.namespace, uids).await?;
            let is_at_rest =
                expected.is_some_and(|(_, it)| state::differences(&state, it).is_empty());
            if is_at_rest || deadline.passed() {
                return Ok((name, state));
            }
            sleep(POLL).await;
        }
    }
}

/// Restarts the controller each time it was killed. Returns only on an error.
pub(crate) async fn restart_when_killed(
    proxy: &FaultProxy,
    controller: &mut ProgramUnderTest,
) -> anyhow::Error {
    loop {
        proxy.killed().await;
        if let Err(error) = controller.start_again() {
            return error;
        }
        proxy.set_target(controller.process().id());
    }
}

/// Whether the status was observed for the current generation.
fn settled(machine: &Value) -> bool {
    machine["status"]["observedGeneration"] == machine["metadata"]["generation"]
}

fn is_in_use(network: &Value) -> bool {
    let finalizers = network["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| all.iter().any(|it| it == "machine.vitistack.io/in-use"))
}

/// Whether the requested restart is done.
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
