//! Named conditions that must all hold, for `/readyz` and `/healthz`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A set of named conditions. Clones share it.
///
/// A condition is not met from its registration until [`Check::met`] is called, so that a program is
/// never ready because a check was missing.
#[derive(Debug, Clone, Default)]
pub struct Checks(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

/// One condition of a [`Checks`], for the code that determines whether it holds. Clones are the same
/// condition.
#[derive(Debug, Clone)]
pub struct Check {
    name: &'static str,
    checks: Checks,
}

impl Checks {
    /// Adds a condition that is not met yet.
    pub fn register(&self, name: &'static str) -> Check {
        let check = Check {
            name,
            checks: self.clone(),
        };
        check.missing("not yet");
        check
    }

    /// `Ok` if all conditions are met; else one line `name: reason` for each that is not.
    pub fn verdict(&self) -> Result<(), String> {
        let mut missing = String::new();
        for (name, reason) in &*self.lock() {
            if let Some(reason) = reason {
                // Writing to a String cannot fail.
                let _ = writeln!(missing, "{name}: {reason}");
            }
        }
        if missing.is_empty() {
            Ok(())
        } else {
            Err(missing)
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Option<String>>> {
        // A poisoned lock is ignored: every change is a single insertion.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// Records that the condition is met.
    pub fn met(&self) {
        self.checks.lock().insert(self.name, None);
    }

    /// Records that the condition is not met, and why.
    pub fn missing(&self, reason: impl Into<String>) {
        self.checks.lock().insert(self.name, Some(reason.into()));
    }

    /// Whether the condition is met now.
    pub fn is_met(&self) -> bool {
        matches!(self.checks.lock().get(self.name), Some(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_ok_only_if_every_condition_is_met() {
        let checks = Checks::default();
        assert_eq!(checks.verdict(), Ok(()));
        let catalog = checks.register("catalog");
        let leaf = checks.register("leaf");
        leaf.met();
        assert_eq!(checks.verdict(), Err("catalog: not yet\n".into()));
        catalog.met();
        assert_eq!(checks.verdict(), Ok(()));
        leaf.missing("expired");
        assert_eq!(checks.verdict(), Err("leaf: expired\n".into()));
        assert!(catalog.is_met() && !leaf.is_met());
    }
}
