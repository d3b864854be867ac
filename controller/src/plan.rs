//! What a plan is, whatever runs the Machine.

use std::time::Duration;

use common::api::status::MachineStatus;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What to do about a Machine now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan<A> {
    /// In order; the first failure ends the plan.
    pub(crate) actions: Vec<A>,
    /// The status to write afterwards, if it differs in more than times.
    pub(crate) status: Option<MachineStatus>,
    /// When to look again, if sooner than usual.
    pub(crate) again: Option<Duration>,
}

impl<A> Default for Plan<A> {
    fn default() -> Self {
        Self {
            actions: Vec::new(),
            status: None,
            again: None,
        }
    }
}

/// An action that the API server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// What was refused.
    pub(crate) subject: Subject,
    /// What the API server said.
    pub(crate) message: String,
}

/// What an action is about, and so which condition tells of its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Machine,
    Network,
    Storage,
    Guest,
}

/// Now, as a parameter. Kubernetes' times have whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now(pub(crate) OffsetDateTime);

impl Now {
    /// As Kubernetes writes it.
    pub(crate) fn text(self) -> String {
        let whole = self.0.replace_nanosecond(0).unwrap_or(self.0);
        // Fails only outside the years 0 to 9999.
        whole.format(&Rfc3339).unwrap_or_default()
    }

    /// What is left until `pause` has passed since a time; `None` when it has, or there is no time.
    pub(crate) fn until(self, since: Option<&str>, pause: Duration) -> Option<Duration> {
        let since = OffsetDateTime::parse(since?, &Rfc3339).ok()?;
        let passed = Duration::try_from(self.0 - since).ok()?;
        pause.checked_sub(passed).filter(|left| !left.is_zero())
    }
}
