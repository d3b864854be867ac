//! Leader election with one Lease, by the algorithm of Kubernetes' own components.
//!
//! ```text
//! a standby reads the Lease every 2 s; it acquires it when the holder released it, or when the Lease has not
//! changed for 10 s by the standby's own clock (clocks of two nodes are never compared)
//!
//! the holder renews every 2 s ── renewed ──────▶ may write until 7 s after it sent the request
//!                             └─ 7 s without ──▶ may not write, and is a standby
//! ```
//! A Lease does not stop a write that is already on its way: every write is safe to repeat and names the uid that it
//! is about.
//!
//! Why not the crate kube-lease-manager (0.13): it decides that a holder is gone by comparing that node's `renewTime`
//! with the local clock, and it reports a bool. This module measures on one monotonic clock and returns a deadline,
//! which [`GuardedClient`](crate::client::GuardedClient) puts on every write
//! (`a_controller_that_continues_after_its_lease_overwrites_deletes_and_starts_nothing` in
//! `tests/tests/libvirt/leaders.rs`).

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use runtime::outage::Outage;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::random::random;

/// Name of the Lease. All replicas of all releases use the same.
const LEASE: &str = "kubevirt-operator";
/// A holder that has not renewed for this long counts as gone. A standby reads every 2 s, so it takes over within 12 s.
const LEASE_DURATION: Duration = Duration::from_secs(10);
/// A holder stops writing this long after its last renewal: 3 s before a standby can start.
const RENEW_DEADLINE: Duration = Duration::from_secs(7);
/// Pause between two reads or renewals.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// A call that takes longer would miss the next renewal.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// Deadline until which this replica may write. Clones share it.
#[derive(Clone, Debug)]
pub enum LeaseGuard {
    /// Leader election is off: this replica may always write.
    Always,
    /// The deadline; `None` while this replica does not hold the Lease.
    Leased(watch::Receiver<Option<Instant>>),
}

impl LeaseGuard {
    /// Time for which this replica may still write; `None`: it may not.
    pub fn remaining(&self) -> Option<Duration> {
        match self {
            Self::Always => Some(Duration::MAX),
            Self::Leased(deadline) => {
                let deadline = (*deadline.borrow())?;
                Some(deadline.checked_duration_since(Instant::now())?)
                    .filter(|remaining| !remaining.is_zero())
            }
        }
    }

    /// Waits until this replica holds the Lease.
    pub async fn acquired(&self) {
        if let Self::Leased(deadline) = self {
            let mut deadline = deadline.clone();
            if deadline.wait_for(Option::is_some).await.is_err() {
                // The elector was dropped because the process is ending: the Lease is never acquired again.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until this replica has lost the Lease and acquired it again.
    pub async fn reacquired(&self) {
        let Self::Leased(deadline) = self else {
            return std::future::pending().await;
        };
        if deadline.clone().wait_for(Option::is_none).await.is_err() {
            std::future::pending::<()>().await;
        }
        self.acquired().await;
    }
}

/// Acquires and renews the Lease for this replica.
pub struct Elector {
    leases: Api<Lease>,
    namespace: String,
    /// `holderIdentity` of this process: host name and a random number, so that a restarted process is a new holder.
    identity: String,
    /// Until when this replica may write; `None`: it does not hold the Lease.
    deadline: watch::Sender<Option<Instant>>,
    /// Cancelled by [`release`](Self::release): the Lease is not renewed any more.
    released: CancellationToken,
}

impl std::fmt::Debug for Elector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Elector")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// The Lease as it was last read.
#[derive(Debug)]
struct Observed {
    spec: LeaseSpec,
    /// When this replica first read this spec, by its own clock.
    since: Instant,
}

/// Who holds the Lease.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// This replica.
    Me,
    /// Nobody, or a replica that has not renewed in time.
    Nobody,
    /// Another replica, by its identity.
    Other(String),
}

fn holder_of(identity: &str, observed: &Observed, now: Instant) -> Holder {
    match observed.spec.holder_identity.as_deref() {
        Some(holder) if holder == identity => Holder::Me,
        None | Some("") => Holder::Nobody,
        Some(_) if now.duration_since(observed.since) >= LEASE_DURATION => Holder::Nobody,
        Some(holder) => Holder::Other(holder.to_owned()),
    }
}

impl Elector {
    /// An elector for the Lease in a namespace, and the guard that it controls.
    pub fn new(client: Client, namespace: &str) -> (Self, LeaseGuard) {
        let (deadline, receiver) = watch::channel(None);
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "machine-controller".into());
        let elector = Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            identity: format!("{host}_{:016x}", random()),
            deadline,
            released: CancellationToken::new(),
        };
        (elector, LeaseGuard::Leased(receiver))
    }

    /// Acquires the Lease, renews it, and acquires it again after it was lost, until [`release`](Self::release) is
    /// called. Never returns.
    pub async fn run(&self) -> Result<(), Infallible> {
        self.released.run_until_cancelled(self.elect()).await;
        std::future::pending().await
    }

    async fn elect(&self) -> Infallible {
        let mut observed: Option<Observed> = None;
        let mut outage = Outage::default();
        loop {
            let sent_at = Instant::now();
            let held = *self.deadline.borrow();
            if held.is_some_and(|deadline| deadline <= sent_at) {
                self.lost("it could not be renewed in time");
            }
            match timeout(CALL_LIMIT, self.acquire_or_renew(&mut observed)).await {
                Ok(Ok(Holder::Me)) => {
                    if self.deadline.borrow().is_none() {
                        tracing::info!(identity = %self.identity, "acquired the Lease, this replica reconciles from now on");
                    }
                    self.deadline.send_replace(Some(sent_at + RENEW_DEADLINE));
                    outage.succeeded();
                }
                Ok(Ok(Holder::Other(holder))) if held.is_some() => {
                    self.lost(&format!("{holder} has it"));
                }
                Ok(Ok(Holder::Other(_) | Holder::Nobody)) => {}
                Ok(Err(error)) => {
                    if outage.failed(&error) {
                        tracing::warn!(%error, "the Lease could not be read or written");
                    }
                }
                Err(_) => tracing::warn!("the API server did not answer in time about the Lease"),
            }
            let now = Instant::now();
            let left = self.deadline.borrow().map_or(RETRY_PERIOD, |deadline| {
                deadline.saturating_duration_since(now)
            });
            sleep(left.min(RETRY_PERIOD)).await;
        }
    }

    fn lost(&self, why: &str) {
        if self.deadline.send_replace(None).is_some() {
            tracing::warn!(
                why,
                "the Lease is lost, this replica does not reconcile any more"
            );
        }
    }

    /// Reads the Lease, and acquires or renews it if this replica may. Returns the holder afterwards.
    async fn acquire_or_renew(
        &self,
        observed: &mut Option<Observed>,
    ) -> Result<Holder, kube::Error> {
        let Some(mut lease) = self.leases.get_opt(LEASE).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEASE.into()),
                    namespace: Some(self.namespace.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.claimed(None)),
            };
            return Ok(
                match self.leases.create(&PostParams::default(), &lease).await {
                    Ok(_) => Holder::Me,
                    Err(error) if is_conflict(&error) => Holder::Nobody,
                    Err(error) => return Err(error),
                },
            );
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if observed
            .as_ref()
            .is_none_or(|observed| observed.spec != spec)
        {
            let since = Instant::now();
            *observed = Some(Observed {
                spec: spec.clone(),
                since,
            });
        }
        let holder = observed.as_ref().map_or(Holder::Nobody, |observed| {
            holder_of(&self.identity, observed, Instant::now())
        });
        if let Holder::Other(_) = holder {
            return Ok(holder);
        }
        lease.spec = Some(self.claimed(Some(&spec)));
        // The body has the resourceVersion that was read: the write fails if another replica wrote in between.
        match self
            .leases
            .replace(LEASE, &PostParams::default(), &lease)
            .await
        {
            Ok(_) => Ok(Holder::Me),
            Err(error) if is_conflict(&error) => Ok(Holder::Nobody),
            Err(error) => Err(error),
        }
    }

    /// The spec with this replica as the holder. `old`: the spec that was read.
    fn claimed(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let held = old.filter(|old| old.holder_identity.as_deref() == Some(&self.identity));
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: held.map_or(Some(now.clone()), |held| held.acquire_time.clone()),
            renew_time: Some(now),
            lease_transitions: old.map(|old| {
                old.lease_transitions
                    .unwrap_or(0)
                    .saturating_add(i32::from(held.is_none()))
            }),
            ..LeaseSpec::default()
        }
    }

    /// Stops renewing, and clears the holder so that a standby need not wait until the Lease expires.
    pub async fn release(&self) {
        self.released.cancel();
        if self.deadline.send_replace(None).is_none() {
            return;
        }
        let release = async {
            let Some(mut lease) = self.leases.get_opt(LEASE).await? else {
                return Ok(());
            };
            let Some(spec) = lease
                .spec
                .as_mut()
                .filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity))
            else {
                return Ok(());
            };
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            self.leases
                .replace(LEASE, &PostParams::default(), &lease)
                .await
                .map(drop)
        };
        if !matches!(
            timeout(CALL_LIMIT, release).await,
            Ok(Ok::<_, kube::Error>(()))
        ) {
            tracing::info!("the Lease was not released; it expires in 10 s");
        }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(holder: Option<&str>, since: Instant) -> Observed {
        Observed {
            spec: LeaseSpec {
                holder_identity: holder.map(Into::into),
                ..LeaseSpec::default()
            },
            since,
        }
    }

    #[test]
    fn the_lease_is_acquired_when_it_is_free_or_was_not_renewed_for_its_duration() {
        let now = Instant::now();
        assert_eq!(holder_of("me", &observed(None, now), now), Holder::Nobody);
        assert_eq!(
            holder_of("me", &observed(Some(""), now), now),
            Holder::Nobody
        );
        assert_eq!(
            holder_of("me", &observed(Some("me"), now), now + 2 * LEASE_DURATION),
            Holder::Me
        );
        let other = observed(Some("other"), now);
        assert_eq!(
            holder_of("me", &other, now + LEASE_DURATION / 2),
            Holder::Other("other".into())
        );
        assert_eq!(
            holder_of("me", &other, now + LEASE_DURATION),
            Holder::Nobody
        );
    }

    #[tokio::test(start_paused = true)]
    async fn reacquired_returns_after_the_lease_was_lost_and_acquired_again() {
        let (sender, receiver) = watch::channel(Some(Instant::now()));
        let guard = LeaseGuard::Leased(receiver);
        let mut again = std::pin::pin!(guard.reacquired());
        assert!(
            futures::poll!(again.as_mut()).is_pending(),
            "it was not lost"
        );
        sender.send_replace(None);
        assert!(futures::poll!(again.as_mut()).is_pending());
        sender.send_replace(Some(Instant::now()));
        assert!(futures::poll!(again.as_mut()).is_ready());
        assert!(futures::poll!(std::pin::pin!(LeaseGuard::Always.reacquired())).is_pending());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_remains_after_the_deadline() {
        let (sender, receiver) = watch::channel(None);
        let guard = LeaseGuard::Leased(receiver);
        assert_eq!(guard.remaining(), None);
        sender.send_replace(Some(Instant::now() + RENEW_DEADLINE));
        guard.acquired().await;
        assert_eq!(guard.remaining(), Some(RENEW_DEADLINE));
        tokio::time::advance(RENEW_DEADLINE).await;
        assert_eq!(guard.remaining(), None);
        assert!(LeaseGuard::Always.remaining().is_some());
    }
}
