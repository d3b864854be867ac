//! The writes that a proxy received, and the fault that it injects at one of them.

use super::{Fault, Injection, Write};

#[derive(Default)]
pub(super) struct Seen {
    /// The fault that is to be injected.
    injection: Option<Injection>,
    /// The number of writes before it was known, which do not count.
    before: usize,
    injected: bool,
    pub(super) writes: Vec<String>,
    pub(super) violations: Vec<String>,
    /// Paths of watches whose next request is answered 410.
    pub(super) outdated: Vec<String>,
}

impl Seen {
    /// Injects this fault, if any, at one of the writes from now on.
    pub(super) fn begin(&mut self, injection: Option<Injection>) {
        self.injection = injection;
        self.before = self.writes.len();
        self.injected = false;
    }

    /// Injects nothing more. Returns the writes since the beginning, and whether the fault was injected.
    pub(super) fn end(&mut self) -> (Vec<String>, bool) {
        self.injection = None;
        (self.writes[self.before..].to_vec(), self.injected)
    }

    /// Records a write; returns the fault that is to be injected at it.
    pub(super) fn record(&mut self, write: &Write) -> Option<Fault> {
        self.writes.push(write.to_string());
        let writes = &self.writes[self.before..];
        let injection = self.injection.take_if(|it| it.is_at_last_of(writes))?;
        self.injected = true;
        Some(injection.fault)
    }

    /// Whether the watch of this path is to be answered 410; true once for each expiration.
    pub(super) fn take_outdated(&mut self, path: &str) -> bool {
        let at = self.outdated.iter().position(|it| it == path);
        at.map(|at| self.outdated.swap_remove(at)).is_some()
    }
}
