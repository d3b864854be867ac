//! Why a call failed.

/// The answer of a call to a host.
pub(crate) type Result<T, E = AccessError> = std::result::Result<T, E>;

/// Each has libvirt's own message. The kind decides what may follow: only `Absent` means that an object is not
/// there, and after `TimedOut` and `Disconnected` the state has to be read again.
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
    /// Another operation is under way; this call had no effect.
    #[error("{0}")]
    Busy(String),
    /// The guest's agent does not answer, or returns an error.
    #[error("{0}")]
    Agent(String),
    /// This host cannot do that.
    #[error("{0}")]
    Unsupported(String),
    /// The host rejected the call.
    #[error("{0}")]
    Refused(String),
    /// Nothing was done: this replica lost the Lease, or the connection was closed, before this call began.
    #[error("{0}")]
    Cancelled(String),
    /// Nothing was done: the state has changed since it was observed.
    #[error("{0}")]
    Changed(String),
    /// Nothing was done: a pool has no room for what the call would make.
    #[error("{0}")]
    NoRoom(String),
    /// This program cannot use libvirt at all.
    #[error("{0}")]
    Unavailable(String),
}

/// VIR_FROM_RPC: the connection itself.
const RPC: u32 = 7;
/// VIR_FROM_REMOTE: the client's end of it.
const REMOTE: u32 = 13;
/// VIR_FROM_STORAGE: the driver of the pools.
const STORAGE: u32 = 18;

impl AccessError {
    /// Kind of an error of libvirt, by its code (virErrorNumber) and the part it is from (virErrorDomain).
    pub(super) fn of(code: u32, domain: u32, message: String) -> Self {
        match (code, domain) {
            // No domain, network, pool, volume, metadata. No other code means that an object is absent: to
            // treat another error as absence would create objects twice, or delete them.
            (42 | 43 | 49 | 50 | 80, _) => Self::Absent(message),
            // Every error of the protocol or its client. A failed system call (38) is the connection's end if it
            // comes from them; else it is the host's answer: a bridge or a file that it does not have.
            (_, RPC | REMOTE) | (5 | 6 | 39 | 40, _) => Self::Disconnected(message),
            // Another client's job on the domain did not end in time.
            (68, _) => Self::Busy(message),
            // libvirt fills a volume of the pool, or reads one of it. The code is that of any internal error.
            (1, STORAGE) if message.contains("has asynchronous jobs running") => {
                Self::Busy(message)
            }
            // The agent does not answer, answers another command, too late, or with an error.
            (86 | 98 | 110 | 111, _) => Self::Agent(message),
            // The driver does not support the call, its arguments or this kind of operation.
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
            Self::NoRoom(_) => "NoRoom",
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

    /// Whether the state of the whole host is unknown, and not only that of the call's object.
    pub(crate) fn is_of_host(&self) -> bool {
        self.unknown() || matches!(self, Self::Unavailable(_) | Self::Cancelled(_))
    }

    /// Whether a call about a guest shows nothing of the guest, because the host was not asked, or did not answer: for the
    /// guest's agent it has a limit of its own.
    pub(crate) fn shows_nothing_of_guest(&self) -> bool {
        self.is_of_host() || matches!(self, Self::Busy(_))
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
    fn only_five_codes_mean_absent() {
        let absent: Vec<u32> = (0..150).filter(|it| kind(*it, 10) == "Absent").collect();
        assert_eq!(absent, [42, 43, 49, 50, 80]);
    }

    /// As observed with libvirt 9.0.
    #[test]
    fn the_kind_of_an_error() {
        const QEMU: u32 = 10;
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

    #[test]
    fn a_pool_of_which_a_volume_is_filled_is_busy() {
        let message = "internal error: pool 'vms' has asynchronous jobs running.";
        let error = AccessError::of(1, STORAGE, message.into());
        assert_eq!(error, AccessError::Busy(message.into()));
    }
}
