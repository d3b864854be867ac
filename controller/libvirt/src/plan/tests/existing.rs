//! Disks on volumes of the host that existed before the Machine.

use common::api::choice::DiskBus;
use common::api::libvirt_host::ExistingVolumes;
use common::api::normalized::ExistingDisk;

use super::{Environment, UID, block, define_foreign_domain_on, phase, reported, state, times};
use crate::access::fake::{FakePool, FakeVolume};
use crate::access::{AccessError, FirmwareState, State};
use crate::images::check::tests::header;
use crate::plan::action::Action;
use common::api::choice::Phase;
use common::render::libvirt::domain_uuid;
use controller_core::plan::Step;

const LEGACY: &str = "legacy";
const VOLUME: &str = "old-disk.qcow2";

fn existing(volume: &str) -> ExistingDisk {
    ExistingDisk {
        boot_order: None,
        bus: DiskBus::Virtio,
        claim_name: None,
        name: "old".into(),
        serial: None,
        shareable: false,
        volume_name: Some(volume.into()),
    }
}

/// A Machine with a disk on the volume, on a host that offers it.
fn with_existing() -> Environment {
    let mut block = block();
    block.existing_disks = vec![existing(VOLUME)];
    let mut env = Environment::new(block);
    let mut pool = FakePool::of(1 << 30);
    let volume = FakeVolume {
        capacity: 1 << 20,
        content: header(None),
        ..FakeVolume::default()
    };
    pool.volumes.insert(VOLUME.into(), volume);
    env.host.state().pools.insert(LEGACY.into(), pool);
    env.object.spec.existing_volumes = Some(vec![ExistingVolumes {
        namespaces: vec!["default".into()],
        pool: LEGACY.into(),
    }]);
    env
}

fn content(env: &Environment) -> FakeVolume {
    env.host.state().pools[LEGACY].volumes[VOLUME].clone()
}

#[test]
fn a_guest_gets_the_volume_as_it_is_and_its_deletion_leaves_it() {
    let mut env = with_existing();
    let before = content(&env);
    env.settle();
    assert_eq!(
        phase(&env),
        Some(Phase::Running),
        "{:#?}",
        env.machine().status
    );
    let defined = env.host.state().domains[&domain_uuid(UID)].inactive.clone();
    let source = format!("pool='{LEGACY}' volume='{VOLUME}'");
    assert!(defined.contains(&source), "{defined}");
    let volumes = &env.machine().status.volumes;
    assert_eq!(volumes[1].claim_name, VOLUME);
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls, "a second pass does nothing");
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    assert_eq!(content(&env), before);
    assert_eq!(times(&env, "delete_volume legacy"), 0);
}

#[test]
fn a_volume_that_is_missing_or_not_offered_is_waited_for() {
    let mut env = with_existing();
    let volume = env
        .host
        .state()
        .pools
        .get_mut(LEGACY)
        .unwrap()
        .volumes
        .remove(VOLUME);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("False", "NoHostFits"));
    let pool = |env: &Environment, volume: FakeVolume| {
        let mut state = env.host.state();
        let pool = state.pools.get_mut(LEGACY).unwrap();
        pool.volumes.insert(VOLUME.into(), volume);
    };
    pool(&env, volume.clone().unwrap());
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));

    // Another namespace is offered nothing.
    let mut env = with_existing();
    let offers = env.object.spec.existing_volumes.as_mut().unwrap();
    offers[0].namespaces = vec!["other".into()];
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("False", "NoHostFits"));
    // The offer is withdrawn from a Machine that is bound already.
    env.machine_mut().status.host = Some("alpha".into());
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeNotFound"));
    assert_eq!(state(&env), None);
}

#[test]
fn a_volume_that_another_domain_has_is_not_given_to_the_guest() {
    let mut env = with_existing();
    let foreign = define_foreign_domain_on(&env, LEGACY, VOLUME);
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeInUse"));
    assert_eq!(state(&env), None, "nothing is defined");
    let mut host = env.connection().unwrap();
    host.undefine(foreign, FirmwareState::Remove).unwrap();
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
}

/// Somebody else takes the volume between the observation and the effect.
#[test]
fn no_effect_gives_a_volume_to_the_guest_that_another_domain_has_by_then() {
    for effect in ["define", "start", "attach"] {
        let mut env = with_existing();
        if effect == "attach" {
            let existing = env.machine().desired().unwrap().existing_disks.clone();
            env.edit(|block| block.existing_disks.clear());
            env.settle();
            env.edit(|block| block.existing_disks = existing);
        }
        loop {
            let plan = env.plan().unwrap();
            let is_due = plan.actions.iter().any(|action| match action {
                Action::Define(_) => effect == "define",
                Action::Start { .. } => effect == "start",
                Action::HotPlug(_) => effect == "attach",
                _ => false,
            });
            if is_due {
                define_foreign_domain_on(&env, LEGACY, VOLUME);
                let calls = times(&env, effect);
                let mut actions = plan.actions.iter();
                let refused = actions.find_map(|action| env.step(&Step::Act(action)).err());
                assert!(
                    matches!(refused, Some(AccessError::Changed(_))),
                    "{refused:?}"
                );
                assert_eq!(times(&env, effect), calls, "{effect}");
                break;
            }
            env.pass();
        }
    }
}

#[test]
fn a_volume_that_names_other_files_or_is_raw_is_not_given_to_the_guest() {
    let change = |env: &Environment, change: fn(&mut FakeVolume)| {
        let mut state = env.host.state();
        let pool = state.pools.get_mut(LEGACY).unwrap();
        change(pool.volumes.get_mut(VOLUME).unwrap());
    };
    let mut env = with_existing();
    change(&env, |volume| {
        volume.content = header(Some(("/etc/shadow", Some("raw"))));
    });
    for _ in 0..6 {
        env.pass();
    }
    assert_eq!(state(&env), None);

    let mut env = with_existing();
    change(&env, |volume| {
        volume.raw = true;
        volume.content = b"no header".to_vec();
    });
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeFailed"));
}

#[test]
fn a_disk_stays_on_the_pool_that_it_is_on() {
    let mut env = with_existing();
    env.settle();
    let volume = content(&env);
    let mut other = FakePool::of(1 << 30);
    other.volumes.insert(VOLUME.into(), volume);
    env.host.state().pools.insert("other".into(), other);
    env.object.spec.existing_volumes.as_mut().unwrap()[0].pool = "other".into();
    let calls = env.host.calls().len();
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeNotFound"));
    assert_eq!(env.host.calls().len(), calls, "the definition is as it was");
}
