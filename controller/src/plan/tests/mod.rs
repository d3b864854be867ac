//! Plans for worlds: what is done, in which order, and what is told.

mod creation;
mod deletion;
mod properties;
mod status;

use common::api::choice::Phase;

use super::world::World;

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
