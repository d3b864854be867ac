//! A controller that is interrupted at every single write, by every kind of fault.
//!
//! ```text
//! run without faults ──▶ the writes of each step, and the state after it
//!                                   │ for every write × every fault
//!                                   ▼
//! the same steps, in a namespace of their own, with a fault in each ──▶ the same states
//!                                   └ invariants are checked before each write is forwarded
//! ```
//! The state after a step is that of the run without faults, so the next step may have a fault of its own: a run tries as
//! many points as there are steps. A write at which the controller was killed arrives at the end, when another Machine has the name. In [`replicas`] two
//! controllers act at the same time.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod invariants;
mod late;
mod lifecycle;
mod parts;
mod replicas;
mod state;

use std::{array, collections::BTreeSet, time::Instant};

use futures::{StreamExt as _, stream};
use lab::{
    Binary, Lab, OPERATOR_NAMESPACE, Scenario,
    fault_proxy::{Fault, Injection, kind},
};

use lifecycle::{Faults, Lifecycle, Outcome, Step};

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

/// The faults of each run that tries the points of all steps, one of each step at a time.
fn runs<const STEPS: usize>(
    points: &[Vec<Injection>],
) -> impl Iterator<Item = [Option<Injection>; STEPS]> {
    let count = points.iter().map(Vec::len).max().unwrap_or_default();
    (0..count).map(|at| array::from_fn(|step| points[step].get(at).cloned()))
}

/// The faults of a step with these writes. Runs differ in the number of writes of the status, so a write is found by its
/// kind.
fn points(writes: &[String]) -> Vec<Injection> {
    let points = (1..).zip(writes).flat_map(|(at, write)| {
        let same = writes[..at].iter().filter(|it| kind(it) == kind(write));
        let number = same.count();
        let faults = faults(at, write).into_iter();
        faults.map(move |fault| Injection {
            fault,
            of: Some(kind(write).to_owned()),
            number,
        })
    });
    points.collect()
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
    let run = async |namespace: &str, faults: Faults, baseline: Option<&Outcome>| {
        let run = Lifecycle {
            lab: &lab,
            client: &client,
            namespace,
            faults,
            baseline,
        };
        run.run().await
    };

    let baseline = run("baseline", Faults::default(), None).await.unwrap();
    assert_eq!(baseline.violations, [""; 0]);
    println!("writes of a run without faults:");
    for (step, done) in Step::ALL.iter().zip(&baseline.steps) {
        println!("{step:?}: {:#?}", done.writes);
    }

    let start = Instant::now();
    let points: Vec<_> = baseline.steps.iter().map(|it| points(&it.writes)).collect();
    let outcomes = (1..)
        .zip(runs(&points))
        .map(|(number, faults): (_, Faults)| {
            let (run, baseline) = (&run, &baseline);
            async move {
                let namespace = format!("run-{number}");
                let outcome = run(&namespace, faults.clone(), Some(baseline)).await;
                (faults, outcome)
            }
        });
    let outcomes = stream::iter(outcomes).buffer_unordered(AT_ONCE);
    let outcomes: Vec<_> = outcomes.collect().await;
    let mut tried = 0;
    let (mut interrupted, mut problems) = (BTreeSet::new(), Vec::new());
    for (faults, outcome) in outcomes {
        let found = match outcome {
            Ok(outcome) => {
                let injected = faults.iter().zip(&outcome.steps);
                let injected = injected.filter(|(_, done)| done.injected);
                for fault in injected.filter_map(|(fault, _)| fault.as_ref()) {
                    tried += 1;
                    interrupted.insert(fault.of.clone());
                }
                outcome.problems(&baseline)
            }
            Err(error) => vec![format!("{error:#}")],
        };
        if !found.is_empty() {
            let faults = Step::ALL.iter().zip(&faults);
            let faults: Vec<_> = faults
                .filter_map(|(step, fault)| Some(format!("{step:?}: {}", fault.as_ref()?)))
                .collect();
            problems.push((faults, found));
        }
    }
    println!(
        "{tried} points tried in {:.0} s, {} runs with a violation",
        start.elapsed().as_secs_f64(),
        problems.len()
    );
    assert!(problems.is_empty(), "{problems:#?}");
    // Two status changes at the same time are one write: some runs have fewer writes, and their last faults are not
    // injected.
    for write in baseline.steps.iter().flat_map(|it| &it.writes) {
        let of = Some(kind(write).to_owned());
        assert!(interrupted.contains(&of), "never: {write}");
    }
}
