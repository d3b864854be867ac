//! Disks that left the spec and came back while no pass recorded it: the domain's metadata still says `Delete`.

use super::*;
use crate::access::fake::FakePool;
use crate::plan::action::Action;
use common::api::choice::VolumeFormat;
use common::api::libvirt_host::HostStorage;

const OTHER_POOL: &str = "hdd";

/// A paused Machine whose disk `data` has left the spec and came back in this class. Its metadata says `Delete`.
fn returned(class: &str) -> Environment {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Delete));
    block.disks[1].storage_class = "local".into();
    let mut env = Environment::new(block);
    let offers = env.object.spec.storage.as_mut().unwrap();
    let local = offers[0].clone();
    offers.push(HostStorage {
        storage_class: "bulk".into(),
        pool: OTHER_POOL.into(),
        ..local.clone()
    });
    offers.push(HostStorage {
        storage_class: "raw".into(),
        format: Some(VolumeFormat::Raw),
        ..local
    });
    let pool = FakePool::of(100 << 30);
    env.host.state().pools.insert(OTHER_POOL.into(), pool);
    env.settle();
    pause(env.machine_mut());
    let mut data = env.machine().desired().unwrap().disks[1].clone();
    env.edit(|block| block.disks.truncate(1));
    env.pass();
    data.storage_class = class.into();
    env.edit(|block| block.disks.push(data));
    env.pass();
    env
}

fn first_volume(env: &Environment) -> Option<String> {
    let mut all = volumes(env).into_iter();
    all.find(|name| name.ends_with(".data.qcow2"))
}

#[test]
fn a_disk_that_came_back_in_another_class_while_its_machine_was_paused_leaves_its_volume() {
    for class in ["bulk", "raw"] {
        let mut env = returned(class);
        env.delete();
        env.machine_mut().metadata.annotations = None;
        let done = env.settle();
        assert!(env.machine.is_none(), "{class}");
        assert!(first_volume(&env).is_some(), "{class}: {done:#?}");
        let kept: Vec<_> = env.object.status.kept_volumes.iter().collect();
        assert!(
            matches!(kept[..], [kept] if kept.disk == "data" && kept.pool == POOL),
            "{class}: {kept:?}"
        );
    }
}

#[test]
fn a_disk_that_came_back_in_another_class_is_in_no_tombstone() {
    let mut env = returned("bulk");
    env.delete();
    env.machine_mut().metadata.annotations = None;
    let other = FakePool {
        active: false,
        ..FakePool::of(1 << 30)
    };
    env.host.state().pools.insert("broken".into(), other);
    let listed = loop {
        let plan = env.plan().unwrap();
        let recorded = plan.actions.iter().find_map(|action| match action {
            Action::RecordOrphan { volumes, .. } => volumes.clone(),
            _ => None,
        });
        if let Some(recorded) = recorded {
            break recorded;
        }
        env.pass();
    };
    let names: Vec<_> = listed.iter().map(|it| it.volume.as_str()).collect();
    assert!(
        matches!(names[..], [root] if root.contains(".root.")),
        "{names:?}"
    );
}

/// It is the same volume again, and the spec says what becomes of it.
#[test]
fn a_disk_that_came_back_in_its_class_has_its_volume_and_its_policy_again() {
    let mut env = returned("local");
    env.delete();
    env.machine_mut().metadata.annotations = None;
    env.settle();
    assert_eq!(first_volume(&env), None);
}

/// The administrator moved the storage class to another pool: the disk is still the same one.
#[test]
fn a_volume_that_no_class_of_the_host_makes_any_more_goes_by_the_name_of_its_disk() {
    let mut env = returned("local");
    let offers = env.object.spec.storage.as_mut().unwrap();
    offers.truncate(1);
    offers[0].pool = OTHER_POOL.into();
    env.delete();
    env.machine_mut().metadata.annotations = None;
    env.settle();
    assert!(env.machine.is_none());
    assert_eq!(first_volume(&env), None);
}
