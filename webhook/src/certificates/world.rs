//! Store, clients and clocks of the rotation, as a cluster has them.

use certs::{
    Authority, CaCertificate, Change, Found, Heard, Lives, Names, ServedLeaf, State, Tenure, World,
};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use time::{Duration, OffsetDateTime};
use tokio::sync::watch;
use tokio::time::Instant;

use super::bundle::Followed;
use super::events::Events;
use super::secret::{CaSecret, Version};
use super::{AUTHORITY_NAME, PassError};
use crate::watch::Observed;

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

impl Sources {
    /// Waits until one of them is another. A watch that ended is reported where it is owned.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.secret.changed() => {}
            Ok(()) = self.mutating.known.changed() => {}
            Ok(()) = self.validating.known.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// The bundle of every webhook, as text. `None`: nothing is known yet.
    pub(super) fn pems(&mut self) -> Option<Vec<Vec<u8>>> {
        let mut bundles = self.mutating.pems()?;
        bundles.extend(self.validating.pems()?);
        Some(bundles)
    }
}

/// The cluster, for one replica.
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) secret: CaSecret,
    pub(super) sources: Sources,
    pub(super) names: Names,
    pub(super) lives: Lives,
    pub(super) served: ServedLeaf,
    pub(super) events: Events,
    pub(super) started: Instant,
}

impl World for Cluster {
    type Ca = Authority;
    type Version = Version;
    type Error = PassError;

    fn wall(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn uptime(&self) -> Duration {
        Duration::try_from(self.started.elapsed()).unwrap_or(Duration::MAX)
    }

    fn hear(&mut self) -> Option<Heard<CaCertificate, Version>> {
        let mut bundles = self.sources.mutating.hear()?;
        bundles.extend(self.sources.validating.hear()?);
        let version = match &*self.sources.secret.borrow_and_update() {
            Observed::Unknown => return None,
            Observed::Absent => None,
            Observed::Present(secret) => Some(Version::of(secret)),
        };
        Some(Heard { version, bundles })
    }

    async fn read(&mut self) -> Result<Found<Authority, Version>, PassError> {
        self.secret.read().await
    }

    async fn write(
        &mut self,
        state: &State,
        over: Option<&Version>,
    ) -> Result<Option<Version>, PassError> {
        self.secret.write(state, over).await
    }

    async fn publish(&mut self, bundle: &[CaCertificate]) -> Result<(), PassError> {
        // Trouble with one is no reason to leave the other.
        let mutating = self.sources.mutating.publish(&self.client, bundle).await;
        let validating = self.sources.validating.publish(&self.client, bundle).await;
        mutating.and(validating)
    }

    async fn is_trusted(&mut self, certificate: &CaCertificate) -> Result<bool, PassError> {
        let Sources {
            mutating,
            validating,
            ..
        } = &self.sources;
        Ok(mutating.trusts(&self.client, certificate).await?
            && validating.trusts(&self.client, certificate).await?)
    }

    fn make(&mut self, now: OffsetDateTime) -> Result<Authority, PassError> {
        Ok(Authority::generate(
            AUTHORITY_NAME,
            now,
            self.lives.authority(),
        )?)
    }

    fn serve(&mut self, ca: &Authority, now: OffsetDateTime) -> Result<Tenure, PassError> {
        let leaf = ca.sign(&self.names, now, self.lives.leaf())?;
        tracing::info!(not_after = %leaf.validity().not_after, "signed a new leaf");
        self.served.replace(&leaf);
        Ok(leaf.tenure().clone())
    }

    fn tell(&mut self, change: Change, state: &State, lost: Option<&str>) {
        self.events
            .tell(change, state, lost, self.secret.reference());
    }
}
