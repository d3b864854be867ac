//! The reads and writes of `apply` at a scripted API server.

mod adopted_claims;
mod finalizers;
mod pages;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use common::names;
use common::render::kubevirt::migration;
use controller_core::backend::Failed;
use controller_core::client::{GuardedClient, Remedy};
use controller_core::events::events;
use controller_core::fixtures::{block, existing_disk, machine};
use controller_core::lease::LeaseGuard;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
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
        self.apply(&machine, &action, guard).await
    }

    async fn apply(
        &self,
        machine: &Machine,
        action: &Action,
        guard: LeaseGuard,
    ) -> Result<(), Failed> {
        let api = GuardedClient::new(self.client.clone(), guard);
        let (events, _) = events(self.client.clone());
        apply(&api, &events, machine, action).await.map(drop)
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

const CLAIMS: &str = "GET /api/v1/namespaces/default/persistentvolumeclaims";
const VM: &str = "GET /apis/kubevirt.io/v1/namespaces/default/virtualmachines/web";
const INSTANCE: &str = "GET /apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/web";

/// An action on the Machine `web`, what its precondition reads, and an answer with which it holds and one with which it does
/// not, with the message.
struct Checked {
    action: Action,
    reads: &'static str,
    holds: (u16, Value),
    broken: (u16, Value),
    message: &'static str,
}

/// The instance of the Machine, with this status.
fn instance(status: &Value) -> (u16, Value) {
    let labels = json!({names::LABEL_MACHINE: "web"});
    let metadata =
        json!({"name": "web", "namespace": "default", "uid": "uid-of-guest", "labels": labels});
    (200, json!({"metadata": metadata, "status": status}))
}

fn not_found() -> (u16, Value) {
    let (code, mut answer) = status(404);
    answer["details"] = json!({"name": "web"});
    (code, answer)
}

fn checked() -> Vec<Checked> {
    let running = || instance(&json!({"phase": "Running"}));
    let obstacle = json!({"type": "LiveMigratable", "status": "False"});
    let machine = machine(block());
    let migration = migration(&machine.identity("cluster"), "web-move", None);
    let owned_by = |uid: &str| {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": uid});
        list(&[
            json!({"metadata": {"name": "persistent-state-for-web", "ownerReferences": [owner]}}),
        ])
    };
    let pod = json!({
        "metadata": {"name": "backup"},
        "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "common"}}]},
    });
    let of_machine = json!({
        "metadata": {
            "name": "web",
            "labels": {names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_MACHINE: "web"},
            "annotations": {names::ANNOTATION_MACHINE_UID: machine.uid()},
        },
    });
    let uid = || "uid-of-guest".to_owned();
    vec![
        Checked {
            action: Action::ResetGuest { uid: uid() },
            reads: INSTANCE,
            holds: running(),
            broken: instance(&json!({"phase": "Succeeded"})),
            message: "does not run any more",
        },
        Checked {
            action: Action::ResetGuest {
                uid: "uid-of-former-guest".into(),
            },
            reads: INSTANCE,
            holds: (
                200,
                json!({"metadata": {"name": "web", "uid": "uid-of-former-guest"}, "status": {"phase": "Running"}}),
            ),
            broken: running(),
            message: "does not run any more",
        },
        Checked {
            action: Action::CreateMigration {
                instance: uid(),
                desired: Box::new(migration),
            },
            reads: INSTANCE,
            holds: running(),
            broken: instance(&json!({"phase": "Running", "conditions": [obstacle]})),
            message: "cannot be moved any more",
        },
        Checked {
            action: Action::DeleteInstance {
                uid: uid(),
                waits: true,
            },
            reads: INSTANCES,
            holds: list(&[instance(&json!({"phase": "Scheduling"})).1]),
            broken: list(&[running().1]),
            message: "runs by now",
        },
        Checked {
            action: Action::DeleteVm {
                uid: "uid-of-vm".into(),
                keeps_state: true,
            },
            reads: CLAIMS,
            holds: owned_by("uid-of-another"),
            broken: owned_by("uid-of-vm"),
            message: "would be deleted with the VirtualMachine",
        },
        Checked {
            action: Action::SetRunStrategy {
                uid: "uid-of-vm".into(),
                strategy: "Always".into(),
            },
            reads: PODS,
            holds: list(&[]),
            broken: list(&[pod]),
            message: "is used by Pod 'backup'",
        },
        Checked {
            action: Action::ConfirmGuestGone,
            reads: VM,
            holds: not_found(),
            broken: (200, of_machine),
            message: "VirtualMachine web is still there",
        },
        Checked {
            action: Action::ConfirmGuestGone,
            reads: INSTANCE,
            holds: not_found(),
            broken: running(),
            message: "VirtualMachineInstance web is still there",
        },
    ]
}

/// Applies the action; the answer is that of the call that the precondition reads.
async fn applied(checked: &Checked, answer: &(u16, Value)) -> (Result<(), Failed>, Vec<String>) {
    let (reads, answer) = (checked.reads, answer.clone());
    let api = Api::new(move |call, _| match call {
        call if call == reads => answer.clone(),
        VM | INSTANCE => not_found(),
        _ => list(&[]),
    });
    let mut block = block();
    block.existing_disks = vec![existing_disk("data", "common")];
    let machine = machine(block);
    let result = api.apply(&machine, &checked.action, LeaseGuard::Always);
    (result.await, api.calls())
}

/// What the caches showed when the plan was made no longer counts.
#[tokio::test]
async fn an_action_whose_precondition_does_not_hold_any_more_writes_nothing() {
    for checked in checked() {
        let action = &checked.action;
        let (result, calls) = applied(&checked, &checked.broken).await;
        let failed = result.unwrap_err();
        assert!(
            failed.message.contains(checked.message),
            "{action}: {}",
            failed.message
        );
        assert!(
            calls.iter().all(|call| call.starts_with("GET ")),
            "{action}: {calls:?}"
        );

        let (result, calls) = applied(&checked, &checked.holds).await;
        assert!(
            calls.contains(&checked.reads.to_owned()),
            "{action}: {calls:?}"
        );
        if let Err(failed) = result {
            // The scripted API server has no VirtualMachine to start.
            let reads_vm = matches!(action, Action::SetRunStrategy { .. });
            assert!(
                reads_vm && !failed.message.contains(checked.message),
                "{action}: {}",
                failed.message
            );
        }
    }
}
