//! What clients of virt-api do to a VirtualMachine, and the admission of virt-api that may not answer.
//!
//! The subresources are simulated by the writes that virt-api (v1.8 and v1.9, `pkg/virt-api/rest/lifecycle.go` and
//! `volumes.go`) makes for them, with its field manager:
//!
//! | virtctl | `Always` | `RerunOnFailure` | `Halted` |
//! |---|---|---|---|
//! | `stop` | `runStrategy: Halted` | a request to stop | refused |
//! | `start` | refused | a request to start | `runStrategy: Always` |
//! | `restart` | requests to stop and to start | the same | refused |
//!
//! `addvolume` and `removevolume` change the lists of volumes and disks of the VirtualMachine.

use std::{net::TcpListener, sync::PoisonError, time::Duration};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Simulator, kinds};
use crate::{ports, wait};

/// Field manager of virt-api.
const VIRT_API: &str = "virt-api";

/// Name of virt-api's configuration for VirtualMachines.
const CONFIGURATION: &str = "virt-api-validator";

/// An answer that takes longer is not one of the API server alone.
const RESULT_TIMEOUT: Duration = Duration::from_secs(1);

/// How virt-api's admission of VirtualMachines answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// At once; everything is accepted.
    Answers,
    /// Not at all: the API server waits for 10 s, which is virt-api's `timeoutSeconds`, and refuses the write.
    Hangs,
    /// virt-api does not run: the API server refuses the write at once.
    IsAway,
}

impl Simulator {
    /// `virtctl stop`.
    pub async fn stop(&self, namespace: &str, name: &str) -> Result<()> {
        let machine = self.machine(namespace, name).await?;
        match strategy(&machine) {
            "Always" => self.set_strategy(namespace, name, "Halted").await,
            "RerunOnFailure" => {
                let uid = self.instance_uid(namespace, name).await?;
                let requests = json!([{"action": "Stop", "uid": uid}]);
                self.request(namespace, name, &requests).await
            }
            other => bail!("{name} cannot be stopped with runStrategy {other}"),
        }
    }

    /// `virtctl start`.
    pub async fn start_machine(&self, namespace: &str, name: &str) -> Result<()> {
        let machine = self.machine(namespace, name).await?;
        match strategy(&machine) {
            "Halted" => self.set_strategy(namespace, name, "Always").await,
            "RerunOnFailure" => {
                let requests = json!([{"action": "Start"}]);
                self.request(namespace, name, &requests).await
            }
            other => bail!("{name} cannot be started with runStrategy {other}"),
        }
    }

    /// `virtctl restart`.
    pub async fn restart(&self, namespace: &str, name: &str) -> Result<()> {
        let uid = self.instance_uid(namespace, name).await?;
        let requests = json!([{"action": "Stop", "uid": uid}, {"action": "Start"}]);
        self.request(namespace, name, &requests).await
    }

    /// `virtctl addvolume --persist`: plugs a claim into the running guest.
    pub async fn add_volume(&self, namespace: &str, name: &str, claim: &str) -> Result<()> {
        self.change_volumes(namespace, name, |volumes, disks| {
            let source = json!({"claimName": claim, "hotpluggable": true});
            volumes.push(json!({"name": claim, "persistentVolumeClaim": source}));
            disks.push(json!({"name": claim, "serial": claim, "disk": {"bus": "scsi"}}));
        })
        .await
    }

    /// `virtctl removevolume --persist`.
    pub async fn remove_volume(&self, namespace: &str, name: &str, claim: &str) -> Result<()> {
        self.change_volumes(namespace, name, |volumes, disks| {
            volumes.retain(|volume| volume["name"] != claim);
            disks.retain(|disk| disk["name"] != claim);
        })
        .await
    }

    /// Sets how virt-api's admission answers, and waits until the API server calls it.
    pub async fn set_admission(&self, admission: Admission) -> Result<()> {
        let configurations: Api<ValidatingWebhookConfiguration> =
            Api::all(self.context.client.clone());
        // Connections are accepted by the kernel and never answered.
        let hangs = (admission == Admission::Hangs).then(|| TcpListener::bind(("127.0.0.1", 0)));
        let listener = hangs.transpose()?;
        if configurations.get_opt(CONFIGURATION).await?.is_some() {
            let parameters = DeleteParams::default();
            configurations.delete(CONFIGURATION, &parameters).await?;
        }
        if admission != Admission::Answers {
            let port = match &listener {
                Some(listener) => listener.local_addr()?.port(),
                None => ports::free()?,
            };
            let configuration = serde_json::from_value(configuration(port))?;
            let parameters = PostParams::default();
            configurations.create(&parameters, &configuration).await?;
        }
        wait::until("the API server to call virt-api's admission", async || {
            let seen = self.admitted().await?;
            Ok(if seen == admission { Ok(()) } else { Err(seen) })
        })
        .await?;
        let mut held = self
            .context
            .admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *held = listener;
        Ok(())
    }

    /// How the admission answers a VirtualMachine that is not stored.
    async fn admitted(&self) -> Result<Admission> {
        let machines = self.context.api(&kinds::MACHINE, "default");
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let spec =
            json!({"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}});
        let probe: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"generateName": "probe-"}, "spec": spec,
        }))?;
        match timeout(RESULT_TIMEOUT, machines.create(&parameters, &probe)).await {
            Err(_) => Ok(Admission::Hangs),
            Ok(Ok(_)) => Ok(Admission::Answers),
            Ok(Err(kube::Error::Api(status))) if status.code == 500 => Ok(Admission::IsAway),
            Ok(Err(error)) => Err(error.into()),
        }
    }

    async fn machine(&self, namespace: &str, name: &str) -> Result<Value> {
        let machines = self.context.api(&kinds::MACHINE, namespace);
        Ok(serde_json::to_value(machines.get(name).await?)?)
    }

    async fn instance_uid(&self, namespace: &str, name: &str) -> Result<String> {
        let instances = self.context.api(&kinds::INSTANCE, namespace);
        let instance = instances.get(name).await?;
        instance
            .metadata
            .uid
            .with_context(|| format!("the instance {name} has no uid"))
    }

    async fn set_strategy(&self, namespace: &str, name: &str, strategy: &str) -> Result<()> {
        let patch = json!({"spec": {"runStrategy": strategy}});
        Ok(self.patch(namespace, name, &patch).await?)
    }

    async fn request(&self, namespace: &str, name: &str, requests: &Value) -> Result<()> {
        let machines = self.context.api(&kinds::MACHINE, namespace);
        let patch = Patch::Merge(json!({"status": {"stateChangeRequests": requests}}));
        machines.patch_status(name, &manager(), &patch).await?;
        Ok(())
    }

    async fn change_volumes(
        &self,
        namespace: &str,
        name: &str,
        change: impl Fn(&mut Vec<Value>, &mut Vec<Value>),
    ) -> Result<()> {
        // Status is written beside it; any client that gets a conflict runs the command again.
        loop {
            let machine = self.machine(namespace, name).await?;
            let patch = change_of_volumes(&machine, &change);
            match self.patch(namespace, name, &patch).await {
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                answer => return Ok(answer?),
            }
        }
    }

    async fn patch(&self, namespace: &str, name: &str, patch: &Value) -> kube::Result<()> {
        let machines = self.context.api(&kinds::MACHINE, namespace);
        machines
            .patch(name, &manager(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }
}

/// The merge patch of a VirtualMachine, as it was read, that changes its lists of volumes and of disks.
fn change_of_volumes(machine: &Value, change: impl Fn(&mut Vec<Value>, &mut Vec<Value>)) -> Value {
    let list = |path: &str| -> Vec<Value> {
        let path = format!("/spec/template/spec/{path}");
        let list = machine.pointer(&path).and_then(Value::as_array);
        list.cloned().unwrap_or_default()
    };
    let (mut volumes, mut disks) = (list("volumes"), list("domain/devices/disks"));
    change(&mut volumes, &mut disks);
    let spec = json!({"volumes": volumes, "domain": {"devices": {"disks": disks}}});
    let version = &machine["metadata"]["resourceVersion"];
    json!({
        "metadata": {"resourceVersion": version}, "spec": {"template": {"spec": spec}},
    })
}

fn manager() -> PatchParams {
    PatchParams {
        field_manager: Some(VIRT_API.to_owned()),
        ..PatchParams::default()
    }
}

fn strategy(machine: &Value) -> &str {
    machine["spec"]["runStrategy"].as_str().unwrap_or_default()
}

fn configuration(port: u16) -> Value {
    json!({
        "metadata": {"name": CONFIGURATION},
        "webhooks": [{
            "name": "virtualmachine-validator.kubevirt.io",
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/virtualmachines-validate")},
            "rules": [{
                "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "resources": ["virtualmachines"],
                "operations": ["CREATE", "UPDATE"],
            }],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "admissionReviewVersions": ["v1"],
        }],
    })
}
