//! Deletions of Machines whose status does not say where they are.

use super::*;
use crate::Libvirt;
use crate::access::FirmwareState;
use crate::observed::Binding;
use controller_core::backend::Growth;
use controller_core::plan::Now;
use controller_core::reconcile::plan;

fn tombstone(host: &str) -> String {
    format!("recorded a tombstone on LibvirtHost {host}")
}

const REMOVED: &str = "removed the finalizer";

#[test]
fn a_machine_whose_host_was_lost_leaves_a_tombstone_on_each_host_that_may_have_it() {
    let mut env = Environment::new(block());
    env.settle();
    env.machine_mut().status.host = None;
    env.elsewhere = vec!["alpha".into(), "beta".into()];
    env.delete();
    let calls = env.host.calls();
    assert_eq!(
        env.pass(),
        [&tombstone("alpha"), &tombstone("beta"), REMOVED]
    );
    assert_eq!(env.host.calls(), calls, "only the host itself removes it");
}

#[test]
fn a_machine_that_was_never_placed_and_is_on_no_host_is_released_at_once() {
    let mut env = Environment::new(block());
    env.pass_until(1);
    env.delete();
    assert_eq!(env.pass(), [REMOVED]);
}

#[test]
fn a_deletion_that_is_forced_leaves_a_tombstone_on_each_host_that_may_have_the_domain() {
    let mut env = Environment::new(block());
    env.settle();
    env.elsewhere = vec!["beta".into()];
    env.host.set_reachable(false);
    env.delete();
    assert_eq!(env.pass(), [""; 0], "deletion waits");
    annotate(env.machine_mut(), names::ANNOTATION_FORCE_DELETE, "true");
    assert_eq!(
        env.pass(),
        [&tombstone("beta"), &tombstone("alpha"), REMOVED]
    );
}

#[test]
fn a_machine_without_a_domain_on_the_host_of_its_status_is_released_there_and_recorded_elsewhere() {
    let mut env = Environment::new(block());
    env.settle();
    let mut host = env.connection().unwrap();
    host.destroy(domain_uuid(UID)).unwrap();
    host.undefine(domain_uuid(UID), FirmwareState::Remove)
        .unwrap();
    env.elsewhere = vec!["beta".into()];
    env.delete();
    let done = env.settle();
    assert_eq!(done.first(), Some(&tombstone("beta")), "{done:#?}");
    assert_eq!(done.last().map(String::as_str), Some(REMOVED));
    assert_eq!(volumes(&env), [""; 0]);
}

/// Nothing can be recorded in the status of an object that does not exist.
#[test]
fn a_deletion_waits_for_a_libvirt_host_that_was_deleted_even_if_it_is_forced() {
    let mut env = Environment::new(block());
    env.settle();
    env.delete();
    for forced in [false, true] {
        if forced {
            annotate(env.machine_mut(), names::ANNOTATION_FORCE_DELETE, "true");
        }
        let mut observation = env.observe().unwrap();
        observation.observed.binding = Binding::Unregistered {
            host: "alpha".into(),
        };
        let plan = plan::<Libvirt>(
            env.machine(),
            &observation,
            None,
            Growth::Permitted,
            Now(env.now),
        );
        assert_eq!((plan.finalizer, &plan.actions[..]), (None, &[][..]));
        let status = plan.status.unwrap();
        let ready = status.conditions.iter().find(|it| it.kind == "Ready");
        let message = &ready.unwrap().message;
        assert!(
            message.contains("LibvirtHost 'alpha' was deleted"),
            "{message}"
        );
        assert!(message.contains("create it again"), "{message}");
        assert!(
            message.contains(names::ANNOTATION_FORCE_DELETE),
            "{message}"
        );
    }
}
