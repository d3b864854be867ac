//! Years of rotations in a moment: replicas that crash between any two steps, sleep for weeks in the
//! middle of one, and have clocks that jump; API servers that hear of a bundle late. At every instant
//! each bundle that an API server could hold validates each leaf that a replica could serve.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

mod cluster;
mod model;
mod run;

use certs::{Authority, Lives};
use time::Duration;

use cluster::Mutation;
use model::Model;
use run::{Report, Setting, run};

const TEN_YEARS: Duration = Duration::days(3_652);

fn setting(replicas: usize, seed: u64) -> Setting {
    Setting {
        replicas,
        seed,
        span: TEN_YEARS,
        lives: Lives::default(),
        sleep: Duration::weeks(3),
        mutation: Mutation::None,
    }
}

fn is_sound(report: &Report) {
    assert!(
        report.violations.is_empty(),
        "{:#?}",
        &report.violations[..report.violations.len().min(5)]
    );
}

#[test]
fn ten_years_of_rotations_with_two_and_five_replicas() {
    for (replicas, seeds) in [(2, 0..2), (5, 10..11)] {
        for seed in seeds {
            let report = run::<Model>(&setting(replicas, seed));
            is_sound(&report);
            // One for each two thirds of a year, and some more for crashes in the middle.
            assert!((13..=16).contains(&report.switches), "{report}");
            assert!(report.crashes > 200, "{report}");
            assert!(report.sleeps > 100, "{report}");
            assert!(report.jumps > 200, "{report}");
            assert!(report.losses > 10, "{report}");
            println!("{replicas} replicas, seed {seed}: {report}");
        }
    }
}

/// The same plan with certificates that are real, validated as an API server validates them.
#[test]
fn three_years_with_real_certificates() {
    let report = run::<Authority>(&Setting {
        span: Duration::days(3 * 365),
        ..setting(2, 20)
    });
    is_sound(&report);
    assert!((4..=5).contains(&report.switches), "{report}");
    println!("{report}");
}

/// Everything within hours.
fn hurried(seed: u64) -> Setting {
    let minutes = Duration::minutes;
    let lives = Lives::new(minutes(6 * 60), minutes(7), minutes(2));
    Setting {
        span: Duration::days(14),
        lives: lives.unwrap(),
        sleep: minutes(21),
        ..setting(3, seed)
    }
}

#[test]
fn a_hurried_rotation_is_sound_as_well() {
    let report = run::<Model>(&hurried(30));
    is_sound(&report);
    assert!(report.switches > 80, "{report}");
    println!("{report}");
}

/// Each guard taken away is found out.
#[test]
fn a_broken_rule_is_reported() {
    for mutation in Mutation::BROKEN {
        let found = (40..60).find_map(|seed| {
            let whole = setting(3, seed);
            let report = run::<Model>(&Setting { mutation, ..whole });
            let found = report.violations.first().cloned();
            // With the guard all is well.
            found.filter(|_| run::<Model>(&whole).violations.is_empty())
        });
        assert!(found.is_some(), "{mutation:?} goes unnoticed");
        println!("{mutation:?}: {}", found.unwrap_or_default());
    }
}
