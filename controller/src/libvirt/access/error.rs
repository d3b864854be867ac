//! Why a call did not do what it should.

/// Each has libvirt's own message. Which kind decides what may follow: only of what is `Absent` may one
/// conclude that it is not there, and after `TimedOut` and `Disconnected` one has to look again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessError {
    /// There is no such domain, network, pool, volume or element.
    #[error("{0}")]
    Absent(String),
    /// The connection is gone, or there was none. Whether the call took effect is not known.
    #[error("{0}")]
    Disconnected(String),
    /// No answer in time. Whether the call took effect, or still will, is not known.
    #[error("{0}")]
    TimedOut(String),
    /// Something else is under way; this call did nothing.
    #[error("{0}")]
    Busy(String),
    /// The guest's agent does not answer, or says no.
    #[error("{0}")]
    Agent(String),
    /// This host cannot do that.
    #[error("{0}")]
    Unsupported(String),
    /// The host says no.
    #[error("{0}")]
    Refused(String),
    /// This program cannot talk to libvirt at all.
    #[error("{0}")]
    Unavailable(String),
}

impl AccessError {
    /// The kind, as a label.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Absent(_) => "Absent",
            Self::Disconnected(_) => "Disconnected",
            Self::TimedOut(_) => "TimedOut",
            Self::Busy(_) => "Busy",
            Self::Agent(_) => "Agent",
            Self::Unsupported(_) => "Unsupported",
            Self::Refused(_) => "Refused",
            Self::Unavailable(_) => "Unavailable",
        }
    }

    /// `Ok(None)` of what is not there.
    pub(crate) fn absent<T>(self) -> Result<Option<T>, Self> {
        match self {
            Self::Absent(_) => Ok(None),
            other => Err(other),
        }
    }

    /// Whether the call may have taken effect all the same.
    pub(crate) fn unknown(&self) -> bool {
        matches!(self, Self::Disconnected(_) | Self::TimedOut(_))
    }
}
