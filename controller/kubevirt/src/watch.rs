//! The watches of KubeVirt's, CDI's and Multus' objects, and which Machine an event affects.
//!
//! ```text
//! VM, VMI, claim, Secret ▶ the Machine on its label (a VM also: the Machine of its name; a claim
//! and DataVolume           and DataVolume also: those that have a disk whose claim would be called so)
//! storage profile ───────▶ Machines that use the class and do not run yet
//! launcher pod, migration ▶ the Machine on its label
//! attachment ────────────▶ Machines of the namespace with a network that names it
//! KubeVirt ──────────────▶ every Machine, if what the controller acts on has changed
//! ```

use std::sync::Arc;

use common::api::choice::Phase;
use common::catalog::{KubevirtRow, OLDEST_KUBEVIRT, amount};
use common::names;
use common::render::kubevirt::attachment_name;
use controller_core::address_index::AddressIndex;
use controller_core::cache::Change;
use controller_core::caches::machines_where;
use controller_core::machine::CachedMachine;
use controller_core::network_usage::NamespaceQueue;
use controller_core::objects::{Cacheable, Meta};
use controller_core::quota::shares::Quotas;
use controller_core::watch::{Watches, machine_by_label, machine_by_name, watch_config};
use kube::runtime::reflector::{ObjectRef, Store};

use crate::caches::KubeVirtCaches;
use crate::metrics;
use crate::objects::{Claim, DataVolume, Installation, StorageProfile, attachments};

/// Starts the watches that fill the caches.
pub fn start(watches: &mut Watches<'_>) -> KubeVirtCaches {
    let cluster = KubeVirtCaches::default();
    watch_guests(watches, &cluster);
    watch_parts(watches, &cluster);
    watch_installation(watches, &cluster);
    cluster
}

fn watch_installation(watches: &mut Watches<'_>, cluster: &KubeVirtCaches) {
    watches.spawn(
        "watch of KubeVirt",
        watch_config(),
        &cluster.installations,
        |change, machines| {
            let row = |object: &Option<Arc<Installation>>| Some(object.as_ref()?.summary());
            let new = row(&change.new);
            if row(&change.old) == new {
                return vec![];
            }
            if let Some(old) = new.as_ref().filter(|row| row.is_too_old()) {
                let version = &old.version;
                tracing::warn!(version, "KubeVirt is older than {OLDEST_KUBEVIRT}, the oldest release that the operator supports");
            }
            if let Some(KubevirtRow {
                version,
                enabled,
                disabled,
                migrates,
                stages,
                state_class,
                devices: _,
            }) = new
            {
                tracing::info!(
                    version,
                    ?enabled,
                    ?disabled,
                    migrates,
                    stages,
                    state_class,
                    "read the settings of KubeVirt"
                );
            }
            machines_where(machines, |_| true)
        },
    );
}

/// Queues the namespace of a guest that was created, deleted or connected to other networks.
fn attached<K: Meta>(
    networks: &NamespaceQueue,
    change: &Change<K>,
    attachments: impl Fn(&K) -> Vec<String>,
) {
    let of = |guest: &Option<Arc<K>>| guest.as_deref().map(&attachments).unwrap_or_default();
    if of(&change.old) != of(&change.new)
        && let Some(guest) = change.new.as_ref().or(change.old.as_ref())
    {
        networks.push(guest.namespace());
    }
}

fn named<'a>(attachments: impl Iterator<Item = &'a str>) -> Vec<String> {
    attachments.map(str::to_owned).collect()
}

fn watch_guests(watches: &mut Watches<'_>, cluster: &KubeVirtCaches) {
    let networks = watches.triggers.network_namespaces.clone();
    watches.spawn(
        "watch of virtual machines",
        watch_config(),
        &cluster.vms,
        move |change, _| {
            attached(&networks, change, |vm| {
                named(attachments(&vm.spec.template.spec))
            });
            machine_by_name(change)
        },
    );
    let networks = watches.triggers.network_namespaces.clone();
    watches.spawn(
        "watch of instances",
        watch_config(),
        &cluster.instances,
        move |change, _| {
            attached(&networks, change, |instance| {
                named(attachments(&instance.spec))
            });
            machine_by_name(change)
        },
    );
    let networks = watches.triggers.network_namespaces.clone();
    watches.spawn(
        "watch of launcher pods",
        watch_config().labels("kubevirt.io=virt-launcher"),
        &cluster.pods,
        move |change, _| {
            attached(&networks, change, |pod| named(pod.attached()));
            // Most changes of a pod affect no Machine.
            let both = change.old.as_ref().zip(change.new.as_ref());
            if both.is_none_or(|(old, new)| old.differs(new)) {
                machine_by_label(change)
            } else {
                vec![]
            }
        },
    );
}

fn watch_parts(watches: &mut Watches<'_>, cluster: &KubeVirtCaches) {
    let caches = watches.caches.clone();
    let ours = watch_config().labels(&format!(
        "{}={}",
        names::LABEL_MANAGED_BY,
        names::MANAGED_BY
    ));
    let (address_index, quotas) = (caches.address_index.clone(), caches.quotas.clone());
    watches.spawn(
        "watch of claims",
        watch_config(),
        &cluster.claims,
        move |change, _| {
            metrics::claim_changed(change);
            let mut concerned = with_claim(change, &address_index);
            concerned.extend(count_claim(change, &quotas));
            concerned
        },
    );
    let address_index = caches.address_index.clone();
    watches.spawn(
        "watch of data volumes",
        watch_config(),
        &cluster.data_volumes,
        move |change, machines| {
            let mut concerned = with_claim(change, &address_index);
            concerned.extend(with_shared_import(change, machines));
            concerned
        },
    );
    watches.spawn(
        "watch of storage profiles",
        watch_config(),
        &cluster.profiles,
        with_profile,
    );
    watches.spawn(
        "watch of migrations",
        ours.clone(),
        &cluster.migrations,
        |change, _| machine_by_label(change),
    );
    watches.spawn("watch of secrets", ours, &cluster.secrets, |change, _| {
        machine_by_label(change)
    });
    let networks = caches.networks.clone();
    watches.spawn(
        "watch of attachments",
        watch_config(),
        &cluster.attachments,
        move |change, machines| {
            let Some(attachment) = change.object() else {
                return vec![];
            };
            let (namespace, name) = (attachment.namespace(), attachment.name());
            machines_where(machines, |machine| {
                machine.namespace() == namespace
                    && machine
                        .networks()
                        .filter_map(|network| networks.get(namespace, network))
                        .any(|network| attachment_name(network.name(), &network.spec) == name)
            })
        },
    );
}

/// The Machines that name the MachineImage of a shared import. Its progress triggers only those that do not run yet.
fn with_shared_import(
    change: &Change<DataVolume>,
    machines: &Store<CachedMachine>,
) -> Vec<ObjectRef<CachedMachine>> {
    let import = change.object().filter(|import| import.is_shared_import());
    let Some(source) = import.and_then(|import| import.annotation(names::ANNOTATION_IMAGE)) else {
        return vec![];
    };
    let both = change.old.as_ref().zip(change.new.as_ref());
    if both.is_some_and(|(old, new)| old.shown() == new.shown()) {
        return vec![];
    }
    let is_progress = both.is_some_and(|(old, new)| old.status.phase == new.status.phase);
    machines_where(machines, |machine| {
        machine.uses_image(source)
            && !(is_progress && matches!(machine.phase, Some(Phase::Running | Phase::Stopped)))
    })
}

/// The Machines whose import may depend on what CDI knows of a class. Of those that have run, all imports are complete.
fn with_profile(
    change: &Change<StorageProfile>,
    machines: &Store<CachedMachine>,
) -> Vec<ObjectRef<CachedMachine>> {
    let lacks = |profile: &Option<Arc<StorageProfile>>| {
        profile.as_ref().map(|profile| profile.lacks_access_modes())
    };
    let Some(profile) = change
        .object()
        .filter(|_| lacks(&change.old) != lacks(&change.new))
    else {
        return vec![];
    };
    machines_where(machines, |machine| {
        machine.uses_class(profile.name())
            && !matches!(machine.phase, Some(Phase::Running | Phase::Stopped))
    })
}

/// Counts a claim in the quota of its namespace if it is kept; returns the Machines that may have room now.
fn count_claim(change: &Change<Claim>, quotas: &Quotas) -> Vec<ObjectRef<CachedMachine>> {
    if let Some(claim) = &change.new {
        let size = claim.spec.resources.requests.storage;
        quotas.claim_changed(&**claim, size.map(amount).unwrap_or_default());
    } else if let Some(claim) = &change.old {
        quotas.claim_deleted(&**claim);
    }
    let is_gone = change.new.as_ref().is_none_or(|claim| claim.is_deleting());
    let gone = change.object().filter(|_| is_gone);
    gone.map_or_else(Vec::new, |claim| quotas.held_in(claim.namespace()))
}

/// The Machine on the label, and those that have a disk whose claim would have the object's name.
fn with_claim<K: Cacheable>(
    change: &Change<K>,
    address_index: &AddressIndex,
) -> Vec<ObjectRef<CachedMachine>> {
    let mut machines = machine_by_label(change);
    if let Some(object) = change.object() {
        machines.extend(address_index.with_claim(object.namespace(), object.name()));
    }
    machines
}
