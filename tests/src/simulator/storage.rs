//! Plays the provisioner, the binder, the resizer and CDI's importer.

use std::{sync::Arc, time::Duration};

use common::quantity::Bytes;
use futures::Stream;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Resource as _, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        controller::{Action, Controller},
        watcher,
    },
};
use serde_json::{Value, json};

use super::{
    Kind, Script, Stage, age, drain,
    machine::{MACHINE, PlayError},
    retry,
};

pub(super) const DATA_VOLUME: Kind = Kind {
    group: "cdi.kubevirt.io",
    version: "v1beta1",
    name: "DataVolume",
    plural: "datavolumes",
};

/// The label by which a claim says whose script it plays.
const MACHINE_LABEL: &str = "vitistack.io/machine";

/// How long the slow script takes for a volume.
const SLOW: Duration = Duration::from_secs(2);

/// Looking again for a storage class that is not there yet.
const SOON: Duration = Duration::from_millis(500);

pub(super) async fn claims(stage: Arc<Stage>, changed: impl Stream<Item = ()> + Send + 'static) {
    let api: Api<PersistentVolumeClaim> = Api::all(stage.client.clone());
    let controller = Controller::new(api, watcher::Config::default())
        .reconcile_all_on(changed)
        .run(provide, retry, stage);
    drain(controller).await;
}

async fn provide(
    claim: Arc<PersistentVolumeClaim>,
    stage: Arc<Stage>,
) -> Result<Action, PlayError> {
    let namespace = claim.namespace().unwrap_or_default();
    let name = claim.name_any();
    let script = stage.scripts.of(&namespace, &player(&*claim));
    let wanted = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let bound = claim
        .status
        .as_ref()
        .is_some_and(|status| status.phase.as_deref() == Some("Bound"));
    let capacity = claim
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage"));
    let large_enough = bytes(capacity) >= bytes(wanted);
    if claim.meta().deletion_timestamp.is_some() || (bound && large_enough) {
        return Ok(Action::await_change());
    }
    if script == Script::PvcPending {
        return Ok(Action::await_change());
    }
    if script == Script::Slow && age(claim.meta().creation_timestamp.as_ref()) < SLOW {
        return Ok(Action::requeue(SOON));
    }
    let made = format!("pvc-{}", claim.uid().unwrap_or_default());
    let asks = !bound && asks_for_one_that_exists(&claim, &made);
    let existing = if asks {
        take(&stage, &claim).await?
    } else {
        None
    };
    if !bound && existing.is_none() && (asks || !provisionable(&stage, &claim).await?) {
        return Ok(Action::requeue(SOON));
    }
    if script == Script::FirstConsumer && !bound && !is_consumed(&stage, &claim).await? {
        return Ok(Action::requeue(SOON));
    }
    let api: Api<PersistentVolumeClaim> = Api::namespaced(stage.client.clone(), &namespace);
    let parameters = PatchParams::default();
    let volume = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_ref());
    if volume.is_none() {
        let given = existing.as_ref().map_or(made, ResourceExt::name_any);
        let patch = json!({"spec": {"volumeName": given}});
        api.patch(&name, &parameters, &Patch::Merge(patch)).await?;
    }
    let modes = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.as_ref());
    let given = existing.as_ref().and_then(size).or(wanted);
    let mut status = json!({
        "phase": "Bound", "accessModes": modes, "capacity": {"storage": given}, "conditions": [],
    });
    if let Some(step) = growth(script).filter(|_| bound) {
        status["capacity"] = json!({"storage": capacity});
        status["conditions"] = json!([step]);
    }
    let patch = json!({"status": status});
    api.patch_status(&name, &parameters, &Patch::Merge(patch))
        .await?;
    Ok(Action::await_change())
}

/// What the resizer, or the node, says of a volume that does not come to the end of its growth.
fn growth(script: Script) -> Option<Value> {
    let (step, message) = match script {
        Script::Resizing => ("Resizing", ""),
        Script::ResizePending => (
            "FileSystemResizePending",
            "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
        ),
        _ => return None,
    };
    Some(json!({"type": step, "status": "True", "message": message}))
}

fn bytes(quantity: Option<&Quantity>) -> Option<Bytes> {
    quantity?.0.parse().ok()
}

fn size(volume: &PersistentVolume) -> Option<&Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get("storage")
}

/// Whether a claim wants none that is made for it, as `made` would be.
fn asks_for_one_that_exists(claim: &PersistentVolumeClaim, made: &str) -> bool {
    let spec = claim.spec.as_ref();
    let named = spec.and_then(|spec| spec.volume_name.as_deref());
    let selects = spec.is_some_and(|spec| spec.selector.is_some());
    named.map_or(selects, |named| named != made)
}

/// Binds a volume of the name or with the labels that a claim asks for, of its class, large enough and
/// free, as the binder of kube-controller-manager does.
async fn take(
    stage: &Stage,
    claim: &PersistentVolumeClaim,
) -> Result<Option<PersistentVolume>, kube::Error> {
    let Some(spec) = &claim.spec else {
        return Ok(None);
    };
    let selector = spec.selector.as_ref();
    let labels = selector.and_then(|selector| selector.match_labels.as_ref());
    let wanted = spec.resources.as_ref();
    let wanted = wanted.and_then(|resources| resources.requests.as_ref()?.get("storage"));
    let fits = |volume: &PersistentVolume| {
        let free = volume.spec.as_ref().is_some_and(|volume| {
            let holder = volume.claim_ref.as_ref().map(|holder| &holder.uid);
            let class = volume.storage_class_name.as_deref().unwrap_or_default();
            holder.is_none_or(|holder| *holder == claim.uid())
                && spec.storage_class_name.as_deref().unwrap_or_default() == class
        });
        let named = spec.volume_name.as_deref();
        let has = |(key, value): (&String, &String)| volume.labels().get(key) == Some(value);
        free && named.is_none_or(|named| named == volume.name_any())
            && labels.is_none_or(|labels| labels.iter().all(has))
            && bytes(size(volume)) >= bytes(wanted)
    };
    let volumes: Api<PersistentVolume> = Api::all(stage.client.clone());
    let list = volumes.list(&ListParams::default()).await?;
    let Some(volume) = list.items.into_iter().find(fits) else {
        return Ok(None);
    };
    let holder = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace(), "name": claim.name_any(), "uid": claim.uid(),
    });
    let patch = Patch::Merge(json!({"spec": {"claimRef": holder}}));
    let parameters = PatchParams::default();
    volumes
        .patch(&volume.name_any(), &parameters, &patch)
        .await?;
    Ok(Some(volume))
}

/// A claim names a class that exists.
async fn provisionable(stage: &Stage, claim: &PersistentVolumeClaim) -> Result<bool, kube::Error> {
    let Some(spec) = &claim.spec else {
        return Ok(false);
    };
    let Some(class) = spec.storage_class_name.as_deref().filter(|c| !c.is_empty()) else {
        return Ok(false);
    };
    let classes: Api<StorageClass> = Api::all(stage.client.clone());
    Ok(classes.get_opt(class).await?.is_some())
}

/// Whether a machine is to run with the claim: KubeVirt gives it a node then.
async fn is_consumed(stage: &Stage, claim: &PersistentVolumeClaim) -> Result<bool, kube::Error> {
    let machines = stage.api(&MACHINE, &claim.namespace().unwrap_or_default());
    let machine = machines.get_opt(&player(claim)).await?;
    Ok(machine.is_some_and(|machine| machine.data["spec"]["runStrategy"] != "Halted"))
}

/// Whose script a claim or a DataVolume plays.
fn player(object: &impl ResourceExt) -> String {
    let machine = object.labels().get(MACHINE_LABEL);
    machine.cloned().unwrap_or_else(|| object.name_any())
}

pub(super) async fn imports(stage: Arc<Stage>, changed: impl Stream<Item = ()> + Send + 'static) {
    let config = watcher::Config::default();
    let claims: Api<PersistentVolumeClaim> = Api::all(stage.client.clone());
    let controller = Controller::new_with(
        stage.all(&DATA_VOLUME),
        config.clone(),
        DATA_VOLUME.resource(),
    )
    .owns(claims, config)
    .reconcile_all_on(changed)
    .run(import, retry, stage);
    drain(controller).await;
}

async fn import(volume: Arc<DynamicObject>, stage: Arc<Stage>) -> Result<Action, PlayError> {
    if volume.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let namespace = volume.namespace().unwrap_or_default();
    let name = volume.name_any();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(stage.client.clone(), &namespace);
    if let Some(source) = volume.data["spec"]["source"]["pvc"]["name"].as_str()
        && claims.get_opt(source).await?.is_none()
    {
        return Ok(Action::requeue(SOON));
    }
    let Some(claim) = claims.get_opt(&name).await? else {
        let claim = serde_json::from_value(claim_of(&volume))?;
        claims.create(&PostParams::default(), &claim).await?;
        return Ok(Action::await_change());
    };
    let bound = claim
        .status
        .is_some_and(|status| status.phase.as_deref() == Some("Bound"));
    let status = status(
        stage.scripts.of(&namespace, &player(&*volume)),
        bound,
        &name,
    );
    if volume.data["status"] != status {
        let patch = Patch::Merge(json!({"status": status}));
        stage
            .api(&DATA_VOLUME, &namespace)
            .patch_status(&name, &PatchParams::default(), &patch)
            .await?;
    }
    Ok(Action::await_change())
}

/// What CDI says of an import. A failed one it tries again for ever, and says so in a condition.
fn status(script: Script, bound: bool, claim: &str) -> Value {
    let shown = |phase: &str, progress: &str, running: [&str; 3]| {
        let [status, reason, message] = running;
        json!({
            "phase": phase, "progress": progress, "claimName": claim,
            "conditions": [
                {"type": "Running", "status": status, "reason": reason, "message": message},
            ],
        })
    };
    match script {
        Script::ImportFails => {
            let why = "Unable to connect to http data source: expected status code 200, got 404";
            shown("ImportInProgress", "N/A", ["False", "Error", why])
        }
        Script::FirstConsumer if !bound => shown("WaitForFirstConsumer", "N/A", ["False", "", ""]),
        Script::ImportHangs => shown("ImportInProgress", "42.50%", ["True", "Pod is running", ""]),
        _ if bound => shown(
            "Succeeded",
            "100.0%",
            ["False", "Completed", "Import Complete"],
        ),
        _ => shown("ImportInProgress", "0.0%", ["True", "Pod is running", ""]),
    }
}

/// The claim CDI makes: of the same name, with the same labels, owned by the volume.
fn claim_of(volume: &DynamicObject) -> Value {
    let spec = &volume.data["spec"];
    let storage = if spec["storage"].is_object() {
        &spec["storage"]
    } else {
        &spec["pvc"]
    };
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": volume.name_any(),
            "namespace": volume.namespace(),
            "labels": volume.labels(),
            "annotations": volume.annotations(),
            "ownerReferences": [{
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
                "name": volume.name_any(), "uid": volume.uid(),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": storage,
    })
}
