//! Reads the launcher pods of an instance, and writes what [`launcher`] and [`migration`] return.

use k8s_openapi::{
    api::core::v1::{Event, Pod, ServiceAccount},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    runtime::controller::Action,
};
use serde_json::{Value, json};

use super::{
    context::{Context, merge},
    error::SimulatorError,
    guest::cards,
    launcher::{self, CREATED_BY, Step},
    migration,
    scenario::Scenario,
    scheduler,
    start_failure::with_transition,
    vm_state_machine,
};

/// The launcher pod of an instance, if it has one.
pub(super) struct Launcher {
    pods: Api<Pod>,
    accounts: Api<ServiceAccount>,
    events: Api<Event>,
    pub(super) pod: Option<Value>,
}

impl Launcher {
    pub(super) async fn of(
        context: &Context,
        namespace: &str,
        instance: Option<&Value>,
    ) -> Result<Self, SimulatorError> {
        let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
        let mut pod = None;
        if let Some(uid) = instance.and_then(|instance| instance["metadata"]["uid"].as_str()) {
            let of_instance = ListParams::default().labels(&format!("{CREATED_BY}={uid}"));
            let mut found = pods.list(&of_instance).await?.items;
            // During a migration there are two.
            let node = instance.and_then(|instance| instance["status"]["nodeName"].as_str());
            let is_here =
                |pod: &Pod| pod.spec.as_ref().and_then(|it| it.node_name.as_deref()) == node;
            let here = found
                .iter()
                .position(is_here)
                .map(|at| found.swap_remove(at));
            let found = here.or_else(|| found.pop());
            pod = found.map(serde_json::to_value).transpose()?;
        }
        Ok(Self {
            pods,
            accounts: Api::namespaced(context.client.clone(), namespace),
            events: Api::namespaced(context.client.clone(), namespace),
            pod,
        })
    }

    /// The node of a new pod of the instance; an error: the scenario of a pod that no node takes.
    pub(super) async fn node(
        &self,
        instance: &Value,
    ) -> Result<Result<String, Scenario>, SimulatorError> {
        Ok(scheduler::node(&self.pods, instance, self.pod.as_ref()).await?)
    }

    fn name(&self) -> &str {
        let pod = self.pod.as_ref();
        pod.and_then(|pod| pod["metadata"]["name"].as_str())
            .unwrap_or_default()
    }

    /// Carries out the next step of the pod. Returns what the pass ends with; `None`: it goes on.
    pub(super) async fn step(
        &self,
        instance: &Value,
        instances: &Api<DynamicObject>,
        scenario: Scenario,
        lacks_claims: bool,
        node: Option<&str>,
    ) -> Result<Option<Action>, SimulatorError> {
        if scenario == Scenario::MountFails && instance["status"]["phase"] == "Scheduling" {
            self.report_mount().await?;
        }
        let node = node.filter(|_| scenario != Scenario::Unschedulable);
        let now = Timestamp::now();
        let done = Some(Action::await_change());
        let parameters = DeleteParams::default();
        match launcher::next(
            instance,
            self.pod.as_ref(),
            scenario,
            lacks_claims,
            node,
            now,
        ) {
            Step::Rest => return Ok(None),
            Step::Wait => return Ok(Some(Action::requeue(vm_state_machine::SOON))),
            Step::Create(pod) => self.create(&pod).await?,
            Step::End(status) => {
                let patch = Patch::Merge(json!({"status": status}));
                let parameters = PatchParams::default();
                self.pods
                    .patch_status(self.name(), &parameters, &patch)
                    .await?;
                return Ok(None);
            }
            Step::Delete => {
                self.pods.delete(self.name(), &parameters).await?;
            }
            Step::Remove => {
                let now = parameters.grace_period(0);
                self.pods.delete(self.name(), &now).await?;
            }
            Step::Instance(status) => {
                let status = with_transition(instance, status, now);
                let name = instance["metadata"]["name"].as_str().unwrap_or_default();
                merge(instances, name, &json!({"status": status})).await?;
            }
        }
        Ok(done)
    }

    /// Carries out the next step of a live migration, if there is one.
    pub(super) async fn migrate(
        &self,
        instance: &Value,
        instances: &Api<DynamicObject>,
        migratable: bool,
        scenario: Scenario,
    ) -> Result<(), SimulatorError> {
        let cards = || cards(instance);
        let pod = self.pod.as_ref();
        let name = instance["metadata"]["name"].as_str().unwrap_or_default();
        let report = async |status: Value| merge(instances, name, &json!({"status": status})).await;
        match migration::next(instance, pod, migratable, scenario, cards) {
            None => {}
            Some(migration::Step::Report(status)) => report(status).await?,
            Some(migration::Step::Complete(status)) => {
                let mut target = launcher::pod_of(instance, status["nodeName"].as_str());
                let target_name = format!("{}-m", self.name());
                target["metadata"]["name"] = json!(target_name);
                self.create(&target).await?;
                let running = Patch::Merge(json!({"status": launcher::running(Timestamp::now())}));
                let parameters = PatchParams::default();
                self.pods
                    .patch_status(&target_name, &parameters, &running)
                    .await?;
                report(status).await?;
                let now = DeleteParams::default().grace_period(0);
                self.pods.delete(self.name(), &now).await?;
            }
        }
        Ok(())
    }

    /// The kubelet reports, once, that it cannot mount a volume.
    async fn report_mount(&self) -> Result<(), SimulatorError> {
        let Some(pod) = &self.pod else {
            return Ok(());
        };
        let metadata = &pod["metadata"];
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let event = json!({
            "metadata": {"name": format!("{}.mount", self.name()), "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": metadata["name"],
                "namespace": metadata["namespace"], "uid": metadata["uid"],
            },
            "type": "Warning", "reason": "FailedMount", "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": "kubelet", "host": "node-1"},
            "message": "MountVolume.SetUp failed for volume \"cloudinit\" : secret \"init\" not found",
        });
        let event = serde_json::from_value(event)?;
        match self.events.create(&PostParams::default(), &event).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => {
                created?;
            }
        }
        Ok(())
    }

    async fn create(&self, pod: &Value) -> Result<(), SimulatorError> {
        let parameters = PostParams::default();
        let pod = serde_json::from_value(pod.clone())?;
        match self.pods.create(&parameters, &pod).await {
            // Without the controller for ServiceAccounts, a namespace has none, and no pod is accepted.
            Err(kube::Error::Api(status)) if status.message.contains("service account") => {
                let account = ServiceAccount {
                    metadata: kube::api::ObjectMeta {
                        name: Some("default".to_owned()),
                        ..kube::api::ObjectMeta::default()
                    },
                    ..ServiceAccount::default()
                };
                let created = self.accounts.create(&parameters, &account).await;
                if !matches!(&created, Err(kube::Error::Api(status)) if status.code == 409) {
                    created?;
                }
                self.pods.create(&parameters, &pod).await?;
            }
            created => {
                created?;
            }
        }
        Ok(())
    }

    /// The pod starts: it is bound to a node, and its container runs.
    pub(super) async fn run(&self, node: &Value) -> Result<(), SimulatorError> {
        let Some(pod) = &self.pod else {
            return Ok(());
        };
        if pod["spec"]["nodeName"].is_null() {
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding",
                "metadata": {"name": self.name()},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            });
            let _: Value = self
                .pods
                .create_subresource("binding", self.name(), &PostParams::default(), &binding)
                .await?;
        }
        let patch = Patch::Merge(json!({"status": launcher::running(Timestamp::now())}));
        let parameters = PatchParams::default();
        self.pods
            .patch_status(self.name(), &parameters, &patch)
            .await?;
        Ok(())
    }
}
