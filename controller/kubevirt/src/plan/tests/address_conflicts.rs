//! MAC addresses and IP addresses that two Machines have.

use common::api::choice::{Phase, PowerState};
use common::mac::Mac;
use common::names;
use serde_json::json;

use super::{edit, machine_with_every_object, message, phase, reported};
use crate::environment::{FakeCluster, decode};
use controller_core::conditions::Fault;
use controller_core::fixtures::{block, machine, nic};
use controller_core::held_addresses::{AddressFault, Addresses};
use controller_core::machine::{Block, Machine};

#[test]
fn a_claim_of_another_machine_is_reported_with_that_machines_name() {
    let mut environment = machine_with_every_object();
    environment.claims.insert(
        "web-root".into(),
        decode(json!({
            "metadata": {
                "name": "web-root", "namespace": "default", "uid": "theirs",
                "labels": {
                    names::LABEL_MANAGED_BY: names::MANAGED_BY,
                    names::LABEL_MACHINE: "we", names::LABEL_DISK: "b-root",
                },
            },
            "status": {"phase": "Bound"},
        })),
    );
    environment.settle();
    assert_eq!(
        message(&environment, "StorageReady"),
        "PersistentVolumeClaim 'web-root' belongs to disk 'b-root' of Machine 'we': give disk 'root' another name, or delete that claim; it is left untouched"
    );
}

/// A Machine on the network `prod`, made at this time.
fn on_prod(name: &str, created: &str) -> Machine {
    let mut block = block();
    block.networks = vec![nic("eth0", Some("prod"))];
    block.networks[0].mac_address = Some(Mac::new([2, 0, 0, 0, 0, 1]));
    let mut machine = machine(block);
    machine.metadata.name = Some(name.into());
    machine.metadata.creation_timestamp = Some(decode(json!(created)));
    machine
}

#[test]
fn of_two_machines_with_one_address_the_older_one_continues() {
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
    for (theirs, ours, name, waits) in [
        (early, late, "db", true),
        (late, early, "db", false),
        (early, early, "a", true),
        (early, early, "z", false),
    ] {
        let mut environment = FakeCluster::new(on_prod("web", ours));
        environment.add_network("prod", "br0");
        environment.others.push(on_prod(name, theirs));
        environment.settle();
        assert_eq!(environment.vm.is_none(), waits, "{name} {theirs}");
        if !waits {
            assert_eq!(phase(&environment), Some(Phase::Running));
            continue;
        }
        assert_eq!(
            reported(&environment, "NetworkReady"),
            ("False", "NetworkFailed")
        );
        assert_eq!(reported(&environment, "Ready"), ("False", "NetworkFailed"));
        assert_eq!(
            message(&environment, "NetworkReady"),
            format!(
                "network card 'eth0' has the address 02:00:00:00:00:01, and so has the older Machine '{name}' on NetworkConfiguration 'prod': change macAddress of one of them in spec.networks; the Machine continues automatically then"
            )
        );
        // It recovers when the other Machine changes or is deleted, and has lost nothing.
        environment.others.clear();
        environment.settle();
        assert_eq!(phase(&environment), Some(Phase::Running));
        assert_eq!(
            reported(&environment, "NetworkReady"),
            ("True", "NetworkConfigured")
        );
    }
}

#[test]
fn an_address_on_another_network_is_no_conflict_and_a_running_guest_keeps_running() {
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
    let mut environment = FakeCluster::new(on_prod("web", late));
    environment.add_network("prod", "br0");
    let mut elsewhere = on_prod("elsewhere", early);
    let mut other = elsewhere.desired().unwrap().clone();
    other.networks = vec![nic("eth0", Some("test")), nic("eth1", None)];
    other.networks[0].mac_address = Some(Mac::new([2, 0, 0, 0, 0, 1]));
    other.networks[1].mac_address = Some(Mac::new([2, 0, 0, 0, 0, 1]));
    elsewhere.block = Block::Matching(Box::new(other));
    environment.others = vec![elsewhere];
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));

    environment.others.push(on_prod("db", early));
    edit(&mut environment, |block| block.cpu.cores = 8);
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(phase(&environment), Some(Phase::Running));
    assert_eq!(reported(&environment, "Ready"), ("False", "NetworkFailed"));
}

#[test]
fn a_guest_whose_ip_address_another_machine_has_is_not_started_and_can_be_stopped() {
    let taken = Addresses {
        fault: Some(AddressFault {
            fault: Fault::new("AddressInUse", "Machine 'db' has it"),
            is_in_use: true,
            is_transient: false,
        }),
        ..Addresses::default()
    };
    let mut environment = FakeCluster::new(on_prod("web", "2026-01-01T00:00:00Z"));
    environment.add_network("prod", "br0");
    environment.machine_mut().addresses = taken.clone();
    environment.settle();
    assert!(environment.vm.is_none());
    assert_eq!(
        reported(&environment, "NetworkReady"),
        ("False", "AddressInUse")
    );

    environment.machine_mut().addresses = Addresses::default();
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
    // Its lock was deleted, and another Machine took the address.
    environment.machine_mut().addresses = taken.clone();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    let done = environment.settle();
    assert_eq!(done, ["set the VirtualMachine's runStrategy to Halted"]);
    edit(&mut environment, |block| {
        block.power_state = PowerState::Running;
    });
    assert_eq!(environment.settle(), [""; 0], "it stays off");
    environment.machine_mut().addresses = Addresses::default();
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
}
