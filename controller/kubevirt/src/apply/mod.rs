//! Carries out the actions of a plan, in order.
//!
//! ```text
//! create  POST: never takes over an existing object, and strict: a field that the API server does not
//!         know is refused, not dropped. A VirtualMachine is created by server-side apply without force,
//!         so that a later apply can remove fields; another owner's VirtualMachine is a conflict
//! update of a VirtualMachine: see [`update`]
//! update  names the uid: an object that was deleted and created again is not touched
//! delete  with the uid as precondition; a claim also with the version that was observed
//! ```
//! Actions that destroy, start or overwrite something have preconditions: see [`preconditions`].

mod answer;
pub(crate) mod claim_user;
pub(crate) mod existing_disks;
pub(crate) mod live;
mod preconditions;
mod restored;
mod secret;
#[cfg(test)]
mod tests;
mod update;

use common::names;
use common::render::kubevirt::types;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub(crate) use self::answer::unanswered;
use self::live::find;
use self::preconditions::check;
use self::restored::Before;
use self::secret::{encoded, secret_patch};
use crate::objects::{Attachment, Claim, DataVolume, GuestMigration, Instance, VirtualMachine};
use crate::plan::Action;
use crate::plan::action::{ClaimPatch, Exact, ProtectedKind, Protection};
use controller_core::backend::Failed;
use controller_core::client::{ApiError, GuardedClient, Remedy};
use controller_core::events::Events;
use controller_core::machine::Machine;
use controller_core::migration;
use controller_core::objects::{Meta, Secret};
use controller_core::reset;
use controller_core::writes::{Written, merge, patch, remove_annotation};

/// Carries out one action after checking its preconditions. Returns what it wrote.
pub(crate) async fn apply(
    api: &GuardedClient,
    events: &Events,
    machine: &Machine,
    action: &Action,
) -> Result<Option<Written>, Failed> {
    check(api, machine, action).await?;
    carry_out(api, events, machine, action)
        .await
        .map_err(|error| explained(action, answer::failed(action, error)))
}

async fn carry_out(
    api: &GuardedClient,
    events: &Events,
    machine: &Machine,
    action: &Action,
) -> Result<Option<Written>, ApiError> {
    let apply = Apply { api, machine };
    match action {
        Action::CreateAttachment(desired) => {
            let made: Attachment = apply.create(desired).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::UpdateAttachment(desired) => {
            let name = &desired.metadata.name;
            let before = Before::read::<Attachment>(&apply, name).await;
            let body = json!({"metadata": {"uid": desired.metadata.uid}, "spec": desired.spec});
            let made: Attachment = apply.merge(name, &body).await?;
            apply.report(events, before.attachment(name));
            Ok(Some(Written::of(&made)))
        }
        Action::CreateClaim(desired) => {
            let made: Claim = apply.create(desired).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::PatchClaim(patch) => {
            let before = Before::read::<Claim>(&apply, &patch.name).await;
            let written = apply.patch_claim(patch).await?;
            // With another spec, the difference may be that of the Machine.
            let is_known = machine.status.observed_generation == machine.generation();
            apply.report(events, before.claim(patch).filter(|_| is_known));
            Ok(Some(written))
        }
        Action::CreateDataVolume(desired) => {
            let made: DataVolume = apply.create(desired).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::CreateImport(desired) => apply.create_import(desired).await,
        Action::ReleaseClaim { name, uid } => {
            let orphan = DeleteParams::orphan();
            apply.delete_with::<DataVolume>(name, uid, orphan).await
        }
        Action::DeleteDataVolume(import) => apply.delete_exact::<DataVolume>(import.exact()).await,
        Action::CreateSecret(desired) => {
            let made: Secret = apply.create(&encoded(desired)).await?;
            Ok(Some(Written::of(&made)))
        }
        Action::UpdateSecret(desired) => {
            let name = &desired.metadata.name;
            let before = Before::read::<Secret>(&apply, name).await;
            let made: Secret = apply.merge(name, &secret_patch(desired)).await?;
            apply.report(events, before.secret(name));
            Ok(Some(Written::of(&made)))
        }
        Action::CreateVm(desired) => apply.create_vm(desired).await.map(Some),
        Action::UpdateVm(desired) => update::update(&apply, events, desired).await.map(Some),
        Action::SetRunStrategy { uid, strategy } => {
            let written = update::switch(&apply, events, uid, strategy).await?;
            Ok(Some(written))
        }
        Action::DeleteVm { uid, .. } => apply.delete::<VirtualMachine>(machine.name(), uid).await,
        Action::DeleteInstance { uid, .. } => apply.delete::<Instance>(machine.name(), uid).await,
        Action::CreateMigration { desired, .. } => apply.create_migration(desired).await,
        Action::ResetGuest { .. } => apply.reset_guest().await.map(|()| None),
        Action::DeleteClaim(claim) => apply.delete_exact::<Claim>(claim.exact()).await,
        Action::RemoveRecreateRequest => {
            let annotation = names::ANNOTATION_RECREATE_VOLUME;
            Ok(Some(remove_annotation(api, machine, annotation).await?))
        }
        Action::SetProtection(protection) => {
            let (written, before) = apply.protect(protection).await?;
            apply.report(events, before.protection(protection));
            Ok(Some(written))
        }
        Action::RemoveDiscardConfirmation => {
            let annotation = names::ANNOTATION_DISCARD_STATE;
            Ok(Some(remove_annotation(api, machine, annotation).await?))
        }
        Action::KeepState(claim) => {
            let exact = claim.exact();
            let mut body = claim.patch();
            body["metadata"]["uid"] = json!(exact.uid());
            body["metadata"]["resourceVersion"] = json!(exact.version());
            let body = Patch::Strategic(&body);
            let kept: Claim = patch(api, machine.namespace(), exact.name(), &body).await?;
            Ok(Some(Written::of(&kept)))
        }
        Action::ConfirmGuestGone => apply.confirm_guest_gone().await.map(|()| None),
    }
}

/// Parameters of a deletion that fails if the object is no longer as it was observed.
fn unchanged(object: &Exact) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            resource_version: Some(object.version().to_owned()),
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

    async fn create<K>(&self, desired: &impl Serialize) -> Result<K, ApiError>
    where
        K: Meta + DeserializeOwned,
    {
        self.create_in(self.machine.namespace(), desired).await
    }

    /// Another Machine or an earlier pass may have created it: its name is a digest of all that it is.
    async fn create_import(
        &self,
        desired: &types::DataVolume,
    ) -> Result<Option<Written>, ApiError> {
        let namespace = &desired.metadata.namespace;
        match self.create_in::<DataVolume>(namespace, desired).await {
            Err(error) if error.is_conflict() => Ok(None),
            made => made.map(|_| None),
        }
    }

    /// An earlier pass may have created it: its name is a digest of the request.
    async fn create_migration(
        &self,
        desired: &types::Migration,
    ) -> Result<Option<Written>, ApiError> {
        match self.create::<GuestMigration>(desired).await {
            Err(error) if error.is_already_there() => Ok(None),
            made => made.map(|made| Some(Written::of(&made))),
        }
    }

    /// Asks KubeVirt's own API to reset the guest, which is served since KubeVirt 1.7 and answers without a body.
    async fn reset_guest(&self) -> Result<(), ApiError> {
        let (namespace, name) = (self.machine.namespace(), self.machine.name());
        let instances = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances"
        );
        let params = PostParams::default();
        let request = Request::new(instances).replace_subresource("reset", name, &params, vec![]);
        let request = request
            .map_err(kube::Error::BuildRequest)
            .map_err(ApiError::Refused)?;
        let client = self.api.client();
        self.api.write(client.request_text(request)).await.map(drop)
    }

    async fn create_in<K>(&self, namespace: &str, desired: &impl Serialize) -> Result<K, ApiError>
    where
        K: Meta + DeserializeOwned,
    {
        let params = PostParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let path = K::url_path(&(), Some(namespace));
        let request = serde_json::to_vec(desired)
            .map_err(kube::Error::SerdeError)
            .and_then(|body| {
                Request::new(path)
                    .create(&params, body)
                    .map_err(kube::Error::BuildRequest)
            })
            .and_then(|mut request| {
                // Strict: an image whose checksum field an older CDI does not have must not be imported unverified.
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

    async fn create_vm(&self, desired: &types::VirtualMachine) -> Result<Written, ApiError> {
        let params = PatchParams::apply(names::FIELD_MANAGER);
        let vms = self.objects::<VirtualMachine>();
        let body = Patch::Apply(update::body(self.machine, desired)?);
        let call = vms.patch(&desired.metadata.name, &params, &body);
        Ok(Written::of(&self.api.write(call).await?))
    }

    async fn patch_claim(&self, patch: &ClaimPatch) -> Result<Written, ApiError> {
        let mut body = json!({"metadata": {"uid": patch.uid, "annotations": patch.annotations}});
        if let Some(storage) = &patch.storage {
            body["spec"] = json!({"resources": {"requests": {"storage": storage}}});
        }
        Ok(Written::of(&self.merge::<Claim>(&patch.name, &body).await?))
    }

    async fn protect(&self, protection: &Protection) -> Result<(Written, Before), ApiError> {
        match protection.kind {
            ProtectedKind::VirtualMachine => self.label::<VirtualMachine>(protection).await,
            ProtectedKind::Claim => self.label::<Claim>(protection).await,
            ProtectedKind::DataVolume => self.label::<DataVolume>(protection).await,
            ProtectedKind::Secret => self.label::<Secret>(protection).await,
        }
    }

    /// Sets or removes the label that protects an object. Returns also what the object was like before.
    async fn label<K>(&self, protection: &Protection) -> Result<(Written, Before), ApiError>
    where
        K: Meta<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let Protection { name, uid, .. } = protection;
        let before = Before::read::<K>(self, name).await;
        let value = protection.is_protected.then_some("true");
        let labels = json!({names::LABEL_DELETION_PROTECTION: value});
        let annotations = json!({names::ANNOTATION_PROTECTED: value});
        let body = json!({"metadata": {"uid": uid, "labels": labels, "annotations": annotations}});
        Ok((Written::of(&self.merge::<K>(name, &body).await?), before))
    }

    /// Publishes the event of a change of another client that was undone, if there is one.
    fn report(&self, events: &Events, restored: Option<String>) {
        if let Some(message) = restored {
            events.restored(self.machine, &message);
        }
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

    async fn delete_exact<K>(&self, object: &Exact) -> Result<Option<Written>, ApiError>
    where
        K: Meta<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let params = unchanged(object);
        self.delete_with::<K>(object.name(), object.uid(), params)
            .await
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

    /// Reads from the API server, because releasing disks by a stale cache could lose one.
    async fn confirm_guest_gone(&self) -> Result<(), ApiError> {
        let (namespace, name) = (self.machine.namespace(), self.machine.name());
        if let Some(vm) = find::<VirtualMachine>(self.api, namespace, name).await? {
            if vm.belongs_to(name, self.machine.uid()) {
                return Err(still_there("VirtualMachine", name));
            }
            // With another owner's VirtualMachine of the name, the instance is not ours either.
            return Ok(());
        }
        match find::<Instance>(self.api, namespace, name).await? {
            Some(instance) if instance.machine() == Some(name) => {
                Err(still_there("VirtualMachineInstance", name))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The failure of an action. The error of a CDI that does not support checksums has a reason of its own, and a migration or
/// a reset that is refused for good, too.
fn explained(action: &Action, failed: Failed) -> Failed {
    if matches!(action, Action::CreateMigration { .. }) && failed.remedy == Remedy::UserAction {
        return Failed {
            reason: Some(migration::REFUSED),
            ..failed
        };
    }
    if matches!(action, Action::ResetGuest { .. }) && failed.remedy == Remedy::UserAction {
        return Failed {
            reason: Some(reset::REFUSED),
            message: format!(
                "KubeVirt did not reset the guest ({}): that needs version 1.7 or later, and the permissions of the shipped ClusterRole",
                failed.message
            ),
            ..failed
        };
    }
    if !failed.message.contains("spec.source.http.checksum") {
        return failed;
    }
    Failed {
        reason: Some("ImageImportUnavailable"),
        message: format!(
            "this CDI verifies no checksums ({}): install CDI v1.65 or newer, or remove image.checksum",
            failed.message
        ),
        ..failed
    }
}

fn still_there(kind: &str, name: &str) -> ApiError {
    ApiError::StaleCache(format!("{kind} {name} is still there"))
}
