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
    /// Nothing was done: this replica lost the Lease, or the connection was closed, before it was this call's turn.
    #[error("{0}")]
    Cancelled(String),
    /// Nothing was done: what was observed before is no longer so.
    #[error("{0}")]
    Changed(String),
    /// This program cannot talk to libvirt at all.
    #[error("{0}")]
    Unavailable(String),
}

/// VIR_FROM_RPC: the connection itself.
const RPC: u32 = 7;
/// VIR_FROM_REMOTE: the client's end of it.
const REMOTE: u32 = 13;

impl AccessError {
    /// What an error of libvirt is: by its code (virErrorNumber) and the part it is from (virErrorDomain).
    pub(super) fn of(code: u32, domain: u32, message: String) -> Self {
        match (code, domain) {
            // No domain, network, pool, volume, metadata. Nothing else says that something is not there: to
            // take another error for it makes things twice, or deletes them.
            (42 | 43 | 49 | 50 | 80, _) => Self::Absent(message),
            // Whatever the protocol or its client says. A failed system call (38) is the connection's end if it
            // is theirs; else it is the host's answer: a bridge or a file that it does not have.
            (_, RPC | REMOTE) | (5 | 6 | 39 | 40, _) => Self::Disconnected(message),
            // Somebody else's job on the domain did not end in time.
            (68, _) => Self::Busy(message),
            // It does not answer, answers something else, not in time, or with an error.
            (86 | 98 | 110 | 111, _) => Self::Agent(message),
            // Not this driver, not these arguments, not this kind of operation.
            (3 | 74 | 84, _) => Self::Unsupported(message),
            _ => Self::Refused(message),
        }
    }

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
            Self::Cancelled(_) => "Cancelled",
            Self::Changed(_) => "Changed",
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

    /// Whether nothing can be known of the host, and not only of what the call was about.
    pub(crate) fn is_of_host(&self) -> bool {
        self.unknown() || matches!(self, Self::Unavailable(_) | Self::Cancelled(_))
    }

    /// Whether the call may have taken effect all the same.
    pub(crate) fn unknown(&self) -> bool {
        matches!(self, Self::Disconnected(_) | Self::TimedOut(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: u32, domain: u32) -> &'static str {
        AccessError::of(code, domain, "text".into()).kind()
    }

    #[test]
    fn only_five_codes_say_that_something_is_not_there() {
        let absent: Vec<u32> = (0..150).filter(|it| kind(*it, 10) == "Absent").collect();
        assert_eq!(absent, [42, 43, 49, 50, 80]);
    }

    /// As seen of libvirt 9.0.
    #[test]
    fn the_kind_of_an_error() {
        const QEMU: u32 = 10;
        const STORAGE: u32 = 18;
        for (code, domain, expected) in [
            (38, RPC, "Disconnected"),
            (38, 0, "Refused"),
            (1, RPC, "Disconnected"),
            (39, REMOTE, "Disconnected"),
            (38, STORAGE, "Refused"),
            (1, QEMU, "Refused"),
            (55, QEMU, "Refused"),
            (68, QEMU, "Busy"),
            (86, QEMU, "Agent"),
            (3, QEMU, "Unsupported"),
        ] {
            assert_eq!(kind(code, domain), expected, "{code} of {domain}");
        }
    }
}
