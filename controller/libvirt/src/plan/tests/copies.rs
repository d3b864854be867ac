//! Disks that are copies of an image: how far they are, what they count, and what is left of an interrupted copy.

use common::api::choice::Provisioning;
use common::api::machine::CloudInit;
use common::quantity::Bytes;
use common::render::CloudInitPlan;

use super::*;
use crate::access::VolumeKey;
use crate::access::fake::FakeVolume;
use crate::images::fetches::ImageState;
use crate::images::names::attempt;
use crate::plan::disks::copies;

/// A Machine whose root disk is a copy of an image.
fn copied() -> Environment {
    let mut block = block();
    block.disks[0].storage_class = "copied".into();
    block.disks[0].image = Some(image());
    Environment::new(block)
}

fn volume(env: &Environment) -> VolumeKey {
    let volumes = copies(env.machine(), &env.object.spec).into_values();
    volumes.last().unwrap()
}

fn pool_capacity(env: &Environment, gib: u64) {
    env.host.state().pools.get_mut(POOL).unwrap().capacity = gib << 30;
}

/// Passes until the image was fetched.
fn fetch(env: &mut Environment) {
    while !volumes(env).iter().any(|name| name.ends_with(".complete")) {
        env.pass();
    }
}

#[test]
fn while_an_image_is_copied_no_other_copy_is_begun_and_the_status_says_so() {
    let mut env = copied();
    fetch(&mut env);
    let volume = volume(&env);
    let progress = "0%".to_owned();
    for (state, begins, reason, text) in [
        (
            ImageState::Underway { progress },
            false,
            "ImageImporting",
            "the image of disk 'root' is being copied to the volume of the disk",
        ),
        (
            ImageState::Waiting,
            true,
            "ImageImporting",
            "is copied once other images have been copied",
        ),
        (
            ImageState::Failed("the pool is full".into()),
            true,
            "VolumeFailed",
            "cannot be copied: the pool is full; it is tried again",
        ),
    ] {
        env.copies = [(volume.clone(), state)].into();
        env.now += time::Duration::seconds(10);
        let plan = env.plan().unwrap();
        let mut actions = plan.actions.iter().map(ToString::to_string);
        assert_eq!(
            actions.any(|it| it.contains("is being copied")),
            begins,
            "{text}"
        );
        env.machine_mut().status = plan.status.unwrap();
        assert_eq!(reported(&env, "StorageReady"), ("False", reason));
        assert!(message(&env, "StorageReady").contains(text), "{text}");
        assert_eq!(times(&env, "define"), 0);
    }
    env.copies.clear();
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

#[test]
fn a_deletion_waits_for_a_copy_that_is_under_way() {
    let mut env = copied();
    env.settle();
    env.is_copying = true;
    env.delete();
    for _ in 0..10 {
        env.pass();
    }
    assert!(env.machine.is_some());
    assert_eq!(times(&env, "delete_volume"), 0);
    assert_eq!(state(&env), Some(State::ShutOff));
    let why = message(&env, "Ready");
    assert!(why.contains("has copied the image of a disk"), "{why}");
    env.is_copying = false;
    env.settle();
    assert!(env.machine.is_none());
}

#[test]
fn what_is_left_of_an_interrupted_copy_takes_no_room_from_its_own_disk() {
    let mut env = copied();
    env.pass();
    let (_, base) = volume(&env);
    let left_over = attempt(&base, 7);
    let volume = FakeVolume {
        capacity: 15 << 30,
        ..FakeVolume::default()
    };
    let mut state = env.host.state();
    let pool = state.pools.get_mut(POOL).unwrap();
    pool.volumes.insert(left_over.clone(), volume);
    drop(state);
    pool_capacity(&env, 25);
    env.settle();
    assert_eq!(
        reported(&env, "Ready"),
        ("True", "Running"),
        "{:#?}",
        env.machine().status
    );
    assert!(!volumes(&env).contains(&left_over));
}

#[test]
fn the_copy_that_a_guest_has_counts_even_if_its_marker_is_lost() {
    let mut env = copied();
    env.settle();
    let mut host = env.connection().unwrap();
    for name in volumes(&env) {
        if name.starts_with("default-") && name.ends_with(".complete") {
            host.delete_volume(POOL, &name).unwrap();
        }
    }
    pool_capacity(&env, 45);
    env.edit(|block| block.disks[0].size = Bytes::mib(50 * 1024));
    env.settle();
    assert_eq!(reported(&env, "Scheduled"), ("False", "NoRoom"));
    assert!(message(&env, "Scheduled").contains("which keeps 20Gi"));
}

/// A Machine with a seed, whose root disk is a copy that has lost its marker and is kept when the Machine is deleted.
fn kept_copy_without_marker() -> (Environment, String) {
    let mut block = block();
    block.disks[0].storage_class = "copied".into();
    block.disks[0].image = Some(image());
    block.disks[0].reclaim_policy = ReclaimPolicy::Retain;
    let mut env = Environment::new(block);
    env.machine_mut().cloud_init = CloudInitPlan::from(&CloudInit {
        user_data: Some("#cloud-config".into()),
        ..CloudInit::default()
    });
    env.settle();
    let mut lost = volumes(&env);
    lost.retain(|name| name.starts_with("default-") && name.ends_with(".complete"));
    let [marker] = lost.as_slice() else {
        panic!("{lost:?}");
    };
    env.host
        .state()
        .pools
        .get_mut(POOL)
        .unwrap()
        .volumes
        .remove(marker);
    let copy = marker.strip_suffix(".complete").unwrap().to_owned();
    (env, copy)
}

fn assert_kept(env: &mut Environment, copy: &String, what: &str) {
    env.settle();
    assert!(env.machine.is_none(), "{what}");
    let left = volumes(env);
    assert!(left.contains(copy), "{what}: {left:?}");
    let kept = env.object.status.kept_volumes.iter();
    let kept: Vec<_> = kept.map(|it| &it.volume).collect();
    assert_eq!(kept, [copy], "{what}");
}

#[test]
fn no_interrupted_deletion_takes_a_kept_copy_that_has_lost_its_marker() {
    for steps in 0..6 {
        let (mut env, copy) = kept_copy_without_marker();
        env.delete();
        for _ in 0..4 {
            if env.machine.is_some() {
                env.pass_until(steps);
            }
        }
        assert_kept(&mut env, &copy, &format!("{steps} actions"));
    }
}

#[test]
fn a_copy_that_has_lost_its_marker_and_its_domain_is_neither_lost_nor_deleted() {
    let (mut env, copy) = kept_copy_without_marker();
    env.host.state().domains.clear();
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert!(volumes(&env).contains(&copy));

    let (mut env, copy) = kept_copy_without_marker();
    env.host.state().domains.clear();
    env.delete();
    assert_kept(&mut env, &copy, "without a domain");
}

#[test]
fn the_growth_of_a_full_copy_counts_in_full_after_its_class_makes_overlays() {
    let mut env = copied();
    env.settle();
    let mut classes = env.object.spec.storage.iter_mut().flatten();
    let class = classes.find(|offer| offer.storage_class == "copied");
    class.unwrap().provisioning = Some(Provisioning::Overlay);
    // The volume has 20 GiB of 50; growing to 60 needs 40, and an overlay would need 20.
    pool_capacity(&env, 50);
    env.edit(|block| block.disks[0].size = Bytes::mib(60 * 1024));
    env.settle();
    assert_eq!(times(&env, "resize_disk"), 0);
    assert_eq!(reported(&env, "Scheduled"), ("False", "NoRoom"));
    pool_capacity(&env, 61);
    env.settle();
    assert_eq!(times(&env, "resize_disk"), 1);
}
