//! Runs Machines as domains on libvirt hosts.
//!
//! ```text
//!                ┌─▶ observe ─▶ plan (pure) ─▶ apply ─┐
//!                │        └──────┐    ┌───────────────┤
//! placement ◀────┴─ hosts: a poller per LibvirtHost ◀─┘   access: libvirt itself, the only code that links a C library of the system
//! ```

mod access;
#[cfg(test)]
mod api_server;
mod apply;
mod capacity;
#[cfg(test)]
mod costs;
mod dhcp;
mod domain_effects;
#[cfg(test)]
pub(crate) mod environment;
mod existing_disks;
mod failure;
mod firmware_state;
mod groups;
mod guard;
mod hardware;
mod hosts;
mod images;
mod libvirt_host;
pub mod metrics;
mod names;
mod observe;
mod observed;
mod offers;
mod parts;
mod placement;
mod plan;
mod pool_space;
mod probing;
mod reservations;
mod snapshot;
mod switches;
mod volume_effects;
mod watch;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use common::api::normalized::Normalized;
use common::api::status::MachineStatus;
use controller_core::backend::{Backend, Draft, Failed, Growth};
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::GuardedClient;
use controller_core::conditions::Fault;
use controller_core::deletion::Teardown;
use controller_core::foreign_stop::OnForeignStop;
use controller_core::machine::Machine;
use controller_core::machine_addresses::Guests;
use controller_core::objects::Meta as _;
use controller_core::plan::{Now, Refusal};
use controller_core::reconcile::Runner;
use controller_core::refusal::Reasons;
use controller_core::triggers::Triggers;
use controller_core::watch::Watches;
use controller_core::writes::Written;
use runtime::checks::Check;
use tokio::time::timeout;

use self::apply::Applier;
use self::hosts::poller::{PollerContext, poll_all};
use self::hosts::registry::Hosts;
use self::libvirt_host::LibvirtHost;
use self::observe::{Observation, Observer};
use self::plan::action::Action;
use self::plan::held::without_growth;
use self::plan::{create, delete};
use self::probing::Probing;

/// How long the first passes wait for the first polls of all hosts. A poll takes milliseconds, and a second on a busy host.
const FIRST_POLLS_LIMIT: Duration = Duration::from_secs(5);

/// The hosts. Clones share them.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The last snapshot of each, and connections to it.
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

    /// Waits until LibvirtHosts have been listed, or are known not to be served; reports on `synced` that it
    /// waits for that.
    pub async fn wait_until_listed(&self, synced: &Check) {
        synced.missing("no list of LibvirtHosts yet");
        self.objects.wait_until_listed().await;
    }

    /// Waits until each host was polled once, for a few seconds at most: a host may have the domain of a Machine that the
    /// status binds to another one, and one that cannot be reached must not keep the Machines of all others waiting.
    pub async fn wait_until_polled(&self) {
        let all = self.objects.all().into_iter();
        let names = all.map(|host| host.name().to_owned()).collect();
        let polled = self.hosts.wait_until_polled(&names);
        if timeout(FIRST_POLLS_LIMIT, polled).await.is_err() {
            tracing::warn!("not every LibvirtHost has answered its first poll");
        }
    }

    /// Polls every host and writes its status, for as long as the process runs. Fetched images that nothing has used
    /// for `image_retention` are removed; zero keeps them.
    pub async fn poll(
        self,
        caches: Caches,
        triggers: Triggers,
        api: GuardedClient,
        image_retention: Duration,
    ) -> Result<(), Infallible> {
        let context = PollerContext {
            hosts: self.hosts,
            caches,
            objects: self.objects,
            triggers,
            api,
            image_retention,
        };
        poll_all(context).await
    }
}

impl Guests for Fleet {
    /// A Machine that was deleted by force has left its guest on a host, which may not have been asked yet.
    fn exists(&self, _: &str, _: &str, uid: &str) -> bool {
        let mut hosts = self.objects.all().into_iter();
        let is_left = hosts.any(|host| host.status.tombstones.iter().any(|it| it.uid == uid));
        is_left || self.hosts.host_of(uid, None).is_some()
    }
}

/// The backend. `cluster_uid` is part of the MAC addresses of network cards.
pub fn backend(
    fleet: Fleet,
    caches: Caches,
    api: GuardedClient,
    triggers: Triggers,
    cluster_uid: Arc<str>,
    on_foreign_stop: OnForeignStop,
) -> Arc<dyn Runner> {
    let applier = Applier {
        hosts: fleet.hosts.clone(),
        objects: fleet.objects.clone(),
        caches: caches.clone(),
        api: api.clone(),
        triggers: triggers.clone(),
    };
    let observer = Observer {
        probing: Probing::new(triggers),
        caches,
        hosts: fleet.hosts,
        objects: fleet.objects,
        api,
        cluster_uid,
        on_foreign_stop,
    };
    Arc::new(Libvirt { observer, applier })
}

/// Runs Machines as domains on hosts.
#[derive(Clone, Debug)]
pub(crate) struct Libvirt {
    observer: Observer,
    applier: Applier,
}

impl Backend for Libvirt {
    type Observed = Observation;
    type Action = Action;

    /// libvirt reports no event for a guest's addresses: they come from leases and from the guest's agent.
    const IS_EVENT_DRIVEN: bool = false;
    const REASONS: Reasons = create::REASONS;

    async fn observe(&self, machine: &Machine, growth: Growth<'_>) -> Result<Observation, Failed> {
        self.observer.observe(machine, growth).await
    }

    fn plan(
        machine: &Machine,
        block: &Normalized,
        observation: &Observation,
        refusal: Option<&Refusal>,
        growth: Growth<'_>,
        now: Now,
    ) -> Draft<Action> {
        let draft = create::plan(machine, block, &observation.observed, refusal, now);
        match growth {
            Growth::Permitted => draft,
            Growth::Held(_) => without_growth(draft),
        }
    }

    fn report_unfit(
        machine: &Machine,
        observation: &Observation,
        unfit: Fault,
        now: Now,
    ) -> MachineStatus {
        create::report_unfit(machine, &observation.observed, unfit, now)
    }

    fn teardown(machine: &Machine, observation: &Observation, now: Now) -> Teardown<Action> {
        delete::teardown(machine, &observation.observed, now)
    }

    async fn apply(&self, machine: &Machine, action: &Action) -> Result<Option<Written>, Failed> {
        self.applier.apply(machine, action).await
    }

    /// A host's objects are read in each pass, so no cache lags behind what was written there.
    fn has_seen(&self, _: &str, _: &Written) -> bool {
        true
    }
}
