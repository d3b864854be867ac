//! The caches that every backend needs, and queries over all of them.

use std::sync::Arc;

use common::api::libvirt_host::HostNetwork;
use common::api::machine_image::PinnedImage;
use common::catalog::{NetworkRow, Policy, built_in};
use common::normalize::images_in;
use common::quantity::Bytes;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use runtime::checks::Check;
use tokio::sync::watch;

use crate::address_index::AddressIndex;
use crate::addresses::{Conflict, Segments, conflicts};
use crate::cache::Cache;
use crate::machine::{CachedMachine, Machine};
use crate::machine_addresses::objects::MachineAddress;
use crate::machine_addresses::waiting::Waiting;
use crate::machine_index::MachineIndex;
use crate::objects::Meta as _;
use crate::objects::{Image, Network, StorageClass, Template};
use crate::quota::objects::{Namespace, PolicyObject};
use crate::quota::shares::Quotas;
use crate::secrets::SecretVersions;

/// Objects of the API server as the watches last reported them. Clones share the content.
#[derive(Clone, Debug)]
pub struct Caches {
    /// Every Machine.
    pub machines: Store<CachedMachine>,
    /// Whether `machines` has been listed: before, a Machine that it does not have may exist. Any number of tasks may
    /// wait for it; a store of kube itself wakes only the last one that waits.
    pub machines_listed: watch::Sender<bool>,
    /// Addresses and claim names of every Machine.
    pub address_index: AddressIndex,
    /// Every Machine, by uid and by host.
    pub machine_index: MachineIndex,
    /// Versions of the Secrets that the controller did not create.
    pub secret_versions: SecretVersions,
    /// NetworkConfigurations.
    pub networks: Cache<Network>,
    /// StorageClasses.
    pub classes: Cache<StorageClass>,
    /// MachineImages.
    pub images: Cache<Image>,
    /// MachineTemplates.
    pub templates: Cache<Template>,
    /// MachinePolicies.
    pub policies: Cache<PolicyObject>,
    /// Namespaces.
    pub namespaces: Cache<Namespace>,
    /// MachineAddresses.
    pub addresses: Cache<MachineAddress>,
    /// Machines that wait for an address.
    pub waiting_for_address: Waiting,
    /// Disks that are kept, and what Machines were granted of the quota of their namespace.
    pub quotas: Quotas,
}

impl Caches {
    /// The policies of a namespace, sorted by name. While the labels of the namespace are not known, every policy counts.
    pub fn policies_of(&self, namespace: &str) -> Vec<Arc<Policy>> {
        let namespace = self.namespaces.get("", namespace);
        let labels = namespace.map(|namespace| namespace.labels());
        let mut policies = vec![];
        self.policies.for_each_summary(|_, policy| {
            let holds =
                |policy: &&Arc<Policy>| labels.as_ref().is_none_or(|labels| policy.selects(labels));
            policies.extend(policy.as_ref().filter(holds).cloned());
        });
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        policies
    }

    /// The largest disk or medium that the policies of a namespace allow; `None`: they set no limit.
    pub fn largest_disk(&self, namespace: &str) -> Option<Bytes> {
        let policies = self.policies_of(namespace);
        policies
            .iter()
            .filter_map(|policy| policy.limits.disk)
            .min()
    }

    /// Empty caches around the store of Machines.
    pub fn new(machines: Store<CachedMachine>) -> Self {
        Self {
            machines,
            machines_listed: watch::Sender::new(false),
            address_index: AddressIndex::default(),
            machine_index: MachineIndex::default(),
            secret_versions: SecretVersions::default(),
            networks: Cache::default(),
            classes: Cache::default(),
            images: Cache::default(),
            templates: Cache::default(),
            policies: Cache::default(),
            namespaces: Cache::default(),
            addresses: Cache::default(),
            waiting_for_address: Waiting::default(),
            quotas: Quotas::default(),
        }
    }

    /// Applies an event of the watch of Machines; returns the other Machines that it concerns.
    pub fn apply(
        &self,
        event: &Event<CachedMachine>,
        writer: &mut Writer<CachedMachine>,
        cluster: &str,
    ) -> Vec<ObjectRef<CachedMachine>> {
        // The indexes before the store: a task that waits for the store finds them complete, too.
        let concerned = self.address_index.apply(event, cluster);
        self.machine_index.apply(event);
        writer.apply_watcher_event(event);
        concerned
    }

    /// The Machines of a namespace, in no order.
    pub fn machines_in(&self, namespace: &str) -> Vec<Arc<CachedMachine>> {
        let machines = self.address_index.in_namespace(namespace).into_iter();
        machines.filter_map(|key| self.machines.get(&key)).collect()
    }

    /// The Machine, for a pass.
    pub fn for_pass(&self, cached: &CachedMachine) -> Machine {
        let mut machine = cached.decompress();
        if let Some(namespace) = self.namespaces.get("", cached.namespace()) {
            namespace.uid().clone_into(&mut machine.namespace_uid);
        }
        let exists = |name: &String| built_in(name).is_some() || self.templates.contains("", name);
        machine.lacks_template = machine
            .named_template
            .as_ref()
            .is_some_and(|it| !exists(it));
        machine
    }

    /// Older Machines that have an address of this one on the same segment. `hosts` returns the networks that each
    /// LibvirtHost offers.
    pub fn conflicts(
        &self,
        machine: &Machine,
        cluster: &str,
        hosts: &dyn Fn() -> Vec<Vec<HostNetwork>>,
    ) -> Vec<Conflict> {
        let (networks, others) = (&self.networks, (&self.address_index, &self.machines));
        let segments = NetworksOfHosts { networks, hosts };
        conflicts(machine, cluster, others, &segments)
    }

    /// The MachineImages that disks and CD-ROM drives of a Machine name and that have another source now, by name.
    pub fn outdated_images(&self, machine: &Machine) -> Vec<String> {
        let images = machine.desired().map(images_in).unwrap_or_default();
        let is_outdated = |pinned: &PinnedImage| {
            let name = pinned.image.name.as_deref()?;
            let current = self.images.get("", name)?.spec.pinned(name)?;
            (!current.has_source_of(pinned)).then(|| name.to_owned())
        };
        let mut outdated: Vec<_> = images.values().filter_map(is_outdated).collect();
        outdated.sort_unstable();
        outdated.dedup();
        outdated
    }

    /// Waits until every kind has been listed, or is known not to be served; reports on `synced` which list is
    /// missing.
    pub async fn wait_until_listed(&self, synced: &Check) {
        let waits = |kind: &str| synced.missing(format!("no list of {kind} yet"));
        waits("Machines");
        let mut listed = self.machines_listed.subscribe();
        // Fails only if the sender is dropped; `self` holds it.
        let _ = listed.wait_for(|listed| *listed).await;
        waits("NetworkConfigurations");
        self.networks.wait_until_listed().await;
        waits("StorageClasses");
        self.classes.wait_until_listed().await;
        waits("MachineImages");
        self.images.wait_until_listed().await;
        waits("MachineTemplates");
        self.templates.wait_until_listed().await;
        waits("MachinePolicies");
        self.policies.wait_until_listed().await;
        waits("MachineAddresses");
        self.addresses.wait_until_listed().await;
        waits("namespaces");
        self.namespaces.wait_until_listed().await;
    }
}

/// What the caches know of networks.
struct NetworksOfHosts<'a> {
    networks: &'a Cache<Network>,
    hosts: &'a dyn Fn() -> Vec<Vec<HostNetwork>>,
}

impl Segments for NetworksOfHosts<'_> {
    fn network(&self, namespace: &str, name: &str) -> Option<NetworkRow> {
        Some(self.networks.get(namespace, name)?.segment_row())
    }

    fn hosts(&self) -> Vec<Vec<HostNetwork>> {
        (self.hosts)()
    }
}

/// The Machines for which `matches` returns true.
pub fn machines_where(
    machines: &Store<CachedMachine>,
    matches: impl Fn(&CachedMachine) -> bool,
) -> Vec<ObjectRef<CachedMachine>> {
    let found = machines.state_filter(matches);
    found
        .iter()
        .map(|machine| ObjectRef::from_obj(&**machine))
        .collect()
}

#[cfg(test)]
mod tests {
    use common::mac::Mac;
    use kube::runtime::reflector;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{block, machine, nic};

    /// A Machine with the same address as all others, on this network.
    fn on(name: &str, network: &str) -> Machine {
        let mut block = block();
        block.networks = vec![nic("eth0", Some(network))];
        block.networks[0].mac_address = Some(Mac::new([2, 0, 0, 0, 0, 1]));
        let mut machine = machine(block);
        machine.metadata.name = Some(name.into());
        machine
    }

    #[test]
    fn conflicts_are_found_without_decompressing_another_machine() {
        let (store, mut writer) = reflector::store();
        let caches = Caches::new(store);
        for (name, network) in [("app", "lan"), ("db", "wan"), ("vm", "lan")] {
            let other = CachedMachine::from(on(name, network));
            let index = &caches.address_index;
            index.apply(&Event::Apply(other.clone()), "cluster");
            writer.apply_watcher_event(&Event::Apply(other.never_decompressed()));
        }
        for name in ["lan", "wan"] {
            let network = json!({
                "metadata": {"namespace": "default", "name": name}, "spec": {"bridge": name},
            });
            let network = serde_json::from_value(network).unwrap();
            caches.networks.apply(Event::Apply(network), |_| {});
        }
        let found = |network: &str| {
            let conflicts = caches.conflicts(&on("web", network), "cluster", &|| vec![]);
            let others = conflicts.iter().map(|it| it.other.name().to_owned());
            others.collect::<Vec<_>>()
        };
        assert_eq!(found("lan"), ["app"]);
        assert_eq!(found("wan"), ["db"]);
        assert_eq!(found("absent"), [""; 0]);
    }
}
