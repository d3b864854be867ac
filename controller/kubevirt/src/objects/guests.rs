//! KubeVirt's `VirtualMachine`, the desired guest, and `VirtualMachineInstance`, the running one.

use common::bounds::{GUEST_ADDRESS_MAX, NETWORKS_MAX};
use common::guest_report::{self, AddressLimit};
use common::render::kubevirt::types::{InstanceSpec, Present, VirtualMachineSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer, Serialize};

use super::conditions::{ForeignCondition, find_condition, read};
use controller_core::objects::Cacheable;
use controller_core::objects::{Meta, lenient, metadata};
use controller_core::resource;

/// A KubeVirt `VirtualMachine`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VirtualMachine {
    #[serde(default, deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: VirtualMachineSpec,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: VirtualMachineStatus,
}
resource!(
    VirtualMachine,
    "VirtualMachine",
    "kubevirt.io",
    "v1",
    "virtualmachines",
    NamespaceResourceScope
);

/// Fields that are read of all guests at once, kept uncompressed.
#[derive(Debug)]
pub(crate) struct GuestSummary {
    /// The Machine on its label.
    pub(crate) machine: Option<Box<str>>,
    /// NetworkAttachmentDefinitions that it is connected to, as `namespace/name`.
    pub(crate) attachments: Box<[Box<str>]>,
    /// KubeVirt's `printableStatus`, of a VirtualMachine that was made for a Machine.
    pub(crate) state: Option<Box<str>>,
}

impl GuestSummary {
    fn of(guest: &impl Meta, spec: &InstanceSpec, state: Option<&str>) -> Self {
        Self {
            machine: guest.machine().map(Box::from),
            attachments: attachments(spec).map(Box::from).collect(),
            state: state
                .filter(|_| guest.machine_uid().is_some())
                .map(Box::from),
        }
    }
}

/// The NetworkAttachmentDefinitions of a guest, as `namespace/name`.
pub(crate) fn attachments(guest: &InstanceSpec) -> impl Iterator<Item = &str> {
    let networks = guest.networks.iter();
    networks.filter_map(|network| Some(network.multus.as_ref()?.network_name.as_str()))
}

impl Cacheable for VirtualMachine {
    type Summary = GuestSummary;

    fn summary(&self) -> GuestSummary {
        let state = Some(self.status.printable_status.as_str());
        GuestSummary::of(self, &self.spec.template.spec, state)
    }
}

impl Cacheable for Instance {
    type Summary = GuestSummary;

    fn summary(&self) -> GuestSummary {
        GuestSummary::of(self, &self.spec, None)
    }
}

impl VirtualMachine {
    /// Whether its guests have this claim as a disk.
    pub(crate) fn uses(&self, claim: &str) -> bool {
        names_claim(&self.spec.template.spec, claim)
    }
}

impl VirtualMachine {
    /// Whether KubeVirt says that a guest runs, is on its way down, or is on a node that cannot be reached.
    pub(crate) fn has_guest(&self) -> bool {
        HAS_GUEST.contains(&self.status.printable_status.as_str())
    }

    /// Whether somebody has asked KubeVirt to start the guest, for example after a stop.
    pub(crate) fn has_start_request(&self) -> bool {
        let mut requests = self.status.state_change_requests.iter();
        requests.any(|request| request.action == "Start")
    }
}

/// Values of `printableStatus` with a guest that runs, is on its way down, or is on a node that cannot be reached.
const HAS_GUEST: [&str; 6] = [
    "Running",
    "Paused",
    "Migrating",
    "Stopping",
    "Terminating",
    "Unknown",
];

/// Status of a `VirtualMachine`; KubeVirt writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VirtualMachineStatus {
    pub(crate) printable_status: String,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
    /// Guests that ended before they ran, since the last that ran.
    #[serde(deserialize_with = "lenient")]
    pub(crate) start_failure: Option<StartFailure>,
    /// What virt-api has asked virt-controller for, as `virtctl stop` and `restart` do.
    #[serde(deserialize_with = "lenient")]
    pub(crate) state_change_requests: Vec<StateChangeRequest>,
}

/// A request to stop or to start the guest. `virtctl restart` makes both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StateChangeRequest {
    /// `Start` or `Stop`.
    pub(crate) action: String,
}

/// How often the start of a guest failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct StartFailure {
    pub(crate) consecutive_fail_count: u32,
    /// Time of KubeVirt's next attempt, in RFC 3339.
    pub(crate) retry_after_timestamp: Option<String>,
}

/// A KubeVirt `VirtualMachineInstance`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Instance {
    #[serde(default, deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    /// Specification that the guest was started with, and what KubeVirt has plugged in since.
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: InstanceSpec,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: InstanceStatus,
}
resource!(
    Instance,
    "VirtualMachineInstance",
    "kubevirt.io",
    "v1",
    "virtualmachineinstances",
    NamespaceResourceScope
);

impl Instance {
    /// Whether the guest has this claim as a disk, or is on the way to have it no more: a volume that is plugged out leaves
    /// the status last.
    pub(crate) fn uses(&self, claim: &str) -> bool {
        let mut volumes = self.status.volume_status.iter();
        let is_of_claim = |volume: &InstanceVolume| {
            let info = volume.persistent_volume_claim_info.as_ref();
            info.is_some_and(|info| info.claim_name == claim)
        };
        names_claim(&self.spec, claim) || volumes.any(is_of_claim)
    }

    /// Whether the guest ended without a failure: it shut itself down, or the pod was deleted or evicted while the guest ran.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.status.phase == "Succeeded"
    }

    /// Whether the guest runs and is not to end.
    pub(crate) fn runs(&self) -> bool {
        self.status.phase == "Running" && !self.is_deleting()
    }

    /// Why KubeVirt cannot migrate the guest; `None`: it can, or does not know yet.
    pub(crate) fn migration_obstacle(&self) -> Option<&ForeignCondition> {
        find_condition(&self.status.conditions, "LiveMigratable", "False")
    }

    /// Whether the guest can be moved to another node, as far as KubeVirt has reported.
    pub(crate) fn is_movable(&self) -> bool {
        self.runs() && self.migration_obstacle().is_none()
    }

    /// Whether the guest has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_succeeded() || self.status.phase == "Failed"
    }

    /// Whether no guest has run yet: the instance has no pod, or the pod has no node.
    pub(crate) fn waits_for_node(&self) -> bool {
        matches!(self.status.phase.as_str(), "" | "Pending" | "Scheduling")
    }

    /// Whether the instance was deleted while its guest ran. KubeVirt deletes that of a guest which has ended, too, but
    /// afterwards. Times have whole seconds, and a guest takes longer than that to shut down: in a tie it ended first.
    pub(crate) fn was_deleted_running(&self) -> bool {
        let Some(deleted) = &self.metadata.deletion_timestamp else {
            return false;
        };
        let transitions = self.status.phase_transition_timestamps.iter();
        let mut ends = transitions.filter(|it| it.phase == "Succeeded");
        let ended = ends.find_map(|it| it.phase_transition_timestamp.as_ref());
        match self.status.phase.as_str() {
            "Running" => true,
            "Succeeded" => ended.is_some_and(|ended| deleted.0 < ended.0),
            _ => false,
        }
    }

    /// Whether KubeVirt reports that the pod is going under the guest.
    pub(crate) fn loses_pod(&self) -> bool {
        find_condition(&self.status.conditions, "Ready", "False")
            .is_some_and(|ready| ready.reason == "PodTerminating")
    }
}

fn names_claim(spec: &InstanceSpec, claim: &str) -> bool {
    spec.volumes
        .iter()
        .any(|volume| volume.claim() == Some(claim))
}

/// Status of a running guest; KubeVirt writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InstanceStatus {
    pub(crate) phase: String,
    pub(crate) node_name: Option<String>,
    #[serde(deserialize_with = "cards")]
    pub(crate) interfaces: Vec<InstanceInterface>,
    #[serde(rename = "guestOSInfo")]
    pub(crate) guest_os: GuestOsInfo,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
    #[serde(rename = "currentCPUTopology")]
    pub(crate) cpu: PresentCpu,
    pub(crate) memory: PresentMemory,
    #[serde(deserialize_with = "lenient")]
    pub(crate) volume_status: Vec<InstanceVolume>,
    /// The migration in progress, or the last one; `None`: the guest was never migrated.
    #[serde(deserialize_with = "lenient")]
    pub(crate) migration_state: Option<MigrationState>,
    /// Node that the guest has to leave, because its pod is to be evicted.
    pub(crate) evacuation_node_name: Option<String>,
    /// When the instance entered each phase.
    pub(crate) phase_transition_timestamps: Vec<PhaseTransition>,
}

/// A volume of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InstanceVolume {
    /// Name of the volume in the instance's specification.
    pub(crate) name: String,
    /// Present: the volume was plugged into the running guest.
    pub(crate) hotplug_volume: Option<Present>,
    /// Present: KubeVirt writes a dump of the guest's memory to the volume.
    pub(crate) memory_dump_volume: Option<Present>,
    /// How far a plugged-in volume has come on its way into the guest; `Ready`: the guest has it.
    pub(crate) phase: String,
    /// The claim of the volume, once KubeVirt has reported it.
    #[serde(deserialize_with = "lenient")]
    pub(crate) persistent_volume_claim_info: Option<InstanceClaim>,
}

/// The claim of a volume of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InstanceClaim {
    pub(crate) claim_name: String,
}

impl InstanceVolume {
    /// Whether the volume came into the running guest, instead of being there from its start.
    pub(crate) fn is_plugged(&self) -> bool {
        self.hotplug_volume.is_some() || self.memory_dump_volume.is_some()
    }
}

/// A migration of a running guest to another node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct MigrationState {
    /// Whether the migration has ended, in whatever way.
    pub(crate) completed: bool,
    /// Whether the guest is still on its former node, although the migration has ended.
    pub(crate) failed: bool,
    #[serde(deserialize_with = "cut")]
    pub(crate) failure_reason: Option<String>,
    pub(crate) source_node: Option<String>,
    pub(crate) target_node: Option<String>,
}

/// When an instance entered a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PhaseTransition {
    pub(crate) phase: String,
    pub(crate) phase_transition_timestamp: Option<Time>,
}

/// CPU sockets that the guest has while more are being plugged in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PresentCpu {
    pub(crate) sockets: Option<u32>,
}

/// Memory that the guest has while more is being plugged in, and that it was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PresentMemory {
    pub(crate) guest_current: Option<String>,
    pub(crate) guest_at_boot: Option<String>,
}

/// Operating system as the guest agent reports it; empty without an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GuestOsInfo {
    #[serde(deserialize_with = "cut")]
    pub(crate) name: Option<String>,
    #[serde(deserialize_with = "cut")]
    pub(crate) version: Option<String>,
    #[serde(deserialize_with = "cut")]
    pub(crate) kernel_release: Option<String>,
}

/// Reads a text that the guest reports, cut to its limit.
fn cut<'de, D>(deserializer: D) -> Result<Option<String>, D::Error>
where
    D: Deserializer<'de>,
{
    let reported = Option::<String>::deserialize(deserializer)?;
    Ok(reported.map(|text| guest_report::text(&text).to_owned()))
}

/// A network card of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InstanceInterface {
    pub(crate) name: String,
    pub(crate) mac: Option<String>,
    pub(crate) ip_address: Option<String>,
    pub(crate) ip_addresses: Vec<String>,
    /// Where KubeVirt has this entry from, separated by commas; `domain` if the guest has the card. Empty until the
    /// first report of the node.
    pub(crate) info_source: String,
    /// Name of the card's interface in the launcher pod.
    pub(crate) pod_interface_name: Option<String>,
}

impl InstanceInterface {
    /// Whether the guest has the card: it is not only attached to the launcher pod.
    pub(crate) fn is_in_guest(&self) -> bool {
        let mut sources = self.info_source.split(',').map(str::trim);
        self.info_source.is_empty() || sources.any(|source| source == "domain")
    }
}

/// Reads network cards. The addresses are what the guest reports, so they are cut to their limit here, before they are
/// kept. Cards without a name are left out: only the guest knows them, for example the bridges of a container engine.
fn cards<'de, D>(deserializer: D) -> Result<Vec<InstanceInterface>, D::Error>
where
    D: Deserializer<'de>,
{
    let mut cards = Vec::<InstanceInterface>::deserialize(deserializer)?;
    cards.retain(|card| !card.name.is_empty());
    cards.truncate(NETWORKS_MAX);
    let mut limit = AddressLimit::default();
    for card in &mut cards {
        card.mac = card.mac.take().filter(|mac| mac.len() <= GUEST_ADDRESS_MAX);
        card.ip_address = limit.take(card.ip_address.take()).pop();
        card.ip_addresses = limit.take(std::mem::take(&mut card.ip_addresses));
    }
    Ok(cards)
}
