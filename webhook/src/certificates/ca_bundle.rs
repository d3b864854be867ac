//! The `caBundle` of webhook configurations: the CAs that API servers trust.

use std::fmt::Debug;

use certs::{CaCertificate, bundle_pem};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;

use super::api::{FIELD_MANAGER, PassError, call};
use crate::watch::Observed;

/// A webhook configuration that is watched.
#[derive(Debug)]
pub(super) struct WatchedConfiguration<K> {
    name: String,
    /// What the watch reports.
    pub(super) observed: watch::Receiver<Observed<K>>,
    /// The configuration as it was when its bundles were last read. A bundle is written over this
    /// version only.
    cached: Observed<K>,
}

/// What the two kinds of webhook configurations have in common.
pub(super) trait Configuration:
    kube::Resource<DynamicType = ()> + k8s_openapi::Resource + Clone + Debug + DeserializeOwned
{
    /// Name and client configuration of each webhook.
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)>;

    /// The bundle of each webhook. A missing or unreadable bundle is an empty one.
    fn bundles(&self) -> Vec<Vec<CaCertificate>> {
        let webhooks = self.webhooks().into_iter();
        let bundles = webhooks.map(|(_, client)| client.ca_bundle.as_ref());
        bundles
            .map(|bundle| bundle.map_or_else(Vec::new, parse))
            .collect()
    }
}

fn parse(bundle: &ByteString) -> Vec<CaCertificate> {
    CaCertificate::parse_bundle(&bundle.0).unwrap_or_default()
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

impl<K: Configuration> WatchedConfiguration<K> {
    pub(super) fn new(name: &str, observed: watch::Receiver<Observed<K>>) -> Self {
        Self {
            name: name.to_owned(),
            observed,
            cached: Observed::Unknown,
        }
    }

    /// Takes over what the watch reports.
    fn refresh(&mut self) -> &Observed<K> {
        self.cached = self.observed.borrow_and_update().clone();
        &self.cached
    }

    /// The bundle of each webhook as the watch reports it. A configuration that is missing or has no
    /// webhooks counts as one empty bundle. `None`: the watch has not reported yet.
    pub(super) fn bundles(&mut self) -> Option<Vec<Vec<CaCertificate>>> {
        let bundles = match self.refresh() {
            Observed::Unknown => return None,
            Observed::Absent => Vec::new(),
            Observed::Present(configuration) => configuration.bundles(),
        };
        Some(if bundles.is_empty() {
            vec![Vec::new()]
        } else {
            bundles
        })
    }

    /// The bundle of each webhook as PEM. `None`: the watch has not reported yet.
    pub(super) fn bundle_pems(&mut self) -> Option<Vec<Vec<u8>>> {
        let configuration = match self.refresh() {
            Observed::Unknown => return None,
            Observed::Absent => return Some(vec![Vec::new()]),
            Observed::Present(configuration) => configuration,
        };
        let webhooks = configuration.webhooks().into_iter();
        let bundles = webhooks.map(|(_, client)| client.ca_bundle.clone());
        Some(
            bundles
                .map(|bundle| bundle.map_or_else(Vec::new, |bytes| bytes.0))
                .collect(),
        )
    }

    /// Whether the bundle of every webhook contains the certificate, by a live read.
    pub(super) async fn contains(
        &self,
        client: &Client,
        certificate: &CaCertificate,
    ) -> Result<bool, PassError> {
        let api: Api<K> = Api::all(client.clone());
        let read = call("read a webhook configuration", api.get_opt(&self.name));
        let Some(configuration) = read.await? else {
            return Ok(false);
        };
        let bundles = configuration.bundles();
        Ok(!bundles.is_empty() && bundles.iter().all(|bundle| bundle.contains(certificate)))
    }

    /// Writes `bundle` to every webhook of the cached version. If the configuration has changed since,
    /// nothing is written: the watch will report the change.
    pub(super) async fn publish(
        &self,
        client: &Client,
        bundle: &[CaCertificate],
    ) -> Result<(), PassError> {
        let Observed::Present(configuration) = &self.cached else {
            return Err(PassError::NoConfiguration {
                kind: K::KIND,
                name: self.name.clone(),
            });
        };
        let webhooks = configuration.webhooks();
        if webhooks.is_empty() {
            return Err(PassError::NoWebhooks {
                kind: K::KIND,
                name: self.name.clone(),
            });
        }
        if configuration.bundles().iter().all(|there| there == bundle) {
            return Ok(());
        }
        let bytes = ByteString(bundle_pem(bundle).into_bytes());
        let entries: Vec<_> = webhooks
            .iter()
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bytes}}))
            .collect();
        let patch = json!({
            "apiVersion": K::API_VERSION,
            "kind": K::KIND,
            // The uid and version are preconditions. Without the uid, applying to a configuration that
            // was deleted would create it again.
            "metadata": {
                "name": self.name,
                "uid": configuration.uid(),
                "resourceVersion": configuration.resource_version(),
            },
            "webhooks": entries,
        });
        let api: Api<K> = Api::all(client.clone());
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&patch);
        let written = call(
            "write the caBundle",
            api.patch(&self.name, &parameters, &patch),
        );
        match written.await {
            Ok(_) => {
                tracing::info!(
                    configuration = K::KIND,
                    name = self.name,
                    certificates = bundle.len(),
                    "wrote the caBundle"
                );
                Ok(())
            }
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives up the ownership of the bundles in the cached version, if this program has it.
    ///
    /// A server-side apply of a release that has fewer webhooks removes the others, but not the fields of a webhook that
    /// another manager owns. With a bundle and nothing else such a webhook is invalid, so that the whole apply would be refused.
    pub(super) async fn disown(&self, client: &Client) -> Result<(), PassError> {
        let Observed::Present(configuration) = &self.cached else {
            return Ok(());
        };
        let owners = configuration.managed_fields();
        let is_ours = |owner: &&ManagedFieldsEntry| owner.manager.as_deref() == Some(FIELD_MANAGER);
        if !owners.iter().any(|owner| is_ours(&owner)) {
            return Ok(());
        }
        // An empty list would leave the owners as they are; one without a name removes them.
        let nobody = ManagedFieldsEntry::default();
        let mut others: Vec<_> = owners.iter().filter(|owner| !is_ours(owner)).collect();
        if others.is_empty() {
            others.push(&nobody);
        }
        let patch = json!({"metadata": {
            "uid": configuration.uid(),
            "resourceVersion": configuration.resource_version(),
            "managedFields": others,
        }});
        let api: Api<K> = Api::all(client.clone());
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let written = call(
            "give up the ownership of the caBundle",
            api.patch(&self.name, &parameters, &patch),
        );
        match written.await {
            Err(error) if !error.is_conflict() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}
