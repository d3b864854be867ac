//! What other Machines have that this one would have, too.

use common::api::choice::Phase;
use common::mac::Mac;
use common::names;
use serde_json::json;

use super::{edit, message, phase, rich, told};
use crate::environment::{World, decode};
use controller_core::fixtures::{block, machine, nic};
use controller_core::machine::{Block, Machine};

#[test]
fn a_claim_of_another_machine_is_told_with_its_name() {
    let mut world = rich();
    world.claims.insert(
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
    world.settle();
    assert_eq!(
        message(&world, "StorageReady"),
        "PersistentVolumeClaim 'web-root' belongs to disk 'b-root' of Machine 'we': rename disk 'root', or delete or rename that claim; it is left untouched"
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
fn of_two_machines_with_one_address_the_older_one_goes_on() {
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
    for (theirs, ours, name, waits) in [
        (early, late, "web", true),
        (late, early, "web", false),
        (early, early, "a", true),
        (early, early, "z", false),
    ] {
        let mut world = World::new(on_prod("web", ours));
        world.add_network("prod", "br0");
        world.others.push(on_prod(name, theirs));
        world.settle();
        assert_eq!(world.vm.is_none(), waits, "{name} {theirs}");
        if !waits {
            assert_eq!(phase(&world), Some(Phase::Running));
            continue;
        }
        assert_eq!(told(&world, "NetworkReady"), ("False", "NetworkFailed"));
        assert_eq!(told(&world, "Ready"), ("False", "NetworkFailed"));
        assert_eq!(
            message(&world, "NetworkReady"),
            format!(
                "network card 'eth0' has the address 02:00:00:00:00:01, and so has the older Machine '{name}' on NetworkConfiguration 'prod': change macAddress of one of them in spec.networks; the Machine goes on by itself then"
            )
        );
        // It recovers when the other one changes or goes, and nothing of it was lost.
        world.others.clear();
        world.settle();
        assert_eq!(phase(&world), Some(Phase::Running));
        assert_eq!(told(&world, "NetworkReady"), ("True", "NetworkConfigured"));
    }
}

#[test]
fn an_address_elsewhere_is_nobodys_matter_and_a_guest_that_runs_is_left_running() {
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
    let mut world = World::new(on_prod("web", late));
    world.add_network("prod", "br0");
    let mut elsewhere = on_prod("elsewhere", early);
    let mut other = elsewhere.desired().unwrap().clone();
    other.networks = vec![nic("eth0", Some("test")), nic("eth1", None)];
    other.networks[0].mac_address = Some(Mac::new([2, 0, 0, 0, 0, 1]));
    other.networks[1].mac_address = Some(Mac::new([2, 0, 0, 0, 0, 1]));
    elsewhere.block = Block::Matching(Box::new(other));
    world.others = vec![elsewhere];
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));

    world.others.push(on_prod("db", early));
    edit(&mut world, |block| block.cpu.cores = 8);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(phase(&world), Some(Phase::Running));
    assert_eq!(told(&world, "Ready"), ("False", "NetworkFailed"));
}
