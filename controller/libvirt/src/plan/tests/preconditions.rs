//! Preconditions, checked right before the effect: what happened since the plan was made counts.

use super::*;
use crate::access::FirmwareState;
use crate::access::fake::{FakePool, FakeVolume, HostState};
use crate::apply::on_host::{Job, act};
use crate::environment;
use crate::guard::Guard;
use crate::images::names::{attempt, base_of, is_marker};
use crate::plan::action::Action;
use crate::pool_space::StorageFactor;
use crate::reservations::Reservations;
use common::quantity::Bytes;
use common::render::libvirt::{PoolVolume, VolumeFormat, domain_name};

fn job(guard: Guard) -> Job {
    Job {
        uuid: domain_uuid(UID),
        owner: UID.into(),
        domain: domain_name("default", "web", UID),
        guard,
        factor: StorageFactor::default(),
        reservations: Reservations::default(),
    }
}

/// The deletions that the plan of a deleted Machine has now.
fn deletions(env: &mut Environment) -> Vec<Action> {
    env.delete();
    loop {
        let plan = env.plan().unwrap();
        let deletes = |action: &&Action| matches!(action, Action::DeleteVolume(_));
        if plan.finalizer.is_some() {
            return plan.actions.iter().filter(deletes).cloned().collect();
        }
        env.pass();
    }
}

#[test]
fn a_volume_with_an_overlay_in_another_pool_is_not_deleted() {
    let mut env = Environment::new(block());
    env.settle();
    let root = volumes(&env)
        .into_iter()
        .find(|it| it.contains(".root."))
        .unwrap();
    let overlay = FakeVolume {
        backing: Some(HostState::path(POOL, &root)),
        ..FakeVolume::default()
    };
    let mut other = FakePool::of(1 << 30);
    other.volumes.insert("clone.qcow2".into(), overlay);
    env.host.state().pools.insert("other".into(), other);
    env.delete();
    for _ in 0..10 {
        env.pass();
    }
    assert!(env.machine.is_some(), "deletion waits");
    assert!(volumes(&env).contains(&root));
    env.host.state().pools.remove("other");
    env.settle();
    assert!(env.machine.is_none());
    assert!(!volumes(&env).contains(&root));
}

/// Between the plan and its effect, a pool is undefined that may hold an overlay of the volume. libvirt lists it no more.
#[test]
fn a_volume_is_not_deleted_while_a_pool_of_the_spec_or_of_a_domain_is_undefined() {
    let mut env = Environment::new(block());
    env.settle();
    let deletion = deletions(&mut env).remove(0);
    env.connection()
        .unwrap()
        .undefine(domain_uuid(UID), FirmwareState::Remove)
        .unwrap();
    let before = volumes(&env);
    let attempt = |guard: Guard| {
        let mut host = env.connection().unwrap();
        act(&mut *host, &job(guard), deletion.clone())
    };
    let named = environment::guard_with(&[POOL, "other"]);
    let why = attempt(named).unwrap_err().to_string();
    assert!(why.contains("pool 'other' does not exist"), "{why}");
    define_domain_of_pool(&env, "other");
    let why = attempt(environment::guard()).unwrap_err().to_string();
    assert!(why.contains("pool 'other' does not exist"), "{why}");
    assert_eq!(volumes(&env), before);
    env.host.state().domains.clear();
    attempt(environment::guard()).unwrap();
    assert!(volumes(&env).len() < before.len());
}

/// A pool that only a domain of somebody else names keeps the volumes of a deleted Machine, and not the Machine.
#[test]
fn a_machine_goes_while_the_pool_of_a_foreign_domain_is_undefined_and_its_volumes_stay() {
    let mut env = Environment::new(block());
    env.settle();
    define_domain_of_pool(&env, "other");
    let before = volumes(&env);
    env.delete();
    let done = env.settle();
    assert!(env.machine.is_none());
    assert!(done.iter().any(|it| it.contains("tombstone")), "{done:?}");
    assert_eq!(volumes(&env), before);
}

/// A domain of somebody else with a volume in this pool.
fn define_domain_of_pool(env: &Environment, pool: &str) {
    let xml = format!(
        "<domain><name>theirs</name><uuid>{}</uuid><devices><disk type='volume' device='disk'>
           <source pool='{pool}' volume='clone.qcow2'/><target dev='vda'/></disk></devices></domain>",
        uuid::Uuid::from_u128(7)
    );
    env.connection().unwrap().define(&xml).unwrap();
}

#[test]
fn a_volume_that_was_made_anew_since_it_was_observed_is_not_deleted() {
    let mut env = Environment::new(block());
    env.settle();
    let mut actions = deletions(&mut env);
    let Some(Action::DeleteVolume(removal)) = actions.first_mut() else {
        panic!("the disk is to be deleted: {actions:?}");
    };
    removal.key = Some("another".into());
    let (before, action) = (volumes(&env), actions[0].clone());
    env.connection()
        .unwrap()
        .undefine(domain_uuid(UID), FirmwareState::Remove)
        .unwrap();
    let mut host = env.connection().unwrap();
    let error = act(&mut *host, &job(env.guard()), action).unwrap_err();
    assert_eq!(error.kind(), "Changed");
    assert_eq!(volumes(&env), before);
}

/// A guest that is off, and the planned growth of its volume.
fn planned_growth() -> (Environment, Action) {
    let mut env = Environment::new(block());
    env.settle();
    env.power(PowerState::Stopped);
    env.settle();
    env.edit(|block| block.disks[0].size = Bytes::mib(40 * 1024));
    let plan = env.plan().unwrap();
    let mut actions = plan.actions.into_iter();
    let growth = actions.find(|it| matches!(it, Action::GrowVolume(_)));
    (env, growth.unwrap())
}

#[test]
fn a_volume_does_not_grow_below_a_guest_that_was_started_with_it() {
    let (env, growth) = planned_growth();
    let mut host = env.connection().unwrap();
    host.start(domain_uuid(UID), false).unwrap();
    let error = act(&mut *host, &job(env.guard()), growth).unwrap_err();
    assert_eq!(error.kind(), "Changed");
    assert_eq!(times(&env, "resize_volume"), 0);
}

#[test]
fn a_volume_grows_also_while_its_domain_is_not_defined_yet() {
    let (env, growth) = planned_growth();
    let mut host = env.connection().unwrap();
    host.undefine(domain_uuid(UID), FirmwareState::Keep)
        .unwrap();
    act(&mut *host, &job(env.guard()), growth).unwrap();
    assert_eq!(times(&env, "resize_volume"), 1);
}

#[test]
fn a_guest_is_neither_defined_nor_started_nor_stopped_while_its_machine_is_bound_elsewhere() {
    let mut env = Environment::new(block());
    env.settle();
    let calls = env.host.calls();
    let mut host = env.connection().unwrap();
    for action in [
        Action::Start { reset_nvram: false },
        Action::AskToStop { agent: false },
        Action::Destroy,
        Action::Undefine(FirmwareState::Remove),
    ] {
        let error = act(
            &mut *host,
            &job(environment::guard_of_another_host()),
            action.clone(),
        )
        .unwrap_err();
        assert_eq!(error.kind(), "Cancelled", "{action}");
    }
    assert_eq!(env.host.calls(), calls);
}

/// The late job of a leader that lost the Lease cannot touch the disk of the guest that the next leader started.
#[test]
fn a_late_copy_touches_no_disk_that_is_there() {
    let mut env = rich();
    let copy = loop {
        let plan = env.plan().unwrap();
        let mut actions = plan.actions.iter();
        if let Some(copy) = actions.find(|it| matches!(it, Action::CopyVolume { .. })) {
            break copy.clone();
        }
        env.pass();
    };
    // The next leader copies and starts the guest.
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
    let before = volumes(&env);
    let calls = env.host.calls();
    env.has_lease = false;
    let mut host = env.connection().unwrap();
    let error = act(&mut *host, &job(env.guard()), copy.clone()).unwrap_err();
    assert_eq!(error.kind(), "Cancelled");
    assert_eq!(env.host.calls(), calls);
    // A Lease is no fence: even if it still looks held, no volume that exists is replaced.
    env.has_lease = true;
    let _ = act(&mut *host, &job(env.guard()), copy);
    let after = volumes(&env);
    assert!(before.iter().all(|name| after.contains(name)), "{after:?}");
    assert_eq!(times(&env, "delete_volume"), 0);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(times(&env, "start"), 1, "the guest runs with its disk");
}

/// A release before attempts copied to the plain name and wrote the seed to the plain name.
#[test]
fn volumes_of_the_release_before_are_adopted_without_a_write() {
    let mut env = rich();
    env.settle();
    rename_as_before(&env);
    let calls = env.host.calls().len();
    env.settle();
    assert_eq!(env.host.calls()[calls..], [""; 0]);
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    let left = volumes(&env);
    assert_eq!(left.len(), 3, "the retained disk and the image: {left:?}");
}

/// Gives volumes and definitions the names that the release before gave them.
fn rename_as_before(env: &Environment) {
    let mut state = env.host.state();
    let pool = state.pools.get_mut(POOL).unwrap();
    let plain = |name: &str| match (name.split_once(".attempt-"), name.split_once(".seed-")) {
        (Some((base, rest)), _) if rest.ends_with(".complete") => format!("{base}.complete"),
        (Some((base, _)), _) => base.to_owned(),
        (None, Some((stem, rest))) => {
            format!("{stem}.seed-{}.iso", rest.split_once('-').unwrap().0)
        }
        (None, None) => name.to_owned(),
    };
    let names: Vec<(String, String)> = pool
        .volumes
        .keys()
        .map(|name| (name.clone(), plain(name)))
        .filter(|(now, before)| now != before)
        .collect();
    assert!(names.len() >= 5, "{names:?}");
    for (now, before) in &names {
        let volume = pool.volumes.remove(now).unwrap();
        pool.volumes.insert(before.clone(), volume);
    }
    let rename = |text: &mut String| {
        for (now, before) in &names {
            *text = text.replace(now, before);
        }
    };
    for volume in pool.volumes.values_mut() {
        volume.backing.iter_mut().for_each(rename);
    }
    for domain in state.domains.values_mut() {
        rename(&mut domain.inactive);
        domain.live.iter_mut().for_each(rename);
    }
}

#[test]
fn an_interrupted_copy_is_removed_before_the_next_attempt_and_a_complete_one_is_not() {
    let mut env = rich();
    env.settle();
    let copies = |env: &Environment| -> Vec<String> {
        let all = volumes(env).into_iter();
        all.filter(|name| name.contains(".copy.") && !is_marker(name))
            .collect()
    };
    let [complete] = &copies(&env)[..] else {
        panic!("{:?}", volumes(&env));
    };
    let base = base_of(complete);
    let mut host = env.connection().unwrap();
    let interrupted = attempt(base, 1);
    let xml = |name: &str| {
        format!("<volume><name>{name}</name><capacity>21474836480</capacity></volume>")
    };
    host.create_volume(POOL, &xml(&interrupted)).unwrap();
    let mut images = volumes(&env).into_iter();
    let image = images.find(|name| name.starts_with("vitistack-image-") && !is_marker(name));
    let name = attempt(base, 2);
    let copy = Action::CopyVolume {
        pool: POOL.into(),
        size: Bytes::mib(20 << 10),
        xml: xml(&name),
        name: name.clone(),
        image: PoolVolume {
            pool: POOL.into(),
            volume: image.unwrap(),
            format: VolumeFormat::Raw,
        },
    };
    act(&mut *host, &job(environment::guard()), copy).unwrap();
    let left = copies(&env);
    assert!(left.contains(complete) && left.contains(&name), "{left:?}");
    assert!(!left.contains(&interrupted), "{left:?}");
}
