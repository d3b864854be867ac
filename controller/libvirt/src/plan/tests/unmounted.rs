//! Deletion while the file system of an active pool is not mounted: what is in it is recorded.

use common::api::left_volumes::Tombstone;
use common::bounds::TOMBSTONES_OF_NAMESPACE_MAX;
use common::quantity::Bytes;
use controller_core::client::Remedy;
use controller_core::plan::{Refusal, Subject};

use super::lost::{switch_off, unmount};
use super::*;
use crate::plan::action::Action;

/// The names of the disks that the first plan with a record lists: as kept, and as to be deleted.
fn recorded(env: &mut Environment) -> (Vec<String>, Option<Vec<String>>) {
    let plan = env.plan().unwrap();
    let (mut kept, mut deleted) = (vec![], None);
    for action in &plan.actions {
        match action {
            Action::RecordKept { volumes, .. } => {
                kept.extend(volumes.iter().map(|it| it.disk.clone()));
            }
            Action::RecordOrphan { volumes, .. } => {
                let volumes = volumes.iter().flatten();
                let names = volumes.filter_map(|it| crate::images::names::disk_of(&it.volume));
                deleted = Some(names.map(str::to_owned).collect());
            }
            _ => {}
        }
    }
    (kept, deleted)
}

fn off() -> Environment {
    let mut env = rich();
    env.settle();
    switch_off(&env);
    env
}

#[test]
fn volumes_of_a_pool_that_shows_none_are_kept_or_in_a_tombstone() {
    let mut env = off();
    unmount(&env);
    env.settle();
    env.delete();
    let (kept, deleted) = recorded(&mut env);
    assert_eq!(kept, ["data"]);
    assert_eq!(deleted.unwrap(), ["root", "copy"]);
    let done = env.settle();
    assert!(env.machine.is_none());
    assert_eq!(
        done,
        [
            "recorded 1 kept volumes on LibvirtHost alpha",
            "recorded a tombstone on LibvirtHost alpha",
            "removed the finalizer"
        ]
    );
    assert_eq!(state(&env), Some(State::ShutOff));
}

/// A tenant cannot fill the list for all others, and its quota counts what its Machines left.
#[test]
fn a_deletion_waits_while_the_host_lists_too_many_tombstones_of_its_namespace() {
    let mut env = off();
    unmount(&env);
    env.settle();
    let others = (0..TOMBSTONES_OF_NAMESPACE_MAX).map(|it| Tombstone {
        machine: format!("default/gone-{it}"),
        uid: format!("uid-{it}"),
        since: "2026-11-28T09:00:00Z".into(),
        volumes: None,
    });
    env.object.status.tombstones = others.collect();
    env.delete();
    let plan = env.plan().unwrap();
    let refused = plan.steps().find_map(|step| env.step(&step).err()).unwrap();
    assert_eq!(refused.remedy, Remedy::UserAction);
    let refusal = Refusal {
        subject: Subject::Machine,
        reason: refused.reason,
        message: refused.message,
    };
    let status = env.plan_after(Some(&refusal)).unwrap().status.unwrap();
    let ready = status.conditions.iter().find(|it| it.kind == "Ready");
    let message = &ready.unwrap().message;
    for part in [
        "LibvirtHost 'alpha' lists 256 tombstones of namespace 'default'",
        "the deletion of this Machine waits until then",
    ] {
        assert!(message.contains(part), "{message}");
    }

    env.object.status.tombstones.pop();
    env.settle();
    assert!(env.machine.is_none());
    let recorded = env.object.status.tombstones.last().unwrap();
    let volumes = recorded.volumes.iter().flatten();
    let sizes: Vec<_> = volumes.map(|volume| volume.size).collect();
    assert_eq!(sizes, [Some(Bytes::mib(20 * 1024)); 2]);
}

#[test]
fn a_deletion_that_was_interrupted_after_its_last_volume_leaves_no_record() {
    let mut env = off();
    env.delete();
    // As if the pass had ended before the finalizer was removed.
    env.host.state().domains.clear();
    unmount(&env);
    assert_eq!(recorded(&mut env), (vec![], None));
    env.settle();
    assert!(env.machine.is_none());
}

/// The pool shows other volumes of the Machine, so it is mounted.
#[test]
fn a_volume_that_is_missing_beside_others_of_its_machine_is_gone() {
    let mut env = off();
    {
        let mut host = env.host.state();
        let volumes = &mut host.pools.get_mut(POOL).unwrap().volumes;
        volumes.retain(|name, _| !name.contains(".root.") && !name.contains(".data."));
    }
    env.delete();
    assert_eq!(recorded(&mut env), (vec![], None));
    env.settle();
    assert_eq!(state(&env), None);
}

#[test]
fn a_volume_whose_loss_the_user_confirmed_is_gone() {
    for annotation in [
        names::ANNOTATION_RECREATE_VOLUME,
        names::ANNOTATION_RELEASE_VOLUME,
    ] {
        let mut env = off();
        unmount(&env);
        env.delete();
        annotate(env.machine_mut(), annotation, "root, copy");
        assert_eq!(recorded(&mut env), (vec!["data".to_owned()], None));
        env.settle();
        assert!(env.machine.is_none());
        assert_eq!(state(&env), None);
    }
}
