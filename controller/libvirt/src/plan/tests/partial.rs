//! Hosts of which a part cannot be read: that part is reported, and the rest is reconciled.

use common::quantity::Bytes;

use super::*;
use crate::access::fake::FakePool;

fn message<'a>(env: &'a Environment, kind: &str) -> &'a str {
    let mut conditions = env.machine().status.conditions.iter();
    let found = conditions.find(|condition| condition.kind == kind);
    found.map_or("", |found| &found.message)
}

/// Undefines the pool of the host; the volumes in it stay.
fn undefine_pool(env: &Environment) -> FakePool {
    env.host.state().pools.remove(POOL).unwrap()
}

fn define_pool(env: &Environment, pool: FakePool) {
    env.host.state().pools.insert(POOL.into(), pool);
}

#[test]
fn a_guest_whose_pool_is_undefined_can_be_stopped_and_the_condition_names_the_commands() {
    let mut env = rich();
    env.settle();
    let pool = undefine_pool(&env);
    env.pass();
    assert_eq!(reported(&env, "StorageReady"), ("False", "PoolNotFound"));
    let text = message(&env, "StorageReady");
    assert!(text.contains("virsh pool-define-as"), "{text}");
    assert!(text.contains("virsh pool-start vms"), "{text}");
    let disks = env.machine().status.volumes.len();
    assert_eq!(disks, 3, "the disks stay in the status");
    env.power(PowerState::Stopped);
    for _ in 0..3 {
        env.pass();
    }
    assert_eq!(state(&env), Some(State::ShutOff));
    assert!(
        env.plan().unwrap().requeue_after.is_some(),
        "it is planned again soon"
    );
    define_pool(&env, pool);
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

/// A new volume of LVM shows what former ones wrote.
#[test]
fn in_a_pool_of_devices_no_volume_is_made_or_grows_and_what_is_there_runs() {
    let mut env = rich();
    env.settle();
    env.host.state().pool_types.insert(POOL.into(), "logical");
    env.edit(|block| block.disks[1].size = Bytes::mib(200 << 10));
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
    assert_eq!(reported(&env, "Scheduled"), ("False", "PoolNotFound"));
    let text = message(&env, "Scheduled");
    assert!(text.contains("pool 'vms' is of type 'logical'"), "{text}");
    let sizes = |env: &Environment| -> Vec<u64> {
        let host = env.host.state();
        host.pools[POOL]
            .volumes
            .values()
            .map(|it| it.capacity)
            .collect()
    };
    assert!(!sizes(&env).contains(&(200 << 30)));

    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    // A Machine that was bound before and has no domain yet.
    let mut env = Environment::new(block());
    while env.machine().status.host.is_none() {
        env.pass();
    }
    env.host.state().pool_types.insert(POOL.into(), "logical");
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "PoolNotFound"));
    assert_eq!(volumes(&env), [""; 0]);
}

#[test]
fn nothing_in_a_pool_that_cannot_be_read_counts_as_absent() {
    for inactive in [false, true] {
        let mut env = rich();
        env.settle();
        let pool = if inactive {
            env.host.state().pools.get_mut(POOL).unwrap().active = false;
            None
        } else {
            Some(undefine_pool(&env))
        };
        let calls = env.host.calls().len();
        for _ in 0..4 {
            env.pass();
        }
        assert_eq!(env.host.calls()[calls..], [""; 0], "nothing is recreated");
        let text = message(&env, "StorageReady");
        assert!(text.contains("virsh pool-start vms"), "{text}");
        if let Some(pool) = pool {
            define_pool(&env, pool);
        }
        env.host.state().pools.get_mut(POOL).unwrap().active = true;
        env.settle();
        assert_eq!(env.host.calls()[calls..], [""; 0]);
        assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    }
}

#[test]
fn a_machine_whose_pool_is_undefined_is_deleted_with_a_tombstone_and_keeps_every_volume() {
    let mut env = rich();
    env.settle();
    let before = volumes(&env);
    let pool = undefine_pool(&env);
    env.delete();
    let done = env.settle();
    assert!(env.machine.is_none(), "{done:#?}");
    let last = &done[done.len() - 2..];
    assert_eq!(
        last,
        [
            "recorded a tombstone on LibvirtHost alpha",
            "removed the finalizer"
        ]
    );
    // The definition is kept, shut off: its metadata lists the volumes to delete.
    assert_eq!(state(&env), Some(State::ShutOff));
    define_pool(&env, pool);
    assert_eq!(volumes(&env), before);
}

#[test]
fn a_volume_stays_while_any_pool_of_the_host_cannot_be_read() {
    let mut env = rich();
    env.settle();
    let other = FakePool {
        active: false,
        ..FakePool::of(1 << 30)
    };
    env.host.state().pools.insert("other".into(), other);
    let before = volumes(&env);
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    assert_eq!(volumes(&env), before, "an overlay may be in the other pool");
    assert_eq!(state(&env), Some(State::ShutOff));
}

#[test]
fn a_guest_whose_network_is_undefined_can_be_stopped_and_the_condition_names_the_command() {
    let mut env = Environment::new(block());
    env.settle();
    let network = env.host.state().networks.remove("default").unwrap();
    env.pass();
    assert_eq!(phase(&env), Some(Phase::Running));
    assert_eq!(reported(&env, "NetworkReady"), ("False", "NetworkFailed"));
    let text = message(&env, "NetworkReady");
    assert!(text.contains("virsh net-define"), "{text}");
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(state(&env), Some(State::ShutOff));
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    env.host.state().networks.insert("default".into(), network);
}

#[test]
fn a_guest_whose_secrets_cannot_be_read_keeps_its_seed_and_can_be_stopped() {
    let mut env = rich();
    env.settle();
    let seeds = volumes(&env);
    env.machine_mut().cloud_init = CloudInitPlan::from(&CloudInit {
        user_data: Some("#cloud-config\npackages: [vim]\n".into()),
        ..CloudInit::default()
    });
    env.contents = Err("secrets is forbidden".into());
    env.pass();
    assert_eq!(
        reported(&env, "VirtualMachineReady"),
        ("False", "CloudInitSecretNotFound")
    );
    let text = message(&env, "VirtualMachineReady");
    assert!(text.contains("secrets is forbidden"), "{text}");
    assert_eq!(volumes(&env), seeds);
    env.power(PowerState::Stopped);
    for _ in 0..3 {
        env.pass();
    }
    assert_eq!(state(&env), Some(State::ShutOff));
    env.contents = Ok(std::collections::BTreeMap::new());
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}
