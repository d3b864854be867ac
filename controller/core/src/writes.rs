//! Writes that every backend uses: status and finalizer of a Machine, merge patches.

use std::fmt::Debug;

use common::api::status::MachineStatus;
use common::names;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Resource as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::client::{ApiError, GuardedClient};
use crate::machine::{CachedMachine, Machine};
use crate::objects::{FINALIZERS_MAX, Meta, is_at_least};

/// An object that this replica wrote, with the version that the API server gave it. The next pass waits until
/// the caches have seen that version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Kind of the object, as the API server names it.
    pub kind: String,
    /// Name of the object; it is in the Machine's namespace.
    pub name: String,
    /// Its `resourceVersion` after the write.
    pub version: String,
}

impl Written {
    /// The object as the API server returned it.
    pub fn of<K: Meta>(object: &K) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            name: object.name().to_owned(),
            version: object.meta().resource_version.clone().unwrap_or_default(),
        }
    }

    /// Whether a cached object is at least as new as what was written: see [`is_at_least`].
    pub fn is_seen_in(&self, cached: &impl Meta) -> bool {
        is_at_least(cached.version_number(), &self.version)
    }
}

/// Writes the status of a Machine by server-side apply. The uid in the body makes the write fail if the Machine was
/// deleted and created again.
pub async fn write_status(
    api: &GuardedClient,
    machine: &Machine,
    status: &MachineStatus,
) -> Result<Written, ApiError> {
    put_status(api, machine, status, None).await
}

/// The same, only if the Machine is still the version that was observed.
pub async fn write_status_unless_changed(
    api: &GuardedClient,
    machine: &Machine,
    status: &MachineStatus,
) -> Result<Written, ApiError> {
    let version = machine.metadata.resource_version.as_deref();
    put_status(api, machine, status, version).await
}

/// Every write of a field that a later status may leave out has to be an apply: the API server removes what one apply has
/// and the next one has not, and keeps what was patched.
async fn put_status(
    api: &GuardedClient,
    machine: &Machine,
    status: &MachineStatus,
    version: Option<&str>,
) -> Result<Written, ApiError> {
    let mut body = json!({
        "apiVersion": Machine::api_version(&()),
        "kind": Machine::kind(&()),
        "metadata": {"name": machine.name(), "uid": machine.uid()},
        "status": status,
    });
    if let Some(version) = version {
        body["metadata"]["resourceVersion"] = json!(version);
    }
    let machines: Api<CachedMachine> = Api::namespaced(api.client(), machine.namespace());
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let body = Patch::Apply(&body);
    let call = machines.patch_status(machine.name(), &params, &body);
    Ok(Written::of(&api.write(call).await?))
}

/// Adds a finalizer to the object as it was observed, or removes it; returns the object after it. A merge patch replaces the
/// whole list; the resourceVersion makes it fail if the object was changed since.
pub async fn set_finalizer<K>(
    api: &GuardedClient,
    object: &impl Meta,
    finalizer: &str,
    is_wanted: bool,
) -> Result<K, ApiError>
where
    K: Meta<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let mut finalizers = finalizers_of::<K>(api, object).await?;
    finalizers.retain(|name| name != finalizer);
    finalizers.extend(is_wanted.then(|| finalizer.to_owned()));
    let body = json!({"metadata": {
        "uid": object.uid(),
        "resourceVersion": object.meta().resource_version,
        "finalizers": finalizers,
    }});
    merge(api, object.namespace(), object.name(), &body).await
}

/// All finalizers of an object. Those of one that has more than are cached are read.
async fn finalizers_of<K>(api: &GuardedClient, object: &impl Meta) -> Result<Vec<String>, ApiError>
where
    K: Meta<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let known = object.meta().finalizers.clone().unwrap_or_default();
    if known.len() <= FINALIZERS_MAX {
        return Ok(known);
    }
    let objects: Api<K> = Api::namespaced(api.client(), object.namespace());
    // As a list, which the controller may read of both kinds.
    let one = ListParams::default().fields(&format!("metadata.name={}", object.name()));
    let live = api.read(objects.list_metadata(&one)).await?.items;
    let finalizers = live.into_iter().filter_map(|it| it.metadata.finalizers);
    Ok(finalizers.flatten().collect())
}

/// Sends a merge patch; returns the object after it.
pub async fn merge<K>(
    api: &GuardedClient,
    namespace: &str,
    name: &str,
    body: &serde_json::Value,
) -> Result<K, ApiError>
where
    K: Meta<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    patch(api, namespace, name, &Patch::Merge(body)).await
}

/// Sends a patch; returns the object after it.
pub async fn patch<K>(
    api: &GuardedClient,
    namespace: &str,
    name: &str,
    body: &Patch<&serde_json::Value>,
) -> Result<K, ApiError>
where
    K: Meta<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let objects: Api<K> = Api::namespaced(api.client(), namespace);
    api.write(objects.patch(name, &params, body)).await
}

/// Removes an annotation from a Machine as it was observed: a value that was written since is kept.
pub async fn remove_annotation(
    api: &GuardedClient,
    machine: &Machine,
    annotation: &str,
) -> Result<Written, ApiError> {
    let body = json!({"metadata": {
        "uid": machine.uid(),
        "resourceVersion": machine.metadata.resource_version,
        "annotations": {annotation: null},
    }});
    let patched: CachedMachine = merge(api, machine.namespace(), machine.name(), &body).await?;
    Ok(Written::of(&patched))
}

/// Adds the controller's finalizer to a Machine.
pub async fn add_finalizer(api: &GuardedClient, machine: &Machine) -> Result<Written, ApiError> {
    let patched: CachedMachine = set_finalizer(api, machine, names::FINALIZER, true).await?;
    Ok(Written::of(&patched))
}

/// Removes the controller's finalizer from a Machine; `None`: the Machine does not exist any more.
pub async fn remove_finalizer(
    api: &GuardedClient,
    machine: &Machine,
) -> Result<Option<Written>, ApiError> {
    match set_finalizer::<CachedMachine>(api, machine, names::FINALIZER, false).await {
        Ok(patched) => Ok(Some(Written::of(&patched))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
