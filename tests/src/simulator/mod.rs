//! Simulates KubeVirt and the storage, because the lab has no nodes.
//!
//! ```text
//! VirtualMachine ──► VirtualMachineInstance ──► node, addresses, end         `machine`, `vm_state_machine`
//!           │                        ├──► phases until it runs              `start`
//!           │                        ├──► virt-launcher pod                 `launcher`
//!           │                        │    └──► its node                     `scheduler`
//!           │                        ├──► hot-plugged resources, volumes    `rollout`, `hotplug`
//!           │                        ├──► live migrations                   `migration`
//!           │                        └──► claim of EFI variables and TPM    `state`
//!           └──► starts that failed                                         `start_failure`
//! subresources and admission of virt-api                                    `virt_api`
//! the KubeVirt object                                                       `installation`
//! PersistentVolumeClaim, DataVolume ──► bound, grown, imported              `storage`
//! what all of them share                                                    `context`, `kinds`
//! ```
//! It replaces virt-controller, virt-handler, virt-api, the kubelet, the provisioner and CDI's importer:
//! it writes the fields that those write to the objects our controller reads: `printableStatus`, conditions, phases, finalizers, order of deletion.
//! It follows the spec (`runStrategy`, template, volumes, Secrets, networks)
//! and a [`Scenario`].
//!
//! It does not show that KubeVirt accepts an object (its schemas and rules
//! have tests of their own), that a guest boots, or the duration of any step. It
//! creates no PersistentVolume, but binds existing ones.
//! Unlike real storage, it selects the scenario of a claim by our label with the
//! name of the machine.

mod context;
mod error;
mod expansion;
mod guest;
mod hardware;
mod hotplug;
mod installation;
mod kinds;
mod launcher;
mod machine;
mod migration;
mod pods;
mod requested;
mod rollout;
mod scenario;
mod scheduler;
mod start;
mod start_failure;
mod state;
mod storage;
mod subresources;
mod virt_api;
mod vm_state_machine;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::Result;
use futures::{Stream, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

pub use migration::Eviction;
pub use scenario::{ANNOTATION, Scenario};
pub use subresources::Subresources;
pub use virt_api::Admission;

use context::{Context, merge};

/// Interval between checks for CDI, which a test may install at any time.
const CDI_POLL: Duration = Duration::from_millis(500);

/// The running simulator. It ends when this is dropped.
#[derive(Debug)]
pub struct Simulator {
    context: Arc<Context>,
    changed: watch::Sender<()>,
    parts: AbortHandle,
}

impl Simulator {
    pub(crate) fn start(client: Client, scenario: Scenario) -> Self {
        let context = Arc::new(Context::new(client, scenario));
        let (changed, receiver) = watch::channel(());
        let parts = tokio::spawn(run(context.clone(), receiver)).abort_handle();
        Self {
            context,
            changed,
            parts,
        }
    }

    /// Sets the scenario of all machines, those with one of their own included.
    pub fn set_all(&self, scenario: Scenario) {
        self.context.scenarios.set_default(scenario);
        self.changed.send_replace(());
    }

    /// Sets the scenario of one machine and its claims.
    pub fn set(&self, namespace: &str, name: &str, scenario: Scenario) {
        self.context.scenarios.set(namespace, name, scenario);
        self.changed.send_replace(());
    }

    /// Sets the pause after the first failed start. KubeVirt's is 10 s.
    pub fn set_start_pause(&self, pause: Duration) {
        let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.context.start_pause.store(millis, Ordering::Relaxed);
    }

    /// The guest shuts itself down, as after `poweroff` inside it.
    pub async fn guest_shutdown(&self, namespace: &str, name: &str) -> Result<()> {
        let instances = self.context.instances(namespace);
        let instance = serde_json::to_value(instances.get(name).await?)?;
        let now = k8s_openapi::jiff::Timestamp::now();
        let status = json!({"phase": "Succeeded"});
        let status = start_failure::with_transition(&instance, status, now);
        merge(&instances, name, &json!({"status": status})).await?;
        Ok(())
    }

    /// A user migrates the guest to another node, as with `virtctl migrate`.
    pub async fn migrate(&self, namespace: &str, name: &str) -> Result<()> {
        self.report(namespace, name, migration::started).await
    }

    /// The launcher pod of a guest is evicted, as by `kubectl drain`.
    pub async fn evict(&self, namespace: &str, name: &str) -> Result<Eviction> {
        let instances = self.context.instances(namespace);
        let instance = serde_json::to_value(instances.get(name).await?)?;
        let answer = migration::eviction(&instance);
        match answer {
            Eviction::Refused => {}
            Eviction::Waits => self.report(namespace, name, migration::evicted).await?,
            Eviction::Allowed => {
                let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
                let label = format!("{}={name}", launcher::VM_NAME);
                let of_guest = ListParams::default().labels(&label);
                for pod in pods.list(&of_guest).await? {
                    pods.delete(&pod.name_any(), &DeleteParams::default())
                        .await?;
                }
            }
        }
        Ok(answer)
    }

    /// Patches the status of a running instance.
    async fn report(
        &self,
        namespace: &str,
        name: &str,
        status: impl Fn(&Value) -> Value,
    ) -> Result<()> {
        let instances = self.context.instances(namespace);
        let instance = serde_json::to_value(instances.get(name).await?)?;
        merge(&instances, name, &json!({"status": status(&instance)})).await?;
        Ok(())
    }

    /// The guest agent connects: it reports the operating system and every address in the guest.
    pub async fn guest_agent(&self, namespace: &str, name: &str) -> Result<()> {
        let instances = self.context.instances(namespace);
        let mut status = instances.get(name).await?.data["status"].take();
        for card in status["interfaces"].as_array_mut().into_iter().flatten() {
            let address = card["ipAddress"].take();
            card["ipAddress"] = json!("fe80::1");
            card["ipAddresses"] = json!(["fe80::1", "2001:db8::1", address]);
            card["infoSource"] = json!("domain, guest-agent");
        }
        let bridge = json!({
            "interfaceName": "docker0", "mac": "02:42:00:00:00:01", "infoSource": "guest-agent",
            "ipAddress": "172.17.0.1", "ipAddresses": ["172.17.0.1"],
        });
        let fields = [
            ("interfaces", bridge),
            (
                "conditions",
                json!({"type": "AgentConnected", "status": "True"}),
            ),
        ];
        for (list, item) in fields {
            if let Some(list) = status[list].as_array_mut() {
                list.push(item);
            }
        }
        status["guestOSInfo"] = json!({
            "id": "fedora", "name": "Fedora Linux", "version": "40 (Cloud Edition)",
            "kernelRelease": "6.8.5-301.fc40.x86_64",
        });
        merge(&instances, name, &json!({"status": status})).await?;
        Ok(())
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.parts.abort();
    }
}

async fn run(context: Arc<Context>, changed: watch::Receiver<()>) {
    let mut parts = JoinSet::new();
    parts.spawn(storage::claims(context.clone(), changes(changed.clone())));
    if context.has(&kinds::MACHINE).await {
        machine::create_nodes(&context).await;
        if let Err(error) = installation::create(&context).await {
            tracing::warn!(%error, "the KubeVirt object was not created");
        }
        parts.spawn(requested::run(context.clone()));
        parts.spawn(machine::run_virtual_machines(
            context.clone(),
            changes(changed.clone()),
        ));
    }
    parts.spawn(async move {
        while !context.has(&kinds::DATA_VOLUME).await {
            sleep(CDI_POLL).await;
        }
        storage::imports(context, changes(changed)).await;
    });
    // Aborting this task drops the set, and with it every part.
    while parts.join_next().await.is_some() {}
}

/// An item per change of the scenarios.
fn changes(receiver: watch::Receiver<()>) -> impl Stream<Item = ()> + Send + 'static {
    stream::unfold(receiver, |mut receiver| async {
        receiver.changed().await.ok().map(|()| ((), receiver))
    })
}
