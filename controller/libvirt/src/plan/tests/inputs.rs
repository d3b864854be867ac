//! Machines and hosts in which the laws are examined.

use common::quantity::Bytes;
use common::render::SecretValue;

use super::laws::define_on_another_host;
use super::*;
use crate::access::AccessError;
use crate::access::fake::{FakeLibvirt, When};
use crate::observed::Password;

/// A Machine that is stopped, and a host that it can be moved to.
pub(super) fn movable() -> Environment {
    let mut block = block();
    block.power_state = PowerState::Stopped;
    Environment::new(block).with_other_host()
}

/// A Machine whose guest ignores requests to shut down.
pub(super) fn ignoring_shutdown() -> Environment {
    let env = rich();
    env.host.state().guest.acpi = false;
    env
}

/// A Machine whose host has no pool for its storage class any more.
pub(super) fn without_pool_for_its_class() -> Environment {
    let mut env = rich();
    env.object.spec.storage = None;
    env
}

/// A Machine whose network the host does not have.
pub(super) fn without_network() -> Environment {
    let env = rich();
    env.host.state().networks.clear();
    env
}

/// A Machine that its host has no room for.
pub(super) fn without_room() -> Environment {
    let mut env = rich();
    env.room.memory = Bytes::mib(1);
    env
}

/// A Machine whose host was restarted, and whose pool is empty because its file system is not mounted.
pub(super) fn unmounted() -> Environment {
    let mut env = rich();
    env.settle();
    lost::switch_off(&env);
    lost::unmount(&env);
    env
}

/// A Machine that no host takes.
pub(super) fn on_no_host() -> Environment {
    let mut env = rich();
    env.object.spec.schedulable = Some(false);
    env
}

/// A Machine whose host does not answer.
pub(super) fn unreachable() -> Environment {
    let mut env = rich();
    env.settle();
    env.host.set_reachable(false);
    env
}

/// A Machine whose guest is off on two hosts that have its definition.
pub(super) fn defined_on_two_hosts() -> Environment {
    let mut env = rich();
    env.settle();
    env.host.is_switched_off(domain_uuid(UID));
    define_on_another_host(&mut env, UID);
    env
}

/// A Machine whose host is in maintenance.
pub(super) fn under_maintenance() -> Environment {
    let mut env = rich();
    env.settle();
    env.object.spec.maintenance = Some(true);
    env.host.is_switched_off(domain_uuid(UID));
    env
}

/// A Machine that is to be off, and whose guest ignores requests to shut down.
pub(super) fn ignoring_stop() -> Environment {
    let mut env = ignoring_shutdown();
    env.settle();
    env.power(PowerState::Stopped);
    env
}

/// A Machine whose status has lost the host that may have its domain.
pub(super) fn with_lost_host() -> Environment {
    let mut env = rich();
    env.settle();
    env.machine_mut().status.host = None;
    env.elsewhere = vec!["alpha".into()];
    env
}

/// A Machine whose guest runs with a log of its console, and gets another password of its screen and another card with an
/// address.
pub(super) fn changed() -> Environment {
    let mut env = screen::with_password();
    let secret = |version, content: &[u8]| SecretValue::new("uid", version, content.to_vec());
    env.password = Password::Read(Some(secret("7", b"s3cret")));
    console_log::add_log(&mut env);
    env.settle();
    env.password = Password::Read(Some(secret("8", b"changed")));
    dhcp::hold(&mut env, "eth1", dhcp::FIRST);
    env.edit(|block| block.networks.push(nic("eth1", None)));
    env
}

/// More calls than any law makes.
const ALWAYS: usize = 10_000;

/// From now on the host is busy whenever it is asked to do this.
fn is_busy(host: &FakeLibvirt, call: &'static str) {
    for _ in 0..ALWAYS {
        host.fail(
            call,
            When::Before,
            AccessError::Busy("the host is busy".into()),
        );
    }
}

/// The settled environment, with this annotation of the Machine.
fn requesting(mut env: Environment, annotation: &str) -> Environment {
    env.settle();
    annotate(env.machine_mut(), annotation, "now");
    env
}

/// A Machine that is restarted, and whose guest neither shuts down nor can be switched off.
pub(super) fn restarting() -> Environment {
    let env = requesting(ignoring_shutdown(), names::ANNOTATION_RESTART_REQUESTED);
    is_busy(&env.host, "destroy");
    env
}

/// A Machine that is to be moved to a host that is busy.
pub(super) fn moving() -> Environment {
    let env = requesting(movable(), names::ANNOTATION_MIGRATE_REQUESTED);
    let (other, _) = env.other.as_ref().unwrap();
    is_busy(other, "refresh");
    env
}

/// A Machine that is moved, and whose definition cannot be removed.
pub(super) fn leaving() -> Environment {
    let env = requesting(movable(), names::ANNOTATION_MIGRATE_REQUESTED);
    is_busy(&env.host, "undefine");
    env
}

/// A Machine whose guest cannot be reset now.
pub(super) fn resetting() -> Environment {
    let env = requesting(rich(), names::ANNOTATION_RESET_REQUESTED);
    is_busy(&env.host, "reset");
    env
}
