//! The way of a reconcile.
//!
//! ```text
//! what was written last has arrived? ─ no ─▶ wait for it
//!        │ yes
//!        ▼
//!    observe (caches) ─▶ plan (pure) ─▶ apply, in order ─▶ status, if it says anything new
//!                                          │ refused
//!                                          ▼
//!                          look again │ try again later │ tell what to mend
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::api::choice::Choice as _;
use kube::runtime::controller::Action as Next;
use time::OffsetDateTime;
use tracing::Instrument as _;

use crate::api::{Guarded, Remedy};
use crate::backend::{Act as _, Backend, Failed};
use crate::events::Events;
use crate::kubevirt::KubeVirt;
use crate::kubevirt::apply::write_status;
use crate::kubevirt::observe::has_arrived;
use crate::libvirt::Libvirt;
use crate::libvirt::hosts::Hosts;
use crate::machine::{Machine, Stored};
use crate::memory::{Memory, jittered};
use crate::metrics;
use crate::objects::Meta as _;
use crate::plan::{Now, Plan, Refusal, Subject};
use crate::watch::{Caches, Triggers};

/// The caches are behind: they are there again a moment later.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What every pass needs.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) caches: Caches,
    pub(crate) api: Guarded,
    pub(crate) hosts: Hosts,
    pub(crate) triggers: Triggers,
    pub(crate) events: Events,
    pub(crate) memory: Arc<Memory>,
    /// Uid of the cluster.
    pub(crate) cluster: Arc<str>,
    /// When to look at a Machine that nothing happens to.
    pub(crate) interval: Duration,
}

/// One pass over a Machine; tells when to look again.
pub(crate) async fn reconcile(stored: Arc<Stored>, context: Arc<Context>) -> Next {
    let span = tracing::info_span!(
        "reconcile",
        controller = "Machine",
        machine = stored.name(),
        namespace = stored.namespace(),
        phase = stored.phase.map_or("", |phase| phase.as_str()),
    );
    async move {
        if !context.api.may_write() {
            // Another replica acts. Every Machine is looked at when this one does again.
            return Next::requeue(jittered(context.interval));
        }
        let start = Instant::now();
        let uid = stored.uid();
        let (caches, namespace) = (&context.caches, stored.namespace());
        let arrived = |written: &[_]| has_arrived(caches, namespace, written);
        if let Some(wait) = context.memory.awaited(uid, arrived) {
            return Next::requeue(wait);
        }
        let next = match pass(&stored.open(), &context).await {
            Ok(again) => {
                context.memory.succeeded(uid);
                again.unwrap_or_else(|| jittered(context.interval))
            }
            Err(failure) => failure.wait(&context, uid),
        };
        metrics::reconciled(start.elapsed());
        Next::requeue(next)
    }
    .instrument(span)
    .await
}

/// A pass that did not come to its end.
#[derive(Debug)]
struct Failure {
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

    /// How long to wait before the next pass.
    fn wait(&self, context: &Context, uid: &str) -> Duration {
        let error = &self.error.told;
        if self.error.remedy == Remedy::LookAgain {
            tracing::debug!(%error, "looking again");
            return jittered(LOOK_AGAIN);
        }
        let pause = context.memory.failed(uid);
        tracing::warn!(%error, subject = ?self.subject, "the pass failed, trying again");
        pause
    }
}

/// One pass on the backend that runs the Machine.
async fn pass(machine: &Machine, context: &Context) -> Result<Option<Duration>, Failure> {
    if machine.is_on_libvirt() {
        let backend = Libvirt {
            caches: &context.caches,
            hosts: &context.hosts,
            api: &context.api,
            triggers: &context.triggers,
            cluster: &context.cluster,
        };
        return pass_on(&backend, machine, context).await;
    }
    let backend = KubeVirt {
        caches: &context.caches,
        api: &context.api,
        cluster: &context.cluster,
    };
    pass_on(&backend, machine, context).await
}

async fn pass_on<B: Backend>(
    backend: &B,
    machine: &Machine,
    context: &Context,
) -> Result<Option<Duration>, Failure> {
    let now = Now(OffsetDateTime::now_utc());
    let observed = backend.observe(machine).await;
    let observed = observed.map_err(|error| Failure::new(Subject::Guest, error))?;
    let wished = backend.plan(machine, &observed, now);
    match carry_out(backend, machine, &wished.actions, context).await {
        Ok(()) => {
            write(machine, &wished, context).await?;
            Ok(wished.again)
        }
        Err(failure) => {
            if failure.error.remedy == Remedy::Mend || context.memory.is_failing(machine.uid()) {
                metrics::refused();
                let refusal = Refusal {
                    subject: failure.subject,
                    message: failure.error.told.clone(),
                };
                let observed = backend.refused(observed, refusal);
                let told = backend.plan(machine, &observed, now);
                // What was refused holds up the rest, but not the switch.
                let switch = |action: &&B::Action| action.is_switch();
                let power: Vec<_> = told.actions.iter().filter(switch).cloned().collect();
                carry_out(backend, machine, &power, context).await?;
                write(machine, &told, context).await?;
            }
            Err(failure)
        }
    }
}

/// Carries out the actions in order, up to the first that fails.
async fn carry_out<B: Backend>(
    backend: &B,
    machine: &Machine,
    actions: &[B::Action],
    context: &Context,
) -> Result<(), Failure> {
    for action in actions {
        let written = backend.apply(machine, action).await;
        let written = written.map_err(|error| Failure::new(action.subject(), error))?;
        tracing::info!("{action}");
        context
            .memory
            .wrote(machine.uid(), written.into_iter().collect());
    }
    Ok(())
}

/// Writes the status, if the plan has one, and tells of the transition.
async fn write<A>(machine: &Machine, plan: &Plan<A>, context: &Context) -> Result<(), Failure> {
    let Some(status) = &plan.status else {
        return Ok(());
    };
    let written = write_status(&context.api, machine, status).await;
    let written = written.map_err(|error| Failure::new(Subject::Machine, error))?;
    context.memory.wrote(machine.uid(), vec![written]);
    if status.phase != machine.status.phase
        && let Some(phase) = status.phase
    {
        tracing::info!(phase = phase.as_str(), "the Machine is {phase} now");
    }
    metrics::transition(machine, status, &context.caches);
    context.events.transition(machine, status);
    Ok(())
}
