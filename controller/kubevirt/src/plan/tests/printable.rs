//! Every value of KubeVirt's `printableStatus`: phase, conditions and event.

use common::api::choice::Phase::{self, Creating, Failed, Running, Stopped};
use common::api::choice::PowerState;
use common::render::kubevirt::PRINTABLE_STATUSES;

use super::{message, phase, reported};
use serde_json::json;

use crate::environment::{FakeCluster, decode};
use controller_core::events;
use controller_core::fixtures::{block, machine};

/// What a value leads to.
struct Case {
    state: &'static str,
    phase: Phase,
    ready: (&'static str, &'static str),
    virtual_machine: (&'static str, &'static str),
    /// Type and reason of the event, if there is one.
    event: Option<(&'static str, &'static str)>,
}

const MADE: (&str, &str) = ("True", "VMCreated");

/// The guest is being created.
const fn starts(state: &'static str) -> Case {
    Case {
        state,
        phase: Creating,
        ready: ("False", "Creating"),
        virtual_machine: MADE,
        event: Some(("Normal", "Creating")),
    }
}

/// Waiting does not end it.
const fn fails(state: &'static str) -> Case {
    Case {
        state,
        phase: Failed,
        ready: ("False", "VMFailed"),
        virtual_machine: ("False", "VMFailed"),
        event: Some(("Warning", "VMFailed")),
    }
}

/// Nothing changes for a running guest.
const fn stays(state: &'static str) -> Case {
    Case {
        state,
        phase: Running,
        ready: ("True", "Running"),
        virtual_machine: MADE,
        event: None,
    }
}

/// The guest shuts down although the Machine is to run.
const fn stops(state: &'static str) -> Case {
    Case {
        ready: ("False", "Stopping"),
        event: Some(("Normal", "Stopping")),
        ..stays(state)
    }
}

/// The values of `VirtualMachinePrintableStatus` in KubeVirt's API, for a running guest, and an unknown one.
const CASES: [Case; 18] = [
    // It was stopped by a user, and KubeVirt starts it again.
    starts("Stopped"),
    starts("Provisioning"),
    starts("Starting"),
    stays("Running"),
    Case {
        ready: ("False", "GuestPaused"),
        event: Some(("Warning", "GuestPaused")),
        ..stays("Paused")
    },
    // The phase stays until it is over.
    stops("Stopping"),
    stops("Terminating"),
    fails("CrashLoopBackOff"),
    stays("Migrating"),
    Case {
        ready: ("Unknown", "Unknown"),
        event: Some(("Warning", "Unknown")),
        ..stays("Unknown")
    },
    Case {
        ready: ("False", "InsufficientResources"),
        virtual_machine: ("False", "InsufficientResources"),
        event: Some(("Warning", "InsufficientResources")),
        ..starts("ErrorUnschedulable")
    },
    fails("ErrImagePull"),
    fails("ImagePullBackOff"),
    fails("ErrorPvcNotFound"),
    fails("DataVolumeError"),
    starts("WaitingForVolumeBinding"),
    starts("WaitingForReceiver"),
    stays("NewInSomeVersion"),
];

fn running() -> FakeCluster {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    environment
}

/// KubeVirt sets a state. Returns the events that report it.
fn text(environment: &mut FakeCluster, state: &str) -> Vec<(String, String)> {
    let before = environment.machine().status.clone();
    environment.set_printable_status(state);
    environment.pass();
    let events = events::transitions(&before, &environment.machine().status);
    events
        .map(|event| (format!("{:?}", event.type_), event.reason))
        .collect()
}

fn owned(event: Option<(&str, &str)>) -> Vec<(String, String)> {
    event
        .into_iter()
        .map(|(kind, reason)| (kind.to_owned(), reason.to_owned()))
        .collect()
}

#[test]
fn every_printable_status_has_its_phase_conditions_and_event() {
    let words = CASES.iter().map(|case| case.state);
    let known: Vec<_> = words.filter(|state| *state != "NewInSomeVersion").collect();
    assert_eq!(known, PRINTABLE_STATUSES, "each word of KubeVirt once");
    for case in CASES {
        let state = case.state;
        let mut environment = running();
        assert_eq!(text(&mut environment, state), owned(case.event), "{state}");
        assert_eq!(phase(&environment), Some(case.phase), "{state}");
        assert_eq!(reported(&environment, "Ready"), case.ready, "{state}");
        let virtual_machine = reported(&environment, "VirtualMachineReady");
        assert_eq!(virtual_machine, case.virtual_machine, "{state}");
        assert_eq!(
            reported(&environment, "Normalized"),
            ("True", "Normalized"),
            "{state}"
        );
        assert_eq!(
            reported(&environment, "StorageReady"),
            ("True", "PVCBound"),
            "{state}"
        );
        let network = ("True", "NetworkConfigured");
        assert_eq!(reported(&environment, "NetworkReady"), network, "{state}");
        if case.phase == Failed {
            assert_eq!(
                message(&environment, "Ready"),
                format!("KubeVirt reports {state}")
            );
        }
        // The Machine recovers when the cause is gone.
        let back = case.event.map(|_| ("Normal", "Running"));
        assert_eq!(
            text(&mut environment, "Running"),
            owned(back),
            "after {state}"
        );
        assert_eq!(phase(&environment), Some(Running), "after {state}");
        assert_eq!(
            reported(&environment, "Ready"),
            ("True", "Running"),
            "after {state}"
        );
    }
}

/// Only an instance that runs shows that the guest does. Another `printableStatus` may mean anything.
#[test]
fn a_word_that_is_not_known_is_no_proof_of_health() {
    let mut gone = running();
    gone.instance = None;
    let mut not_ready = running();
    let status = &mut not_ready.instance.as_mut().unwrap().status;
    status.conditions = decode(json!([
        {"type": "Ready", "status": "False", "reason": "GuestNotRunning", "message": ""},
    ]));
    let mut waits = running();
    "Scheduling".clone_into(&mut waits.instance.as_mut().unwrap().status.phase);
    for mut environment in [Box::new(gone), Box::new(not_ready), Box::new(waits)] {
        let event = ("Warning", "Unknown");
        let seen = text(&mut environment, "NewInSomeVersion");
        assert_eq!(seen, owned(Some(event)));
        assert_eq!(reported(&environment, "Ready"), ("Unknown", "Unknown"));
        assert_eq!(
            message(&environment, "Ready"),
            "KubeVirt reports 'NewInSomeVersion', which this release does not know, and no running guest"
        );
    }
}

/// The same values for a Machine that is off: none is an error.
#[test]
fn a_machine_that_is_off_has_no_error_for_any_printable_status() {
    let mut off = block();
    off.power_state = PowerState::Stopped;
    let mut environment = FakeCluster::new(machine(off));
    environment.settle();
    assert_eq!(phase(&environment), Some(Stopped));
    for state in ["Stopping", "Terminating", "Unknown", "NewInSomeVersion"] {
        text(&mut environment, state);
        assert_eq!(phase(&environment), Some(Stopped), "{state}");
        assert_eq!(
            text(&mut environment, "Stopped").len(),
            usize::from(state == "Unknown")
        );
        assert_eq!(
            reported(&environment, "Ready"),
            ("True", "Stopped"),
            "after {state}"
        );
    }
}
