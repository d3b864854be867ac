//! What a backend is: it observes, plans in actions of its own, and carries them out.

use std::fmt;
use std::future::Future;

use crate::client::{ApiError, Remedy};
use crate::deletion::Teardown;
use crate::machine::Machine;
use crate::plan::{Now, Plan, Refusal, Subject};
use crate::preconditions::Effect;
use crate::writes::Written;

/// One of the ways to run a Machine. [`reconcile`](crate::reconcile) is the same for all of them.
pub trait Backend: Send + Sync + 'static {
    /// Everything that is known and matters to one Machine.
    type Observed: Send + Sync;
    /// One thing to do; its text is a line of the log.
    type Action: Act;

    /// Whether every change of what [`observe`](Self::observe) returns comes as an event. Then a Machine that is
    /// ready is not observed again until one comes.
    const IS_EVENT_DRIVEN: bool;

    /// Observes everything that matters to a Machine.
    fn observe(
        &self,
        machine: &Machine,
    ) -> impl Future<Output = Result<Self::Observed, Failed>> + Send;

    /// What to do about a Machine that is not under deletion. Pure. `refusal`: what the last attempt at this plan
    /// was refused; the status says so.
    fn plan(
        machine: &Machine,
        observed: &Self::Observed,
        refusal: Option<&Refusal>,
        now: Now,
    ) -> Plan<Self::Action>;

    /// How far the deletion of a Machine is. Pure. Reads what was made, not the block: a Machine can always be
    /// deleted, however broken its spec is.
    fn teardown(machine: &Machine, observed: &Self::Observed, now: Now) -> Teardown<Self::Action>;

    /// Carries out one action after checking its preconditions; returns what it wrote at the API server.
    fn apply(
        &self,
        machine: &Machine,
        action: &Self::Action,
    ) -> impl Future<Output = Result<Option<Written>, Failed>> + Send;

    /// Whether the backend's caches have seen an object that was written.
    fn has_seen(&self, namespace: &str, written: &Written) -> bool;
}

/// An action of a plan.
pub trait Act: fmt::Display + Clone + Send + Sync {
    /// What it is about, and so which condition reports its failure.
    fn subject(&self) -> Subject;

    /// What it destroys, overwrites or starts; `None`: nothing. [`Backend::apply`] checks the preconditions of the
    /// effect right before it.
    fn effect(&self) -> Option<Effect>;

    /// Whether it only switches the guest on or off, which nothing that was refused holds up.
    fn is_switch(&self) -> bool;
}

/// An observation or an action that failed.
#[derive(Debug)]
pub struct Failed {
    /// What can be done about it.
    pub remedy: Remedy,
    /// For a person: what failed, and what to do.
    pub message: String,
}

impl Failed {
    /// A failure with this remedy.
    pub fn new(remedy: Remedy, message: String) -> Self {
        Self { remedy, message }
    }
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self {
            remedy: error.remedy(),
            message: error.message(),
        }
    }
}
