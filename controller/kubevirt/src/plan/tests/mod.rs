//! Plans for worlds: what is done, in which order, and what is told.

mod address_conflicts;
mod creation;
mod deletion;
mod disks;
mod images;
mod printable;
mod properties;
mod restart;
mod secrets;
mod status;
mod worlds;

use common::api::choice::{Phase, ReclaimPolicy};
use common::api::machine::CloudInit;
use common::api::normalized::Normalized;
use common::render::CloudInitPlan;

use super::world::World;
use controller_core::fixtures::{block, disk, machine, nic};
use controller_core::machine::Block;

/// A Machine with everything that takes an object of its own.
fn rich() -> World {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    block.networks = vec![nic("eth0", Some("prod"))];
    let mut machine = machine(block);
    machine.cloud_init = cloud_init(&"#".repeat(4000));
    let mut world = World::new(machine);
    world.add_network("prod", "br0");
    world
}

fn cloud_init(user_data: &str) -> CloudInitPlan {
    CloudInitPlan::from(&CloudInit {
        user_data: Some(user_data.to_owned()),
        ..CloudInit::default()
    })
}

fn edit(world: &mut World, change: impl FnOnce(&mut Normalized)) {
    let machine = world.machine_mut();
    let mut block = machine.desired().unwrap().clone();
    change(&mut block);
    machine.block = Block::Matching(Box::new(block));
    machine.metadata.generation = machine.metadata.generation.map(|number| number + 1);
}

/// Status and reason of a condition that was written.
fn told<'a>(world: &'a World, kind: &str) -> (&'a str, &'a str) {
    let conditions = &world.machine().status.conditions;
    conditions
        .iter()
        .find(|condition| condition.kind == kind)
        .map_or(("", ""), |condition| (&condition.status, &condition.reason))
}

fn message<'a>(world: &'a World, kind: &str) -> &'a str {
    let conditions = &world.machine().status.conditions;
    let condition = conditions.iter().find(|condition| condition.kind == kind);
    condition.map_or("", |condition| &condition.message)
}

fn phase(world: &World) -> Option<Phase> {
    world.machine().status.phase
}
