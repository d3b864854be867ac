//! Runs the replicas and checks the invariant after every step.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use certs::{CaCertificate, LeafInfo, Lifetimes, Outcome, Phase, Rotator, StoredState};
use fastrand::Rng;
use time::Duration;

use crate::cluster::{Cluster, Mutation, ReplicaEnvironment, Shared, step};
use crate::leaves::SimulatedLeaf;

/// Time a replica gets after its start, and after it was resumed, until its leaf must be valid.
const GRACE: Duration = Duration::minutes(1);

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters {
    pub(crate) replicas: usize,
    pub(crate) seed: u64,
    /// Simulated time.
    pub(crate) span: Duration,
    pub(crate) lifetimes: Lifetimes,
    /// Longest time for which a replica is suspended.
    pub(crate) suspension_max: Duration,
    pub(crate) mutation: Mutation,
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    pub(crate) switches: u32,
    pub(crate) crashes: u32,
    pub(crate) suspensions: u32,
    pub(crate) jumps: u32,
    pub(crate) losses: u32,
    pub(crate) steps: u64,
    pub(crate) checks: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} steps, {} pairs of bundle and leaf, {} rotations, {} crashes, {} suspensions, \
             {} clock jumps, {} losses of the Secret, {} violations",
            self.steps,
            self.checks,
            self.switches,
            self.crashes,
            self.suspensions,
            self.jumps,
            self.losses,
            self.violations.len()
        )
    }
}

/// What a replica is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// In the middle of a pass.
    InPass,
    /// The last pass found nothing left to do.
    Idle,
    /// A pass is to be repeated soon.
    Retry,
}

struct Replica {
    /// The running process; `None` after a crash.
    process: Option<Pin<Box<dyn Future<Output = ()>>>>,
    activity: Rc<RefCell<Activity>>,
    /// Time of the next step.
    next_step: Duration,
    suspended: bool,
    /// When it was started or resumed last.
    running_since: Duration,
}

struct Simulation<L: SimulatedLeaf> {
    parameters: Parameters,
    cluster: Shared<L>,
    replicas: Vec<Replica>,
    rng: Rng,
    report: Report,
    /// Time from which every API server has had a bundle; `None` before it is known.
    armed: Option<Duration>,
    /// Until when steps are frequent, because the state was written.
    busy_until: Duration,
    next_fault: Duration,
    /// Pairs of bundle and leaf that were verified, so that each is verified once.
    verified: Vec<(Vec<CaCertificate>, L)>,
}

/// Runs one simulation, to the end or to the first violation.
pub(crate) fn run<L: SimulatedLeaf>(parameters: &Parameters) -> Report {
    let lifetimes = parameters.lifetimes;
    let mut cluster = Cluster::<L>::new(parameters.replicas, lifetimes, parameters.mutation);
    if parameters.mutation == Mutation::NoPropagation {
        let propagation = Duration::milliseconds(1);
        let short = Lifetimes::new(lifetimes.ca(), lifetimes.leaf(), propagation);
        cluster.lifetimes = short.unwrap();
    }
    let mut simulation = Simulation {
        parameters: *parameters,
        cluster: Rc::new(RefCell::new(cluster)),
        replicas: Vec::new(),
        rng: Rng::with_seed(parameters.seed),
        report: Report::default(),
        armed: None,
        busy_until: Duration::ZERO,
        next_fault: Duration::days(2).min(lifetimes.ca() / 4),
        verified: Vec::new(),
    };
    for _ in 0..parameters.replicas {
        simulation.replicas.push(Replica {
            process: None,
            activity: Rc::new(RefCell::new(Activity::Retry)),
            next_step: Duration::ZERO,
            suspended: false,
            running_since: Duration::ZERO,
        });
    }
    while simulation.advance() {}
    simulation.report.switches = simulation.cluster.borrow().switches;
    simulation.report
}

impl<L: SimulatedLeaf> Simulation<L> {
    /// The next step of the replica that is next; `false`: the simulation is over.
    fn advance(&mut self) -> bool {
        let next = (0..self.replicas.len()).min_by_key(|index| self.replicas[*index].next_step);
        let Some(index) = next else { return false };
        let now = self.replicas[index].next_step;
        if self.next_fault < now {
            let fault = self.next_fault;
            self.elapse(fault);
            self.inject_fault();
            return true;
        }
        self.elapse(now);
        let over = self.cluster.borrow().elapsed > self.parameters.span;
        if over || !self.report.violations.is_empty() {
            return false;
        }
        if std::mem::take(&mut self.replicas[index].suspended) {
            self.replicas[index].running_since = now;
        }
        let version = self.cluster.borrow().version;
        self.step_replica(index);
        self.report.steps += 1;
        let after = self.cluster.borrow().version;
        if after != version {
            let until = self.cluster.borrow().elapsed + 2 * self.parameters.lifetimes.propagation();
            self.busy_until = until;
            self.notify_watches();
        }
        self.check_invariant();
        self.schedule(index);
        true
    }

    fn elapse(&mut self, until: Duration) {
        let mut cluster = self.cluster.borrow_mut();
        cluster.elapsed = cluster.elapsed.max(until);
    }

    fn step_replica(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let process = replica.process.get_or_insert_with(|| {
            let mut environment = ReplicaEnvironment {
                cluster: self.cluster.clone(),
                index,
                rng: self.rng.fork(),
                started: self.cluster.borrow().elapsed,
            };
            let activity = replica.activity.clone();
            let lifetimes = self.cluster.borrow().lifetimes;
            Box::pin(async move {
                let mut rotator = Rotator::new(lifetimes);
                loop {
                    *activity.borrow_mut() = Activity::InPass;
                    *activity.borrow_mut() = match rotator.pass(&mut environment).await {
                        Ok(Outcome::Done) => Activity::Idle,
                        Ok(Outcome::Retry) | Err(_) => Activity::Retry,
                    };
                    step().await;
                }
            })
        });
        let done = process
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(done.is_pending());
        if *self.replicas[index].activity.borrow() == Activity::Idle && self.is_armed() {
            self.check_leaf(index);
        }
    }

    /// After a complete pass a replica has a valid leaf. A replica that was just started or resumed
    /// may still be in the pass before, or have to wait for others.
    fn check_leaf(&mut self, index: usize) {
        let cluster = self.cluster.borrow();
        if cluster.elapsed < self.replicas[index].running_since + GRACE {
            return;
        }
        let leaf = cluster.served[index].as_ref();
        let is_valid = leaf.is_some_and(|it| it.info().validity.contains(cluster.now()));
        if !is_valid {
            let violation = format!(
                "{}: replica {index} has no valid leaf, {:?}; {:?}",
                cluster.elapsed,
                leaf.map(L::info),
                cluster.recent_history(),
            );
            self.report.violations.push(violation);
        }
    }

    fn is_armed(&mut self) -> bool {
        let cluster = self.cluster.borrow();
        let mut configurations = cluster.configurations.iter();
        let published = configurations.all(|it| !it.bundle.is_empty());
        // The first bundle must be published within the lifetime of a leaf.
        let leaf_lifetime = self.parameters.lifetimes.leaf();
        if self.armed.is_none() && (published || cluster.elapsed > leaf_lifetime) {
            self.armed = Some(cluster.elapsed + cluster.propagation + Duration::SECOND);
        }
        self.armed.is_some_and(|armed| cluster.elapsed >= armed)
    }

    /// The invariant: every bundle that an API server may use accepts every leaf that is served.
    fn check_invariant(&mut self) {
        if !self.is_armed() {
            return;
        }
        let cluster = self.cluster.borrow();
        let now = cluster.now();
        for (index, leaf) in cluster.served.iter().enumerate() {
            let Some(leaf) = leaf else { continue };
            // `check_leaf` reports a replica whose leaf has expired.
            if !leaf.info().validity.contains(now) {
                continue;
            }
            for (configuration, bundle) in cluster.bundles_in_use() {
                self.report.checks += 1;
                let info: &LeafInfo = leaf.info();
                let is_same =
                    |(with, of): &(Vec<_>, L)| of.info() == info && with.as_slice() == bundle;
                if self.verified.iter().any(is_same) {
                    continue;
                }
                if leaf.accepted_by(bundle, now) {
                    self.verified.push((bundle.to_vec(), leaf.clone()));
                    if self.verified.len() > 4 * self.parameters.replicas {
                        self.verified.remove(0);
                    }
                } else {
                    self.report.violations.push(format!(
                        "{}: an API server rejects the leaf of replica {index}, {info:?}, \
                         for configuration {configuration} with {bundle:?}; {:?}",
                        cluster.elapsed,
                        cluster.recent_history(),
                    ));
                }
            }
        }
    }

    /// Chooses the time of the replica's next step, and whether it is suspended or crashes before.
    fn schedule(&mut self, index: usize) {
        let (elapsed, phase) = {
            let cluster = self.cluster.borrow();
            let phase = match &cluster.stored {
                Some(StoredState::Intact(state)) => Some(state.phase()),
                _ => None,
            };
            (cluster.elapsed, phase)
        };
        let lifetimes = self.parameters.lifetimes;
        let rng = &mut self.rng;
        let activity = *self.replicas[index].activity.borrow();
        let replica = &mut self.replicas[index];
        let within = |rng: &mut Rng, most: Duration| most * rng.f64();
        replica.next_step = elapsed
            + match activity {
                Activity::InPass => within(rng, Duration::seconds(2)),
                Activity::Retry => Duration::SECOND,
                Activity::Idle if elapsed <= replica.running_since + GRACE => Duration::seconds(10),
                Activity::Idle if elapsed < self.busy_until || phase == Some(Phase::Publishing) => {
                    within(rng, lifetimes.propagation() / 3)
                }
                Activity::Idle => within(rng, lifetimes.leaf() / 30),
            };
        // While the state is lost, replicas with a copy keep running: without them the key is gone.
        if phase.is_none() || self.armed.is_none_or(|armed| elapsed <= armed) {
            return;
        }
        // Most faults that matter happen in the middle of a pass.
        let odds = if activity == Activity::InPass {
            40
        } else {
            400
        };
        match rng.u32(..odds) {
            0 => {
                replica.next_step = elapsed + within(rng, self.parameters.suspension_max);
                replica.suspended = true;
                self.report.suspensions += 1;
            }
            1 => {
                replica.process = None;
                *replica.activity.borrow_mut() = Activity::Retry;
                replica.next_step = elapsed + within(rng, lifetimes.leaf() / 10);
                replica.running_since = replica.next_step;
                self.cluster.borrow_mut().served[index] = None;
                self.report.crashes += 1;
            }
            _ => {}
        }
    }

    /// The watches of every running replica report a change within a second.
    fn notify_watches(&mut self) {
        let elapsed = self.cluster.borrow().elapsed;
        for replica in &mut self.replicas {
            if !replica.suspended {
                let soon = elapsed + Duration::SECOND * self.rng.f64();
                replica.next_step = replica.next_step.min(soon);
            }
        }
    }

    /// A fault that all replicas see: failing calls, a clock that jumps, a lost Secret.
    fn inject_fault(&mut self) {
        let lifetimes = self.parameters.lifetimes;
        self.next_fault += lifetimes.leaf() * (0.2 + self.rng.f64());
        let shared = self.cluster.clone();
        let mut cluster = shared.borrow_mut();
        let rng = &mut self.rng;
        cluster.failure_rate = [0, 20, 100][rng.usize(..3)];
        match rng.u8(..5) {
            // Two jumps together stay below the hour by which NotBefore is backdated.
            0 | 1 => {
                cluster.skew = Duration::seconds(rng.i64(-25 * 60..25 * 60));
                if lifetimes.leaf() < Duration::hours(10) {
                    cluster.skew = Duration::ZERO;
                }
                self.report.jumps += 1;
            }
            2 | 3 => {
                let index = rng.usize(..self.parameters.replicas);
                cluster.wall_clocks[index] = Duration::days(rng.i64(-2_000..2_000));
                self.report.jumps += 1;
            }
            _ => {
                let has_copy = |replica: &Replica| {
                    !replica.suspended && *replica.activity.borrow() == Activity::Idle
                };
                let is_intact = matches!(cluster.stored, Some(StoredState::Intact(_)));
                if is_intact && self.replicas.iter().any(has_copy) {
                    cluster.lose(rng);
                    self.report.losses += 1;
                }
            }
        }
        drop(cluster);
        self.notify_watches();
        self.check_invariant();
    }
}
