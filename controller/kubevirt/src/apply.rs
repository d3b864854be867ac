//! Carries out the actions of a plan, in order.
//!
//! ```text
//! make    POST: never takes over an object of that name, and strict: a field that the other side
//!         does not know is refused, not dropped. A VirtualMachine is made by server-side apply
//!         without force, so that a later apply can take fields away again; on somebody else's
//!         VirtualMachine that is a conflict
//! change  names the uid: an object that was made anew in between is not touched
//! delete  with the uid as precondition; a claim also with the version it was seen at
//! ```

use common::names;
use common::render::kubevirt::types;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::objects::data_volume::DataVolume;
use crate::objects::{Attachment, Claim, Instance, VirtualMachine};
use crate::plan::{Action, ClaimPatch};
use controller_core::client::{ApiError, GuardedClient};
use controller_core::machine::Machine;
use controller_core::objects::{Meta, Secret};
use controller_core::writes::{Written, merge};

/// Carries out one action; tells what it wrote.
pub(crate) async fn apply(
    api: &GuardedClient,
    machine: &Machine,
    action: &Action,
) -> Result<Option<Written>, ApiError> {
    let apply = Apply { api, machine };
    match action {
        Action::CreateAttachment(wish) => {
            let made: Attachment = apply.create(wish).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::UpdateAttachment(wish) => {
            let body = json!({"metadata": {"uid": wish.metadata.uid}, "spec": wish.spec});
            let made: Attachment = apply.merge(&wish.metadata.name, &body).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::CreateClaim(wish) => {
            let made: Claim = apply.create(wish).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::PatchClaim(patch) => apply.patch_claim(patch).await.map(Some),
        Action::CreateDataVolume(wish) => {
            let made: DataVolume = apply.create(wish).await.map_err(explained)?;
            Ok(Some(Written::of(&made)))
        }
        Action::ReleaseClaim { name, uid } => {
            let orphan = DeleteParams::orphan();
            apply.delete_with::<DataVolume>(name, uid, orphan).await
        }
        Action::DeleteDataVolume { name, uid, version } => {
            let params = unchanged(version.as_ref());
            apply.delete_with::<DataVolume>(name, uid, params).await
        }
        Action::CreateSecret(wish) => {
            let made: Secret = apply.create(&encoded(wish)).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::UpdateSecret(wish) => {
            let made: Secret = apply
                .merge(&wish.metadata.name, &secret_patch(wish))
                .await?;
            Ok(Some(Written::of(&made)))
        }
        Action::CreateVm(wish) => apply.vm(wish, false).await.map(Some),
        Action::UpdateVm(wish) => apply.vm(wish, true).await.map(Some),
        Action::SetRunStrategy { uid, strategy } => {
            let body = json!({"metadata": {"uid": uid}, "spec": {"runStrategy": strategy}});
            let made: VirtualMachine = apply.merge(machine.name(), &body).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::DeleteVm { uid } => apply.delete::<VirtualMachine>(machine.name(), uid).await,
        Action::DeleteInstance { uid } => apply.delete::<Instance>(machine.name(), uid).await,
        Action::DeleteClaim { name, uid, version } => {
            let params = unchanged(version.as_ref());
            apply.delete_with::<Claim>(name, uid, params).await
        }
        Action::ConfirmUnused { claim } => apply.confirm_unused(claim.as_deref()).await,
    }
}

/// A deletion of what is still as it was seen.
fn unchanged(version: Option<&String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            resource_version: version.cloned(),
            uid: None,
        }),
        ..DeleteParams::background()
    }
}

/// One Machine's objects at the API server.
struct Apply<'a> {
    api: &'a GuardedClient,
    machine: &'a Machine,
}

impl Apply<'_> {
    fn objects<K: Meta<Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.api.client(), self.machine.namespace())
    }

    async fn create<K>(&self, wish: &impl Serialize) -> Result<K, ApiError>
    where
        K: Meta + DeserializeOwned,
    {
        let params = PostParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let path = K::url_path(&(), Some(self.machine.namespace()));
        let request = serde_json::to_vec(wish)
            .map_err(kube::Error::SerdeError)
            .and_then(|body| {
                Request::new(path)
                    .create(&params, body)
                    .map_err(kube::Error::BuildRequest)
            })
            .and_then(|mut request| {
                // What the API server would drop it refuses: no image is imported unverified.
                let strict = format!("{}&fieldValidation=Strict", request.uri());
                *request.uri_mut() = strict
                    .parse()
                    .map_err(Into::into)
                    .map_err(kube::Error::HttpError)?;
                Ok(request)
            })
            .map_err(ApiError::Refused)?;
        self.api
            .write(self.api.client().request::<K>(request))
            .await
    }

    async fn merge<K>(&self, name: &str, body: &serde_json::Value) -> Result<K, ApiError>
    where
        K: Meta<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        merge(self.api, self.machine.namespace(), name, body).await
    }

    async fn vm(&self, wish: &types::VirtualMachine, force: bool) -> Result<Written, ApiError> {
        let params = PatchParams {
            force,
            ..PatchParams::apply(names::FIELD_MANAGER)
        };
        let vms = self.objects::<VirtualMachine>();
        let body = Patch::Apply(wish);
        let call = vms.patch(&wish.metadata.name, &params, &body);
        Ok(Written::of(&self.api.write(call).await?))
    }

    async fn patch_claim(&self, patch: &ClaimPatch) -> Result<Written, ApiError> {
        let mut body = json!({"metadata": {"uid": patch.uid, "annotations": patch.annotations}});
        if let Some(storage) = &patch.storage {
            body["spec"] = json!({"resources": {"requests": {"storage": storage}}});
        }
        Ok(Written::of(&self.merge::<Claim>(&patch.name, &body).await?))
    }

    async fn delete<K>(&self, name: &str, uid: &str) -> Result<Option<Written>, ApiError>
    where
        K: Meta<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let params = DeleteParams::default();
        self.delete_with::<K>(name, uid, params).await
    }

    async fn delete_with<K>(
        &self,
        name: &str,
        uid: &str,
        mut params: DeleteParams,
    ) -> Result<Option<Written>, ApiError>
    where
        K: Meta<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        params.preconditions.get_or_insert_default().uid = Some(uid.to_owned());
        match self
            .api
            .write(self.objects::<K>().delete(name, &params))
            .await
        {
            Err(error) if !error.is_not_found() => Err(error),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Asks the API server itself, because a cache that is behind would cost a disk.
    async fn confirm_unused(&self, claim: Option<&str>) -> Result<Option<Written>, ApiError> {
        let name = self.machine.name();
        if let Some(vm) = self.find::<VirtualMachine>(name).await? {
            let ours = vm.belongs_to(name, self.machine.uid());
            match claim {
                None if ours => return Err(behind("VirtualMachine", name)),
                // It is not ours, and so is its instance.
                None => return Ok(None),
                Some(claim) if vm.uses(claim) => {
                    return Err(behind("VirtualMachine", name));
                }
                Some(_) => {}
            }
        }
        if let Some(instance) = self.find::<Instance>(name).await?
            && claim.is_none_or(|claim| instance.uses(claim))
        {
            return Err(behind("VirtualMachineInstance", name));
        }
        Ok(None)
    }

    /// The object, or the certainty that there is none: either it is not found by name, or its
    /// kind's CRD does not exist. A 404 alone is not enough: an API server that has not loaded a
    /// CRD yet answers it, too.
    async fn find<K>(&self, name: &str) -> Result<Option<K>, ApiError>
    where
        K: Meta<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        match self.api.read(self.objects::<K>().get(name)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if !error.is_not_found() => Err(error),
            Err(error) if names_object(&error, name) => Ok(None),
            Err(_) => {
                let crds: Api<CustomResourceDefinition> = Api::all(self.api.client());
                let crd = format!("{}.{}", K::plural(&()), K::group(&()));
                match self.api.read(crds.get_opt(&crd)).await? {
                    None => Ok(None),
                    Some(_) => Err(ApiError::StaleCache(format!(
                        "the API server has {crd} and does not serve it yet"
                    ))),
                }
            }
        }
    }
}

/// Says what to do about a CDI that has no place for a checksum.
fn explained(error: ApiError) -> ApiError {
    match error {
        ApiError::Refused(kube::Error::Api(mut status))
            if status.message.contains("spec.source.http.checksum") =>
        {
            status.message = format!(
                "this CDI verifies no checksums ({}): install CDI v1.65 or newer, or remove image.checksum",
                status.message
            );
            ApiError::Refused(kube::Error::Api(status))
        }
        other => other,
    }
}

/// Whether a 404 is about the object and not about its kind.
fn names_object(error: &ApiError, name: &str) -> bool {
    matches!(error, ApiError::Refused(kube::Error::Api(status))
        if status.details.as_ref().is_some_and(|details| details.name == name))
}

fn behind(kind: &str, name: &str) -> ApiError {
    ApiError::StaleCache(format!("{kind} {name} is still there"))
}

/// A Secret as the API server takes it.
fn encoded(wish: &types::Secret) -> core::Secret {
    let metadata = &wish.metadata;
    let owners = metadata
        .owner_references
        .iter()
        .map(|owner| OwnerReference {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: Some(owner.controller),
            block_owner_deletion: None,
        });
    let data = wish.data.iter();
    core::Secret {
        metadata: ObjectMeta {
            name: Some(metadata.name.clone()),
            namespace: Some(metadata.namespace.clone()),
            uid: metadata.uid.clone(),
            labels: Some(metadata.labels.clone()),
            annotations: Some(metadata.annotations.clone()),
            owner_references: Some(owners.collect()),
            ..ObjectMeta::default()
        },
        data: Some(
            data.map(|(key, content)| (key.clone(), ByteString(content.clone())))
                .collect(),
        ),
        ..core::Secret::default()
    }
}

/// Every key a Secret of ours can have: those that are not wished are removed.
const SECRET_KEYS: [&str; 5] = [
    "userdata",
    "networkdata",
    "user-data",
    "network-config",
    "meta-data",
];

fn secret_patch(wish: &types::Secret) -> serde_json::Value {
    let mut data: serde_json::Map<_, _> = SECRET_KEYS
        .iter()
        .map(|key| ((*key).to_owned(), serde_json::Value::Null))
        .collect();
    for (key, content) in &wish.data {
        data.insert(key.clone(), json!(ByteString(content.clone())));
    }
    json!({
        "metadata": {"uid": wish.metadata.uid, "annotations": wish.metadata.annotations},
        "data": data,
    })
}
