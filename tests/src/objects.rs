//! Reads objects of any kind as JSON, and waits for their state.

use std::pin::pin;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{
        DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    },
    core::ApiResource,
    runtime::{WatchStreamExt as _, watcher::watch_object},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::wait::{self, LIMIT, timed_out};

/// A Namespace with these labels.
pub fn namespace(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    })
}

/// The uid of the Namespace `kube-system`, which stands for the cluster.
pub async fn cluster_uid(client: &Client) -> Result<String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let uid = namespaces.get("kube-system").await?.metadata.uid;
    uid.context("kube-system without a uid")
}

/// A kind that tests read.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
}

/// Our Machine.
pub const MACHINE: Kind = ours("Machine", "machines");
/// Our NetworkConfiguration.
pub const NETWORK: Kind = ours("NetworkConfiguration", "networkconfigurations");
/// Our MachineTemplate, which has no namespace.
pub const TEMPLATE: Kind = ours("MachineTemplate", "machinetemplates");
/// Our LibvirtHost, which has no namespace.
pub const HOST: Kind = ours("LibvirtHost", "libvirthosts");
/// Our MachineImage, which has no namespace.
pub const IMAGE: Kind = ours("MachineImage", "machineimages");
/// Our MachineAddress, which has no namespace.
pub const ADDRESS: Kind = ours("MachineAddress", "machineaddresses");
/// Our MachinePolicy, which has no namespace.
pub const POLICY: Kind = ours("MachinePolicy", "machinepolicies");
/// KubeVirt's VirtualMachine.
pub const VM: Kind = kubevirt("VirtualMachine", "virtualmachines");
/// KubeVirt's VirtualMachineInstance: the running guest.
pub const INSTANCE: Kind = kubevirt("VirtualMachineInstance", "virtualmachineinstances");
/// KubeVirt's VirtualMachineInstanceMigration.
pub const MIGRATION: Kind = kubevirt(
    "VirtualMachineInstanceMigration",
    "virtualmachineinstancemigrations",
);
/// Multus' NetworkAttachmentDefinition.
pub const ATTACHMENT: Kind = Kind {
    group: "k8s.cni.cncf.io",
    version: "v1",
    name: "NetworkAttachmentDefinition",
    plural: "network-attachment-definitions",
};
/// A PersistentVolumeClaim.
pub const CLAIM: Kind = core("PersistentVolumeClaim", "persistentvolumeclaims");
/// A Pod.
pub const POD: Kind = core("Pod", "pods");
/// CDI's DataVolume.
pub const DATA_VOLUME: Kind = Kind {
    group: "cdi.kubevirt.io",
    version: "v1beta1",
    name: "DataVolume",
    plural: "datavolumes",
};
/// A PersistentVolume, which has no namespace.
pub const VOLUME: Kind = core("PersistentVolume", "persistentvolumes");
/// A StorageClass, which has no namespace.
pub const CLASS: Kind = Kind {
    group: "storage.k8s.io",
    version: "v1",
    name: "StorageClass",
    plural: "storageclasses",
};
/// A ResourceQuota.
pub const QUOTA: Kind = core("ResourceQuota", "resourcequotas");
/// A Service.
pub const SERVICE: Kind = core("Service", "services");
/// A group of the API that another server serves, which has no namespace.
pub const API_SERVICE: Kind = Kind {
    group: "apiregistration.k8s.io",
    version: "v1",
    name: "APIService",
    plural: "apiservices",
};
/// A ValidatingAdmissionPolicy, which has no namespace.
pub const ADMISSION_POLICY: Kind = Kind {
    group: "admissionregistration.k8s.io",
    version: "v1",
    name: "ValidatingAdmissionPolicy",
    plural: "validatingadmissionpolicies",
};
/// A Secret.
pub const SECRET: Kind = core("Secret", "secrets");
/// An event, as controllers write them.
pub const EVENT: Kind = Kind {
    group: "events.k8s.io",
    version: "v1",
    name: "Event",
    plural: "events",
};
/// A Lease.
pub const LEASE: Kind = Kind {
    group: "coordination.k8s.io",
    version: "v1",
    name: "Lease",
    plural: "leases",
};

const fn ours(name: &'static str, plural: &'static str) -> Kind {
    Kind {
        group: "vitistack.io",
        version: "v1alpha1",
        name,
        plural,
    }
}

const fn kubevirt(name: &'static str, plural: &'static str) -> Kind {
    Kind {
        group: "kubevirt.io",
        version: "v1",
        name,
        plural,
    }
}

const fn core(name: &'static str, plural: &'static str) -> Kind {
    Kind {
        group: "",
        version: "v1",
        name,
        plural,
    }
}

/// The objects of one kind in one namespace; in an empty one if they have none.
#[derive(Debug, Clone)]
pub struct Objects {
    api: Api<DynamicObject>,
    kind: &'static str,
    api_version: String,
}

impl Objects {
    pub(crate) fn new(client: Client, kind: Kind, namespace: &str) -> Self {
        let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.name);
        let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
        Self {
            api: match namespace {
                "" => Api::all_with(client, &resource),
                namespace => Api::namespaced_with(client, namespace, &resource),
            },
            kind: kind.name,
            api_version: resource.api_version,
        }
    }

    /// The object, if it exists.
    pub async fn find(&self, name: &str) -> Result<Option<Value>> {
        let object = self.api.get_opt(name).await?;
        Ok(object
            .map(|object| serde_json::to_value(&object))
            .transpose()?)
    }

    /// The object; an error if it does not exist.
    pub async fn get(&self, name: &str) -> Result<Value> {
        let found = self.find(name).await?;
        found.with_context(|| format!("there is no {} {name}", self.kind))
    }

    /// All objects of the kind.
    pub async fn list(&self) -> Result<Vec<Value>> {
        let list = self.api.list(&ListParams::default()).await?;
        let values = list.items.iter().map(serde_json::to_value);
        Ok(values.collect::<Result<_, _>>()?)
    }

    /// Creates an object.
    pub async fn create(&self, object: &Value) -> Result<()> {
        let object = serde_json::from_value(object.clone())?;
        let made = self.api.create(&PostParams::default(), &object).await;
        made.with_context(|| format!("creating a {}", self.kind))?;
        Ok(())
    }

    /// Creates an object that was recorded at another API server, without what each API server chooses itself. Returns it
    /// as it is stored.
    pub async fn create_recorded(&self, mut object: Value) -> Result<Value> {
        object["apiVersion"] = self.api_version.as_str().into();
        object["kind"] = self.kind.into();
        let metadata = object["metadata"].as_object_mut();
        let metadata = metadata.context("a recorded object without metadata")?;
        for chosen in ["uid", "resourceVersion", "generation"] {
            metadata.remove(chosen);
        }
        let name = metadata.get("name").and_then(Value::as_str);
        let name = name.context("a recorded object without a name")?.to_owned();
        self.create(&object).await?;
        self.get(&name).await
    }

    /// Merges a patch into an object.
    pub async fn merge(&self, name: &str, patch: &Value) -> Result<()> {
        let patch = Patch::Merge(patch);
        self.api
            .patch(name, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("patching {} {name}", self.kind))?;
        Ok(())
    }

    /// Merges a patch into an object through its subresource `status`, as a controller does.
    pub async fn merge_status(&self, name: &str, patch: &Value) -> Result<()> {
        let patch = Patch::Merge(patch);
        self.api
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("patching the status of {} {name}", self.kind))?;
        Ok(())
    }

    /// Requests a restart of a Machine, as its user does, and does not wait for it.
    pub async fn request_restart(&self, name: &str, request: &str) -> Result<()> {
        let annotations = json!({"machine.vitistack.io/restart-requested": request});
        let patch = json!({"metadata": {"annotations": annotations}});
        self.merge(name, &patch).await
    }

    /// Requests the deletion of an object and does not wait for it.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.api
            .delete(name, &DeleteParams::default())
            .await
            .with_context(|| format!("deleting {} {name}", self.kind))?;
        Ok(())
    }

    /// Waits until the object exists and satisfies `fits`.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let is_there = |object: Option<&Value>| object.is_some_and(&fits);
        let found = self.until_state(name, what, is_there).await?;
        found.context("an object that fits is there")
    }

    /// Watches the object until it, or its absence, satisfies `fits`.
    async fn until_state(
        &self,
        name: &str,
        what: &str,
        fits: impl Fn(Option<&Value>) -> bool,
    ) -> Result<Option<Value>> {
        let mut seen = self.find(name).await?;
        let watching = async {
            let mut changes = pin!(watch_object(self.api.clone(), name).default_backoff());
            while !fits(seen.as_ref()) {
                // A watch that ended goes on, in which an API server that starts again is no fault.
                let change = changes.next().await.context("a watch has no end")?;
                if let Ok(object) = change {
                    seen = object
                        .map(|object| serde_json::to_value(&object))
                        .transpose()?;
                }
            }
            anyhow::Ok(())
        };
        if let Ok(ended) = timeout(LIMIT, watching).await {
            ended?;
            return Ok(seen);
        }
        let what = format!("{} {name} {what}", self.kind);
        Err(timed_out(LIMIT, &what, &seen.as_ref().map(state_of)))
    }

    /// Waits until a Machine is in a phase.
    pub async fn until_phase(&self, name: &str, phase: &str) -> Result<Value> {
        self.until(name, &format!("to be {phase}"), |object| {
            object["status"]["phase"] == phase
        })
        .await
    }

    /// Waits until a condition of an object has this status and reason.
    pub async fn until_condition(
        &self,
        name: &str,
        kind: &str,
        status: &str,
        reason: &str,
    ) -> Result<Value> {
        let what = format!("to have {kind}={status}, reason {reason}");
        self.until(name, &what, |object| {
            let condition = condition(object, kind);
            condition["status"] == status && condition["reason"] == reason
        })
        .await
    }

    /// Of the events: waits for one about an object with this name, with this reason and a note that contains `part`.
    pub async fn until_event(&self, about: &str, reason: &str, part: &str) -> Result<Value> {
        let what = format!("an event {reason} about {about}: {part}");
        wait::until(&what, async || {
            let mut events = self.list().await?;
            events.retain(|event| event["regarding"]["name"] == about);
            let fits = |event: &Value| {
                let note = event["note"].as_str().unwrap_or_default();
                event["reason"] == reason && note.contains(part)
            };
            let found = events.iter().find(|event| fits(event)).cloned();
            let seen = || events.iter().map(|event| event["note"].clone());
            Ok(found.ok_or_else(|| seen().collect::<Vec<_>>()))
        })
        .await
    }

    /// Waits until there is no such object.
    pub async fn until_gone(&self, name: &str) -> Result<()> {
        let is_gone = |object: Option<&Value>| object.is_none();
        self.until_state(name, "to be gone", is_gone).await?;
        Ok(())
    }
}

/// Whether the status of an object was observed for its current spec.
pub fn is_reported(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
}

/// Whether the restart of a Machine with this request is done.
pub fn is_restarted(machine: &Value, request: &str) -> bool {
    let last = &machine["status"]["lastRestart"];
    last["request"] == request && last["replaces"].is_null()
}

/// The message of a condition of an object; `None` when it has none of that type.
pub fn condition_message<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    condition(object, kind)["message"].as_str()
}

/// A condition of an object; null when it has none of that type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .and_then(|conditions| {
            conditions
                .iter()
                .find(|condition| condition["type"] == kind)
        })
        .unwrap_or(&Value::Null)
}

/// The part of an object that shows why a wait does not end.
fn state_of(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "generation {}, deleted {}, finalizers {}, status {}",
        metadata["generation"],
        metadata["deletionTimestamp"],
        metadata["finalizers"],
        object["status"]
    )
}
