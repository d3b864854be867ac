//! The two objects of KubeVirt, as the controller keeps them: what is wished and what runs.

use common::render::kubevirt::types::{InstanceSpec, VirtualMachineSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{ForeignCondition, read};
use controller_core::objects::Cacheable;
use controller_core::objects::{Meta, lenient};
use controller_core::resource;

/// A KubeVirt `VirtualMachine`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VirtualMachine {
    #[serde(default)]
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

/// What is asked of all guests at once.
#[derive(Debug)]
pub(crate) struct GuestSummary {
    /// The Machine on its label.
    pub(crate) machine: Option<Box<str>>,
    /// NetworkAttachmentDefinitions it is on, as `namespace/name`.
    pub(crate) attachments: Box<[Box<str>]>,
    /// KubeVirt's word for its state, of one that was made for a Machine.
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

/// What KubeVirt says of a `VirtualMachine`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VirtualMachineStatus {
    pub(crate) printable_status: String,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
}

/// A KubeVirt `VirtualMachineInstance`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Instance {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    /// What the guest was made of.
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
    /// Whether the guest has this claim as a disk.
    pub(crate) fn uses(&self, claim: &str) -> bool {
        names_claim(&self.spec, claim)
    }
}

fn names_claim(spec: &InstanceSpec, claim: &str) -> bool {
    spec.volumes.iter().any(|volume| {
        let source = volume.persistent_volume_claim.as_ref();
        source.is_some_and(|source| source.claim_name == claim)
    })
}

/// What KubeVirt says of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InstanceStatus {
    pub(crate) phase: String,
    pub(crate) node_name: Option<String>,
    pub(crate) interfaces: Vec<InstanceInterface>,
    #[serde(rename = "guestOSInfo")]
    pub(crate) guest_os: GuestOsInfo,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
    #[serde(rename = "currentCPUTopology")]
    pub(crate) cpu: PresentCpu,
    pub(crate) memory: PresentMemory,
}

/// The processors a guest has, while others are plugged in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PresentCpu {
    pub(crate) sockets: Option<u32>,
}

/// The memory a guest has, while more is plugged in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PresentMemory {
    pub(crate) guest_current: Option<String>,
}

/// What the guest agent tells of the operating system. Empty without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GuestOsInfo {
    pub(crate) name: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) kernel_release: Option<String>,
}

/// A network card of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InstanceInterface {
    pub(crate) name: String,
    pub(crate) mac: Option<String>,
    pub(crate) ip_address: Option<String>,
    pub(crate) ip_addresses: Vec<String>,
}
