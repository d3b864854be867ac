//! Conditions of a Machine that repeat what KubeVirt reports of the running guest: whether and where it can move.
//!
//! They are for a user who drains a node, or who waits for a change that a migration applies. The condition
//! `EvictionRequested` exists since KubeVirt 1.7; before, only `status.evacuationNodeName` has the fact.

use crate::objects::{Instance, MigrationState, find_condition};
use controller_core::conditions::{Fault, Verdict};

/// Type and verdict of each condition that applies.
pub(super) fn mirrored(instance: &Instance) -> impl Iterator<Item = (&'static str, Verdict)> {
    let migrating = instance.status.migration_state.as_ref().and_then(migrating);
    [
        live_migratable(instance).map(|verdict| ("LiveMigratable", verdict)),
        migrating.map(|verdict| ("Migrating", verdict)),
        eviction_requested(instance).map(|fault| ("EvictionRequested", ("True", fault))),
    ]
    .into_iter()
    .flatten()
}

fn live_migratable(instance: &Instance) -> Option<Verdict> {
    let conditions = &instance.status.conditions;
    if find_condition(conditions, "LiveMigratable", "True").is_some() {
        let text = "KubeVirt can move the guest to another node while it runs";
        return Some(("True", Fault::new("LiveMigratable", text)));
    }
    let obstacle = instance.migration_obstacle()?;
    let reason = match obstacle.reason.as_str() {
        "DisksNotLiveMigratable" => "DisksNotLiveMigratable",
        "InterfaceNotLiveMigratable" => "InterfaceNotLiveMigratable",
        _ => "NotLiveMigratable",
    };
    // Without a strategy of its own the guest has that of the cluster, which is None unless it was changed.
    let drain = match instance.spec.eviction_strategy.as_str() {
        "LiveMigrate" | "External" => "a drain of its node waits until the guest is stopped",
        _ => "draining its node shuts it down",
    };
    let message = format!(
        "KubeVirt cannot move the guest to another node while it runs, so {drain}: {}",
        obstacle.message
    );
    let message = message.trim_end_matches([':', ' ']);
    Some(("False", Fault::new(reason, message)))
}

fn migrating(migration: &MigrationState) -> Option<Verdict> {
    let node = |node: &Option<String>| node.clone().unwrap_or_else(|| "another node".to_owned());
    let (source, target) = (node(&migration.source_node), node(&migration.target_node));
    if !migration.completed {
        let text = format!("the guest moves from {source} to {target} while it runs");
        return Some(("True", Fault::new("Migrating", text)));
    }
    migration.failed.then(|| {
        let why = migration.failure_reason.as_deref();
        let text = format!(
            "the last migration, from {source} to {target}, failed, and the guest is where it was: {}",
            why.unwrap_or("KubeVirt gives no reason")
        );
        ("False", Fault::new("MigrationFailed", text))
    })
}

fn eviction_requested(instance: &Instance) -> Option<Fault> {
    let status = &instance.status;
    let node = status.evacuation_node_name.as_deref();
    let node = node.filter(|node| !node.is_empty());
    let is_requested = find_condition(&status.conditions, "EvictionRequested", "True").is_some();
    (is_requested || node.is_some()).then(|| {
        let node = node.or(status.node_name.as_deref()).unwrap_or("its node");
        let next = if instance.spec.eviction_strategy == "External" {
            "KubeVirt leaves that to others (evictionStrategy: External), and the drain waits until the guest was migrated or stopped"
        } else {
            "KubeVirt migrates it"
        };
        Fault::new(
            "EvictionRequested",
            format!("the guest has to leave {node}, which is being drained: {next}"),
        )
    })
}
