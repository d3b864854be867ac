//! The cluster: a Secret, two webhook configurations, API servers that hear of them late, and the
//! way of each replica to all that.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use certs::{CertificateOf, Change, Found, Heard, Lives, Reading, State, Tenure, World};
use fastrand::Rng;
use time::{Duration, OffsetDateTime};

use crate::model::Maker;

/// A guard that is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// Signing is switched before the bundle is published.
    SwitchFirst,
    /// The bundle is published in one of two configurations.
    OneConfiguration,
    /// API servers are given no time.
    NoPropagation,
    /// Leaves live longer than the overlap.
    LongLeaves,
    /// What was heard is taken for what is.
    Hearsay,
    /// The Secret is overwritten whatever it has become.
    BlindWrite,
}

impl Mutation {
    pub(crate) const BROKEN: [Self; 6] = [
        Self::SwitchFirst,
        Self::OneConfiguration,
        Self::NoPropagation,
        Self::LongLeaves,
        Self::Hearsay,
        Self::BlindWrite,
    ];
}

/// A webhook configuration, and what it was.
pub(crate) struct Configuration<T> {
    pub(crate) bundle: Vec<T>,
    version: u64,
    /// Former bundles, each with the moment of its end.
    former: Vec<(Vec<T>, Duration)>,
}

/// What all replicas share.
pub(crate) struct Cluster<C: Maker> {
    /// How long it has run, whatever clocks show.
    pub(crate) elapsed: Duration,
    /// What the API servers' clocks are ahead.
    pub(crate) skew: Duration,
    pub(crate) stored: Option<Reading<C>>,
    pub(crate) version: u64,
    pub(crate) configurations: [Configuration<C::Certificate>; 2],
    pub(crate) served: Vec<Option<C::Leaf>>,
    /// What each replica's own clock is ahead.
    pub(crate) walls: Vec<Duration>,
    /// What each replica has heard last.
    heard: Vec<Option<Hearsay<C>>>,
    /// Each call fails, or its answer is lost, so often of a thousand times.
    pub(crate) trouble: u32,
    pub(crate) lives: Lives,
    pub(crate) propagation: Duration,
    pub(crate) mutation: Mutation,
    pub(crate) switches: u32,
    /// Who changed the state, when, and why.
    pub(crate) history: Vec<String>,
    authorities: u32,
}

/// What a replica's watches told it.
struct Hearsay<C: Maker> {
    heard: Heard<C::Certificate, u64>,
    stored: Option<Reading<C>>,
    versions: [u64; 2],
}

pub(crate) type Shared<C> = Rc<RefCell<Cluster<C>>>;

impl<C: Maker> Cluster<C> {
    pub(crate) fn new(replicas: usize, lives: Lives, mutation: Mutation) -> Self {
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
            walls: vec![Duration::ZERO; replicas],
            heard: (0..replicas).map(|_| None).collect(),
            trouble: 0,
            lives,
            propagation: lives.propagation(),
            mutation,
            switches: 0,
            history: Vec::new(),
            authorities: 0,
        }
    }

    /// The time as API servers have it.
    pub(crate) fn now(&self) -> OffsetDateTime {
        let start = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        start + Duration::seconds((self.elapsed + self.skew).whole_seconds())
    }

    /// Every bundle that an API server could hold, with the configuration it is of.
    pub(crate) fn held(&self) -> impl Iterator<Item = (usize, &[C::Certificate])> {
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
    pub(crate) fn lately(&self) -> &[String] {
        &self.history[self.history.len().saturating_sub(10)..]
    }

    fn write(&mut self, stored: Option<Reading<C>>) {
        self.version += 1;
        if let (Some(Reading::Whole(was)), Some(Reading::Whole(is))) = (&self.stored, &stored) {
            let switched = was.current.certificate() != is.current.certificate();
            self.switches += u32::from(switched);
        }
        self.stored = stored;
    }

    /// Somebody deletes or damages the Secret.
    pub(crate) fn lose(&mut self, rng: &mut Rng) {
        self.history.push(format!("{}: lost", self.elapsed));
        let rest = match &self.stored {
            Some(Reading::Whole(state)) if rng.bool() => Some(state.clone()),
            _ => None,
        };
        let reason = "somebody was here".to_owned();
        let damaged = Reading::Lost { reason, rest };
        let stored = rng.bool().then_some(damaged);
        self.write(stored);
    }

    fn publish(&mut self, index: usize, bundle: &[C::Certificate]) {
        let (elapsed, propagation) = (self.elapsed, self.propagation);
        let configuration = &mut self.configurations[index];
        configuration.version += 1;
        let was = std::mem::replace(&mut configuration.bundle, bundle.to_vec());
        configuration.former.push((was, elapsed));
        let held = |end: Duration| end >= elapsed - propagation;
        configuration.former.retain(|(_, end)| held(*end));
    }

    fn look(&self) -> Hearsay<C> {
        let bundles = self.configurations.iter().map(|it| it.bundle.clone());
        Hearsay {
            heard: Heard {
                version: self.stored.is_some().then_some(self.version),
                bundles: bundles.collect(),
            },
            stored: self.stored.clone(),
            versions: [0, 1].map(|index| self.configurations[index].version),
        }
    }
}

/// The way of one replica.
pub(crate) struct Way<C: Maker> {
    pub(crate) cluster: Shared<C>,
    pub(crate) index: usize,
    pub(crate) rng: Rng,
    /// When its process began.
    pub(crate) born: Duration,
}

/// A call that came to nothing, as far as the caller knows.
#[derive(Debug)]
pub(crate) struct Trouble;

/// Between any two steps: here a replica may crash or fall asleep.
pub(crate) async fn step() {
    let mut asked = false;
    poll_fn(|_| {
        if std::mem::replace(&mut asked, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

impl<C: Maker> Way<C> {
    /// A call: time passes before and after it, it may fail, its answer may be lost.
    async fn call<T>(&mut self, effect: impl FnOnce(&mut Cluster<C>) -> T) -> Result<T, Trouble> {
        step().await;
        let trouble = self.cluster.borrow().trouble;
        if self.rng.u32(..1_000) < trouble {
            return Err(Trouble);
        }
        let done = effect(&mut self.cluster.borrow_mut());
        step().await;
        if self.rng.u32(..1_000) < trouble {
            return Err(Trouble);
        }
        Ok(done)
    }
}

impl<C: Maker> World for Way<C> {
    type Ca = C;
    type Version = u64;
    type Error = Trouble;

    fn wall(&self) -> OffsetDateTime {
        let cluster = self.cluster.borrow();
        cluster.now() - cluster.skew + cluster.walls[self.index]
    }

    fn uptime(&self) -> Duration {
        self.cluster.borrow().elapsed - self.born
    }

    fn hear(&mut self) -> Option<Heard<CertificateOf<Self>, u64>> {
        let mut cluster = self.cluster.borrow_mut();
        // News may be late.
        if cluster.heard[self.index].is_none() || self.rng.u8(..4) > 0 {
            cluster.heard[self.index] = Some(cluster.look());
        }
        let mut heard = cluster.heard[self.index].as_ref()?.heard.clone();
        match (cluster.mutation, &cluster.stored) {
            (Mutation::SwitchFirst, Some(Reading::Whole(state))) => {
                heard.bundles.fill(state.bundle());
            }
            (Mutation::OneConfiguration, _) => heard.bundles.truncate(1),
            _ => {}
        }
        Some(heard)
    }

    async fn read(&mut self) -> Result<Found<C, u64>, Trouble> {
        let index = self.index;
        self.call(|cluster| {
            let heard = &cluster.heard[index];
            let (stored, version) = match (cluster.mutation, heard) {
                (Mutation::Hearsay, Some(heard)) => (heard.stored.clone(), heard.heard.version),
                _ => (
                    cluster.stored.clone(),
                    cluster.stored.is_some().then_some(cluster.version),
                ),
            };
            Found {
                stored: stored.unwrap_or(Reading::Lost {
                    reason: "it does not exist".to_owned(),
                    rest: None,
                }),
                version,
                now: cluster.now(),
            }
        })
        .await
    }

    async fn write(
        &mut self,
        state: &State<C>,
        over: Option<&u64>,
    ) -> Result<Option<u64>, Trouble> {
        let over = over.copied();
        self.call(|cluster| {
            let there = cluster.stored.is_some().then_some(cluster.version);
            if there != over && cluster.mutation != Mutation::BlindWrite {
                return None;
            }
            cluster.write(Some(Reading::Whole(state.clone())));
            Some(cluster.version)
        })
        .await
    }

    async fn publish(&mut self, bundle: &[CertificateOf<Self>]) -> Result<(), Trouble> {
        let index = self.index;
        for which in [0, 1] {
            self.call(|cluster| {
                let heard = cluster.heard[index].as_ref();
                let expected = heard.map(|heard| heard.versions[which]);
                let there = &cluster.configurations[which];
                let unchanged = expected == Some(there.version);
                if unchanged && there.bundle != bundle {
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

    async fn is_trusted(&mut self, certificate: &CertificateOf<Self>) -> Result<bool, Trouble> {
        self.call(|cluster| {
            let lies = [Mutation::SwitchFirst, Mutation::OneConfiguration];
            let mut all = cluster.configurations.iter();
            lies.contains(&cluster.mutation) || all.all(|it| it.bundle.contains(certificate))
        })
        .await
    }

    fn make(&mut self, now: OffsetDateTime) -> Result<C, Trouble> {
        let mut cluster = self.cluster.borrow_mut();
        cluster.authorities += 1;
        Ok(C::make(cluster.authorities, now, &cluster.lives))
    }

    fn serve(
        &mut self,
        ca: &C,
        now: OffsetDateTime,
    ) -> Result<Tenure<CertificateOf<Self>>, Trouble> {
        let mut cluster = self.cluster.borrow_mut();
        let long = cluster.mutation == Mutation::LongLeaves;
        let life = cluster.lives.leaf() * if long { 8 } else { 1 };
        let leaf = ca.sign(now, life);
        let tenure = C::tenure(&leaf).clone();
        cluster.served[self.index] = Some(leaf);
        Ok(tenure)
    }

    fn tell(&mut self, change: Change, _: &State<C>, _: Option<&str>) {
        let mut cluster = self.cluster.borrow_mut();
        let told = format!("{}: {change:?} by replica {}", cluster.elapsed, self.index);
        cluster.history.push(told);
    }
}
