//! A requested migration moves the guest once, and says how it ended.

use std::collections::BTreeSet;

use common::api::choice::{MigrationResult, PowerState};
use common::api::status::LastMigration;
use common::names;
use common::quantity::Bytes;
use controller_core::backend::Growth;
use controller_core::fixtures::{annotate, block, machine, pause};
use controller_core::plan::{Now, Refusal, Subject};
use controller_core::reconcile::plan;
use proptest::prelude::*;
use serde_json::json;
use time::OffsetDateTime;

use super::edit;
use crate::backend::KubeVirt;
use crate::environment::{FakeCluster, decode};
use crate::plan::action::{Action, Plan};

fn running() -> FakeCluster {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    environment
}

fn ask(environment: &mut FakeCluster, text: &str) {
    let key = names::ANNOTATION_MIGRATE_REQUESTED;
    annotate(environment.machine_mut(), key, text);
}

fn last(environment: &FakeCluster) -> &LastMigration {
    let status = &environment.machine().status;
    status.last_migration.as_ref().unwrap()
}

fn result(environment: &FakeCluster) -> (Option<MigrationResult>, &str) {
    let last = last(environment);
    assert_ne!(last.result.is_some(), last.migration.is_some(), "{last:?}");
    (last.result, last.message.as_deref().unwrap_or_default())
}

fn set_migratable(environment: &mut FakeCluster, status: &str) {
    let condition = json!({
        "type": "LiveMigratable", "status": status, "reason": "DisksNotLiveMigratable",
        "message": "a PVC is not shared",
    });
    let instance = environment.instance.as_mut().unwrap();
    instance.status.conditions = vec![decode(condition)];
}

fn plan_refused(environment: &FakeCluster, reason: Option<&'static str>) -> Plan {
    let refusal = Refusal {
        subject: Subject::Migration,
        reason,
        message: "in-flight migration detected".to_owned(),
    };
    plan::<KubeVirt>(
        environment.machine(),
        &environment.observed(),
        Some(&refusal),
        Growth::Permitted,
        Now(OffsetDateTime::UNIX_EPOCH),
    )
}

#[test]
fn a_request_moves_the_guest_once_to_the_named_node() {
    let mut environment = running();
    set_migratable(&mut environment, "True");
    let key = names::ANNOTATION_MIGRATE_TO;
    annotate(environment.machine_mut(), key, "node-2");
    ask(&mut environment, "new switch");
    // The status is written first and names the object.
    assert_eq!(environment.pass(), [""; 0]);
    let name = last(&environment).migration.clone().unwrap();
    assert_eq!(result(&environment), (None, ""));
    environment.settle();
    let guest = &environment.instance.as_ref().unwrap().status;
    assert_eq!(guest.node_name.as_deref(), Some("node-2"));
    let (ended, message) = result(&environment);
    assert_eq!(ended, Some(MigrationResult::Succeeded));
    assert!(message.starts_with("the guest runs on"), "{message}");
    assert_eq!(last(&environment).node.as_deref(), Some("node-2"));

    // KubeVirt removes what has ended; the same text moves the guest no second time.
    environment.migration = None;
    environment.settle();
    assert!(environment.migration.is_none());
    ask(&mut environment, "back");
    let annotations = environment.machine_mut().metadata.annotations.as_mut();
    annotations.unwrap().remove(key);
    environment.pass();
    assert_ne!(last(&environment).migration.as_ref(), Some(&name));
    assert_eq!(last(&environment).node, None);
}

/// A quota may refuse the growth in every pass.
#[test]
fn a_growth_keeps_neither_a_migration_nor_an_answer_waiting() {
    let mut environment = running();
    set_migratable(&mut environment, "True");
    let key = names::ANNOTATION_DISCARD_STATE;
    annotate(environment.machine_mut(), key, "tpm");
    ask(&mut environment, "new switch");
    edit(&mut environment, |block| {
        block.disks[0].size = Bytes::mib(50 * 1024);
    });
    let status = environment.plan().status.unwrap();
    environment.machine_mut().status = status;
    let actions = environment.plan().actions;
    let at = |is: fn(&Action) -> bool| actions.iter().position(is).unwrap();
    let grows = |it: &Action| matches!(it, Action::PatchClaim(patch) if patch.storage.is_some());
    let growth = at(grows);
    assert!(at(|it| matches!(it, Action::CreateMigration { .. })) < growth);
    assert!(at(|it| matches!(it, Action::RemoveDiscardConfirmation)) < growth);
}

#[test]
fn what_cannot_be_moved_is_refused_with_the_reason_and_nothing_is_created() {
    let refused = |prepare: &dyn Fn(&mut FakeCluster)| {
        let mut environment = running();
        set_migratable(&mut environment, "True");
        prepare(&mut environment);
        ask(&mut environment, "now");
        environment.settle();
        assert!(environment.migration.is_none());
        let (ended, message) = result(&environment);
        assert_eq!(ended, Some(MigrationResult::Refused), "{message}");
        message.to_owned()
    };
    let stuck = refused(&|it| set_migratable(it, "False"));
    let expected = "KubeVirt cannot move the guest while it runs (a PVC is not shared)";
    assert!(stuck.starts_with(expected), "{stuck}");
    let off = refused(&|it| {
        edit(it, |block| block.power_state = PowerState::Stopped);
        it.settle();
    });
    assert!(off.starts_with("the guest does not run"), "{off}");
    let key = names::ANNOTATION_MIGRATE_TO;
    let here = refused(&|it| annotate(it.machine_mut(), key, "node-1"));
    assert!(
        here.starts_with("the guest runs on node-1 already"),
        "{here}"
    );
}

#[test]
fn a_migration_that_is_refused_fails_or_is_deleted_is_not_repeated() {
    let asked = || {
        let mut environment = running();
        ask(&mut environment, "now");
        environment.pass();
        environment
    };
    let mut refused = asked();
    let plan = plan_refused(&refused, Some("MigrationRefused"));
    refused.machine_mut().status = plan.status.unwrap();
    let message = "in-flight migration detected";
    assert_eq!(result(&refused), (Some(MigrationResult::Refused), message));
    assert_eq!(refused.pass(), [""; 0]);
    // For a passing reason it is tried again.
    let again = plan_refused(&asked(), None).actions;
    assert!(
        matches!(*again, [Action::CreateMigration { .. }]),
        "{again:?}"
    );

    let mut failed = asked();
    failed.pass();
    let state = json!({"completed": true, "failed": true, "failureReason": "no room"});
    failed.migration.as_mut().unwrap().status =
        decode(json!({"phase": "Failed", "migrationState": state}));
    failed.settle();
    let (ended, message) = result(&failed);
    assert_eq!(ended, Some(MigrationResult::Failed));
    assert!(
        message.starts_with("the guest is where it was: no room"),
        "{message}"
    );

    let mut cancelled = asked();
    cancelled.pass();
    cancelled.migration.as_mut().unwrap().status = decode(json!({"phase": "Scheduling"}));
    cancelled.pass();
    let (_, message) = result(&cancelled);
    assert!(
        message.starts_with("a node for the guest is looked for"),
        "{message}"
    );
    cancelled.migration = None;
    cancelled.settle();
    let (ended, message) = result(&cancelled);
    assert_eq!(ended, Some(MigrationResult::Failed));
    assert!(
        message.contains("was deleted before it had ended"),
        "{message}"
    );
}

#[test]
fn a_paused_machine_keeps_its_guest_where_it_is() {
    let mut environment = running();
    pause(environment.machine_mut());
    ask(&mut environment, "now");
    environment.settle();
    assert_eq!(environment.machine().status.last_migration, None);
}

proptest! {
    /// However often the sequence is interrupted, one request creates one object.
    #[test]
    fn one_request_creates_one_migration(
        steps in prop::collection::vec((0_usize..3, any::<bool>()), 0..8),
    ) {
        let mut environment = running();
        ask(&mut environment, "now");
        let mut created = BTreeSet::new();
        for (actions, moves) in steps {
            let plan = environment.plan();
            environment.carry_out(&plan, actions);
            if moves {
                environment.advance_kubevirt();
            }
            created.extend(environment.migration.iter().map(|it| it.metadata.uid.clone()));
        }
        environment.settle();
        created.extend(environment.migration.iter().map(|it| it.metadata.uid.clone()));
        prop_assert_eq!(created.len(), 1);
        prop_assert_eq!(result(&environment).0, Some(MigrationResult::Succeeded));
    }
}
