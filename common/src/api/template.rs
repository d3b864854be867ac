//! `MachineTemplate`: values for the fields that a Machine does not set.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cel;
use super::choice::{BootDevice, Drivers, EvictionStrategy, OsFamily};
use super::machine::{
    Console, Device, Disk, Domain, Network, Placement, Probes, Resources, TemplateCloudInit,
    TemplateDisplay, Watchdog,
};
use super::schema;
use crate::bounds;

/// Values for the fields that a Machine does not set. Written by the administrator. A change affects
/// new Machines only: existing ones keep the content that the webhook recorded in their block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "MachineTemplate",
        plural = "machinetemplates",
        shortname = "mt",
        category = "vitistack",
        doc = "Values for the fields that a Machine does not set.",
        validation = kube::core::Rule::new("self.metadata.name.size() <= 63")
            .message("the name of a MachineTemplate must have at most 63 characters: it is the value of a label"),
        validation = kube::core::Rule::new("!(self.metadata.name in ['small', 'medium', 'large'])")
            .message("small, medium and large are built in; choose another name"),
        printcolumn = r#"{"name":"CPU","type":"integer","jsonPath":".spec.resources.cpu.cores","description":"Cores per socket"}"#,
        printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".spec.resources.memory.size"}"#,
        printcolumn = r#"{"name":"Disks","type":"string","jsonPath":".spec.disks[*].name"}"#,
        printcolumn = r#"{"name":"Deprecated","type":"string","jsonPath":".spec.deprecated"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.networks) || self.networks.all(n, !has(n.ipAddresses) || n.ipAddresses.size() == 0)",
    "message": "a template cannot give addresses, because only one Machine can have each"
}]))]
pub struct MachineTemplateSpec {
    /// Purpose of the template, for people: at most 1024 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::FreeText>")]
    pub description: Option<String>,
    /// Why not to use the template any more and what to use instead: at most 1024 characters. The
    /// webhook warns the authors of Machines that use the template with this text. Default: not
    /// deprecated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::FreeText>")]
    pub deprecated: Option<String>,
    /// Whether a deletion of a Machine with this template is refused, unless its own spec says
    /// otherwise. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_protection: Option<bool>,
    /// Family of the operating system of the guest, with the defaults of a Machine: linux or windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<OsFamily>")]
    pub os: Option<String>,
    /// Drivers that the guest has: inbox or virtio.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Drivers>")]
    pub drivers: Option<String>,
    /// CPU and memory, with the fields of a Machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Disks, with the fields of a Machine, at most 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DISKS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"], "x-kubernetes-validations" = [cel::no_claim()]))]
    pub disks: Option<Vec<Disk>>,
    /// Network cards, with the fields of a Machine, at most 32.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NETWORKS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub networks: Option<Vec<Network>>,
    /// Classes of devices to boot from, in this order: disk, cdrom and network, each at most once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<BootDevice>>", length(max = bounds::BOOT_ORDER_MAX), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [cel::named_once()]))]
    pub boot_order: Option<Vec<String>>,
    /// Devices of the node, with the fields of a Machine, at most 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DEVICES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub devices: Option<Vec<Device>>,
    /// Watchdog of the virtual hardware, with the fields of a Machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
    /// Probes of the guest, with the fields of a Machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
    /// Virtual hardware, with the fields of a Machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// Data that cloud-init reads inside the guest, with the fields of a Machine except the Secrets: at most 16384
    /// bytes of user data and as much network configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<TemplateCloudInit>,
    /// Screen, with the fields of a Machine except the Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<TemplateDisplay>,
    /// Serial console, with the fields of a Machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console: Option<Console>,
    /// Time in seconds that the guest has to shut down before its power is cut, from 0 to 86400.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = bounds::GRACE_PERIOD_MAX))]
    pub termination_grace_period_seconds: Option<i64>,
    /// What KubeVirt does with the running guest when its node is drained, with the values of a Machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<EvictionStrategy>")]
    pub eviction_strategy: Option<String>,
    /// Where the machines run in relation to others, with the fields of a Machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// The content of a template at the time when the webhook merged it into a Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateContent {
    /// Classes of devices to boot from, in this order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<BootDevice>>", length(max = bounds::BOOT_ORDER_MAX))]
    pub boot_order: Option<Vec<String>>,
    /// Data for cloud-init of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<TemplateCloudInit>,
    /// Serial console of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console: Option<Console>,
    /// Whether a deletion of the Machine is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_protection: Option<bool>,
    /// Devices of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DEVICES_MAX))]
    pub devices: Option<Vec<Device>>,
    /// Disks of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DISKS_MAX))]
    pub disks: Option<Vec<Disk>>,
    /// Screen of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<TemplateDisplay>,
    /// Virtual hardware of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,
    /// Drivers that the guest has: inbox or virtio.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Drivers>")]
    pub drivers: Option<String>,
    /// What KubeVirt does with the running guest when its node is drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<EvictionStrategy>")]
    pub eviction_strategy: Option<String>,
    /// Network cards of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NETWORKS_MAX))]
    pub networks: Option<Vec<Network>>,
    /// Family of the operating system of the guest: linux or windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<OsFamily>")]
    pub os: Option<String>,
    /// Where the machines run in relation to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Probes of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
    /// CPU and memory of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Time in seconds that the guest has to shut down before its power is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// Watchdog of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
}

impl From<MachineTemplateSpec> for TemplateContent {
    fn from(spec: MachineTemplateSpec) -> Self {
        let MachineTemplateSpec {
            description: _,
            deprecated: _,
            deletion_protection,
            os,
            drivers,
            resources,
            devices,
            watchdog,
            probes,
            disks,
            networks,
            boot_order,
            domain,
            cloud_init,
            display,
            console,
            termination_grace_period_seconds,
            eviction_strategy,
            placement,
        } = spec;
        Self {
            boot_order,
            cloud_init,
            console,
            deletion_protection,
            devices,
            disks,
            display,
            domain,
            drivers,
            eviction_strategy,
            networks,
            os,
            placement,
            probes,
            resources,
            termination_grace_period_seconds,
            watchdog,
        }
    }
}
