//! A Machine whose growth the quota of its namespace holds keeps what it has, and is switched on and off.

use common::api::choice::PowerState;
use common::api::normalized::NormalizedCdrom;
use common::quantity::Bytes;
use controller_core::conditions::Fault;

use super::*;

fn held() -> Environment {
    let mut env = Environment::new(block());
    env.settle();
    env.hold = Some(Fault::new("QuotaExceeded", "the quota is used up"));
    env
}

fn start_again(env: &mut Environment) {
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(state(env), Some(State::ShutOff));
    assert_eq!(phase(env), Some(Phase::Stopped));
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(state(env), Some(State::Running));
    annotate(
        env.machine_mut(),
        names::ANNOTATION_RESTART_REQUESTED,
        "now",
    );
    env.settle();
    assert_eq!(state(env), Some(State::Running));
    assert_eq!(times(env, "start"), 3);
    let last = env.machine().status.last_restart.clone();
    assert_eq!(last.map(|last| last.request).as_deref(), Some("now"));
}

fn metadata(env: &Environment) -> DomainMetadata {
    let detail = env.connection().unwrap().domain(domain_uuid(UID));
    let state = detail.unwrap().unwrap().state;
    DomainMetadata::parse(&state.metadata.unwrap()).unwrap()
}

#[test]
fn a_guest_that_may_not_grow_is_stopped_started_and_restarted_as_it_is() {
    let mut env = held();
    let before = (volumes(&env), metadata(&env).volumes);
    env.edit(|block| {
        let size = Bytes::mib(8 * 1024);
        (block.memory.size, block.memory.max_size) = (size, size);
        block.cpu.cores = 4;
        block.disks[0].size = Bytes::mib(30 * 1024);
    });
    env.settle();
    assert_eq!(reported(&env, "Scheduled"), ("False", "QuotaExceeded"));
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    start_again(&mut env);
    assert_eq!(metadata(&env).grown, None, "it takes no room from others");
    let detail = env.connection().unwrap().domain(domain_uuid(UID));
    let detail = detail.unwrap().unwrap().state;
    assert_eq!((detail.vcpus, detail.memory), (2, 2 << 30));
    assert_eq!(times(&env, "resize"), 0);
    assert_eq!((volumes(&env), metadata(&env).volumes), before);

    env.hold = None;
    env.settle();
    assert_eq!(times(&env, "resize_disk"), 1);
    assert_eq!(reported(&env, "Scheduled"), ("", ""));
    assert_eq!(
        reported(&env, "RestartRequired"),
        ("True", "RestartRequired")
    );
}

/// The present definition is that of the next start, so a restart would bring nothing.
#[test]
fn while_the_growth_is_held_nothing_waits_for_a_restart() {
    let mut env = held();
    env.edit(|block| block.cpu.cores = 4);
    env.settle();
    assert_eq!(reported(&env, "RestartRequired"), ("", ""));
    assert!(env.machine().status.pending_changes.is_empty());
    env.hold = None;
    env.settle();
    assert_eq!(
        reported(&env, "RestartRequired"),
        ("True", "RestartRequired")
    );
}

/// The definition stays as it is, so the guest keeps what the spec gives back.
#[test]
fn what_a_guest_has_more_of_counts_while_a_quota_holds_its_growth() {
    let mut env = held();
    env.edit(|block| {
        block.cpu.cores = 1;
        block.memory.size = Bytes::mib(1 << 20);
        block.memory.max_size = block.memory.size;
    });
    env.settle();
    let pending = &env.machine().status.pending_changes;
    let cores: Vec<_> = pending
        .iter()
        .map(|it| (&*it.field, &*it.current))
        .collect();
    assert_eq!(cores, [("cpu.cores", "2")]);
    assert_eq!(reported(&env, "RestartRequired"), ("", ""));
}

/// The images of disks and drives were never fetched.
#[test]
fn a_disk_that_is_not_made_and_a_medium_that_is_fetched_keep_no_guest_off() {
    let mut env = held();
    env.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
        block.disks[1].image = Some(image());
    });
    env.settle();
    assert_eq!(times(&env, "create_volume"), 1, "not even its image");
    start_again(&mut env);

    let mut env = held();
    env.edit(|block| {
        block.cpu.cores = 4;
        block.cdroms.push(NormalizedCdrom {
            hotpluggable: false,
            image_pin: None,
            boot_order: None,
            name: "iso".into(),
            image: Some(image()),
            size: None,
            storage_class: None,
        });
    });
    env.settle();
    start_again(&mut env);
}

/// Deleting what is kept makes the room that the Machine waits for.
#[test]
fn a_machine_without_a_domain_releases_the_kept_volumes_that_its_annotation_names() {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    block.disks[1].storage_class = "local".into();
    let mut env = Environment::new(block.clone());
    env.settle();
    env.delete();
    env.settle();
    assert_eq!(volumes(&env).len(), 1);
    let mut next = controller_core::fixtures::machine(block);
    next.metadata.uid = Some("uid-of-the-next".into());
    next.status.host = Some("alpha".into());
    env.machine = Some(next);
    env.hold = Some(Fault::new("QuotaExceeded", "the quota is used up"));
    env.settle();
    assert_eq!(volumes(&env).len(), 1);
    annotate(env.machine_mut(), names::ANNOTATION_RELEASE_VOLUME, "data");
    env.settle();
    assert_eq!(volumes(&env), [""; 0]);
    assert_eq!(env.object.status.kept_volumes, []);
}

#[test]
fn of_a_machine_without_a_domain_nothing_is_made_and_the_reason_is_reported() {
    let mut env = Environment::new(block());
    env.hold = Some(Fault::new("QuotaExceeded", "the quota is used up"));
    env.settle();
    assert_eq!(env.host.calls(), [""; 0]);
    assert_eq!(reported(&env, "Ready"), ("False", "QuotaExceeded"));
    env.hold = None;
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}
