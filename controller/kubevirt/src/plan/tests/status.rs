//! The status.

use std::time::Duration;

use common::api::choice::{Phase, PowerState};
use common::api::machine::{GuestAgentPing, Probe, Probes};
use serde_json::json;
use time::OffsetDateTime;

use super::{message, phase, reported};
use crate::backend::KubeVirt;
use crate::environment::{FakeCluster, decode};
use crate::objects::ForeignCondition;
use controller_core::backend::Growth;
use controller_core::fixtures::{block, machine, nic};
use controller_core::plan::{Now, Refusal, Subject};
use controller_core::reconcile::plan;

fn running() -> FakeCluster {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    environment
}

fn set_kubevirt_status(environment: &mut FakeCluster, status: &str) {
    environment.set_printable_status(status);
    environment.pass();
}

#[test]
fn the_phase_is_stopped_once_the_guest_is_gone() {
    let mut environment = running();
    let mut off = block();
    off.power_state = PowerState::Stopped;
    environment.machine_mut().block = machine(off).block;
    environment.pass();
    set_kubevirt_status(&mut environment, "Stopping");
    assert_eq!(phase(&environment), Some(Phase::Running));
    assert_eq!(reported(&environment, "Ready"), ("False", "Stopping"));
    // KubeVirt reports this while the ended instance still exists.
    set_kubevirt_status(&mut environment, "Stopped");
    assert_eq!(phase(&environment), Some(Phase::Running));
    environment.instance = None;
    environment.pass();
    assert_eq!(phase(&environment), Some(Phase::Stopped));
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
    assert_eq!(environment.machine().status.node_name, None);
    assert_eq!(environment.machine().status.vmi_name, None);
}

#[test]
fn a_guest_that_shut_itself_down_stays_off_and_its_spec_is_not_changed() {
    let mut environment = running();
    let mut reruns = block();
    reruns.guest_shutdown_stops = true;
    environment.machine_mut().block = machine(reruns).block;
    environment.pass();
    environment.instance.as_mut().unwrap().status.phase = "Succeeded".into();
    environment.set_printable_status("Stopped");
    assert_eq!(environment.pass(), [""; 0]);
    assert_eq!(phase(&environment), Some(Phase::Stopped));
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
}

#[test]
fn a_guest_whose_readiness_probe_fails_runs_and_is_not_ready() {
    let mut probed = block();
    let probe = Probe {
        guest_agent_ping: Some(GuestAgentPing {}),
        ..Probe::default()
    };
    probed.probes = Some(Probes {
        liveness: None,
        readiness: Some(Box::new(probe.with_defaults())),
    });
    for (block, expected) in [
        (probed, ("False", "ReadinessProbeFailing")),
        (block(), ("True", "Running")),
    ] {
        let mut environment = FakeCluster::new(machine(block));
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        let instance = environment.instance.as_mut().unwrap();
        instance.status.conditions = vec![ForeignCondition {
            kind: "Ready".into(),
            status: "False".into(),
            reason: "ContainersNotReady".into(),
            message: "containers with unready status: [compute]".into(),
        }];
        environment.pass();
        assert_eq!(phase(&environment), Some(Phase::Running));
        assert_eq!(reported(&environment, "Ready"), expected);
    }
}

#[test]
fn messages_of_kubevirt_are_quoted() {
    let condition = |kind: &str, status: &str, message: &str| ForeignCondition {
        kind: kind.into(),
        status: status.into(),
        message: message.into(),
        ..ForeignCondition::default()
    };
    let mut environment = running();
    let vm = &mut environment.vm.as_mut().unwrap().status;
    vm.conditions = vec![condition("Failure", "True", "no PVC x")];
    set_kubevirt_status(&mut environment, "ErrorPvcNotFound");
    assert_eq!(
        message(&environment, "Ready"),
        "KubeVirt reports ErrorPvcNotFound: no PVC x"
    );

    let mut environment = running();
    let instance = &mut environment.instance.as_mut().unwrap().status;
    instance.conditions = vec![condition(
        "PodScheduled",
        "False",
        "0/3 nodes are available",
    )];
    set_kubevirt_status(&mut environment, "ErrorUnschedulable");
    assert!(message(&environment, "Ready").ends_with("0/3 nodes are available"));
}

#[test]
fn a_status_that_differs_only_in_times_is_not_written() {
    let mut environment = running();
    let before = environment.machine().status.clone();
    environment.pass();
    assert_eq!(environment.machine().status, before);
    assert_eq!(environment.plan().status, None);
    // Conditions of other writers are left alone.
    let mut foreign = before.conditions[0].clone();
    foreign.kind = "example.org/BackedUp".into();
    environment.machine_mut().status.conditions.push(foreign);
    assert_eq!(environment.plan().status, None);
}

#[test]
fn a_condition_has_the_time_of_its_last_change() {
    let mut environment = running();
    let time = |environment: &FakeCluster, kind: &str| {
        let conditions = &environment.machine().status.conditions;
        let condition = conditions.iter().find(|condition| condition.kind == kind);
        condition.unwrap().last_transition_time.clone()
    };
    let (ready, normalized) = (
        time(&environment, "Ready"),
        time(&environment, "Normalized"),
    );
    set_kubevirt_status(&mut environment, "CrashLoopBackOff");
    assert!(time(&environment, "Ready") > ready);
    assert_eq!(time(&environment, "Normalized"), normalized);
    let failed = time(&environment, "Ready");
    set_kubevirt_status(&mut environment, "ErrImagePull");
    assert_eq!(
        time(&environment, "Ready"),
        failed,
        "another message, the same status"
    );
}

#[test]
fn progress_of_a_creation_is_written_at_most_every_two_seconds() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.pass();
    let written = environment.machine().status.last_updated.clone().unwrap();
    environment.advance_kubevirt();
    let format = &time::format_description::well_known::Rfc3339;
    let at = |after: i64| {
        let moment = OffsetDateTime::parse(&written, format).unwrap();
        let now = Now(moment + time::Duration::milliseconds(after));
        plan::<KubeVirt>(
            environment.machine(),
            &environment.observed(),
            None,
            Growth::Permitted,
            now,
        )
    };
    let soon = at(500);
    assert_eq!(
        (soon.status, soon.requeue_after),
        (None, Some(Duration::from_millis(1500)))
    );
    assert!(at(2000).status.is_some());
}

#[test]
fn a_refusal_of_the_api_server_is_in_the_condition_of_its_subject() {
    for (subject, kind, reason) in [
        (Subject::Network, "NetworkReady", "NetworkFailed"),
        (Subject::Storage, "StorageReady", "PVCPending"),
        (Subject::Guest, "VirtualMachineReady", "KubeVirtApiError"),
        (Subject::Machine, "VirtualMachineReady", "KubeVirtApiError"),
        (Subject::Reset, "VirtualMachineReady", "KubeVirtApiError"),
    ] {
        let mut environment = FakeCluster::new(machine(block()));
        let refusal = Refusal {
            subject,
            reason: None,
            message: "quota exceeded".into(),
        };
        let now = Now(OffsetDateTime::UNIX_EPOCH);
        environment.machine_mut().status = plan::<KubeVirt>(
            environment.machine(),
            &environment.observed(),
            Some(&refusal),
            Growth::Permitted,
            now,
        )
        .status
        .unwrap();
        assert_eq!(reported(&environment, kind), ("False", reason));
        assert_eq!(message(&environment, kind), "quota exceeded");
        assert_eq!(message(&environment, "Ready"), "quota exceeded");
    }
}

#[test]
fn addresses_of_network_cards_are_sorted() {
    let condition = |environment: &mut FakeCluster, interfaces: serde_json::Value| {
        environment.instance.as_mut().unwrap().status.interfaces = decode(interfaces);
        environment.pass();
        let status = environment.machine().status.clone();
        (status.ip_addresses, status.network_interfaces)
    };
    let mut block = block();
    block.networks = vec![nic("front", Some("prod")), nic("back", Some("prod"))];
    let mut environment = FakeCluster::new(machine(block));
    environment.add_network("prod", "br0");
    environment.settle();
    // As the agent reports them: cards in any order, and some that only the guest has.
    let (addresses, cards) = condition(
        &mut environment,
        json!([
            {"name": "back", "mac": "02:00:00:00:00:02", "ipAddress": "10.0.0.9",
             "ipAddresses": ["10.0.0.9", "fe80::2", "2001:db8::2", "10.0.0.10"]},
            {"interfaceName": "docker0", "ipAddress": "172.17.0.1", "ipAddresses": ["172.17.0.1"]},
            {"name": "front", "mac": "02:00:00:00:00:01", "ipAddress": "fe80::1",
             "ipAddresses": ["fe80::1", "2001:db8::1", "192.0.2.1", "169.254.0.1"]},
        ]),
    );
    let all = [
        "192.0.2.1",
        "2001:db8::1",
        "10.0.0.9",
        "10.0.0.10",
        "2001:db8::2",
    ];
    assert_eq!(addresses, all);
    let cards: Vec<_> = cards
        .into_iter()
        .map(|card| (card.name, card.ip_addresses))
        .collect();
    let front = ["192.0.2.1", "2001:db8::1", "169.254.0.1", "fe80::1"];
    let back = ["10.0.0.9", "10.0.0.10", "2001:db8::2", "fe80::2"];
    let owned = |name: &str, all: [&str; 4]| (name.to_owned(), all.map(str::to_owned).to_vec());
    assert_eq!(cards, [owned("front", front), owned("back", back)]);
    // Another order changes nothing.
    let turned = json!([
        {"name": "front", "mac": "02:00:00:00:00:01", "ipAddress": "192.0.2.1",
         "ipAddresses": ["192.0.2.1", "169.254.0.1", "2001:db8::1", "fe80::1"]},
        {"name": "back", "mac": "02:00:00:00:00:02", "ipAddress": "10.0.0.10",
         "ipAddresses": ["10.0.0.10", "2001:db8::2", "10.0.0.9", "fe80::2"]},
    ]);
    environment.instance.as_mut().unwrap().status.interfaces = decode(turned);
    assert_eq!(environment.plan().status, None);

    // If there are only link-local addresses they are reported; so is KubeVirt's single address without a list.
    let (addresses, _) = condition(
        &mut environment,
        json!([{"name": "front", "ipAddresses": ["::1", "fe80::1", "127.0.0.1"]}]),
    );
    assert_eq!(addresses, ["127.0.0.1", "::1", "fe80::1"]);
    let (addresses, _) = condition(
        &mut environment,
        json!([{"name": "front", "ipAddress": "10.0.0.7/24"}]),
    );
    assert_eq!(addresses, ["10.0.0.7"]);
}

#[test]
fn a_guest_cannot_report_more_than_the_limits() {
    let mut environment = running();
    let addresses: Vec<_> = (0..60_000).map(|it| format!("2001:db8::{it:x}")).collect();
    let instance = environment.instance.as_mut().unwrap();
    let card = &instance.spec.domain.devices.interfaces[0].name;
    instance.status = decode(json!({
        "phase": "Running",
        "interfaces": [
            {"name": "", "ipAddresses": addresses},
            {"name": card, "mac": "0".repeat(100), "ipAddresses": addresses},
        ],
        "guestOSInfo": {"name": "€".repeat(1000), "version": "40", "kernelRelease": "6".repeat(1000)},
    }));
    let kept = &instance.status.interfaces;
    assert_eq!((kept.len(), kept[0].ip_addresses.len()), (1, 64));
    environment.pass();
    let status = environment.machine().status.clone();
    assert_eq!(status.ip_addresses.len(), 64);
    assert_eq!(status.network_interfaces[0].mac_address, None);
    let guest_os = status.guest_os.unwrap();
    assert_eq!(guest_os.name, Some("€".repeat(85)));
    assert_eq!(guest_os.version.as_deref(), Some("40"));
    assert_eq!(guest_os.kernel, Some("6".repeat(256)));
}

#[test]
fn the_report_of_the_guest_agent_is_in_the_status_while_it_answers() {
    let mut environment = running();
    assert_eq!(environment.machine().status.guest_os, None);
    assert_eq!(reported(&environment, "AgentConnected"), ("", ""));
    let instance = environment.instance.as_mut().unwrap();
    instance.status = decode(json!({
        "phase": "Running",
        "guestOSInfo": {
            "id": "fedora", "name": "Fedora Linux", "version": "40 (Cloud Edition)",
            "kernelRelease": "6.8.5-301.fc40.x86_64", "machine": "x86_64",
        },
        "conditions": [{"type": "AgentConnected", "status": "True"}],
    }));
    environment.pass();
    let guest_os = environment.machine().status.guest_os.clone().unwrap();
    assert_eq!(
        json!(guest_os),
        json!({
            "name": "Fedora Linux", "version": "40 (Cloud Edition)",
            "kernel": "6.8.5-301.fc40.x86_64",
        })
    );
    assert_eq!(
        reported(&environment, "AgentConnected"),
        ("True", "AgentConnected")
    );

    let instance = environment.instance.as_mut().unwrap();
    instance.status = decode(json!({"phase": "Running", "guestOSInfo": {}}));
    environment.pass();
    assert_eq!(environment.machine().status.guest_os, None);
    assert_eq!(reported(&environment, "AgentConnected"), ("", ""));
}
