//! The steps of a reconcile, the same for every backend.
//!
//! ```text
//! this replica holds the Lease? ── no ──▶ nothing
//!     │ yes
//! the caches show what was written last? ── no ──▶ wait for that
//!     │ yes
//! the quota of the namespace permits it? ── no, it is new ──▶ write the status alone
//!     │ yes, or only its growth is held
//! lock the IP addresses that it needs
//!     │
//! observe ─▶ plan (pure; under deletion: `deletion`) ─▶ apply, in order ─▶ write the status, if it changed
//!                                                         │ failed
//!                                                         ▼
//!                              observe again │ retry later │ report in the status what a person has to change
//! ```

mod planning;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::api::choice::{Backend as BackendName, Choice as _};
use kube::Resource as _;
use time::OffsetDateTime;
use tokio::time::timeout;
use tracing::Instrument as _;

use crate::backend::{Act as _, Backend, Failed, Growth};
use crate::caches::Caches;
use crate::client::{GuardedClient, Remedy};
use crate::events::Events;
use crate::expectations::{Expectations, jittered};
use crate::machine::{CachedMachine, Machine};
use crate::machine_addresses::{MachineAddress, acquire};
use crate::metrics;
use crate::objects::Meta as _;
use crate::plan::{Now, Plan, Refusal, Step, Subject};
use crate::quota::{Decision, Hold, decide, plan_of_held, report_hold};
use crate::unobserved::plan_of_unobserved;
use crate::writes::{Written, add_finalizer, remove_finalizer, write_status};

use self::planning::keep_last_reset;
pub use self::planning::plan;
pub(crate) use self::planning::{after_refusal, after_second_refusal};

/// Pause before the next pass over a settled Machine. Its changes come as triggers, so this bounds the delay only if a
/// trigger is lost.
const SETTLED_INTERVAL: Duration = Duration::from_mins(10);
/// Pause after a conflict with the caches: they catch up in milliseconds.
const REOBSERVE: Duration = Duration::from_secs(1);

/// An action without a result for this long is reported, if the backend says as what. An API server answers in
/// milliseconds, but it waits up to ten seconds for a webhook, so that a user would see nothing happen.
pub const RESULT_TIMEOUT: Duration = Duration::from_secs(1);

/// What all passes share.
pub struct Context {
    /// Objects of the API server.
    pub caches: Caches,
    /// Writes to the API server.
    pub api: GuardedClient,
    /// Where transitions of a Machine are published.
    pub events: Events,
    /// What is kept of each Machine between two passes.
    pub expectations: Arc<Expectations>,
    /// Time between two passes over a Machine without a trigger, unless the Machine is settled.
    pub interval: Duration,
    /// Uid of the cluster, from which MAC addresses are derived.
    pub cluster: Arc<str>,
    /// The backends that run Machines.
    pub backends: Backends,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// The backends of this program.
#[derive(Clone)]
pub struct Backends {
    /// Runs Machines as VirtualMachines of KubeVirt.
    pub kubevirt: Arc<dyn Runner>,
    /// Runs Machines as domains on libvirt hosts.
    pub libvirt: Arc<dyn Runner>,
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backends")
    }
}

impl Backends {
    fn of(&self, machine: &CachedMachine) -> &dyn Runner {
        match machine.backend() {
            BackendName::Kubevirt => &*self.kubevirt,
            BackendName::Libvirt => &*self.libvirt,
        }
    }
}

/// Answer of [`Runner::pass`].
type Pass<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send + 'a>>;

/// A [`Backend`] without its associated types, so that backends can be trait objects. Every backend implements it.
pub trait Runner: Send + Sync {
    /// See [`Backend::has_seen`].
    fn has_seen(&self, namespace: &str, written: &Written) -> bool;

    /// One pass over a Machine. `hold`: what the quota of its namespace does not permit.
    fn pass<'a>(&'a self, machine: Machine, hold: Option<Hold>, context: &'a Context) -> Pass<'a>;
}

impl<B: Backend> Runner for B {
    fn has_seen(&self, namespace: &str, written: &Written) -> bool {
        Backend::has_seen(self, namespace, written)
    }

    fn pass<'a>(&'a self, machine: Machine, hold: Option<Hold>, context: &'a Context) -> Pass<'a> {
        Box::pin(pass(self, machine, hold, context))
    }
}

/// Result of a pass that did not fail.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Time until the next pass, if shorter than the reconcile interval.
    requeue_after: Option<Duration>,
    /// There was nothing to do but to write the status, and every change triggers a pass: without a trigger another pass
    /// would find the same, whether or not the Machine is ready.
    is_settled: bool,
}

impl Outcome {
    /// Time until the next pass without a trigger.
    fn next(self, interval: Duration) -> Duration {
        match self.requeue_after {
            Some(pause) => pause,
            None if self.is_settled => jittered(interval.max(SETTLED_INTERVAL)),
            None => jittered(interval),
        }
    }
}

/// One pass over a Machine; returns the time until the next one without a trigger.
pub async fn reconcile(cached: Arc<CachedMachine>, context: Arc<Context>) -> Duration {
    let span = tracing::info_span!(
        "reconcile",
        controller = "Machine",
        machine = cached.name(),
        namespace = cached.namespace(),
        phase = cached.phase.map_or("", |phase| phase.as_str()),
    );
    async move {
        if !context.api.may_write() {
            return jittered(context.interval);
        }
        let start = Instant::now();
        let uid = cached.uid();
        let backend = context.backends.of(&cached);
        let seen = |written: &Written| {
            if written.kind == CachedMachine::kind(&()) {
                written.is_seen_in(&*cached)
            } else if written.kind == MachineAddress::kind(&()) {
                let address = context.caches.addresses.get("", &written.name);
                address.is_some_and(|address| written.is_seen_in(&*address))
            } else {
                backend.has_seen(cached.namespace(), written)
            }
        };
        if let Some(wait) = context.expectations.pending(uid, seen) {
            return wait;
        }
        let mut machine = context.caches.for_pass(&cached);
        let hold = match decide(&context.caches, &cached, &machine) {
            Decision::Granted => None,
            Decision::Held(hold) => Some(hold),
            Decision::Unknown => return wait_for_labels(&machine, &context).await,
        };
        if !matches!(hold, Some(Hold::New(_))) {
            let Context { caches, api, .. } = &*context;
            machine.addresses = acquire(&machine, caches, api, &context.expectations).await;
            machine.render_addresses(&context.cluster);
        }
        let retry = machine.addresses.retry();
        let next = match backend.pass(machine, hold, &context).await {
            Ok(outcome) => {
                context.expectations.succeeded(uid);
                let next = outcome.next(context.interval);
                retry.map_or(next, |retry| next.min(jittered(retry)))
            }
            Err(failure) => failure.wait(&context, uid),
        };
        metrics::reconciled(start.elapsed());
        next
    }
    .instrument(span)
    .await
}

/// The labels of the Machine's namespace are not known, so neither is its quota: the status reports it if that lasts.
async fn wait_for_labels(machine: &Machine, context: &Context) -> Duration {
    let message = format!(
        "the watch of namespaces has not reported '{}', whose labels select its MachinePolicies: the log of the controller has the error of the watch; check that the controller may list namespaces",
        machine.namespace()
    );
    let failure = Failure::new(Subject::Guest, Failed::new(Remedy::Reobserve, message));
    let now = Now(OffsetDateTime::now_utc());
    let failure = unobserved(machine, failure, context, now).await;
    failure.wait(context, machine.uid())
}

/// Writes the status of a Machine that could not be observed, if it is to report the failure. Returns why the pass failed.
async fn unobserved(machine: &Machine, failure: Failure, context: &Context, now: Now) -> Failure {
    if !failure.is_reported(machine, context) {
        return failure;
    }
    let planned = plan_of_unobserved::<Infallible>(machine, &failure.refusal(), now);
    let written = write(machine, &planned, context).await;
    written.err().unwrap_or(failure)
}

/// A pass that failed.
#[derive(Debug)]
pub struct Failure {
    /// Part of the Machine that the failed step is about.
    subject: Subject,
    error: Failed,
}

impl Failure {
    fn new(subject: Subject, error: impl Into<Failed>) -> Self {
        Self {
            subject,
            error: error.into(),
        }
    }

    /// The failure as the plan reports it.
    fn refusal(&self) -> Refusal {
        Refusal {
            subject: self.subject,
            reason: self.error.reason,
            message: self.error.message.clone(),
        }
    }

    /// Whether the status reports it: its cause is known, only a person can repair it, or it is the third in a row.
    fn is_reported(&self, machine: &Machine, context: &Context) -> bool {
        self.error.reason.is_some()
            || self.error.remedy == Remedy::UserAction
            || context.expectations.is_failing(machine.uid())
    }

    /// Pause before the next pass.
    fn wait(&self, context: &Context, uid: &str) -> Duration {
        let error = &self.error.message;
        if self.error.remedy == Remedy::Reobserve && !context.expectations.conflicted(uid) {
            tracing::debug!(%error, "observing again");
            return jittered(REOBSERVE);
        }
        let pause = context.expectations.failed(uid);
        tracing::warn!(%error, subject = ?self.subject, "the pass failed, trying again");
        pause
    }
}

async fn pass<B: Backend>(
    backend: &B,
    mut machine: Machine,
    hold: Option<Hold>,
    context: &Context,
) -> Result<Outcome, Failure> {
    let now = Now(OffsetDateTime::now_utc());
    if let Some(Hold::New(fault)) = &hold {
        let planned = plan_of_held::<B::Action>(&machine, fault, now);
        write(&machine, &planned, context).await?;
        // Whatever makes room triggers a pass.
        return Ok(Outcome {
            requeue_after: planned.requeue_after,
            is_settled: true,
        });
    }
    let growth = match &hold {
        Some(Hold::Growth(fault)) => Growth::Held(fault),
        Some(Hold::New(_)) | None => Growth::Permitted,
    };
    let observed = match backend.observe(&machine, growth).await {
        Ok(observed) => observed,
        Err(error) => {
            let failure = Failure::new(Subject::Guest, error);
            return Err(unobserved(&machine, failure, context, now).await);
        }
    };
    let plan = |machine: &Machine, refusal: Option<&Refusal>| {
        let plan = plan::<B>(machine, &observed, refusal, growth, now);
        match growth {
            Growth::Held(fault) => report_hold(machine, plan, fault, now),
            Growth::Permitted => plan,
        }
    };
    let planned = plan(&machine, None);
    match carry_out(backend, &mut machine, &planned, &plan, context).await {
        Ok(()) => {
            write(&machine, &planned, context).await?;
            Ok(Outcome {
                requeue_after: planned.requeue_after,
                is_settled: planned.only_reports() && B::IS_EVENT_DRIVEN,
            })
        }
        Err(failure) => {
            if failure.is_reported(&machine, context) {
                let refusal = failure.refusal();
                let replanned = plan(&machine, Some(&refusal));
                if let Some((_, fault)) = B::REASONS.fault(&refusal) {
                    let new = replanned.status.as_ref();
                    metrics::refused(&machine, new, fault.reason(), B::REASONS.guest);
                }
                let mut replanned = after_refusal(replanned, refusal.subject);
                let switched = carry_out(backend, &mut machine, &replanned, &plan, context).await;
                if let Err(not_switched) = &switched {
                    let refusal = not_switched.refusal();
                    let second = plan(&machine, Some(&refusal));
                    replanned = after_second_refusal(&machine, replanned, second, &refusal);
                }
                write(&machine, &replanned, context).await?;
                switched?;
            }
            Err(failure)
        }
    }
}

/// Carries out a plan in order, up to the first step that fails. `replan` makes the plan whose status reports a refusal.
async fn carry_out<B: Backend>(
    backend: &B,
    machine: &mut Machine,
    plan: &Plan<B::Action>,
    replan: &impl Fn(&Machine, Option<&Refusal>) -> Plan<B::Action>,
    context: &Context,
) -> Result<(), Failure> {
    let failed = |error| Failure::new(Subject::Machine, error);
    for step in plan.steps() {
        let written = match step {
            Step::AddFinalizer => {
                let written = add_finalizer(&context.api, machine).await.map_err(failed)?;
                // The patch named the observed version, so only the finalizer differs from what was observed.
                machine.metadata.resource_version = Some(written.version.clone());
                Some(written)
            }
            Step::RemoveFinalizer => remove_finalizer(&context.api, machine)
                .await
                .map_err(failed)?,
            Step::Act(action) => {
                let mut applied = pin!(backend.apply(machine, action));
                let result = if let Ok(result) = timeout(RESULT_TIMEOUT, &mut applied).await {
                    result
                } else {
                    if let Some(refusal) = B::unanswered(action) {
                        let mut so_far = replan(machine, Some(&refusal));
                        keep_last_reset(machine, &mut so_far);
                        report(machine, &so_far, context).await;
                    }
                    applied.await
                };
                result.map_err(|error| Failure::new(action.subject(), error))?
            }
        };
        tracing::info!("{step}");
        if let Some(written) = written {
            context.expectations.wrote(machine.uid(), written);
        }
    }
    Ok(())
}

/// Writes the status while an action is under way. The status at the end of the pass follows anyway.
async fn report<A>(machine: &Machine, plan: &Plan<A>, context: &Context) {
    if let Err(failure) = write(machine, plan, context).await {
        tracing::debug!(error = failure.error.message, "a wait was not reported");
    }
}

/// Writes the status, if the plan has one, and publishes the transition.
async fn write<A>(machine: &Machine, plan: &Plan<A>, context: &Context) -> Result<(), Failure> {
    let Some(status) = &plan.status else {
        return Ok(());
    };
    let written = write_status(&context.api, machine, status).await;
    let written = written.map_err(|error| Failure::new(Subject::Machine, error))?;
    context.expectations.wrote(machine.uid(), written);
    if status.phase != machine.status.phase
        && let Some(phase) = status.phase
    {
        tracing::info!(phase = phase.as_str(), "the Machine is {phase} now");
    }
    metrics::transition(machine, status, &context.caches);
    context.events.transition(machine, status);
    Ok(())
}

#[cfg(test)]
mod tests;
