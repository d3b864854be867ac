//! The reads and writes of `apply` at a scripted API server.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use common::names;
use controller_core::backend::Failed;
use controller_core::client::{GuardedClient, Remedy};
use controller_core::events::events;
use controller_core::fixtures::{block, machine};
use controller_core::lease::LeaseGuard;
use hyper::http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::apply;
use crate::objects::Claim;
use crate::plan::Action;
use crate::plan::action::DeletableClaim;

const VMS: &str = "GET /apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const INSTANCES: &str = "GET /apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";
const PODS: &str = "GET /api/v1/namespaces/default/pods";
const DELETE: &str = "DELETE /api/v1/namespaces/default/persistentvolumeclaims/web-root";

/// An API server that answers by method and path, and its requests: method, path and body.
struct Api {
    calls: Arc<Mutex<Vec<(String, Value)>>>,
    client: Client,
}

impl Api {
    fn new(answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static) -> Self {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (calls.clone(), Arc::new(answer));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (log, answer) = (log.clone(), answer.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let call = format!("{} {}", parts.method, parts.uri.path());
                let (code, reply) = answer(&call, parts.uri.query().unwrap_or_default());
                let body = serde_json::from_slice(&body).unwrap_or_default();
                log.lock().unwrap().push((call, body));
                let reply = Body::from(serde_json::to_vec(&reply).unwrap());
                let response = Response::builder().status(code).body(reply).unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        Self {
            calls,
            client: Client::new(service, "default"),
        }
    }

    /// Deletes the claim `web-root` of the Machine `web`.
    async fn delete_claim(&self, guard: LeaseGuard) -> Result<(), Failed> {
        let claim: Claim = serde_json::from_value(json!({"metadata": {
            "name": "web-root", "namespace": "default", "uid": "uid-of-claim", "resourceVersion": "7",
            "labels": {names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_MACHINE: "web"},
            "annotations": {
                names::ANNOTATION_MACHINE_UID: "uid-of-web",
                names::ANNOTATION_RECLAIM_POLICY: "Delete",
            },
        }}))
        .unwrap();
        let machine = machine(block());
        let action = Action::DeleteClaim(DeletableClaim::of(&machine, &claim).unwrap());
        let api = GuardedClient::new(self.client.clone(), guard);
        let (events, _) = events(self.client.clone());
        apply(&api, &events, &machine, &action).await.map(drop)
    }

    fn calls(&self) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        calls.iter().map(|(call, _)| call.clone()).collect()
    }
}

fn list(items: &[Value]) -> (u16, Value) {
    (
        200,
        json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}),
    )
}

fn status(code: u16) -> (u16, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": if code == 404 { "NotFound" } else { "Other" }, "message": format!("answered {code}"),
    });
    (code, status)
}

fn guest() -> Value {
    json!({
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "web-root"}}]},
    })
}

#[tokio::test]
async fn a_claim_is_deleted_as_it_was_observed_after_nothing_was_found_to_use_it() {
    let api = Api::new(|_, _| list(&[]));
    api.delete_claim(LeaseGuard::Always).await.unwrap();
    assert_eq!(api.calls(), [VMS, INSTANCES, PODS, DELETE]);
    let calls = api.calls.lock().unwrap();
    assert_eq!(
        calls[3].1["preconditions"],
        json!({"uid": "uid-of-claim", "resourceVersion": "7"})
    );
}

#[tokio::test]
async fn a_claim_that_anything_of_the_namespace_uses_is_not_deleted() {
    for (users, remedy) in [
        (VMS, Remedy::UserAction),
        (INSTANCES, Remedy::UserAction),
        (PODS, Remedy::Reobserve),
    ] {
        let api = Api::new(move |call, _| list(&vec![guest(); usize::from(call == users)]));
        let failed = api.delete_claim(LeaseGuard::Always).await.unwrap_err();
        assert_eq!(failed.remedy, remedy, "{users}");
        let message = "PersistentVolumeClaim web-root is not deleted while";
        assert!(failed.message.starts_with(message), "{}", failed.message);
        assert!(!api.calls().contains(&DELETE.to_owned()), "{users}");
    }
}

#[tokio::test]
async fn a_user_on_a_later_page_of_the_list_is_found() {
    let api = Api::new(
        |call, query| match (call, query.contains("continue=more")) {
            (VMS, false) => {
                let (code, mut page) = list(&[]);
                page["metadata"]["continue"] = "more".into();
                (code, page)
            }
            (VMS, true) => list(&[guest()]),
            _ => list(&[]),
        },
    );
    api.delete_claim(LeaseGuard::Always).await.unwrap_err();
    assert_eq!(api.calls(), [VMS, VMS]);
}

#[tokio::test]
async fn a_list_that_fails_keeps_the_claim() {
    for (failing, code, remedy) in [
        (VMS, 403, Remedy::UserAction),
        (INSTANCES, 500, Remedy::Retry),
        (PODS, 403, Remedy::UserAction),
    ] {
        let api = Api::new(move |call, _| {
            if call == failing {
                status(code)
            } else {
                list(&[])
            }
        });
        let failed = api.delete_claim(LeaseGuard::Always).await.unwrap_err();
        assert_eq!(failed.remedy, remedy, "{failing}");
        assert!(!api.calls().contains(&DELETE.to_owned()), "{failing}");
    }
}

#[tokio::test]
async fn a_kind_that_is_not_served_has_no_objects_only_if_its_crd_does_not_exist() {
    let crd =
        "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/virtualmachines.kubevirt.io";
    let api = Api::new(move |call, _| {
        if call == VMS || call == crd {
            status(404)
        } else {
            list(&[])
        }
    });
    api.delete_claim(LeaseGuard::Always).await.unwrap();
    assert_eq!(api.calls(), [VMS, crd, INSTANCES, PODS, DELETE]);

    let api = Api::new(move |call, _| match call {
        VMS => status(404),
        call if call == crd => (
            200,
            json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "virtualmachines.kubevirt.io"},
                "spec": {"group": "", "names": {"kind": "", "plural": ""}, "scope": "", "versions": []},
            }),
        ),
        _ => list(&[]),
    });
    let failed = api.delete_claim(LeaseGuard::Always).await.unwrap_err();
    assert_eq!(failed.remedy, Remedy::Reobserve);
    assert_eq!(api.calls(), [VMS, crd]);
}

#[tokio::test]
async fn nothing_is_read_or_written_without_the_lease() {
    let api = Api::new(|_, _| list(&[]));
    let (_deadline, guard) = watch::channel(None);
    let failed = api
        .delete_claim(LeaseGuard::Leased(guard))
        .await
        .unwrap_err();
    assert_eq!(failed.remedy, Remedy::Retry);
    assert_eq!(api.calls(), [""; 0]);
}
