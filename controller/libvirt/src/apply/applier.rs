//! What all actions use: the hosts, the caches, the API server, and the guard that each effect checks.

use std::sync::Arc;
use std::time::Duration;

use common::render::libvirt::domain_uuid;
use controller_core::backend::Failed;
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::{GuardedClient, Remedy};
use controller_core::machine::{Machine, requested_resources};
use controller_core::objects::Meta as _;
use controller_core::triggers::Triggers;
use kube::runtime::reflector::ObjectRef;

use super::on_host::Job;
use crate::guard::{Guard, OtherHosts};
use crate::hosts::connected::ConnectedHost;
use crate::hosts::guards::{may_act, spec_pools};
use crate::hosts::registry::Hosts;
use crate::libvirt_host::LibvirtHost;
use crate::names::domain_of;
use crate::pool_space::StorageFactor;

/// Limit of what refreshes pools of a host: libvirt reads the header of each volume.
pub(super) const REFRESH: Duration = Duration::from_mins(2);

/// Carries out actions.
#[derive(Clone, Debug)]
pub(crate) struct Applier {
    /// The hosts that are polled.
    pub(crate) hosts: Hosts,
    /// LibvirtHosts as the API server has them.
    pub(crate) objects: Cache<LibvirtHost>,
    /// Objects as the API server has them.
    pub(crate) caches: Caches,
    /// The API server.
    pub(crate) api: GuardedClient,
    /// Triggers passes of Machines.
    pub(crate) triggers: Triggers,
}

impl Applier {
    /// The host that was observed.
    pub(super) fn host_of(&self, machine: &Machine) -> Result<Arc<ConnectedHost>, Failed> {
        let name = self.hosts.host_of_machine(machine).unwrap_or_default();
        self.hosts.get(&name).ok_or_else(|| missing(&name))
    }

    /// The guard that a job of this Machine on this host checks before each effect.
    pub(super) fn guard(&self, host: &Arc<ConnectedHost>, machine: &Machine) -> Guard {
        let (hosts, machines) = (self.hosts.clone(), self.caches.machines.clone());
        let (here, uid) = (host.name.clone(), machine.uid().to_owned());
        // A move of the controller leaves no doubt where the Machine is.
        let is_left = machine.leaves_host() == Some(&host.name);
        let cached = ObjectRef::new(machine.name()).within(machine.namespace());
        let (pools, objects) = (spec_pools(&self.objects, &host.name), self.objects.clone());
        let other_hosts = move || {
            let cached = machines.get(&cached).filter(|cached| cached.uid() == uid);
            let hint = cached.as_ref().and_then(|cached| cached.binding.as_ref());
            let hint = hint.and_then(|binding| binding.host.as_deref());
            // Between the binding and its arrival in the cache, the cached Machine has no host.
            let other_hosts = hosts.other_hosts(&uid, hint, &here, &objects);
            OtherHosts {
                unknown: other_hosts.unknown.filter(|_| !is_left),
                ..other_hosts
            }
        };
        Guard::new(may_act(&self.api, host), other_hosts, pools)
    }

    /// A job of a Machine on a host.
    pub(super) fn job(&self, host: &ConnectedHost, machine: &Machine, guard: Guard) -> Job {
        let object = self.objects.get("", &host.name);
        Job {
            uuid: domain_uuid(machine.uid()),
            owner: machine.uid().to_owned(),
            domain: domain_of(machine),
            guard,
            factor: object
                .map(|object| StorageFactor::of(&object.spec))
                .unwrap_or_default(),
            reservations: host.reservations.clone(),
        }
    }

    /// Counts the Machine on a host that does not show it yet.
    pub(super) fn reserve(&self, machine: &Machine, host: &str) {
        if let Some(block) = machine.desired() {
            self.hosts
                .reserve(machine.uid(), host, requested_resources(block));
        }
    }
}

/// The failure of an action on a host that was removed meanwhile.
pub(super) fn missing(host: &str) -> Failed {
    Failed::new(
        Remedy::Retry,
        format!("LibvirtHost '{host}' does not exist"),
    )
}
