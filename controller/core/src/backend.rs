//! The interface of a backend: it observes, plans in actions of its own types, and applies them.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use common::api::normalized::Normalized;
use common::api::status::MachineStatus;

use crate::client::{ApiError, Remedy};
use crate::conditions::Fault;
use crate::deletion::Teardown;
use crate::machine::Machine;
use crate::plan::{Now, Refusal, Subject};
use crate::preconditions::Effect;
use crate::refusal::Reasons;
use crate::writes::Written;

/// Runs Machines on one kind of virtualization. [`reconcile`](crate::reconcile) is the same for all backends.
pub trait Backend: Send + Sync + 'static {
    /// Everything that planning reads of one Machine's surroundings.
    type Observed: Send + Sync;
    /// One change. `Display` is its line in the log.
    type Action: Act;

    /// Whether every change of what [`observe`](Self::observe) returns triggers a pass. If so, a Machine whose
    /// last plan did nothing but report is observed again only after a trigger, or after ten minutes.
    const IS_EVENT_DRIVEN: bool;

    /// Reasons of refused actions that have none of their own.
    const REASONS: Reasons;

    /// Reads what planning needs. Changes nothing. A Machine whose growth is held is not to take what others may have.
    fn observe(
        &self,
        machine: &Machine,
        growth: Growth<'_>,
    ) -> impl Future<Output = Result<Self::Observed, Failed>> + Send;

    /// What to do about a Machine that is not under deletion, so that it is as `block` describes it. Pure. `refusal`: an
    /// action of this very plan that failed; the draft then contains the status that reports it.
    ///
    /// The caller compares the status with the last one, adds the finalizer, and carries nothing out while the Machine is
    /// paused. While the growth is held, the draft contains no action that needs more vCPUs, memory or storage. The guest can be
    /// stopped, started and restarted as it is. The condition `Scheduled` is added to the status by the caller.
    fn plan(
        machine: &Machine,
        block: &Normalized,
        observed: &Self::Observed,
        refusal: Option<&Refusal>,
        growth: Growth<'_>,
        now: Now,
    ) -> Draft<Self::Action>;

    /// The status of a Machine without a block to act on; `unfit` says why. Pure.
    fn report_unfit(
        machine: &Machine,
        observed: &Self::Observed,
        unfit: Fault,
        now: Now,
    ) -> MachineStatus;

    /// How far the deletion of a Machine is. Pure. Reads the objects that exist, not the block: a Machine can be
    /// deleted even if its spec is unreadable.
    fn teardown(machine: &Machine, observed: &Self::Observed, now: Now) -> Teardown<Self::Action>;

    /// Carries out one action after checking its preconditions; returns the object that it wrote at the API server, if
    /// any. Safe to repeat.
    fn apply(
        &self,
        machine: &Machine,
        action: &Self::Action,
    ) -> impl Future<Output = Result<Option<Written>, Failed>> + Send;

    /// What the status reports while an action has been waiting for its result for
    /// [`RESULT_TIMEOUT`](crate::reconcile::RESULT_TIMEOUT); `None`: nothing, the action may take that long.
    fn unanswered(action: &Self::Action) -> Option<Refusal> {
        let _ = action;
        None
    }

    /// Whether the backend's caches contain an object at least in the version that was written.
    fn has_seen(&self, namespace: &str, written: &Written) -> bool;
}

/// What a backend plans for a Machine that is not under deletion. [`plan`](crate::reconcile::plan) makes the plan of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft<A> {
    /// In the order in which they are carried out.
    pub actions: Vec<A>,
    /// The status to report; `None`: one of the actions writes it.
    pub status: Option<MachineStatus>,
    /// Time until the next pass, if shorter than the reconcile interval.
    pub requeue_after: Option<Duration>,
}

impl<A> Default for Draft<A> {
    fn default() -> Self {
        Self {
            actions: Vec::new(),
            status: None,
            requeue_after: None,
        }
    }
}

impl<A> Draft<A> {
    /// What is left of it while the Machine is paused: the status, in which every request is as it was. A status that
    /// reports what the actions will have done is made of the actions that are left.
    #[must_use]
    pub fn unless_paused(self, machine: &Machine) -> Self {
        if !machine.is_paused() {
            return self;
        }
        let old = &machine.status;
        let status = self.status.map(|status| MachineStatus {
            last_restart: old.last_restart.clone(),
            last_migration: old.last_migration.clone(),
            last_reset: old.last_reset.clone(),
            ..status
        });
        Self {
            status,
            ..Self::default()
        }
    }
}

/// A change that a backend plans.
pub trait Act: fmt::Display + Clone + Send + Sync {
    /// Part of the Machine that the action is about.
    fn subject(&self) -> Subject;

    /// What the action destroys, overwrites or starts; `None`: nothing. [`Backend::apply`] checks the preconditions of
    /// the effect right before it.
    fn effect(&self) -> Option<Effect>;

    /// Whether the action does nothing but switch the guest off, reset it, or record that. Such actions need nothing of
    /// what other actions make, and are carried out even if one of those was refused.
    fn stops_or_resets(&self) -> bool;

    /// Whether the action is carried out although another one of the plan, about this part, was refused.
    fn goes_on_after(&self, _refused: Subject) -> bool {
        self.stops_or_resets()
    }
}

/// Whether a plan may give a Machine more vCPUs, memory or storage than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth<'a> {
    /// The plan may give the Machine more.
    Permitted,
    /// The plan may give the Machine no more, for this reason: the Machine keeps what it has.
    Held(&'a Fault),
}

/// An observation or an action that failed.
#[derive(Debug)]
pub struct Failed {
    /// What resolves the failure.
    pub remedy: Remedy,
    /// Reason of the condition that reports it; `None`: that of the part of the Machine. A failure with a reason is
    /// known for what it is, and the status reports it at once.
    pub reason: Option<&'static str>,
    /// For a person: what failed and what to do.
    pub message: String,
}

impl Failed {
    /// A failure with this remedy.
    pub fn new(remedy: Remedy, message: String) -> Self {
        Self {
            remedy,
            reason: None,
            message,
        }
    }
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::new(error.remedy(), error.message())
    }
}
