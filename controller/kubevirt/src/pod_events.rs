//! What a node reports about the pod of a guest that does not start: a volume that cannot be mounted or attached, a
//! network that cannot be set up. KubeVirt copies none of it, and nothing but the events of the pod has it.
//!
//! ```text
//! instance Scheduling, the pod has a node, for 10 s ─▶ the events of the pod, live
//!                                                      the newest is a warning ─▶ it is the cause
//!                                                      the newest is none ──────▶ the node goes on
//! ```
//! Events are not watched: a cluster has more of them than of everything else, and only those of a pod that takes long
//! matter.

use std::time::Duration;

use controller_core::client::GuardedClient;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;

use crate::caches::KubeVirtCaches;
use crate::objects::Instance;
use crate::plan::{Observed, POD_START_TIMEOUT, PodWarning};

/// Most events that are read. The node repeats an event with a count, so a pod has a handful.
const EVENTS_MAX: u32 = 100;

/// The last thing that was reported about the pod of a guest which is not started, if it is a warning.
///
/// A failed read finds nothing: the text only explains what the status says without it.
pub(crate) async fn pod_warning(
    api: &GuardedClient,
    cluster: &KubeVirtCaches,
    machine: &Machine,
    observed: &Observed,
    now: Timestamp,
) -> Option<PodWarning> {
    let instance = observed.awaits_pod(machine)?;
    if !is_overdue(instance, now) {
        return None;
    }
    let pods = cluster.pods.of_machine(machine.namespace(), machine.name());
    let pod = pods.into_iter().find(|pod| pod.starts(instance))?;
    let events: Api<Event> = Api::namespaced(api.client(), machine.namespace());
    let of_pod = format!("involvedObject.kind=Pod,involvedObject.name={}", pod.name());
    let of_pod = ListParams::default().fields(&of_pod).limit(EVENTS_MAX);
    match api.read(events.list(&of_pod)).await {
        Ok(events) => warning(pod.name(), events.items),
        Err(error) => {
            tracing::debug!(
                error = error.message(),
                pod = pod.name(),
                "the events of a pod cannot be read"
            );
            None
        }
    }
}

/// Whether the pod of an instance could run by now.
fn is_overdue(instance: &Instance, now: Timestamp) -> bool {
    let transitions = instance.status.phase_transition_timestamps.iter();
    let mut scheduling = transitions.filter(|it| it.phase == "Scheduling");
    let since = scheduling.find_map(|it| it.phase_transition_timestamp.as_ref());
    since.is_none_or(|since| {
        let waited = Duration::try_from(now.duration_since(since.0)).unwrap_or_default();
        waited >= POD_START_TIMEOUT
    })
}

/// The newest of the events of a pod, if it is a warning. What the scheduler reported is over once the pod has a node.
fn warning(pod: &str, events: Vec<Event>) -> Option<PodWarning> {
    let newest = events.into_iter().max_by_key(last_seen)?;
    let reason = newest.reason.unwrap_or_default();
    (newest.type_.as_deref() == Some("Warning") && reason != "FailedScheduling").then(|| {
        PodWarning {
            pod: pod.to_owned(),
            reason,
            message: newest.message.unwrap_or_default(),
        }
    })
}

/// When an event happened last. Which field has that depends on the API with which it was reported.
fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref();
    let series = series.and_then(|series| series.last_observed_time.as_ref());
    let reported = [series, event.event_time.as_ref()].into_iter().flatten();
    let counted = event.last_timestamp.iter();
    reported.map(|at| at.0).chain(counted.map(|at| at.0)).max()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use common::names;
    use controller_core::fixtures::{block, machine};
    use controller_core::lease::LeaseGuard;
    use controller_core::objects::Cacheable as _;
    use hyper::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::runtime::watcher;
    use serde_json::{Value, json};

    use super::*;
    use crate::environment::server::block_on;
    use crate::environment::{FakeCluster, decode};
    use crate::objects::GuestPod;

    /// An API server with these events, and the queries that it was asked.
    fn api(events: &Value) -> (GuardedClient, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (asked_by, events) = (asked.clone(), events.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            asked_by.lock().unwrap().push(query.to_owned());
            let list =
                json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": events});
            let body = Body::from(serde_json::to_vec(&list).unwrap());
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let client = Client::new(service, "default");
        (GuardedClient::new(client, LeaseGuard::Always), asked)
    }

    fn event(kind: &str, reason: &str, second: u32) -> Value {
        json!({
            "metadata": {"name": format!("event-{second}")}, "involvedObject": {},
            "type": kind, "reason": reason, "message": format!("text of {reason}"),
            "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
        })
    }

    /// The Machine, and the caches of its cluster: its pod has a node, and the instance is in the phase.
    fn starting(phase: &str) -> (FakeCluster, KubeVirtCaches) {
        let mut cluster = FakeCluster::new(machine(block()));
        cluster.pass();
        let labels = json!({names::LABEL_MACHINE: "web", "kubevirt.io/created-by": "uid-of-vmi"});
        cluster.instance = Some(decode(json!({
            "metadata": {"name": "web", "uid": "uid-of-vmi", "labels": {names::LABEL_MACHINE: "web"}},
            "status": {"phase": phase, "phaseTransitionTimestamps": [
                {"phase": "Scheduling", "phaseTransitionTimestamp": "2026-01-01T00:00:00Z"},
            ]},
        })));
        let caches = KubeVirtCaches::default();
        let mut pod: GuestPod = decode(json!({
            "metadata": {"name": "virt-launcher-web-x", "namespace": "default", "labels": labels},
            "spec": {"nodeName": "node-1"}, "status": {"phase": "Pending"},
        }));
        pod.prune();
        caches.pods.apply(watcher::Event::Apply(pod), |_| ());
        (cluster, caches)
    }

    fn found(phase: &str, events: &Value, second: i64) -> (Option<PodWarning>, Vec<String>) {
        let (cluster, caches) = starting(phase);
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let now = Timestamp::from_second(start.as_second() + second).unwrap();
        let observed = cluster.observed();
        block_on(async {
            let (api, asked) = api(events);
            let found = pod_warning(&api, &caches, cluster.machine(), &observed, now).await;
            let asked = asked.lock().unwrap().clone();
            (found, asked)
        })
    }

    #[test]
    fn the_last_warning_of_a_pod_that_takes_long_is_found() {
        let events = json!([
            event("Warning", "FailedScheduling", 1),
            event("Warning", "FailedMount", 9),
            event("Normal", "Scheduled", 2),
        ]);
        let (warning, asked) = found("Scheduling", &events, 10);
        let expected = PodWarning {
            pod: "virt-launcher-web-x".into(),
            reason: "FailedMount".into(),
            message: "text of FailedMount".into(),
        };
        assert_eq!(warning, Some(expected));
        assert_eq!(asked.len(), 1, "{asked:?}");
        let selector =
            "fieldSelector=involvedObject.kind%3DPod%2CinvolvedObject.name%3Dvirt-launcher-web-x";
        assert!(asked[0].contains(selector), "{asked:?}");
    }

    #[test]
    fn a_warning_after_which_the_node_went_on_is_none() {
        let events = json!([
            event("Warning", "FailedMount", 3),
            event("Normal", "Pulling", 4)
        ]);
        assert_eq!(found("Scheduling", &events, 20).0, None);
        let scheduler = json!([event("Warning", "FailedScheduling", 1)]);
        assert_eq!(found("Scheduling", &scheduler, 20).0, None);
    }

    #[test]
    fn nothing_is_read_while_a_pod_may_take_that_long_or_the_guest_runs() {
        let events = json!([event("Warning", "FailedMount", 3)]);
        for (phase, second) in [("Scheduling", 9), ("Pending", 60), ("Running", 60)] {
            let (warning, asked) = found(phase, &events, second);
            assert_eq!((warning, asked.len()), (None, 0), "{phase}");
        }
    }

    #[test]
    fn the_time_of_an_event_is_the_last_one_whichever_field_has_it() {
        let event = |times: Value| {
            let mut event = event("Warning", "FailedMount", 0);
            let fields = event.as_object_mut().unwrap();
            fields.remove("lastTimestamp");
            fields.extend(times.as_object().unwrap().clone());
            last_seen(&serde_json::from_value(event).unwrap()).map(|at| at.to_string())
        };
        let [early, late] = ["2026-01-01T00:00:01Z", "2026-01-01T00:00:05Z"];
        assert_eq!(event(json!({})), None);
        assert_eq!(event(json!({"eventTime": early})).as_deref(), Some(early));
        let repeated = json!({
            "eventTime": early, "series": {"count": 2, "lastObservedTime": late},
        });
        assert_eq!(event(repeated).as_deref(), Some(late));
        let counted = json!({"firstTimestamp": early, "lastTimestamp": late});
        assert_eq!(event(counted).as_deref(), Some(late));
    }
}
