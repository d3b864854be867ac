//! How much room the hosts have: what is allocated there, and what is reserved for Machines that they do not show yet.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use common::api::libvirt_host::{HostResources, LibvirtHostSpec};
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::machine::{HostBinding, NO_RESOURCES};
use controller_core::machine_index::IndexedMachine;
use controller_core::objects::Meta as _;

use super::{Hosts, PlacementLock};
use crate::capacity::{BoundMachine, allocatable, allocated, fits, granted, size_in, smaller};
use crate::groups::Member;
use crate::hardware::{Cpus, cpus_left, devices_left, pinned};
use crate::hosts::connected::NOT_POLLED;
use crate::libvirt_host::LibvirtHost;
use crate::placement::Candidate;
use crate::snapshot::{DomainSummary, Snapshot};

/// A Machine that is bound to a host, and what is reserved for it there.
type Bound = (Arc<IndexedMachine>, Option<HostResources>);

/// A Machine that asks for more than it has on a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) uid: &'a str,
    pub(crate) asks: HostResources,
    pub(crate) has: HostResources,
    /// Whether its vCPUs have CPUs of the host for themselves.
    pub(crate) is_dedicated: bool,
    /// Whether what fits is reserved.
    pub(crate) reserves: bool,
}

impl Hosts {
    /// The hosts to choose from, and the lock under which a Machine is placed.
    pub(crate) async fn candidates(
        &self,
        caches: &Caches,
        objects: &Cache<LibvirtHost>,
    ) -> (PlacementLock, Vec<Candidate>) {
        let lock = self.0.placement.clone().lock_owned().await;
        let candidate = |host: LibvirtHost| {
            let connected = self.get(host.name());
            let snapshot = connected.map_or_else(|| Err(NOT_POLLED.into()), |it| it.snapshot());
            let bound = bound_to(&self.reserved(), host.name(), caches);
            let (allocated, devices_left, cpus_left) = snapshot.as_ref().map_or_else(
                |_| (NO_RESOURCES, BTreeMap::new(), 0),
                |snapshot| {
                    (
                        allocated_on(&bound, &host, snapshot, None),
                        devices_left_on(&bound, &host, snapshot),
                        cpus_left_on(&bound, &host, snapshot),
                    )
                },
            );
            Candidate {
                cpus_left,
                devices_left,
                groups: groups(&bound),
                name: host.name().to_owned(),
                labels: host.metadata.labels.clone().unwrap_or_default(),
                spec: host.spec.clone(),
                allocated,
                snapshot,
            }
        };
        let hosts = objects.all().into_iter().filter(|host| !host.is_deleting());
        let hosts = hosts.map(candidate).collect();
        (lock, hosts)
    }

    /// What is allocated on a host, without what `except`, the uid of a Machine, has there.
    pub(crate) fn allocated(
        &self,
        host: &LibvirtHost,
        snapshot: &Snapshot,
        caches: &Caches,
        except: Option<&str>,
    ) -> HostResources {
        let bound = bound_to(&self.reserved(), host.name(), caches);
        allocated_on(&bound, host, snapshot, except)
    }

    /// How much a Machine may have on a host. What fits is reserved for it, and counts from now on.
    pub(crate) fn room(
        &self,
        host: &LibvirtHost,
        snapshot: &Snapshot,
        caches: &Caches,
        asking: &Asking<'_>,
    ) -> HostResources {
        let Asking { uid, asks, has, .. } = *asking;
        // Two Machines that grow at the same time must not both get what is left.
        let mut reserved = self.reserved();
        let bound = bound_to(&reserved, host.name(), caches);
        let others = allocated_on(&bound, host, snapshot, Some(uid));
        let cpus_left = cpus_left_on(&bound, host, snapshot);
        let others = others.beside_dedicated(cpus_left, asking.is_dedicated);
        let most = allocatable(&host.spec, &snapshot.info).less(others);
        if asking.reserves {
            let size = granted(asks, has, most);
            reserved.insert(uid.to_owned(), (host.name().to_owned(), size));
        }
        most
    }

    /// Counts a Machine on a host that does not show it yet.
    pub(crate) fn reserve(&self, uid: &str, host: &str, size: HostResources) {
        self.reserved()
            .insert(uid.to_owned(), (host.to_owned(), size));
    }

    /// Reduces what is reserved for a Machine to what it requests now.
    pub(crate) fn reduce_reservation(&self, uid: &str, asks: HostResources) {
        if let Some((_, size)) = self.reserved().get_mut(uid) {
            *size = smaller(*size, asks);
        }
    }

    /// Releases what is reserved for a Machine on another host than the one that has it: its move there was given up.
    pub(crate) fn release_reservation_elsewhere(&self, uid: &str, host: &str) {
        let mut reserved = self.reserved();
        if reserved.get(uid).is_some_and(|(other, _)| other != host) {
            reserved.remove(uid);
        }
    }

    /// Removes reservations that a poll of the host confirms, and those of Machines that are gone.
    pub(crate) fn remove_confirmed_reservations(
        &self,
        host: &LibvirtHost,
        snapshot: &Snapshot,
        caches: &Caches,
    ) {
        let mut reserved = self.reserved();
        if reserved.is_empty() {
            return;
        }
        let has = sizes(&host.spec, snapshot);
        let kept = snapshot.domains.iter().filter_map(|it| {
            let (name, size) = reserved.get(&it.metadata.as_ref()?.uid)?;
            let is_kept = name == host.name() && fits(*size, has(it));
            is_kept.then(|| it.metadata.as_ref().map(|metadata| metadata.uid.clone()))?
        });
        let kept: HashSet<String> = kept.collect();
        reserved.retain(|uid, _| caches.machine_index.contains(uid) && !kept.contains(uid));
    }
}

/// The Machines that are bound to a host. A reservation is newer than the status in the cache.
pub(super) fn bound_to(
    reserved: &HashMap<String, (String, HostResources)>,
    host: &str,
    caches: &Caches,
) -> Vec<Bound> {
    let index = &caches.machine_index;
    let by_status = index.on_host(host).into_iter();
    let by_status = by_status.filter(|machine| !reserved.contains_key(&*machine.uid));
    let here = reserved.iter().filter(|(_, (name, _))| name == host);
    let by_reservation =
        here.filter_map(|(uid, (_, size))| Some((index.of_uid(uid)?, Some(*size))));
    let bound = by_status.map(|machine| (machine, None));
    bound.chain(by_reservation).collect()
}

/// Each of these Machines with its binding.
fn bindings(
    bound: &[Bound],
) -> impl Iterator<Item = (&IndexedMachine, &HostBinding, Option<HostResources>)> {
    bound.iter().filter_map(|(machine, reserved)| {
        Some((&**machine, machine.binding.as_deref()?, *reserved))
    })
}

/// The groups of the Machines on a host, those included that the API server does not show there yet.
fn groups(bound: &[Bound]) -> Vec<Member> {
    let members = bindings(bound).filter_map(|(machine, binding, _)| {
        Some(Member {
            namespace: machine.namespace.to_string(),
            name: machine.name.to_string(),
            group: binding.group.clone()?,
        })
    });
    members.collect()
}

/// How many devices of each name are left on a host.
fn devices_left_on(
    bound: &[Bound],
    host: &LibvirtHost,
    snapshot: &Snapshot,
) -> BTreeMap<String, usize> {
    if host.spec.devices.as_ref().is_none_or(Vec::is_empty) {
        return BTreeMap::new();
    }
    let bound = bindings(bound).map(|(machine, binding, _)| (&*machine.uid, &binding.devices));
    let bound: Vec<_> = bound.collect();
    devices_left(&host.spec, &snapshot.hardware, &bound)
}

/// How many dedicated CPUs are left on a host.
fn cpus_left_on(bound: &[Bound], host: &LibvirtHost, snapshot: &Snapshot) -> u32 {
    let cpus = Cpus::of(&host.spec, snapshot.info.cpus);
    if cpus.dedicated.is_empty() {
        return 0;
    }
    let bound = bindings(bound);
    let bound = bound.map(|(machine, binding, _)| (&*machine.uid, binding.dedicated_cpus));
    cpus_left(&cpus, &snapshot.hardware, bound)
}

/// The size of each domain of a host.
fn sizes(
    spec: &LibvirtHostSpec,
    snapshot: &Snapshot,
) -> impl Fn(&DomainSummary) -> HostResources + Clone {
    let cpus = Cpus::of(spec, snapshot.info.cpus);
    let taken = &snapshot.hardware;
    move |it| size_in(it, pinned(&cpus, taken, it.domain.uuid))
}

/// What is allocated on a host, without what `except`, the uid of a Machine, has there.
fn allocated_on(
    bound: &[Bound],
    host: &LibvirtHost,
    snapshot: &Snapshot,
    except: Option<&str>,
) -> HostResources {
    let bound = bindings(bound).map(|(machine, binding, reserved)| BoundMachine {
        uid: &machine.uid,
        requested: binding.requested,
        reserved,
    });
    let bound: Vec<_> = bound
        .filter(|machine| Some(machine.uid) != except)
        .collect();
    let most = allocatable(&host.spec, &snapshot.info);
    let is_other = |it: &&DomainSummary| {
        let metadata = it.metadata.as_ref();
        except.is_none() || metadata.map(|metadata| metadata.uid.as_str()) != except
    };
    let size = sizes(&host.spec, snapshot);
    let others = snapshot.domains.iter().filter(is_other);
    let others = others.map(|it| (it, size(it)));
    allocated(others, &bound, most)
}
