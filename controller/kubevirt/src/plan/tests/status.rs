//! What the status tells.

use std::time::Duration;

use common::api::choice::{DiskBus, Phase, PowerState, ReclaimPolicy};
use common::quantity::Bytes;
use serde_json::json;
use time::OffsetDateTime;

use super::{cloud_init, edit, message, phase, told};
use crate::objects::ForeignCondition;
use crate::plan::create;
use crate::plan::world::{World, decode};
use controller_core::fixtures::{block, disk, machine, nic};
use controller_core::plan::{Now, Refusal, Subject};

fn running() -> World {
    let mut world = World::new(machine(block()));
    world.settle();
    world
}

fn kubevirt_says(world: &mut World, status: &str) {
    world.show(status);
    world.pass();
}

#[test]
fn stopped_is_told_when_the_guest_is_gone() {
    let mut world = running();
    let mut off = block();
    off.power_state = PowerState::Stopped;
    world.machine_mut().block = machine(off).block;
    world.pass();
    kubevirt_says(&mut world, "Stopping");
    assert_eq!(phase(&world), Some(Phase::Running));
    assert_eq!(told(&world, "Ready"), ("False", "Stopping"));
    // KubeVirt says so while the ended instance is still there.
    kubevirt_says(&mut world, "Stopped");
    assert_eq!(phase(&world), Some(Phase::Running));
    world.instance = None;
    world.pass();
    assert_eq!(phase(&world), Some(Phase::Stopped));
    assert_eq!(told(&world, "Ready"), ("True", "Stopped"));
    assert_eq!(world.machine().status.node_name, None);
    assert_eq!(world.machine().status.vmi_name, None);
}

#[test]
fn a_guest_that_shut_itself_down_stays_down_and_its_spec_as_it_is() {
    let mut world = running();
    let mut reruns = block();
    reruns.guest_shutdown_stops = true;
    world.machine_mut().block = machine(reruns).block;
    world.pass();
    world.instance.as_mut().unwrap().status.phase = "Succeeded".into();
    world.show("Stopped");
    assert_eq!(world.pass(), [""; 0]);
    assert_eq!(phase(&world), Some(Phase::Stopped));
    assert_eq!(told(&world, "Ready"), ("True", "Stopped"));
}

#[test]
fn kubevirts_own_words_are_passed_on() {
    let told = |kind: &str, status: &str, message: &str| ForeignCondition {
        kind: kind.into(),
        status: status.into(),
        message: message.into(),
        ..ForeignCondition::default()
    };
    let mut world = running();
    let vm = &mut world.vm.as_mut().unwrap().status;
    vm.conditions = vec![told("Failure", "True", "no PVC x")];
    kubevirt_says(&mut world, "ErrorPvcNotFound");
    assert_eq!(
        message(&world, "Ready"),
        "KubeVirt says ErrorPvcNotFound: no PVC x"
    );

    let mut world = running();
    let instance = &mut world.instance.as_mut().unwrap().status;
    instance.conditions = vec![told("PodScheduled", "False", "0/3 nodes are available")];
    kubevirt_says(&mut world, "ErrorUnschedulable");
    assert!(message(&world, "Ready").ends_with("0/3 nodes are available"));

    let mut world = running();
    let vm = &mut world.vm.as_mut().unwrap().status;
    vm.conditions = vec![told("RestartRequired", "True", "cpu")];
    world.pass();
    assert!(message(&world, "RestartRequired").ends_with("cpu"));
    world.vm.as_mut().unwrap().status.conditions.clear();
    world.pass();
    assert_eq!(super::told(&world, "RestartRequired"), ("", ""));
}

#[test]
fn what_is_plugged_in_is_pending_until_the_guest_has_it() {
    let mut world = running();
    let wish = |world: &mut World| {
        edit(world, |block| {
            (block.cpu.sockets, block.cpu.max_sockets) = (2, 4);
            block.memory.size = Bytes::mib(4096);
        });
        // As KubeVirt does: its instance has it at once, the guest later.
        world.pass();
        let vm = world.vm.as_ref().unwrap();
        world.instance.as_mut().unwrap().spec = vm.spec.template.spec.clone();
    };
    wish(&mut world);
    world.settle();
    assert_eq!(world.machine().status.pending_changes, []);

    let condition = |kind: &str, status: &str| ForeignCondition {
        kind: kind.into(),
        status: status.into(),
        ..ForeignCondition::default()
    };
    for (migratable, action, required) in
        [("True", "LiveMigration", ""), ("False", "Restart", "True")]
    {
        let status = &mut world.instance.as_mut().unwrap().status;
        status.cpu.sockets = Some(1);
        status.memory.guest_current = Some("2Gi".into());
        status.conditions = vec![
            condition("HotVCPUChange", "True"),
            condition("HotMemoryChange", "True"),
            condition("LiveMigratable", migratable),
        ];
        world.settle();
        let told = world.machine().status.pending_changes.iter();
        let told: Vec<_> = told
            .map(|it| [&*it.field, &it.current, &it.desired, &it.action])
            .collect();
        let expected = [
            ["cpu.sockets", "1", "2", action],
            ["memory.size", "2Gi", "4Gi", action],
        ];
        assert_eq!(told, expected);
        assert_eq!(super::told(&world, "RestartRequired").0, required);
    }
    world.instance.as_mut().unwrap().status.conditions.clear();
    world.settle();
    assert_eq!(world.machine().status.pending_changes, []);
    assert_eq!(told(&world, "RestartRequired"), ("", ""));
}

#[test]
fn a_restart_names_the_fields_it_is_for() {
    let mut block = block();
    block.disks.push(disk("old", ReclaimPolicy::Delete));
    let mut world = World::new(machine(block));
    world.settle();
    edit(&mut world, |block| {
        block.cpu.cores = 8;
        block.memory.size = Bytes::mib(4096);
        block.disks[0].bus = DiskBus::Scsi;
        block.disks.truncate(1);
        block.networks.push(nic("eth1", Some("prod")));
    });
    world.add_network("prod", "br0");
    world.machine_mut().cloud_init = cloud_init("#cloud-config");
    world.pass();
    assert_eq!(world.machine().status.pending_changes, []);

    let restart = ForeignCondition {
        kind: "RestartRequired".into(),
        status: "True".into(),
        ..ForeignCondition::default()
    };
    world.vm.as_mut().unwrap().status.conditions = vec![restart];
    world.pass();
    let told = world.machine().status.pending_changes.iter();
    let told: Vec<_> = told
        .map(|change| format!("{}: {} -> {}", change.field, change.current, change.desired))
        .collect();
    assert_eq!(
        told,
        [
            "cpu.cores: 2 -> 8",
            "memory.size: 2Gi -> 4Gi",
            "disks[old]: present -> absent",
            "disks[root].bus: virtio -> scsi",
            "networks[eth1]: absent -> present",
            "cloudInit: as it was -> as it is now",
        ]
    );
    assert!(message(&world, "RestartRequired").contains("cpu.cores, memory.size"));

    world.instance = None;
    world.vm.as_mut().unwrap().status.conditions.clear();
    world.settle();
    assert_eq!(world.machine().status.pending_changes, []);
}

#[test]
fn nothing_but_times_is_no_news() {
    let mut world = running();
    let before = world.machine().status.clone();
    world.pass();
    assert_eq!(world.machine().status, before);
    assert_eq!(world.plan().status, None);
    // What another writer adds is not ours to judge.
    let mut foreign = before.conditions[0].clone();
    foreign.kind = "example.org/BackedUp".into();
    world.machine_mut().status.conditions.push(foreign);
    assert_eq!(world.plan().status, None);
}

#[test]
fn a_condition_has_the_time_of_its_last_change() {
    let mut world = running();
    let time = |world: &World, kind: &str| {
        let conditions = &world.machine().status.conditions;
        let condition = conditions.iter().find(|condition| condition.kind == kind);
        condition.unwrap().last_transition_time.clone()
    };
    let (ready, normalized) = (time(&world, "Ready"), time(&world, "Normalized"));
    kubevirt_says(&mut world, "CrashLoopBackOff");
    assert!(time(&world, "Ready") > ready);
    assert_eq!(time(&world, "Normalized"), normalized);
    let failed = time(&world, "Ready");
    kubevirt_says(&mut world, "ErrImagePull");
    assert_eq!(
        time(&world, "Ready"),
        failed,
        "another message, the same status"
    );
}

#[test]
fn progress_of_a_creation_waits_a_moment() {
    let mut world = World::new(machine(block()));
    world.pass();
    let written = world.machine().status.last_updated.clone().unwrap();
    world.kubevirt_moves();
    let format = &time::format_description::well_known::Rfc3339;
    let at = |after: i64| {
        let moment = OffsetDateTime::parse(&written, format).unwrap();
        let now = Now(moment + time::Duration::milliseconds(after));
        create::plan(world.machine(), &world.observed(), None, now)
    };
    let soon = at(500);
    assert_eq!(
        (soon.status, soon.requeue_after),
        (None, Some(Duration::from_millis(1500)))
    );
    assert!(at(2000).status.is_some());
}

#[test]
fn what_the_api_server_refuses_is_told_where_it_belongs() {
    for (subject, kind, reason) in [
        (Subject::Network, "NetworkReady", "NetworkFailed"),
        (Subject::Storage, "StorageReady", "PVCPending"),
        (Subject::Guest, "VirtualMachineReady", "KubeVirtApiError"),
        (Subject::Machine, "VirtualMachineReady", "KubeVirtApiError"),
    ] {
        let mut world = World::new(machine(block()));
        let refusal = Refusal {
            subject,
            message: "quota exceeded".into(),
        };
        let now = Now(OffsetDateTime::UNIX_EPOCH);
        world.machine_mut().status =
            create::plan(world.machine(), &world.observed(), Some(&refusal), now)
                .status
                .unwrap();
        assert_eq!(told(&world, kind), ("False", reason));
        assert_eq!(message(&world, kind), "quota exceeded");
        assert_eq!(message(&world, "Ready"), "quota exceeded");
    }
}

#[test]
fn the_addresses_of_the_cards_come_in_an_order_of_their_own() {
    let told = |world: &mut World, interfaces: serde_json::Value| {
        world.instance.as_mut().unwrap().status.interfaces = decode(interfaces);
        world.pass();
        let status = world.machine().status.clone();
        (status.ip_addresses, status.network_interfaces)
    };
    let mut block = block();
    block.networks = vec![nic("front", Some("prod")), nic("back", Some("prod"))];
    let mut world = World::new(machine(block));
    world.add_network("prod", "br0");
    world.settle();
    // As the agent tells them: cards in any order, and what only the guest has.
    let (addresses, cards) = told(
        &mut world,
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
    // Another order is no news.
    let turned = json!([
        {"name": "front", "mac": "02:00:00:00:00:01", "ipAddress": "192.0.2.1",
         "ipAddresses": ["192.0.2.1", "169.254.0.1", "2001:db8::1", "fe80::1"]},
        {"name": "back", "mac": "02:00:00:00:00:02", "ipAddress": "10.0.0.10",
         "ipAddresses": ["10.0.0.10", "2001:db8::2", "10.0.0.9", "fe80::2"]},
    ]);
    world.instance.as_mut().unwrap().status.interfaces = decode(turned);
    assert_eq!(world.plan().status, None);

    // Better than nothing; and KubeVirt's first one alone, where it gives no more.
    let (addresses, _) = told(
        &mut world,
        json!([{"name": "front", "ipAddresses": ["::1", "fe80::1", "127.0.0.1"]}]),
    );
    assert_eq!(addresses, ["127.0.0.1", "::1", "fe80::1"]);
    let (addresses, _) = told(
        &mut world,
        json!([{"name": "front", "ipAddress": "10.0.0.7/24"}]),
    );
    assert_eq!(addresses, ["10.0.0.7/24"]);
}

#[test]
fn what_the_guest_agent_tells_is_told_while_it_answers() {
    let mut world = running();
    assert_eq!(world.machine().status.guest_os, None);
    assert_eq!(told(&world, "AgentConnected"), ("", ""));
    let instance = world.instance.as_mut().unwrap();
    instance.status = decode(json!({
        "phase": "Running",
        "guestOSInfo": {
            "id": "fedora", "name": "Fedora Linux", "version": "40 (Cloud Edition)",
            "kernelRelease": "6.8.5-301.fc40.x86_64", "machine": "x86_64",
        },
        "conditions": [{"type": "AgentConnected", "status": "True"}],
    }));
    world.pass();
    let guest_os = world.machine().status.guest_os.clone().unwrap();
    assert_eq!(
        json!(guest_os),
        json!({
            "name": "Fedora Linux", "version": "40 (Cloud Edition)",
            "kernel": "6.8.5-301.fc40.x86_64",
        })
    );
    assert_eq!(told(&world, "AgentConnected"), ("True", "AgentConnected"));

    let instance = world.instance.as_mut().unwrap();
    instance.status = decode(json!({"phase": "Running", "guestOSInfo": {}}));
    world.pass();
    assert_eq!(world.machine().status.guest_os, None);
    assert_eq!(told(&world, "AgentConnected"), ("", ""));
}
