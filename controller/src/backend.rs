//! What runs Machines: a backend looks, plans in a vocabulary of its own, and acts.

use std::fmt;
use std::future::Future;

use crate::api::{ApiError, Remedy};
use crate::kubevirt::observe::Written;
use crate::machine::Machine;
use crate::plan::{Now, Plan, Refusal, Subject};

/// One of the ways to run a Machine. The way of a reconcile is the same for all of them.
pub(crate) trait Backend: Sync {
    /// What is known that matters to one Machine.
    type Observed: Send + Sync;
    /// One thing to do; its text is a line of the log.
    type Action: Act;

    /// Looks at everything that matters to a Machine.
    fn observe(
        &self,
        machine: &Machine,
    ) -> impl Future<Output = Result<Self::Observed, Failed>> + Send;

    /// What to do about it. Pure.
    fn plan(&self, machine: &Machine, observed: &Self::Observed, now: Now) -> Plan<Self::Action>;

    /// What is known, and that this was refused.
    fn refused(&self, observed: Self::Observed, refusal: Refusal) -> Self::Observed;

    /// Carries out one action; tells what it wrote at the API server.
    fn apply(
        &self,
        machine: &Machine,
        action: &Self::Action,
    ) -> impl Future<Output = Result<Option<Written>, Failed>> + Send;
}

/// An action of a plan.
pub(crate) trait Act: fmt::Display + Clone + Send + Sync {
    /// What it is about, and so which condition tells of its failure.
    fn subject(&self) -> Subject;

    /// Whether it only switches the guest on or off, which nothing that was refused holds up.
    fn is_switch(&self) -> bool;
}

/// A call that brought nothing.
#[derive(Debug)]
pub(crate) struct Failed {
    /// What can be done about it.
    pub(crate) remedy: Remedy,
    /// For a person.
    pub(crate) told: String,
    /// Whether the API server says that the object is not there.
    pub(crate) gone: bool,
}

impl Failed {
    pub(crate) fn new(remedy: Remedy, told: String) -> Self {
        Self {
            remedy,
            told,
            gone: false,
        }
    }
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self {
            remedy: error.remedy(),
            told: error.told(),
            gone: error.is_not_found(),
        }
    }
}
