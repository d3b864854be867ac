//! The `caBundle` of webhook configurations: whom API servers trust.

use std::fmt::Debug;

use certs::{CaCertificate, bundle_pem};
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
    /// What it told when it was last listened to.
    pub heard: Observed<K>,
}

/// The two kinds of webhook configurations, which differ in nothing that matters here.
pub trait Configuration:
    kube::Resource<DynamicType = ()> + k8s_openapi::Resource + Clone + Debug + DeserializeOwned
{
    /// Name and client configuration of each webhook.
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)>;

    /// What each webhook trusts; one without a bundle, or with an unreadable one, nothing.
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

impl<K: Configuration> Followed<K> {
    /// Takes over what the watch tells.
    fn listen(&mut self) -> &Observed<K> {
        self.heard = self.known.borrow_and_update().clone();
        &self.heard
    }

    /// Listens to the watch: what each webhook trusts. One bundle that is empty stands for a
    /// configuration that has no webhooks. `None`: nothing is known yet.
    pub(super) fn hear(&mut self) -> Option<Vec<Vec<CaCertificate>>> {
        let bundles = match self.listen() {
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

    /// The bundle of each webhook as it is now known, as text. `None`: nothing is known yet.
    pub(super) fn pems(&mut self) -> Option<Vec<Vec<u8>>> {
        let configuration = match self.listen() {
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

    /// Whether every webhook trusts the certificate, asked now.
    pub(super) async fn trusts(
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

    /// Has every webhook trust `bundle`, in the configuration as it was last heard of: one that
    /// has changed meanwhile is left alone, the watch will tell.
    pub(super) async fn publish(
        &self,
        client: &Client,
        bundle: &[CaCertificate],
    ) -> Result<(), PassError> {
        let Observed::Present(configuration) = &self.heard else {
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
            // This object in this version or none; without the uid an apply would create one.
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
}
