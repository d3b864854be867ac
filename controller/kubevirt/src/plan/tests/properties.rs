//! Properties of every plan, from any state of a cluster.

use std::collections::BTreeMap;

use common::names;
use proptest::prelude::*;

use super::environments::any_environment;
use crate::environment::{FakeCluster, claims_of};
use crate::objects::{Claim, DataVolume};
use crate::plan::action::{Action, Plan};
use controller_core::objects::Meta;
use controller_core::plan::Step;

/// Objects that are not ours, which must stay unchanged.
fn foreign(environment: &FakeCluster) -> Vec<(String, String)> {
    let claims = environment.claims.values();
    let others = claims
        .filter(|claim| {
            claim.label(names::LABEL_MANAGED_BY).is_none()
                || claim.machine_uid() == Some("uid-of-living")
        })
        .map(|claim| {
            (
                claim.name().to_owned(),
                format!("{:?} {:?}", claim.metadata, claim.spec),
            )
        });
    let imports = environment.data_volumes.values().filter(|import| {
        import.label(names::LABEL_MANAGED_BY).is_none()
            || import.machine_uid() == Some("uid-of-living")
    });
    let imports = imports.map(|import| {
        let name = format!("DataVolume {}", import.name());
        // Without the version: CDI continues to update it.
        let metadata = &import.metadata;
        (
            name,
            format!("{:?} {:?}", metadata.labels, metadata.annotations),
        )
    });
    let vm = environment
        .vm
        .iter()
        .filter(|vm| !vm.belongs_to("web", "uid-of-web"))
        .map(|vm| ("VirtualMachine".to_owned(), format!("{:?}", vm.metadata)));
    let secret = environment
        .secret
        .iter()
        .filter(|secret| !secret.belongs_to("web", "uid-of-web"))
        .map(|secret| ("Secret".to_owned(), format!("{secret:?}")));
    others.chain(imports).chain(vm).chain(secret).collect()
}

fn ownership(environment: &FakeCluster, object: &impl Meta) -> Option<(String, &'static str)> {
    let uid = object.uid().to_owned();
    if object.belongs_to("web", "uid-of-web") {
        return Some((uid, "ours"));
    }
    let free = object
        .machine_uid()
        .is_none_or(|uid| !environment.existing_uids.contains(uid));
    (free && object.machine() == Some("web")).then_some((uid, "adoptable"))
}

/// Uids of the objects that an action may change.
fn ours(environment: &FakeCluster) -> BTreeMap<String, &'static str> {
    let mut uids = BTreeMap::new();
    uids.extend(
        environment
            .claims
            .values()
            .filter_map(|claim| ownership(environment, claim)),
    );
    let imports = environment.data_volumes.values();
    uids.extend(imports.filter_map(|import| ownership(environment, import)));
    let vm = environment
        .vm
        .iter()
        .filter(|vm| vm.belongs_to("web", "uid-of-web"));
    uids.extend(vm.map(|vm| (vm.uid().to_owned(), "ours")));
    let secret = environment.secret.iter();
    let secret = secret.filter(|secret| secret.belongs_to("web", "uid-of-web"));
    uids.extend(secret.map(|secret| (secret.uid().to_owned(), "ours")));
    let attachments = environment.attachments.values();
    uids.extend(attachments.map(|attachment| (attachment.uid().to_owned(), "ours")));
    uids
}

/// Whether the claim is a disk: one whose import is unfinished is not.
fn is_whole(environment: &FakeCluster, claim: &Claim) -> bool {
    let import = environment.data_volumes.get(claim.name());
    claim
        .data_volume()
        .is_none_or(|uid| import.is_some_and(|import| import.uid() == uid && import.is_finished()))
}

fn check_targets(environment: &FakeCluster, plan: &Plan) {
    let ours = ours(environment);
    let may = |uid: &str, adopts: bool| {
        let found = ours.get(uid).copied();
        assert!(
            found == Some("ours") || (adopts && found == Some("adoptable")),
            "{uid} is not ours: {plan:#?}"
        );
    };
    for action in &plan.actions {
        match action {
            Action::DeleteVm { uid, .. } | Action::SetRunStrategy { uid, .. } => may(uid, false),
            Action::DeleteClaim(claim) => may(claim.exact().uid(), false),
            Action::ReleaseClaim { uid, .. } => may(uid, true),
            Action::DeleteDataVolume(import) => may(import.exact().uid(), true),
            Action::PatchClaim(patch) => may(&patch.uid, true),
            Action::SetProtection(protection) => may(&protection.uid, true),
            Action::UpdateVm(desired) => may(desired.metadata.uid.as_ref().unwrap(), false),
            Action::UpdateSecret(desired) => may(desired.metadata.uid.as_ref().unwrap(), false),
            Action::UpdateAttachment(desired) => may(desired.metadata.uid.as_ref().unwrap(), false),
            Action::DeleteInstance { uid, .. }
            | Action::ResetGuest { uid }
            | Action::CreateMigration { instance: uid, .. } => {
                let ours = environment
                    .vm
                    .as_ref()
                    .is_none_or(|vm| vm.belongs_to("web", "uid-of-web"));
                let instance = environment.instance.as_ref();
                let instance = instance.filter(|live| ours && live.machine() == Some("web"));
                assert_eq!(instance.map(Meta::uid), Some(uid.as_str()), "{plan:#?}");
            }
            Action::CreateAttachment(_)
            | Action::CreateClaim(_)
            | Action::CreateDataVolume(_)
            | Action::CreateImport(_)
            | Action::CreateSecret(_)
            | Action::CreateVm(_)
            | Action::RemoveRecreateRequest
            | Action::KeepState(_)
            | Action::RemoveDiscardConfirmation
            | Action::ConfirmGuestGone => {}
        }
    }
}

/// Whether any guest has the claim as a disk, of any owner.
fn is_used(environment: &FakeCluster, claim: &str) -> bool {
    let vm = environment.vm.as_ref();
    let instance = environment.instance.as_ref();
    vm.is_some_and(|vm| claims_of(vm).any(|used| used == claim))
        || instance.is_some_and(|instance| instance.uses(claim))
}

/// Carries out a plan and checks before each step that it is allowed in this environment.
fn carry_out_watched(environment: &mut FakeCluster, plan: &Plan, steps: usize) {
    for step in plan.steps().take(steps) {
        let vm = environment
            .vm
            .as_ref()
            .filter(|vm| vm.belongs_to("web", "uid-of-web"));
        let instance = environment.vm.is_none() || vm.is_some();
        let instance = environment.instance.as_ref().filter(|_| instance);
        match &step {
            Step::Act(Action::DeleteClaim(exact)) => {
                let exact = exact.exact();
                let (name, version) = (exact.name(), Some(exact.version()));
                let in_use = is_used(environment, name);
                let claim = environment.claims.get(name);
                // One that has changed since is refused.
                let claim =
                    claim.filter(|claim| claim.metadata.resource_version.as_deref() == version);
                if claim.is_some() && in_use {
                    assert!(
                        environment.step(&step).is_err(),
                        "{name} is in use: {plan:#?}"
                    );
                    return;
                }
                let policy =
                    claim.and_then(|claim| claim.annotation(names::ANNOTATION_RECLAIM_POLICY));
                assert!(
                    matches!(policy, None | Some("Delete")),
                    "{name}: {policy:?}"
                );
            }
            Step::Act(Action::DeleteDataVolume(exact)) => {
                let exact = exact.exact();
                let (name, version) = (exact.name(), Some(exact.version()));
                let live = environment.data_volumes.get(name);
                let live = live.filter(|it| it.uid() == exact.uid());
                let removed = live.filter(|it| it.metadata.resource_version.as_deref() == version);
                let finished = removed.is_some_and(DataVolume::is_finished);
                assert!(!finished, "{name} has its image: {plan:#?}");
                if removed.is_some() && is_used(environment, name) {
                    assert!(
                        environment.step(&step).is_err(),
                        "{name} is in use: {plan:#?}"
                    );
                    return;
                }
            }
            Step::RemoveFinalizer => {
                assert!(
                    vm.is_none() && instance.is_none(),
                    "the guest is there: {plan:#?}"
                );
            }
            _ => {}
        }
        if environment.step(&step).is_err() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A plan that was carried out leaves nothing to do, with two exceptions: disks that the VirtualMachine has just
    /// lost are released by the next plan, and a guest is restarted after the request was recorded.
    #[test]
    fn a_plan_that_was_carried_out_leaves_nothing_to_do(mut environment in any_environment()) {
        let plan = environment.plan();
        let all = plan.steps().count();
        let before = environment.machine().status.last_restart.clone();
        let done = environment.carry_out(&plan, all);
        prop_assert_eq!(done.len(), all, "refused: {:#?}", plan);
        let changed = plan.actions.iter().any(|action| matches!(action, Action::UpdateVm(_)));
        if changed || environment.machine().status.last_restart != before {
            let releases = environment.plan();
            let all = releases.actions.len();
            prop_assert_eq!(environment.carry_out(&releases, all).len(), all);
        }
        let again = environment.plan();
        prop_assert_eq!(&again.actions, &[]);
        prop_assert_eq!(&again.status, &None);
    }

    /// A plan changes only objects of ours.
    #[test]
    fn a_plan_changes_no_object_of_others(mut environment in any_environment(), deleted in any::<bool>()) {
        if deleted && environment.machine().has_finalizer(names::FINALIZER) {
            environment.delete_machine();
        }
        let before = foreign(&environment);
        let plan = environment.plan();
        check_targets(&environment, &plan);
        let all = plan.steps().count();
        environment.carry_out(&plan, all);
        prop_assert_eq!(foreign(&environment), before);
    }

    /// From any state, with an interruption at any step and KubeVirt arbitrarily slow, a deletion ends and keeps its
    /// order.
    #[test]
    fn a_deletion_ends_from_any_state_and_in_order(
        mut environment in any_environment(),
        crashes in prop::collection::vec((0..6_usize, any::<bool>()), 0..20),
    ) {
        environment.machine_mut().metadata.annotations = None;
        environment.machine_mut().metadata.finalizers = Some(vec![names::FINALIZER.into()]);
        let kept: Vec<_> = environment
            .claims
            .values()
            .filter(|claim| claim.annotation(names::ANNOTATION_RECLAIM_POLICY) != Some("Delete"))
            .filter(|claim| is_whole(&environment, claim))
            .map(|claim| claim.uid().to_owned())
            .collect();
        let before = foreign(&environment);
        environment.delete_machine();
        for (steps, moves) in crashes {
            if environment.machine.is_none() {
                break;
            }
            let plan = environment.plan();
            carry_out_watched(&mut environment, &plan, steps);
            if moves && environment.vm.as_ref().is_some_and(Meta::is_deleting) {
                environment.advance_kubevirt();
            }
        }
        for _ in 0..10 {
            if environment.machine.is_none() {
                break;
            }
            let plan = environment.plan();
            let all = plan.steps().count();
            carry_out_watched(&mut environment, &plan, all);
            if environment.vm.as_ref().is_none_or(Meta::is_deleting) {
                environment.advance_kubevirt();
            }
        }
        prop_assert!(environment.machine.is_none(), "it stays for ever: {:#?}", environment.plan());
        environment.collect_garbage();
        let left: Vec<_> = environment.claims.values().map(|claim| claim.uid().to_owned()).collect();
        prop_assert!(kept.iter().all(|uid| left.contains(uid)), "{:?} of {:?}", left, kept);
        let after = foreign(&environment);
        // Another owner's VirtualMachine may have been under deletion.
        let mut kept = before.iter().filter(|(name, _)| name != "VirtualMachine");
        prop_assert!(kept.all(|object| after.contains(object)));
        let ours = environment.claims.values().filter(|claim| {
            claim.belongs_to("web", "uid-of-web") && !claim.is_deleting()
        });
        prop_assert_eq!(ours.count(), 0);
    }

    /// Plans from arbitrarily stale caches delete no disk that is used.
    #[test]
    fn plans_from_stale_caches_delete_no_disk_in_use(
        mut environment in any_environment(),
        steps in prop::collection::vec((0..4_usize, 0..8_usize, any::<bool>()), 1..20),
        deleted_at in 0..20_usize,
    ) {
        let before = foreign(&environment);
        let mut past = vec![environment.clone()];
        for (at, (age, actions, moves)) in steps.into_iter().enumerate() {
            if at == deleted_at {
                environment.machine_mut().metadata.annotations = None;
                environment.delete_machine();
            }
            if environment.machine.is_none() {
                break;
            }
            let seen = &past[past.len().saturating_sub(age + 1)];
            let plan = seen.plan();
            carry_out_watched(&mut environment, &plan, actions);
            if moves && environment.vm.is_some() {
                environment.advance_kubevirt();
            }
            past.push(environment.clone());
            if environment.machine.is_none() {
                break;
            }
        }
        let after = foreign(&environment);
        for object in before.iter().filter(|(name, _)| name.starts_with("web-")) {
            prop_assert!(after.contains(object), "{object:?} is not in {after:?}");
        }
    }
}
