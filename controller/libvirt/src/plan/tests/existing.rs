//! Disks on volumes of the host that existed before the Machine.

use common::api::choice::DiskBus;
use common::api::libvirt_host::ExistingVolumes;
use common::api::normalized::ExistingDisk;

use super::{
    Environment, UID, block, define_foreign_domain_on, message, phase, reported, state, times,
};
use crate::access::fake::{FakePool, FakeVolume, HostState};
use crate::access::{FirmwareState, State};
use crate::images::check::tests::header;
use crate::plan::action::Action;
use common::api::choice::Phase;
use common::render::libvirt::{domain_uuid, short_id};
use controller_core::client::Remedy;
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
                    refused.as_ref().map(|it| it.remedy) == Some(Remedy::Reobserve),
                    "{refused:?}"
                );
                assert_eq!(times(&env, effect), calls, "{effect}");
                break;
            }
            env.pass();
        }
    }
}

/// Changes a volume of the pool.
fn change(env: &Environment, change: impl FnOnce(&mut FakeVolume)) {
    let mut state = env.host.state();
    let pool = state.pools.get_mut(LEGACY).unwrap();
    change(pool.volumes.get_mut(VOLUME).unwrap());
}

#[test]
fn a_volume_that_names_other_files_or_is_raw_is_not_given_to_the_guest() {
    let mut with_data_file = header(None);
    // The incompatible feature of an external data file.
    with_data_file[79] = 1 << 2;
    for (content, raw, part) in [
        (
            header(Some(("/etc/shadow", Some("raw")))),
            false,
            "names the file '/etc/shadow' in its header",
        ),
        (with_data_file, false, "names another file in its header"),
        (b"no header".to_vec(), true, "is raw and not qcow2"),
    ] {
        let mut env = with_existing();
        change(&env, |volume| (volume.content, volume.raw) = (content, raw));
        env.settle();
        assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeFailed"));
        let text = message(&env, "StorageReady");
        assert!(text.contains(part), "{text}");
        assert!(!text.contains("convert -O"), "{text}");
        assert_eq!(state(&env), None);
    }
}

/// The header is written between the observation and the effect.
#[test]
fn a_header_that_names_another_file_by_then_is_not_given_to_the_guest() {
    let mut env = with_existing();
    loop {
        let plan = env.plan().unwrap();
        let mut actions = plan.actions.iter();
        if let Some(define) = actions.find(|action| matches!(action, Action::Define(_))) {
            change(&env, |volume| {
                volume.content = header(Some(("/etc/shadow", None)));
            });
            let refused = env.step(&Step::Act(define)).unwrap_err();
            assert_eq!(refused.remedy, Remedy::UserAction, "{refused:?}");
            assert_eq!(times(&env, "define"), 0);
            return;
        }
        env.pass();
    }
}

#[test]
fn a_volume_with_an_overlay_in_any_pool_is_not_given_to_the_guest() {
    for pool in [LEGACY, "vms", "unnamed"] {
        let mut env = with_existing();
        let overlay = FakeVolume {
            backing: Some(HostState::path(LEGACY, VOLUME)),
            ..FakeVolume::default()
        };
        let mut state = env.host.state();
        let pools = &mut state.pools;
        let pool = pools
            .entry(pool.into())
            .or_insert_with(|| FakePool::of(1 << 30));
        pool.volumes.insert("snapshot.qcow2".into(), overlay);
        drop(state);
        env.settle();
        assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeInUse"));
        let text = message(&env, "StorageReady");
        assert!(text.contains("used by an overlay of it"), "{text}");
    }
}

/// A pool that libvirt does not have any more may have been the same folder.
#[test]
fn a_domain_with_a_pool_that_is_gone_may_have_the_volume() {
    let mut env = with_existing();
    env.host
        .state()
        .pools
        .insert("gone".into(), FakePool::of(1 << 30));
    define_foreign_domain_on(&env, "gone", "theirs.qcow2");
    env.host.state().pools.remove("gone");
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeInUse"));
    let text = message(&env, "StorageReady");
    assert!(text.contains("perhaps a domain"), "{text}");
}

/// The digits of the Machine in a name do not make a volume its own.
#[test]
fn a_volume_that_an_administrator_named_after_the_machine_is_nobodys_own() {
    let name = format!("default-web-{}.root.old.qcow2", short_id(UID));
    let mut env = with_existing();
    let mut host = env.host.state();
    let pool = host.pools.get_mut(LEGACY).unwrap();
    let volume = pool.volumes.remove(VOLUME).unwrap();
    pool.volumes.insert(name.clone(), volume);
    drop(host);
    env.edit(|block| block.existing_disks = vec![existing(&name)]);
    let foreign = define_foreign_domain_on(&env, LEGACY, &name);
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeInUse"));
    let mut host = env.connection().unwrap();
    host.undefine(foreign, FirmwareState::Remove).unwrap();
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
    assert_eq!(env.machine().status.kept_volumes, []);
    let domain = env.host.state().domains[&domain_uuid(UID)].name.clone();
    env.host.state().varstores.insert(domain.clone());
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    assert!(
        env.host.state().varstores.contains(&domain),
        "the state of the firmware stays with a disk that stays"
    );
    assert!(env.host.state().pools[LEGACY].volumes.contains_key(&name));
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
