//! The environment of the rotation in a cluster: Secret, webhook configurations and clocks.

use certs::{
    Ca, CaCertificate, Cached, Change, Environment, LeafInfo, Lifetimes, LiveRead,
    ServerCertResolver, ServerNames, State, Version,
};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use time::{Duration, OffsetDateTime};
use tokio::sync::watch;
use tokio::time::Instant;

use super::api::PassError;
use super::ca_bundle::WatchedConfiguration;
use super::ca_secret::{CaSecret, version_of};
use super::events::EventSender;
use crate::watch::Observed;

/// Start of the common name of a CA.
const CA_NAME: &str = "machine-webhook CA";

/// The objects involved, as their watches report them.
#[derive(Debug)]
pub(super) struct WatchedObjects {
    pub(super) secret: watch::Receiver<Observed<Secret>>,
    pub(super) mutating: WatchedConfiguration<MutatingWebhookConfiguration>,
    pub(super) validating: WatchedConfiguration<ValidatingWebhookConfiguration>,
}

impl WatchedObjects {
    /// Waits for a change of one of them. The task of a watch reports when the watch ends.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.secret.changed() => {}
            Ok(()) = self.mutating.observed.changed() => {}
            Ok(()) = self.validating.observed.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// The bundle of every webhook as PEM. `None`: a watch has not reported yet.
    pub(super) fn bundle_pems(&mut self) -> Option<Vec<Vec<u8>>> {
        let mut bundles = self.mutating.bundle_pems()?;
        bundles.extend(self.validating.bundle_pems()?);
        Some(bundles)
    }
}

/// The environment of this replica.
pub(super) struct ClusterEnvironment {
    pub(super) client: Client,
    pub(super) secret: CaSecret,
    pub(super) objects: WatchedObjects,
    /// Names of the leaf.
    pub(super) names: ServerNames,
    pub(super) lifetimes: Lifetimes,
    /// Presents the leaf.
    pub(super) resolver: ServerCertResolver,
    pub(super) events: EventSender,
    /// When the process started.
    pub(super) started: Instant,
}

impl ClusterEnvironment {
    /// Gives up the ownership of every bundle.
    pub(super) async fn disown_bundles(&self) -> Result<(), PassError> {
        let mutating = self.objects.mutating.disown(&self.client).await;
        let validating = self.objects.validating.disown(&self.client).await;
        mutating.and(validating)
    }
}

impl Environment for ClusterEnvironment {
    type Error = PassError;

    fn wall_clock(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn uptime(&self) -> Duration {
        Duration::try_from(self.started.elapsed()).unwrap_or(Duration::MAX)
    }

    fn cached(&mut self) -> Option<Cached> {
        let mut bundles = self.objects.mutating.bundles()?;
        bundles.extend(self.objects.validating.bundles()?);
        let version = match &*self.objects.secret.borrow_and_update() {
            Observed::Unknown => return None,
            Observed::Absent => None,
            Observed::Present(secret) => Some(version_of(secret)),
        };
        Some(Cached { version, bundles })
    }

    async fn read(&mut self) -> Result<LiveRead, PassError> {
        self.secret.read().await
    }

    async fn write(
        &mut self,
        state: &State,
        expected: Option<&Version>,
    ) -> Result<Option<Version>, PassError> {
        self.secret.write(state, expected).await
    }

    async fn publish(&mut self, bundle: &[CaCertificate]) -> Result<(), PassError> {
        // Write the second configuration even if the first one failed.
        let mutating = self.objects.mutating.publish(&self.client, bundle).await;
        let validating = self.objects.validating.publish(&self.client, bundle).await;
        mutating.and(validating)
    }

    async fn is_trusted(&mut self, certificate: &CaCertificate) -> Result<bool, PassError> {
        let WatchedObjects {
            mutating,
            validating,
            ..
        } = &self.objects;
        Ok(mutating.contains(&self.client, certificate).await?
            && validating.contains(&self.client, certificate).await?)
    }

    fn generate_ca(&mut self, now: OffsetDateTime) -> Result<Ca, PassError> {
        Ok(Ca::generate(CA_NAME, now, self.lifetimes.ca())?)
    }

    fn serve_new_leaf(&mut self, ca: &Ca, now: OffsetDateTime) -> Result<LeafInfo, PassError> {
        let leaf = ca.sign(&self.names, now, self.lifetimes.leaf())?;
        tracing::info!(not_after = %leaf.validity().not_after, "signed a new leaf");
        self.resolver.set_leaf(&leaf);
        Ok(leaf.info().clone())
    }

    fn report(&mut self, change: Change, state: &State, lost: Option<&str>) {
        let secret = self.secret.reference();
        self.events.report(change, state, lost, secret);
    }
}
