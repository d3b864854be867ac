//! MachinePolicies: parsed once, when they are stored, and looked up by namespace.
//!
//! What cannot be parsed was stored without a review. It is left out of its list, so that the list allows less.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::usage::amount;
use crate::api::choice::{Backend, Choice as _, ReclaimPolicy, SelectorOperator};
use crate::api::machine_policy::{
    BridgePolicy, HardwarePolicy, LabelRequirement, MachineLimits, MachinePolicySpec,
    NamespaceQuota, NamespaceSelector, PlacementPolicy,
};
use crate::bounds::{VLAN_MAX, VLAN_MIN};
use crate::glob::Glob;
use crate::quantity::Bytes;
use crate::url_prefix::UrlPrefix;

/// Labels of a namespace.
pub type Labels = BTreeMap<String, String>;

/// The parts of a `MachinePolicy` that rules read, as administrators wrote them. Lists that are `None` restrict nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `metadata.name`, by which messages name the policy.
    pub name: String,
    selector: Selector,
    /// Patterns for keys of annotations that guests have, too.
    pub annotations: Option<Vec<Glob>>,
    /// Backends that are allowed.
    pub backends: Option<Vec<Backend>>,
    /// Patterns for the names of templates.
    pub templates: Option<Vec<Glob>>,
    /// Whether a Machine must use a template.
    pub is_template_required: bool,
    /// Patterns for the names of storage classes.
    pub storage_classes: Option<Vec<Glob>>,
    /// Whether cards may be on the pod network or a host's default network.
    pub allows_pod_network: bool,
    /// Bridges and VLANs of NetworkConfigurations.
    pub bridges: Option<Vec<Bridge>>,
    /// Labels that the node selector of a Machine on libvirt must have.
    pub host_labels: Labels,
    /// Beginnings of URLs of images.
    pub sources: Option<Vec<UrlPrefix>>,
    /// Whether images may be copies of claims.
    pub allows_claims: bool,
    /// Names of MachineImages that are allowed; `None`: all.
    pub image_names: Option<Vec<Glob>>,
    /// Patterns for the names of volumes that images may be.
    pub volumes: Option<Vec<Glob>>,
    /// Reclaim policies that are allowed.
    pub reclaim_policies: Option<Vec<ReclaimPolicy>>,
    /// Reclaim policy of disks that name none.
    pub default_reclaim_policy: Option<ReclaimPolicy>,
    /// Hardware that Machines may have for themselves, and their priority.
    pub hardware: Hardware,
    /// By what Machines on KubeVirt may be placed.
    pub placement: Placement,
    /// Limits of one Machine.
    pub limits: Limits,
    /// Limits of all Machines of a namespace together.
    pub quota: Quota,
}

/// Hardware that Machines may have for themselves, and their priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Whether vCPUs may have processors for themselves.
    pub allows_dedicated_cpu: bool,
    /// Whether memory may consist of huge pages.
    pub allows_hugepages: bool,
    /// Patterns for names of resources of devices.
    pub devices: Option<Vec<Glob>>,
    /// Patterns for names of PriorityClasses.
    pub priority_classes: Option<Vec<Glob>>,
    /// Paths of fields of a VirtualMachine that Machines may set.
    pub overrides: Option<Vec<String>>,
}

impl Hardware {
    fn of(spec: HardwarePolicy) -> Self {
        Self {
            allows_dedicated_cpu: spec.dedicated_cpu.unwrap_or(true),
            allows_hugepages: spec.hugepages.unwrap_or(true),
            devices: globs(spec.devices),
            priority_classes: globs(spec.priority_classes),
            overrides: spec.overrides,
        }
    }
}

/// By what Machines on KubeVirt may be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Whether an affinity may choose nodes and pods.
    pub allows_affinity: bool,
    /// Whether guests may be spread by constraints.
    pub allows_topology_spread: bool,
    /// Patterns for keys of taints that may be tolerated.
    pub tolerations: Option<Vec<Glob>>,
}

impl Placement {
    fn of(spec: PlacementPolicy) -> Self {
        Self {
            allows_affinity: spec.affinity.unwrap_or(true),
            allows_topology_spread: spec.topology_spread.unwrap_or(true),
            tolerations: globs(spec.tolerations),
        }
    }
}

/// Limits of all Machines of a namespace together, running or not. Written by administrators; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Most vCPUs.
    pub cpu: Option<u64>,
    /// Most memory in bytes; of a Machine the largest size counts that its guest can get.
    pub memory: Option<u64>,
    /// Most storage in bytes: disks, volumes of CD-ROM drives, and kept disks.
    pub storage: Option<u64>,
}

impl Quota {
    fn of(spec: &NamespaceQuota) -> Self {
        let bytes = |text: &Option<String>| text.as_ref()?.parse().ok().map(amount);
        Self {
            cpu: spec.cpu.and_then(|cpu| u64::try_from(cpu).ok()),
            memory: bytes(&spec.memory),
            storage: bytes(&spec.storage),
        }
    }

    /// Whether anything is limited.
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }
}

/// Limits of one Machine. Written by administrators; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most vCPUs: sockets, cores and threads multiplied.
    pub cpu: Option<u128>,
    /// Most memory in bytes, compared with the largest size that the guest can get.
    pub memory: Option<Bytes>,
    /// Largest size of one disk or of the volume of one CD-ROM drive, in bytes.
    pub disk: Option<Bytes>,
    /// Most disks, those on existing claims and volumes included, without CD-ROM drives.
    pub disks: Option<u128>,
    /// Most network cards.
    pub networks: Option<u128>,
}

/// Bridges and VLANs that NetworkConfigurations may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Pattern for the names of the bridges.
    pub name: Glob,
    /// VLAN tags; `None` stands for all tags and untagged frames, an empty list for untagged frames only.
    pub vlans: Option<Vec<RangeInclusive<i64>>>,
}

impl Bridge {
    fn of(spec: BridgePolicy) -> Option<Self> {
        let vlans = spec.vlans.map(|texts| {
            let ranges = texts.iter().filter_map(|text| vlan_range(text));
            ranges.collect::<Vec<_>>()
        });
        Some(Self {
            name: Glob::new(&spec.name?),
            vlans,
        })
    }

    /// Whether the segment of a NetworkConfiguration is allowed; `None` stands for untagged frames.
    pub fn allows(&self, bridge: &str, vlan: Option<i64>) -> bool {
        let carries = match (&self.vlans, vlan) {
            (None, _) => true,
            (Some(ranges), None) => ranges.is_empty(),
            (Some(ranges), Some(vlan)) => ranges.iter().any(|range| range.contains(&vlan)),
        };
        carries && self.name.matches(bridge)
    }
}

/// A VLAN tag such as `300`, or a range such as `100-199`.
pub fn vlan_range(text: &str) -> Option<RangeInclusive<i64>> {
    let tag = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let tag: i64 = text
            .parse()
            .ok()
            .filter(|_| is_number && !text.starts_with('0'))?;
        (VLAN_MIN..=VLAN_MAX).contains(&tag).then_some(tag)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (tag(first)?, tag(last)?);
    (first <= last).then_some(first..=last)
}

/// A selector of namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Selector {
    labels: Labels,
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: SelectorOperator,
    values: Vec<String>,
}

impl Requirement {
    fn of(spec: LabelRequirement) -> Option<Self> {
        Some(Self {
            key: spec.key?,
            operator: SelectorOperator::parse(&spec.operator?)?,
            values: spec.values.unwrap_or_default(),
        })
    }

    fn selects(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let is_listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            SelectorOperator::In => is_listed,
            SelectorOperator::NotIn => !is_listed,
            SelectorOperator::Exists => value.is_some(),
            SelectorOperator::DoesNotExist => value.is_none(),
        }
    }
}

impl Selector {
    fn of(spec: NamespaceSelector) -> Option<Self> {
        let requirements = spec.match_expressions.unwrap_or_default().into_iter();
        Some(Self {
            labels: spec.match_labels.unwrap_or_default(),
            requirements: requirements.map(Requirement::of).collect::<Option<_>>()?,
        })
    }

    fn selects(&self, labels: &Labels) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.labels.iter().all(has) && self.requirements.iter().all(|it| it.selects(labels))
    }
}

impl Policy {
    /// Parses a policy. `None` if its selector cannot be read.
    pub fn new(name: String, spec: MachinePolicySpec) -> Option<Self> {
        let MachinePolicySpec {
            namespace_selector,
            annotations,
            backends,
            templates,
            storage_classes,
            networks,
            libvirt_hosts,
            images,
            reclaim_policies,
            hardware,
            placement,
            limits,
            quota,
        } = spec;
        let (templates, networks) = (templates.unwrap_or_default(), networks.unwrap_or_default());
        let images = images.unwrap_or_default();
        let reclaim = reclaim_policies.unwrap_or_default();
        Some(Self {
            name,
            selector: Selector::of(namespace_selector?)?,
            annotations: globs(annotations.unwrap_or_default().allow),
            backends: list(backends, Backend::parse),
            templates: globs(templates.allow),
            is_template_required: templates.required.unwrap_or(false),
            storage_classes: globs(storage_classes.unwrap_or_default().allow),
            allows_pod_network: networks.pod_network.unwrap_or(true),
            bridges: networks
                .bridges
                .map(|bridges| bridges.into_iter().filter_map(Bridge::of).collect()),
            host_labels: libvirt_hosts
                .and_then(|hosts| hosts.match_labels)
                .unwrap_or_default(),
            sources: list(images.sources, |text| text.parse().ok()),
            allows_claims: images.claims.unwrap_or(true),
            image_names: globs(images.names),
            volumes: globs(images.volumes),
            reclaim_policies: list(reclaim.allow, ReclaimPolicy::parse),
            default_reclaim_policy: reclaim.default.as_deref().and_then(ReclaimPolicy::parse),
            hardware: Hardware::of(hardware.unwrap_or_default()),
            placement: Placement::of(placement.unwrap_or_default()),
            limits: Limits::of(&limits.unwrap_or_default()),
            quota: Quota::of(&quota.unwrap_or_default()),
        })
    }

    /// Whether the policy holds for a namespace with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.selector.selects(labels)
    }
}

impl Limits {
    fn of(spec: &MachineLimits) -> Self {
        let count = |count: Option<i64>| count.and_then(|count| u128::try_from(count).ok());
        let bytes = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        Self {
            cpu: count(spec.cpu),
            memory: bytes(&spec.memory),
            disk: bytes(&spec.disk),
            disks: count(spec.disks),
            networks: count(spec.networks),
        }
    }
}

fn list<T>(texts: Option<Vec<String>>, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let texts = texts?;
    Some(texts.iter().filter_map(|text| parse(text)).collect())
}

fn globs(texts: Option<Vec<String>>) -> Option<Vec<Glob>> {
    list(texts, |text| Some(Glob::new(text)))
}

/// The policies that hold for a namespace with these labels, in the order of `all`. `None` if there are policies and
/// the labels are not known.
pub fn policies_of<'p>(
    mut all: impl Iterator<Item = &'p Arc<Policy>>,
    labels: Option<&Labels>,
) -> Option<Vec<Arc<Policy>>> {
    let Some(labels) = labels else {
        return all.next().is_none().then(Vec::new);
    };
    Some(
        all.filter(|policy| policy.selects(labels))
            .cloned()
            .collect(),
    )
}

#[cfg(test)]
mod tests;
