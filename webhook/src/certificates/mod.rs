//! Keeps a leaf that API servers accept.
//!
//! ```text
//!  self-managed  CA Secret (shared) ◀─guarded writes─ rotation ─▶ leaf (this replica's, in memory)
//!                                                        └──────▶ caBundle of every webhook
//!  files         folder ──polled by content──▶ pair ──▶ served    caBundle is somebody else's
//! ```
//!
//! What is to be done is decided in `certs`; here is how it is done in a cluster. Level-triggered:
//! each pass compares everything and repairs what differs, whatever happened in between.

pub mod args;
mod bundle;
mod clients;
mod events;
mod files;
mod secret;
mod world;

use std::convert::Infallible;
use std::time::Duration;

use certs::{AuthorityError, CaCertificate, Keeper, Lives, Names, Outcome, ServedLeaf};
use kube::Client;
use runtime::checks::Check;
use runtime::tasks::chain;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, sleep_until, timeout};

pub use self::bundle::Followed;
pub use self::clients::ClientCa;
pub use self::events::{Events, events};
pub use self::files::Files;
pub use self::secret::CaSecret;
use self::world::Cluster;
pub use self::world::Sources;
use crate::metrics::{self, CertificateFault};

/// Who writes the Secret and the bundles.
const FIELD_MANAGER: &str = "machine-webhook";
/// Beginning of the CA's name.
const AUTHORITY_NAME: &str = "machine-webhook CA";
/// After a pass that failed.
const RETRY: Duration = Duration::from_secs(1);
/// Between the beginnings of two passes whatever happens: somebody who keeps writing another bundle
/// shall not make this a load on the API server.
const PASS_FLOOR: Duration = Duration::from_millis(100);
/// For one call: the client itself retries for minutes.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A pass that could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The API server refused or failed.
    #[error("cannot {what}")]
    Api {
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        source: Box<kube::Error>,
    },
    /// It did not answer.
    #[error("cannot {0}: no answer in time")]
    Late(&'static str),
    /// No certificate could be made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The manifests are not installed, or the settings name others.
    #[error("the {kind} {name:?} does not exist")]
    NoConfiguration {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Nobody would ask.
    #[error("the {kind} {name:?} has no webhooks")]
    NoWebhooks {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

impl PassError {
    /// Whether the object is not what it was when it was read; the watch will tell.
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if matches!(status.code, 404 | 409))
            }
            _ => false,
        }
    }

    fn fault(&self) -> CertificateFault {
        match self {
            Self::Api { .. } | Self::Late(_) => CertificateFault::Api,
            Self::Authority(_) => CertificateFault::Signing,
            Self::NoConfiguration { .. } | Self::NoWebhooks { .. } => {
                CertificateFault::Configuration
            }
        }
    }
}

/// One call within its limit.
async fn call<T>(
    what: &'static str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, PassError> {
    match timeout(CALL_LIMIT, call).await {
        Ok(result) => result.map_err(|source| PassError::Api {
            what,
            source: Box::new(source),
        }),
        Err(_) => Err(PassError::Late(what)),
    }
}

/// What readiness hears of the certificates.
#[derive(Debug)]
pub struct Ready {
    /// The leaf is valid now.
    pub leaf: Check,
    /// API servers have been told to trust its issuer.
    pub bundle: Check,
}

/// Rotates CA and leaf of this replica for ever.
pub struct Rotation {
    /// How to write the bundles.
    pub client: Client,
    /// Where the CAs are kept.
    pub secret: CaSecret,
    /// What is there.
    pub sources: Sources,
    /// What the leaf is for.
    pub names: Names,
    /// How long everything lasts.
    pub lives: Lives,
    /// Between two passes when nothing happens. By the wall clock, and often: a machine that was
    /// suspended notices within seconds that its leaf has ended.
    pub poll: Duration,
    /// Where the leaf is served.
    pub served: ServedLeaf,
    /// Where changes are told.
    pub events: Events,
    /// Whom to tell.
    pub ready: Ready,
}

impl std::fmt::Debug for Rotation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rotation")
            .field("names", &self.names)
            .field("lives", &self.lives)
            .finish_non_exhaustive()
    }
}

impl Rotation {
    /// Passes for ever: after every change of an object involved, and by the clock.
    pub async fn run(self) -> Result<(), Infallible> {
        let Self { ready, poll, .. } = self;
        let mut cluster = Cluster {
            client: self.client,
            secret: self.secret,
            sources: self.sources,
            names: self.names,
            lives: self.lives,
            served: self.served,
            events: self.events,
            started: Instant::now(),
        };
        let mut keeper = Keeper::new(self.lives);
        let mut log = FailureLog::default();
        // The CA that all webhooks were seen to trust.
        let mut trusted = None;
        loop {
            let floor = Instant::now() + PASS_FLOOR;
            let passed = keeper.pass(&mut cluster).await;
            report(&keeper, &ready, &mut trusted, passed.as_ref().err());
            let pause = match passed {
                Ok(outcome) => {
                    log.is_over();
                    match outcome {
                        Outcome::Done => spread(poll),
                        Outcome::Wait => RETRY,
                    }
                }
                Err(error) => {
                    log.tell(error.fault(), &error);
                    RETRY
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = cluster.sources.changed() => {}
            }
            sleep_until(floor).await;
        }
    }
}

/// A tenth more or less, so that replicas do not ask in step.
fn spread(pause: Duration) -> Duration {
    pause.mul_f64(0.9 + 0.2 * fastrand::f64())
}

/// One warning per trouble, not per attempt.
#[derive(Debug, Default)]
struct FailureLog(bool);

impl FailureLog {
    fn tell(&mut self, fault: CertificateFault, error: &dyn std::error::Error) {
        metrics::certificate_error(fault);
        let error = chain(error);
        if std::mem::replace(&mut self.0, true) {
            tracing::debug!(error, "certificates are still not in order");
        } else {
            tracing::warn!(error, "certificates are not in order, trying again");
        }
    }

    fn is_over(&mut self) {
        self.0 = false;
    }
}

/// Seconds until then.
fn remaining(until: OffsetDateTime) -> f64 {
    (until - OffsetDateTime::now_utc()).as_seconds_f64()
}

fn report(
    keeper: &Keeper<Cluster>,
    ready: &Ready,
    trusted: &mut Option<CaCertificate>,
    error: Option<&PassError>,
) {
    let issuer = keeper.leaf().map(|leaf| &leaf.issuer);
    match keeper.leaf() {
        Some(leaf) if leaf.validity.contains(OffsetDateTime::now_utc()) => ready.leaf.met(),
        _ => ready.leaf.missing("there is no leaf that is valid now"),
    }
    if let Some(leaf) = keeper.leaf() {
        metrics::expiry("leaf", remaining(leaf.validity.not_after));
    }
    if let Some(state) = keeper.state() {
        metrics::expiry("ca", remaining(state.current.validity().not_after));
        metrics::phase(state.phase());
    }
    match issuer {
        Some(issuer) if keeper.trust().has(issuer) => {
            *trusted = Some(issuer.clone());
            ready.bundle.met();
        }
        // An API server that once had this bundle does not need it taken out of service when
        // somebody resets it: it is put back within this pass.
        Some(issuer) if trusted.as_ref() == Some(issuer) => {}
        _ => match error {
            Some(error) => ready.bundle.missing(chain(error)),
            None => ready.bundle.missing("not yet"),
        },
    }
}
