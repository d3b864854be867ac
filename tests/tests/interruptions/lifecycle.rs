//! The steps of one Machine in a namespace of its own, each with a fault, and the state of the namespace after each.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use lab::{
    Lab, ProgramUnderTest,
    fault_proxy::{FaultProxy, Injection, Interrupted, Scope},
    objects::{
        self, CLAIM, DATA_VOLUME, MACHINE, NETWORK, Objects, condition, is_reported, is_restarted,
    },
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
    [("LEADER_ELECTION", "false"), ("RECONCILE_INTERVAL", "5m")];

/// How long the namespace may take to settle after the Machine's status shows that a step is done: several watches
/// deliver the change one after the other, on a machine that is busy with other suites. Shorter than the reconcile
/// interval, so that a state which only the periodic reconcile repairs is reported.
const SETTLE_LIMIT: Duration = Duration::from_mins(2);
/// Time without a change after which nothing more happens by itself in the run that the others are compared with.
const BASELINE_PAUSE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_secs(1);

/// What a user does with the Machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    /// A larger disk and another NIC.
    Change,
    Restart,
    Stop,
    Start,
    Delete,
}

impl Step {
    pub(crate) const ALL: [Self; 6] = [
        Self::Create,
        Self::Change,
        Self::Restart,
        Self::Stop,
        Self::Start,
        Self::Delete,
    ];
}

/// The fault that is injected in each step.
pub(crate) type Faults = [Option<Injection>; Step::ALL.len()];

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The steps, each with the state when nothing happens any more.
    pub(crate) steps: Vec<Interrupted<State>>,
    pub(crate) violations: Vec<String>,
}

impl Outcome {
    /// The violated invariants, and the differences from the run without faults.
    pub(crate) fn problems(&self, baseline: &Self) -> Vec<String> {
        let mut problems = self.violations.clone();
        let steps = self.steps.iter().zip(&baseline.steps);
        for ((here, there), step) in steps.zip(Step::ALL) {
            let differences = state::differences(&here.result, &there.result).into_iter();
            problems.extend(differences.map(|it| format!("after {step:?}: {it}")));
        }
        problems
    }
}

pub(crate) struct Lifecycle<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) client: &'a Client,
    pub(crate) namespace: &'a str,
    pub(crate) faults: Faults,
    /// The run without faults to compare with.
    pub(crate) baseline: Option<&'a Outcome>,
}

impl Lifecycle<'_> {
    /// Does all steps, from the first apply to the deletion of the Machine.
    pub(crate) async fn run(&self) -> Result<Outcome> {
        self.create_surroundings().await?;
        let check = invariants::of(self.lab, self.namespace);
        let scope = Scope {
            namespace: Some(self.namespace.to_owned()),
            ..Scope::default()
        };
        let proxy = FaultProxy::start(self.client.clone(), scope, check).await?;
        let (lab, kubeconfig) = (self.lab, proxy.kubeconfig());
        let [alone, interval] = SETTINGS;
        let settings = [alone, interval, ("IMAGE_NAMESPACE", self.namespace)];
        let mut controller = lab.start_controller_at(&kubeconfig, &settings).await?;
        proxy.set_target(controller.process().id());
        let steps = async {
            let mut done = Vec::new();
            let mut uids = Uids::new();
            for (step, fault) in Step::ALL.into_iter().zip(&self.faults) {
                let during = async {
                    self.take(step).await?;
                    self.state_after(step, &mut uids).await
                };
                let interrupted = proxy.inject(fault.clone(), during).await;
                done.push(interrupted.with_context(|| format!("{step:?}"))?);
            }
            let late = self.late_writes(&proxy).await?;
            anyhow::Ok((done, late))
        };
        let (steps, late) = tokio::select! {
            done = steps => done.with_context(|| controller.process().log_tail(15))?,
            failed = restart_when_killed(&proxy, &mut controller) => return Err(failed),
        };
        let mut violations = proxy.violations();
        violations.extend(late);
        Ok(Outcome { steps, violations })
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

    /// After all steps, the writes that were held arrive at another Machine of the same name. Returns what they cost.
    async fn late_writes(&self, proxy: &FaultProxy) -> Result<Vec<String>> {
        if !proxy.holds_a_write() {
            return Ok(Vec::new());
        }
        // The kept volume has grown to this size.
        self.create("12Gi").await?;
        late::forward(self.lab, self.namespace, proxy).await
    }

    /// Does what the user does, and waits until the status says that it is done.
    async fn take(&self, step: Step) -> Result<()> {
        let machines = self.machines();
        let networks = self.lab.objects(NETWORK, self.namespace);
        let merge = async |spec: Value| machines.merge("web", &json!({"spec": spec})).await;
        let ready = async |status: &str| {
            let ready = machines.until_condition("web", "Ready", "True", status);
            ready.await
        };
        match step {
            Step::Create => {
                self.create("10Gi").await?;
                // The import is removed a moment after the guest was created.
                let imports = self.lab.objects(DATA_VOLUME, self.namespace);
                imports.until_gone("web-root").await?;
            }
            Step::Change => {
                let cards = json!([{"name": "eth0"}, {"name": "lan", "networkName": "lan"}]);
                merge(json!({"disks": self.disks("12Gi"), "networks": cards})).await?;
                let grown = |web: &Value| {
                    is_reported(web)
                        && capacity(web) == "12Gi"
                        && condition(web, "RestartRequired")["status"] == "True"
                };
                let changed =
                    machines.until("web", "to have grown and to wait for a restart", grown);
                changed.await?;
                // The network is updated a moment later, by a reconciler of its own.
                networks.until("lan", "to be in use", is_in_use).await?;
            }
            Step::Restart => {
                machines.request_restart("web", RESTART).await?;
                let restarted = machines.until("web", "to be restarted", is_done);
                restarted.await?;
            }
            Step::Stop => {
                merge(json!({"powerState": "Stopped"})).await?;
                ready("Stopped").await?;
            }
            Step::Start => {
                merge(json!({"powerState": "Running"})).await?;
                ready("Running").await?;
            }
            Step::Delete => {
                machines.delete("web").await?;
                machines.until_gone("web").await?;
                let claims = self.lab.objects(CLAIM, self.namespace);
                claims.until_gone("web-root").await?;
                let is_free = |network: &Value| !is_in_use(network);
                networks.until("lan", "to be released", is_free).await?;
            }
        }
        Ok(())
    }

    /// The state after a step: as soon as it equals the baseline's, or after [`SETTLE_LIMIT`] in any case. That of the
    /// baseline itself is taken when it has not changed for [`BASELINE_PAUSE`]: KubeVirt has done what it does by itself.
    async fn state_after(&self, step: Step, uids: &mut Uids) -> Result<State> {
        let baseline = self.baseline.map(|it| &it.steps[step as usize].result);
        let deadline = Deadline::after(SETTLE_LIMIT);
        let mut state = state::of(self.lab, self.namespace, uids).await?;
        let mut pause = Deadline::after(BASELINE_PAUSE);
        loop {
            let is_at_rest = match baseline {
                Some(expected) => state::differences(&state, expected).is_empty(),
                None => pause.passed(),
            };
            if is_at_rest || deadline.passed() {
                return Ok(state);
            }
            sleep(POLL).await;
            let next = state::of(self.lab, self.namespace, uids).await?;
            if !state::differences(&state, &next).is_empty() {
                pause = Deadline::after(BASELINE_PAUSE);
            }
            state = next;
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

fn is_in_use(network: &Value) -> bool {
    let finalizers = network["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| all.iter().any(|it| it == "machine.vitistack.io/in-use"))
}

/// The request of the restart.
const RESTART: &str = "for the NIC";

/// Whether the requested restart is done.
fn is_done(machine: &Value) -> bool {
    is_restarted(machine, RESTART)
        && machine["status"]["pendingChanges"].is_null()
        && condition(machine, "Ready")["reason"] == "Running"
}

fn capacity(machine: &Value) -> &str {
    machine["status"]["volumes"][1]["capacity"]
        .as_str()
        .unwrap_or_default()
}
