//! Machines of which two hosts show the domain, or whose guest another client has migrated away.

use super::*;
use crate::access::AccessError;
use crate::access::fake::FakeDomain;
use crate::apply::on_host::{Job, act};
use crate::environment;
use crate::plan::action::Action;
use crate::pool_space::StorageFactor;
use crate::reservations::Reservations;
use common::render::libvirt::domain_name;

const UNDEFINE: &str = "virsh undefine --keep-nvram --keep-tpm default-web";

/// A running Machine on alpha, and the host beta that shares its pools.
fn running() -> Environment {
    let mut env = Environment::new(block()).with_other_host();
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
    env
}

fn domain(env: &Environment) -> FakeDomain {
    env.host.state().domains[&domain_uuid(UID)].clone()
}

/// Beta has the domain as well, as it is on alpha now.
fn copy_to_beta(env: &Environment) {
    let (beta, _) = env.other.as_ref().unwrap();
    beta.state().domains.insert(domain_uuid(UID), domain(env));
}

/// `virsh migrate --live` without `--undefinesource`.
fn migrate(env: &Environment) {
    copy_to_beta(env);
    env.host.is_migrated_away(domain_uuid(UID));
}

/// Removes the definition on the host that the Machine is not on, as the message says.
fn undefine_other(env: &Environment) {
    let mut host = env.other_connection().unwrap();
    let uuid = domain_uuid(UID);
    host.undefine(uuid, FirmwareState::Keep).unwrap();
}

fn assert_on_beta(env: &Environment) {
    assert_eq!(env.object.metadata.name.as_deref(), Some("beta"));
    assert_eq!(env.machine().status.host.as_deref(), Some("beta"));
}

fn starts_on_other(env: &Environment) -> usize {
    let (other, _) = env.other.as_ref().unwrap();
    let calls = other.calls().into_iter();
    calls.filter(|call| call.starts_with("start")).count()
}

#[test]
fn a_guest_that_was_migrated_with_virsh_is_on_the_other_host_and_the_old_definition_is_not_started()
{
    let mut env = running();
    migrate(&env);
    assert_eq!(env.settle(), [""; 0], "nothing is done on either host");
    assert_on_beta(&env);
    assert_eq!(starts_on_other(&env), 1, "the start before");
    let expected = ("False", "DomainOnAnotherHost");
    assert_eq!(reported(&env, "VirtualMachineReady"), expected);
    assert_eq!(reported(&env, "Ready"), expected);
    assert_eq!(phase(&env), Some(Phase::Running));
    let text = message(&env, "Ready");
    for part in [
        "the guest is on LibvirtHost 'beta'",
        "'alpha' still has a definition of its domain",
        UNDEFINE,
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!env.machine().status.volumes.is_empty(), "still listed");

    undefine_other(&env);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(times(&env, "start"), 0, "it kept running on beta");
}

#[test]
fn while_another_host_has_a_definition_a_guest_is_stopped_and_not_changed_or_started() {
    let mut env = running();
    migrate(&env);
    env.settle();
    annotate(
        env.machine_mut(),
        names::ANNOTATION_RESTART_REQUESTED,
        "now",
    );
    annotate(env.machine_mut(), names::ANNOTATION_RESET_REQUESTED, "now");
    env.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
    });
    let before = volumes(&env);
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.machine().status.last_restart, None, "it is not done");
    assert_eq!(env.machine().status.last_reset, None);
    env.power(PowerState::Stopped);
    env.settle();
    assert_on_beta(&env);
    assert_eq!(state(&env), Some(State::ShutOff));
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(
        (times(&env, "start"), starts_on_other(&env)),
        (0, 1),
        "neither is started"
    );
    assert_eq!(volumes(&env), before);
    let text = message(&env, "Ready");
    assert!(text.contains("'alpha' and 'beta'") || text.contains("'beta' and 'alpha'"));

    undefine_other(&env);
    env.settle();
    assert_on_beta(&env);
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(times(&env, "start"), 1);
}

#[test]
fn of_two_guests_that_run_none_is_touched() {
    let mut env = running();
    copy_to_beta(&env);
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.machine().status.host.as_deref(), Some("alpha"));
    let text = message(&env, "Ready");
    assert!(text.contains("at the same time"), "{text}");
    assert!(text.contains("the same libvirtd, delete one"), "{text}");
    assert!(text.contains("virsh destroy default-web"), "{text}");
    let both = [&env.host, &env.other.as_ref().unwrap().0];
    for host in both {
        let running = host.state().domains[&domain_uuid(UID)].state;
        assert_eq!(running, State::Running);
    }
}

#[test]
fn a_machine_is_not_moved_while_another_host_has_a_definition() {
    let mut env = running();
    env.power(PowerState::Stopped);
    env.settle();
    copy_to_beta(&env);
    annotate(env.machine_mut(), names::ANNOTATION_MIGRATE_REQUESTED, "a");
    assert_eq!(env.settle(), [""; 0]);
    let last = env.machine().status.last_migration.clone().unwrap();
    let text = last.message.unwrap();
    assert!(text.contains(UNDEFINE), "{text}");
    assert_eq!(env.machine().status.host.as_deref(), Some("alpha"));
}

#[test]
fn a_deletion_stops_the_guest_and_deletes_nothing_until_one_definition_is_left() {
    let mut env = running();
    migrate(&env);
    env.settle();
    let before = volumes(&env);
    env.delete();
    for _ in 0..10 {
        env.pass();
    }
    assert!(env.machine.is_some(), "deletion waits");
    assert_eq!(state(&env), Some(State::ShutOff));
    assert_eq!(volumes(&env), before);
    let text = message(&env, "Ready");
    assert!(text.contains("deletion waits: LibvirtHosts"), "{text}");
    undefine_other(&env);
    env.settle();
    assert!(env.machine.is_none());
    assert_eq!(state(&env), None);
    assert_eq!(volumes(&env), [""; 0]);
}

#[test]
fn a_guest_that_was_migrated_to_an_unknown_host_is_not_started_even_if_the_host_forgets_it() {
    let mut env = running();
    let uuid = domain_uuid(UID);
    env.host.is_migrated_away(uuid);
    env.settle();
    let text = message(&env, "Ready");
    assert!(
        text.contains("another client has migrated the guest"),
        "{text}"
    );
    // The daemon was restarted and has lost the reason of the state.
    env.host.state().domains.get_mut(&uuid).unwrap().reason = 0;
    env.settle();
    assert_eq!(times(&env, "start"), 1, "the start before");
    assert_eq!(
        reported(&env, "Ready"),
        ("False", "DomainOnAnotherHost"),
        "{:#?}",
        env.machine().status
    );
    let mut deleted = running();
    deleted.host.is_migrated_away(uuid);
    deleted.delete();
    for _ in 0..5 {
        deleted.pass();
    }
    assert!(deleted.machine.is_some(), "deletion waits");
    assert!(!volumes(&deleted).is_empty());

    // Somebody starts it here.
    env.connection().unwrap().start(uuid, false).unwrap();
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    let defined = domain(&env).inactive;
    assert!(!defined.contains("migratedAway"), "{defined}");
}

/// The plan was made before the guest was migrated.
#[test]
fn a_guest_is_not_started_if_it_was_migrated_away_since_the_plan_was_made() {
    let env = running();
    let uuid = domain_uuid(UID);
    let job = || Job {
        uuid,
        owner: UID.into(),
        domain: domain_name("default", "web", UID),
        guard: environment::guard(),
        factor: StorageFactor::default(),
        reservations: Reservations::default(),
    };
    env.host.is_migrated_away(uuid);
    let start = Action::Start { reset_nvram: false };
    let mut host = env.connection().unwrap();
    let refused = act(&mut *host, &job(), start).unwrap_err();
    assert!(
        matches!(&refused, AccessError::Changed(why) if why.contains("migrated")),
        "{refused}"
    );
    assert_eq!(state(&env), Some(State::ShutOff));
}
