//! Secrets that users refer to in `spec.cloudInit` and `spec.display`.
//!
//! The controller caches the version of every Secret that it did not create, never the content: a process that holds
//! every Secret of a cluster would be worth attacking. The content of a referenced Secret is read when it is needed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use common::render::{CloudInitPlan, SecretKey, SecretValue};
use k8s_openapi::api::core::v1 as core;
use kube::Api;

use crate::client::{ApiError, GuardedClient};
use crate::objects::Meta;

/// `resourceVersion` of each Secret that the controller did not create. Clones share the content.
#[derive(Clone, Debug, Default)]
pub struct SecretVersions(Arc<RwLock<VersionMap>>);

/// `resourceVersion` by `namespace/name`.
pub(crate) type VersionMap = HashMap<Box<str>, Box<str>>;

impl SecretVersions {
    /// The version of a Secret; `None` if there is no such Secret.
    pub fn get(&self, namespace: &str, name: &str) -> Option<String> {
        // Every change of the map is one call, so a poisoned lock is safe to use.
        let versions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let version = versions.get(key(namespace, name).as_ref())?;
        Some(version.to_string())
    }

    /// Adds, removes or replaces versions.
    pub(crate) fn change(&self, change: impl FnOnce(&mut VersionMap)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

fn key(namespace: &str, name: &str) -> Box<str> {
    [namespace, "/", name].concat().into()
}

/// The entry of a Secret in a [`VersionMap`].
pub(crate) fn entry(secret: &impl Meta) -> (Box<str>, Box<str>) {
    let version = secret.meta().resource_version.as_deref();
    let key = key(secret.namespace(), secret.name());
    (key, version.unwrap_or_default().into())
}

/// Reads every Secret key that the plan refers to. `None`: the Secret or the key does not exist.
pub async fn read(
    api: &GuardedClient,
    namespace: &str,
    plan: &CloudInitPlan,
) -> Result<BTreeMap<SecretKey, Option<SecretValue>>, ApiError> {
    let secrets: Api<core::Secret> = Api::namespaced(api.client(), namespace);
    let mut contents = BTreeMap::new();
    let references: BTreeSet<&SecretKey> = plan.references().collect();
    for reference in references {
        let secret = api.read(secrets.get_opt(&reference.name)).await?;
        contents.insert(reference.clone(), reading(secret, &reference.key));
    }
    Ok(contents)
}

/// Key of the password in a Secret for a screen.
pub const DISPLAY_PASSWORD: &str = "display-password";

/// Reads the password of a screen. `None`: the Secret or the key does not exist.
pub async fn read_display_password(
    api: &GuardedClient,
    namespace: &str,
    name: &str,
) -> Result<Option<SecretValue>, ApiError> {
    let secrets: Api<core::Secret> = Api::namespaced(api.client(), namespace);
    let secret = api.read(secrets.get_opt(name)).await?;
    Ok(reading(secret, DISPLAY_PASSWORD))
}

/// The content of one key; `None`: the Secret or the key does not exist.
fn reading(secret: Option<core::Secret>, key: &str) -> Option<SecretValue> {
    let secret = secret?;
    let metadata = secret.metadata;
    let content = secret.data?.remove(key)?.0;
    Some(SecretValue::new(
        &metadata.uid.unwrap_or_default(),
        &metadata.resource_version.unwrap_or_default(),
        content,
    ))
}
