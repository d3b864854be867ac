//! What holds of every plan, from any state a cluster can be in.

use std::collections::BTreeMap;

use common::names;
use proptest::prelude::*;

use super::worlds::a_world;
use crate::environment::{World, claims_of};
use crate::objects::{Claim, DataVolume};
use crate::plan::action::{Action, Plan};
use controller_core::laws::Refused;
use controller_core::objects::Meta;
use controller_core::plan::Step;

/// What must still be there, as it was, whatever happens: all that is not ours.
fn foreign(world: &World) -> Vec<(String, String)> {
    let claims = world.claims.values();
    let strangers = claims
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
    let imports = world.data_volumes.values().filter(|import| {
        import.label(names::LABEL_MANAGED_BY).is_none()
            || import.machine_uid() == Some("uid-of-living")
    });
    let imports = imports.map(|import| {
        let name = format!("DataVolume {}", import.name());
        // Without its version: CDI goes on.
        let metadata = &import.metadata;
        (
            name,
            format!("{:?} {:?}", metadata.labels, metadata.annotations),
        )
    });
    let vm = world
        .vm
        .iter()
        .filter(|vm| !vm.belongs_to("web", "uid-of-web"))
        .map(|vm| ("VirtualMachine".to_owned(), format!("{:?}", vm.metadata)));
    let secret = world
        .secret
        .iter()
        .filter(|secret| !secret.belongs_to("web", "uid-of-web"))
        .map(|secret| ("Secret".to_owned(), format!("{secret:?}")));
    strangers.chain(imports).chain(vm).chain(secret).collect()
}

fn whose(world: &World, object: &impl Meta) -> Option<(String, &'static str)> {
    let uid = object.uid().to_owned();
    if object.belongs_to("web", "uid-of-web") {
        return Some((uid, "ours"));
    }
    let free = object
        .machine_uid()
        .is_none_or(|uid| !world.living.contains(uid));
    (free && object.machine() == Some("web")).then_some((uid, "adoptable"))
}

/// Uids an action may change, in a world.
fn ours(world: &World) -> BTreeMap<String, &'static str> {
    let mut uids = BTreeMap::new();
    uids.extend(
        world
            .claims
            .values()
            .filter_map(|claim| whose(world, claim)),
    );
    let imports = world.data_volumes.values();
    uids.extend(imports.filter_map(|import| whose(world, import)));
    let vm = world
        .vm
        .iter()
        .filter(|vm| vm.belongs_to("web", "uid-of-web"));
    uids.extend(vm.map(|vm| (vm.uid().to_owned(), "ours")));
    let secret = world.secret.iter();
    let secret = secret.filter(|secret| secret.belongs_to("web", "uid-of-web"));
    uids.extend(secret.map(|secret| (secret.uid().to_owned(), "ours")));
    let attachments = world.attachments.values();
    uids.extend(attachments.map(|attachment| (attachment.uid().to_owned(), "ours")));
    uids
}

/// Whether there is a disk in the claim: what is being imported is none yet.
fn is_whole(world: &World, claim: &Claim) -> bool {
    let import = world.data_volumes.get(claim.name());
    claim
        .data_volume()
        .is_none_or(|uid| import.is_some_and(|import| import.uid() == uid && import.is_finished()))
}

fn check_targets(world: &World, plan: &Plan) {
    let ours = ours(world);
    let may = |uid: &str, adopts: bool| {
        let found = ours.get(uid).copied();
        assert!(
            found == Some("ours") || (adopts && found == Some("adoptable")),
            "{uid} is not ours: {plan:#?}"
        );
    };
    for action in &plan.actions {
        match action {
            Action::DeleteVm { uid } | Action::SetRunStrategy { uid, .. } => may(uid, false),
            Action::DeleteClaim(claim) => may(claim.exact().uid(), false),
            Action::ReleaseClaim { uid, .. } => may(uid, true),
            Action::DeleteDataVolume(import) => may(import.exact().uid(), true),
            Action::PatchClaim(patch) => may(&patch.uid, true),
            Action::UpdateVm(wish) => may(wish.metadata.uid.as_ref().unwrap(), false),
            Action::UpdateSecret(wish) => may(wish.metadata.uid.as_ref().unwrap(), false),
            Action::UpdateAttachment(wish) => may(wish.metadata.uid.as_ref().unwrap(), false),
            Action::DeleteInstance { uid } => {
                let ours = world
                    .vm
                    .as_ref()
                    .is_none_or(|vm| vm.belongs_to("web", "uid-of-web"));
                let instance = world.instance.as_ref();
                let instance = instance.filter(|live| ours && live.machine() == Some("web"));
                assert_eq!(instance.map(Meta::uid), Some(uid.as_str()), "{plan:#?}");
            }
            Action::CreateAttachment(_)
            | Action::CreateClaim(_)
            | Action::CreateDataVolume(_)
            | Action::CreateSecret(_)
            | Action::CreateVm(_)
            | Action::ConfirmGuestGone => {}
        }
    }
}

/// Whether any guest has the claim as a disk, whosever it is.
fn is_used(world: &World, claim: &str) -> bool {
    let vm = world.vm.as_ref();
    let instance = world.instance.as_ref();
    vm.is_some_and(|vm| claims_of(vm).any(|used| used == claim))
        || instance.is_some_and(|instance| instance.uses(claim))
}

/// Carries out a plan step by step and looks, before each, that it may be done in this world.
fn carry_out_watched(world: &mut World, plan: &Plan, steps: usize) {
    for step in plan.steps().take(steps) {
        let vm = world
            .vm
            .as_ref()
            .filter(|vm| vm.belongs_to("web", "uid-of-web"));
        let instance = world.vm.is_none() || vm.is_some();
        let instance = world.instance.as_ref().filter(|_| instance);
        match &step {
            Step::Act(Action::DeleteClaim(exact)) => {
                let exact = exact.exact();
                let (name, version) = (exact.name(), Some(exact.version()));
                let in_use = is_used(world, name);
                let claim = world.claims.get(name);
                // One that has changed since is refused.
                let claim =
                    claim.filter(|claim| claim.metadata.resource_version.as_deref() == version);
                if claim.is_some() && in_use {
                    assert_eq!(
                        world.step(&step),
                        Err(Refused),
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
                let live = world.data_volumes.get(name);
                let live = live.filter(|it| it.uid() == exact.uid());
                let goes = live.filter(|it| it.metadata.resource_version.as_deref() == version);
                let finished = goes.is_some_and(DataVolume::is_finished);
                assert!(!finished, "{name} has its image: {plan:#?}");
                if goes.is_some() && is_used(world, name) {
                    assert_eq!(
                        world.step(&step),
                        Err(Refused),
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
        if world.step(&step).is_err() {
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

    /// What a plan did needs no doing again. Only disks that the VirtualMachine has just let go are
    /// let go by the next one, and a guest to be restarted goes when that is written down.
    #[test]
    fn a_plan_that_was_carried_out_leaves_nothing_to_do(mut world in a_world()) {
        let plan = world.plan();
        let all = plan.steps().count();
        let before = world.machine().status.last_restart.clone();
        let done = world.carry_out(&plan, all);
        prop_assert_eq!(done.len(), all, "refused: {:#?}", plan);
        let changed = plan.actions.iter().any(|action| matches!(action, Action::UpdateVm(_)));
        if changed || world.machine().status.last_restart != before {
            let farewells = world.plan();
            let all = farewells.actions.len();
            prop_assert_eq!(world.carry_out(&farewells, all).len(), all);
        }
        let again = world.plan();
        prop_assert_eq!(&again.actions, &[]);
        prop_assert_eq!(&again.status, &None);
    }

    /// What the plan does, it does to what is ours.
    #[test]
    fn nothing_of_others_is_touched(mut world in a_world(), deleted in any::<bool>()) {
        if deleted && world.machine().has_finalizer(names::FINALIZER) {
            world.delete_machine();
        }
        let before = foreign(&world);
        let plan = world.plan();
        check_targets(&world, &plan);
        let all = plan.steps().count();
        world.carry_out(&plan, all);
        prop_assert_eq!(foreign(&world), before);
    }

    /// From any state, with a crash anywhere and KubeVirt as slow as it likes, a deletion ends, and
    /// in order.
    #[test]
    fn a_deletion_ends_from_anywhere_and_in_order(
        mut world in a_world(),
        crashes in prop::collection::vec((0..6_usize, any::<bool>()), 0..20),
    ) {
        world.machine_mut().metadata.annotations = None;
        world.machine_mut().metadata.finalizers = Some(vec![names::FINALIZER.into()]);
        let kept: Vec<_> = world
            .claims
            .values()
            .filter(|claim| claim.annotation(names::ANNOTATION_RECLAIM_POLICY) != Some("Delete"))
            .filter(|claim| is_whole(&world, claim))
            .map(|claim| claim.uid().to_owned())
            .collect();
        let before = foreign(&world);
        world.delete_machine();
        for (steps, moves) in crashes {
            if world.machine.is_none() {
                break;
            }
            let plan = world.plan();
            carry_out_watched(&mut world, &plan, steps);
            if moves && world.vm.as_ref().is_some_and(Meta::is_deleting) {
                world.kubevirt_moves();
            }
        }
        for _ in 0..10 {
            if world.machine.is_none() {
                break;
            }
            let plan = world.plan();
            let all = plan.steps().count();
            carry_out_watched(&mut world, &plan, all);
            if world.vm.as_ref().is_none_or(Meta::is_deleting) {
                world.kubevirt_moves();
            }
        }
        prop_assert!(world.machine.is_none(), "it stays for ever: {:#?}", world.plan());
        world.collect_garbage();
        let left: Vec<_> = world.claims.values().map(|claim| claim.uid().to_owned()).collect();
        prop_assert!(kept.iter().all(|uid| left.contains(uid)), "{:?} of {:?}", left, kept);
        let after = foreign(&world);
        // Another's VirtualMachine may have been on its way out.
        let mut kept = before.iter().filter(|(name, _)| name != "VirtualMachine");
        prop_assert!(kept.all(|object| after.contains(object)));
        let ours = world.claims.values().filter(|claim| {
            claim.belongs_to("web", "uid-of-web") && !claim.is_deleting()
        });
        prop_assert_eq!(ours.count(), 0);
    }

    /// Caches that are behind, by as much as they like, cost no disk that is used.
    #[test]
    fn plans_of_yesterday_do_no_harm(
        mut world in a_world(),
        steps in prop::collection::vec((0..4_usize, 0..8_usize, any::<bool>()), 1..20),
        deleted_at in 0..20_usize,
    ) {
        let before = foreign(&world);
        let mut past = vec![world.clone()];
        for (at, (age, actions, moves)) in steps.into_iter().enumerate() {
            if at == deleted_at {
                world.machine_mut().metadata.annotations = None;
                world.delete_machine();
            }
            if world.machine.is_none() {
                break;
            }
            let seen = &past[past.len().saturating_sub(age + 1)];
            let plan = seen.plan();
            carry_out_watched(&mut world, &plan, actions);
            if moves && world.vm.is_some() {
                world.kubevirt_moves();
            }
            past.push(world.clone());
            if world.machine.is_none() {
                break;
            }
        }
        let after = foreign(&world);
        for object in before.iter().filter(|(name, _)| name.starts_with("web-")) {
            prop_assert!(after.contains(object), "{object:?} is not in {after:?}");
        }
    }
}
