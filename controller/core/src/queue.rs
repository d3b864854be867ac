//! Fair queue in front of the controller's scheduler: round-robin over namespaces, at most 100 in flight.
//!
//! ```text
//!          a row per namespace              at most 100
//! triggers ──▶ waiting ──one per namespace──▶ in flight ──▶ scheduler of kube ──▶ passes
//! ```
//! A change of a template or a StorageClass concerns thousands of Machines at once. The scheduler of kube takes what
//! is due in no order and may delay one Machine for as long as others come. So it is given at most 100 at a time,
//! counted from the oldest whose pass has not started: a Machine in another namespace then waits for a few passes
//! and not for thousands. `tests/tests/fairness.rs` fails without this queue; the scheduler behind it stays for what
//! it adds: requeue times, concurrency, one pass per Machine at a time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use crate::machine::CachedMachine;

/// The scheduler delays a Machine by this, so that the events of one change lead to one pass.
pub const DEBOUNCE: Duration = Duration::from_millis(50);

/// Machines passed to the scheduler since the oldest one whose pass has not started, that one included. Each is
/// delayed by [`DEBOUNCE`], so 100 allow 2,000 passes a second: twice what one processor does when there is nothing
/// to change.
const IN_FLIGHT_MAX: usize = 100;

/// Machines that wait for a pass. Clones share the content.
#[derive(Clone, Debug, Default)]
pub struct FairQueue {
    queue: Arc<Mutex<Queue>>,
    /// Wakes the consumer when there may be a next Machine.
    changed: Arc<Notify>,
}

impl FairQueue {
    /// Queues a Machine for a pass, unless it already waits or is in flight. During its pass it is marked, and
    /// queued when the pass has finished.
    pub fn enqueue(&self, machine: ObjectRef<CachedMachine>) {
        self.change(|queue| queue.push(machine));
    }

    /// Waits for the next Machine. For one caller at a time.
    pub async fn next(&self) -> ObjectRef<CachedMachine> {
        loop {
            let next = self.lock().pop();
            match next {
                Some(machine) => return machine,
                // A change since the lock was released is not missed: `notify_one` stores a permit.
                None => self.changed.notified().await,
            }
        }
    }

    /// The Machine's pass starts: what is enqueued from now on is for the next pass.
    pub fn started(&self, machine: &ObjectRef<CachedMachine>) {
        self.change(|queue| queue.start(machine));
    }

    /// The Machine's pass has finished. If the Machine was enqueued meanwhile, it waits for another pass.
    pub fn finished(&self, machine: &ObjectRef<CachedMachine>) {
        self.change(|queue| queue.finish(machine));
    }

    /// The scheduler found no Machine of this name. A trigger for a Machine in flight is not queued, so a Machine
    /// that was created again since (`exists`) is queued here.
    pub fn not_found(
        &self,
        machine: ObjectRef<CachedMachine>,
        exists: impl FnOnce(&ObjectRef<CachedMachine>) -> bool,
    ) {
        self.started(&machine);
        self.finished(&machine);
        if exists(&machine) {
            self.enqueue(machine);
        }
    }

    /// Applies a change, and wakes the consumer if there is a Machine for it: each wake-up makes the scheduler look at
    /// every pass that runs.
    fn change(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.lock();
        change(&mut queue);
        if queue.has_next() {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No statement under this lock leaves the queue inconsistent, so a poisoned lock is safe to use.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Machines by namespace in the order of enqueueing. No row is empty. One that is not in `waiting` was passed over:
    /// its pass has started meanwhile.
    rows: HashMap<String, VecDeque<ObjectRef<CachedMachine>>>,
    /// Namespaces with a row; the first is served next.
    ring: VecDeque<String>,
    /// The Machines of `rows` that wait.
    waiting: HashSet<ObjectRef<CachedMachine>>,
    /// Machines that the scheduler has and whose pass has not started; the value of `handed_out` at that time.
    in_flight: HashMap<ObjectRef<CachedMachine>, usize>,
    /// Machines passed to the scheduler so far.
    handed_out: usize,
    /// Machines whose pass runs, and whether they were enqueued since it started. They are not passed on: the
    /// scheduler would hold them back until the pass ends, and they would count as in flight for that time.
    running: HashMap<ObjectRef<CachedMachine>, bool>,
}

impl Queue {
    fn push(&mut self, machine: ObjectRef<CachedMachine>) {
        if let Some(again) = self.running.get_mut(&machine) {
            *again = true;
            return;
        }
        // The pass of a Machine in flight has not observed yet, so it will see this change.
        if self.in_flight.contains_key(&machine) || !self.waiting.insert(machine.clone()) {
            return;
        }
        let namespace = machine.namespace.clone().unwrap_or_default();
        let row = self.rows.entry(namespace.clone()).or_default();
        if row.is_empty() {
            self.ring.push_back(namespace);
        }
        row.push_back(machine);
    }

    /// The pass of a Machine starts. It sees what the Machine waited for, so the Machine does not wait any more; the
    /// scheduler also starts passes by itself, when a Machine's time has come.
    fn start(&mut self, machine: &ObjectRef<CachedMachine>) {
        self.in_flight.remove(machine);
        self.waiting.remove(machine);
        self.running.insert(machine.clone(), false);
    }

    fn finish(&mut self, machine: &ObjectRef<CachedMachine>) {
        if self.running.remove(machine) == Some(true) {
            self.push(machine.clone());
        }
    }

    /// Whether [`pop`](Self::pop) returns a Machine.
    fn has_next(&self) -> bool {
        !self.waiting.is_empty() && self.has_room()
    }

    fn has_room(&self) -> bool {
        let oldest = self.in_flight.values().min();
        oldest.is_none_or(|oldest| self.handed_out - oldest < IN_FLIGHT_MAX)
    }

    fn pop(&mut self) -> Option<ObjectRef<CachedMachine>> {
        if !self.has_room() {
            return None;
        }
        loop {
            let namespace = self.ring.pop_front()?;
            let row = self.rows.get_mut(&namespace)?;
            let machine = row.pop_front()?;
            let waits = self.waiting.remove(&machine);
            match (row.is_empty(), waits) {
                (true, _) => {
                    self.rows.remove(&namespace);
                }
                (false, true) => self.ring.push_back(namespace),
                // A Machine that is passed over does not count for its namespace.
                (false, false) => self.ring.push_front(namespace),
            }
            if waits {
                self.in_flight.insert(machine.clone(), self.handed_out);
                self.handed_out += 1;
                return Some(machine);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn machine(namespace: &str, number: usize) -> ObjectRef<CachedMachine> {
        ObjectRef::new(&format!("web-{number}")).within(namespace)
    }

    /// All Machines that are passed on now, in order.
    fn handed_out(queue: &FairQueue) -> Vec<ObjectRef<CachedMachine>> {
        std::iter::from_fn(|| queue.next().now_or_never()).collect()
    }

    #[test]
    fn a_machine_waits_for_a_few_of_a_large_namespace_and_not_for_all() {
        let queue = FairQueue::default();
        for number in 0..5_000 {
            queue.enqueue(machine("many", number));
        }
        let first = handed_out(&queue);
        assert_eq!(first.len(), IN_FLIGHT_MAX);
        for namespace in ["few", "fewer"] {
            queue.enqueue(machine(namespace, 0));
        }
        assert_eq!(handed_out(&queue), [], "no more than that at a time");
        for machine in &first[..4] {
            queue.started(machine);
        }
        let next = [
            machine("many", IN_FLIGHT_MAX),
            machine("few", 0),
            machine("fewer", 0),
            machine("many", IN_FLIGHT_MAX + 1),
        ];
        assert_eq!(handed_out(&queue), next);
    }

    #[test]
    fn no_machine_in_flight_is_overtaken_by_more_than_the_limit() {
        let queue = FairQueue::default();
        for number in 0..5_000 {
            queue.enqueue(machine("many", number));
        }
        let first = handed_out(&queue);
        for machine in &first[1..] {
            queue.started(machine);
        }
        assert_eq!(handed_out(&queue), [], "the first one still waits");
        queue.started(&first[0]);
        assert_eq!(handed_out(&queue).len(), IN_FLIGHT_MAX);
    }

    #[test]
    fn each_machine_is_handed_out_once_in_the_order_of_enqueueing() {
        let queue = FairQueue::default();
        let all: Vec<_> = (0..3 * IN_FLIGHT_MAX).map(|n| machine("many", n)).collect();
        for machine in all.iter().chain(&all) {
            queue.enqueue(machine.clone());
        }
        let mut seen = vec![];
        while let Some(machine) = queue.next().now_or_never() {
            queue.started(&machine);
            queue.finished(&machine);
            seen.push(machine);
        }
        assert_eq!(seen, all);
        assert!(queue.lock().rows.is_empty() && queue.lock().ring.is_empty());
    }

    #[test]
    fn a_trigger_before_the_pass_adds_none_and_a_trigger_during_it_adds_one() {
        let (queue, web) = (FairQueue::default(), machine("default", 0));
        queue.enqueue(web.clone());
        assert_eq!(handed_out(&queue), std::slice::from_ref(&web));
        queue.enqueue(web.clone());
        assert_eq!(handed_out(&queue), []);
        queue.started(&web);
        assert_eq!(
            handed_out(&queue),
            [],
            "the pass that has started sees that change"
        );
        queue.enqueue(web.clone());
        assert_eq!(handed_out(&queue), [], "the pass has not finished");
        queue.finished(&web);
        assert_eq!(handed_out(&queue), std::slice::from_ref(&web));
        queue.started(&web);
        queue.finished(&web);
        assert_eq!(handed_out(&queue), [], "nothing happened meanwhile");
    }

    #[test]
    fn a_machine_whose_pass_starts_by_itself_while_it_waits_is_not_handed_out_for_a_second_one() {
        let queue = FairQueue::default();
        let (web, other) = (machine("default", 0), machine("default", 1));
        queue.enqueue(web.clone());
        queue.enqueue(other.clone());
        queue.started(&web);
        queue.finished(&web);
        assert_eq!(handed_out(&queue), std::slice::from_ref(&other));
        queue.enqueue(web.clone());
        assert_eq!(handed_out(&queue), [web]);
    }

    #[test]
    fn the_consumer_is_not_woken_while_no_machine_can_be_handed_out() {
        let queue = FairQueue::default();
        for number in 0..IN_FLIGHT_MAX {
            queue.enqueue(machine("many", number));
        }
        assert_eq!(handed_out(&queue).len(), IN_FLIGHT_MAX);
        // Takes the permit of the wake-ups so far, if there is one.
        queue.changed.notified().now_or_never();
        queue.enqueue(machine("few", 0));
        assert_eq!(queue.changed.notified().now_or_never(), None);
        queue.started(&machine("many", 0));
        assert_eq!(queue.changed.notified().now_or_never(), Some(()));
    }

    #[test]
    fn a_machine_created_again_while_the_scheduler_finds_none_gets_a_pass() {
        let (queue, web) = (FairQueue::default(), machine("default", 0));
        queue.enqueue(web.clone());
        assert_eq!(handed_out(&queue), std::slice::from_ref(&web));
        // Meanwhile the scheduler has looked for the Machine and found none.
        queue.enqueue(web.clone());
        queue.not_found(web.clone(), |_| true);
        assert_eq!(handed_out(&queue), std::slice::from_ref(&web));
        queue.not_found(web, |_| false);
        assert_eq!(handed_out(&queue), [], "it is gone");
    }

    #[test]
    fn a_long_pass_does_not_block_other_machines() {
        let (queue, slow) = (FairQueue::default(), machine("default", 0));
        queue.enqueue(slow.clone());
        assert_eq!(handed_out(&queue), std::slice::from_ref(&slow));
        queue.started(&slow);
        queue.enqueue(slow);
        for number in 0..3 * IN_FLIGHT_MAX {
            let other = machine("many", number);
            queue.enqueue(other.clone());
            assert_eq!(handed_out(&queue), std::slice::from_ref(&other));
            queue.started(&other);
            queue.finished(&other);
        }
    }

    #[tokio::test]
    async fn the_consumer_is_woken_when_a_machine_can_be_handed_out() {
        let (queue, web) = (FairQueue::default(), machine("default", 0));
        let mut next = Box::pin(queue.next());
        assert_eq!(next.as_mut().now_or_never(), None);
        queue.enqueue(web.clone());
        assert_eq!(next.await, web);

        for number in 0..IN_FLIGHT_MAX {
            queue.enqueue(machine("many", number));
        }
        assert_eq!(handed_out(&queue).len(), IN_FLIGHT_MAX - 1);
        let mut next = Box::pin(queue.next());
        assert_eq!(next.as_mut().now_or_never(), None);
        queue.started(&web);
        assert_eq!(next.await, machine("many", IN_FLIGHT_MAX - 1));
    }
}
