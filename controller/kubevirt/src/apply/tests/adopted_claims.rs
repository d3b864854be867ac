//! A claim that was not made for the Machine: who uses it is read right before it is adopted and before the guest starts.

use common::names;
use controller_core::client::Remedy;
use controller_core::fixtures::{block, machine};
use controller_core::lease::LeaseGuard;
use controller_core::machine::Machine;
use serde_json::{Value, json};

use super::{Api, CLAIMS, INSTANCES, PODS, VM, VMS, list, not_found};
use crate::plan::Action;
use crate::plan::action::ClaimPatch;

const MACHINE_CREATED: &str = "2026-02-01T00:00:00Z";

fn web() -> Machine {
    let mut machine = machine(block());
    machine.metadata.creation_timestamp = serde_json::from_value(json!(MACHINE_CREATED)).unwrap();
    machine
}

fn claim(uid: &str, created: &str) -> Value {
    json!({"metadata": {
        "name": "web-root", "namespace": "default", "uid": "uid-of-claim", "creationTimestamp": created,
        "labels": {names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_MACHINE: "web"},
        "annotations": {names::ANNOTATION_MACHINE_UID: uid},
    }})
}

fn adoption() -> Action {
    Action::PatchClaim(ClaimPatch {
        name: "web-root".into(),
        uid: "uid-of-claim".into(),
        annotations: [(names::ANNOTATION_MACHINE_UID, Some("uid-of-web".into()))].into(),
        storage: None,
    })
}

fn start() -> Action {
    Action::SetRunStrategy {
        uid: "uid-of-vm".into(),
        strategy: "Always".into(),
    }
}

/// An API server with one claim and one object that uses it.
fn api(claim: Value, kind: &'static str, user: Value) -> Api {
    Api::new(move |call, _| match call {
        CLAIMS => list(std::slice::from_ref(&claim)),
        VMS | INSTANCES | PODS if call == kind => list(std::slice::from_ref(&user)),
        VMS | INSTANCES | PODS => list(&[]),
        _ => not_found(),
    })
}

fn using(mut metadata: Value) -> Value {
    metadata["labels"] = json!({names::LABEL_MACHINE: "web"});
    metadata["annotations"] = json!({names::ANNOTATION_MACHINE_UID: "uid-of-web"});
    let spec = json!({"volumes": [{"persistentVolumeClaim": {"claimName": "web-root"}}]});
    json!({"metadata": metadata, "spec": spec})
}

/// A copy of the VirtualMachine has its labels and annotations, and so have its instance and its pod.
#[tokio::test]
async fn a_claim_that_another_guest_uses_is_not_adopted_and_no_guest_is_started_on_it() {
    let owner = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "copy", "uid": "1"}]);
    let pod = json!({"name": "virt-launcher-copy-x7k2p", "ownerReferences": owner});
    for (kind, user, title) in [
        (VMS, json!({"name": "copy"}), "VirtualMachine 'copy'"),
        (
            INSTANCES,
            json!({"name": "copy"}),
            "VirtualMachineInstance 'copy'",
        ),
        (PODS, pod, "Pod 'virt-launcher-copy-x7k2p'"),
        (PODS, json!({"name": "rescue"}), "Pod 'rescue'"),
    ] {
        for (action, uid, created) in [
            (adoption(), "uid-of-former", "2026-01-01T00:00:00Z"),
            // Of a former Machine, and adopted by now.
            (start(), "uid-of-web", "2026-01-01T00:00:00Z"),
            (start(), "uid-of-former", "2026-03-01T00:00:00Z"),
        ] {
            let api = api(claim(uid, created), kind, using(user.clone()));
            let failed = api.apply(&web(), &action, LeaseGuard::Always).await;
            let failed = failed.unwrap_err();
            assert_eq!(failed.reason, Some("ClaimInUse"), "{action}: {title}");
            assert_eq!(failed.remedy, Remedy::Reobserve);
            let part = format!("disk 'root' is used by {title}");
            assert!(failed.message.contains(&part), "{}", failed.message);
            let calls = api.calls();
            assert!(calls.iter().all(|it| it.starts_with("GET ")), "{calls:?}");
        }
    }
}

#[tokio::test]
async fn a_claim_that_was_made_for_the_machine_is_not_looked_for_in_the_namespace() {
    let claim = claim("uid-of-web", "2026-02-01T00:00:05Z");
    let api = api(claim, PODS, using(json!({"name": "backup"})));
    let failed = api.apply(&web(), &start(), LeaseGuard::Always).await;
    // The scripted API server has no VirtualMachine to start.
    assert_ne!(failed.unwrap_err().reason, Some("ClaimInUse"));
    let calls = api.calls();
    assert!(calls.contains(&CLAIMS.to_owned()), "{calls:?}");
    assert!(!calls.contains(&PODS.to_owned()), "{calls:?}");
}

/// Another client has added the volume, or its disk has left the spec while the template cannot be written.
#[tokio::test]
async fn no_guest_is_started_with_a_claim_of_the_virtual_machine_that_another_guest_uses() {
    let volume = json!([{"name": "legacy", "persistentVolumeClaim": {"claimName": "legacy"}}]);
    let of = move |name: &str| {
        json!({
            "metadata": {"name": name, "uid": "uid-of-vm", "namespace": "default"},
            "spec": {"runStrategy": "Halted", "volumes": volume, "template": {"spec": {"volumes": volume}}},
        })
    };
    for (user, is_refused) in [("db", true), ("", false)] {
        let (own, other) = (of("web"), of(user));
        let api = Api::new(move |call, _| match call {
            VM => (200, own.clone()),
            INSTANCES if !user.is_empty() => list(std::slice::from_ref(&other)),
            CLAIMS | VMS | INSTANCES | PODS => list(&[]),
            _ => not_found(),
        });
        let failed = api.apply(&web(), &start(), LeaseGuard::Always).await;
        let failed = failed.unwrap_err();
        assert_eq!(
            failed.reason == Some("ClaimInUse"),
            is_refused,
            "{failed:?}"
        );
        let calls = api.calls();
        assert!(calls.iter().any(|it| it == VM), "{calls:?}");
    }
}

/// The guest of the Machine has the claim, and a second pod mounts it: a write to the claim starts no guest.
#[tokio::test]
async fn a_claim_that_the_guest_of_the_machine_has_is_adopted() {
    let api = Api::new(move |call, _| match call {
        INSTANCES => list(&[using(json!({"name": "web"}))]),
        PODS => list(&[using(json!({"name": "backup"}))]),
        _ => list(&[]),
    });
    let (machine, adoption) = (web(), adoption());
    let applied = api.apply(&machine, &adoption, LeaseGuard::Always);
    applied.await.unwrap();
    let calls = api.calls();
    assert!(calls.iter().any(|it| it.starts_with("PATCH ")), "{calls:?}");
}
