//! Clients that use as many connections, as much memory and as much time as they can get: every other client is
//! answered, and the memory stays within its limit. How long the answers take is printed and decides nothing;
//! `tests/lab bench-load` measures it.

mod environment;

use std::time::Duration;

use lab::{
    Binary,
    load::{self, Load},
};

use environment::Environment;

/// How long each program is observed under each load.
const SPAN: Duration = Duration::from_secs(1);

#[tokio::test]
async fn every_other_client_is_answered_within_the_memory_limit() {
    let mut env = Environment::new().await;
    println!("{}", load::heading());
    for load in [
        Load::StuckProbes(32),
        Load::IdleMetrics(1000),
        Load::LargeBodies(50),
    ] {
        for program in [&mut env.webhook, &mut env.controller] {
            if program.binary() == Binary::Controller && matches!(load, Load::LargeBodies(_)) {
                continue;
            }
            let noticed = load::under(&env.lab, program, load, SPAN).await.unwrap();
            println!("{noticed}");
            let is_webhook = noticed.binary == Binary::Webhook;
            assert_eq!(noticed.reviews.count() > 0, is_webhook, "{noticed:?}");
            assert!(noticed.peak_mib < noticed.limit_mib, "{noticed}");
        }
    }
}
