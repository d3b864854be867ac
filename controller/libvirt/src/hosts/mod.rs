//! The hosts: which there are, what was seen on each last, and the way to ask them.
//!
//! ```text
//! LibvirtHost ─ watch ─▶ attendant: a task per host ─ polls ─▶ Snapshot ─▶ status of the LibvirtHost
//!                            │                                    └─ what changed ─▶ Machines get a pass
//!                            └─ Host: two lanes ◀── passes of Machines
//! ```
//! libvirt's events are not used: a poll of all domains takes a millisecond, and nothing is lost with a
//! connection.

mod attend;
mod status;
mod tombs;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use common::api::libvirt_host::{HostResources, LibvirtHostSpec};
use common::quantity::Bytes;
use common::render::libvirt::DomainMetadata;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};
use uuid::Uuid;

pub(crate) use self::attend::{attend_all, put_status};
pub(crate) use self::tombs::tombstone;
use super::access::{Connector, DomainState, Facts, Host, Network, Pool};
use super::images::Fetches;
use super::placement::Candidate;
use crate::object::LibvirtHost;
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::machine::NO_RESOURCES;
use controller_core::objects::Meta as _;

/// The hosts. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Hosts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connector: Arc<dyn Connector>,
    attended: RwLock<BTreeMap<String, Arc<Attended>>>,
    /// A Machine is placed at a time: the next one counts it.
    placing: Arc<AsyncMutex<()>>,
    /// Machines that were bound to a host, until their status tells it.
    promised: Mutex<HashMap<String, (String, HostResources)>>,
    /// A LibvirtHost came, changed or went.
    changed: Notify,
}

/// A host that is attended to.
pub(crate) struct Attended {
    pub(crate) name: String,
    pub(crate) host: Host,
    /// A pair of connections of its own for images, which take minutes.
    pub(crate) images: Host,
    pub(crate) fetches: Fetches,
    seen: RwLock<Result<Arc<Snapshot>, String>>,
    /// Something was asked of the host that is to be seen soon.
    pub(crate) nudge: Notify,
}

impl std::fmt::Debug for Attended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attended")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What was seen on a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) facts: Facts,
    pub(crate) pools: Vec<Pool>,
    pub(crate) networks: Vec<Network>,
    pub(crate) bridges: Vec<String>,
    pub(crate) domains: Vec<Inhabitant>,
}

/// A domain on a host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inhabitant {
    pub(crate) domain: DomainState,
    /// Whose it is, if it is one of ours.
    pub(crate) mark: Option<DomainMetadata>,
}

impl Snapshot {
    pub(crate) fn has_pool(&self, name: &str) -> bool {
        self.pools
            .iter()
            .any(|pool| pool.name == name && pool.active)
    }

    fn domain(&self, uuid: Uuid) -> Option<&Inhabitant> {
        self.domains.iter().find(|it| it.domain.uuid == uuid)
    }
}

impl Attended {
    fn new(name: &str, host: Host, images: Host) -> Self {
        Self {
            name: name.to_owned(),
            host,
            images,
            fetches: Fetches::default(),
            seen: RwLock::new(Err("it was not asked yet".into())),
            nudge: Notify::new(),
        }
    }

    /// What was seen last, or why it cannot be asked.
    pub(crate) fn seen(&self) -> Result<Arc<Snapshot>, String> {
        self.seen
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn saw(&self, seen: Result<Arc<Snapshot>, String>) {
        *self.seen.write().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

impl Hosts {
    pub(crate) fn new(connector: Arc<dyn Connector>) -> Self {
        Self(Arc::new(Inner {
            connector,
            attended: RwLock::default(),
            placing: Arc::default(),
            promised: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// A LibvirtHost came, changed or went.
    pub(crate) fn changed(&self) {
        self.0.changed.notify_one();
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Attended>> {
        let attended = self
            .0
            .attended
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        attended.get(name).cloned()
    }

    fn all(&self) -> Vec<Arc<Attended>> {
        let attended = self
            .0
            .attended
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        attended.values().cloned().collect()
    }

    /// The host that has a domain of this uuid with a mark of this Machine: a binding that was lost with a
    /// status is found again, and no second guest is made of the same disks.
    pub(crate) fn with_domain(&self, uuid: Uuid, machine_uid: &str) -> Option<String> {
        let is_here = |host: &Arc<Attended>| {
            host.seen().is_ok_and(|seen| {
                let mark = seen.domain(uuid).and_then(|it| it.mark.as_ref());
                mark.is_some_and(|mark| mark.uid == machine_uid)
            })
        };
        self.all()
            .iter()
            .find(|host| is_here(host))
            .map(|host| host.name.clone())
    }

    /// The turn to place a Machine, and the hosts to choose from.
    pub(crate) async fn candidates(
        &self,
        caches: &Caches,
        objects: &Cache<LibvirtHost>,
    ) -> (OwnedMutexGuard<()>, Vec<Candidate>) {
        let turn = self.0.placing.clone().lock_owned().await;
        let mut allocated = self.allocated(caches);
        let candidate = |host: LibvirtHost| {
            let attended = self.get(host.name());
            let seen = attended.map_or_else(|| Err("it was not asked yet".into()), |it| it.seen());
            let mine = allocated.remove(host.name()).unwrap_or(NO_RESOURCES);
            let foreign = seen.as_ref().map_or(NO_RESOURCES, |seen| foreign(seen));
            Candidate {
                name: host.name().to_owned(),
                labels: host.metadata.labels.clone().unwrap_or_default(),
                spec: host.spec.clone(),
                allocated: sum(mine, foreign),
                seen,
            }
        };
        let hosts = objects.all().into_iter().filter(|host| !host.is_deleting());
        let hosts = hosts.map(candidate).collect();
        (turn, hosts)
    }

    /// What Machines are promised, by host.
    pub(crate) fn allocated(&self, caches: &Caches) -> BTreeMap<String, HostResources> {
        let mut all: BTreeMap<String, HostResources> = BTreeMap::new();
        let mut promised = self.promised();
        for machine in caches.machines.state() {
            let Some(place) = &machine.binding else {
                continue;
            };
            let uid = machine.uid();
            let host = match &place.host {
                Some(host) => {
                    promised.remove(uid);
                    host.to_string()
                }
                None => match promised.get(uid) {
                    Some((host, _)) => host.clone(),
                    None => continue,
                },
            };
            let entry = all.entry(host).or_insert(NO_RESOURCES);
            *entry = sum(*entry, place.requested);
        }
        all
    }

    fn promised(&self) -> MutexGuard<'_, HashMap<String, (String, HostResources)>> {
        // The map is whole after each statement.
        self.0
            .promised
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A Machine was bound to a host.
    pub(crate) fn promise(&self, uid: &str, host: &str, needs: HostResources) {
        self.promised()
            .insert(uid.to_owned(), (host.to_owned(), needs));
    }
}

fn sum(a: HostResources, b: HostResources) -> HostResources {
    HostResources {
        cpu: a.cpu.saturating_add(b.cpu),
        memory: Bytes::new(a.memory.get().saturating_add(b.memory.get())),
    }
}

/// What domains that are not ours have, those that are off included: they come back.
fn foreign(seen: &Snapshot) -> HostResources {
    let others = seen.domains.iter().filter(|it| it.mark.is_none());
    others.fold(NO_RESOURCES, |all, it| {
        let memory = Bytes::new(u128::from(it.domain.memory));
        sum(
            all,
            HostResources {
                cpu: it.domain.vcpus,
                memory,
            },
        )
    })
}

/// What a LibvirtHost is attended to with: a change of it takes new connections.
fn target_of(spec: &LibvirtHostSpec) -> (String, Option<(String, String)>) {
    let secret = spec.credentials_secret_ref.as_ref();
    (
        spec.uri.clone(),
        secret.map(|it| (it.namespace.clone(), it.name.clone())),
    )
}
