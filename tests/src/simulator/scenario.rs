//! The behaviour of the simulator, for all machines or for one.

use std::{
    collections::BTreeMap,
    str::FromStr,
    sync::{Mutex, PoisonError},
};

use common::render::kubevirt::PRINTABLE_STATUSES;

/// The annotation of a VirtualMachine that selects its scenario by name, whatever else is set:
/// `kubectl annotate vm web simulator/scenario=crash`.
pub const ANNOTATION: &str = "simulator/scenario";

/// How KubeVirt and the storage behave for a machine. Each imitates KubeVirt 1.9 and CDI 1.65, unless it names another
/// version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scenario {
    /// Claims are bound, and the guest runs and shuts down on request, without delay.
    #[default]
    Happy,
    /// No node has room: the instance stays in `Scheduling`, its pod has no node, and the scheduler's text is in its
    /// `PodScheduled`. Deleting such an instance counts as a failed start.
    Unschedulable,
    /// As `Unschedulable`, because of the anti-affinity of the pod. The simulator takes it by itself where the pods demand
    /// it.
    AntiAffinity,
    /// As `AntiAffinity`, because of the taints of the nodes.
    Tainted,
    /// As `AntiAffinity`, because no node has a label that KubeVirt selects the node by.
    NodeSelector,
    /// As `AntiAffinity`, because no node has the huge pages or the device.
    NoResource,
    /// No claim is ever bound. The classes bind immediately, so the pod exists and cannot be scheduled
    /// (`ErrorUnschedulable`).
    PvcPending,
    /// Admission refuses the launcher pod because of a ResourceQuota: `Synchronized=False/FailedCreate` of the instance.
    PodOverQuota,
    /// As `PodOverQuota`, because of Pod Security Admission.
    PodNotAllowed,
    /// As `PodOverQuota`, because of an admission webhook of somebody else.
    PodDenied,
    /// Admission refuses the instance: `Failure=True/FailedCreate` of a VirtualMachine that is `Stopped`.
    InstanceRefused,
    /// The node cannot pull the image of the launcher: `Synchronized=False` of the instance with the kubelet's text.
    ImagePull,
    /// The node cannot mount a volume of the launcher: the instance stays in `Scheduling` without a condition, and only an
    /// event of the pod has the kubelet's text.
    MountFails,
    /// The guest ends before it runs: no text says why, the instance is deleted, and the VirtualMachine is
    /// `CrashLoopBackOff` with `startFailure`. The pauses are KubeVirt's multiples of the first, which is 1 s unless
    /// [`Simulator::set_start_pause`](super::Simulator::set_start_pause) sets it.
    Crash,
    /// As `Happy`, with two seconds between the steps.
    Slow,
    /// As `Happy`, but the guest ignores the shutdown request.
    Stuck,
    /// As `Happy`, but no volume expansion finishes.
    Resizing,
    /// As `Happy`, but an expanded volume waits for the resize of its file system.
    ResizePending,
    /// As `Happy`, but no import finishes.
    ImportHangs,
    /// As `Happy`, but every import fails: CDI tries again for ever and reports it in `Running`.
    ImportFails,
    /// As `Happy`, but a claim is bound only after the start of a machine that uses it.
    FirstConsumer,
    /// As `FirstConsumer`, but every import fails once its claim is bound.
    FirstConsumerImportFails,
    /// As `Happy`, but KubeVirt migrates no guest by itself: `workloadUpdateMethods` is empty, and evictions wait.
    NoMigration,
    /// The guest does not change, and KubeVirt reports this `printableStatus`.
    Shows(&'static str),
}

impl Scenario {
    /// Whether the pod may get a node at any time: another pod may go, a taint, and a node may get hardware.
    pub(super) fn waits_for_a_node(self) -> bool {
        matches!(
            self,
            Self::AntiAffinity | Self::Tainted | Self::NodeSelector | Self::NoResource
        )
    }

    /// Whether a claim is bound only once a machine that uses it starts.
    pub(super) const fn binds_late(self) -> bool {
        matches!(self, Self::FirstConsumer | Self::FirstConsumerImportFails)
    }

    /// The named scenarios. Each of [`PRINTABLE_STATUSES`] is the name of one that reports it.
    pub const ALL: [(&'static str, Self); 19] = [
        ("happy", Self::Happy),
        ("unschedulable", Self::Unschedulable),
        ("pvc-pending", Self::PvcPending),
        ("pod-over-quota", Self::PodOverQuota),
        ("pod-not-allowed", Self::PodNotAllowed),
        ("pod-denied", Self::PodDenied),
        ("instance-refused", Self::InstanceRefused),
        ("image-pull", Self::ImagePull),
        ("mount-fails", Self::MountFails),
        ("crash", Self::Crash),
        ("slow", Self::Slow),
        ("stuck", Self::Stuck),
        ("resizing", Self::Resizing),
        ("resize-pending", Self::ResizePending),
        ("import-hangs", Self::ImportHangs),
        ("import-fails", Self::ImportFails),
        ("first-consumer", Self::FirstConsumer),
        (
            "first-consumer-import-fails",
            Self::FirstConsumerImportFails,
        ),
        ("no-migration", Self::NoMigration),
    ];
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, scenario)| *scenario)
            .or_else(|| {
                PRINTABLE_STATUSES
                    .into_iter()
                    .find(|word| *word == text)
                    .map(Self::Shows)
            })
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
                format!("no scenario {text:?}; there are {}", names.join(", "))
            })
    }
}

/// The scenario of each machine.
#[derive(Debug, Default)]
pub(super) struct Scenarios(Mutex<Assignments>);

#[derive(Debug, Default)]
struct Assignments {
    default: Scenario,
    named: BTreeMap<(String, String), Scenario>,
}

impl Scenarios {
    pub(super) fn new(default: Scenario) -> Self {
        Self(Mutex::new(Assignments {
            default,
            ..Assignments::default()
        }))
    }

    pub(super) fn set_default(&self, scenario: Scenario) {
        let mut assignments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assignments.default = scenario;
        assignments.named.clear();
    }

    pub(super) fn set(&self, namespace: &str, name: &str, scenario: Scenario) {
        let mut assignments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assignments
            .named
            .insert((namespace.to_owned(), name.to_owned()), scenario);
    }

    pub(super) fn of(&self, namespace: &str, name: &str) -> Scenario {
        let assignments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assignments
            .named
            .get(&(namespace.to_owned(), name.to_owned()))
            .copied()
            .unwrap_or(assignments.default)
    }
}
