//! A requested migration moves the guest that runs at the time of the request to another node, once.
//!
//! ```text
//! new request ─▶ status: name of the object ─▶ object created ─▶ KubeVirt reports how it ends ─▶ status: result
//!          └──▶ status: Refused, if the guest cannot be moved
//! ```
//! The status is written before the object is created, and the name of the object is a digest of the request. So one
//! request makes one migration, however often the sequence is interrupted and repeated. An object that is deleted before
//! its end is a migration that was cancelled (KubeVirt's own way to cancel one).

use common::api::choice::{MigrationResult, PowerState};
use common::api::normalized::Normalized;
use common::api::status::LastMigration;
use common::names;
use common::render::kubevirt;

use super::action::Action;
use super::observed::{Observed, RequestedMigration};
use super::restart::instance;
use crate::objects::{GuestMigration, Instance};
use controller_core::machine::Machine;
use controller_core::migration::{Request, ended, refused};
use controller_core::objects::Meta as _;
use controller_core::plan::Refusal;

/// The state of the last requested migration and the action that continues it.
#[derive(Debug, Default)]
pub(super) struct Migration {
    pub(super) last: Option<LastMigration>,
    pub(super) action: Option<Action>,
}

pub(super) fn migration(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    refusal: Option<&Refusal>,
) -> Migration {
    let last = machine.status.last_migration.clone();
    let only = |last| Migration { last, action: None };
    if !observed.kubevirt {
        return only(last);
    }
    let open = match Request::of(machine) {
        Request::None => return only(last),
        Request::New(new) => {
            let name = names::migration(machine.name(), machine.uid(), &new.request);
            let open = LastMigration {
                migration: Some(name),
                ..new
            };
            return only(Some(match movable(machine, block, observed, &open) {
                Ok(_) => open,
                Err(why) => ended(open, MigrationResult::Refused, &why),
            }));
        }
        Request::Open(open) => open,
    };
    let last = match &observed.migration {
        RequestedMigration::Found(migration) => status_of_migration(open, migration, observed),
        RequestedMigration::Unknown => open,
        RequestedMigration::Absent if open.message.is_some() => {
            let why = "its VirtualMachineInstanceMigration was deleted before it had ended";
            ended(open, MigrationResult::Failed, why)
        }
        RequestedMigration::Absent => {
            let guest = movable(machine, block, observed, &open);
            match refused(refusal).map_or(guest, Err) {
                Err(why) => ended(open, MigrationResult::Refused, &why),
                Ok(guest) => {
                    let identity = machine.identity(&observed.cluster);
                    let name = open.migration.as_deref().unwrap_or_default();
                    let desired = kubevirt::migration(&identity, name, open.node.as_deref());
                    let action = Action::CreateMigration {
                        instance: guest.uid().to_owned(),
                        desired: Box::new(desired),
                    };
                    return Migration {
                        last: Some(open),
                        action: Some(action),
                    };
                }
            }
        }
    };
    only(Some(last))
}

/// The guest that is to be moved; else why it cannot be, as far as that is known, and what to do.
fn movable<'a>(
    machine: &Machine,
    block: &Normalized,
    observed: &'a Observed,
    open: &LastMigration,
) -> Result<&'a Instance, String> {
    let guest = instance(machine, observed).filter(|instance| instance.runs());
    let guest = guest.filter(|_| block.power_state == PowerState::Running);
    let guest = guest.ok_or("the guest does not run: request the migration again when it does")?;
    if let Some(node) = &open.node
        && guest.status.node_name.as_ref() == Some(node)
    {
        return Err(format!(
            "the guest runs on {node} already: name another node in the annotation {}, or remove it",
            names::ANNOTATION_MIGRATE_TO
        ));
    }
    let Some(obstacle) = guest.migration_obstacle() else {
        return Ok(guest);
    };
    let message = if obstacle.message.is_empty() {
        &obstacle.reason
    } else {
        &obstacle.message
    };
    Err(format!(
        "KubeVirt cannot move the guest while it runs ({message}): remove the obstacle, or let it start on another node with spec.nodeSelector and a restart"
    ))
}

/// How far a migration is that KubeVirt has.
fn status_of_migration(
    open: LastMigration,
    migration: &GuestMigration,
    observed: &Observed,
) -> LastMigration {
    let status = &migration.status;
    let of_instance = observed.instance.as_deref();
    let of_instance = of_instance.and_then(|it| it.status.migration_state.as_ref());
    let state = status.migration_state.as_ref().or(of_instance);
    match status.phase.as_str() {
        "Succeeded" => {
            let target = state.and_then(|state| state.target_node.as_deref());
            let message = format!("the guest runs on {}", target.unwrap_or("another node"));
            ended(open, MigrationResult::Succeeded, &message)
        }
        "Failed" => {
            let why = state.and_then(|state| state.failure_reason.as_deref());
            let message = format!(
                "the guest is where it was: {}; request the migration again with another text",
                why.unwrap_or("KubeVirt gives no reason")
            );
            ended(open, MigrationResult::Failed, &message)
        }
        phase => {
            let message = match phase {
                "" | "Pending" => "KubeVirt has not begun it: it moves a few guests at a time",
                "Scheduling" => {
                    "a node for the guest is looked for: delete the VirtualMachineInstanceMigration to cancel"
                }
                _ => "the guest moves",
            };
            LastMigration {
                message: Some(message.to_owned()),
                ..open
            }
        }
    }
}
