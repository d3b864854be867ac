//! What this replica admitted a moment ago, which its watch may not have reported yet. Without it, Machines that are
//! created one right after the other would each see the quota as the first one did.

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
pub struct Admitted(Mutex<HashMap<Box<str>, Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    name: Box<str>,
    usage: Usage,
    until: Instant,
}

impl Admitted {
    /// A poisoned lock is ignored: every change of the map is complete before anything that may panic.
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Vec<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a Machine was admitted.
    pub fn record(&self, machine: MachineName<'_>, usage: Usage, now: Instant) {
        let mut namespaces = self.lock();
        namespaces.retain(|_, entries| {
            entries.retain(|entry| entry.until > now);
            !entries.is_empty()
        });
        let entries = namespaces.entry(machine.namespace.into()).or_default();
        entries.retain(|entry| *entry.name != *machine.name);
        entries.push(Entry {
            name: machine.name.into(),
            usage,
            until: now + LIFETIME,
        });
    }

    /// What other Machines of the namespace use beyond what `stored` says.
    pub fn beyond(&self, machine: MachineName<'_>, stored: &Machines, now: Instant) -> Usage {
        let namespaces = self.lock();
        let entries = namespaces.get(machine.namespace).into_iter().flatten();
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
        admitted.record(machine("a"), usage(4), now);
        admitted.record(machine("b"), usage(8), now);
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
        admitted.record(machine("a"), usage(6), now);
        assert_eq!(admitted.beyond(machine("c"), &stored, now), usage(10));

        let later = now + LIFETIME;
        assert_eq!(admitted.beyond(machine("c"), &stored, later), usage(0));
        admitted.record(machine("d"), usage(1), later);
        assert_eq!(
            admitted.lock()["prod"].len(),
            1,
            "expired entries are dropped"
        );
    }
}
