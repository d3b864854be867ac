//! Reads the state of one VirtualMachine, and writes what its [state machine](super::vm_state_machine) returns.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::Stream;
use k8s_openapi::{
    api::core::v1::{Node, PersistentVolumeClaim, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    runtime::{
        controller::{self, Action, Controller},
        reflector::ObjectRef,
        watcher,
    },
};
use serde_json::{Value, json};

use super::{
    context::{Context, age, drain, merge, retry},
    error::SimulatorError,
    expansion,
    guest::{NODES, is_final, text},
    kinds::{DATA_VOLUME, INSTANCE, MACHINE, NETWORK},
    launcher::VM_NAME,
    pods::Launcher,
    scenario::{ANNOTATION, Scenario},
    start_failure::with_transition,
    state,
    vm_state_machine::{self, Change, Claims, Input, SLOW},
};

/// Pause while the claim of EFI variables and TPM cannot be made.
const STATE_RETRY: Duration = Duration::from_millis(500);

/// Changes of a guest within this time are one pass: a step of a guest is several of them.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// KubeVirt's finalizers.
const MACHINE_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
const INSTANCE_FINALIZER: &str = "foregroundDeleteVirtualMachine";

pub(super) async fn run_virtual_machines(
    context: Arc<Context>,
    changed: impl Stream<Item = ()> + Send + 'static,
) {
    let config = watcher::Config::default();
    let launchers = watcher::Config::default().labels("kubevirt.io=virt-launcher");
    let pods: Api<Pod> = Api::all(context.client.clone());
    let controller =
        Controller::new_with(context.all(&MACHINE), config.clone(), MACHINE.resource())
            .owns_with(context.all(&INSTANCE), INSTANCE.resource(), config)
            .watches(pods, launchers, |pod| {
                let machine = pod.labels().get(VM_NAME)?;
                let machine = ObjectRef::new_with(machine, MACHINE.resource());
                Some(machine.within(&pod.namespace()?))
            })
            .reconcile_all_on(changed)
            .with_config(controller::Config::default().debounce(DEBOUNCE))
            .run(reconcile, retry, context);
    drain(controller).await;
}

/// Creates the nodes on which the guests run. A test may cordon and delete them.
pub(super) async fn create_nodes(context: &Context) {
    let nodes: Api<Node> = Api::all(context.client.clone());
    for number in 1..=NODES {
        let node = Node {
            metadata: kube::api::ObjectMeta {
                name: Some(format!("node-{number}")),
                ..kube::api::ObjectMeta::default()
            },
            ..Node::default()
        };
        // A simulator that was started again finds them.
        if let Err(error) = nodes.create(&PostParams::default(), &node).await
            && !matches!(&error, kube::Error::Api(status) if status.code == 409)
        {
            tracing::warn!(%error, "a node was not created");
        }
    }
}

async fn reconcile(
    object: Arc<DynamicObject>,
    context: Arc<Context>,
) -> Result<Action, SimulatorError> {
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let machines = context.api(&MACHINE, &namespace);
    let instances = context.api(&INSTANCE, &namespace);

    // Live reads: a stale cache would make the simulator write wrong states.
    let Some(machine) = machines.get_opt(&name).await? else {
        return Ok(Action::await_change());
    };
    let instance = instances.get_opt(&name).await?;
    let since = since(instance.as_ref());
    let scenario = scenario(&context, &machine, &namespace, &name);
    let machine = serde_json::to_value(&machine)?;
    let instance = instance.map(|i| serde_json::to_value(&i)).transpose()?;

    if let Some(instance) = &instance
        && !state::reconcile(&context, &namespace, instance).await?
    {
        // virt-controller tries again, and the VirtualMachine stays Starting.
        return Ok(Action::requeue(STATE_RETRY));
    }
    let launcher = Launcher::of(&context, &namespace, instance.as_ref()).await?;
    let (claims, migratable) = match &instance {
        Some(instance) if has_ended_or_ends(instance) => (Claims::Bound, false),
        _ => claims(&context, &namespace, &machine).await?,
    };
    let lacks_claims = matches!(claims, Claims::Importing | Claims::Missing(_));
    let (node, scenario) = placed(&launcher, instance.as_ref(), scenario).await?;
    if let Some(instance) = &instance
        && let Some(action) = launcher
            .step(
                instance,
                &instances,
                scenario,
                lacks_claims,
                node.as_deref(),
            )
            .await?
    {
        return Ok(action);
    }
    let next = vm_state_machine::next(&Input {
        machine: &machine,
        instance: instance.as_ref(),
        has_launcher: launcher.pod.is_some(),
        claims,
        migratable,
        hotplug: context.hotplug(),
        dependency_missing: is_starting(instance.as_ref())
            && dependency_missing(&context, &namespace, &machine).await?,
        scenario,
        age: since,
        start_pause: Duration::from_millis(context.start_pause.load(Ordering::Relaxed)),
        now: Timestamp::now(),
    });

    if next.release {
        if has_finalizer(&machine, MACHINE_FINALIZER) {
            remove_finalizer(&machines, &machine, &name, MACHINE_FINALIZER).await?;
        }
        return Ok(Action::await_change());
    }
    report(&machines, &machine, &name, &next.status).await?;
    match next.change {
        Change::Nothing => {
            if let Some(instance) = instance.as_ref().filter(|it| is_running(it)) {
                launcher
                    .migrate(instance, &instances, migratable, scenario)
                    .await?;
            }
        }
        Change::Create => {
            if !has_finalizer(&machine, MACHINE_FINALIZER) {
                add_finalizer(&machines, &machine, &name).await?;
            }
            let new = serde_json::from_value(new_instance(&machine))?;
            instances.create(&PostParams::default(), &new).await?;
        }
        Change::Status(mut status) => {
            if let Some(instance) = &instance {
                if let Some(node) = node.filter(|_| status["nodeName"].is_string()) {
                    status["nodeName"] = json!(node);
                }
                if status["phase"] == "Running" {
                    launcher.run(&status["nodeName"]).await?;
                    expansion::started(&context, &namespace, &mut status).await?;
                }
                let status = with_transition(instance, status, Timestamp::now());
                merge(&instances, &name, &json!({"status": status})).await?;
            }
        }
        Change::HotPlug(plug) => merge(&instances, &name, &plug).await?,
        Change::Delete => {
            instances.delete(&name, &DeleteParams::default()).await?;
        }
        Change::Release => {
            if let Some(instance) = &instance {
                remove_finalizer(&instances, instance, &name, INSTANCE_FINALIZER).await?;
            }
        }
    }
    let again = next.again.or(scenario.waits_for_a_node().then_some(SLOW));
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// The node of the instance's pod, and how KubeVirt behaves if no node takes it.
async fn placed(
    launcher: &Launcher,
    instance: Option<&Value>,
    scenario: Scenario,
) -> Result<(Option<String>, Scenario), SimulatorError> {
    let Some(instance) = instance else {
        return Ok((None, scenario));
    };
    Ok(match launcher.node(instance).await? {
        Ok(node) => (Some(node), scenario),
        Err(scenario) => (None, scenario),
    })
}

/// Writes the fields of the status of a VirtualMachine that differ. As with virt-controller's update, the API server
/// rejects it if another writer changed the object since it was read: virt-api's requests are in the status, too.
async fn report(
    machines: &Api<DynamicObject>,
    machine: &Value,
    name: &str,
    status: &Value,
) -> Result<(), kube::Error> {
    // Null removes a field in a merge patch, and an absent field is read as null: both compare as equal.
    let changed = |(field, value): (&String, &Value)| machine["status"][field] != *value;
    let fields = status.as_object();
    if fields.is_some_and(|fields| fields.iter().any(changed)) {
        let metadata = json!({"resourceVersion": machine["metadata"]["resourceVersion"]});
        let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
        machines
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
    }
    Ok(())
}

/// Since the creation of the instance, or since its deletion was requested.
fn since(instance: Option<&DynamicObject>) -> Duration {
    age(instance.and_then(|instance| {
        let metadata = &instance.metadata;
        let deleted = metadata.deletion_timestamp.as_ref();
        deleted.or(metadata.creation_timestamp.as_ref())
    }))
}

fn scenario(context: &Context, machine: &DynamicObject, namespace: &str, name: &str) -> Scenario {
    machine
        .annotations()
        .get(ANNOTATION)
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| context.scenarios.of(namespace, name))
}

/// Whether the guest runs and is not to end.
fn is_running(instance: &Value) -> bool {
    instance["status"]["phase"] == "Running" && instance["metadata"]["deletionTimestamp"].is_null()
}

/// Whether the guest is to end, or has ended: nothing that it started with matters any more.
pub(super) fn has_ended_or_ends(instance: &Value) -> bool {
    is_final(text(&instance["status"]["phase"]))
        || !instance["metadata"]["deletionTimestamp"].is_null()
}

/// Whether an instance is on its way to a running guest.
fn is_starting(instance: Option<&Value>) -> bool {
    instance.is_some_and(|it| it["status"]["phase"] != "Running" && !has_ended_or_ends(it))
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    list(&object["metadata"]["finalizers"]).any(|f| f == finalizer)
}

async fn add_finalizer(
    api: &Api<DynamicObject>,
    object: &Value,
    name: &str,
) -> Result<(), kube::Error> {
    let mut finalizers: Vec<Value> = list(&object["metadata"]["finalizers"]).cloned().collect();
    finalizers.push(json!(MACHINE_FINALIZER));
    set_finalizers(api, object, name, &finalizers).await
}

async fn remove_finalizer(
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

/// Sends the resource version that was read: the API server rejects the patch if another writer changed the list.
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

/// The state of the claims, and whether all of them are `ReadWriteMany`.
async fn claims(
    context: &Context,
    namespace: &str,
    machine: &Value,
) -> Result<(Claims, bool), kube::Error> {
    let (mut worst, mut shared) = (Claims::Bound, true);
    for volume in list(&machine["spec"]["template"]["spec"]["volumes"]) {
        let direct = volume["persistentVolumeClaim"]["claimName"].as_str();
        // CDI's claim has the name of its DataVolume.
        let Some(name) = direct.or_else(|| volume["dataVolume"]["name"].as_str()) else {
            continue;
        };
        let Some(claim) = claim(context, namespace, name).await? else {
            return Ok((Claims::Missing(name.to_owned()), false));
        };
        if !is_populated(context, &claim).await? {
            worst = Claims::Importing;
        } else if !is_bound(&claim) && worst == Claims::Bound {
            worst = Claims::Pending;
        }
        let modes = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.access_modes.as_ref());
        shared &= modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany"));
    }
    Ok((worst, shared))
}

/// A claim: as the watch knows it once it is bound and no DataVolume's, which lasts; before that as it is now.
async fn claim(
    context: &Context,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<PersistentVolumeClaim>>, kube::Error> {
    let key = ObjectRef::new(name).within(namespace);
    let known = context.claims.get().and_then(|claims| claims.get(&key));
    let lasts = |claim: &PersistentVolumeClaim| is_bound(claim) && import_of(claim).is_none();
    if known.as_deref().is_some_and(lasts) {
        return Ok(known);
    }
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    Ok(api.get_opt(name).await?.map(Arc::new))
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| status.phase.as_deref() == Some("Bound"))
}

/// The DataVolume that owns a claim.
fn import_of(claim: &PersistentVolumeClaim) -> Option<&OwnerReference> {
    let mut owners = claim.owner_references().iter();
    owners.find(|owner| owner.kind == DATA_VOLUME.name)
}

/// Whether a claim has its image, as `IsPopulated` of CDI's API (`pkg/apis/core/v1beta1/utils.go`, v1.62) answers
/// KubeVirt: one of a DataVolume has it once that has succeeded, and never if the DataVolume is gone.
async fn is_populated(
    context: &Context,
    claim: &PersistentVolumeClaim,
) -> Result<bool, kube::Error> {
    let Some(owner) = import_of(claim) else {
        return Ok(true);
    };
    let imports = context.api(&DATA_VOLUME, &claim.namespace().unwrap_or_default());
    let import = imports.get_opt(&owner.name).await?;
    Ok(import.is_some_and(|import| {
        import.uid().as_ref() == Some(&owner.uid) && import.data["status"]["phase"] == "Succeeded"
    }))
}

/// Whether a Secret or network is missing that a virt-launcher pod needs.
async fn dependency_missing(
    context: &Context,
    namespace: &str,
    machine: &Value,
) -> Result<bool, kube::Error> {
    let template = &machine["spec"]["template"]["spec"];
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    for volume in list(&template["volumes"]) {
        let source = &volume["cloudInitNoCloud"];
        let names = [
            source["secretRef"]["name"].as_str(),
            source["networkDataSecretRef"]["name"].as_str(),
            volume["secret"]["secretName"].as_str(),
            volume["sysprep"]["secret"]["name"].as_str(),
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
        let networks = context.api(&NETWORK, namespace);
        if networks.get_opt(name).await?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
