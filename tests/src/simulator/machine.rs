//! Reads what one VirtualMachine is like, and writes what [`play`](super::play) says.

use std::sync::Arc;

use futures::Stream;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    runtime::{
        controller::{Action, Controller},
        watcher,
    },
};
use serde_json::{Value, json};

use super::{
    ANNOTATION, Kind, Script, Stage, age, drain, merge,
    play::{self, Change, Claims, Scene},
    retry,
};

pub(super) const MACHINE: Kind = Kind {
    group: "kubevirt.io",
    version: "v1",
    name: "VirtualMachine",
    plural: "virtualmachines",
};

pub(super) const INSTANCE: Kind = Kind {
    group: "kubevirt.io",
    version: "v1",
    name: "VirtualMachineInstance",
    plural: "virtualmachineinstances",
};

const NETWORK: Kind = Kind {
    group: "k8s.cni.cncf.io",
    version: "v1",
    name: "NetworkAttachmentDefinition",
    plural: "network-attachment-definitions",
};

/// KubeVirt's own finalizers, and what they wait for.
const MACHINE_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
const INSTANCE_FINALIZER: &str = "foregroundDeleteVirtualMachine";

#[derive(Debug, thiserror::Error)]
pub(super) enum PlayError {
    #[error("the API server: {0}")]
    Api(#[from] kube::Error),
    #[error("an object that is no JSON: {0}")]
    Json(#[from] serde_json::Error),
}

pub(super) async fn play_all(stage: Arc<Stage>, changed: impl Stream<Item = ()> + Send + 'static) {
    let config = watcher::Config::default();
    let controller = Controller::new_with(stage.all(&MACHINE), config.clone(), MACHINE.resource())
        .owns_with(stage.all(&INSTANCE), INSTANCE.resource(), config)
        .reconcile_all_on(changed)
        .run(play_one, retry, stage);
    drain(controller).await;
}

async fn play_one(object: Arc<DynamicObject>, stage: Arc<Stage>) -> Result<Action, PlayError> {
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let machines = stage.api(&MACHINE, &namespace);
    let instances = stage.api(&INSTANCE, &namespace);

    // Live reads: a stand-in must not be wrong because a cache is late.
    let Some(machine) = machines.get_opt(&name).await? else {
        return Ok(Action::await_change());
    };
    let instance = instances.get_opt(&name).await?;
    let since = instance.as_ref().and_then(|instance| {
        let metadata = &instance.metadata;
        metadata
            .deletion_timestamp
            .as_ref()
            .or(metadata.creation_timestamp.as_ref())
    });
    let since = age(since);
    let script = script(&stage, &machine, &namespace, &name);
    let machine = serde_json::to_value(&machine)?;
    let instance = instance.map(|i| serde_json::to_value(&i)).transpose()?;

    let (claims, migratable) = claims(&stage, &namespace, &machine).await?;
    let next = play::next(&Scene {
        machine: &machine,
        instance: instance.as_ref(),
        claims,
        migratable,
        prop_missing: prop_missing(&stage, &namespace, &machine).await?,
        script,
        age: since,
    });

    if next.release {
        if has_finalizer(&machine, MACHINE_FINALIZER) {
            release(&machines, &machine, &name, MACHINE_FINALIZER).await?;
        }
        return Ok(Action::await_change());
    }
    // A null takes a field away, and stands for one that is not there.
    let news = |(field, value): (&String, &Value)| machine["status"][field] != *value;
    if next
        .status
        .as_object()
        .is_some_and(|status| status.iter().any(news))
    {
        let patch = Patch::Merge(json!({"status": next.status}));
        machines
            .patch_status(&name, &PatchParams::default(), &patch)
            .await?;
    }
    match next.change {
        Change::Nothing => {}
        Change::Create => {
            if !has_finalizer(&machine, MACHINE_FINALIZER) {
                hold(&machines, &machine, &name).await?;
            }
            let new = serde_json::from_value(new_instance(&machine))?;
            instances.create(&PostParams::default(), &new).await?;
        }
        Change::Status(status) => {
            merge(&instances, &name, &json!({"status": status})).await?;
        }
        Change::Plug(plug) => merge(&instances, &name, &plug).await?,
        Change::Delete => {
            instances.delete(&name, &DeleteParams::default()).await?;
        }
        Change::Release => {
            if let Some(instance) = &instance {
                release(&instances, instance, &name, INSTANCE_FINALIZER).await?;
            }
        }
    }
    Ok(next
        .again
        .map_or_else(Action::await_change, Action::requeue))
}

fn script(stage: &Stage, machine: &DynamicObject, namespace: &str, name: &str) -> Script {
    machine
        .annotations()
        .get(ANNOTATION)
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| stage.scripts.of(namespace, name))
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    list(&object["metadata"]["finalizers"]).any(|f| f == finalizer)
}

async fn hold(api: &Api<DynamicObject>, object: &Value, name: &str) -> Result<(), kube::Error> {
    let mut finalizers: Vec<Value> = list(&object["metadata"]["finalizers"]).cloned().collect();
    finalizers.push(json!(MACHINE_FINALIZER));
    set_finalizers(api, object, name, &finalizers).await
}

async fn release(
    api: &Api<DynamicObject>,
    object: &Value,
    name: &str,
    finalizer: &str,
) -> Result<(), kube::Error> {
    let finalizers: Vec<Value> = list(&object["metadata"]["finalizers"])
        .filter(|f| *f != finalizer)
        .cloned()
        .collect();
    set_finalizers(api, object, name, &finalizers).await
}

/// With the version it was read at, so that nobody else's finalizer is lost.
async fn set_finalizers(
    api: &Api<DynamicObject>,
    object: &Value,
    name: &str,
    finalizers: &[Value],
) -> Result<(), kube::Error> {
    let version = &object["metadata"]["resourceVersion"];
    let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
    merge(api, name, &patch).await
}

fn new_instance(machine: &Value) -> Value {
    let (metadata, template) = (&machine["metadata"], &machine["spec"]["template"]);
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
            "finalizers": [INSTANCE_FINALIZER],
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "name": metadata["name"], "uid": metadata["uid"],
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    })
}

/// What the claims are like, and whether other nodes can have them, too.
async fn claims(
    stage: &Stage,
    namespace: &str,
    machine: &Value,
) -> Result<(Claims, bool), kube::Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(stage.client.clone(), namespace);
    let (mut worst, mut shared) = (Claims::Bound, true);
    for volume in list(&machine["spec"]["template"]["spec"]["volumes"]) {
        let direct = volume["persistentVolumeClaim"]["claimName"].as_str();
        // CDI's claim has the name of its DataVolume.
        let Some(name) = direct.or_else(|| volume["dataVolume"]["name"].as_str()) else {
            continue;
        };
        let Some(claim) = api.get_opt(name).await? else {
            return Ok((Claims::Missing(name.to_owned()), false));
        };
        let phase = claim.status.and_then(|status| status.phase);
        if phase.as_deref() != Some("Bound") {
            worst = Claims::Pending;
        }
        let modes = claim.spec.and_then(|spec| spec.access_modes);
        shared &= modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany"));
    }
    Ok((worst, shared))
}

/// Whether a Secret or network is missing that a virt-launcher pod needs.
async fn prop_missing(
    stage: &Stage,
    namespace: &str,
    machine: &Value,
) -> Result<bool, kube::Error> {
    let template = &machine["spec"]["template"]["spec"];
    let secrets: Api<Secret> = Api::namespaced(stage.client.clone(), namespace);
    for volume in list(&template["volumes"]) {
        let source = &volume["cloudInitNoCloud"];
        let names = [
            source["secretRef"]["name"].as_str(),
            source["networkDataSecretRef"]["name"].as_str(),
            volume["secret"]["secretName"].as_str(),
        ];
        for name in names.into_iter().flatten() {
            if secrets.get_metadata_opt(name).await?.is_none() {
                return Ok(true);
            }
        }
    }
    for network in list(&template["networks"]) {
        let Some(reference) = network["multus"]["networkName"].as_str() else {
            continue;
        };
        let (namespace, name) = reference.split_once('/').unwrap_or((namespace, reference));
        let networks = stage.api(&NETWORK, namespace);
        if networks.get_opt(name).await?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
