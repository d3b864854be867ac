//! Named conditions that must all hold, for `/readyz` and `/healthz`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A set of named conditions. Clones share it.
///
/// A condition is missing from its registration on until it is met, so that a program is never
/// ready by forgetting to look.
#[derive(Debug, Clone, Default)]
pub struct Checks(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

/// One condition of a [`Checks`], in the hands of whoever can tell. Clones are the same condition.
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

    /// `name: what is missing`, a line for each condition that is not met; `Ok` when all are.
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
        // A map of strings is whole even when a thread died while holding the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// The condition holds.
    pub fn met(&self) {
        self.checks.lock().insert(self.name, None);
    }

    /// The condition does not hold, and this is why.
    pub fn missing(&self, reason: impl Into<String>) {
        self.checks.lock().insert(self.name, Some(reason.into()));
    }

    /// Whether the condition holds now.
    pub fn is_met(&self) -> bool {
        matches!(self.checks.lock().get(self.name), Some(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_condition_is_met() {
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
