//! Whose turn it is: Machines that wait for a pass, fair between namespaces.
//!
//! ```text
//!            a row per namespace          100 at most
//! triggers ──▶ waiting ──one of each in turn──▶ under way ──▶ scheduler ──▶ passes
//! ```
//! An edit of a template or a class is about thousands of Machines at once. The scheduler behind takes
//! what is due in no order, and may leave one for last for as long as others come. So it is given little at
//! a time, and nothing more while one of a hundred ago has not had its pass: whoever makes a Machine in
//! another namespace meanwhile waits for a few passes and not for thousands.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use crate::machine::CachedMachine;

/// Events of one change come in a row; together they are one pass.
pub const DEBOUNCE: Duration = Duration::from_millis(50);

/// Machines given to the scheduler since the oldest one whose pass has not started, that one included: as many
/// may overtake it. Each is kept back for [`DEBOUNCE`], so this many let 2,000
/// a second through, twice what a processor makes of passes that find nothing to do.
const UNDER_WAY_MAX: usize = 100;

/// The queue before the scheduler. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FairQueue {
    queue: Arc<Mutex<Queue>>,
    /// Something may be taken that could not be taken before.
    changed: Arc<Notify>,
}

impl FairQueue {
    /// Something happened to a Machine. One that waits already is not queued again.
    pub fn enqueue(&self, machine: ObjectRef<CachedMachine>) {
        self.lock().push(machine);
        self.changed.notify_one();
    }

    /// The Machine whose turn it is, as soon as there is one. For one caller at a time.
    pub async fn next(&self) -> ObjectRef<CachedMachine> {
        loop {
            let next = self.lock().take();
            match next {
                Some(machine) => return machine,
                // A change between the look and this is not lost: it leaves a guard.
                None => self.changed.notified().await,
            }
        }
    }

    /// The Machine's pass begins: what happens from now on is for another.
    /// Returns whether an event asked for it, and not only the time that has passed.
    pub fn started(&self, machine: &ObjectRef<CachedMachine>) -> bool {
        let mut queue = self.lock();
        let triggered = queue.under_way.remove(machine).is_some();
        queue.running.insert(machine.clone(), false);
        self.changed.notify_one();
        triggered
    }

    /// The Machine's pass has finished. What happened meanwhile is for the next one.
    pub fn finished(&self, machine: &ObjectRef<CachedMachine>) {
        let mut queue = self.lock();
        if queue.running.remove(machine) == Some(true) {
            queue.push(machine.clone());
            self.changed.notify_one();
        }
    }

    /// There was no Machine when its pass was to begin. One that was made since, as `is_there` tells, gets
    /// another: what is about a Machine under way is taken for what its pass will see.
    pub fn gone(
        &self,
        machine: ObjectRef<CachedMachine>,
        is_there: impl FnOnce(&ObjectRef<CachedMachine>) -> bool,
    ) {
        self.started(&machine);
        self.finished(&machine);
        if is_there(&machine) {
            self.enqueue(machine);
        }
    }

    /// No change is left half done by a thread that died.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Those who wait, by namespace. No row is empty.
    rows: HashMap<String, VecDeque<ObjectRef<CachedMachine>>>,
    /// Namespaces with a row; the first one's turn is next.
    ring: VecDeque<String>,
    waiting: HashSet<ObjectRef<CachedMachine>>,
    /// Given to the scheduler, and as the how manyth.
    under_way: HashMap<ObjectRef<CachedMachine>, usize>,
    given: usize,
    /// Passes that have not finished, and whether something happened since they began. The scheduler would
    /// keep such a Machine back, and a pass that takes long would be in everybody's way.
    running: HashMap<ObjectRef<CachedMachine>, bool>,
}

impl Queue {
    fn push(&mut self, machine: ObjectRef<CachedMachine>) {
        if let Some(again) = self.running.get_mut(&machine) {
            *again = true;
            return;
        }
        // The pass of one that is under way has not looked yet, and will see this, too.
        if self.under_way.contains_key(&machine) || !self.waiting.insert(machine.clone()) {
            return;
        }
        let namespace = machine.namespace.clone().unwrap_or_default();
        let row = self.rows.entry(namespace.clone()).or_default();
        if row.is_empty() {
            self.ring.push_back(namespace);
        }
        row.push_back(machine);
    }

    fn take(&mut self) -> Option<ObjectRef<CachedMachine>> {
        let oldest = self.under_way.values().min();
        if oldest.is_some_and(|oldest| self.given - oldest >= UNDER_WAY_MAX) {
            return None;
        }
        let namespace = self.ring.pop_front()?;
        let row = self.rows.get_mut(&namespace)?;
        let machine = row.pop_front()?;
        if row.is_empty() {
            self.rows.remove(&namespace);
        } else {
            self.ring.push_back(namespace);
        }
        self.waiting.remove(&machine);
        self.under_way.insert(machine.clone(), self.given);
        self.given += 1;
        Some(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn machine(namespace: &str, number: usize) -> ObjectRef<CachedMachine> {
        ObjectRef::new(&format!("web-{number}")).within(namespace)
    }

    /// All whose turn it is now, in order.
    fn taken(turns: &FairQueue) -> Vec<ObjectRef<CachedMachine>> {
        std::iter::from_fn(|| turns.next().now_or_never()).collect()
    }

    #[test]
    fn a_namespace_waits_for_a_few_of_another_and_not_for_all() {
        let turns = FairQueue::default();
        for number in 0..5_000 {
            turns.enqueue(machine("many", number));
        }
        let first = taken(&turns);
        assert_eq!(first.len(), UNDER_WAY_MAX);
        for namespace in ["few", "fewer"] {
            turns.enqueue(machine(namespace, 0));
        }
        assert_eq!(taken(&turns), [], "no more than that at a time");
        for machine in &first[..4] {
            turns.started(machine);
        }
        let next = [
            machine("many", UNDER_WAY_MAX),
            machine("few", 0),
            machine("fewer", 0),
            machine("many", UNDER_WAY_MAX + 1),
        ];
        assert_eq!(taken(&turns), next);
    }

    #[test]
    fn nobody_is_overtaken_by_more_than_are_given_at_a_time() {
        let turns = FairQueue::default();
        for number in 0..5_000 {
            turns.enqueue(machine("many", number));
        }
        let first = taken(&turns);
        for machine in &first[1..] {
            turns.started(machine);
        }
        assert_eq!(taken(&turns), [], "the first one still waits");
        turns.started(&first[0]);
        assert_eq!(taken(&turns).len(), UNDER_WAY_MAX);
    }

    #[test]
    fn everybody_gets_a_turn_once_in_the_order_of_asking() {
        let turns = FairQueue::default();
        let all: Vec<_> = (0..3 * UNDER_WAY_MAX).map(|n| machine("many", n)).collect();
        for machine in all.iter().chain(&all) {
            turns.enqueue(machine.clone());
        }
        let mut seen = vec![];
        while let Some(machine) = turns.next().now_or_never() {
            turns.started(&machine);
            turns.finished(&machine);
            seen.push(machine);
        }
        assert_eq!(seen, all);
        assert!(turns.lock().rows.is_empty() && turns.lock().ring.is_empty());
    }

    #[test]
    fn what_happens_before_the_pass_is_seen_by_it_and_what_happens_after_gets_another() {
        let (turns, web) = (FairQueue::default(), machine("default", 0));
        turns.enqueue(web.clone());
        assert_eq!(taken(&turns), std::slice::from_ref(&web));
        turns.enqueue(web.clone());
        assert_eq!(taken(&turns), []);
        turns.started(&web);
        assert_eq!(taken(&turns), [], "that was for the pass that has started");
        turns.enqueue(web.clone());
        assert_eq!(taken(&turns), [], "the pass has not finished");
        turns.finished(&web);
        assert_eq!(taken(&turns), std::slice::from_ref(&web));
        turns.started(&web);
        turns.finished(&web);
        assert_eq!(taken(&turns), [], "nothing happened meanwhile");
    }

    #[test]
    fn a_machine_that_is_made_anew_while_the_scheduler_finds_none_gets_its_pass() {
        let (turns, web) = (FairQueue::default(), machine("default", 0));
        turns.enqueue(web.clone());
        assert_eq!(taken(&turns), std::slice::from_ref(&web));
        // The scheduler has looked by now, and found nothing.
        turns.enqueue(web.clone());
        turns.gone(web.clone(), |_| true);
        assert_eq!(taken(&turns), std::slice::from_ref(&web));
        turns.gone(web, |_| false);
        assert_eq!(taken(&turns), [], "it is gone");
    }

    #[test]
    fn a_pass_that_takes_long_is_in_nobody_s_way() {
        let (turns, slow) = (FairQueue::default(), machine("default", 0));
        turns.enqueue(slow.clone());
        assert_eq!(taken(&turns), std::slice::from_ref(&slow));
        turns.started(&slow);
        turns.enqueue(slow);
        for number in 0..3 * UNDER_WAY_MAX {
            let other = machine("many", number);
            turns.enqueue(other.clone());
            assert_eq!(taken(&turns), std::slice::from_ref(&other));
            turns.started(&other);
            turns.finished(&other);
        }
    }

    #[tokio::test]
    async fn whoever_waits_for_a_turn_is_woken() {
        let (turns, web) = (FairQueue::default(), machine("default", 0));
        let mut next = Box::pin(turns.next());
        assert_eq!(next.as_mut().now_or_never(), None);
        turns.enqueue(web.clone());
        assert_eq!(next.await, web);

        for number in 0..UNDER_WAY_MAX {
            turns.enqueue(machine("many", number));
        }
        assert_eq!(taken(&turns).len(), UNDER_WAY_MAX - 1);
        let mut next = Box::pin(turns.next());
        assert_eq!(next.as_mut().now_or_never(), None);
        turns.started(&web);
        assert_eq!(next.await, machine("many", UNDER_WAY_MAX - 1));
    }
}
