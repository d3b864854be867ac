//! The simulated cluster: a Secret, two webhook configurations, API servers that receive their bundles
//! late, and the environment of each replica.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use certs::{
    Ca, CaCertificate, Cached, Change, Environment, LeafInfo, Lifetimes, LiveRead, State,
    StoredState, Version,
};
use fastrand::Rng;
use time::{Duration, OffsetDateTime};

use crate::leaves::SimulatedLeaf;

/// A safeguard that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// The next CA signs before the bundle is published.
    SwitchFirst,
    /// The bundle is published in one of two configurations.
    OneConfiguration,
    /// API servers get no time to receive the bundle.
    NoPropagation,
    /// Leaves are valid for longer than the overlap.
    LongLeaves,
    /// Live reads return what the watches reported.
    StaleReads,
    /// The Secret is overwritten whatever its version is.
    BlindWrite,
}

impl Mutation {
    pub(crate) const BROKEN: [Self; 6] = [
        Self::SwitchFirst,
        Self::OneConfiguration,
        Self::NoPropagation,
        Self::LongLeaves,
        Self::StaleReads,
        Self::BlindWrite,
    ];
}

/// A webhook configuration and its former bundles.
pub(crate) struct Configuration {
    pub(crate) bundle: Vec<CaCertificate>,
    version: u64,
    /// Former bundles, each with the time at which it was replaced.
    former: Vec<(Vec<CaCertificate>, Duration)>,
}

/// What all replicas share.
pub(crate) struct Cluster<L> {
    /// Time since the start, whatever clocks show.
    pub(crate) elapsed: Duration,
    /// How far the API servers' clocks are ahead.
    pub(crate) skew: Duration,
    pub(crate) stored: Option<StoredState>,
    pub(crate) version: u64,
    pub(crate) configurations: [Configuration; 2],
    /// Leaf of each replica.
    pub(crate) served: Vec<Option<L>>,
    /// How far each replica's own clock is ahead.
    pub(crate) wall_clocks: Vec<Duration>,
    /// What the watches of each replica reported last.
    caches: Vec<Option<Cache>>,
    /// Probability that a call fails, and that its response is lost, in thousandths.
    pub(crate) failure_rate: u32,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) propagation: Duration,
    pub(crate) mutation: Mutation,
    /// Number of times another CA became the current one.
    pub(crate) switches: u32,
    /// Who changed the state, when, and why.
    pub(crate) history: Vec<String>,
}

/// What the watches of a replica reported.
struct Cache {
    cached: Cached,
    stored: Option<StoredState>,
    versions: [u64; 2],
}

pub(crate) type Shared<L> = Rc<RefCell<Cluster<L>>>;

impl<L: SimulatedLeaf> Cluster<L> {
    pub(crate) fn new(replicas: usize, lifetimes: Lifetimes, mutation: Mutation) -> Self {
        let empty = || Configuration {
            bundle: Vec::new(),
            version: 1,
            former: Vec::new(),
        };
        Self {
            elapsed: Duration::ZERO,
            skew: Duration::ZERO,
            stored: None,
            version: 1,
            configurations: [empty(), empty()],
            served: vec![None; replicas],
            wall_clocks: vec![Duration::ZERO; replicas],
            caches: (0..replicas).map(|_| None).collect(),
            failure_rate: 0,
            lifetimes,
            propagation: lifetimes.propagation(),
            mutation,
            switches: 0,
            history: Vec::new(),
        }
    }

    /// The time by the API servers' clocks.
    pub(crate) fn now(&self) -> OffsetDateTime {
        let start = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        start + Duration::seconds((self.elapsed + self.skew).whole_seconds())
    }

    /// Every bundle that an API server may use now, with the index of its configuration.
    pub(crate) fn bundles_in_use(&self) -> impl Iterator<Item = (usize, &[CaCertificate])> {
        let since = self.elapsed - self.propagation;
        let configurations = self.configurations.iter().enumerate();
        configurations.flat_map(move |(index, configuration)| {
            let former = configuration.former.iter();
            let former = former.filter(move |(_, end)| *end >= since);
            let former = former.map(|(bundle, _)| bundle.as_slice());
            let all = former.chain([configuration.bundle.as_slice()]);
            all.map(move |bundle| (index, bundle))
        })
    }

    /// The last changes of the state.
    pub(crate) fn recent_history(&self) -> &[String] {
        &self.history[self.history.len().saturating_sub(10)..]
    }

    fn current_version(&self) -> Option<Version> {
        let exists = self.stored.is_some();
        exists.then(|| Version::new(self.version.to_string()))
    }

    fn write(&mut self, stored: Option<StoredState>) {
        self.version += 1;
        if let (Some(StoredState::Intact(before)), Some(StoredState::Intact(after))) =
            (&self.stored, &stored)
        {
            let switched = before.current.certificate() != after.current.certificate();
            self.switches += u32::from(switched);
        }
        self.stored = stored;
    }

    /// Deletes or damages the Secret.
    pub(crate) fn lose(&mut self, rng: &mut Rng) {
        self.history.push(format!("{}: lost", self.elapsed));
        let remainder = match &self.stored {
            Some(StoredState::Intact(state)) if rng.bool() => Some(state.clone()),
            _ => None,
        };
        let reason = "damaged by the simulation".to_owned();
        let damaged = StoredState::Lost { reason, remainder };
        let stored = rng.bool().then_some(damaged);
        self.write(stored);
    }

    fn publish(&mut self, index: usize, bundle: &[CaCertificate]) {
        let (elapsed, propagation) = (self.elapsed, self.propagation);
        let configuration = &mut self.configurations[index];
        configuration.version += 1;
        let former = std::mem::replace(&mut configuration.bundle, bundle.to_vec());
        configuration.former.push((former, elapsed));
        let in_use = |end: Duration| end >= elapsed - propagation;
        configuration.former.retain(|(_, end)| in_use(*end));
    }

    fn cache(&self) -> Cache {
        let bundles = self.configurations.iter().map(|it| it.bundle.clone());
        Cache {
            cached: Cached {
                version: self.current_version(),
                bundles: bundles.collect(),
            },
            stored: self.stored.clone(),
            versions: [0, 1].map(|index| self.configurations[index].version),
        }
    }
}

/// The environment of one replica.
pub(crate) struct ReplicaEnvironment<L> {
    pub(crate) cluster: Shared<L>,
    pub(crate) index: usize,
    pub(crate) rng: Rng,
    /// When the process started.
    pub(crate) started: Duration,
}

/// A call that failed, as far as the caller can tell.
#[derive(Debug)]
pub(crate) struct CallFailed;

/// A point between two steps: the replica may crash or be suspended here.
pub(crate) async fn step() {
    let mut polled = false;
    poll_fn(|_| {
        if std::mem::replace(&mut polled, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

impl<L: SimulatedLeaf> ReplicaEnvironment<L> {
    /// A call: time passes before and after it, it may fail, and its response may be lost.
    async fn call<T>(
        &mut self,
        effect: impl FnOnce(&mut Cluster<L>) -> T,
    ) -> Result<T, CallFailed> {
        step().await;
        let failure_rate = self.cluster.borrow().failure_rate;
        if self.rng.u32(..1_000) < failure_rate {
            return Err(CallFailed);
        }
        let done = effect(&mut self.cluster.borrow_mut());
        step().await;
        if self.rng.u32(..1_000) < failure_rate {
            return Err(CallFailed);
        }
        Ok(done)
    }
}

impl<L: SimulatedLeaf> Environment for ReplicaEnvironment<L> {
    type Error = CallFailed;

    fn wall_clock(&self) -> OffsetDateTime {
        let cluster = self.cluster.borrow();
        cluster.now() - cluster.skew + cluster.wall_clocks[self.index]
    }

    fn uptime(&self) -> Duration {
        self.cluster.borrow().elapsed - self.started
    }

    fn cached(&mut self) -> Option<Cached> {
        let mut cluster = self.cluster.borrow_mut();
        // One time in four the watches have not reported the latest change yet.
        if cluster.caches[self.index].is_none() || self.rng.u8(..4) > 0 {
            cluster.caches[self.index] = Some(cluster.cache());
        }
        let mut cached = cluster.caches[self.index].as_ref()?.cached.clone();
        match (cluster.mutation, &cluster.stored) {
            (Mutation::SwitchFirst, Some(StoredState::Intact(state))) => {
                cached.bundles.fill(state.bundle());
            }
            (Mutation::OneConfiguration, _) => cached.bundles.truncate(1),
            _ => {}
        }
        Some(cached)
    }

    async fn read(&mut self) -> Result<LiveRead, CallFailed> {
        let index = self.index;
        self.call(|cluster| {
            let cache = &cluster.caches[index];
            let (stored, version) = match (cluster.mutation, cache) {
                (Mutation::StaleReads, Some(cache)) => {
                    (cache.stored.clone(), cache.cached.version.clone())
                }
                _ => (cluster.stored.clone(), cluster.current_version()),
            };
            LiveRead {
                stored: stored.unwrap_or(StoredState::Lost {
                    reason: "it does not exist".to_owned(),
                    remainder: None,
                }),
                version,
                now: cluster.now(),
            }
        })
        .await
    }

    async fn write(
        &mut self,
        state: &State,
        expected: Option<&Version>,
    ) -> Result<Option<Version>, CallFailed> {
        let expected = expected.cloned();
        self.call(|cluster| {
            let is_expected = cluster.current_version() == expected;
            if !is_expected && cluster.mutation != Mutation::BlindWrite {
                return None;
            }
            cluster.write(Some(StoredState::Intact(state.clone())));
            cluster.current_version()
        })
        .await
    }

    async fn publish(&mut self, bundle: &[CaCertificate]) -> Result<(), CallFailed> {
        let index = self.index;
        for which in [0, 1] {
            self.call(|cluster| {
                let cache = cluster.caches[index].as_ref();
                let expected = cache.map(|cache| cache.versions[which]);
                let configuration = &cluster.configurations[which];
                let is_unchanged = expected == Some(configuration.version);
                if is_unchanged && configuration.bundle != bundle {
                    cluster.publish(which, bundle);
                }
            })
            .await?;
            if self.cluster.borrow().mutation == Mutation::OneConfiguration {
                break;
            }
        }
        Ok(())
    }

    async fn is_trusted(&mut self, certificate: &CaCertificate) -> Result<bool, CallFailed> {
        self.call(|cluster| {
            let without_check = [Mutation::SwitchFirst, Mutation::OneConfiguration];
            let mut all = cluster.configurations.iter();
            without_check.contains(&cluster.mutation)
                || all.all(|it| it.bundle.contains(certificate))
        })
        .await
    }

    fn generate_ca(&mut self, now: OffsetDateTime) -> Result<Ca, CallFailed> {
        let lifetime = self.cluster.borrow().lifetimes.ca();
        Ok(Ca::generate("CA", now, lifetime).unwrap())
    }

    fn serve_new_leaf(&mut self, ca: &Ca, now: OffsetDateTime) -> Result<LeafInfo, CallFailed> {
        let mut cluster = self.cluster.borrow_mut();
        let is_long = cluster.mutation == Mutation::LongLeaves;
        let lifetime = cluster.lifetimes.leaf() * if is_long { 8 } else { 1 };
        let leaf = L::sign(ca, now, lifetime);
        let info = leaf.info().clone();
        cluster.served[self.index] = Some(leaf);
        Ok(info)
    }

    fn report(&mut self, change: Change, _: &State, _: Option<&str>) {
        let mut cluster = self.cluster.borrow_mut();
        let line = format!("{}: {change:?} by replica {}", cluster.elapsed, self.index);
        cluster.history.push(line);
    }
}
