//! Volumes of disks that no domain has been defined with: when they are made, and what becomes of those that exist.

use common::api::normalized::NormalizedDisk;

use super::faults::at_each_change;
use super::*;
use crate::access::AccessError;
use crate::access::fake::{FakeVolume, When};
use crate::plan::disks::name_of;

const NEXT: &str = "uid-of-the-next";

fn data() -> NormalizedDisk {
    let mut data = disk("data", ReclaimPolicy::Retain);
    data.storage_class = "local".into();
    data
}

fn name(env: &Environment, disk: &NormalizedDisk) -> String {
    let offers = env.object.spec.storage.as_ref().unwrap();
    name_of(env.machine(), disk, &offers[0])
}

/// Makes the volume of a disk, as an earlier release did before the domain could be defined.
fn put(env: &Environment, disk: &NormalizedDisk) -> String {
    let name = name(env, disk);
    let mut host = env.host.state();
    let volumes = &mut host.pools.get_mut(POOL).unwrap().volumes;
    volumes.insert(name.clone(), FakeVolume::default());
    name
}

/// A network that does not exist any more. The Machine is on its host.
fn miss_network(env: &mut Environment) {
    if env.machine().status.host.is_none() {
        env.pass();
    }
    env.edit(|block| block.networks[0].network_name = Some("prod".into()));
}

/// A former Machine's `data` was kept, and the next Machine of the name has had a disk `data`, too. Returns both volumes.
fn after_a_former(has_domain: bool) -> (Environment, String, String) {
    let mut block = block();
    block.disks.push(data());
    let mut env = Environment::new(block.clone());
    env.settle();
    env.delete();
    env.settle();
    let former = env.object.status.kept_volumes[0].volume.clone();
    let mut next = controller_core::fixtures::machine(block);
    next.metadata.uid = Some(NEXT.into());
    env.machine = Some(next);
    let own = if has_domain {
        env.settle();
        name(&env, &data())
    } else {
        miss_network(&mut env);
        env.settle();
        put(&env, &data())
    };
    // Renamed.
    env.edit(|block| block.disks[1].name = "data2".into());
    if has_domain {
        env.settle();
    }
    (env, own, former)
}

fn release(env: &mut Environment) {
    let annotation = names::ANNOTATION_RELEASE_VOLUME;
    annotate(env.machine_mut(), annotation, "data");
}

fn assert_released(env: &Environment, own: &String, former: &String, what: &str) {
    let left = volumes(env);
    assert!(!left.contains(own), "{what}: {left:?}");
    assert!(left.contains(former), "{what}: {left:?}");
    assert_eq!(env.object.status.kept_volumes.len(), 1, "{what}");
    let annotations = env.machine().metadata.annotations.clone();
    assert_eq!(annotations.unwrap_or_default().len(), 0, "{what}");
}

#[test]
fn the_annotation_deletes_the_volume_of_the_machine_and_not_that_of_a_former_one() {
    for has_domain in [true, false] {
        let (mut env, own, former) = after_a_former(has_domain);
        release(&mut env);
        env.settle();
        assert_released(&env, &own, &former, &format!("domain: {has_domain}"));
    }
}

#[test]
fn no_interruption_turns_the_annotation_against_a_former_machine() {
    for has_domain in [true, false] {
        for steps in 0..3 {
            for passes in 1..4 {
                let what = format!("domain: {has_domain}, {steps} actions of {passes} passes");
                let (mut env, own, former) = after_a_former(has_domain);
                release(&mut env);
                for _ in 0..passes {
                    env.pass_until(steps);
                }
                env.settle();
                let left = volumes(&env);
                assert!(left.contains(&former), "{what}: {left:?}");
                assert!(!left.contains(&own), "{what}: {left:?}");
            }
        }
        at_each_change(if has_domain { 2 } else { 1 }, |number| {
            let (mut env, own, former) = after_a_former(has_domain);
            release(&mut env);
            let error = AccessError::TimedOut("no answer".into());
            env.host.fail_nth(number, When::After, error);
            env.settle();
            assert_released(&env, &own, &former, &format!("call {number} failed"));
            !env.host.has_fault()
        });
    }
}

/// The volume is in a pool that cannot be read.
fn hide(env: &mut Environment, own: &str) -> FakeVolume {
    let offers = env.object.spec.storage.as_mut().unwrap();
    let other = common::api::libvirt_host::HostStorage {
        storage_class: "other".into(),
        pool: "other".into(),
        ..offers[0].clone()
    };
    offers.push(other);
    let mut host = env.host.state();
    let volumes = &mut host.pools.get_mut(POOL).unwrap().volumes;
    volumes.remove(own).unwrap()
}

#[test]
fn while_a_pool_cannot_be_read_the_annotation_does_not_act_on_a_former_machine() {
    let (mut env, own, former) = after_a_former(false);
    hide(&mut env, &own);
    release(&mut env);
    for _ in 0..3 {
        env.pass();
    }
    assert!(volumes(&env).contains(&former));
    env.object.spec.storage.as_mut().unwrap().pop();
    env.settle();
    assert!(!volumes(&env).contains(&former), "there is no other one");
}

#[test]
fn the_annotation_is_not_answered_while_a_volume_that_the_status_lists_cannot_be_seen() {
    let (mut env, own, former) = after_a_former(false);
    release(&mut env);
    // It is deleted in the pass after the one that lists it.
    env.pass();
    let listed = &env.machine().status.kept_volumes;
    assert!(listed.iter().any(|it| it.claim_name == own), "{listed:?}");
    let volume = hide(&mut env, &own);
    for _ in 0..3 {
        env.pass();
    }
    let annotations = env.machine().metadata.annotations.clone();
    assert_eq!(annotations.unwrap_or_default().len(), 1);
    let mut host = env.host.state();
    let volumes = &mut host.pools.get_mut(POOL).unwrap().volumes;
    volumes.insert(own.clone(), volume);
    drop(host);
    env.object.spec.storage.as_mut().unwrap().pop();
    env.settle();
    assert_released(&env, &own, &former, "seen again");
}

#[test]
fn no_volume_is_made_while_something_else_keeps_the_domain_from_being_defined() {
    let mut block = block();
    block.disks.push(data());
    let mut env = Environment::new(block);
    miss_network(&mut env);
    env.settle();
    assert_eq!(volumes(&env), [""; 0]);
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumesPending"));
    let reason = "NetworkConfigurationNotFound";
    assert_eq!(reported(&env, "Ready"), ("False", reason));
    env.edit(|block| block.networks[0].network_name = None);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(volumes(&env).len(), 2);

    // The same of a disk that is added later.
    miss_network(&mut env);
    env.edit(|block| block.disks[1].name = "data2".into());
    env.settle();
    assert_eq!(volumes(&env).len(), 2);
}

#[test]
fn a_blank_disk_is_made_only_when_the_images_of_the_others_are_there() {
    let mut block = block();
    block.disks[0].storage_class = "copied".into();
    block.disks[0].image = Some(image());
    block.disks.push(data());
    let mut env = Environment::new(block);
    let mut done = vec![];
    while !done.iter().any(|it: &String| it.starts_with("defined")) {
        let is_copied = volumes(&env).iter().any(|it| it.contains(".root."));
        done = env.pass();
        let is_made = volumes(&env).iter().any(|it| it.contains(".data."));
        assert!(is_copied || !is_made, "{done:?}");
    }
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

#[test]
fn a_deletion_records_the_volumes_of_the_machine_that_no_domain_records() {
    for has_domain in [true, false] {
        let mut env = Environment::new(block());
        if !has_domain {
            miss_network(&mut env);
        }
        env.settle();
        // Its disk was made and renamed before a domain had it.
        let made = put(&env, &data());
        env.delete();
        env.settle();
        assert!(env.machine.is_none());
        assert_eq!(volumes(&env), std::slice::from_ref(&made));
        let kept = env.object.status.kept_volumes.iter();
        let kept: Vec<_> = kept.map(|it| (&*it.disk, &*it.volume)).collect();
        assert_eq!(kept, [("data", &*made)], "domain: {has_domain}");
    }
}
