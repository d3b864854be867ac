//! Lets replicas live, and looks after every single step.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use certs::{Keeper, Lives, Outcome, Phase, Reading};
use fastrand::Rng;
use time::Duration;

use crate::cluster::{Cluster, Mutation, Shared, Way, step};
use crate::model::Maker;

/// How long a replica may take that has just started or woken up.
const PATIENCE: Duration = Duration::minutes(1);

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) replicas: usize,
    pub(crate) seed: u64,
    pub(crate) span: Duration,
    pub(crate) lives: Lives,
    /// The longest that a replica sleeps.
    pub(crate) sleep: Duration,
    pub(crate) mutation: Mutation,
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    pub(crate) switches: u32,
    pub(crate) crashes: u32,
    pub(crate) sleeps: u32,
    pub(crate) jumps: u32,
    pub(crate) losses: u32,
    pub(crate) steps: u64,
    pub(crate) checks: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} steps, {} pairs of bundle and leaf, {} rotations, {} crashes, {} sleeps, \
             {} clock jumps, {} losses of the Secret, {} violations",
            self.steps,
            self.checks,
            self.switches,
            self.crashes,
            self.sleeps,
            self.jumps,
            self.losses,
            self.violations.len()
        )
    }
}

/// Where a replica is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the middle of a pass.
    Work,
    /// A pass has ended well.
    Rest,
    /// A pass is to be made again soon.
    Retry,
}

struct Replica {
    life: Option<Pin<Box<dyn Future<Output = ()>>>>,
    at: Rc<RefCell<At>>,
    wake: Duration,
    asleep: bool,
    awake_since: Duration,
}

struct Run<C: Maker> {
    setting: Setting,
    cluster: Shared<C>,
    replicas: Vec<Replica>,
    rng: Rng,
    report: Report,
    /// Since when API servers have a bundle at all.
    armed: Option<Duration>,
    /// When the state was last written.
    busy_until: Duration,
    next_fault: Duration,
    sound: Vec<(Vec<C::Certificate>, C::Leaf)>,
}

/// Runs it.
pub(crate) fn run<C: Maker>(setting: &Setting) -> Report {
    let mut cluster = Cluster::<C>::new(setting.replicas, setting.lives, setting.mutation);
    if setting.mutation == Mutation::NoPropagation {
        let lives = setting.lives;
        cluster.lives =
            Lives::new(lives.authority(), lives.leaf(), Duration::milliseconds(1)).unwrap();
    }
    let mut run = Run {
        setting: *setting,
        cluster: Rc::new(RefCell::new(cluster)),
        replicas: Vec::new(),
        rng: Rng::with_seed(setting.seed),
        report: Report::default(),
        armed: None,
        busy_until: Duration::ZERO,
        next_fault: Duration::days(2).min(setting.lives.authority() / 4),
        sound: Vec::new(),
    };
    for _ in 0..setting.replicas {
        run.replicas.push(Replica {
            life: None,
            at: Rc::new(RefCell::new(At::Retry)),
            wake: Duration::ZERO,
            asleep: false,
            awake_since: Duration::ZERO,
        });
    }
    while run.advance() {}
    run.report.switches = run.cluster.borrow().switches;
    run.report
}

impl<C: Maker> Run<C> {
    /// The next step of whoever is next; `false`: the time is over.
    fn advance(&mut self) -> bool {
        let next = (0..self.replicas.len()).min_by_key(|index| self.replicas[*index].wake);
        let Some(index) = next else { return false };
        let wake = self.replicas[index].wake;
        if self.next_fault < wake {
            let fault = self.next_fault;
            self.elapse(fault);
            self.fault();
            return true;
        }
        self.elapse(wake);
        let over = self.cluster.borrow().elapsed > self.setting.span;
        if over || !self.report.violations.is_empty() {
            return false;
        }
        if std::mem::take(&mut self.replicas[index].asleep) {
            self.replicas[index].awake_since = wake;
        }
        let version = self.cluster.borrow().version;
        self.live(index);
        self.report.steps += 1;
        let after = self.cluster.borrow().version;
        if after != version {
            let until = self.cluster.borrow().elapsed + 2 * self.setting.lives.propagation();
            self.busy_until = until;
            self.rouse();
        }
        self.check();
        self.plan(index);
        true
    }

    fn elapse(&mut self, until: Duration) {
        let mut cluster = self.cluster.borrow_mut();
        cluster.elapsed = cluster.elapsed.max(until);
    }

    fn live(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let life = replica.life.get_or_insert_with(|| {
            let mut way = Way {
                cluster: self.cluster.clone(),
                index,
                rng: self.rng.fork(),
                born: self.cluster.borrow().elapsed,
            };
            let (at, lives) = (replica.at.clone(), self.cluster.borrow().lives);
            Box::pin(async move {
                let mut keeper = Keeper::new(lives);
                loop {
                    *at.borrow_mut() = At::Work;
                    *at.borrow_mut() = match keeper.pass(&mut way).await {
                        Ok(Outcome::Done) => At::Rest,
                        Ok(Outcome::Wait) | Err(_) => At::Retry,
                    };
                    step().await;
                }
            })
        });
        let done = life.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(done.is_pending());
        if *self.replicas[index].at.borrow() == At::Rest && self.is_armed() {
            self.holds(index);
        }
    }

    /// A replica that has looked around has a leaf that holds; one that has just come may have
    /// slept in the middle of a pass, or have to wait for others.
    fn holds(&mut self, index: usize) {
        let cluster = self.cluster.borrow();
        if cluster.elapsed < self.replicas[index].awake_since + PATIENCE {
            return;
        }
        let leaf = cluster.served[index].as_ref();
        let holds = leaf.is_some_and(|it| C::tenure(it).validity.contains(cluster.now()));
        if !holds {
            let told = format!(
                "{}: replica {index} has no leaf that holds, {:?}; {:?}",
                cluster.elapsed,
                leaf.map(C::tenure),
                cluster.lately(),
            );
            self.report.violations.push(told);
        }
    }

    fn is_armed(&mut self) -> bool {
        let cluster = self.cluster.borrow();
        let mut configurations = cluster.configurations.iter();
        let published = configurations.all(|it| !it.bundle.is_empty());
        // The first bundle takes its time; but not for ever.
        if self.armed.is_none() && (published || cluster.elapsed > self.setting.lives.leaf()) {
            self.armed = Some(cluster.elapsed + cluster.propagation + Duration::SECOND);
        }
        self.armed.is_some_and(|armed| cluster.elapsed >= armed)
    }

    /// The law.
    fn check(&mut self) {
        if !self.is_armed() {
            return;
        }
        let cluster = self.cluster.borrow();
        let now = cluster.now();
        for (index, leaf) in cluster.served.iter().enumerate() {
            let Some(leaf) = leaf else { continue };
            // What has ended is served to nobody; that each replica has one that holds is checked elsewhere.
            if !C::tenure(leaf).validity.contains(now) {
                continue;
            }
            for (configuration, bundle) in cluster.held() {
                self.report.checks += 1;
                let tenure = C::tenure(leaf);
                let known = |(it, of): &(Vec<_>, C::Leaf)| {
                    C::tenure(of).issuer == tenure.issuer && it == bundle && C::tenure(of) == tenure
                };
                if self.sound.iter().any(known) {
                    continue;
                }
                if C::accepts(bundle, leaf, now) {
                    self.sound.push((bundle.to_vec(), leaf.clone()));
                    if self.sound.len() > 4 * self.setting.replicas {
                        self.sound.remove(0);
                    }
                } else {
                    self.report.violations.push(format!(
                        "{}: an API server refuses the leaf of replica {index}, {tenure:?}, \
                         for configuration {configuration} with {bundle:?}; {:?}",
                        cluster.elapsed,
                        cluster.lately(),
                    ));
                }
            }
        }
    }

    /// When the replica's next step is, and whether it lives until then.
    fn plan(&mut self, index: usize) {
        let (elapsed, whole, phase) = {
            let cluster = self.cluster.borrow();
            let phase = match &cluster.stored {
                Some(Reading::Whole(state)) => Some(state.phase()),
                _ => None,
            };
            (cluster.elapsed, phase.is_some(), phase)
        };
        let lives = self.setting.lives;
        let rng = &mut self.rng;
        let at = *self.replicas[index].at.borrow();
        let replica = &mut self.replicas[index];
        let short = |rng: &mut Rng, most: Duration| most * rng.f64();
        replica.wake = elapsed
            + match at {
                At::Work => short(rng, Duration::seconds(2)),
                At::Retry => Duration::SECOND,
                At::Rest if elapsed <= replica.awake_since + PATIENCE => Duration::seconds(10),
                At::Rest if elapsed < self.busy_until || phase == Some(Phase::Publishing) => {
                    short(rng, lives.propagation() / 3)
                }
                At::Rest => short(rng, lives.leaf() / 30),
            };
        // Those who know a lost state stay until it is there again; without them the key is gone.
        if !whole || self.armed.is_none_or(|armed| elapsed <= armed) {
            return;
        }
        // Much of what goes wrong goes wrong in the middle of things.
        let odds = if at == At::Work { 40 } else { 400 };
        match rng.u32(..odds) {
            0 => {
                replica.wake = elapsed + short(rng, self.setting.sleep);
                replica.asleep = true;
                self.report.sleeps += 1;
            }
            1 => {
                replica.life = None;
                *replica.at.borrow_mut() = At::Retry;
                replica.wake = elapsed + short(rng, lives.leaf() / 10);
                replica.awake_since = replica.wake;
                self.cluster.borrow_mut().served[index] = None;
                self.report.crashes += 1;
            }
            _ => {}
        }
    }

    /// Watches tell whoever is awake.
    fn rouse(&mut self) {
        let elapsed = self.cluster.borrow().elapsed;
        for replica in &mut self.replicas {
            if !replica.asleep {
                let soon = elapsed + Duration::SECOND * self.rng.f64();
                replica.wake = replica.wake.min(soon);
            }
        }
    }

    /// Something happens to all of them.
    fn fault(&mut self) {
        let lives = self.setting.lives;
        self.next_fault += lives.leaf() * (0.2 + self.rng.f64());
        let shared = self.cluster.clone();
        let mut cluster = shared.borrow_mut();
        let rng = &mut self.rng;
        cluster.trouble = [0, 20, 100][rng.usize(..3)];
        match rng.u8(..5) {
            // Together less than what NotBefore lies back.
            0 | 1 => {
                cluster.skew = Duration::seconds(rng.i64(-25 * 60..25 * 60));
                if lives.leaf() < Duration::hours(10) {
                    cluster.skew = Duration::ZERO;
                }
                self.report.jumps += 1;
            }
            2 | 3 => {
                let index = rng.usize(..self.setting.replicas);
                cluster.walls[index] = Duration::days(rng.i64(-2_000..2_000));
                self.report.jumps += 1;
            }
            _ => {
                let awake = |replica: &Replica| !replica.asleep && *replica.at.borrow() == At::Rest;
                let whole = matches!(cluster.stored, Some(Reading::Whole(_)));
                if whole && self.replicas.iter().any(awake) {
                    cluster.lose(rng);
                    self.report.losses += 1;
                }
            }
        }
        drop(cluster);
        self.rouse();
        self.check();
    }
}
