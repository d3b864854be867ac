//! Disks whose volume vanished, as when the file system of a pool is not mounted: no blank disk takes its place.

use std::collections::BTreeMap;

use super::faults::at_each_change;
use super::*;
use crate::access::AccessError;
use crate::access::fake::{FakeVolume, When};
use crate::plan::action::Action;

type Content = BTreeMap<String, FakeVolume>;

/// The file system of the pool is not mounted. Returns what is on it.
pub(super) fn unmount(env: &Environment) -> Content {
    let mut host = env.host.state();
    std::mem::take(&mut host.pools.get_mut(POOL).unwrap().volumes)
}

fn mount(env: &Environment, content: Content) {
    env.host.state().pools.get_mut(POOL).unwrap().volumes = content;
}

/// Somebody deletes the volume of a disk.
fn lose(env: &Environment, disk: &str) {
    let mut host = env.host.state();
    let part = format!(".{disk}.");
    let volumes = &mut host.pools.get_mut(POOL).unwrap().volumes;
    volumes.retain(|name, _| !name.contains(&part));
}

/// The host was restarted: no guest runs.
pub(super) fn switch_off(env: &Environment) {
    let mut host = env.host.state();
    let domain = host.domains.get_mut(&domain_uuid(UID)).unwrap();
    (domain.state, domain.reason, domain.live) = (State::ShutOff, 0, None);
}

fn recreate(env: &mut Environment, disks: &str) {
    let annotation = names::ANNOTATION_RECREATE_VOLUME;
    annotate(env.machine_mut(), annotation, disks);
}

fn is_annotated(env: &Environment) -> bool {
    let annotation = names::ANNOTATION_RECREATE_VOLUME;
    let annotations = env.machine().metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(annotation))
}

fn phases(env: &Environment) -> Vec<(&str, &str)> {
    let all = env.machine().status.volumes.iter();
    all.map(|it| (&*it.name, it.phase.as_deref().unwrap_or_default()))
        .collect()
}

fn assert_lost(env: &Environment, what: &str) {
    for kind in ["StorageReady", "Ready"] {
        assert_eq!(reported(env, kind), ("False", "VolumeLost"), "{what}");
    }
}

const REMOVED: &str = "removed the annotation machine.vitistack.io/recreate-volume";

#[test]
fn on_a_pool_without_its_file_system_nothing_is_made_and_no_guest_is_started() {
    let mut env = rich();
    env.settle();
    switch_off(&env);
    let content = unmount(&env);
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls, "{:?}", env.host.calls());
    assert_lost(&env, "not mounted");
    let lost = [("root", "Lost"), ("data", "Lost"), ("copy", "Lost")];
    assert_eq!(phases(&env), lost);
    let message = message(&env, "StorageReady");
    for part in [
        ".root.qcow2' of disk 'root' is no longer in pool 'vms' of LibvirtHost 'alpha'",
        "mount the file system",
        "kubectl annotate machine -n default web machine.vitistack.io/recreate-volume=root",
    ] {
        assert!(message.contains(part), "{message}");
    }
    mount(&env, content.clone());
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    let before: Vec<_> = content.into_keys().collect();
    assert_eq!(volumes(&env), before, "nothing was made");
}

#[test]
fn a_lost_disk_is_known_from_the_status_where_there_is_no_domain() {
    let mut env = rich();
    env.settle();
    let uuid = domain_uuid(UID);
    // The uri leads to another hypervisor, or the host was restored from a backup.
    env.host.state().domains.remove(&uuid);
    unmount(&env);
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls);
    assert_lost(&env, "no domain");
    // The record outlasts passes that plan no volumes.
    let room = std::mem::replace(&mut env.room, controller_core::machine::NO_RESOURCES);
    env.settle();
    assert_eq!(phases(&env)[0], ("root", "Lost"));
    env.room = room;
    let storage = env.object.spec.storage.take();
    env.settle();
    assert_eq!(reported(&env, "StorageReady").1, "StorageClassNotFound");
    env.object.spec.storage = storage;
    let block = env.machine().block.clone();
    env.machine_mut().block = controller_core::machine::Block::Stale;
    env.settle();
    env.machine_mut().block = block;
    env.settle();
    assert_lost(&env, "later");
}

#[test]
fn a_guest_that_runs_is_left_alone_and_can_be_stopped() {
    let mut env = rich();
    env.settle();
    lose(&env, "data");
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls);
    assert_lost(&env, "running");
    assert_eq!(phase(&env), Some(Phase::Running));
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(state(&env), Some(State::ShutOff));
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(state(&env), Some(State::ShutOff));
    assert!(!volumes(&env).iter().any(|name| name.contains(".data.")));
    assert_lost(&env, "started");
}

#[test]
fn a_lost_disk_is_recreated_once_after_the_user_confirmed_it() {
    let mut env = rich();
    env.settle();
    switch_off(&env);
    for disk in ["data", "root", "copy"] {
        lose(&env, disk);
        assert_eq!(env.settle(), [""; 0], "{disk}");
        assert_lost(&env, disk);
        // Another disk's confirmation is used up.
        recreate(&mut env, "other");
        assert_eq!(env.settle(), [REMOVED], "{disk}");
        assert_lost(&env, disk);
        recreate(&mut env, &format!("other, {disk}"));
        let done = env.settle();
        assert!(done.contains(&REMOVED.to_owned()), "{disk}: {done:#?}");
        assert!(!is_annotated(&env), "{disk}");
        assert_eq!(reported(&env, "Ready"), ("True", "Running"), "{disk}");
        switch_off(&env);
        lose(&env, disk);
        assert_eq!(env.settle(), [""; 0], "{disk}: the confirmation is used up");
        assert_lost(&env, disk);
        recreate(&mut env, disk);
        env.settle();
        switch_off(&env);
    }
}

#[test]
fn a_confirmation_does_nothing_to_a_disk_that_is_there_and_waits_for_room() {
    let mut env = rich();
    env.settle();
    let before = volumes(&env);
    recreate(&mut env, "data,root,copy");
    assert_eq!(env.settle(), [REMOVED]);
    assert_eq!(volumes(&env), before);

    switch_off(&env);
    lose(&env, "data");
    let capacity = {
        let mut host = env.host.state();
        std::mem::replace(&mut host.pools.get_mut(POOL).unwrap().capacity, 45 << 30)
    };
    recreate(&mut env, "data");
    assert_eq!(env.settle(), [""; 0]);
    assert_lost(&env, "no room");
    assert!(is_annotated(&env));
    assert_eq!(state(&env), Some(State::ShutOff));
    env.host.state().pools.get_mut(POOL).unwrap().capacity = capacity;
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

#[test]
fn a_machine_with_lost_disks_can_be_deleted() {
    for has_domain in [true, false] {
        let mut env = rich();
        env.settle();
        switch_off(&env);
        unmount(&env);
        if !has_domain {
            env.host.state().domains.clear();
        }
        env.settle();
        assert_lost(&env, "deleted");
        env.delete();
        env.settle();
        assert!(env.machine.is_none());
        // The definition names what is to be deleted once the pool shows it.
        let left = has_domain.then_some(State::ShutOff);
        assert_eq!(state(&env), left);
    }
}

/// The first creation of a disk, whatever interrupts it, is no loss.
#[test]
fn a_disk_that_could_not_be_made_is_not_lost() {
    for when in [When::Before, When::During] {
        at_each_change(8, |number| {
            let mut env = Environment::new(block());
            env.settle();
            env.edit(|block| {
                block.disks.push(disk("data", ReclaimPolicy::Delete));
                block.disks[1].storage_class = "local".into();
            });
            // The restart is recorded in the same pass.
            let annotation = names::ANNOTATION_RESTART_REQUESTED;
            annotate(env.machine_mut(), annotation, "now");
            let error = AccessError::TimedOut("no answer".into());
            env.host.fail_nth(number, when, error);
            env.settle();
            let what = format!("{when:?} the change {number}");
            assert_eq!(reported(&env, "Ready"), ("True", "Running"), "{what}");
            assert!(volumes(&env).iter().any(|it| it.contains(".data.")));
            !env.host.has_fault()
        });
    }
}

#[test]
fn what_a_step_of_power_records_has_no_volume_that_is_still_to_be_made() {
    let mut env = Environment::new(block());
    env.settle();
    env.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
        block.power_state = PowerState::Stopped;
    });
    let plan = env.plan().unwrap();
    let recorded = plan.actions.iter().find_map(|action| match action {
        Action::SetMetadata(metadata) => Some(metadata.volumes.len()),
        _ => None,
    });
    assert_eq!(recorded, Some(1));
}

/// Its name was that of an existing volume before: that one was not made by the controller.
#[test]
fn a_disk_of_the_name_of_an_existing_volume_is_made() {
    let mut env = Environment::new(block());
    env.settle();
    let known = env.machine().status.volumes[0].clone();
    let existing = common::api::status::VolumeStatus {
        name: "data".into(),
        claim_name: "db.qcow2".into(),
        ..known
    };
    env.machine_mut().status.volumes.push(existing);
    env.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
    });
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

#[test]
fn a_kept_volume_that_cannot_be_seen_stays_in_the_metadata() {
    let mut env = rich();
    env.settle();
    env.edit(|block| drop(block.disks.remove(1)));
    env.settle();
    let records = |env: &Environment| {
        let mut host = env.connection().unwrap();
        let found = host.domain(domain_uuid(UID)).unwrap().unwrap();
        let metadata = DomainMetadata::parse(&found.state.metadata.unwrap()).unwrap();
        let all = metadata.volumes.into_iter().map(|it| it.disk);
        all.collect::<Vec<_>>()
    };
    lose(&env, "data");
    env.settle();
    assert!(records(&env).contains(&"data".to_owned()));
    // A disk of its name is the same disk.
    env.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Retain));
        block.disks[2].storage_class = "local".into();
    });
    env.settle();
    assert_lost(&env, "kept");
}
