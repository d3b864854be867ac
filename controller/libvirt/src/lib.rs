//! Runs Machines as domains on libvirt hosts.
//!
//! ```text
//! hosts    a task per LibvirtHost that polls it        placement  which host a new Machine gets
//! observe  caches and the host ─▶ Observed             plan  Observed ─▶ actions and status (pure)
//! apply    one action at the host or the API server    access     libvirt itself; the only code that links C
//! ```

mod access;
mod apply;
mod hosts;
mod images;
mod object;
mod observe;
mod placement;
mod plan;
mod watch;
#[cfg(test)]
pub(crate) mod world;

use std::convert::Infallible;
use std::sync::Arc;

use controller_core::backend::{Backend, Failed};
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::{GuardedClient, Remedy};
use controller_core::deletion::Teardown;
use controller_core::machine::Machine;
use controller_core::plan::{Now, Plan, Refusal};
use controller_core::reconcile::Runner;
use controller_core::triggers::Triggers;
use controller_core::watch::Watches;
use controller_core::writes::Written;
use runtime::checks::Check;
use tokio::sync::OwnedMutexGuard;

use self::access::AccessError;
use self::hosts::{Hosts, attend_all};
use self::object::LibvirtHost;
use self::observe::Look;
use self::plan::{Action, create, delete};

/// Held while a Machine is given a host: the next one counts it.
type PlacementLock = OwnedMutexGuard<()>;

/// What is known of the hosts. Clones share it.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Hosts as they were seen, and connections to them.
    hosts: Hosts,
    /// LibvirtHosts as the API server has them.
    objects: Cache<LibvirtHost>,
}

impl Fleet {
    /// Starts the watch of LibvirtHosts.
    pub fn watch(watches: &mut Watches<'_>) -> Self {
        let fleet = Self {
            hosts: Hosts::new(access::connector()),
            objects: Cache::default(),
        };
        watch::watch_hosts(watches, &fleet.objects, &fleet.hosts);
        fleet
    }

    /// Waits until LibvirtHosts have been listed, or are known not to be served; says on `synced` what it waits
    /// for.
    pub async fn known(&self, synced: &Check) {
        synced.missing("no list of LibvirtHosts yet");
        self.objects.wait_until_listed().await;
    }

    /// Polls every host and writes its status, for as long as the process runs.
    pub async fn poll(
        self,
        caches: Caches,
        triggers: Triggers,
        api: GuardedClient,
    ) -> Result<(), Infallible> {
        attend_all(self.hosts, caches, self.objects, triggers, api).await
    }
}

/// The backend. `cluster_uid` is part of the MAC addresses that network cards are given.
pub fn backend(
    fleet: Fleet,
    caches: Caches,
    api: GuardedClient,
    triggers: Triggers,
    cluster_uid: Arc<str>,
) -> Arc<dyn Runner> {
    Arc::new(Libvirt {
        caches,
        hosts: fleet.hosts,
        objects: fleet.objects,
        api,
        triggers,
        cluster_uid,
    })
}

/// Runs Machines as domains on hosts.
#[derive(Clone, Debug)]
pub(crate) struct Libvirt {
    caches: Caches,
    hosts: Hosts,
    objects: Cache<LibvirtHost>,
    api: GuardedClient,
    triggers: Triggers,
    /// Uid of the cluster.
    cluster_uid: Arc<str>,
}

impl Backend for Libvirt {
    type Observed = Look;
    type Action = Action;

    /// A guest's addresses come from the host's leases and from its agent, which have to be asked.
    const IS_EVENT_DRIVEN: bool = false;

    async fn observe(&self, machine: &Machine) -> Result<Look, Failed> {
        self.look(machine).await
    }

    fn plan(machine: &Machine, look: &Look, refusal: Option<&Refusal>, now: Now) -> Plan<Action> {
        create::plan(machine, &look.observed, refusal, now)
    }

    fn teardown(machine: &Machine, look: &Look, now: Now) -> Teardown<Action> {
        delete::teardown(machine, &look.observed, now)
    }

    async fn apply(&self, machine: &Machine, action: &Action) -> Result<Option<Written>, Failed> {
        self.carry_out(machine, action).await
    }

    /// Nothing is written that the core does not see: hosts are asked each time.
    fn has_seen(&self, _: &str, _: &Written) -> bool {
        true
    }
}

/// What can be done about an error of a host. What timed out may have happened: observing tells.
fn failed(error: &AccessError) -> Failed {
    let remedy = match error {
        AccessError::Absent(_) | AccessError::TimedOut(_) => Remedy::Reobserve,
        AccessError::Disconnected(_) | AccessError::Busy(_) | AccessError::Agent(_) => {
            Remedy::Retry
        }
        AccessError::Unsupported(_) | AccessError::Refused(_) | AccessError::Unavailable(_) => {
            Remedy::UserAction
        }
    };
    Failed::new(remedy, error.to_string())
}
