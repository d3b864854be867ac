//! A controller that is interrupted at every single write, by every kind of fault.
//!
//! ```text
//! run without faults ──▶ the states at its checkpoints, and its number of writes
//!                                   │ for every write × every fault
//!                                   ▼
//! the same steps, in a namespace of their own, with one fault ──▶ the same states
//!                                   └ invariants are checked before each write is forwarded
//! ```
//! A write at which the controller was killed arrives at the end, when another Machine has the name. In [`replicas`] two
//! controllers act at the same time.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod invariants;
mod late;
mod lifecycle;
mod parts;
mod replicas;
mod state;

use std::{collections::BTreeSet, time::Instant};

use futures::{StreamExt as _, stream};
use lab::{
    Binary, Lab, OPERATOR_NAMESPACE, Scenario,
    fault_proxy::{Fault, kind},
};

use lifecycle::Lifecycle;

/// Runs at a time: each of them waits most of the time.
const AT_ONCE: usize = 8;

/// The faults that are injected at this write. The controller repeats the pass after each of the HTTP statuses, so that
/// each write gets one of them. Half of all writes are of a status, several in a row: each gets three of the faults, and
/// the next one the others.
fn faults(at: usize, write: &str) -> Vec<Fault> {
    let rejected = Fault::Rejected([409, 429, 500][at % 3]);
    let groups = [
        [Fault::KilledBefore, rejected, Fault::WatchesDelayed],
        [
            Fault::KilledAfter,
            Fault::ResponseLost,
            Fault::WatchesExpired,
        ],
    ];
    if write.trim_end().ends_with("/status") {
        groups[at % 2].to_vec()
    } else {
        groups.concat()
    }
}

/// The write of this kind that is the `at`-th of its kind.
fn find<'a>(writes: &'a [String], of: &str, at: usize) -> Option<&'a String> {
    let mut same = writes.iter().filter(|write| kind(write) == of);
    same.nth(at - 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_at_any_write_leaves_the_same_state_and_violates_no_invariant() {
    let mut lab = Lab::start().await.unwrap();
    let _webhook = lab.webhook(&[]).await.unwrap();
    let _simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let account = Binary::Controller.account();
    let client = lab
        .account_client(OPERATOR_NAMESPACE, account)
        .await
        .unwrap();

    let baseline = Lifecycle::new(&lab, &client, "baseline", None, None);
    let baseline = baseline.run().await.unwrap();
    assert_eq!(baseline.violations, [""; 0]);
    let writes = &baseline.writes;
    println!("a run without faults takes {} writes:", writes.len());
    for (number, write) in (1..).zip(writes) {
        println!("{number:3} {write}");
    }

    let start = Instant::now();
    // Runs differ in the number of writes of the status, so a write is found by its kind.
    let points = (1..).zip(writes).flat_map(|(at, write)| {
        let same = writes[..at].iter().filter(|it| kind(it) == kind(write));
        let nth = same.count();
        let faults = (1..).zip(faults(at, write));
        faults.map(move |(number, fault)| (at, number, kind(write), nth, fault))
    });
    let outcomes = stream::iter(points).map(|(at, number, of, nth, fault)| {
        let (lab, client, baseline) = (&lab, &client, &baseline);
        async move {
            let namespace = format!("point-{at}-{number}");
            let point = Some((of, nth, fault));
            let run = Lifecycle::new(lab, client, &namespace, point, Some(baseline));
            let (interrupted, problems) = match run.run().await {
                Ok(outcome) => (
                    find(&outcome.writes, of, nth).cloned(),
                    outcome.problems(baseline),
                ),
                Err(error) => (Some(String::new()), vec![format!("{error:#}")]),
            };
            interrupted.map(|write| (format!("{fault} write {at}: {write}"), write, problems))
        }
    });
    // Two status changes at the same time are one write: some runs have fewer writes, and their last faults are not
    // injected.
    let mut outcomes: Vec<_> = outcomes
        .buffer_unordered(AT_ONCE)
        .filter_map(async |it| it)
        .collect()
        .await;
    let interrupted = outcomes.iter().map(|(_, write, _)| kind(write));
    let interrupted: BTreeSet<_> = interrupted.map(str::to_owned).collect();
    let tried = outcomes.len();
    outcomes.retain(|(_, _, problems)| !problems.is_empty());
    println!(
        "{tried} points tried in {:.0} s, {} of them with a violation",
        start.elapsed().as_secs_f64(),
        outcomes.len()
    );
    assert!(outcomes.is_empty(), "{outcomes:#?}");
    for write in writes {
        assert!(interrupted.contains(kind(write)), "never: {write}");
    }
}
