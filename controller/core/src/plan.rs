//! The plan of a pass: what every backend returns and `reconcile` carries out.

use std::fmt;
use std::time::Duration;

use common::api::status::MachineStatus;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What to do about a Machine in this pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<A> {
    /// A change of the Machine's finalizer: added before the first action, removed after the last.
    pub finalizer: Option<FinalizerChange>,
    /// Carried out in this order, up to the first one that fails. What is done after that:
    /// [`Act::stops_or_resets`](crate::backend::Act::stops_or_resets).
    pub actions: Vec<A>,
    /// The status to write after the actions; `None`: it has not changed.
    pub status: Option<MachineStatus>,
    /// Time until the next pass, if shorter than the reconcile interval.
    pub requeue_after: Option<Duration>,
}

impl<A> Default for Plan<A> {
    fn default() -> Self {
        Self {
            finalizer: None,
            actions: Vec::new(),
            status: None,
            requeue_after: None,
        }
    }
}

impl<A> Plan<A> {
    /// Whether the plan changes nothing but the status.
    pub fn only_reports(&self) -> bool {
        self.finalizer.is_none() && self.actions.is_empty()
    }

    /// The changes of the plan, in order.
    pub fn steps(&self) -> impl Iterator<Item = Step<'_, A>> {
        let add = (self.finalizer == Some(FinalizerChange::Add)).then_some(Step::AddFinalizer);
        let remove =
            (self.finalizer == Some(FinalizerChange::Remove)).then_some(Step::RemoveFinalizer);
        add.into_iter()
            .chain(self.actions.iter().map(Step::Act))
            .chain(remove)
    }
}

/// One change of a plan; its text is a line of the log.
#[derive(Debug)]
pub enum Step<'a, A> {
    /// Add the finalizer to the Machine.
    AddFinalizer,
    /// An action of the backend.
    Act(&'a A),
    /// Remove the finalizer from the Machine.
    RemoveFinalizer,
}

impl<A: fmt::Display> fmt::Display for Step<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddFinalizer => f.write_str("added the finalizer"),
            Self::Act(action) => action.fmt(f),
            Self::RemoveFinalizer => f.write_str("removed the finalizer"),
        }
    }
}

/// A change of the finalizer of a Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalizerChange {
    /// Objects are about to be created that have to be removed with the Machine.
    Add,
    /// Nothing of the Machine is left to remove.
    Remove,
}

/// An action that failed, and that only a person can repair or that failed several times in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Part of the Machine that the action is about.
    pub subject: Subject,
    /// Reason of the condition that reports it; `None`: that of the part.
    pub reason: Option<&'static str>,
    /// Message of the API server or the host.
    pub message: String,
}

/// Part of a Machine that an action is about; selects the condition that reports its failure: see
/// [`Reasons::fault`](crate::refusal::Reasons::fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The Machine object: `Ready`.
    Machine,
    /// Networks and network cards: `NetworkReady`.
    Network,
    /// Volumes and images: `StorageReady`.
    Storage,
    /// VirtualMachine or domain: `VirtualMachineReady`.
    Guest,
    /// The screen of a guest: `DisplayReady`.
    Display,
    /// A requested migration: `status.lastMigration`.
    Migration,
    /// A requested reset: `status.lastReset`.
    Reset,
}

/// The time of a pass, passed as a parameter so that planning is pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now(pub OffsetDateTime);

impl Now {
    /// RFC 3339 with whole seconds, as Kubernetes writes times.
    pub fn text(self) -> String {
        let whole = self.0.replace_nanosecond(0).unwrap_or(self.0);
        // Formatting fails only outside the years 0 to 9999.
        whole.format(&Rfc3339).unwrap_or_default()
    }

    /// Time left until `pause` has passed since `since` (RFC 3339); `None`: it has passed, or `since` is no time in the
    /// past.
    pub fn until(self, since: Option<&str>, pause: Duration) -> Option<Duration> {
        let since = OffsetDateTime::parse(since?, &Rfc3339).ok()?;
        let passed = Duration::try_from(self.0 - since).ok()?;
        pause.checked_sub(passed).filter(|left| !left.is_zero())
    }
}
