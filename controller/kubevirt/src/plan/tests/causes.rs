//! The deepest cause that KubeVirt reports is in the conditions of the Machine.

use common::api::choice::{Phase, PowerState};
use common::names;
use serde_json::{Value, json};

use super::{message, phase, reported};
use crate::environment::{FakeCluster, decode};
use crate::objects::VirtualMachine;
use crate::plan::tests::edit;
use crate::plan::{POD_START_TIMEOUT, PodWarning};
use controller_core::events;
use controller_core::fixtures::{block, machine};

/// A Machine whose VirtualMachine and instance exist and whose guest does not run yet.
fn starting() -> FakeCluster {
    let mut environment = FakeCluster::new(machine(block()));
    environment.pass();
    environment.instance = Some(decode(json!({
        "metadata": {"name": "web", "labels": {names::LABEL_MACHINE: "web"}},
        "status": {"phase": "Pending"},
    })));
    environment
}

/// KubeVirt writes the status of the VirtualMachine.
fn writes(environment: &mut FakeCluster, status: Value) {
    environment.vm.as_mut().unwrap().status = decode(status);
    environment.pass();
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

/// KubeVirt reports `Starting` all the time.
#[test]
fn what_only_an_event_of_the_pod_says_is_the_cause_until_the_guest_starts() {
    for (reason, remedy) in [
        ("FailedMount", "the Secrets it mounts exist"),
        ("FailedAttachVolume", "can be attached to the node"),
        ("FailedCreatePodSandBox", "network plugin of the node"),
        ("Evicted", "see the events of the pod"),
    ] {
        let mut environment = starting();
        environment.instance.as_mut().unwrap().status.phase = "Scheduling".into();
        for claim in environment.claims.values_mut() {
            claim.status.phase = "Bound".into();
        }
        writes(&mut environment, json!({"printableStatus": "Starting"}));
        assert_eq!(reported(&environment, "Ready"), ("False", "Creating"));
        // It is looked for again, because no event triggers a pass.
        let plan = environment.plan();
        assert_eq!(plan.requeue_after, Some(POD_START_TIMEOUT));

        environment.pod_warning = Some(PodWarning {
            pod: "virt-launcher-web-x".into(),
            reason: reason.into(),
            message: "the text\n".into(),
        });
        environment.pass();
        assert_eq!(reported(&environment, "Ready"), ("False", "VMFailed"));
        assert_eq!(phase(&environment), Some(Phase::Failed));
        let text = message(&environment, "Ready");
        let cause = format!(
            "the pod virt-launcher-web-x of the guest does not start: {reason}: the text; "
        );
        assert!(text.starts_with(&cause) && text.contains(remedy), "{text}");

        // What KubeVirt says itself comes first, and nothing is said of a guest that is to be off.
        let pull = condition("Synchronized", "False", "ErrImagePull", "not found");
        writes(
            &mut environment,
            json!({"printableStatus": "ErrImagePull", "conditions": [pull]}),
        );
        assert!(message(&environment, "Ready").contains("ErrImagePull"));
        environment.pod_warning = None;
        writes(&mut environment, json!({"printableStatus": "Starting"}));
        assert_eq!(reported(&environment, "Ready"), ("False", "Creating"));
    }
}

#[test]
fn a_condition_of_kubevirt_is_quoted_with_what_to_do_whatever_it_prints() {
    let pod = "failed to create virtual machine pod: pods \"virt-launcher-web-x\" is forbidden: exceeded quota: compute";
    let security = "it needs a privileged namespace to run: pods \"x\" violates PodSecurity \"restricted:latest\"";
    let guests = "Failure while starting VMI: is forbidden: exceeded quota: guests";
    let pull = "Back-off pulling image \"registry.example.com/launcher\"";
    let [unsynchronized, failure] = ["Synchronized", "Failure"];
    for (word, kind, status, reason, text, remedy) in [
        (
            "Starting",
            unsynchronized,
            "False",
            "FailedCreate",
            pod,
            "raise the ResourceQuota",
        ),
        (
            "Starting",
            unsynchronized,
            "False",
            "FailedCreate",
            security,
            "pod-security.kubernetes.io/enforce=privileged",
        ),
        (
            "Stopped",
            failure,
            "True",
            "FailedCreate",
            guests,
            "raise the ResourceQuota",
        ),
        (
            "ImagePullBackOff",
            unsynchronized,
            "False",
            "ImagePullBackOff",
            pull,
            "registry of KubeVirt's images",
        ),
        (
            "WaitingForVolumeBinding",
            unsynchronized,
            "False",
            "Odd",
            "odd",
            "",
        ),
        ("Provisioning", failure, "True", "Odd", "odd", ""),
        ("NewInSomeVersion", unsynchronized, "False", "Odd", "", ""),
    ] {
        let mut environment = starting();
        let conditions = json!([condition(kind, status, reason, text)]);
        writes(
            &mut environment,
            json!({"printableStatus": word, "conditions": conditions}),
        );
        assert_eq!(reported(&environment, "Ready"), ("False", "VMFailed"));
        assert_eq!(phase(&environment), Some(Phase::Failed), "{word}");
        let expected = if text.is_empty() { reason } else { text };
        let message = message(&environment, "Ready");
        assert!(
            message.starts_with(&format!("KubeVirt reports {word}: {expected}")),
            "{message}"
        );
        assert!(message.contains(remedy), "{message}");
    }
}

#[test]
fn the_instance_is_asked_for_what_the_virtual_machine_does_not_say() {
    let mut environment = starting();
    environment.set_printable_status("Starting");
    environment.instance.as_mut().unwrap().status = decode(json!({
        "phase": "Pending",
        "conditions": [condition("Synchronized", "False", "FailedCreate", "no pod")],
    }));
    environment.pass();
    assert_eq!(
        message(&environment, "Ready"),
        "KubeVirt reports Starting: no pod"
    );
}

#[test]
fn what_was_copied_of_a_former_instance_is_no_cause() {
    let mut environment = starting();
    environment.instance = None;
    let conditions = json!([condition("Synchronized", "False", "FailedCreate", "no pod")]);
    writes(
        &mut environment,
        json!({"printableStatus": "Starting", "conditions": conditions}),
    );
    assert_eq!(reported(&environment, "Ready").1, "PVCPending");
}

#[test]
fn a_failure_while_the_guest_runs_is_reported_and_the_machine_stays_ready() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    let conditions = json!([condition("Synchronized", "False", "Odd", "cannot plug in")]);
    writes(
        &mut environment,
        json!({"printableStatus": "Running", "conditions": conditions}),
    );
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    let verdict = reported(&environment, "VirtualMachineReady");
    assert_eq!(verdict, ("False", "VMFailed"));
    assert!(message(&environment, "VirtualMachineReady").ends_with("cannot plug in"));
}

#[test]
fn a_machine_that_is_off_reports_no_failed_start() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.settle();
    let conditions = json!([condition("Failure", "True", "FailedCreate", "quota")]);
    writes(
        &mut environment,
        json!({"printableStatus": "Stopped", "conditions": conditions}),
    );
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
}

#[test]
fn a_crash_loop_has_the_number_of_failed_starts_and_the_time_of_the_next() {
    let crash = |failure: Value| {
        let mut environment = starting();
        let status = json!({"printableStatus": "CrashLoopBackOff", "startFailure": failure});
        writes(&mut environment, status);
        assert_eq!(reported(&environment, "Ready"), ("False", "VMFailed"));
        message(&environment, "Ready").to_owned()
    };
    let failure = json!({
        "consecutiveFailCount": 3, "lastFailedVMIUID": "u",
        "retryAfterTimestamp": "2026-01-01T00:01:30Z",
    });
    let message = crash(failure);
    let text =
        "the guest ended 3 times before it ran; KubeVirt starts it again at 2026-01-01T00:01:30Z";
    assert!(message.contains(text), "{message}");
    let bare = "KubeVirt reports CrashLoopBackOff";
    for unreadable in [json!(null), json!({"consecutiveFailCount": "many"})] {
        assert_eq!(crash(unreadable), bare);
    }
}

/// KubeVirt makes the pod of a guest whose claims are unbound, and the scheduler cannot place it.
#[test]
fn an_unbound_claim_is_no_lack_of_resources() {
    let unschedulable = |text: &str| {
        let conditions = json!([condition("PodScheduled", "False", "Unschedulable", text)]);
        json!({"printableStatus": "ErrorUnschedulable", "conditions": conditions})
    };
    let unbound =
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: no";
    let mut environment = starting();
    assert_eq!(reported(&environment, "Ready"), ("False", "PVCPending"));
    for text in [unbound, ""] {
        let before = environment.machine().status.clone();
        writes(&mut environment, unschedulable(text));
        assert_eq!(reported(&environment, "Ready"), ("False", "PVCPending"));
        assert_eq!(phase(&environment), Some(Phase::Creating));
        let events = events::transitions(&before, &environment.machine().status);
        assert_eq!(events.count(), 0, "{text}");
    }
    // The claim is bound a moment before the scheduler tries again.
    environment.advance_kubevirt();
    writes(&mut environment, unschedulable(unbound));
    assert_eq!(reported(&environment, "Ready"), ("False", "Creating"));
    // A class that waits for the first consumer binds no claim while no node has room.
    let mut environment = starting();
    writes(
        &mut environment,
        unschedulable("0/3 nodes are available: 3 Insufficient memory."),
    );
    let lacks = ("False", "InsufficientResources");
    assert_eq!(reported(&environment, "Ready"), lacks);
}

#[test]
fn a_secret_that_is_deleted_before_a_start_is_named_and_one_of_a_running_guest_is_not() {
    use common::api::machine::{CloudInit, SecretKeyRef};
    use common::render::{CloudInitPlan, SecretKey};
    let mut machine = machine(block());
    machine.cloud_init = CloudInitPlan::from(&CloudInit {
        secret_ref: Some(SecretKeyRef {
            name: Some("mine".into()),
            key: Some("userdata".into()),
        }),
        ..CloudInit::default()
    });
    let key = SecretKey {
        name: "mine".into(),
        key: "userdata".into(),
    };
    let mut environment = FakeCluster::new(machine);
    environment.write_secret(&key, "#cloud-config");
    environment.settle();
    environment.contents.clear();
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));

    environment.instance = None;
    environment.set_printable_status("Starting");
    environment.pass();
    let missing = ("False", "CloudInitSecretNotFound");
    assert_eq!(reported(&environment, "Ready"), missing);
    environment.write_secret(&key, "#cloud-config");
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

/// Texts of any length, conditions that nobody knows, and statuses of another shape are no panic and no health.
#[test]
fn a_text_of_30_kb_is_cut_and_odd_statuses_are_ignored() {
    let mut environment = starting();
    let long = "ä".repeat(15_000);
    let conditions = json!([
        condition("Someday", "Maybe", "", "x"),
        condition("Synchronized", "False", "FailedCreate", &long),
    ]);
    writes(
        &mut environment,
        json!({"printableStatus": "Starting", "conditions": conditions}),
    );
    let message = message(&environment, "Ready");
    assert!(
        message.len() < 1100 && message.contains("ää"),
        "{}",
        message.len()
    );

    let labels = json!({names::LABEL_MACHINE: "web"});
    environment.instance = Some(decode(
        json!({"metadata": {"name": "web", "labels": labels}}),
    ));
    environment.pass();
    assert_eq!(reported(&environment, "Ready").0, "False", "no status");
    environment.instance = Some(decode(json!({
        "metadata": {"name": "web", "labels": labels},
        "status": {"phase": 7},
    })));
    let odd: VirtualMachine =
        decode(json!({"metadata": {}, "status": {"printableStatus": ["Running"]}}));
    environment.vm.as_mut().unwrap().status = odd.status;
    environment.pass();
    assert_eq!(reported(&environment, "Ready").0, "False");
}
