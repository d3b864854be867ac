//! Invariants: what the controller must never do, checked before each of its writes.

use std::collections::BTreeMap;

use anyhow::Result;
use lab::{
    Lab,
    fault_proxy::{InvariantCheck, Write},
    objects::{CLAIM, INSTANCE, MACHINE, Objects, POD, VM},
};
use serde_json::Value;

/// The name of objects that are not the Machine's.
pub(crate) const UNRELATED: &str = "web-old";

/// The claim that a disk of the Machine is on as it is. Nothing of it is ever written.
pub(crate) const EXISTING: &str = "legacy-disk";

#[derive(Clone)]
struct Namespace {
    machines: Objects,
    vms: Objects,
    instances: Objects,
    claims: Objects,
    pods: Objects,
}

/// The invariants of the Machine `web` in this namespace.
pub(crate) fn of(lab: &Lab, namespace: &str) -> InvariantCheck {
    let there = Namespace {
        machines: lab.objects(MACHINE, namespace),
        vms: lab.objects(VM, namespace),
        instances: lab.objects(INSTANCE, namespace),
        claims: lab.objects(CLAIM, namespace),
        pods: lab.objects(POD, namespace),
    };
    checked(there, |there, write| async move {
        there.violation(&write).await
    })
}

/// A check of each write against what is there. A look that fails is a violation, too.
pub(crate) fn checked<T, F>(there: T, violation: fn(T, Write) -> F) -> InvariantCheck
where
    T: Clone + Send + Sync + 'static,
    F: Future<Output = Result<Option<String>>> + Send + 'static,
{
    Box::new(move |write| {
        let violation = violation(there.clone(), write.clone());
        Box::pin(async move {
            violation
                .await
                .unwrap_or_else(|error| Some(format!("cannot be checked: {error:#}")))
        })
    })
}

impl Namespace {
    async fn violation(&self, write: &Write) -> Result<Option<String>> {
        let (rest, name) = write.path.rsplit_once('/').unwrap_or_default();
        let kind = rest.rsplit('/').next().unwrap_or_default();
        if name == UNRELATED {
            return Ok(Some(
                "touches an object that is not the Machine's".to_owned(),
            ));
        }
        let creates = write.body["metadata"]["name"] == EXISTING;
        if kind == "persistentvolumeclaims" && name == EXISTING || creates {
            return Ok(Some("writes a claim that is used as it is".to_owned()));
        }
        match (write.method.as_str(), kind) {
            ("DELETE", "persistentvolumeclaims") => self.claim_is_deleted(name).await,
            ("DELETE", "datavolumes") => Ok(takes_its_claim(&write.body)),
            ("DELETE", "virtualmachineinstances") => self.guest_is_deleted(name, &write.body).await,
            ("PATCH", "machines") if removes_finalizer(&write.body) => {
                self.machine_is_released().await
            }
            ("PATCH", "virtualmachines") => self.vm_is_created(write).await,
            _ => Ok(None),
        }
    }

    /// A claim is deleted after everything that uses it, of any owner.
    async fn claim_is_deleted(&self, claim: &str) -> Result<Option<String>> {
        Ok(self
            .users_of(claim, "")
            .await?
            .pop()
            .map(|user| format!("{user} uses it")))
    }

    /// The VirtualMachines, instances and pods that name a claim, without those of this name and the pods of its guest.
    async fn users_of(&self, claim: &str, except: &str) -> Result<Vec<String>> {
        let mut users = Vec::new();
        for (kind, objects) in [
            ("VirtualMachine", &self.vms),
            ("instance", &self.instances),
            ("pod", &self.pods),
        ] {
            for object in objects.list().await? {
                let metadata = &object["metadata"];
                let name = metadata["name"].as_str().unwrap_or_default();
                if !except.is_empty() && metadata["labels"]["kubevirt.io/vm"] == except {
                    continue;
                }
                if name != except && claims_of(&object).any(|used| used == claim) {
                    users.push(format!("{kind} {name}"));
                }
            }
        }
        Ok(users)
    }

    /// A guest is deleted only for a restart that the status records with this guest's uid. A repeated deletion, sent
    /// because a watch is late, names a guest that is gone already, and deletes nothing.
    async fn guest_is_deleted(&self, name: &str, deletion: &Value) -> Result<Option<String>> {
        let named = &deletion["preconditions"]["uid"];
        if named.is_null() {
            return Ok(Some("the deletion has no uid precondition".to_owned()));
        }
        let (machine, instance) = (
            self.machines.find(name).await?,
            self.instances.find(name).await?,
        );
        let ends = instance.is_some_and(|instance| instance["metadata"]["uid"] == *named);
        let replaces = machine.map(|machine| machine["status"]["lastRestart"]["replaces"].clone());
        let due = !ends || replaces.as_ref() == Some(named);
        Ok((!due).then(|| format!("it is not the guest that is to be restarted: {replaces:?}")))
    }

    /// The finalizer is removed after everything else is gone.
    async fn machine_is_released(&self) -> Result<Option<String>> {
        let machine = self.machines.find("web").await?;
        if machine.is_some_and(|machine| machine["metadata"]["deletionTimestamp"].is_null()) {
            return Ok(Some(
                "releases a Machine that is not being deleted".to_owned(),
            ));
        }
        for (what, objects) in [("VirtualMachine", &self.vms), ("instance", &self.instances)] {
            if objects.find("web").await?.is_some() {
                return Ok(Some(format!("its {what} is still there")));
            }
        }
        let root = self.claims.find("web-root").await?;
        let exists = root.is_some_and(|claim| claim["metadata"]["deletionTimestamp"].is_null());
        Ok(exists.then(|| "its disk is still there".to_owned()))
    }

    /// No VirtualMachine is created while the guest of an earlier one exists, and none with a claim that another one
    /// has.
    async fn vm_is_created(&self, write: &Write) -> Result<Option<String>> {
        let name = write.body["metadata"]["name"].as_str().unwrap_or_default();
        for claim in claims_of(&write.body) {
            if let Some(user) = self.users_of(claim, name).await?.pop() {
                return Ok(Some(format!("{user} has its claim {claim}")));
            }
        }
        if write.body["kind"] != "VirtualMachine" || self.vms.find("web").await?.is_some() {
            return Ok(None);
        }
        let instance = self.instances.find("web").await?;
        Ok(instance.map(|_| "the guest of an earlier one still runs".to_owned()))
    }
}

/// The volumes of a VirtualMachine, an instance or a pod.
pub(crate) fn volumes_of(object: &Value) -> impl Iterator<Item = &Value> {
    let specs = ["/spec/template/spec/volumes", "/spec/volumes"];
    let volumes = specs.map(|path| object.pointer(path).and_then(Value::as_array));
    volumes.into_iter().flatten().flatten()
}

/// The claims that a VirtualMachine, an instance or a pod names. A DataVolume has the name of its claim.
fn claims_of(object: &Value) -> impl Iterator<Item = &str> {
    volumes_of(object).filter_map(|volume| {
        let claim = volume["persistentVolumeClaim"]["claimName"].as_str();
        claim.or_else(|| volume["dataVolume"]["name"].as_str())
    })
}

/// Claims that several guests have: two guests on one disk destroy it.
pub(crate) async fn shared_claims(lab: &Lab, namespace: &str) -> Result<Vec<String>> {
    let mut guests: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for instance in lab.objects(INSTANCE, namespace).list().await? {
        for claim in claims_of(&instance) {
            let name = instance["metadata"]["name"].clone();
            guests.entry(claim.to_owned()).or_default().push(name);
        }
    }
    let shared = guests.into_iter().filter(|(_, guests)| guests.len() > 1);
    Ok(shared
        .map(|(claim, guests)| format!("claim {claim} has several guests: {guests:?}"))
        .collect())
}

/// No import in these runs is cancelled: the claim that it filled is a disk of the Machine.
fn takes_its_claim(deletion: &Value) -> Option<String> {
    let orphans = deletion["propagationPolicy"] == "Orphan";
    (!orphans).then(|| "takes the disk with its import".to_owned())
}

/// Whether a patch removes our finalizer.
fn removes_finalizer(body: &Value) -> bool {
    let finalizers = body["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| !all.iter().any(|it| it == "machine.vitistack.io/cleanup"))
}
