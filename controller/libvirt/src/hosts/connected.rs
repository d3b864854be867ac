//! A host that is polled: its connections, and what the polls showed.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;

use super::agent_time::AgentTime;
use crate::access::{AccessError, Connection, Connector, Host, Target, Worker};
use crate::images::fetches::Fetches;
use crate::reservations::Reservations;
use crate::snapshot::Snapshot;

/// Why a host that was just added has no snapshot.
pub(crate) const NOT_POLLED: &str = "it was not polled yet";

/// Limit of a query, which takes a millisecond or two. Queries of the guest's agent have another limit.
pub(crate) const QUERY_LIMIT: Duration = Duration::from_secs(5);

/// A host that is polled.
pub(crate) struct ConnectedHost {
    /// Name of the LibvirtHost.
    pub(crate) name: String,
    /// Connections for polls, observations and actions that take seconds at most.
    pub(crate) host: Host,
    /// Connection for what the poller does beside its polls, which takes minutes: sweeps of images, removals of what deleted
    /// Machines left.
    pub(crate) background: Worker,
    /// Connection for readiness probes.
    pub(crate) agents: Worker,
    /// What passes have spent on the agents of its guests.
    pub(crate) agent_time: AgentTime,
    /// Fetches of images that are under way or failed.
    pub(crate) fetches: Fetches,
    /// Copies of images to disks that are under way or failed, by [`copy_name`](crate::images::names::copy_name). They are
    /// queued round-robin over namespaces, as fetches are.
    pub(crate) copies: Fetches,
    /// Room that its jobs are about to take.
    pub(crate) reservations: Reservations,
    polled: RwLock<Polled>,
    /// Wakes the poller before its next poll, after a change on the host.
    pub(crate) wake: Notify,
}

/// Opens no connection, for this reason.
#[derive(Debug)]
struct NoConnector(String);

impl Connector for NoConnector {
    fn open(&self, _: &Target) -> Result<Box<dyn Connection>, AccessError> {
        Err(AccessError::Unavailable(self.0.clone()))
    }
}

/// What the polls of a host showed.
struct Polled {
    /// The last snapshot, however long ago the host answered.
    last: Option<Arc<Snapshot>>,
    /// Why the last poll failed, or there was none yet.
    failure: Option<String>,
}

impl std::fmt::Debug for ConnectedHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectedHost")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ConnectedHost {
    pub(super) fn new(name: &str, host: Host) -> Self {
        Self {
            name: name.to_owned(),
            background: host.background_worker(),
            agents: host.agents(),
            agent_time: AgentTime::default(),
            host,
            fetches: Fetches::default(),
            copies: Fetches::default(),
            reservations: Reservations::default(),
            polled: RwLock::new(Polled {
                last: None,
                failure: Some(NOT_POLLED.to_owned()),
            }),
            wake: Notify::new(),
        }
    }

    /// A host to which no connection is opened, for this reason: others report it.
    pub(super) fn without_connection(name: &str, why: &str) -> Self {
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        let host = Host::new(Arc::new(NoConnector(why.to_owned())), target);
        let host = Self::new(name, host);
        host.set_snapshot(Err(why.to_owned()));
        host
    }

    /// Cancels every job that waits for a connection of this host.
    pub(super) fn close(&self) {
        self.host.close();
        self.background.close();
        self.agents.close();
    }

    /// Fails once the host was removed, or is reached over other connections.
    pub(crate) fn check_open(&self) -> Result<(), AccessError> {
        self.host.check_open()
    }

    /// The last poll, or why the host cannot be reached.
    pub(crate) fn snapshot(&self) -> Result<Arc<Snapshot>, String> {
        let polled = self.polled.read().unwrap_or_else(PoisonError::into_inner);
        match (&polled.failure, &polled.last) {
            (None, Some(last)) => Ok(last.clone()),
            (failure, _) => Err(failure.clone().unwrap_or_else(|| NOT_POLLED.to_owned())),
        }
    }

    /// The last poll that the host answered, however long ago.
    pub(crate) fn last_snapshot(&self) -> Option<Arc<Snapshot>> {
        let polled = self.polled.read().unwrap_or_else(PoisonError::into_inner);
        polled.last.clone()
    }

    pub(crate) fn set_snapshot(&self, snapshot: Result<Arc<Snapshot>, String>) {
        let mut polled = self.polled.write().unwrap_or_else(PoisonError::into_inner);
        match snapshot {
            Ok(snapshot) => {
                *polled = Polled {
                    last: Some(snapshot),
                    failure: None,
                }
            }
            Err(failure) => polled.failure = Some(failure),
        }
    }

    /// Takes over what the polls over other connections showed, until there is one over these.
    pub(super) fn keep_last_snapshot(&self, old: &Self) {
        let mut polled = self.polled.write().unwrap_or_else(PoisonError::into_inner);
        polled.last = polled.last.take().or_else(|| old.last_snapshot());
    }
}
