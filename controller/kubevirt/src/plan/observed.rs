//! The part of the cluster's state that a plan for one Machine depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::api::choice::PowerState;
use common::catalog::{ClaimUser, KubevirtRow};
use common::render::{SecretKey, SecretValue};
use controller_core::addresses::Conflict;
use controller_core::machine::Machine;
use controller_core::objects::{Meta as _, Network, Secret, Template};

use crate::objects::{
    Attachment, Claim, DataVolume, GuestMigration, GuestPod, Instance, VirtualMachine,
    find_condition,
};
use controller_core::foreign_stop::OnForeignStop;

/// A guest that was taken down from outside and has to be started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Uid of its instance; empty if that is gone.
    pub(crate) instance: String,
    /// What happened, for a person.
    pub(crate) cause: String,
}

/// The object of a requested migration that has not ended.
#[derive(Clone, Debug, Default)]
pub(crate) enum RequestedMigration {
    /// Migrations have not been listed.
    #[default]
    Unknown,
    Absent,
    Found(Arc<GuestMigration>),
}

/// An existing claim that a disk is on.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExistingClaim {
    /// `None`: it does not exist.
    pub(crate) claim: Option<Arc<Claim>>,
    /// Another Machine that has the claim: as the volume of its own disk, or by an older spec.
    pub(crate) holder: Option<ClaimUser>,
    /// Kind and name of what else uses the claim now. Looked for only before the guest gets it.
    pub(crate) user: Option<String>,
}

/// Time after which the events of a pod are read that does not run. A pod takes a few seconds on a node that has its
/// image, and what fails at first, such as a volume that is still attached elsewhere, often succeeds by then.
pub(crate) const POD_START_TIMEOUT: Duration = Duration::from_secs(10);

/// A warning about the pod of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodWarning {
    /// Name of the pod.
    pub(crate) pod: String,
    /// Reason and text of the event.
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// What is known of the cluster that matters to one Machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Uid of the cluster.
    pub(crate) cluster: Arc<str>,
    /// Whether KubeVirt's kinds are served.
    pub(crate) kubevirt: bool,
    /// How KubeVirt is configured; `None`: that is not known.
    pub(crate) settings: Option<KubevirtRow>,
    /// Whether Multus' kind is served.
    pub(crate) multus: bool,
    /// Whether CDI's kind is served.
    pub(crate) cdi: bool,
    /// The VirtualMachine of the Machine's name, of any owner.
    pub(crate) vm: Option<Arc<VirtualMachine>>,
    /// The instance of the Machine's name.
    pub(crate) instance: Option<Arc<Instance>>,
    /// The pod in which the instance's guest runs.
    pub(crate) pod: Option<Arc<GuestPod>>,
    /// What a node reports about the pod of a guest that takes long to start.
    pub(crate) pod_warning: Option<PodWarning>,
    /// How the guest was taken down without having shut itself down, if that was looked for.
    pub(crate) eviction: Option<Eviction>,
    /// The object of the requested migration that has not ended.
    pub(crate) migration: RequestedMigration,
    /// What is done about a guest that another client stops. A setting.
    pub(crate) on_foreign_stop: OnForeignStop,
    /// Claims labelled with the Machine, and claims that have the names of its volumes' claims; by name.
    pub(crate) claims: BTreeMap<String, Arc<Claim>>,
    /// Existing claims that disks are on, by name.
    pub(crate) existing: BTreeMap<String, ExistingClaim>,
    /// Claims of the Machine's own disks that other Machines have disks on as they are, with the name of one.
    pub(crate) taken: BTreeMap<String, String>,
    /// Claims of the Machine's own disks that are adopted or can be, and that something else uses now, with its kind and
    /// name. Looked for only before the guest gets the claim.
    pub(crate) adopted_users: BTreeMap<String, String>,
    /// Claims that KubeVirt made for EFI variables and the TPM of the guest; read only for a Machine under deletion.
    pub(crate) state_claims: Vec<Claim>,
    /// Why these claims could not be read. `state_claims` are those of the caches then, and one may be missing there.
    pub(crate) state_claims_error: Option<String>,
    /// DataVolumes of the same names, by name.
    pub(crate) data_volumes: BTreeMap<String, Arc<DataVolume>>,
    /// Names of the claims to clone for the Machine's volumes, those that exist.
    pub(crate) sources: BTreeSet<String>,
    /// Namespace of the shared imports of MachineImages.
    pub(crate) image_namespace: Arc<str>,
    /// Storage classes of the Machine's volumes of which CDI knows no access mode.
    pub(crate) unprofiled: BTreeSet<String>,
    /// The shared imports that the Machine's volumes are clones of, those that exist, by name.
    pub(crate) imports: BTreeMap<String, Arc<DataVolume>>,
    /// MachineImages of its disks that have another source now.
    pub(crate) outdated_images: Vec<String>,
    /// Uids on the claims and DataVolumes of Machines which exist now.
    pub(crate) existing_uids: BTreeSet<String>,
    /// The Secret that has the name of the Machine's cloud-init Secret, of any owner.
    pub(crate) secret: Option<Arc<Secret>>,
    /// Values of the user's Secrets, those that had to be read; `None`: the Secret or the key does not exist.
    pub(crate) contents: BTreeMap<SecretKey, Option<SecretValue>>,
    /// What the API server answered when a Secret for cloud-init could not be read. `secret` and `contents` are
    /// incomplete then; everything else was observed.
    pub(crate) secrets_error: Option<String>,
    /// Other Machines that have an address of this one on the same segment.
    pub(crate) conflicts: Vec<Conflict>,
    /// NetworkConfigurations the Machine names, by name.
    pub(crate) networks: BTreeMap<String, Arc<Network>>,
    /// NetworkAttachmentDefinitions of these NetworkConfigurations, by name.
    pub(crate) attachments: BTreeMap<String, Arc<Attachment>>,
    /// Existing StorageClasses that the Machine names, and whether their volumes can grow.
    pub(crate) classes: BTreeMap<String, bool>,
    /// Present content of the MachineTemplate from which the block was expanded.
    pub(crate) template: Option<Arc<Template>>,
}

impl Observed {
    /// Whether no guest of the instance has run yet. The phase of an instance whose status cannot be read is empty, so
    /// the VirtualMachine is asked, too.
    pub(crate) fn waits_for_node(&self, instance: &Instance) -> bool {
        instance.waits_for_node() && !self.vm.as_deref().is_some_and(VirtualMachine::has_guest)
    }

    /// Whether the Machine is to run and its guest has not got as far as to have mounted its volumes.
    pub(crate) fn awaits_start(&self, machine: &Machine) -> bool {
        let desired = machine.desired();
        let phase = self.instance.as_ref().map(|it| it.status.phase.as_str());
        desired.is_some_and(|block| block.power_state == PowerState::Running)
            && matches!(phase, None | Some("" | "Pending" | "Scheduling"))
    }

    /// The instance of a Machine that is to run, if it has a pod that neither runs nor is kept from a node by the
    /// scheduler.
    pub(crate) fn awaits_pod(&self, machine: &Machine) -> Option<&Instance> {
        let instance = self.instance.as_deref()?;
        let conditions = &instance.status.conditions;
        let vm = self.vm.as_deref()?;
        let is_starting = self.awaits_start(machine)
            && vm.status.printable_status != "ErrorUnschedulable"
            && !machine.is_deleting()
            && instance.status.phase == "Scheduling"
            && find_condition(conditions, "PodScheduled", "False").is_none();
        is_starting.then_some(instance)
    }
}
