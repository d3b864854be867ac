//! Simulation of years of rotations: replicas crash between any two steps, are suspended for weeks in
//! the middle of one, and have clocks that jump; API servers receive a bundle late.
//!
//! Invariant: at every instant, each bundle that an API server may use accepts each leaf that a
//! replica may serve.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

mod cluster;
mod leaves;
mod simulation;

use certs::{Leaf, Lifetimes};
use time::Duration;

use cluster::Mutation;
use leaves::Unsigned;
use simulation::{Parameters, Report, run};

const TEN_YEARS: Duration = Duration::days(3_652);

fn parameters(replicas: usize, seed: u64) -> Parameters {
    Parameters {
        replicas,
        seed,
        span: TEN_YEARS,
        lifetimes: Lifetimes::default(),
        suspension_max: Duration::weeks(3),
        mutation: Mutation::None,
    }
}

fn assert_no_violation(report: &Report) {
    assert!(
        report.violations.is_empty(),
        "{:#?}",
        &report.violations[..report.violations.len().min(5)]
    );
}

#[test]
fn ten_years_with_two_and_five_replicas_keep_every_leaf_accepted() {
    for (replicas, seeds) in [(2, 0..2), (5, 10..11)] {
        for seed in seeds {
            let report = run::<Unsigned>(&parameters(replicas, seed));
            assert_no_violation(&report);
            // One for each two thirds of a year, and a few more after crashes during a rotation.
            assert!((13..=16).contains(&report.switches), "{report}");
            assert!(report.crashes > 200, "{report}");
            assert!(report.suspensions > 100, "{report}");
            assert!(report.jumps > 200, "{report}");
            assert!(report.losses > 10, "{report}");
            println!("{replicas} replicas, seed {seed}: {report}");
        }
    }
}

/// The same plan with signed leaves, verified as an API server verifies them.
#[test]
fn three_years_with_signed_leaves_keep_every_leaf_accepted() {
    let report = run::<Leaf>(&Parameters {
        span: Duration::days(3 * 365),
        ..parameters(2, 20)
    });
    assert_no_violation(&report);
    assert!((4..=5).contains(&report.switches), "{report}");
    println!("{report}");
}

/// Lifetimes of hours and minutes.
fn short_lifetimes(seed: u64) -> Parameters {
    let minutes = Duration::minutes;
    let lifetimes = Lifetimes::new(minutes(6 * 60), minutes(7), minutes(2));
    Parameters {
        span: Duration::days(14),
        lifetimes: lifetimes.unwrap(),
        suspension_max: minutes(21),
        ..parameters(3, seed)
    }
}

#[test]
fn rotations_every_few_hours_keep_every_leaf_accepted() {
    let report = run::<Unsigned>(&short_lifetimes(30));
    assert_no_violation(&report);
    assert!(report.switches > 80, "{report}");
    println!("{report}");
}

#[test]
fn removing_any_safeguard_violates_the_invariant() {
    for mutation in Mutation::BROKEN {
        let found = (40..60).find_map(|seed| {
            let intact = parameters(3, seed);
            let report = run::<Unsigned>(&Parameters { mutation, ..intact });
            let found = report.violations.first().cloned();
            // The same seed with the safeguard has no violation.
            found.filter(|_| run::<Unsigned>(&intact).violations.is_empty())
        });
        assert!(found.is_some(), "{mutation:?} is not detected");
        println!("{mutation:?}: {}", found.unwrap_or_default());
    }
}
