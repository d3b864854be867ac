//! Removals of what deleted Machines left.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::access::fake::FakePool;
use crate::access::{FirmwareState, State};
use crate::environment::{self, Environment, POOL, block, host_object};
use crate::guard::OtherHosts;
use crate::plan::action::Action;
use common::api::choice::ReclaimPolicy;
use common::bounds::{KEPT_VOLUMES_MAX, KEPT_VOLUMES_OF_NAMESPACE_MAX};
use controller_core::fixtures::disk;

const OWNER: &str = "uid-of-web";

/// What a poll does about the tombstone of the Machine `web` that lists no volumes.
fn remove_by_metadata(
    host: &mut dyn Connection,
    guard: &Guard,
) -> Result<Vec<(TombstoneVolume, Bytes)>, AccessError> {
    let volumes = agreed_volumes(host, OWNER, None)?;
    remove_all(host, guard, (OWNER, "default/web"), &volumes)
}

fn volumes(env: &Environment) -> Vec<String> {
    let state = env.host.state();
    state.pools[POOL].volumes.keys().cloned().collect()
}

/// The volumes that the tombstone of a Machine lists which is deleted now.
fn listed(env: &mut Environment) -> Vec<TombstoneVolume> {
    env.delete();
    for _ in 0..10 {
        let plan = env.plan().unwrap();
        let mut actions = plan.actions.iter();
        let recorded = actions.find_map(|action| match action {
            Action::RecordOrphan { volumes, .. } => volumes.clone(),
            _ => None,
        });
        if let Some(recorded) = recorded {
            return recorded;
        }
        env.pass();
    }
    panic!("no tombstone")
}

#[test]
fn removing_what_a_machine_left_touches_no_volume_of_another_one() {
    let mut env = Environment::new(block());
    env.machine_mut().cloud_init =
        common::render::CloudInitPlan::from(&common::api::machine::CloudInit {
            user_data: Some("#cloud-config\n".into()),
            ..Default::default()
        });
    env.settle();
    let mut host = env.connection().unwrap();
    let foreign =
        "<volume><name>default-web-00000000.root.qcow2</name><capacity>1</capacity></volume>";
    host.create_volume(POOL, foreign).unwrap();
    // A tombstone of another Machine removes nothing of this one, even if it lists its volumes.
    let listed_volumes = agreed_volumes(&mut *host, OWNER, None).unwrap();
    let guard = environment::guard();
    remove_all(
        &mut *host,
        &guard,
        ("uid-of-another", "default/web"),
        &listed_volumes,
    )
    .unwrap();
    let uuid = domain_uuid(OWNER);
    assert_eq!(env.host.state().domains[&uuid].state, State::Running);
    remove_by_metadata(&mut *host, &environment::guard()).unwrap();
    assert!(env.host.state().domains.is_empty());
    assert_eq!(volumes(&env), ["default-web-00000000.root.qcow2"]);
    remove_by_metadata(&mut *host, &environment::guard()).unwrap();
}

#[test]
fn while_a_pool_is_undefined_the_definition_and_every_volume_stay() {
    let mut env = Environment::new(block());
    env.settle();
    let uuid = domain_uuid(OWNER);
    let mut host = env.connection().unwrap();
    let pool = env.host.state().pools.remove(POOL).unwrap();
    let error = remove_by_metadata(&mut *host, &environment::guard()).unwrap_err();
    assert!(error.to_string().contains(POOL), "{error}");
    assert!(env.host.state().domains.contains_key(&uuid));
    env.host.state().pools.insert(POOL.into(), pool);
    let stay = remove_by_metadata(&mut *host, &environment::guard()).unwrap();
    assert_eq!(stay, []);
    assert!(env.host.state().domains.is_empty());
    assert_eq!(volumes(&env), [""; 0]);
}

#[test]
fn while_a_pool_shows_nothing_the_definition_stays_unless_a_removal_has_begun() {
    let mut env = Environment::new(block());
    env.settle();
    let mut host = env.connection().unwrap();
    let unmount = |env: &Environment| {
        let mut state = env.host.state();
        std::mem::take(&mut state.pools.get_mut(POOL).unwrap().volumes)
    };
    let content = unmount(&env);
    let error = remove_by_metadata(&mut *host, &environment::guard()).unwrap_err();
    assert!(
        error.to_string().contains("mount its file system"),
        "{error}"
    );
    assert_eq!(env.host.state().domains.len(), 1);
    env.host.state().pools.get_mut(POOL).unwrap().volumes = content;
    let volumes_of_it = agreed_volumes(&mut *host, OWNER, None).unwrap();
    remove_all(
        &mut *host,
        &environment::guard(),
        (OWNER, "default/web"),
        &volumes_of_it,
    )
    .unwrap();
    assert_eq!(volumes(&env), [""; 0]);
    // The definition is gone and the pool empty, as after a removal whose result was not written.
    remove_all(
        &mut *host,
        &environment::guard(),
        (OWNER, "default/web"),
        &volumes_of_it,
    )
    .unwrap();
}

/// Somebody defines another domain of the uuid while the pools are read; or the lease is lost then.
#[test]
fn a_guest_is_ended_and_its_definition_removed_only_if_it_is_still_the_machines() {
    for change in ["metadata", "lease", "binding"] {
        let mut env = Environment::new(block());
        env.settle();
        let fake = env.host.clone();
        let calls = fake.calls();
        let is_read = Arc::new(AtomicBool::new(false));
        let read = is_read.clone();
        let pools = move || {
            if change == "metadata" && !read.swap(true, Ordering::Relaxed) {
                let mut state = fake.state();
                let domain = state.domains.get_mut(&domain_uuid(OWNER)).unwrap();
                domain.inactive = domain.inactive.replace(OWNER, "uid-of-another");
            }
            read.store(true, Ordering::Relaxed);
            Ok(BTreeSet::from([POOL.to_owned()]))
        };
        let read = is_read.clone();
        let may_act = move || {
            if change == "lease" && read.load(Ordering::Relaxed) {
                return Err(AccessError::Cancelled("the Lease is lost".into()));
            }
            Ok(())
        };
        let other_hosts = move || OtherHosts {
            bound: (change == "binding").then(|| "beta".to_owned()),
            ..OtherHosts::default()
        };
        let guard = Guard::new(may_act, other_hosts, pools);
        let mut host = env.connection().unwrap();
        remove_by_metadata(&mut *host, &guard).unwrap_err();
        assert_eq!(env.host.calls(), calls, "{change}");
        assert!(is_read.load(Ordering::Relaxed));
    }
}

#[test]
fn volumes_of_a_pool_that_has_left_the_spec_are_removed_too() {
    let mut env = Environment::new(block());
    env.settle();
    let mut host = env.connection().unwrap();
    let stay = remove_by_metadata(&mut *host, &environment::guard_with(&[]));
    assert_eq!(stay.unwrap(), []);
    assert_eq!(volumes(&env), [""; 0]);
}

#[test]
fn a_removal_that_was_interrupted_after_the_definition_was_gone_is_continued() {
    let mut env = Environment::new(block());
    env.settle();
    let mut host = env.connection().unwrap();
    let listed_volumes = agreed_volumes(&mut *host, OWNER, None).unwrap();
    host.destroy(domain_uuid(OWNER)).unwrap();
    host.undefine(domain_uuid(OWNER), FirmwareState::Remove)
        .unwrap();
    assert_eq!(volumes(&env).len(), 1);
    let guard = environment::guard();
    remove_all(&mut *host, &guard, (OWNER, "default/web"), &listed_volumes).unwrap();
    assert_eq!(volumes(&env), [""; 0]);
}

#[test]
fn deleting_a_machine_without_a_domain_while_a_pool_is_unreadable_leaves_no_volume() {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    block.disks[1].storage_class = "local".into();
    let mut env = Environment::new(block);
    env.settle();
    let mut host = env.connection().unwrap();
    host.destroy(domain_uuid(OWNER)).unwrap();
    host.undefine(domain_uuid(OWNER), FirmwareState::Remove)
        .unwrap();
    let other = FakePool {
        active: false,
        ..FakePool::of(1 << 30)
    };
    env.host.state().pools.insert("other".into(), other);
    let listed_volumes = listed(&mut env);
    assert_eq!(listed_volumes.len(), 1, "{listed_volumes:?}");
    env.host.state().pools.remove("other");
    let guard = environment::guard();
    let stay = remove_all(&mut *host, &guard, (OWNER, "default/web"), &listed_volumes).unwrap();
    let tombstone = Tombstone {
        machine: "default/web".into(),
        uid: OWNER.into(),
        since: String::new(),
        volumes: None,
    };
    let kept: Vec<_> = stay.iter().filter_map(|it| kept(&tombstone, it)).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].disk, "data");
    assert_eq!(volumes(&env), [kept[0].volume.as_str()]);
}

#[test]
fn a_disk_that_left_the_spec_before_its_machine_is_in_no_tombstone() {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Delete));
    block.disks[1].storage_class = "local".into();
    let mut env = Environment::new(block);
    env.settle();
    env.edit(|block| block.disks.truncate(1));
    let pool = env.host.state().pools.remove(POOL).unwrap();
    let listed_volumes = listed(&mut env);
    let names: Vec<_> = listed_volumes.iter().map(|it| it.volume.as_str()).collect();
    assert!(names.len() == 1 && names[0].contains(".root."), "{names:?}");
    env.host.state().pools.insert(POOL.into(), pool);
    let mut host = env.connection().unwrap();
    let guard = environment::guard();
    remove_all(&mut *host, &guard, (OWNER, "default/web"), &listed_volumes).unwrap();
    assert!(volumes(&env)[0].contains(".data."));
}

#[test]
fn a_volume_that_the_domain_keeps_is_not_deleted_whatever_the_tombstone_lists() {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    block.disks[1].storage_class = "local".into();
    let mut env = Environment::new(block);
    env.settle();
    // The Machine was restored from a backup that was made when both disks had the policy Delete, or its status was
    // written by somebody else: the list is from the block of the Machine.
    let listed = volumes(&env).into_iter().map(|volume| TombstoneVolume {
        pool: POOL.into(),
        volume,
        size: None,
    });
    let listed: Vec<_> = listed.collect();
    assert_eq!(listed.len(), 2);
    let mut host = env.connection().unwrap();
    let agreed = agreed_volumes(&mut *host, OWNER, Some(listed.clone())).unwrap();
    let names: Vec<_> = agreed.iter().map(|it| it.volume.as_str()).collect();
    assert!(names.len() == 1 && names[0].contains(".root."), "{names:?}");
    // Without a domain the list is all that is known.
    let unknown = agreed_volumes(&mut *host, "uid-of-another", Some(listed.clone()));
    assert_eq!(unknown.unwrap(), listed);
    assert_eq!(
        agreed_volumes(&mut *host, "uid-of-another", None).unwrap(),
        []
    );
}

/// An administrator migrated the guest before the Machine was deleted by force.
#[test]
fn volumes_of_a_machine_that_is_gone_stay_while_another_host_shows_its_domain() {
    let mut env = Environment::new(block());
    env.settle();
    env.host.is_migrated_away(domain_uuid(OWNER));
    let before = volumes(&env);
    let listed = agreed_volumes(&mut *env.connection().unwrap(), OWNER, None).unwrap();
    let mut host = env.connection().unwrap();
    let guard = environment::guard_beside(vec!["beta".into()]);
    let refused = remove_all(&mut *host, &guard, (OWNER, "default/web"), &listed).unwrap_err();
    assert!(refused.to_string().contains("'beta'"), "{refused}");
    assert!(env.host.state().domains.is_empty(), "the definition goes");
    assert_eq!(volumes(&env), before);
    remove_all(
        &mut *host,
        &environment::guard(),
        (OWNER, "default/web"),
        &listed,
    )
    .unwrap();
    assert_eq!(volumes(&env), [""; 0]);
}

/// The list is full of those of the Machine's namespace, or of those of all namespaces.
#[test]
fn a_tombstone_stays_while_the_host_has_no_room_to_list_what_is_kept() {
    let tombstone = |uid: &str| Tombstone {
        machine: "default/web".into(),
        uid: uid.into(),
        since: String::new(),
        volumes: None,
    };
    let of = |namespace: &str, number: usize| KeptVolume {
        machine: format!("{namespace}/db"),
        uid: "uid-of-db".into(),
        disk: "data".into(),
        pool: POOL.into(),
        volume: format!("{namespace}-{number}"),
        size: None,
    };
    let full_of_namespace = (0..KEPT_VOLUMES_OF_NAMESPACE_MAX).map(|it| of("default", it));
    let full = (0..KEPT_VOLUMES_MAX).map(|it| of(&format!("of-{it}"), it));
    for mut listed in [full_of_namespace.collect::<Vec<_>>(), full.collect()] {
        let mut host = host_object("alpha");
        host.status.tombstones = [OWNER, "uid-of-another"].map(tombstone).into();
        let removed = || {
            let kept = [of("default", 2000), of("default", 2001)];
            let of_another = ("uid-of-another".into(), Removed::All(vec![]));
            BTreeMap::from([(OWNER.into(), Removed::All(kept.into())), of_another])
        };
        host.status.kept_volumes = listed.split_off(1);
        let status = without_removed(&host, removed());
        // What was to be deleted is gone: it takes nothing of the quota.
        let left = Tombstone {
            volumes: Some(vec![]),
            ..tombstone(OWNER)
        };
        assert_eq!(status.tombstones, [left]);
        assert_eq!(status.kept_volumes, host.status.kept_volumes);

        host.status.kept_volumes.pop();
        let status = without_removed(&host, removed());
        assert_eq!(status.tombstones, []);
        let count = status.kept_volumes.len() - host.status.kept_volumes.len();
        assert_eq!(count, 2);
    }
}
