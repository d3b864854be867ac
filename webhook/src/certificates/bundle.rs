//! The `caBundle` of webhook configurations: whom API servers trust.

use std::fmt::Debug;

use certs::bundle_contains;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;

use super::{FIELD_MANAGER, PassError, call};
use crate::watch::Observed;

/// A webhook configuration and what is known of it.
#[derive(Debug)]
pub struct Followed<K> {
    /// Its name.
    pub name: String,
    /// What its watch tells.
    pub known: watch::Receiver<Observed<K>>,
}

/// The two kinds of webhook configurations, which differ in nothing that matters here.
pub trait Configuration:
    kube::Resource<DynamicType = ()> + k8s_openapi::Resource + Clone + Debug + DeserializeOwned
{
    /// Name and client configuration of each webhook.
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)>;

    /// Whether there are webhooks and the bundle of each is right.
    fn all_trust(&self, right: impl Fn(&ByteString) -> bool) -> bool {
        let webhooks = self.webhooks();
        let trusts = |client: &WebhookClientConfig| client.ca_bundle.as_ref().is_some_and(&right);
        !webhooks.is_empty() && webhooks.iter().all(|(_, client)| trusts(client))
    }
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

impl<K: Configuration> Followed<K> {
    /// Sees to it that every webhook of the configuration trusts `bundle`. `false`: not known yet,
    /// or it changed meanwhile; the watch will tell.
    pub(super) async fn trust(&mut self, client: &Client, bundle: &str) -> Result<bool, PassError> {
        let configuration = match self.known.borrow_and_update().clone() {
            Observed::Unknown => return Ok(false),
            Observed::Absent => {
                return Err(PassError::NoConfiguration {
                    kind: K::KIND,
                    name: self.name.clone(),
                });
            }
            Observed::Present(configuration) => configuration,
        };
        if configuration.all_trust(|it| it.0 == bundle.as_bytes()) {
            return Ok(true);
        }
        let webhooks = configuration.webhooks();
        if webhooks.is_empty() {
            return Err(PassError::NoWebhooks {
                kind: K::KIND,
                name: self.name.clone(),
            });
        }
        let bytes = ByteString(bundle.as_bytes().to_vec());
        let entries: Vec<_> = webhooks
            .iter()
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bytes}}))
            .collect();
        let patch = json!({
            "apiVersion": K::API_VERSION,
            "kind": K::KIND,
            // With the uid the patch changes this object or none; without it an apply would create one.
            "metadata": {"name": self.name, "uid": configuration.uid()},
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
            Ok(patched) => {
                tracing::info!(
                    configuration = K::KIND,
                    name = self.name,
                    "wrote the caBundle"
                );
                Ok(patched.all_trust(|it| bundle_contains(&it.0, bundle)))
            }
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
