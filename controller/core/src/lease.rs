//! Which replica acts: one Lease, the algorithm of Kubernetes' own components.
//!
//! ```text
//! a waiting replica looks every 2 s; it takes the Lease when the holder let go of it, or when it has
//! not seen it renewed for 10 s by its own clock (clocks of two nodes are never compared)
//!
//! the holder renews every 2 s ── renewed ──▶ may write for 7 s from when it asked
//!                             └─ 7 s without ▶ may not write, and waits as any other replica
//! ```
//! A Lease is no fence: every write is safe to repeat and names the uid it means.

use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::hash::{BuildHasher as _, Hasher as _};
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

/// Name of the Lease.
const LEASE: &str = "kubevirt-operator";
/// A holder that has not renewed for so long is gone. With the look every 2 s, another takes over
/// within 12 s.
const DURATION: Duration = Duration::from_secs(10);
/// A holder stops so long after its last renewal: 3 s before anybody else can start.
const RENEW_DEADLINE: Duration = Duration::from_secs(7);
/// The pause between two looks or renewals.
const RETRY: Duration = Duration::from_secs(2);
/// A call that takes longer would miss the next renewal.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// Until when this replica may write.
#[derive(Clone, Debug)]
pub enum LeaseGuard {
    /// There is no election.
    Always,
    /// Until then; `None` while another replica holds the Lease.
    Leased(watch::Receiver<Option<Instant>>),
}

impl LeaseGuard {
    /// For how long this replica may still write.
    pub fn left(&self) -> Option<Duration> {
        match self {
            Self::Always => Some(Duration::MAX),
            Self::Leased(deadline) => {
                let deadline = (*deadline.borrow())?;
                Some(deadline.checked_duration_since(Instant::now())?)
                    .filter(|left| !left.is_zero())
            }
        }
    }

    /// Waits until this replica may write.
    pub async fn granted(&self) {
        if let Self::Leased(deadline) = self {
            let mut deadline = deadline.clone();
            if deadline.wait_for(Option::is_some).await.is_err() {
                // The elector is gone and the process is ending: nothing is granted any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until this replica has lost the permission, and has it again.
    pub async fn granted_again(&self) {
        let Self::Leased(deadline) = self else {
            return std::future::pending().await;
        };
        if deadline.clone().wait_for(Option::is_none).await.is_err() {
            std::future::pending::<()>().await;
        }
        self.granted().await;
    }
}

/// Takes part in the election.
pub struct Elector {
    leases: Api<Lease>,
    namespace: String,
    identity: String,
    deadline: watch::Sender<Option<Instant>>,
    end: CancellationToken,
}

impl std::fmt::Debug for Elector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Elector")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// The Lease as it was last seen, and when it last changed by this replica's clock.
#[derive(Debug)]
struct Seen {
    spec: LeaseSpec,
    since: Instant,
}

/// What a look at the Lease says.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It is this replica's.
    Mine,
    /// It is free, or its holder is gone.
    Free,
    /// It is somebody's.
    Taken(String),
}

fn judge(identity: &str, seen: &Seen, now: Instant) -> Verdict {
    match seen.spec.holder_identity.as_deref() {
        Some(holder) if holder == identity => Verdict::Mine,
        None | Some("") => Verdict::Free,
        Some(_) if now.duration_since(seen.since) >= DURATION => Verdict::Free,
        Some(holder) => Verdict::Taken(holder.to_owned()),
    }
}

impl Elector {
    pub fn new(client: Client, namespace: &str) -> (Self, LeaseGuard) {
        let (deadline, receiver) = watch::channel(None);
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "machine-controller".into());
        // Every RandomState hashes with other keys.
        let random = RandomState::new().build_hasher().finish();
        let elector = Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            identity: format!("{host}_{random:016x}"),
            deadline,
            end: CancellationToken::new(),
        };
        (elector, LeaseGuard::Leased(receiver))
    }

    /// Waits for the Lease, renews it, and waits for it again when it is lost; until it is
    /// [released](Self::release).
    pub async fn run(&self) -> Result<(), Infallible> {
        self.end.run_until_cancelled(self.take_part()).await;
        std::future::pending().await
    }

    async fn take_part(&self) -> Infallible {
        let mut seen: Option<Seen> = None;
        let mut outage = Outage::default();
        loop {
            let asked = Instant::now();
            let held = *self.deadline.borrow();
            if held.is_some_and(|deadline| deadline <= asked) {
                self.lost("it could not be renewed in time");
            }
            match timeout(CALL_LIMIT, self.turn(&mut seen)).await {
                Ok(Ok(Verdict::Mine)) => {
                    if self.deadline.borrow().is_none() {
                        tracing::info!(identity = %self.identity, "this replica acts from now on");
                    }
                    self.deadline.send_replace(Some(asked + RENEW_DEADLINE));
                    outage.succeeded();
                }
                Ok(Ok(Verdict::Taken(holder))) if held.is_some() => {
                    self.lost(&format!("{holder} has it"));
                }
                Ok(Ok(Verdict::Taken(_) | Verdict::Free)) => {}
                Ok(Err(error)) => {
                    if outage.failed(&error) {
                        tracing::warn!(%error, "the Lease could not be read or written");
                    }
                }
                Err(_) => tracing::warn!("no answer about the Lease in time"),
            }
            let now = Instant::now();
            let left = self
                .deadline
                .borrow()
                .map_or(RETRY, |deadline| deadline.saturating_duration_since(now));
            sleep(left.min(RETRY)).await;
        }
    }

    fn lost(&self, why: &str) {
        if self.deadline.send_replace(None).is_some() {
            tracing::warn!(why, "the Lease is lost, this replica does not act any more");
        }
    }

    /// One look, and one attempt to take or renew.
    async fn turn(&self, seen: &mut Option<Seen>) -> Result<Verdict, kube::Error> {
        let Some(mut lease) = self.leases.get_opt(LEASE).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEASE.into()),
                    namespace: Some(self.namespace.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.claim(None)),
            };
            return Ok(
                match self.leases.create(&PostParams::default(), &lease).await {
                    Ok(_) => Verdict::Mine,
                    Err(error) if is_conflict(&error) => Verdict::Free,
                    Err(error) => return Err(error),
                },
            );
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if seen.as_ref().is_none_or(|seen| seen.spec != spec) {
            let since = Instant::now();
            *seen = Some(Seen {
                spec: spec.clone(),
                since,
            });
        }
        let verdict = seen.as_ref().map_or(Verdict::Free, |seen| {
            judge(&self.identity, seen, Instant::now())
        });
        if let Verdict::Taken(_) = verdict {
            return Ok(verdict);
        }
        lease.spec = Some(self.claim(Some(&spec)));
        // The version it was read with makes this a comparison and a swap.
        match self
            .leases
            .replace(LEASE, &PostParams::default(), &lease)
            .await
        {
            Ok(_) => Ok(Verdict::Mine),
            Err(error) if is_conflict(&error) => Ok(Verdict::Free),
            Err(error) => Err(error),
        }
    }

    /// The Lease as this replica's.
    fn claim(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let held = old.filter(|old| old.holder_identity.as_deref() == Some(&self.identity));
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: held.map_or(Some(now.clone()), |held| held.acquire_time.clone()),
            renew_time: Some(now),
            lease_transitions: old
                .map(|old| old.lease_transitions.unwrap_or(0) + i32::from(held.is_none())),
            ..LeaseSpec::default()
        }
    }

    /// Lets go of the Lease, so that another replica need not wait until it runs out.
    pub async fn release(&self) {
        self.end.cancel();
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
            tracing::info!("the Lease could not be released; it runs out by itself");
        }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(holder: Option<&str>, since: Instant) -> Seen {
        Seen {
            spec: LeaseSpec {
                holder_identity: holder.map(Into::into),
                ..LeaseSpec::default()
            },
            since,
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_or_its_holder_is_gone() {
        let now = Instant::now();
        assert_eq!(judge("me", &seen(None, now), now), Verdict::Free);
        assert_eq!(judge("me", &seen(Some(""), now), now), Verdict::Free);
        assert_eq!(
            judge("me", &seen(Some("me"), now), now + 2 * DURATION),
            Verdict::Mine
        );
        let other = seen(Some("other"), now);
        assert_eq!(
            judge("me", &other, now + DURATION / 2),
            Verdict::Taken("other".into())
        );
        assert_eq!(judge("me", &other, now + DURATION), Verdict::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permission_that_comes_back_is_noticed() {
        let (sender, receiver) = watch::channel(Some(Instant::now()));
        let guard = LeaseGuard::Leased(receiver);
        let mut again = std::pin::pin!(guard.granted_again());
        assert!(futures::poll!(again.as_mut()).is_pending(), "it never went");
        sender.send_replace(None);
        assert!(futures::poll!(again.as_mut()).is_pending());
        sender.send_replace(Some(Instant::now()));
        assert!(futures::poll!(again.as_mut()).is_ready());
        assert!(futures::poll!(std::pin::pin!(LeaseGuard::Always.granted_again())).is_pending());
    }

    #[tokio::test(start_paused = true)]
    async fn writes_end_at_the_deadline() {
        let (sender, receiver) = watch::channel(None);
        let guard = LeaseGuard::Leased(receiver);
        assert_eq!(guard.left(), None);
        sender.send_replace(Some(Instant::now() + RENEW_DEADLINE));
        guard.granted().await;
        assert_eq!(guard.left(), Some(RENEW_DEADLINE));
        tokio::time::advance(RENEW_DEADLINE).await;
        assert_eq!(guard.left(), None);
        assert!(LeaseGuard::Always.left().is_some());
    }
}
