//! What must never be done, looked at before each write.

use anyhow::Result;
use lab::{
    Lab,
    objects::{CLAIM, INSTANCE, MACHINE, Objects, VM},
    saboteur::{Witness, Write},
};
use serde_json::Value;

/// Name of what is there and is not the Machine's.
pub(crate) const STRANGER: &str = "web-old";

#[derive(Clone)]
struct Namespace {
    machines: Objects,
    vms: Objects,
    instances: Objects,
    claims: Objects,
}

/// A witness of the Machine `web` in this namespace.
pub(crate) fn of(lab: &Lab, namespace: &str) -> Witness {
    let there = Namespace {
        machines: lab.objects(MACHINE, namespace),
        vms: lab.objects(VM, namespace),
        instances: lab.objects(INSTANCE, namespace),
        claims: lab.objects(CLAIM, namespace),
    };
    Box::new(move |write| {
        let (there, write) = (there.clone(), write.clone());
        Box::pin(async move {
            match there.objection(&write).await {
                Ok(objection) => objection,
                Err(error) => Some(format!("cannot be judged: {error:#}")),
            }
        })
    })
}

impl Namespace {
    async fn objection(&self, write: &Write) -> Result<Option<String>> {
        let (rest, name) = write.path.rsplit_once('/').unwrap_or_default();
        let kind = rest.rsplit('/').next().unwrap_or_default();
        if name == STRANGER {
            return Ok(Some("touches what is not the Machine's".to_owned()));
        }
        match (write.method.as_str(), kind) {
            ("DELETE", "persistentvolumeclaims") => self.claim_goes(name).await,
            ("DELETE", "datavolumes") => Ok(takes_its_claim(&write.body)),
            ("DELETE", "virtualmachineinstances") => self.guest_goes(name, &write.body).await,
            ("PATCH", "machines") if lets_go(&write.body) => self.machine_goes().await,
            ("PATCH", "virtualmachines") => self.machine_is_made(write).await,
            _ => Ok(None),
        }
    }

    /// A claim goes after everything that uses it.
    async fn claim_goes(&self, claim: &str) -> Result<Option<String>> {
        for (objects, template) in [
            (&self.vms, "/spec/template/spec"),
            (&self.instances, "/spec"),
        ] {
            for object in objects.list().await? {
                let volumes = object.pointer(template).map(|spec| &spec["volumes"]);
                let volumes = volumes.and_then(Value::as_array).into_iter().flatten();
                let mut claims = volumes.map(|it| &it["persistentVolumeClaim"]["claimName"]);
                if claims.any(|used| used == claim) {
                    return Ok(Some(format!("{} uses it", object["metadata"]["name"])));
                }
            }
        }
        Ok(None)
    }

    /// A guest goes for a restart, when that is written down, with whose turn it is. A deletion that
    /// comes again, because its watch is behind, names the guest that has gone: it ends nobody.
    async fn guest_goes(&self, name: &str, deletion: &Value) -> Result<Option<String>> {
        let named = &deletion["preconditions"]["uid"];
        if named.is_null() {
            return Ok(Some("it does not tell which guest".to_owned()));
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

    /// The finalizer goes after everything else.
    async fn machine_goes(&self) -> Result<Option<String>> {
        let machine = self.machines.find("web").await?;
        if machine.is_some_and(|machine| machine["metadata"]["deletionTimestamp"].is_null()) {
            return Ok(Some("lets go of a Machine that stays".to_owned()));
        }
        for (what, objects) in [("VirtualMachine", &self.vms), ("instance", &self.instances)] {
            if objects.find("web").await?.is_some() {
                return Ok(Some(format!("its {what} is still there")));
            }
        }
        let root = self.claims.find("web-root").await?;
        let stays = root.is_some_and(|claim| claim["metadata"]["deletionTimestamp"].is_null());
        Ok(stays.then(|| "its disk is still there".to_owned()))
    }

    /// Never a second guest beside one that has not ended.
    async fn machine_is_made(&self, write: &Write) -> Result<Option<String>> {
        if write.body["kind"] != "VirtualMachine" || self.vms.find("web").await?.is_some() {
            return Ok(None);
        }
        let instance = self.instances.find("web").await?;
        Ok(instance.map(|_| "the guest of an earlier one still runs".to_owned()))
    }
}

/// No import of these lives is broken off: what it filled is somebody's disk.
fn takes_its_claim(deletion: &Value) -> Option<String> {
    let orphans = deletion["propagationPolicy"] == "Orphan";
    (!orphans).then(|| "takes the disk with its import".to_owned())
}

/// Whether a patch takes our finalizer away.
fn lets_go(body: &Value) -> bool {
    let finalizers = body["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| !all.iter().any(|it| it == "machine.vitistack.io/cleanup"))
}
