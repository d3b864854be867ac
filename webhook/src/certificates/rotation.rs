//! The self-managed mode: rotates the CA and the leaf of this replica.

use std::convert::Infallible;
use std::time::Duration;

use certs::{CaCertificate, Outcome, Rotator};
use runtime::tasks::chain;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, sleep_until};

use super::api::PassError;
use super::environment::ClusterEnvironment;
use super::status::{FailureLog, Readiness};
use crate::metrics;

/// Pause after a pass that failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Least time between the starts of two passes: a writer that keeps storing another bundle must not
/// cause an endless stream of calls to the API server.
const PASS_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Rotates CA and leaf for ever.
pub(super) struct Rotation {
    pub(super) environment: ClusterEnvironment,
    /// Longest time between two passes. It is short because a machine that was suspended notices only
    /// in a pass that its leaf has expired.
    pub(super) poll: Duration,
    pub(super) readiness: Readiness,
}

impl Rotation {
    /// Makes a pass after every change of an object involved, and at least once per `poll`.
    pub(super) async fn run(mut self) -> Result<(), Infallible> {
        let mut rotator = Rotator::new(self.environment.lifetimes);
        let mut log = FailureLog::default();
        // The issuer that every bundle was seen to contain.
        let mut trusted = None;
        loop {
            let not_before = Instant::now() + PASS_INTERVAL_MIN;
            let result = rotator.pass(&mut self.environment).await;
            let error = result.as_ref().err();
            report(&rotator, &self.readiness, &mut trusted, error);
            // The watch reports a bundle that this pass has written; the next pass gives up its ownership.
            if let Err(error) = self.environment.disown_bundles().await {
                tracing::warn!(error = chain(&error), "the caBundle keeps its owner");
            }
            let pause = match result {
                Ok(outcome) => {
                    log.succeeded();
                    match outcome {
                        Outcome::Done => jitter(self.poll),
                        Outcome::Retry => RETRY_DELAY,
                    }
                }
                Err(error) => {
                    log.failed(error.fault(), &error);
                    RETRY_DELAY
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.environment.objects.changed() => {}
            }
            sleep_until(not_before).await;
        }
    }
}

/// A tenth more or less, so that replicas do not call the API server at the same time.
fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.9 + 0.2 * fastrand::f64())
}

fn report(
    rotator: &Rotator,
    readiness: &Readiness,
    trusted: &mut Option<CaCertificate>,
    error: Option<&PassError>,
) {
    match rotator.leaf() {
        Some(leaf) if leaf.validity.contains(OffsetDateTime::now_utc()) => readiness.leaf.met(),
        _ => readiness.leaf.missing("there is no valid leaf certificate"),
    }
    if let Some(leaf) = rotator.leaf() {
        metrics::certificate("leaf", leaf.validity);
    }
    if let Some(state) = rotator.state() {
        metrics::certificate("ca", state.current.validity());
        metrics::ca_phase(state.phase());
    }
    match rotator.leaf().map(|leaf| &leaf.issuer) {
        Some(issuer) if rotator.trust().is_trusted(issuer) => {
            *trusted = Some(issuer.clone());
            readiness.bundle.met();
        }
        // Another writer has reset a bundle that API servers already had. It is written again within this
        // pass, and an unready replica would only make the outage longer.
        Some(issuer) if trusted.as_ref() == Some(issuer) => {}
        _ => match error {
            Some(error) => readiness.bundle.missing(chain(error)),
            None => readiness.bundle.missing("not yet"),
        },
    }
}
