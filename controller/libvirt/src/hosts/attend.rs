//! Attends to hosts: a task for each, which asks it again and again what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use common::api::libvirt_host::LibvirtHostStatus;
use common::names;
use common::render::libvirt::DomainMetadata;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use serde_json::json;
use time::OffsetDateTime;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::status::{Known, status};
use super::tombs::bury;
use super::{Attended, Hosts, Inhabitant, Snapshot, target_of};
use crate::access::{AccessError, Connection, Credentials, Host, Target};
use crate::object::LibvirtHost;
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::caches::machines_where;
use controller_core::client::GuardedClient;
use controller_core::machine::CachedMachine;
use controller_core::machine::NO_RESOURCES;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::triggers::Triggers;

/// How often a host is asked for the states of its domains: 0.1 to 0.4 ms of its time.
const POLL: Duration = Duration::from_secs(2);
/// How often it is asked for what hardly changes.
const SURVEY: Duration = Duration::from_secs(30);
/// A host that answers at all does so in milliseconds; a survey of a busy one takes a second.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// What an attendant works with.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) hosts: Hosts,
    pub(super) caches: Caches,
    /// LibvirtHosts as the API server has them.
    pub(super) objects: Cache<LibvirtHost>,
    pub(super) triggers: Triggers,
    pub(super) api: GuardedClient,
}

/// Attends to every LibvirtHost there is, for ever.
pub(crate) async fn attend_all(
    hosts: Hosts,
    caches: Caches,
    objects: Cache<LibvirtHost>,
    triggers: Triggers,
    api: GuardedClient,
) -> Result<(), Infallible> {
    let desk = Desk {
        hosts,
        caches,
        objects,
        triggers,
        api,
    };
    let mut running: BTreeMap<String, (Identity, AbortHandle)> = BTreeMap::new();
    loop {
        let wished: BTreeMap<_, _> = desk
            .objects
            .all()
            .into_iter()
            .map(|host| (host.name().to_owned(), host))
            .collect();
        running.retain(|name, (identity, task)| {
            let stays = wished
                .get(name)
                .is_some_and(|host| *identity == identity_of(host))
                && !task.is_finished();
            if !stays {
                task.abort();
                desk.hosts.forget(name);
            }
            stays
        });
        for (name, host) in &wished {
            if !running.contains_key(name) {
                let task = tokio::spawn(attend(desk.clone(), name.clone()));
                running.insert(name.clone(), (identity_of(host), task.abort_handle()));
            }
        }
        // A guard of a change that came meanwhile is kept.
        desk.hosts.0.changed.notified().await;
    }
}

/// What another attendant is needed for when it changes.
type Identity = (String, (String, Option<(String, String)>));

fn identity_of(host: &LibvirtHost) -> Identity {
    (host.uid().to_owned(), target_of(&host.spec))
}

impl Hosts {
    fn forget(&self, name: &str) {
        self.0
            .attended
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
    }

    fn attend(&self, attended: Arc<Attended>) {
        let mut all = self
            .0
            .attended
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        all.insert(attended.name.clone(), attended);
    }
}

/// Attends to one host until it is told to stop.
async fn attend(desk: Desk, name: String) {
    let mut credentials = None;
    let mut attended: Option<Arc<Attended>> = None;
    let mut surveyed: Option<Instant> = None;
    while let Some(host) = desk.objects.get("", &name) {
        let reachable = attended.as_ref().is_some_and(|it| it.seen().is_ok());
        if !reachable {
            // Credentials may have been mended since.
            match read_credentials(&desk.api, &host).await {
                Ok(read) if attended.is_none() || credentials != read => {
                    let target = Target {
                        uri: host.spec.uri.clone(),
                        credentials: read.clone(),
                    };
                    let connect = || Host::new(desk.hosts.0.connector.clone(), target.clone());
                    let made = Arc::new(Attended::new(&name, connect(), connect()));
                    desk.hosts.attend(made.clone());
                    (attended, credentials) = (Some(made), read);
                }
                Ok(_) => {}
                Err(why) => {
                    unknown(&desk, &name, &why).await;
                    sleep(POLL).await;
                    continue;
                }
            }
        }
        let Some(host) = &attended else { continue };
        let full = surveyed.is_none_or(|at| at.elapsed() >= SURVEY) || !reachable;
        let seen = look(host, full).await.map_err(|error| error.to_string());
        if seen.is_ok() && full {
            surveyed = Some(Instant::now());
        }
        tell(&desk, host, seen).await;
        tokio::select! {
            () = sleep(POLL) => {}
            () = host.nudge.notified() => {}
        }
    }
}

/// The host cannot even be connected to.
async fn unknown(desk: &Desk, name: &str, why: &str) {
    if let Some(host) = desk.objects.get("", name) {
        write_status(desk, &host, Err(why)).await;
    }
}

async fn read_credentials(
    api: &GuardedClient,
    host: &LibvirtHost,
) -> Result<Option<Credentials>, String> {
    let Some(reference) = &host.spec.credentials_secret_ref else {
        return Ok(None);
    };
    let place = format!("Secret {}/{}", reference.namespace, reference.name);
    let secrets: Api<Secret> = Api::namespaced(api.client(), &reference.namespace);
    let secret = api.read(secrets.get_opt(&reference.name)).await;
    let secret = secret.map_err(|error| format!("{place} cannot be read: {}", error.message()))?;
    let data = secret.and_then(|secret| secret.data).ok_or_else(|| {
        format!("{place}, which spec.credentialsSecretRef names, is not there: create it")
    })?;
    let key = |name: &str| -> Result<String, String> {
        let bytes = data
            .get(name)
            .ok_or_else(|| format!("{place} has no key '{name}': add it"))?;
        String::from_utf8(bytes.0.clone())
            .map_err(|_| format!("key '{name}' of {place} is no text"))
    };
    if data.contains_key("ssh-privatekey") {
        return Ok(Some(Credentials::Ssh {
            private_key: key("ssh-privatekey")?,
            known_hosts: key("known_hosts")?,
        }));
    }
    Ok(Some(Credentials::Tls {
        ca: key("ca.crt")?,
        certificate: key("tls.crt")?,
        key: key("tls.key")?,
    }))
}

/// Looks at a host: at everything, or only at its domains.
async fn look(host: &Attended, full: bool) -> Result<Arc<Snapshot>, AccessError> {
    let before = host.seen().ok();
    let seen = host.host.fast.call(LIMIT, move |host| {
        let mut seen = match before {
            Some(before) if !full => (*before).clone(),
            _ => survey(host)?,
        };
        let inhabitant = |domain: crate::access::DomainState| Inhabitant {
            mark: domain.mark.as_deref().and_then(DomainMetadata::parse),
            domain,
        };
        seen.domains = host.domains()?.into_iter().map(inhabitant).collect();
        Ok(seen)
    });
    Ok(Arc::new(seen.await?))
}

fn survey(host: &mut dyn Connection) -> Result<Snapshot, AccessError> {
    Ok(Snapshot {
        facts: host.facts()?,
        pools: host.pools()?,
        networks: host.networks()?,
        bridges: host.bridges()?,
        domains: vec![],
    })
}

/// Takes over what was seen, and tells whom it concerns.
async fn tell(desk: &Desk, attended: &Attended, seen: Result<Arc<Snapshot>, String>) {
    let before = attended.seen();
    if let Err(why) = &seen
        && before.is_ok()
    {
        tracing::warn!(host = attended.name, error = %why, "the host cannot be asked");
    }
    attended.saw(seen.clone());
    let name = &attended.name;
    match (&before, &seen) {
        (Ok(before), Ok(seen)) if same_offer(before, seen) => {
            desk.triggers.send(moved(before, seen));
        }
        (Err(_), Err(_)) => {}
        _ => {
            // Those who live there, and those who wait for a place.
            let concerned = |machine: &CachedMachine| {
                let place = machine.binding.as_ref();
                place.is_some_and(|place| place.host.as_deref().is_none_or(|host| host == name))
            };
            desk.triggers
                .send(machines_where(&desk.caches.machines, concerned));
        }
    }
    let Some(host) = desk.objects.get("", name) else {
        return;
    };
    bury(desk, attended, &host).await;
    write_status(desk, &host, seen.as_deref().map_err(String::as_str)).await;
}

fn same_offer(a: &Snapshot, b: &Snapshot) -> bool {
    let pools = |seen: &Snapshot| -> Vec<_> {
        seen.pools
            .iter()
            .map(|pool| (pool.name.clone(), pool.active))
            .collect()
    };
    a.facts == b.facts && pools(a) == pools(b) && a.networks == b.networks && a.bridges == b.bridges
}

/// The Machines of domains that are in another state now.
fn moved(before: &Snapshot, seen: &Snapshot) -> Vec<ObjectRef<CachedMachine>> {
    let states = |seen: &Snapshot| -> BTreeMap<_, _> {
        let all = seen.domains.iter().filter_map(|it| {
            let mark = it.mark.as_ref()?;
            Some((
                it.domain.uuid,
                (it.domain.state, mark.namespace.clone(), mark.name.clone()),
            ))
        });
        all.collect()
    };
    let (before, seen) = (states(before), states(seen));
    let uuids: BTreeSet<_> = before.keys().chain(seen.keys()).collect();
    let changed = uuids
        .into_iter()
        .filter(|uuid| before.get(uuid) != seen.get(uuid));
    let owner = changed.filter_map(|uuid| seen.get(uuid).or(before.get(uuid)));
    owner
        .map(|(_, namespace, name)| ObjectRef::new(name).within(namespace))
        .collect()
}

async fn write_status(desk: &Desk, host: &LibvirtHost, seen: Result<&Snapshot, &str>) {
    if !desk.api.may_write() {
        return;
    }
    let living = desk.caches.machines.state();
    let living: BTreeSet<_> = living
        .iter()
        .map(|machine| machine.uid().to_owned())
        .collect();
    let allocated = desk.hosts.allocated(&desk.caches);
    let known = Known {
        spec: &host.spec,
        generation: host.metadata.generation,
        old: &host.status,
        seen,
        allocated: allocated.get(host.name()).copied().unwrap_or(NO_RESOURCES),
        living: &living,
    };
    if let Some(status) = status(&known, Now(OffsetDateTime::now_utc())) {
        put(desk, host, &status).await;
    }
}

/// Writes a status onto the host as it was seen: what another writer added since is not lost.
pub(super) async fn put(desk: &Desk, host: &LibvirtHost, status: &LibvirtHostStatus) {
    match put_status(&desk.api, host, status).await {
        Ok(()) => {}
        // The next look knows better.
        Err(error) => tracing::debug!(
            host = host.name(),
            error = error.message(),
            "the status of a host was not taken"
        ),
    }
}

/// Writes the status of a host, if it is still as it was seen.
pub(crate) async fn put_status(
    api: &GuardedClient,
    host: &LibvirtHost,
    status: &LibvirtHostStatus,
) -> Result<(), controller_core::client::ApiError> {
    let hosts: Api<LibvirtHost> = Api::all(api.client());
    let body = json!({
        "metadata": {"uid": host.uid(), "resourceVersion": host.metadata.resource_version},
        "status": status,
    });
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let body = Patch::Merge(&body);
    api.write(hosts.patch_status(host.name(), &params, &body))
        .await?;
    Ok(())
}
