//! Keeps a leaf that API servers accept: CA Secret, leaf, `caBundle`.
//!
//! ```text
//!  CA Secret (shared) ◀─create/replace, guarded─ pass ─▶ leaf (this replica's, in memory)
//!                                                  └────▶ caBundle of every webhook of both configurations
//! ```
//!
//! Level-triggered: each pass compares everything and repairs what differs, whatever happened in
//! between. Replicas do not fight: the Secret is only written with the version it was read with,
//! and the bundle follows from the Secret alone.

mod bundle;
mod secret;

use std::convert::Infallible;
use std::time::Duration;

use certs::{Authority, AuthorityError, Leaf, Names, ServedLeaf, Step, plan};
use common::runtime::checks::Check;
use common::runtime::tasks::chain;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

pub use self::bundle::Followed;
pub use self::secret::CaSecret;
use self::secret::Version;
use crate::metrics;
use crate::watch::Observed;

/// Who writes the Secret and the bundles.
const FIELD_MANAGER: &str = "machine-webhook";
/// Beginning of the CA's name.
const AUTHORITY_NAME: &str = "machine-webhook CA";
/// Between two passes when nothing happens. By the wall clock, and often: a machine that was
/// suspended notices within seconds that its leaf has ended.
const PASS_INTERVAL: Duration = Duration::from_secs(10);
/// After a pass that failed.
const RETRY: Duration = Duration::from_secs(1);
/// Between the beginnings of two passes whatever happens: somebody who keeps writing another bundle
/// shall not make this a load on the API server.
const PASS_FLOOR: Duration = Duration::from_millis(100);
/// For one call: the client itself retries for minutes.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A pass that could not be completed.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("cannot {what}")]
    Api {
        what: &'static str,
        source: Box<kube::Error>,
    },
    #[error("cannot {0}: no answer in time")]
    Late(&'static str),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("the {kind} {name:?} does not exist")]
    NoConfiguration { kind: &'static str, name: String },
    #[error("the {kind} {name:?} has no webhooks")]
    NoWebhooks { kind: &'static str, name: String },
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

/// What is known of the objects involved.
#[derive(Debug)]
pub struct Sources {
    /// The CA Secret.
    pub secret: watch::Receiver<Observed<Secret>>,
    /// One configuration.
    pub mutating: Followed<MutatingWebhookConfiguration>,
    /// The other.
    pub validating: Followed<ValidatingWebhookConfiguration>,
}

/// What readiness hears of the certificates.
#[derive(Debug)]
pub struct Ready {
    /// The leaf is valid now.
    pub leaf: Check,
    /// API servers have been told to trust its issuer.
    pub bundle: Check,
}

/// Keeps the certificates of this replica for ever.
pub struct Keeper {
    /// How to write the bundles.
    pub client: Client,
    /// Where the CA is kept.
    pub secret: CaSecret,
    /// What is there.
    pub sources: Sources,
    /// What the leaf is for.
    pub names: Names,
    /// Where the leaf is served.
    pub served: ServedLeaf,
    /// Whom to tell.
    pub ready: Ready,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

/// What a keeper remembers between two passes.
#[derive(Debug, Default)]
struct Memory {
    authority: Option<Authority>,
    /// The Secret the authority was read from or written to.
    version: Option<Version>,
    leaf: Option<Leaf>,
    /// The CA that both configurations were seen to trust.
    trusted: Option<String>,
}

impl Keeper {
    /// Passes for ever: after every change of an object involved, and by the clock.
    pub async fn run(mut self) -> Result<(), Infallible> {
        let mut memory = Memory::default();
        let mut failing = false;
        loop {
            let floor = Instant::now() + PASS_FLOOR;
            let pause = match self.pass(&mut memory, OffsetDateTime::now_utc()).await {
                Ok(()) => {
                    failing = false;
                    PASS_INTERVAL
                }
                Err(error) => {
                    metrics::certificate_error();
                    let error = chain(&error);
                    if failing {
                        tracing::debug!(error, "certificates are still not in order");
                    } else {
                        tracing::warn!(error, "certificates are not in order, trying again");
                    }
                    failing = true;
                    RETRY
                }
            };
            // A watch that ended is reported where it is owned.
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = self.sources.secret.changed() => {}
                Ok(()) = self.sources.mutating.known.changed() => {}
                Ok(()) = self.sources.validating.known.changed() => {}
            }
            sleep_until(floor).await;
        }
    }

    async fn pass(&mut self, memory: &mut Memory, now: OffsetDateTime) -> Result<(), PassError> {
        let secret = self.sources.secret.borrow_and_update().clone();
        let settled = self.settle(memory, &secret, now).await;
        self.report(memory, now);
        if !settled? {
            return Ok(());
        }
        let Some(authority) = &memory.authority else {
            return Ok(());
        };
        let bundle = authority.certificate_pem();
        // Trouble with one is no reason to leave the other.
        let mutating = self.sources.mutating.trust(&self.client, bundle).await;
        let validating = self.sources.validating.trust(&self.client, bundle).await;
        let trusted = mutating.and_then(|mutating| Ok(validating? && mutating));
        match &trusted {
            Ok(true) => {
                memory.trusted = Some(bundle.to_owned());
                self.ready.bundle.met();
            }
            // An API server that once had this bundle does not need it taken out of service when
            // somebody resets it: it is put back within this pass.
            _ if memory.trusted.as_deref() == Some(bundle) => {}
            Ok(false) => self.ready.bundle.missing("not yet"),
            Err(error) => self.ready.bundle.missing(chain(error)),
        }
        trusted.map(drop)
    }

    /// Sees to it that there is a CA and a leaf of it. `false`: the Secret is not known yet, or
    /// another replica was faster; the watch will tell.
    async fn settle(
        &self,
        memory: &mut Memory,
        secret: &Observed<Secret>,
        now: OffsetDateTime,
    ) -> Result<bool, PassError> {
        let current = match secret {
            Observed::Unknown => return Ok(false),
            Observed::Absent => None,
            Observed::Present(secret) => Some(&**secret),
        };
        let trouble = memory.read(current);
        // A Secret that was deleted or damaged gets the CA back that API servers trust already.
        if let Some(trouble) = &trouble
            && let Some(authority) = &memory.authority
            && authority.validity().contains(now)
        {
            let Some(version) = self.secret.store(authority, current).await? else {
                return Ok(false);
            };
            tracing::warn!(reason = trouble, "wrote the CA Secret again");
            memory.version = Some(version);
        }
        loop {
            match plan(memory.authority.as_ref(), memory.leaf.as_ref(), now) {
                Step::MakeAuthority => {
                    let authority = Authority::generate(AUTHORITY_NAME, now)?;
                    let Some(version) = self.secret.store(&authority, current).await? else {
                        return Ok(false);
                    };
                    tracing::info!(
                        not_after = %authority.validity().not_after,
                        reason = trouble.as_deref().unwrap_or("the CA does not hold now"),
                        "made a new CA"
                    );
                    memory.authority = Some(authority);
                    memory.version = Some(version);
                }
                Step::SignLeaf => {
                    let Some(authority) = &memory.authority else {
                        return Ok(false);
                    };
                    let leaf = authority.sign(&self.names, now)?;
                    tracing::info!(not_after = %leaf.validity().not_after, "signed a new leaf");
                    self.served.replace(&leaf);
                    memory.leaf = Some(leaf);
                }
                Step::Nothing { .. } => return Ok(true),
            }
        }
    }

    fn report(&self, memory: &Memory, now: OffsetDateTime) {
        match &memory.leaf {
            Some(leaf) if leaf.validity().contains(now) => self.ready.leaf.met(),
            _ => self
                .ready
                .leaf
                .missing("there is no leaf that is valid now"),
        }
        let remaining = |until: OffsetDateTime| (until - now).as_seconds_f64();
        if let Some(leaf) = &memory.leaf {
            metrics::expiry("leaf", remaining(leaf.validity().not_after));
        }
        if let Some(authority) = &memory.authority {
            metrics::expiry("ca", remaining(authority.validity().not_after));
        }
    }
}

impl Memory {
    /// Takes over the CA that is stored, unless it was before. Returns why it cannot.
    fn read(&mut self, secret: Option<&Secret>) -> Option<String> {
        let Some(secret) = secret else {
            return Some("there is no CA Secret".to_owned());
        };
        let version = Version::of(secret);
        if self.version.as_ref() == Some(&version) {
            return None;
        }
        match Authority::parse(&secret::stored(secret)) {
            Ok(authority) => {
                self.authority = Some(authority);
                self.version = Some(version);
                None
            }
            Err(error) => Some(chain(&error)),
        }
    }
}
