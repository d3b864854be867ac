//! Every word KubeVirt has for the state of a VirtualMachine: phase, conditions, event.

use common::api::choice::Phase::{self, Creating, Failed, Running, Stopped};
use common::api::choice::PowerState;
use common::render::kubevirt::PRINTABLE_STATUSES;

use super::{message, phase, told};
use crate::plan::world::World;
use controller_core::events;
use controller_core::fixtures::{block, machine};

/// What a word leads to.
struct Case {
    state: &'static str,
    phase: Phase,
    ready: (&'static str, &'static str),
    virtual_machine: (&'static str, &'static str),
    /// Type and reason, when it is news to who watches the Machine.
    event: Option<(&'static str, &'static str)>,
}

const MADE: (&str, &str) = ("True", "VMCreated");

/// The guest is on its way.
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

/// No news of a guest that runs.
const fn stays(state: &'static str) -> Case {
    Case {
        state,
        phase: Running,
        ready: ("True", "Running"),
        virtual_machine: MADE,
        event: None,
    }
}

/// As in `VirtualMachinePrintableStatus` of KubeVirt's API, for a guest that runs; and what a newer
/// KubeVirt may say.
const CASES: [Case; 18] = [
    // It was stopped by somebody, and KubeVirt starts it again.
    starts("Stopped"),
    starts("Provisioning"),
    starts("Starting"),
    stays("Running"),
    Case {
        ready: ("False", "GuestPaused"),
        event: Some(("Warning", "GuestPaused")),
        ..stays("Paused")
    },
    // Until it is over, what was before.
    stays("Stopping"),
    stays("Terminating"),
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

fn running() -> World {
    let mut world = World::new(machine(block()));
    world.settle();
    world
}

/// KubeVirt shows a state; gives the events that tell of it.
fn says(world: &mut World, state: &str) -> Vec<(String, String)> {
    let before = world.machine().status.clone();
    world.show(state);
    world.pass();
    let events = events::transitions(&before, &world.machine().status);
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
fn every_word_of_kubevirt_has_its_phase_conditions_and_event() {
    let words = CASES.iter().map(|case| case.state);
    let known: Vec<_> = words.filter(|state| *state != "NewInSomeVersion").collect();
    assert_eq!(known, PRINTABLE_STATUSES, "each word of KubeVirt once");
    for case in CASES {
        let state = case.state;
        let mut world = running();
        assert_eq!(says(&mut world, state), owned(case.event), "{state}");
        assert_eq!(phase(&world), Some(case.phase), "{state}");
        assert_eq!(told(&world, "Ready"), case.ready, "{state}");
        let virtual_machine = told(&world, "VirtualMachineReady");
        assert_eq!(virtual_machine, case.virtual_machine, "{state}");
        assert_eq!(
            told(&world, "Normalized"),
            ("True", "Normalized"),
            "{state}"
        );
        assert_eq!(
            told(&world, "StorageReady"),
            ("True", "PVCBound"),
            "{state}"
        );
        let network = ("True", "NetworkConfigured");
        assert_eq!(told(&world, "NetworkReady"), network, "{state}");
        if case.phase == Failed {
            assert_eq!(message(&world, "Ready"), format!("KubeVirt says {state}"));
        }
        // Whatever it was: back when the cause is gone.
        let back = case.event.map(|_| ("Normal", "Running"));
        assert_eq!(says(&mut world, "Running"), owned(back), "after {state}");
        assert_eq!(phase(&world), Some(Running), "after {state}");
        assert_eq!(told(&world, "Ready"), ("True", "Running"), "after {state}");
    }
}

/// The same words for a Machine that is off: nothing that KubeVirt says makes one of them an error.
#[test]
fn a_machine_that_is_off_is_off_when_kubevirt_says_so() {
    let mut off = block();
    off.power_state = PowerState::Stopped;
    let mut world = World::new(machine(off));
    world.settle();
    assert_eq!(phase(&world), Some(Stopped));
    for state in ["Stopping", "Terminating", "Unknown", "NewInSomeVersion"] {
        says(&mut world, state);
        assert_eq!(phase(&world), Some(Stopped), "{state}");
        assert_eq!(
            says(&mut world, "Stopped").len(),
            usize::from(state == "Unknown")
        );
        assert_eq!(told(&world, "Ready"), ("True", "Stopped"), "after {state}");
    }
}
