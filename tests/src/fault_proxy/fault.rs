//! Faults, and the writes at which they are injected.

use std::fmt;

use serde_json::Value;

/// The fault that is injected at the chosen write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The controller is killed before the write is forwarded. The write is held, and may be forwarded later: it was on
    /// its way for longer than the Lease.
    KilledBefore,
    /// The write is done, and the controller is killed before the response is sent.
    KilledAfter,
    /// The write is not forwarded, but answered with this HTTP status.
    Rejected(u16),
    /// The write is done, and its response is never sent.
    ResponseLost,
    /// The write is done, and watches deliver nothing for some seconds.
    WatchesDelayed,
    /// The write is done, every watch ends, and its next request is answered 410 (resource version too old).
    WatchesExpired,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KilledBefore => f.write_str("killed before"),
            Self::KilledAfter => f.write_str("killed after"),
            Self::Rejected(status) => write!(f, "HTTP {status} instead of"),
            Self::ResponseLost => f.write_str("no response to"),
            Self::WatchesDelayed => f.write_str("watches delayed after"),
            Self::WatchesExpired => f.write_str("watches expired after"),
        }
    }
}

/// A fault, and the write at which it is injected.
#[derive(Debug, Clone)]
pub struct Injection {
    pub fault: Fault,
    /// The only writes that are counted, as [`kind`] has them. `None`: all.
    pub of: Option<String>,
    /// The number of the write among these, from 1.
    pub number: usize,
}

impl Injection {
    /// Whether the last of these writes is the one at which the fault is injected.
    pub(super) fn is_at_last_of(&self, writes: &[String]) -> bool {
        let counts = |write: &String| self.of.as_deref().is_none_or(|of| kind(write) == of);
        let count = writes.iter().filter(|write| counts(write)).count();
        writes.last().is_some_and(counts) && count == self.number
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.of.as_deref().unwrap_or("write");
        write!(f, "{} {of} no. {}", self.fault, self.number)
    }
}

/// A write that the proxy received and has not forwarded.
#[derive(Debug, Clone)]
pub struct Write {
    /// `POST`, `PATCH`, `DELETE`.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// The JSON body; null if it is not JSON.
    pub body: Value,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.body["metadata"]["name"].as_str().unwrap_or_default();
        let made = if self.method == "POST" { name } else { "" };
        let path = self.path.split_once("/namespaces/").map_or("", |at| at.1);
        let path = path.split_once('/').map_or("", |at| at.1);
        write!(f, "{} {path} {made}", self.method)
    }
}

/// What was written, without the name of a created object, which differs between runs. `write`: a [`Write`] as text.
pub fn kind(write: &str) -> &str {
    let end = write
        .match_indices(' ')
        .nth(1)
        .map_or(write.len(), |it| it.0);
    &write[..end]
}
