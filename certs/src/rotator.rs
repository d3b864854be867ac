//! Keeps a leaf in service that clients accept: carries out the plan, pass by pass.
//!
//! ```text
//!  compare with what the watches report (cheap, may be stale) ─ nothing to do? ─▶ done
//!    │
//!  read the state live, with the store's clock ─▶ plan ─▶ sign · publish · store ─┐
//!    ▲                                                                            │
//!    └──────────────────────────── after a change ────────────────────────────────┘
//! ```
//!
//! A replica may be suspended between any two lines for any time, and its wall clock may be wrong.
//! This is safe because:
//!
//! - Every round starts with a live read. It signs with the CA that was current *at that read*, for
//!   the lifetime of a leaf *from that read*. The overlap starts later and lasts longer.
//! - The state is written over the version that was read. A bundle is written over the version of the
//!   configuration that was cached *before* the state was read: if the rotation had continued
//!   meanwhile, that configuration would have changed first.
//! - The time is the store's. Clients use the same time, and so do all replicas. A replica's own
//!   clocks only decide when to look.

use time::{Duration, OffsetDateTime};

use crate::ca::Ca;
use crate::certificate::CaCertificate;
use crate::leaf::LeafInfo;
use crate::lifetimes::Lifetimes;
use crate::plan::{Action, Change, PlanInput, plan};
use crate::state::State;
use crate::stored_state::StoredState;
use crate::trust::TrustTracker;

/// Longest time between two live reads. If the store's clock is set back, no watch reports that a
/// leaf is not valid yet.
const READ_INTERVAL: Duration = Duration::minutes(5);

/// Rounds of one pass; a complete recovery takes three.
const ROUNDS_MAX: usize = 8;

/// The store, the client configurations and the clocks of one replica. Reason: the tests of `tests/rotation` implement it, to
/// simulate replicas over ten years.
pub trait Environment {
    /// Why an operation failed.
    type Error;

    /// The replica's wall clock, which may be wrong.
    fn wall_clock(&self) -> OffsetDateTime;
    /// Time since the process started, by a clock that is never set. It may stop while the
    /// machine is suspended.
    fn uptime(&self) -> Duration;
    /// What the watches report, without a request. `None`: one of them has not reported yet.
    fn cached(&mut self) -> Option<Cached>;
    /// Reads the state from the store.
    fn read(&mut self) -> impl Future<Output = Result<LiveRead, Self::Error>>;
    /// Writes the state over the version `expected`, or creates it if that is `None`. Returns
    /// `None` if the store has another version.
    fn write(
        &mut self,
        state: &State,
        expected: Option<&Version>,
    ) -> impl Future<Output = Result<Option<Version>, Self::Error>>;
    /// Makes `bundle` the bundle of every client configuration, in the version that is cached. A
    /// configuration that has changed since is left alone.
    fn publish(
        &mut self,
        bundle: &[CaCertificate],
    ) -> impl Future<Output = Result<(), Self::Error>>;
    /// Whether every client configuration contains this certificate, by a live read.
    fn is_trusted(
        &mut self,
        certificate: &CaCertificate,
    ) -> impl Future<Output = Result<bool, Self::Error>>;
    /// Generates a CA.
    fn generate_ca(&mut self, now: OffsetDateTime) -> Result<Ca, Self::Error>;
    /// Signs a leaf and serves it from now on.
    fn serve_new_leaf(&mut self, ca: &Ca, now: OffsetDateTime) -> Result<LeafInfo, Self::Error>;
    /// Reports that the state was written; `lost` is the fault of the one before.
    fn report(&mut self, change: Change, state: &State, lost: Option<&str>);
}

/// Identifies one version of the stored state; every write changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    /// A version from what the store calls it.
    pub fn new(version: impl Into<String>) -> Self {
        Self(version.into())
    }
}

/// What the watches report.
#[derive(Debug, Clone)]
pub struct Cached {
    /// Version of the stored state; `None`: there is none.
    pub version: Option<Version>,
    /// The bundle of each client configuration. A missing or unreadable bundle is an empty one.
    pub bundles: Vec<Vec<CaCertificate>>,
}

/// What a live read of the state found.
#[derive(Debug)]
pub struct LiveRead {
    /// What is stored, or what is wrong with it.
    pub stored: StoredState,
    /// Version of the state; `None`: there is none.
    pub version: Option<Version>,
    /// Time of the read, by the clock of the store.
    pub now: OffsetDateTime,
}

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is left to do, or a watch will report what is.
    Done,
    /// Try again soon: the state is lost, and another replica may have a copy.
    Retry,
}

/// What one replica keeps between two passes.
#[derive(Debug)]
pub struct Rotator {
    lifetimes: Lifetimes,
    last_read: Option<LiveRead>,
    /// Uptime at the start of the last read.
    read_at: Duration,
    known: Option<State>,
    last_trusted: Option<State>,
    /// Uptime at which the state was first found lost; `None` while it is intact.
    lost_since: Option<Duration>,
    trust: TrustTracker,
    leaf: Option<LeafInfo>,
}

impl Rotator {
    /// A rotator that has read nothing yet.
    pub fn new(lifetimes: Lifetimes) -> Self {
        Self {
            lifetimes,
            last_read: None,
            read_at: Duration::ZERO,
            known: None,
            last_trusted: None,
            lost_since: None,
            trust: TrustTracker::default(),
            leaf: None,
        }
    }

    /// The leaf that is served.
    pub fn leaf(&self) -> Option<&LeafInfo> {
        self.leaf.as_ref()
    }

    /// The last intact state that was read.
    pub fn state(&self) -> Option<&State> {
        self.known.as_ref()
    }

    /// Which certificates the bundles contain.
    pub fn trust(&self) -> &TrustTracker {
        &self.trust
    }

    /// Compares everything and repairs what differs. Call it after every change that a watch
    /// reports, and every few seconds.
    pub async fn pass<E: Environment>(&mut self, environment: &mut E) -> Result<Outcome, E::Error> {
        for _ in 0..ROUNDS_MAX {
            let Some(cached) = environment.cached() else {
                return Ok(Outcome::Done);
            };
            self.observe(&cached, environment.uptime());
            if self.has_nothing_to_do(environment, &cached) {
                return Ok(Outcome::Done);
            }
            // Take the time *before* reading. If the process is suspended in between, the read then
            // counts as older than it is and is repeated; the other way round a stale state could
            // be trusted.
            let before = environment.uptime();
            let read = environment.read().await?;
            self.read_at = before;
            let (now, version) = (read.now, read.version.clone());
            let lost = match &read.stored {
                StoredState::Intact(_) => None,
                StoredState::Lost { reason, .. } => Some(reason.clone()),
            };
            self.record(read, environment.uptime());
            let actions = self.plan(&cached, now, environment.uptime());
            if actions.is_empty() && lost.is_some() {
                return Ok(Outcome::Retry);
            }
            let (mut plan_again, mut failed) = (false, None);
            for action in actions {
                let done = self.act(environment, action, now, version.as_ref(), lost.as_deref());
                match done.await {
                    Ok(changed) => plan_again |= changed,
                    // The other actions do not depend on this one.
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            match failed {
                Some(error) => return Err(error),
                None if !plan_again => return Ok(Outcome::Done),
                None => {}
            }
        }
        Ok(Outcome::Retry)
    }

    fn observe(&mut self, cached: &Cached, uptime: Duration) {
        self.trust.observe(&cached.bundles, uptime);
        let known = self.known.as_ref();
        if let Some(known) = known.filter(|it| self.trust.is_trusted(it.current.certificate())) {
            self.last_trusted = Some(known.clone());
        }
    }

    /// Whether a live read would find nothing to do, by either of this replica's clocks.
    fn has_nothing_to_do<E: Environment>(&self, environment: &E, cached: &Cached) -> bool {
        let Some(read) = &self.last_read else {
            return false;
        };
        let uptime = environment.uptime();
        let age = uptime - self.read_at;
        // The wall clock is wrong if it was set, the other one if the machine was suspended.
        let clocks = [environment.wall_clock(), read.now + age];
        age < READ_INTERVAL
            && matches!(read.stored, StoredState::Intact(_))
            && read.version == cached.version
            && clocks
                .into_iter()
                .all(|now| self.plan(cached, now, uptime).is_empty())
    }

    fn record(&mut self, read: LiveRead, uptime: Duration) {
        match &read.stored {
            StoredState::Intact(state) => {
                self.known = Some(state.clone());
                self.lost_since = None;
            }
            StoredState::Lost { .. } => {
                self.lost_since.get_or_insert(uptime);
            }
        }
        self.last_read = Some(read);
    }

    fn plan(&self, cached: &Cached, now: OffsetDateTime, uptime: Duration) -> Vec<Action> {
        let Some(read) = &self.last_read else {
            return Vec::new();
        };
        let input = PlanInput {
            stored: &read.stored,
            known: self.known.as_ref(),
            last_trusted: self.last_trusted.as_ref(),
            lost_for: self.lost_since.map_or(Duration::ZERO, |at| uptime - at),
            bundles: &cached.bundles,
            trust: &self.trust,
            uptime,
            leaf: self.leaf.as_ref(),
            now,
        };
        plan(&input, &self.lifetimes)
    }

    /// Carries out one action. Returns whether to plan again: the state has changed, or the new leaf
    /// may have expired while this replica was suspended.
    async fn act<E: Environment>(
        &mut self,
        environment: &mut E,
        action: Action,
        now: OffsetDateTime,
        version: Option<&Version>,
        lost: Option<&str>,
    ) -> Result<bool, E::Error> {
        match action {
            Action::SignLeaf(ca) => {
                self.leaf = Some(environment.serve_new_leaf(&ca, now)?);
                Ok(true)
            }
            Action::Publish(bundle) => environment.publish(&bundle).await.map(|()| false),
            Action::Store(change, draft) => {
                let state = draft.complete(|| environment.generate_ca(now))?;
                if !self.is_confirmed(environment, change, &state).await? {
                    return Ok(change != Change::Switch);
                }
                let Some(version) = environment.write(&state, version).await? else {
                    return Ok(false);
                };
                environment.report(change, &state, lost);
                let written = LiveRead {
                    stored: StoredState::Intact(state),
                    version: Some(version),
                    now,
                };
                self.record(written, environment.uptime());
                Ok(true)
            }
        }
    }

    /// Reads the bundles live for the changes that depend on them. If they are not as the watches
    /// reported, corrects what this replica keeps, so that the next plan differs.
    async fn is_confirmed<E: Environment>(
        &mut self,
        environment: &mut E,
        change: Change,
        state: &State,
    ) -> Result<bool, E::Error> {
        let current = state.current.certificate();
        match (change, &state.next) {
            (Change::Switch, _) => environment.is_trusted(current).await,
            (Change::Reclaim, Some(next)) if environment.is_trusted(next.certificate()).await? => {
                self.trust.confirm(next.certificate());
                Ok(false)
            }
            (Change::Reclaim, _) => {
                let trusted = environment.is_trusted(current).await?;
                if !trusted {
                    self.last_trusted = None;
                }
                Ok(trusted)
            }
            (Change::Adopt, _) if environment.is_trusted(current).await? => {
                self.trust.confirm(current);
                Ok(false)
            }
            _ => Ok(true),
        }
    }
}
