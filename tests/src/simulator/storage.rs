//! Simulates the provisioner, the binder, the resizer and CDI's importer.

use std::{sync::Arc, time::Duration};

use common::{names, quantity::Bytes};
use futures::Stream;
use k8s_openapi::{
    api::{
        authorization::v1::SubjectAccessReview,
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

use crate::Binary;

use super::{
    context::{Context, age, drain, retry},
    error::SimulatorError,
    expansion,
    kinds::{DATA_VOLUME, MACHINE},
    scenario::Scenario,
};

/// The label of a claim with the name of the machine whose scenario applies.
const MACHINE_LABEL: &str = "vitistack.io/machine";

/// Time that [`Scenario::Slow`] takes to provision a volume.
const SLOW: Duration = Duration::from_secs(2);

/// Requeue interval while a storage class or volume is missing.
const SOON: Duration = Duration::from_millis(500);

pub(super) async fn claims(
    context: Arc<Context>,
    changed: impl Stream<Item = ()> + Send + 'static,
) {
    let api: Api<PersistentVolumeClaim> = Api::all(context.client.clone());
    let controller = Controller::new(api, watcher::Config::default());
    context.claims.get_or_init(|| controller.store());
    let controller = controller.reconcile_all_on(changed);
    drain(controller.run(provide, retry, context)).await;
}

async fn provide(
    claim: Arc<PersistentVolumeClaim>,
    context: Arc<Context>,
) -> Result<Action, SimulatorError> {
    let namespace = claim.namespace().unwrap_or_default();
    let name = claim.name_any();
    let scenario = context.scenarios.of(&namespace, &machine_of(&*claim));
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
    if scenario == Scenario::PvcPending {
        return Ok(Action::await_change());
    }
    if scenario == Scenario::Slow && age(claim.meta().creation_timestamp.as_ref()) < SLOW {
        return Ok(Action::requeue(SOON));
    }
    let made = format!("pvc-{}", claim.uid().unwrap_or_default());
    let asks = !bound && asks_for_one_that_exists(&claim, &made);
    let existing = if asks {
        take(&context, &claim).await?
    } else {
        None
    };
    if !bound && existing.is_none() && (asks || !provisionable(&context, &claim).await?) {
        return Ok(Action::requeue(SOON));
    }
    if scenario.binds_late()
        && !bound
        && !binds_immediately(&*claim)
        && !is_consumed(&context, &claim).await?
    {
        return Ok(Action::requeue(SOON));
    }
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
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
    if let Some(step) = growth(scenario).filter(|_| bound) {
        status["capacity"] = json!({"storage": capacity});
        status["conditions"] = json!([step]);
    }
    let patch = json!({"status": status});
    let claim = api
        .patch_status(&name, &parameters, &Patch::Merge(patch))
        .await?;
    if bound {
        expansion::grown(&context, &machine_of(&claim), &claim).await?;
    }
    Ok(Action::await_change())
}

/// The condition that the resizer or the node reports for an expansion that does not finish.
fn growth(scenario: Scenario) -> Option<Value> {
    let (step, message) = match scenario {
        Scenario::Resizing => ("Resizing", ""),
        Scenario::ResizePending => (
            "FileSystemResizePending",
            "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
        ),
        _ => return None,
    };
    Some(json!({"type": step, "status": "True", "message": message}))
}

/// The amount of a quantity.
fn bytes(quantity: Option<&Quantity>) -> Option<Bytes> {
    quantity?.0.parse().ok()
}

fn size(volume: &PersistentVolume) -> Option<&Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get("storage")
}

/// Whether a claim requests an existing volume instead of the provisioned one, which is named `made`.
fn asks_for_one_that_exists(claim: &PersistentVolumeClaim, made: &str) -> bool {
    let spec = claim.spec.as_ref();
    let named = spec.and_then(|spec| spec.volume_name.as_deref());
    let selects = spec.is_some_and(|spec| spec.selector.is_some());
    named.map_or(selects, |named| named != made)
}

/// Binds an existing volume as the binder of kube-controller-manager does: one with the name or labels and the class
/// that the claim requests, which is large enough and not bound to another claim.
async fn take(
    context: &Context,
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
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
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

/// Whether the claim names a storage class that exists.
async fn provisionable(
    context: &Context,
    claim: &PersistentVolumeClaim,
) -> Result<bool, kube::Error> {
    let Some(spec) = &claim.spec else {
        return Ok(false);
    };
    let Some(class) = spec.storage_class_name.as_deref().filter(|c| !c.is_empty()) else {
        return Ok(false);
    };
    let classes: Api<StorageClass> = Api::all(context.client.clone());
    Ok(classes.get_opt(class).await?.is_some())
}

/// Whether CDI populates the volume without a pod that uses it: the annotation `AnnImmediateBinding` of CDI's
/// `pkg/controller/common`, which CDI copies to the claim.
fn binds_immediately(object: &impl ResourceExt) -> bool {
    let annotation = object.annotations().get(names::CDI_BIND_IMMEDIATELY);
    annotation.is_some_and(|value| value == "true")
}

/// Whether the machine of the claim is to run, so that KubeVirt schedules its pod.
async fn is_consumed(
    context: &Context,
    claim: &PersistentVolumeClaim,
) -> Result<bool, kube::Error> {
    let machines = context.api(&MACHINE, &claim.namespace().unwrap_or_default());
    let machine = machines.get_opt(&machine_of(claim)).await?;
    Ok(machine.is_some_and(|machine| machine.data["spec"]["runStrategy"] != "Halted"))
}

/// The name of the machine whose scenario applies to a claim or a DataVolume.
fn machine_of(object: &impl ResourceExt) -> String {
    let machine = object.labels().get(MACHINE_LABEL);
    machine.cloned().unwrap_or_else(|| object.name_any())
}

pub(super) async fn imports(
    context: Arc<Context>,
    changed: impl Stream<Item = ()> + Send + 'static,
) {
    let config = watcher::Config::default();
    let claims: Api<PersistentVolumeClaim> = Api::all(context.client.clone());
    let controller = Controller::new_with(
        context.all(&DATA_VOLUME),
        config.clone(),
        DATA_VOLUME.resource(),
    )
    .owns(claims, config)
    .reconcile_all_on(changed)
    .run(import, retry, context);
    drain(controller).await;
}

async fn import(
    volume: Arc<DynamicObject>,
    context: Arc<Context>,
) -> Result<Action, SimulatorError> {
    if volume.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let namespace = volume.namespace().unwrap_or_default();
    let name = volume.name_any();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    if !is_source_ready(&context, &volume).await? {
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
        context.scenarios.of(&namespace, &machine_of(&*volume)),
        bound,
        &name,
    );
    if volume.data["status"] != status {
        let patch = Patch::Merge(json!({"status": status}));
        context
            .api(&DATA_VOLUME, &namespace)
            .patch_status(&name, &PatchParams::default(), &patch)
            .await?;
    }
    Ok(Action::await_change())
}

/// Whether the source of a clone exists and is populated. CDI's `PvcCloneReconciler` waits for both
/// (`pkg/controller/datavolume/pvc-clone-controller.go`, CDI v1.62). Before that its webhook `datavolume-mutate` lets
/// only those clone a claim of another namespace who may create `datavolumes/source` there; the simulator sees the
/// DataVolume later, and asks for the controller, which creates all of them.
async fn is_source_ready(context: &Context, volume: &DynamicObject) -> Result<bool, kube::Error> {
    let source = &volume.data["spec"]["source"]["pvc"];
    let Some(name) = source["name"].as_str() else {
        return Ok(true);
    };
    let own = volume.namespace().unwrap_or_default();
    let namespace = source["namespace"].as_str().unwrap_or(&own);
    if namespace != own && !may_clone_from(context, namespace).await? {
        return Ok(false);
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    if claims.get_opt(name).await?.is_none() {
        return Ok(false);
    }
    let importing = context.api(&DATA_VOLUME, namespace).get_opt(name).await?;
    Ok(importing.is_none_or(|it| it.data["status"]["phase"] == "Succeeded"))
}

async fn may_clone_from(context: &Context, namespace: &str) -> Result<bool, kube::Error> {
    let review: SubjectAccessReview = serde_json::from_value(json!({
        "spec": {"user": Binary::Controller.user(), "resourceAttributes": {
            "group": "cdi.kubevirt.io", "resource": "datavolumes", "subresource": "source",
            "verb": "create", "namespace": namespace,
        }},
    }))
    .map_err(kube::Error::SerdeError)?;
    let reviews: Api<SubjectAccessReview> = Api::all(context.client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// The status that CDI reports for an import. It retries a failed one forever and reports that in a condition.
fn status(scenario: Scenario, bound: bool, claim: &str) -> Value {
    let shown = |phase: &str, progress: &str, running: [&str; 3]| {
        let [status, reason, message] = running;
        json!({
            "phase": phase, "progress": progress, "claimName": claim,
            "conditions": [
                {"type": "Running", "status": status, "reason": reason, "message": message},
            ],
        })
    };
    match scenario {
        _ if scenario.binds_late() && !bound => {
            shown("WaitForFirstConsumer", "N/A", ["False", "", ""])
        }
        Scenario::ImportFails | Scenario::FirstConsumerImportFails => {
            let why = "Unable to connect to http data source: expected status code 200, got 404";
            shown("ImportInProgress", "N/A", ["False", "Error", why])
        }
        Scenario::ImportHangs => {
            shown("ImportInProgress", "42.50%", ["True", "Pod is running", ""])
        }
        _ if bound => shown(
            "Succeeded",
            "100.0%",
            ["False", "Completed", "Import Complete"],
        ),
        _ => shown("ImportInProgress", "0.0%", ["True", "Pod is running", ""]),
    }
}

/// The claim that CDI creates: same name and labels, owned by the DataVolume.
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
