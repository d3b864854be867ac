//! `MachinePolicy`: what the Machines and NetworkConfigurations of some namespaces may be.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::{Backend, ReclaimPolicy, SelectorOperator};
use super::lenient::{or_absent, readable_items};
use super::schema;
use crate::bounds;
use crate::quantity::Bytes;

/// What the Machines and NetworkConfigurations of the selected namespaces may be. Written by the
/// administrator. A field that is absent restricts nothing; an empty list allows nothing. If several
/// policies select a namespace, all of them hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "MachinePolicy",
        plural = "machinepolicies",
        shortname = "mpol",
        category = "vitistack",
        status = "MachinePolicyStatus",
        doc = "What the Machines and NetworkConfigurations of some namespaces may be.",
        printcolumn = r#"{"name":"Backends","type":"string","jsonPath":".spec.backends"}"#,
        printcolumn = r#"{"name":"CPU","type":"integer","jsonPath":".spec.limits.cpu","description":"Most vCPUs of one Machine"}"#,
        printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".spec.limits.memory","description":"Most memory of one Machine"}"#,
        printcolumn = r#"{"name":"Namespaces","type":"integer","jsonPath":".status.selectedNamespaces","description":"Namespaces that the policy selects"}"#,
        printcolumn = r#"{"name":"Used CPU","type":"integer","jsonPath":".status.highest.cpu","description":"Most vCPUs of one namespace, if the policy has a quota"}"#,
        printcolumn = r#"{"name":"Used Memory","type":"string","jsonPath":".status.highest.memory","description":"Most memory of one namespace, if the policy has a quota"}"#,
        printcolumn = r#"{"name":"Used Storage","type":"string","jsonPath":".status.highest.storage","description":"Most storage of one namespace, if the policy has a quota"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase")]
pub struct MachinePolicySpec {
    /// Selects the namespaces that the policy holds for, by their labels. An empty selector selects
    /// every namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<NamespaceSelector>", required)]
    pub namespace_selector: Option<NamespaceSelector>,
    /// Annotations of Machines that their guests have, too. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<AnnotationPolicy>,
    /// Backends that Machines may run on: kubevirt and libvirt. Default: both.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<Backend>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub backends: Option<Vec<String>>,
    /// Templates that Machines may use. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub templates: Option<TemplatePolicy>,
    /// Storage classes that disks and CD-ROM drives may have; on libvirt, of those that LibvirtHosts offer. Default:
    /// all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_classes: Option<StorageClassPolicy>,
    /// Networks that network cards may be on and that NetworkConfigurations may name. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networks: Option<NetworkPolicy>,
    /// Labels that the nodeSelector of each Machine on libvirt must have, so that it runs only on
    /// LibvirtHosts with these labels. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libvirt_hosts: Option<HostPolicy>,
    /// Images that disks and CD-ROM drives may be filled with. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<ImagePolicy>,
    /// Reclaim policies of disks. Default: all are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_policies: Option<ReclaimPolicies>,
    /// Hardware that Machines may have for themselves, and their priority. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwarePolicy>,
    /// By what Machines on KubeVirt may be placed. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementPolicy>,
    /// Limits of a single Machine. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<MachineLimits>,
    /// Quota of each namespace that the policy selects, for all its Machines together. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<NamespaceQuota>,
}

/// Selects namespaces by their labels, which must fulfil all requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSelector {
    /// Labels, at most 64, that the namespace must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Requirements, at most 64, that the labels of the namespace must fulfil.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::LABELS_MAX))]
    pub match_expressions: Option<Vec<LabelRequirement>>,
}

/// A requirement on the label with a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelRequirement {
    /// Key of the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelKey>", required)]
    pub key: Option<String>,
    /// In and NotIn compare the label with values, Exists and DoesNotExist only look for its key. NotIn
    /// also selects objects without the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<SelectorOperator>", required)]
    pub operator: Option<String>,
    /// Values of the label, 1 to 64 with In and NotIn, none with Exists and DoesNotExist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::LabelValue>>", length(max = bounds::LABELS_MAX))]
    pub values: Option<Vec<String>>,
}

/// Annotations of Machines that their guests on KubeVirt have, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnotationPolicy {
    /// Keys of annotations, at most 256, such as example.com/team, in which * behind the / stands for any characters,
    /// such as example.com/*. They reach the instance and its pod at the next start. Keys on which Kubernetes, KubeVirt,
    /// a network of pods or this product acts are refused. Default: none in this policy. Without a policy that names keys,
    /// none are carried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::AnnotationGlob>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub allow: Option<Vec<String>>,
}

/// Templates that Machines may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplatePolicy {
    /// Names of templates, at most 256, in which * stands for any characters. Default: all templates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::TemplateGlob>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub allow: Option<Vec<String>>,
    /// Whether each Machine must use a template. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
}

/// Storage classes that disks and CD-ROM drives may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageClassPolicy {
    /// Names of storage classes, at most 256, in which * stands for any characters. A disk without a
    /// class, which binds an existing volume, is allowed by * only. Default: all classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::NameGlob>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub allow: Option<Vec<String>>,
}

/// Networks that network cards may be on and that NetworkConfigurations may name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicy {
    /// Whether network cards may be on the pod network (KubeVirt) or on the host's default network
    /// (libvirt), also by a NetworkConfiguration whose bridge is default. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_network: Option<bool>,
    /// Bridges and VLANs, at most 256 items, that NetworkConfigurations may name; one item that allows a
    /// network is enough. With this list, no NetworkConfiguration may name an existing
    /// NetworkAttachmentDefinition, because its segment is not known. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::POLICY_ITEMS_MAX))]
    pub bridges: Option<Vec<BridgePolicy>>,
}

/// A bridge and its VLANs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BridgePolicy {
    /// Name of the bridge, at most 15 characters, in which * stands for any characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::BridgeGlob>", required)]
    pub name: Option<String>,
    /// VLAN tags such as "300" and ranges such as "100-199", at most 256. An empty list allows untagged
    /// frames only. Default: all tags, and untagged frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::VlanRange>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub vlans: Option<Vec<String>>,
}

/// LibvirtHosts that Machines may run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPolicy {
    /// Labels, at most 64, that the nodeSelector of a Machine on libvirt must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// Images that disks and CD-ROM drives may be filled with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePolicy {
    /// Beginnings of URLs, at most 256, such as https://images.example.com/os/ and
    /// docker://registry.example.com/os/. Scheme, host and port must be equal, and the path begins with
    /// the same whole segments. Default: all URLs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::UrlPrefixText>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub sources: Option<Vec<String>>,
    /// Whether images may be copies of PersistentVolumeClaims, and disks may be existing claims (claimName) or, on libvirt,
    /// existing volumes (volumeName). Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims: Option<bool>,
    /// Names of MachineImages, at most 256, in which * stands for any characters. A disk or drive that names an
    /// image is held to these names only, not to sources, claims and volumes: the administrator wrote the source of a
    /// MachineImage. Default: all MachineImages.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::NameGlob>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub names: Option<Vec<String>>,
    /// Names of volumes in the imagePool of a LibvirtHost, at most 256, in which * stands for any
    /// characters. Default: all volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::VolumeGlob>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub volumes: Option<Vec<String>>,
}

/// Reclaim policies of disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReclaimPolicies {
    /// Reclaim policies that disks may have: Delete and Retain. Default: both.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ReclaimPolicy>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub allow: Option<Vec<String>>,
    /// Reclaim policy of disks that name none, in place of the webhook's setting. Of several policies the
    /// first by name that has a default counts. A Machine keeps what it got. Default: the setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ReclaimPolicy>")]
    pub default: Option<String>,
}

/// Hardware that Machines may have for themselves, and their priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HardwarePolicy {
    /// Whether vCPUs may have processors of a node for themselves. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedicated_cpu: Option<bool>,
    /// Names of resources of devices, at most 256, such as nvidia.com/A100, in which * stands for any characters.
    /// Default: all devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::ResourceGlob>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub devices: Option<Vec<String>>,
    /// Whether memory may consist of huge pages. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<bool>,
    /// Paths of fields of KubeVirt's VirtualMachine, at most 256, such as spec.template.spec.domain.ioThreadsPolicy, that
    /// Machines may set by backendOverrides; with the fields in them. Default: none in this policy. Without a policy that
    /// names fields, no field may be set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::OverridePath>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub overrides: Option<Vec<String>>,
    /// Names of PriorityClasses, at most 256, in which * stands for any characters. A Machine without a class is always
    /// allowed. Default: all classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::NameGlob>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub priority_classes: Option<Vec<String>>,
}

/// By what Machines on KubeVirt may be placed. Groups of Machines that are kept apart stay in their namespace, and are
/// always allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementPolicy {
    /// Whether placement.affinity may choose nodes, and keep the guest near other pods of its namespace or away from
    /// them. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<bool>,
    /// Keys of taints that may be tolerated, at most 256, such as example.com/gpu, in which * stands for any characters. A
    /// toleration without a key tolerates every taint, and is allowed by * only. Default: all taints.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::ResourceGlob>>", length(max = bounds::POLICY_ITEMS_MAX))]
    pub tolerations: Option<Vec<String>>,
    /// Whether guests may be spread over nodes and zones by placement.topologySpreadConstraints. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_spread: Option<bool>,
}

/// Limits of a single Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineLimits {
    /// Most vCPUs: sockets × cores × threads, from 0. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cpu: Option<i64>,
    /// Most memory: a quantity in bytes such as 64Gi. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub memory: Option<String>,
    /// Largest capacity of a disk, or of the volume of a CD-ROM drive: a quantity in bytes such as 2Ti.
    /// Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub disk: Option<String>,
    /// Most disks, from 0. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub disks: Option<i64>,
    /// Most network cards, from 0. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub networks: Option<i64>,
}

/// What all Machines of a namespace together may have. Stopped Machines count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceQuota {
    /// vCPUs, from 0. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cpu: Option<i64>,
    /// Memory: a quantity in bytes such as 800Gi. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub memory: Option<String>,
    /// Capacity of disks and of the volumes of CD-ROM drives: a quantity in bytes such as 20Ti. Default:
    /// no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub storage: Option<String>,
}

/// Namespaces that a policy selects, and what they use of its quota. Written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachinePolicyStatus {
    /// Number of namespaces that the policy selects.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub selected_namespaces: Option<u32>,
    /// Of each resource the most that one of these namespaces uses. Absent without a quota.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub highest: Option<QuotaUse>,
    /// What the namespaces use, sorted by name, at most 256. Absent without a quota.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::POLICY_ITEMS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub namespaces: Vec<NamespaceUse>,
}

/// What a namespace uses of its quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceUse {
    /// Name of the namespace.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// vCPUs of its Machines.
    pub cpu: u32,
    /// Memory of its Machines: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub memory: Bytes,
    /// Capacity of disks, of the volumes of CD-ROM drives, and of disks that are kept: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub storage: Bytes,
}

/// Amounts of what a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaUse {
    /// vCPUs.
    pub cpu: u32,
    /// Memory: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub memory: Bytes,
    /// Storage: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub storage: Bytes,
}
