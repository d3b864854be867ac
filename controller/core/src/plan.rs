//! What a plan is, whatever runs the Machine.

use std::fmt;
use std::time::Duration;

use common::api::status::MachineStatus;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What to do about a Machine now.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<A> {
    /// A change of the finalizer: it is added before the first action, and removed after the last.
    pub finalizer: Option<FinalizerChange>,
    /// In order; the first failure ends the plan.
    pub actions: Vec<A>,
    /// The status to write afterwards, if it differs in more than times.
    pub status: Option<MachineStatus>,
    /// When to look again, if sooner than usual.
    pub again: Option<Duration>,
}

impl<A> Default for Plan<A> {
    fn default() -> Self {
        Self {
            finalizer: None,
            actions: Vec::new(),
            status: None,
            again: None,
        }
    }
}

impl<A> Plan<A> {
    /// Whether there is nothing to do, now or soon.
    pub fn is_nothing(&self) -> bool {
        self.finalizer.is_none()
            && self.actions.is_empty()
            && self.status.is_none()
            && self.again.is_none()
    }
}

impl<A> Plan<A> {
    /// The changes of a plan, in order.
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
    /// The finalizer is added to the Machine.
    AddFinalizer,
    /// The backend acts.
    Act(&'a A),
    /// The finalizer is removed from the Machine.
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

/// What becomes of the finalizer of a Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalizerChange {
    /// Something is about to be made that has to be removed again.
    Add,
    /// Nothing is left to remove.
    Remove,
}

/// An action that the API server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was refused.
    pub subject: Subject,
    /// What the API server said.
    pub message: String,
}

/// What an action is about, and so which condition tells of its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Machine,
    Network,
    Storage,
    Guest,
}

/// Now, as a parameter. Kubernetes' times have whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now(pub OffsetDateTime);

impl Now {
    /// As Kubernetes writes it.
    pub fn text(self) -> String {
        let whole = self.0.replace_nanosecond(0).unwrap_or(self.0);
        // Fails only outside the years 0 to 9999.
        whole.format(&Rfc3339).unwrap_or_default()
    }

    /// What is left until `pause` has passed since a time; `None` when it has, or there is no time.
    pub fn until(self, since: Option<&str>, pause: Duration) -> Option<Duration> {
        let since = OffsetDateTime::parse(since?, &Rfc3339).ok()?;
        let passed = Duration::try_from(self.0 - since).ok()?;
        pause.checked_sub(passed).filter(|left| !left.is_zero())
    }
}
