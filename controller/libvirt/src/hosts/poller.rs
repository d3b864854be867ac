//! Polls hosts: a task for each lists its domains every two seconds and everything else every half minute.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use common::api::choice::Phase;
use common::api::libvirt_host::{LibvirtHostSpec, LibvirtHostStatus};
use common::render::libvirt::{DomainMetadata, disk_owner, volume_owner};
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::caches::machines_where;
use controller_core::client::GuardedClient;
use controller_core::machine::{CachedMachine, NO_RESOURCES};
use controller_core::machine_index::MachineIndex;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::triggers::Triggers;
use time::OffsetDateTime;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep};

use super::changed::{changed_domains, same_offer};
use super::connected::ConnectedHost;
use super::credentials::read_credentials;
use super::gone::gone_volumes;
use super::identity::{HostIdentity, KnownHostConnector};
use super::orphans;
use super::registry::Hosts;
use super::released;
use super::status::{StatusInput, status};
use super::tombstones::put_status;
use super::unlisted::{listed_by_all, owners, unowned};
use super::unused_images::{sweep_host, sweep_interval};
use crate::access::{AccessError, Connection, Credentials, DomainState, Host, Target, Volume};
use crate::hardware::{self, Taken};
use crate::libvirt_host::LibvirtHost;
use crate::pool_space::{StorageFactor, space_left};
use crate::snapshot::{DiskTotals, DomainSummary, Snapshot};

/// Pause between two lists of a host's domains, each of which takes 0.1 to 0.4 ms of its time.
const DOMAINS_INTERVAL: Duration = Duration::from_secs(2);
/// Pause between two reads of what hardly changes: versions, pools, networks. As between two passes over a Machine without
/// a trigger, which show a change no earlier; the lists of volumes take longer the more there are.
const SURVEY_INTERVAL: Duration = Duration::from_secs(30);
/// Limit of a poll. It takes milliseconds, and a second on a busy host.
const POLL_LIMIT: Duration = Duration::from_secs(10);

/// What the pollers share.
#[derive(Clone, Debug)]
pub(crate) struct PollerContext {
    /// The hosts that are polled.
    pub(crate) hosts: Hosts,
    /// Caches of the API server's objects.
    pub(crate) caches: Caches,
    /// LibvirtHosts as the API server has them.
    pub(crate) objects: Cache<LibvirtHost>,
    /// Triggers passes of Machines.
    pub(crate) triggers: Triggers,
    /// The API server, for credentials and the hosts' status.
    pub(crate) api: GuardedClient,
    /// Time after which a fetched image that nothing uses is removed; zero keeps it.
    pub(crate) image_retention: Duration,
}

/// Polls every LibvirtHost, for as long as the process runs.
pub(crate) async fn poll_all(context: PollerContext) -> Result<(), Infallible> {
    let mut running: BTreeMap<String, (Identity, AbortHandle)> = BTreeMap::new();
    loop {
        let desired: BTreeMap<_, _> = context
            .objects
            .all()
            .into_iter()
            .map(|host| (host.name().to_owned(), host))
            .collect();
        running.retain(|name, (identity, task)| {
            let is_listed = desired
                .get(name)
                .is_some_and(|host| *identity == identity_of(host))
                && !task.is_finished();
            if !is_listed {
                task.abort();
                context.hosts.remove(name);
            }
            is_listed
        });
        for (name, host) in &desired {
            if !running.contains_key(name) {
                let task = tokio::spawn(poll_host(context.clone(), name.clone()));
                running.insert(name.clone(), (identity_of(host), task.abort_handle()));
            }
        }
        // A change since the loop began was recorded, so this returns at once.
        context.hosts.wait_for_change().await;
    }
}

/// Input of a poller and its connections: if it changes, both are replaced.
type Identity = (String, (String, Option<(String, String)>));

fn identity_of(host: &LibvirtHost) -> Identity {
    (host.uid().to_owned(), target_of(&host.spec))
}

/// Polls one host until the task is aborted or the LibvirtHost is deleted.
async fn poll_host(context: PollerContext, name: String) {
    let mut poller = Poller::default();
    while let Some(object) = context.objects.get("", &name) {
        poller.poll_once(&context, &object).await;
        let woken = async {
            match &poller.connected {
                Some(host) => host.wake.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep(DOMAINS_INTERVAL) => {}
            () = woken => {}
        }
    }
}

/// The poller of one host.
#[derive(Default)]
struct Poller {
    /// What is known of the host.
    known: Arc<RwLock<HostIdentity>>,
    /// The credentials of the connections.
    credentials: Option<Credentials>,
    connected: Option<Arc<ConnectedHost>>,
    /// The last full read, and whether the Machines were listed then.
    surveyed: Option<(Instant, bool)>,
    /// When unused images were looked for last.
    swept: Option<Instant>,
    /// The removal of what deleted Machines left, which takes minutes.
    removal: Option<JoinHandle<()>>,
    /// The deletion of kept volumes that an administrator released.
    release: Option<JoinHandle<()>>,
}

impl Poller {
    /// One poll, and what follows from it.
    async fn poll_once(&mut self, context: &PollerContext, object: &LibvirtHost) {
        let name = object.name();
        if let Some(why) = &object.unreadable {
            if context.hosts.get(name).is_none() {
                let host = ConnectedHost::without_connection(name, why);
                context.hosts.insert(Arc::new(host));
            }
            return report_unreachable(context, name, why).await;
        }
        let reachable = self
            .connected
            .as_ref()
            .is_some_and(|it| it.snapshot().is_ok());
        // Read before the Machines are: what they do not have then has no owner.
        let listed = *context.caches.machines_listed.borrow();
        let is_due =
            |(at, knew): (Instant, bool)| at.elapsed() >= SURVEY_INTERVAL || (listed && !knew);
        let full = !reachable || self.surveyed.is_none_or(is_due);
        // Also between the full reads: any call may open a connection again.
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = HostIdentity::of(object);
        if full {
            // The Secret may have been written since: nothing may be done with the old credentials any more.
            match read_credentials(&context.api, object).await {
                Ok(read) if self.connected.is_none() || self.credentials != read => {
                    let target = Target {
                        uri: object.spec.uri.clone(),
                        credentials: read.clone(),
                    };
                    let connector = KnownHostConnector {
                        name: name.to_owned(),
                        known: self.known.clone(),
                        caches: context.caches.clone(),
                        connector: context.hosts.connector(),
                    };
                    let host = Host::new(Arc::new(connector), target);
                    let made = Arc::new(ConnectedHost::new(name, host));
                    context.hosts.insert(made.clone());
                    (self.connected, self.credentials) = (Some(made), read);
                }
                Ok(_) => {}
                Err(why) if reachable => {
                    tracing::warn!(
                        host = name,
                        why,
                        "the credentials cannot be read again; the host is reached with those of before"
                    );
                }
                Err(why) => return report_unreachable(context, name, &why).await,
            }
        }
        let Some(host) = self.connected.clone() else {
            return;
        };
        let known = listed.then_some(&context.caches.machine_index);
        let polled = poll(&host, object, known, full)
            .await
            .map_err(|error| error.to_string());
        if polled.is_ok() && full {
            self.surveyed = Some((Instant::now(), listed));
        }
        take_over(context, &host, &polled);
        let Some(object) = context.objects.get("", name) else {
            return;
        };
        // Until the Machines are listed, everything on the host would belong to none.
        if listed && full {
            self.clean_up(context, &host, &object);
        }
        if listed || polled.is_err() {
            let polled = polled.as_deref().map_err(String::as_str);
            write_status(context, &object, polled).await;
        }
    }

    /// Begins to remove what no Machine needs, unless that is under way: it takes minutes, and polls go on meanwhile.
    /// With the full reads only: each attempt reads every pool of the host.
    fn clean_up(
        &mut self,
        context: &PollerContext,
        host: &Arc<ConnectedHost>,
        object: &LibvirtHost,
    ) {
        if self.removal.as_ref().is_none_or(JoinHandle::is_finished) {
            self.removal = orphans::begin(context, host, object);
        }
        if self.release.as_ref().is_none_or(JoinHandle::is_finished) {
            self.release = released::begin(context, host, object);
        }
        let interval = sweep_interval(context.image_retention);
        if self.swept.is_none_or(|at| at.elapsed() >= interval) {
            self.swept = Some(Instant::now());
            sweep_host(
                &context.api,
                &context.caches,
                &context.objects,
                host,
                object,
                context.image_retention,
            );
        }
    }
}

/// Reports a host to which no connection can be opened.
async fn report_unreachable(context: &PollerContext, name: &str, why: &str) {
    context.hosts.was_polled(name);
    if let Some(host) = context.objects.get("", name) {
        write_status(context, &host, Err(why)).await;
    }
}

/// Lists the domains of a host; with `full` reads everything else, too. `machines`: `None` until they are listed.
pub(crate) async fn poll(
    host: &ConnectedHost,
    object: &LibvirtHost,
    machines: Option<&MachineIndex>,
    full: bool,
) -> Result<Arc<Snapshot>, AccessError> {
    let owners = machines.filter(|_| full).map(owners);
    let before = host.snapshot().ok();
    let (spec, kept) = (object.spec.clone(), object.status.kept_volumes.clone());
    let polled = host.host.fast.call(POLL_LIMIT, move |host| {
        let mut snapshot = match before {
            Some(before) if !full => (*before).clone(),
            before => {
                let mut companions = before.map(|it| it.companions.clone()).unwrap_or_default();
                Snapshot {
                    gone_volumes: gone_volumes(host, &kept, &mut companions)?,
                    companions,
                    ..survey(host, &spec, owners.as_ref())?
                }
            }
        };
        let summary = |domain: DomainState| DomainSummary {
            metadata: domain.metadata.as_deref().and_then(DomainMetadata::parse),
            domain,
        };
        snapshot.hardware = if hardware::is_offered(&spec) {
            host.hardware_of_all()?
        } else {
            Taken::new()
        };
        snapshot.domains = host.domains()?.into_iter().map(summary).collect();
        Ok(snapshot)
    });
    Ok(Arc::new(polled.await?))
}

/// Everything but the domains. `owners`: the digits of all Machines; `None`: they are not known.
fn survey(
    host: &mut dyn Connection,
    spec: &LibvirtHostSpec,
    owners: Option<&BTreeSet<String>>,
) -> Result<Snapshot, AccessError> {
    let factor = StorageFactor::of(spec);
    let offered = spec.storage.iter().flatten().map(|offer| &offer.pool);
    let offered: BTreeSet<&String> = offered.collect();
    let mut snapshot = Snapshot {
        info: host.info()?,
        pools: host.pools()?,
        networks: host.networks()?,
        bridges: host.bridges()?,
        ..Snapshot::default()
    };
    for offer in spec.existing_volumes.iter().flatten() {
        match host.volumes(&offer.pool) {
            Ok(volumes) => {
                let keys = volumes.into_iter().map(|it| (offer.pool.clone(), it.name));
                snapshot.existing_volumes.extend(keys);
            }
            Err(error) if error.is_of_host() => return Err(error),
            Err(error) => {
                tracing::debug!(pool = offer.pool, %error, "the volumes of a pool cannot be listed");
            }
        }
    }
    for pool in offered {
        match host.volumes(pool) {
            Ok(volumes) => {
                let left = space_left(&snapshot.pools, pool, &volumes, factor);
                snapshot.space_left.insert(pool.clone(), left);
                let disks = disk_totals(&volumes);
                snapshot.machine_disks.insert(pool.clone(), disks);
                let found = volumes.iter().filter_map(|it| volume_owner(&it.name));
                snapshot.owners.extend(found.map(ToOwned::to_owned));
                let unowned = owners.map(|owners| unowned(pool, &volumes, owners));
                snapshot
                    .unowned_volumes
                    .extend(unowned.into_iter().flatten());
            }
            Err(error) if error.is_of_host() => return Err(error),
            Err(error) => {
                tracing::debug!(pool, %error, "the volumes of a pool cannot be listed");
                snapshot.has_hidden_volumes = true;
            }
        }
    }
    Ok(snapshot)
}

/// The disks of Machines among these volumes.
fn disk_totals(volumes: &[Volume]) -> DiskTotals {
    let disks = volumes.iter().filter(|it| disk_owner(&it.name).is_some());
    disks.fold(DiskTotals::default(), |totals, disk| DiskTotals {
        count: totals.count + 1,
        size: totals.size.saturating_add(disk.capacity.into()),
    })
}

/// Takes over the result of a poll, and triggers a pass of each Machine that it is about.
fn take_over(
    context: &PollerContext,
    connected: &ConnectedHost,
    polled: &Result<Arc<Snapshot>, String>,
) {
    let (before, last) = (connected.snapshot(), connected.last_snapshot());
    if let Err(why) = polled
        && before.is_ok()
    {
        tracing::warn!(host = connected.name, error = %why, "the host cannot be reached");
    }
    connected.set_snapshot(polled.clone());
    let name = &connected.name;
    context.hosts.was_polled(name);
    if let (Ok(snapshot), Some(host)) = (polled, context.objects.get("", name)) {
        let (hosts, caches) = (&context.hosts, &context.caches);
        hosts.remove_confirmed_reservations(&host, snapshot, caches);
    }
    if let Ok(after) = polled {
        // A Machine whose status names another host may turn out to be on this one.
        let last = last.unwrap_or_default();
        context.triggers.send(changed_domains(&last, after));
    }
    match (&before, polled) {
        (Ok(before), Ok(after)) if same_offer(before, after) => {}
        (Err(_), Err(_)) => {}
        _ => {
            // The Machines on the host, those that have no host yet, and those that may have a domain on any host.
            let concerned = |machine: &CachedMachine| {
                let is_here = |host: Option<&str>| host.is_none_or(|host| host == name);
                let binding = machine.binding.as_ref();
                let runs = matches!(machine.phase, Some(Phase::Running | Phase::Stopped));
                binding.is_some_and(|binding| is_here(binding.host.as_deref()) || !runs)
            };
            context
                .triggers
                .send(machines_where(&context.caches.machines, concerned));
        }
    }
}

async fn write_status(
    context: &PollerContext,
    host: &LibvirtHost,
    snapshot: Result<&Snapshot, &str>,
) {
    if !context.api.may_write() {
        return;
    }
    let allocated = snapshot.map_or(NO_RESOURCES, |snapshot| {
        let (hosts, caches) = (&context.hosts, &context.caches);
        hosts.allocated(host, snapshot, caches, None)
    });
    let listed = listed_by_all(host, || context.objects.all());
    let input = StatusInput {
        listed: &listed,
        spec: &host.spec,
        generation: host.metadata.generation,
        old: &host.status,
        snapshot,
        allocated,
        machines: &context.caches.machine_index,
    };
    if let Some(status) = status(&input, Now(OffsetDateTime::now_utc())) {
        put(&context.api, host, &status).await;
    }
}

/// Writes the status of a host; a write that was refused is repeated by the next poll.
async fn put(api: &GuardedClient, host: &LibvirtHost, status: &LibvirtHostStatus) {
    if let Err(error) = put_status(api, host, status).await {
        tracing::debug!(
            host = host.name(),
            error = error.message(),
            "the status of a host was not written"
        );
    }
}

/// Destination and credentials of the connections.
fn target_of(spec: &LibvirtHostSpec) -> (String, Option<(String, String)>) {
    let secret = spec.credentials_secret_ref.as_ref();
    (
        spec.uri.clone(),
        secret.map(|it| (it.namespace.clone(), it.name.clone())),
    )
}

#[cfg(test)]
mod tests;
