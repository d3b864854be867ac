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

use std::convert::Infallible;
use std::time::Duration;

use certs::{
    Authority, AuthorityError, Leaf, Names, ServedLeaf, Step, Stored, bundle_contains, plan,
};
use common::runtime::checks::Check;
use common::runtime::tasks::chain;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::metrics;
use crate::watch::Observed;

/// Who writes the bundles.
const FIELD_MANAGER: &str = "machine-webhook";
/// Beginning of the CA's name.
const AUTHORITY_NAME: &str = "machine-webhook CA";
/// Keys of the Secret.
const CERTIFICATE_KEY: &str = "ca.crt";
const PRIVATE_KEY: &str = "ca.key";
/// Between two passes when nothing happens. By the wall clock, and often: a machine that was
/// suspended notices within seconds that its leaf has ended.
const PASS_INTERVAL: Duration = Duration::from_secs(10);
/// After a pass that failed.
const RETRY: Duration = Duration::from_secs(1);
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
}

/// What is known of the objects involved.
#[derive(Debug)]
pub struct Sources {
    /// The CA Secret.
    pub secret: watch::Receiver<Observed<Secret>>,
    /// One configuration.
    pub mutating: watch::Receiver<Observed<MutatingWebhookConfiguration>>,
    /// The other.
    pub validating: watch::Receiver<Observed<ValidatingWebhookConfiguration>>,
}

/// What readiness hears of the certificates.
#[derive(Debug)]
pub struct Ready {
    /// The leaf is valid now.
    pub leaf: Check,
    /// API servers have been told to trust its issuer.
    pub bundle: Check,
}

/// Where things are in the API server.
#[derive(Clone)]
pub struct Places {
    /// How to get there.
    pub client: Client,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.secret)
    }
}

/// Keeps the certificates of this replica for ever.
#[derive(Debug)]
pub struct Keeper {
    /// Where to write.
    pub places: Places,
    /// What is there.
    pub sources: Sources,
    /// What the leaf is for.
    pub names: Names,
    /// Where the leaf is served.
    pub served: ServedLeaf,
    /// Whom to tell.
    pub ready: Ready,
}

/// What a keeper remembers between two passes.
#[derive(Debug, Default)]
struct Memory {
    authority: Option<Authority>,
    /// The Secret the authority was read from or written to.
    version: Option<SecretVersion>,
    leaf: Option<Leaf>,
    /// The CA that both configurations were seen to trust.
    trusted: Option<String>,
}

/// The uid and version of the Secret that an authority was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SecretVersion {
    uid: Option<String>,
    version: Option<String>,
}

impl SecretVersion {
    fn of(secret: &Secret) -> Self {
        Self {
            uid: secret.uid(),
            version: secret.resource_version(),
        }
    }
}

impl Keeper {
    /// Passes for ever: after every change of an object involved, and by the clock.
    pub async fn run(mut self) -> Result<(), Infallible> {
        let mut memory = Memory::default();
        let mut failing = false;
        loop {
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
                        tracing::warn!(
                            error,
                            "cannot bring the certificates in order, trying again"
                        );
                    }
                    failing = true;
                    RETRY
                }
            };
            // A watch that ended is reported where it is owned.
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = self.sources.secret.changed() => {}
                Ok(()) = self.sources.mutating.changed() => {}
                Ok(()) = self.sources.validating.changed() => {}
            }
        }
    }

    async fn pass(&mut self, memory: &mut Memory, now: OffsetDateTime) -> Result<(), PassError> {
        let secret = self.sources.secret.borrow_and_update().clone();
        let mutating = self.sources.mutating.borrow_and_update().clone();
        let validating = self.sources.validating.borrow_and_update().clone();

        let Some(()) = self.leaf(memory, &secret, now).await? else {
            return Ok(());
        };
        self.report(memory, now);
        let Some(authority) = &memory.authority else {
            return Ok(());
        };
        let bundle = authority.certificate_pem();
        // Trouble with one is no reason to leave the other.
        let mutating = self.trust(&mutating, bundle).await;
        let validating = self.trust(&validating, bundle).await;
        if mutating? && validating? {
            memory.trusted = Some(bundle.to_owned());
        }
        // An API server that once had this bundle does not need it taken out of service when
        // somebody resets it: it is put back within this pass.
        if memory.trusted.as_deref() == Some(bundle) {
            self.ready.bundle.met();
        } else {
            self.ready
                .bundle
                .missing("a webhook configuration does not have the CA yet");
        }
        Ok(())
    }

    /// Sees to it that there is a CA and a leaf of it. `None`: not known yet, or somebody else was
    /// faster and the watch will tell.
    async fn leaf(
        &self,
        memory: &mut Memory,
        secret: &Observed<Secret>,
        now: OffsetDateTime,
    ) -> Result<Option<()>, PassError> {
        let current = match secret {
            Observed::Unknown => return Ok(None),
            Observed::Absent => None,
            Observed::Present(secret) => Some(&**secret),
        };
        // A Secret that was deleted or damaged gets the CA back that API servers trust already.
        if !memory.read(current)
            && let Some(authority) = memory
                .authority
                .as_ref()
                .filter(|ca| ca.validity().contains(now))
        {
            let Some(version) = self.store(authority, current).await? else {
                return Ok(None);
            };
            tracing::warn!("the CA Secret was lost or damaged, wrote it again");
            memory.version = Some(version);
        }
        loop {
            match plan(memory.authority.as_ref(), memory.leaf.as_ref(), now) {
                Step::MakeAuthority => {
                    let authority = Authority::generate(AUTHORITY_NAME, now)?;
                    let Some(version) = self.store(&authority, current).await? else {
                        return Ok(None);
                    };
                    tracing::info!(not_after = %authority.validity().not_after, "made a new CA");
                    memory.authority = Some(authority);
                    memory.version = Some(version);
                }
                Step::SignLeaf => {
                    let Some(authority) = &memory.authority else {
                        return Ok(None);
                    };
                    let leaf = authority.sign(&self.names, now)?;
                    tracing::info!(not_after = %leaf.validity().not_after, "signed a new leaf");
                    self.served.replace(&leaf);
                    memory.leaf = Some(leaf);
                }
                Step::Nothing { .. } => return Ok(Some(())),
            }
        }
    }

    /// Stores a new CA in place of what was read. `None`: another replica was faster.
    async fn store(
        &self,
        authority: &Authority,
        current: Option<&Secret>,
    ) -> Result<Option<SecretVersion>, PassError> {
        let api: Api<Secret> = Api::namespaced(self.places.client.clone(), &self.places.namespace);
        let stored = authority.stored();
        let data = [
            (
                CERTIFICATE_KEY.to_owned(),
                ByteString(stored.certificate.clone().into_bytes()),
            ),
            (
                PRIVATE_KEY.to_owned(),
                ByteString(stored.key.clone().into_bytes()),
            ),
        ];
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            dry_run: false,
        };
        let written = match current {
            None => {
                let secret = Secret {
                    metadata: ObjectMeta {
                        name: Some(self.places.secret.clone()),
                        ..ObjectMeta::default()
                    },
                    data: Some(data.into()),
                    ..Secret::default()
                };
                call("create the CA Secret", api.create(&parameters, &secret)).await
            }
            Some(current) => {
                // Uid and resourceVersion stay in: the API server refuses when either has moved on.
                let mut secret = current.clone();
                secret.data.get_or_insert_default().extend(data);
                call(
                    "replace the CA Secret",
                    api.replace(&self.places.secret, &parameters, &secret),
                )
                .await
            }
        };
        match written {
            Ok(secret) => Ok(Some(SecretVersion::of(&secret))),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether every webhook of the configuration trusts `bundle`; where one does not, it is told.
    async fn trust<K>(&self, observed: &Observed<K>, bundle: &str) -> Result<bool, PassError>
    where
        K: Configuration,
    {
        let Observed::Present(configuration) = observed else {
            return Ok(false);
        };
        let webhooks = configuration.webhooks();
        let right = |bytes: Option<&ByteString>| bytes.is_some_and(|it| it.0 == bundle.as_bytes());
        if !webhooks.is_empty()
            && webhooks
                .iter()
                .all(|(_, client)| right(client.ca_bundle.as_ref()))
        {
            return Ok(true);
        }
        let name = configuration.name_any();
        let bundle_bytes = ByteString(bundle.as_bytes().to_vec());
        let entries: Vec<_> = webhooks
            .iter()
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle_bytes}}))
            .collect();
        let patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            // With the uid the patch changes this object or none; without it an apply would create one.
            "metadata": {"name": name, "uid": configuration.uid()},
            "webhooks": entries,
        });
        let api: Api<K> = Api::all(self.places.client.clone());
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match call(
            "write the caBundle",
            api.patch(&name, &parameters, &Patch::Apply(&patch)),
        )
        .await
        {
            Ok(patched) => {
                tracing::info!(
                    configuration = K::kind(&()).as_ref(),
                    name,
                    "wrote the caBundle"
                );
                let trusts = |client: &WebhookClientConfig| {
                    client
                        .ca_bundle
                        .as_ref()
                        .is_some_and(|it| bundle_contains(&it.0, bundle))
                };
                let webhooks = patched.webhooks();
                Ok(!webhooks.is_empty() && webhooks.iter().all(|(_, client)| trusts(client)))
            }
            // It was replaced or deleted meanwhile; the watch will tell.
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
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
    /// Takes over the CA that is stored, unless it was before. Returns whether there is a usable one.
    fn read(&mut self, secret: Option<&Secret>) -> bool {
        let Some(secret) = secret else { return false };
        let version = SecretVersion::of(secret);
        if self.version.as_ref() == Some(&version) {
            return true;
        }
        match Authority::parse(&stored(secret)) {
            Ok(authority) => {
                self.authority = Some(authority);
                self.version = Some(version);
                true
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "the CA Secret is unusable");
                false
            }
        }
    }
}

fn stored(secret: &Secret) -> Stored {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes
            .map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned())
            .unwrap_or_default()
    };
    Stored {
        certificate: text(CERTIFICATE_KEY),
        key: text(PRIVATE_KEY),
    }
}

/// The two kinds of webhook configurations, which differ in nothing that matters here.
trait Configuration:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug
{
    /// Name and client configuration of each webhook.
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)>;
}

impl Configuration for MutatingWebhookConfiguration {
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks
            .map(|webhook| (webhook.name.as_str(), &webhook.client_config))
            .collect()
    }
}

impl Configuration for ValidatingWebhookConfiguration {
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks
            .map(|webhook| (webhook.name.as_str(), &webhook.client_config))
            .collect()
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

impl PassError {
    /// Whether the object is not what it was when it was read.
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if matches!(status.code, 404 | 409))
            }
            Self::Late(_) | Self::Authority(_) => false,
        }
    }
}
