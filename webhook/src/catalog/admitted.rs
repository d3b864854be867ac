//! What this replica admitted a moment ago, which its watch may not have reported yet. Without it, Machines that are
//! created one right after the other would each see the quota as the first one did.
//!
//! ```text
//! revision ─▶ rules compare with the quota ─▶ record, if the namespace still has that revision ─ else again
//! ```
//! So of Machines that are reviewed at the same time each one sees those that were admitted before it
//! (`a_machine_that_was_compared_before_another_one_was_recorded_is_compared_again` here).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::catalog::{MachineName, Machines, Usage};
use tokio::time::Instant;

/// Time for which an admitted Machine counts without the watch. A watch reports an object within a second; if the
/// object was not stored after all, its share of the quota is free again after this time.
const LIFETIME: Duration = Duration::from_secs(5);

/// Machines that were admitted within [`LIFETIME`], in namespaces that have a quota.
#[derive(Debug, Default)]
pub struct Admitted(Mutex<Namespaces>);

#[derive(Debug, Default)]
struct Namespaces {
    by_name: HashMap<Box<str>, Vec<Entry>>,
    /// Number of Machines that were recorded so far.
    recorded: u64,
}

impl Namespaces {
    /// Revision of a namespace: the number of its last entry, 0 without entries.
    fn revision(&self, namespace: &str) -> u64 {
        let last = self.by_name.get(namespace).and_then(|them| them.last());
        last.map_or(0, |last| last.number)
    }
}

#[derive(Debug)]
struct Entry {
    /// The first one has 1.
    number: u64,
    name: Box<str>,
    usage: Usage,
    until: Instant,
}

impl Admitted {
    /// A poisoned lock is ignored: every change of the map is complete before anything that may panic.
    fn lock(&self) -> MutexGuard<'_, Namespaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever a Machine of the namespace is recorded. To be read before the rules.
    pub fn revision(&self, namespace: &str) -> u64 {
        self.lock().revision(namespace)
    }

    /// Records that a Machine was admitted, unless another one of the namespace was recorded since it had this revision:
    /// then the rules have compared with a sum that is too small. Returns whether it was recorded.
    pub fn record(
        &self,
        machine: MachineName<'_>,
        usage: Usage,
        revision: u64,
        now: Instant,
    ) -> bool {
        let mut namespaces = self.lock();
        if namespaces.revision(machine.namespace) != revision {
            return false;
        }
        namespaces.by_name.retain(|_, entries| {
            entries.retain(|entry| entry.until > now);
            !entries.is_empty()
        });
        namespaces.recorded += 1;
        let number = namespaces.recorded;
        let entries = namespaces.by_name.entry(machine.namespace.into());
        let entries = entries.or_default();
        entries.retain(|entry| *entry.name != *machine.name);
        entries.push(Entry {
            number,
            name: machine.name.into(),
            usage,
            until: now + LIFETIME,
        });
        true
    }

    /// What other Machines of the namespace use beyond what `stored` says.
    pub fn beyond(&self, machine: MachineName<'_>, stored: &Machines, now: Instant) -> Usage {
        let namespaces = self.lock();
        let entries = namespaces.by_name.get(machine.namespace);
        let entries = entries.into_iter().flatten();
        let others = entries.filter(|entry| entry.until > now && *entry.name != *machine.name);
        others.fold(Usage::default(), |sum, entry| {
            let name = MachineName {
                name: &entry.name,
                ..machine
            };
            let stored = stored.get(name).map(|row| row.usage).unwrap_or_default();
            sum.plus(entry.usage.minus(stored))
        })
    }
}

#[cfg(test)]
mod tests {
    use common::catalog::MachineRow;

    use super::*;

    fn machine(name: &str) -> MachineName<'_> {
        MachineName {
            namespace: "prod",
            name,
        }
    }

    fn usage(cpu: u64) -> Usage {
        Usage {
            cpu,
            ..Usage::default()
        }
    }

    #[test]
    fn a_machine_counts_from_its_admission_until_the_watch_has_it() {
        let (admitted, now) = (Admitted::default(), Instant::now());
        let mut stored = Machines::default();
        let record = |name: &str, cpu, now| {
            let revision = admitted.revision("prod");
            assert!(admitted.record(machine(name), usage(cpu), revision, now));
        };
        record("a", 4, now);
        record("b", 8, now);
        assert_eq!(admitted.beyond(machine("c"), &stored, now), usage(12));
        // Its own share is what is asked for.
        assert_eq!(admitted.beyond(machine("a"), &stored, now), usage(8));
        let elsewhere = MachineName {
            namespace: "test",
            name: "c",
        };
        assert_eq!(admitted.beyond(elsewhere, &stored, now), usage(0));

        // The watch reports it; then it grows.
        let mut row = MachineRow::default();
        row.usage = usage(4);
        stored.insert(machine("a"), row);
        assert_eq!(admitted.beyond(machine("c"), &stored, now), usage(8));
        record("a", 6, now);
        assert_eq!(admitted.beyond(machine("c"), &stored, now), usage(10));

        let later = now + LIFETIME;
        assert_eq!(admitted.beyond(machine("c"), &stored, later), usage(0));
        record("d", 1, later);
        assert_eq!(
            admitted.lock().by_name["prod"].len(),
            1,
            "expired entries are dropped"
        );
    }

    #[test]
    fn a_machine_that_was_compared_before_another_one_was_recorded_is_compared_again() {
        let (admitted, now) = (Admitted::default(), Instant::now());
        let elsewhere = MachineName {
            namespace: "test",
            name: "a",
        };
        let (of_prod, of_test) = (admitted.revision("prod"), admitted.revision("test"));
        assert!(admitted.record(machine("a"), usage(4), of_prod, now));
        assert!(!admitted.record(machine("b"), usage(4), of_prod, now));
        assert!(
            admitted.record(elsewhere, usage(4), of_test, now),
            "namespaces do not wait for each other"
        );
        assert_eq!(
            admitted.beyond(machine("c"), &Machines::default(), now),
            usage(4)
        );
        let again = admitted.revision("prod");
        assert!(admitted.record(machine("b"), usage(4), again, now));
        // The same Machine again is another entry.
        assert!(!admitted.record(machine("b"), usage(9), again, now));
    }
}
