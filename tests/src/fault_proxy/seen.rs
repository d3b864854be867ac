//! The writes that a proxy received, and the fault that it injects at one of them.

use super::{Fault, Injection, Write};

#[derive(Default)]
pub(super) struct Seen {
    /// The fault that is to be injected, and since which write its writes are counted.
    pub(super) injection: Option<(Injection, usize)>,
    /// Whether the last fault was injected.
    pub(super) injected: bool,
    pub(super) writes: Vec<String>,
    pub(super) violations: Vec<String>,
    /// Paths of watches whose next request is answered 410.
    pub(super) outdated: Vec<String>,
}

impl Seen {
    /// Records a write; returns the fault that is to be injected at it.
    pub(super) fn record(&mut self, write: &Write) -> Option<Fault> {
        self.writes.push(write.to_string());
        let (injection, since) = self.injection.as_ref()?;
        if !injection.is_at_last_of(&self.writes[*since..]) {
            return None;
        }
        self.injected = true;
        self.injection.take().map(|(it, _)| it.fault)
    }

    /// Whether the watch of this path is to be answered 410; true once for each expiration.
    pub(super) fn take_outdated(&mut self, path: &str) -> bool {
        let at = self.outdated.iter().position(|it| it == path);
        at.map(|at| self.outdated.swap_remove(at)).is_some()
    }
}
