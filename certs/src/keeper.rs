//! Keeps a leaf that clients accept: carries out the plan, pass by pass.
//!
//! ```text
//!  hear (cheap, may be old) ─ nothing due? ─▶ rest
//!    │
//!  read the state live, with the store's own clock ─▶ plan ─▶ sign · publish · store ─┐
//!    ▲                                                                               │
//!    └───────────────────────────── after a change ──────────────────────────────────┘
//! ```
//!
//! Why this is safe however long a replica is suspended between two lines, and whatever its clock
//! shows:
//!
//! - Nothing is done on hearsay: each round begins with a live read, and signs with a CA that was the
//!   current one *then*, for a leaf's life from *then*. The overlap began later, and lasts longer.
//! - The state is written over what was read. A bundle is written over the configuration that was
//!   heard of *before* the state was read: had the rotation gone on meanwhile, it would have
//!   changed that configuration first.
//! - The time is the store's. It is what clients go by, and all replicas have the same. A replica's
//!   own clocks only tell when to look.

use time::{Duration, OffsetDateTime};

use crate::leaf::Tenure;
use crate::lives::Lives;
use crate::plan::{Change, Situation, Step, plan};
use crate::state::{Ca, State};
use crate::stored::Reading;
use crate::trust::Trust;

/// At the latest so long after a live read there is another one: should the store's clock be set
/// back, nothing else would tell that a leaf is not valid yet.
const LOOK_INTERVAL: Duration = Duration::minutes(5);

/// Rounds of a pass; a whole recovery takes three.
const ROUNDS: usize = 8;

/// What a [`World`]'s CA gives clients to trust.
pub type CertificateOf<W> = <<W as World>::Ca as Ca>::Certificate;

/// Store, clients and clocks, as one replica has them.
pub trait World {
    /// [`Authority`](crate::Authority), but for simulations.
    type Ca: Ca;
    /// Of the stored state: another after every write.
    type Version: Clone + PartialEq;
    /// Why something could not be done.
    type Error;

    /// This machine's clock, which anybody may set.
    fn wall(&self) -> OffsetDateTime;
    /// A clock that nobody sets; it may stand still while the machine sleeps.
    fn uptime(&self) -> Duration;
    /// What is known without asking; it may be old. `None`: not everything has been heard yet.
    fn hear(&mut self) -> Option<Heard<CertificateOf<Self>, Self::Version>>;
    /// Reads the state now.
    fn read(&mut self)
    -> impl Future<Output = Result<Found<Self::Ca, Self::Version>, Self::Error>>;
    /// Writes the state over the version that was read, or creates it where there was none.
    /// `None`: somebody else was faster.
    fn write(
        &mut self,
        state: &State<Self::Ca>,
        over: Option<&Self::Version>,
    ) -> impl Future<Output = Result<Option<Self::Version>, Self::Error>>;
    /// Has every client trust these, over the configurations last heard of; one that has changed
    /// since is left alone.
    fn publish(
        &mut self,
        bundle: &[CertificateOf<Self>],
    ) -> impl Future<Output = Result<(), Self::Error>>;
    /// Whether every configuration has this certificate, read now.
    fn is_trusted(
        &mut self,
        certificate: &CertificateOf<Self>,
    ) -> impl Future<Output = Result<bool, Self::Error>>;
    /// Makes a CA.
    fn make(&mut self, now: OffsetDateTime) -> Result<Self::Ca, Self::Error>;
    /// Signs a leaf and serves it from now on.
    fn serve(
        &mut self,
        ca: &Self::Ca,
        now: OffsetDateTime,
    ) -> Result<Tenure<CertificateOf<Self>>, Self::Error>;
    /// The state was written.
    fn tell(&mut self, change: Change, state: &State<Self::Ca>, lost: Option<&str>);
}

/// What is known without asking.
#[derive(Debug, Clone)]
pub struct Heard<T, V> {
    /// The version of the stored state; `None`: there is none.
    pub version: Option<V>,
    /// What each client configuration trusts. One that is missing or unreadable trusts nothing.
    pub bundles: Vec<Vec<T>>,
}

/// What a live read found.
#[derive(Debug)]
pub struct Found<C: Ca, V> {
    /// The state.
    pub stored: Reading<C>,
    /// Its version; `None`: there is none.
    pub version: Option<V>,
    /// The time when it was read, by the clock of the store.
    pub now: OffsetDateTime,
}

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is well, or something is on its way that will be heard of.
    Done,
    /// Come back soon: the state is lost, and others may know it.
    Wait,
}

/// What one replica remembers between two passes.
pub struct Keeper<W: World> {
    lives: Lives,
    found: Option<Found<W::Ca, W::Version>>,
    read_at: Duration,
    known: Option<State<W::Ca>>,
    proven: Option<State<W::Ca>>,
    lost_since: Option<Duration>,
    trust: Trust<CertificateOf<W>>,
    leaf: Option<Tenure<CertificateOf<W>>>,
}

impl<W: World> std::fmt::Debug for Keeper<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("lives", &self.lives)
            .field("leaf", &self.leaf)
            .finish_non_exhaustive()
    }
}

impl<W: World> Keeper<W> {
    /// Remembers nothing yet.
    pub fn new(lives: Lives) -> Self {
        Self {
            lives,
            found: None,
            read_at: Duration::ZERO,
            known: None,
            proven: None,
            lost_since: None,
            trust: Trust::default(),
            leaf: None,
        }
    }

    /// The leaf that is served.
    pub fn leaf(&self) -> Option<&Tenure<CertificateOf<W>>> {
        self.leaf.as_ref()
    }

    /// The last whole state that was seen.
    pub fn state(&self) -> Option<&State<W::Ca>> {
        self.known.as_ref()
    }

    /// What clients have been seen to trust.
    pub fn trust(&self) -> &Trust<CertificateOf<W>> {
        &self.trust
    }

    /// Compares everything and repairs what differs. To be called after every change that is heard
    /// of, and by the clock: every few seconds.
    pub async fn pass(&mut self, world: &mut W) -> Result<Outcome, W::Error> {
        for _ in 0..ROUNDS {
            let Some(heard) = world.hear() else {
                return Ok(Outcome::Done);
            };
            self.trust.observe(&heard.bundles, world.uptime());
            let known = self.known.as_ref();
            if let Some(known) = known.filter(|it| self.trust.has(it.current.certificate())) {
                self.proven = Some(known.clone());
            }
            if self.is_at_rest(world, &heard) {
                return Ok(Outcome::Done);
            }
            // Before it is read: whoever sleeps in between thinks that it is later than it is, and
            // looks again; thinking that it is earlier, it would rest.
            let before = world.uptime();
            let found = world.read().await?;
            self.read_at = before;
            self.remember(found, world.uptime());
            let Some(found) = &self.found else {
                return Ok(Outcome::Done);
            };
            let now = found.now;
            let lost = match &found.stored {
                Reading::Whole(_) => None,
                Reading::Lost { reason, .. } => Some(reason.clone()),
            };
            let over = found.version.clone();
            let steps = self.planned(&heard, now, world.uptime());
            if steps.is_empty() && lost.is_some() {
                return Ok(Outcome::Wait);
            }
            let (mut changed, mut failed) = (false, None);
            for step in steps {
                let done = self.step(world, step, now, over.as_ref(), lost.as_deref());
                match done.await {
                    Ok(done) => changed |= done,
                    // Trouble with one step is no reason to leave the others.
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            match failed {
                Some(error) => return Err(error),
                None if !changed => return Ok(Outcome::Done),
                None => {}
            }
        }
        Ok(Outcome::Wait)
    }

    /// Whether a live read would find nothing to do, by either of this replica's clocks.
    fn is_at_rest(&self, world: &W, heard: &Heard<CertificateOf<W>, W::Version>) -> bool {
        let Some(found) = &self.found else {
            return false;
        };
        let uptime = world.uptime();
        let since = uptime - self.read_at;
        // One is wrong after it was set; the other after this machine slept.
        let clocks = [world.wall(), found.now + since];
        since < LOOK_INTERVAL
            && matches!(found.stored, Reading::Whole(_))
            && found.version == heard.version
            && clocks
                .into_iter()
                .all(|now| self.planned(heard, now, uptime).is_empty())
    }

    fn remember(&mut self, found: Found<W::Ca, W::Version>, uptime: Duration) {
        match &found.stored {
            Reading::Whole(state) => {
                self.known = Some(state.clone());
                self.lost_since = None;
            }
            Reading::Lost { .. } => {
                self.lost_since.get_or_insert(uptime);
            }
        }
        self.found = Some(found);
    }

    fn planned(
        &self,
        heard: &Heard<CertificateOf<W>, W::Version>,
        now: OffsetDateTime,
        uptime: Duration,
    ) -> Vec<Step<W::Ca>> {
        let Some(found) = &self.found else {
            return Vec::new();
        };
        let situation = Situation {
            stored: &found.stored,
            known: self.known.as_ref(),
            proven: self.proven.as_ref(),
            lost_for: self.lost_since.map_or(Duration::ZERO, |at| uptime - at),
            bundles: &heard.bundles,
            trust: &self.trust,
            uptime,
            leaf: self.leaf.as_ref(),
            now,
        };
        plan(&situation, &self.lives)
    }

    /// Carries out one step; whether to look again: at another state, or at a leaf that may have
    /// ended while this replica slept.
    async fn step(
        &mut self,
        world: &mut W,
        step: Step<W::Ca>,
        now: OffsetDateTime,
        over: Option<&W::Version>,
        lost: Option<&str>,
    ) -> Result<bool, W::Error> {
        match step {
            Step::Sign(ca) => {
                self.leaf = Some(world.serve(&ca, now)?);
                Ok(true)
            }
            Step::Publish(bundle) => world.publish(&bundle).await.map(|()| false),
            Step::Store(change, draft) => {
                let state = draft.complete(|| world.make(now))?;
                if !self.is_founded(world, change, &state).await? {
                    return Ok(change != Change::Switch);
                }
                let Some(version) = world.write(&state, over).await? else {
                    return Ok(false);
                };
                world.tell(change, &state, lost);
                let found = Found {
                    stored: Reading::Whole(state),
                    version: Some(version),
                    now,
                };
                self.remember(found, world.uptime());
                Ok(true)
            }
        }
    }

    /// Whether what clients trust is as it was heard to be, where it matters. What was not is put
    /// right, so that the next plan is another.
    async fn is_founded(
        &mut self,
        world: &mut W,
        change: Change,
        state: &State<W::Ca>,
    ) -> Result<bool, W::Error> {
        let current = state.current.certificate();
        match (change, &state.next) {
            (Change::Switch, _) => world.is_trusted(current).await,
            (Change::Reclaim, Some(next)) if world.is_trusted(next.certificate()).await? => {
                self.trust.confirm(next.certificate());
                Ok(false)
            }
            (Change::Reclaim, _) => {
                let trusted = world.is_trusted(current).await?;
                if !trusted {
                    self.proven = None;
                }
                Ok(trusted)
            }
            (Change::Adopt, _) if world.is_trusted(current).await? => {
                self.trust.confirm(current);
                Ok(false)
            }
            _ => Ok(true),
        }
    }
}
