//! Reads `catalogs.yaml` into catalogs of the rules. Test crates include this file with `#[path]`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use common::api::choice::{Backend, DeviceKind, HugepageSize, TemplateSource};
use common::api::libvirt_host::{HostFirmware, HostResources, LibvirtHostSpec};
use common::api::machine_image::MachineImageSpec;
use common::api::machine_policy::MachinePolicySpec;
use common::api::network::Ipam;
use common::api::template::TemplateContent;
use common::catalog::{
    Card, Claims, HostHardware, HostRow, ImageRow, KubevirtRow, Labels, MachineName, MachineRow,
    Machines, NetworkRow, NodeRow, Policy, StaticCatalog, StorageClassRow, TemplateRow, Usage,
    VmSchema, amount,
};
use common::mac::Mac;
use common::quantity::Bytes;
use serde::Deserialize;
use serde_json::Value;

/// The namespace of every object.
const NAMESPACE: &str = "default";
/// The uid of every cluster.
const CLUSTER: &str = "cluster";

/// The catalogs of a file.
pub(crate) fn catalogs(text: &str) -> Result<BTreeMap<String, StaticCatalog>, serde_saphyr::Error> {
    let clusters: BTreeMap<String, Cluster> = serde_saphyr::from_str(text)?;
    let catalogs = clusters.into_iter();
    Ok(catalogs
        .map(|(name, cluster)| (name, cluster.into()))
        .collect())
}

/// A cluster of `catalogs.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Cluster {
    templates: BTreeMap<String, Template>,
    /// MachineImages by name.
    #[serde(default)]
    images: BTreeMap<String, MachineImageSpec>,
    storage_classes: Vec<String>,
    /// The storage classes whose claims cannot grow.
    #[serde(default)]
    rigid_storage_classes: Vec<String>,
    default_storage_class: Option<String>,
    /// Networks on the bridge `br0`.
    networks: Vec<String>,
    /// Bridges and VLANs of other networks.
    #[serde(default)]
    segments: Segments,
    /// NetworkAttachmentDefinitions by name of the network that names them.
    #[serde(default)]
    definitions: BTreeMap<String, String>,
    /// Addresses of networks by name.
    #[serde(default)]
    ipams: BTreeMap<String, Ipam>,
    /// Networks of other namespaces.
    #[serde(default)]
    elsewhere: BTreeMap<String, Segments>,
    #[serde(default)]
    hosts: BTreeMap<String, Host>,
    #[serde(default)]
    /// Machines by name, those of other namespaces with it: `namespace/name`.
    machines: BTreeMap<String, StoredMachine>,
    /// Labels of claims by name.
    #[serde(default)]
    claims: BTreeMap<String, BTreeMap<String, String>>,
    /// Sizes of claims by name.
    #[serde(default)]
    claim_sizes: BTreeMap<String, Bytes>,
    /// The claims that are ReadWriteMany.
    #[serde(default)]
    shared_claims: Vec<String>,
    /// MachinePolicies by name.
    #[serde(default)]
    policies: BTreeMap<String, MachinePolicySpec>,
    kubevirt: Option<KubeVirt>,
    priority_classes: Option<Vec<String>>,
    /// The schema of VirtualMachines.
    vm_schema: Option<Value>,
    nodes: Option<Vec<Node>>,
    /// Labels of the namespace of every object.
    #[serde(default)]
    namespace: Labels,
}

/// The settings of KubeVirt.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct KubeVirt {
    version: String,
    #[serde(default)]
    feature_gates: BTreeSet<String>,
    /// How guests get the devices that it permits, by name of the resource.
    #[serde(default)]
    devices: BTreeMap<String, DeviceKind>,
    #[serde(default)]
    migrates: bool,
    #[serde(default)]
    stages: bool,
    state_class: Option<String>,
}

/// A node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct Node {
    labels: BTreeMap<String, String>,
    allocatable: BTreeMap<String, String>,
}

/// Bridges and VLANs by name of the network.
type Segments = BTreeMap<String, (Option<String>, Option<i64>)>;

/// The values of a stored Machine that must be unique.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StoredMachine {
    /// Networks and addresses of its cards; without a network: on the default network of a libvirt host.
    macs: Vec<(Option<String>, Mac)>,
    /// IP addresses of all its cards.
    addresses: Vec<IpAddr>,
    disks: Vec<String>,
    /// Existing claims that its disks are on, each with whether it is shareable.
    claims: BTreeMap<String, bool>,
    usage: StoredUsage,
}

/// What a stored Machine uses of the quota.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StoredUsage {
    cpu: u64,
    memory: Option<Bytes>,
    storage: Option<Bytes>,
}

/// A libvirt host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    spec: LibvirtHostSpec,
    /// Of its status.
    capacity: Option<HostResources>,
    /// Of its status.
    allocatable: Option<HostResources>,
    /// Of its status.
    allocated: Option<HostResources>,
    /// Of its status.
    tpm: Option<bool>,
    /// Of its status.
    #[serde(default, rename = "cpuModels")]
    cpu_models: Vec<String>,
    /// Of its status.
    hugepages: Option<Vec<HugepageSize>>,
    /// Of its status.
    #[serde(default, rename = "machineTypes")]
    machine_types: Vec<String>,
    /// Of its status.
    firmware: Option<HostFirmware>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Template {
    deprecated: Option<String>,
    content: Arc<TemplateContent>,
}

impl From<Cluster> for StaticCatalog {
    fn from(cluster: Cluster) -> Self {
        let row = |template: Template| TemplateRow {
            source: TemplateSource::MachineTemplate,
            content: template.content,
            deprecated: template.deprecated,
        };
        let rigid = cluster.rigid_storage_classes;
        Self {
            templates: cluster
                .templates
                .into_iter()
                .map(|(name, template)| (name, Arc::new(row(template))))
                .collect(),
            images: cluster
                .images
                .into_iter()
                .filter_map(|(name, spec)| {
                    let row = ImageRow::new(&name, &spec)?;
                    Some((name, Arc::new(row)))
                })
                .collect(),
            storage_classes: cluster
                .storage_classes
                .into_iter()
                .map(|name| {
                    let allows_expansion = !rigid.contains(&name);
                    (name, StorageClassRow { allows_expansion })
                })
                .collect(),
            default_storage_class: cluster.default_storage_class,
            networks: cluster
                .elsewhere
                .into_iter()
                .map(|(namespace, segments)| {
                    (
                        namespace,
                        networks(vec![], segments, BTreeMap::new(), &BTreeMap::new()),
                    )
                })
                .chain([(
                    NAMESPACE.to_owned(),
                    networks(
                        cluster.networks,
                        cluster.segments,
                        cluster.definitions,
                        &cluster.ipams,
                    ),
                )])
                .collect(),
            hosts: cluster.hosts.into_iter().map(host_row).collect(),
            kubevirt: cluster.kubevirt.map(|kubevirt| {
                Arc::new(KubevirtRow {
                    version: kubevirt.version,
                    enabled: kubevirt.feature_gates,
                    devices: kubevirt.devices,
                    migrates: kubevirt.migrates,
                    stages: kubevirt.stages,
                    state_class: kubevirt.state_class,
                    ..KubevirtRow::default()
                })
            }),
            priority_classes: cluster.priority_classes,
            vm_schema: cluster
                .vm_schema
                .map(|schema| Arc::new(VmSchema::new(schema))),
            nodes: cluster.nodes.map(|nodes| {
                let row = |node: Node| NodeRow::new(&node.labels, node.allocatable);
                nodes.into_iter().map(row).collect()
            }),
            cluster: CLUSTER.to_owned(),
            machines: machines(cluster.machines),
            claims: claims(
                &cluster.claims,
                &cluster.claim_sizes,
                &cluster.shared_claims,
            ),
            policies: cluster
                .policies
                .into_iter()
                .filter_map(|(name, spec)| Policy::new(name, spec))
                .map(Arc::new)
                .collect(),
            namespaces: [(NAMESPACE.to_owned(), cluster.namespace)].into(),
        }
    }
}

fn host_row((name, host): (String, Host)) -> Arc<HostRow> {
    let mut row = HostRow::new(
        name,
        host.labels,
        host.spec,
        host.capacity,
        host.allocatable,
    );
    row.hardware = HostHardware {
        machine_types: host.machine_types.into(),
        firmware: host.firmware,
        tpm: host.tpm,
        cpu_models: host.cpu_models.into(),
        hugepages: host.hugepages.map(Into::into),
    };
    row.allocated = host.allocated;
    Arc::new(row)
}

fn networks(
    plain: Vec<String>,
    segments: Segments,
    mut definitions: BTreeMap<String, String>,
    ipams: &BTreeMap<String, Ipam>,
) -> BTreeMap<String, NetworkRow> {
    let plain = plain.into_iter();
    let plain = plain.map(|name| (name, (Some("br0".to_owned()), None)));
    let row = |(name, (bridge, vlan))| {
        let row = NetworkRow {
            bridge,
            vlan,
            definition: definitions.remove(&name),
            ipam: ipams.get(&name).map(|ipam| Arc::new(ipam.into())),
        };
        (name, row)
    };
    let with_bridge: Vec<_> = plain.chain(segments).map(row).collect();
    let with_definition = definitions.into_iter().map(|(name, definition)| {
        let row = NetworkRow {
            definition: Some(definition),
            ..NetworkRow::default()
        };
        (name, row)
    });
    with_bridge.into_iter().chain(with_definition).collect()
}

fn machines(stored: BTreeMap<String, StoredMachine>) -> Machines {
    let mut machines = Machines::default();
    for (name, machine) in stored {
        let macs = machine.macs.iter();
        let mut row = MachineRow::new(
            macs.map(|(network, mac)| Card {
                backend: match network {
                    Some(_) => Backend::Kubevirt,
                    None => Backend::Libvirt,
                },
                network: network.as_deref().map(Into::into),
                mac: *mac,
                addresses: machine.addresses.as_slice().into(),
            }),
            machine.disks.iter().map(String::as_str),
        )
        .with_existing_claims(machine.claims.iter().map(|(name, it)| (name.as_str(), *it)));
        row.usage = Usage {
            cpu: machine.usage.cpu,
            memory: machine.usage.memory.map(amount).unwrap_or_default(),
            storage: machine.usage.storage.map(amount).unwrap_or_default(),
        };
        let (namespace, name) = name.split_once('/').unwrap_or((NAMESPACE, &name));
        let machine = MachineName { namespace, name };
        machines.insert(machine, row);
    }
    machines
}

fn claims(
    labels: &BTreeMap<String, BTreeMap<String, String>>,
    sizes: &BTreeMap<String, Bytes>,
    shared: &[String],
) -> Claims {
    let mut claims = Claims::default();
    for (name, labels) in labels {
        let size = sizes.get(name).copied().map(amount).unwrap_or_default();
        let label = |key: &str| labels.get(key).map(String::as_str);
        claims.insert(NAMESPACE, name, label, size, shared.contains(name));
    }
    claims
}
