//! Passes over the Machine `default/web` with a scripted backend and a mock of the API server.

use std::sync::{Mutex, PoisonError};

use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube::runtime::reflector::store;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::advance;

use super::*;
use crate::backend::{Act, Draft};
use crate::conditions::{Conditions, Fault};
use crate::deletion::{Stage, Teardown};
use crate::events::events;
use crate::fixtures;
use crate::lease::LeaseGuard;
use crate::preconditions::Effect;
use crate::ready::last_known;
use crate::refusal::Reasons;
use crate::reset::{PowerPlan, reset};
use common::api::normalized::Normalized;
use common::api::status::MachineStatus;
use common::names;

mod failures;
mod hold;

const UID: &str = "uid-of-web";
const INTERVAL: Duration = Duration::from_secs(30);

/// An action that is logged by its name.
#[derive(Clone, Debug)]
struct Step {
    name: &'static str,
    stops_or_resets: bool,
    /// Fails in this way.
    fails: Option<Remedy>,
    /// Reason of its failure.
    reason: Option<&'static str>,
    /// Time that it takes. One that takes any is reported while it waits.
    takes: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Act for Step {
    fn subject(&self) -> Subject {
        Subject::Storage
    }

    fn effect(&self) -> Option<Effect> {
        None
    }

    fn stops_or_resets(&self) -> bool {
        self.stops_or_resets
    }
}

fn create(fails: Option<Remedy>) -> Step {
    Step {
        name: "create",
        stops_or_resets: false,
        fails,
        reason: None,
        takes: Duration::ZERO,
    }
}

const SWITCH: Step = Step {
    name: "switch off",
    stops_or_resets: true,
    fails: None,
    reason: None,
    takes: Duration::ZERO,
};

/// A backend that plans the steps it was given and counts the calls to it.
#[derive(Default)]
struct Scripted {
    steps: Mutex<Vec<Step>>,
    /// With what remedy the observation fails.
    unobserved: Option<Remedy>,
    /// What `has_seen` answers.
    has_seen: bool,
    /// The Lease that is lost during the observation.
    loses: Option<watch::Sender<Option<tokio::time::Instant>>>,
    /// "observe", and the names of the steps that were attempted.
    calls: Mutex<Vec<&'static str>>,
}

impl Scripted {
    fn with(steps: Vec<Step>) -> Self {
        Self {
            steps: Mutex::new(steps),
            ..Self::default()
        }
    }

    fn call(&self, name: &'static str) {
        self.calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(name);
    }
}

impl Backend for Scripted {
    type Observed = Vec<Step>;
    type Action = Step;

    const IS_EVENT_DRIVEN: bool = true;
    const REASONS: Reasons = Reasons {
        network: "NetworkFailed",
        storage: "VolumeFailed",
        guest: "VMFailed",
        display: "DisplayFailed",
    };

    async fn observe(&self, _: &Machine, _: Growth<'_>) -> Result<Vec<Step>, Failed> {
        self.call("observe");
        if let Some(lease) = &self.loses {
            lease.send_replace(None);
        }
        if let Some(remedy) = self.unobserved {
            return Err(Failed::new(remedy, "the claims cannot be read".into()));
        }
        Ok(self.steps.lock().unwrap().clone())
    }

    fn plan(
        machine: &Machine,
        _: &Normalized,
        steps: &Vec<Step>,
        refusal: Option<&Refusal>,
        growth: Growth<'_>,
        _: Now,
    ) -> Draft<Step> {
        let status = refusal.map(|refusal| {
            let mut status = fixtures::ready("False", "KubeVirtApiError");
            status.conditions[0].message.clone_from(&refusal.message);
            status
        });
        let is_new = machine.status.conditions.is_empty();
        let mut status = status.or_else(|| is_new.then(|| fixtures::ready("True", "Running")));
        if let Some(status) = &mut status {
            status.last_reset = reset(machine, PowerPlan::KeepsRunning, refusal).last;
        }
        let is_permitted = |step: &&Step| growth == Growth::Permitted || step.stops_or_resets;
        Draft {
            actions: steps.iter().filter(is_permitted).cloned().collect(),
            status,
            ..Draft::default()
        }
    }

    fn report_unfit(machine: &Machine, _: &Vec<Step>, unfit: Fault, now: Now) -> MachineStatus {
        last_known(machine, Conditions::new(machine, now), &unfit)
    }

    fn teardown(_: &Machine, _: &Vec<Step>, _: Now) -> Teardown<Step> {
        Teardown {
            status: MachineStatus::default(),
            stage: Stage::Release(vec![]),
        }
    }

    async fn apply(&self, _: &Machine, step: &Step) -> Result<Option<Written>, Failed> {
        self.call(step.name);
        if !step.takes.is_zero() {
            tokio::time::sleep(step.takes).await;
        }
        match step.fails {
            Some(remedy) => Err(Failed {
                reason: step.reason,
                ..Failed::new(remedy, "the quota is used up".into())
            }),
            None => Ok(None),
        }
    }

    fn unanswered(step: &Step) -> Option<Refusal> {
        (!step.takes.is_zero()).then(|| Refusal {
            subject: Subject::Guest,
            reason: None,
            message: format!("{} waits", step.name),
        })
    }

    fn has_seen(&self, _: &str, _: &Written) -> bool {
        self.has_seen
    }
}

/// A request that the mock of the API server got: path below the namespace, and body.
type Sent = Arc<Mutex<Vec<(String, Value)>>>;

/// An API server that answers every patch with the Machine in version 2.
fn api_server() -> (Client, Sent) {
    let sent = Sent::default();
    let log = sent.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let log = log.clone();
        async move {
            let path = request.uri().path().rsplit("/default/").next();
            let path = path.unwrap_or_default().to_owned();
            let body = request.into_body().collect_bytes().await?;
            log.lock()
                .unwrap()
                .push((path, serde_json::from_slice(&body).unwrap()));
            let machine = json!({
                "apiVersion": "vitistack.io/v1alpha1", "kind": "Machine",
                "metadata": {"name": "web", "namespace": "default", "uid": UID, "resourceVersion": "2"},
            });
            let body = Body::from(machine.to_string().into_bytes());
            Ok::<_, kube::Error>(Response::new(body))
        }
    });
    (Client::new(service, "default"), sent)
}

/// One Machine, its backend and its API server.
struct Harness {
    backend: Arc<Scripted>,
    context: Arc<Context>,
    sent: Sent,
    machine: Machine,
}

impl Harness {
    fn new(backend: Scripted, guard: LeaseGuard) -> Self {
        let (client, sent) = api_server();
        let backend = Arc::new(backend);
        let (machines, _) = store();
        let (events, _) = events(client.clone());
        let context = Context {
            caches: Caches::new(machines),
            api: GuardedClient::new(client, guard),
            events,
            expectations: Arc::default(),
            interval: INTERVAL,
            cluster: "cluster".into(),
            backends: Backends {
                kubevirt: backend.clone(),
                libvirt: backend.clone(),
            },
        };
        let mut machine = fixtures::machine(fixtures::block());
        machine.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        machine.status = fixtures::ready("True", "Running");
        Self {
            backend,
            context: Arc::new(context),
            sent,
            machine,
        }
    }

    /// One pass; returns the calls to the backend.
    async fn pass(&self) -> Vec<&'static str> {
        let cached = Arc::new(CachedMachine::from(self.machine.clone()));
        reconcile(cached, self.context.clone()).await;
        std::mem::take(&mut *self.backend.calls.lock().unwrap())
    }

    /// The requests since the last call.
    fn sent(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.sent.lock().unwrap())
    }
}

/// Messages of `Ready` in the statuses that were written.
fn messages(sent: &[(String, Value)]) -> Vec<&str> {
    sent.iter()
        .filter(|(path, _)| path == "machines/web/status")
        .filter_map(|(_, body)| body["status"]["conditions"][0]["message"].as_str())
        .collect()
}

#[tokio::test]
async fn a_replica_without_the_lease_calls_neither_backend_nor_api_server() {
    let (_lease, deadline) = watch::channel(None);
    let harness = Harness::new(
        Scripted::with(vec![create(None)]),
        LeaseGuard::Leased(deadline),
    );
    assert_eq!(harness.pass().await, [""; 0]);
    assert_eq!(harness.sent(), []);
}

#[tokio::test]
async fn a_lease_lost_during_the_observation_stops_every_write() {
    let held = tokio::time::Instant::now() + Duration::from_mins(1);
    let (lease, deadline) = watch::channel(Some(held));
    let backend = Scripted {
        loses: Some(lease),
        ..Scripted::with(vec![create(None)])
    };
    let mut harness = Harness::new(backend, LeaseGuard::Leased(deadline));
    harness.machine.metadata.finalizers = None;
    // The finalizer is the first step, so the action is not attempted.
    assert_eq!(harness.pass().await, ["observe"]);
    assert_eq!(harness.sent(), []);
}

#[tokio::test]
async fn a_pass_waits_until_the_caches_show_what_was_written() {
    let written = |kind: &str| Written {
        kind: kind.into(),
        name: "web".into(),
        version: "2".into(),
    };
    let mut harness = Harness::new(Scripted::default(), LeaseGuard::Always);
    harness.context.expectations.wrote(UID, written("Machine"));
    assert_eq!(harness.pass().await, [""; 0]);
    harness.machine.metadata.resource_version = Some("2".into());
    assert_eq!(harness.pass().await, ["observe"]);
    // Other kinds are in the caches of the backend.
    let claim = written("PersistentVolumeClaim");
    harness.context.expectations.wrote(UID, claim.clone());
    assert_eq!(harness.pass().await, [""; 0]);
    let backend = Scripted {
        has_seen: true,
        ..Scripted::default()
    };
    let harness = Harness::new(backend, LeaseGuard::Always);
    harness.context.expectations.wrote(UID, claim);
    assert_eq!(harness.pass().await, ["observe"]);
}

#[tokio::test]
async fn only_a_machine_without_actions_waits_longer_than_the_interval_ready_or_not() {
    let settled = Harness::new(Scripted::default(), LeaseGuard::Always);
    let acting = Harness::new(Scripted::with(vec![SWITCH]), LeaseGuard::Always);
    let mut waiting = Harness::new(Scripted::default(), LeaseGuard::Always);
    waiting.machine.status = fixtures::ready("False", "NetworkConfigurationNotFound");
    let mut reporting = Harness::new(Scripted::default(), LeaseGuard::Always);
    reporting.machine.status = MachineStatus::default();
    let interval = settled.context.interval;
    for (harness, expected) in [
        (settled, SETTLED_INTERVAL),
        (acting, interval),
        (waiting, SETTLED_INTERVAL),
        (reporting, SETTLED_INTERVAL),
    ] {
        let cached = Arc::new(CachedMachine::from(harness.machine.clone()));
        let next = reconcile(cached, harness.context.clone()).await;
        let latest = expected + expected / 10;
        assert!(
            (expected..=latest).contains(&next),
            "{expected:?}: {next:?}"
        );
    }
}

#[tokio::test]
async fn the_finalizer_is_added_before_the_first_action() {
    let mut harness = Harness::new(
        Scripted::with(vec![create(Some(Remedy::Retry))]),
        LeaseGuard::Always,
    );
    harness.machine.metadata.finalizers = None;
    assert_eq!(harness.pass().await, ["observe", "create"]);
    let sent = harness.sent();
    let [(path, body)] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(path, "machines/web");
    assert_eq!(body["metadata"]["finalizers"], json!([names::FINALIZER]));
    assert_eq!(body["metadata"]["resourceVersion"], "1");
}

#[tokio::test]
async fn an_action_that_needs_a_user_is_reported_and_only_switches_are_carried_out() {
    let steps = vec![create(Some(Remedy::UserAction)), create(None), SWITCH];
    let harness = Harness::new(Scripted::with(steps), LeaseGuard::Always);
    assert_eq!(harness.pass().await, ["observe", "create", "switch off"]);
    assert_eq!(messages(&harness.sent()), ["the quota is used up"]);
}

#[tokio::test]
async fn an_action_that_may_be_retried_is_reported_at_the_third_failure() {
    let steps = vec![create(Some(Remedy::Retry)), SWITCH];
    let harness = Harness::new(Scripted::with(steps), LeaseGuard::Always);
    for _ in 0..2 {
        assert_eq!(harness.pass().await, ["observe", "create"]);
        assert_eq!(harness.sent(), []);
    }
    assert_eq!(harness.pass().await, ["observe", "create", "switch off"]);
    assert_eq!(messages(&harness.sent()), ["the quota is used up"]);
}

#[tokio::test]
async fn a_guest_that_cannot_be_read_is_reported_at_the_third_failure_and_nothing_is_done() {
    let backend = Scripted {
        unobserved: Some(Remedy::Retry),
        ..Scripted::with(vec![create(None), SWITCH])
    };
    let harness = Harness::new(backend, LeaseGuard::Always);
    for _ in 0..2 {
        assert_eq!(harness.pass().await, ["observe"]);
        assert_eq!(harness.sent(), []);
    }
    assert_eq!(harness.pass().await, ["observe"]);
    let sent = harness.sent();
    assert_eq!(messages(&sent), ["the claims cannot be read"]);
    let ready = &sent[0].1["status"]["conditions"][0];
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("Unknown"), &json!("ObservationFailed"))
    );
}

#[tokio::test]
async fn a_guest_that_only_a_user_can_make_readable_is_reported_at_once() {
    let backend = Scripted {
        unobserved: Some(Remedy::UserAction),
        ..Scripted::with(vec![SWITCH])
    };
    let harness = Harness::new(backend, LeaseGuard::Always);
    assert_eq!(harness.pass().await, ["observe"]);
    assert_eq!(messages(&harness.sent()), ["the claims cannot be read"]);
}

#[tokio::test(start_paused = true)]
async fn conflicts_that_last_a_minute_are_reported() {
    let steps = vec![create(Some(Remedy::Reobserve))];
    let harness = Harness::new(Scripted::with(steps), LeaseGuard::Always);
    for _ in 0..60 {
        harness.pass().await;
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(harness.sent(), [], "a cache may be behind for a while");
    for _ in 0..3 {
        harness.pass().await;
    }
    assert_eq!(messages(&harness.sent()), ["the quota is used up"]);
}

#[tokio::test]
async fn a_deleted_machine_is_torn_down_and_loses_the_finalizer() {
    let mut harness = Harness::new(Scripted::with(vec![create(None)]), LeaseGuard::Always);
    let mut value = serde_json::to_value(&harness.machine.metadata).unwrap();
    value["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    harness.machine.metadata = serde_json::from_value(value).unwrap();
    assert_eq!(harness.pass().await, ["observe"]);
    let sent = harness.sent();
    let [(path, body)] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(path, "machines/web");
    assert_eq!(body["metadata"]["finalizers"], json!([]));
}
