//! The log of a console, which is removed with its Machine.

use common::api::choice::ReclaimPolicy;
use common::render::libvirt::console_log_name;
use controller_core::objects::Meta as _;

use super::state;
use crate::access::AccessError;
use crate::access::fake::{FakePool, FakeVolume, When};
use crate::environment::{Environment, block};

/// Adds the log of the console, in a pool of its own. Returns the name of the log.
pub(super) fn add_log(env: &mut Environment) -> String {
    env.object.spec.console_log_pool = Some("logs".into());
    let machine = env.machine();
    let log = console_log_name(machine.namespace(), machine.name(), machine.uid());
    let mut logs = FakePool::of(1 << 30);
    logs.volumes.insert(log.clone(), FakeVolume::default());
    env.host.state().pools.insert("logs".into(), logs);
    log
}

/// A Machine whose disk is kept, with the log of its console, on a host with one more pool that is not active.
fn with_log_beside_an_unreadable_pool() -> (Environment, String) {
    let mut block = block();
    block.disks[0].reclaim_policy = ReclaimPolicy::Retain;
    let mut env = Environment::new(block);
    let log = add_log(&mut env);
    env.settle();
    let other = FakePool {
        active: false,
        ..FakePool::of(1 << 30)
    };
    env.host.state().pools.insert("other".into(), other);
    (env, log)
}

fn has_log(env: &Environment, log: &str) -> bool {
    env.host.state().pools["logs"].volumes.contains_key(log)
}

#[test]
fn a_deletion_does_not_wait_for_a_pool_that_only_the_removal_of_the_log_reads() {
    for is_readable in [false, true] {
        let (mut env, log) = with_log_beside_an_unreadable_pool();
        env.host.state().pools.get_mut("other").unwrap().active = is_readable;
        env.delete();
        env.settle();
        assert!(env.machine.is_none(), "{is_readable}");
        assert_eq!(state(&env), None);
        assert_eq!(has_log(&env, &log), !is_readable);
    }
}

#[test]
fn a_deletion_waits_while_the_removal_of_the_log_was_not_answered() {
    let (mut env, log) = with_log_beside_an_unreadable_pool();
    env.host.state().pools.remove("other");
    let gone = AccessError::Disconnected("the connection ended".into());
    env.host.fail("delete_volume", When::Before, gone);
    env.delete();
    while !env.host.calls().iter().any(|it| it.contains(&log)) {
        env.pass();
    }
    assert!(env.machine.is_some() && has_log(&env, &log));
    env.settle();
    assert!(env.machine.is_none() && !has_log(&env, &log));
}
