//! The claim of a guest whose EFI variables or TPM persist, as virt-controller makes and deletes it: `handleBackendStorage`
//! in `pkg/virt-controller/watch/vmi/storage.go` and `CreatePVCForVMI` in `pkg/storage/backend-storage`, v1.5.
//!
//! The claim has the VirtualMachine as its owner and goes with that. It is found by its label alone: a claim that has the
//! label and another owner, or none, is taken, and deleted if the guest persists nothing.

use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use super::{context::Context, error::SimulatorError, machine::has_ended_or_ends};

/// The label with the name of the VirtualMachine, and the beginning of the claim's name (`PVCPrefix`).
const LABEL: &str = "persistent-state-for";
/// `PVCSize`.
const SIZE: &str = "10Mi";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Makes or deletes the claim of an instance. Returns whether the instance can go on: without a default storage class
/// it cannot (`getStorageClass`). The lab has no configuration of KubeVirt that could name one.
///
/// A guest that runs and persists nothing is not asked about: its claim was deleted while it started.
pub(super) async fn reconcile(
    context: &Context,
    namespace: &str,
    instance: &Value,
) -> Result<bool, SimulatorError> {
    let is_done = instance["status"]["phase"] == "Running" && !is_persistent(instance);
    if is_done || has_ended_or_ends(instance) {
        return Ok(true);
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let name = instance["metadata"]["name"].as_str().unwrap_or_default();
    let selector = ListParams::default().labels(&format!("{LABEL}={name}"));
    let found = claims.list(&selector).await?;
    let claim = found
        .items
        .into_iter()
        .find(|claim| claim.metadata.deletion_timestamp.is_none());
    match (claim, is_persistent(instance)) {
        (Some(claim), false) => {
            let params = DeleteParams::default();
            claims.delete(&claim.name_any(), &params).await?;
        }
        (None, true) => {
            let Some(class) = default_class(context).await? else {
                return Ok(false);
            };
            let claim = json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "generateName": format!("{LABEL}-{name}-"),
                    "labels": {LABEL: name},
                    "ownerReferences": instance["metadata"]["ownerReferences"],
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": SIZE}},
                    "storageClassName": class,
                    "volumeMode": "Filesystem",
                },
            });
            let claim = serde_json::from_value(claim)?;
            claims.create(&PostParams::default(), &claim).await?;
        }
        (Some(_), true) | (None, false) => {}
    }
    Ok(true)
}

fn is_persistent(instance: &Value) -> bool {
    let domain = &instance["spec"]["domain"];
    domain["firmware"]["bootloader"]["efi"]["persistent"] == true
        || domain["devices"]["tpm"]["persistent"] == true
}

async fn default_class(context: &Context) -> Result<Option<String>, kube::Error> {
    let classes: Api<StorageClass> = Api::all(context.client.clone());
    let classes = classes.list(&ListParams::default()).await?;
    let is_default = |class: &StorageClass| {
        class
            .annotations()
            .get(DEFAULT_CLASS)
            .is_some_and(|it| it == "true")
    };
    Ok(classes
        .items
        .iter()
        .find(|it| is_default(it))
        .map(ResourceExt::name_any))
}
