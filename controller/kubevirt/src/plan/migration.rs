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
use common::bounds::TEXT_MAX;
use common::names;
use common::render::kubevirt;

use super::action::Action;
use super::observed::{Observed, RequestedMigration};
use super::restart::instance;
use crate::objects::{GuestMigration, Instance, find_condition};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::{Refusal, Subject};

/// Reason of a failed action that the API server or KubeVirt refuses for good.
pub(crate) const REFUSED: &str = "MigrationRefused";

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
    if !observed.kubevirt {
        return Migration { last, action: None };
    }
    if let Some(request) = machine.new_migration_request() {
        let name = names::migration(machine.name(), machine.uid(), &request);
        let open = LastMigration {
            request,
            node: machine.migration_target().map(ToOwned::to_owned),
            migration: Some(name),
            ..LastMigration::default()
        };
        let last = match obstacle(machine, block, observed, open.node.as_deref()) {
            Some(why) => ended(open, MigrationResult::Refused, &why),
            None => open,
        };
        let last = Some(last);
        return Migration { last, action: None };
    }
    let Some((open, name)) = last
        .clone()
        .and_then(|last| last.migration.clone().map(|name| (last, name)))
    else {
        return Migration { last, action: None };
    };
    let was_seen = open.message.is_some();
    let last = match &observed.migration {
        RequestedMigration::Found(migration) => followed(open, migration, observed),
        RequestedMigration::Unknown => open,
        RequestedMigration::Absent if was_seen => {
            let why = "its VirtualMachineInstanceMigration was deleted before it had ended";
            ended(open, MigrationResult::Failed, why)
        }
        RequestedMigration::Absent => {
            let is_final =
                |it: &&Refusal| it.subject == Subject::Migration && it.reason == Some(REFUSED);
            let refused = refusal.filter(is_final).map(|it| it.message.clone());
            let node = open.node.as_deref();
            let Some(why) = refused.or_else(|| obstacle(machine, block, observed, node)) else {
                let identity = machine.identity(&observed.cluster);
                let desired = Box::new(kubevirt::migration(&identity, &name, node));
                let action = instance(machine, observed).map(|it| Action::CreateMigration {
                    instance: it.uid().to_owned(),
                    desired,
                });
                let last = Some(open);
                return Migration { last, action };
            };
            ended(open, MigrationResult::Refused, &why)
        }
    };
    let last = Some(last);
    Migration { last, action: None }
}

/// Why the guest cannot be moved, as far as that is known, and what to do.
fn obstacle(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    node: Option<&str>,
) -> Option<String> {
    let runs = |instance: &&Instance| instance.status.phase == "Running" && !instance.is_deleting();
    let Some(instance) = instance(machine, observed)
        .filter(runs)
        .filter(|_| block.power_state == PowerState::Running)
    else {
        return Some("the guest does not run: request the migration again when it does".to_owned());
    };
    let present = instance.status.node_name.as_deref();
    if let Some(node) = node.filter(|node| present == Some(*node)) {
        return Some(format!(
            "the guest runs on {node} already: name another node in the annotation {}, or remove it",
            names::ANNOTATION_MIGRATE_TO
        ));
    }
    unmovable(instance)
}

/// Why KubeVirt cannot move the guest of an instance while it runs, and what to do.
pub(crate) fn unmovable(instance: &Instance) -> Option<String> {
    let obstacle = find_condition(&instance.status.conditions, "LiveMigratable", "False")?;
    let message = if obstacle.message.is_empty() {
        &obstacle.reason
    } else {
        &obstacle.message
    };
    Some(format!(
        "KubeVirt cannot move the guest while it runs ({message}): remove the obstacle, or let it start on another node with spec.nodeSelector and a restart"
    ))
}

/// How far a migration is that KubeVirt has.
fn followed(open: LastMigration, migration: &GuestMigration, observed: &Observed) -> LastMigration {
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

fn ended(last: LastMigration, result: MigrationResult, message: &str) -> LastMigration {
    LastMigration {
        migration: None,
        result: Some(result),
        message: Some(message.chars().take(TEXT_MAX).collect()),
        ..last
    }
}
