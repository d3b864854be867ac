//! Plans over the in-memory cluster: actions, their order, and the status.

mod address_conflicts;
mod adoption;
mod causes;
mod creation;
mod deletion;
mod disks;
mod environments;
mod existing;
mod foreign_stops;
mod guest_size;
mod images;
mod kept_claims;
mod loss;
mod media;
mod migration;
mod mirrored;
mod others;
mod pending;
mod pending_kept;
mod power;
mod printable;
mod properties;
mod protection;
mod restart;
mod secrets;
mod shared_imports;
mod status;

use common::api::choice::{Phase, ReclaimPolicy};
use common::api::machine::CloudInit;
use common::api::normalized::Normalized;
use common::render::CloudInitPlan;

use crate::environment::FakeCluster;
use controller_core::fixtures::{block, disk, machine, nic};
use controller_core::machine::Block;

/// A Machine that needs an object of every kind.
fn machine_with_every_object() -> FakeCluster {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    block.networks = vec![nic("eth0", Some("prod"))];
    let mut machine = machine(block);
    machine.cloud_init = cloud_init(&"#".repeat(4000));
    let mut environment = FakeCluster::new(machine);
    environment.add_network("prod", "br0");
    environment
}

fn cloud_init(user_data: &str) -> CloudInitPlan {
    CloudInitPlan::from(&CloudInit {
        user_data: Some(user_data.to_owned()),
        ..CloudInit::default()
    })
}

fn edit(environment: &mut FakeCluster, change: impl FnOnce(&mut Normalized)) {
    let machine = environment.machine_mut();
    let mut block = machine.desired().unwrap().clone();
    change(&mut block);
    machine.is_protected = block.deletion_protection;
    machine.block = Block::Matching(Box::new(block));
    machine.metadata.generation = machine.metadata.generation.map(|number| number + 1);
}

/// Status and reason of a condition that was written.
fn reported<'a>(environment: &'a FakeCluster, kind: &str) -> (&'a str, &'a str) {
    let conditions = &environment.machine().status.conditions;
    conditions
        .iter()
        .find(|condition| condition.kind == kind)
        .map_or(("", ""), |condition| (&condition.status, &condition.reason))
}

fn message<'a>(environment: &'a FakeCluster, kind: &str) -> &'a str {
    let conditions = &environment.machine().status.conditions;
    let condition = conditions.iter().find(|condition| condition.kind == kind);
    condition.map_or("", |condition| &condition.message)
}

fn phase(environment: &FakeCluster) -> Option<Phase> {
    environment.machine().status.phase
}
