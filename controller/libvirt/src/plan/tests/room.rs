//! A Machine that asks for more than others leave on its host keeps what it has.

use common::api::libvirt_host::HostResources;
use common::quantity::Bytes;

use super::*;
use crate::access::AccessError;
use crate::apply::on_host::{Job, act};
use crate::capacity::UNLIMITED;
use crate::failure::failed;
use crate::plan::action::Action;
use crate::pool_space::StorageFactor;
use crate::reservations::Reservations;
use common::render::libvirt::{VolumeFormat, VolumeSpec, domain_name, volume_xml};
use controller_core::plan::{Refusal, Subject};

fn message<'a>(env: &'a Environment, kind: &str) -> &'a str {
    let mut conditions = env.machine().status.conditions.iter();
    let found = conditions.find(|condition| condition.kind == kind);
    found.map_or("", |found| &found.message)
}

fn room(cpu: u32, gib: u64) -> HostResources {
    HostResources {
        cpu,
        memory: Bytes::mib(gib * 1024),
    }
}

fn memory(env: &mut Environment, size: &str) {
    let size = size.parse().unwrap();
    env.edit(|block| (block.memory.size, block.memory.max_size) = (size, size));
}

fn grown(env: &Environment) -> Option<HostResources> {
    let detail = env.connection().unwrap().domain(domain_uuid(UID));
    let state = detail.unwrap().unwrap().state;
    DomainMetadata::parse(&state.metadata.unwrap())
        .unwrap()
        .grown
}

#[test]
fn a_machine_that_grows_beyond_the_room_of_its_host_keeps_what_it_has() {
    let mut env = Environment::new(block());
    memory(&mut env, "512Mi");
    env.settle();
    let calls = env.host.calls().len();
    env.room = room(8, 12);
    memory(&mut env, "12Ti");
    env.settle();
    assert_eq!(env.host.calls()[calls..], [""; 0], "nothing is changed");
    assert_eq!(reported(&env, "Scheduled"), ("False", "NoRoom"));
    let text = message(&env, "Scheduled");
    for figure in [
        "'alpha' has room for 12Gi memory",
        "asks for 12Ti",
        "keeps 512Mi",
    ] {
        assert!(text.contains(figure), "{figure}: {text}");
    }
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(env.machine().status.pending_changes, []);

    // What it asks for next fits, and waits for a restart.
    memory(&mut env, "4Gi");
    env.settle();
    assert_eq!(reported(&env, "Scheduled"), ("", ""));
    assert_eq!(env.machine().status.pending_changes.len(), 2);
    assert_eq!(grown(&env), Some(room(2, 4)), "it counts on the host");
    // Others took the room before the restart: the definition goes back to what runs.
    env.room = room(8, 1);
    env.settle();
    assert_eq!(reported(&env, "Scheduled"), ("False", "NoRoom"));
    assert_eq!(env.machine().status.pending_changes, []);
    assert_eq!(grown(&env), None);

    env.room = UNLIMITED;
    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(env.machine_mut(), key, "now");
    env.settle();
    assert_eq!(env.machine().status.pending_changes, []);
    assert_eq!(grown(&env), None, "the guest has it");
    let detail = env.connection().unwrap().domain(domain_uuid(UID));
    assert_eq!(detail.unwrap().unwrap().state.memory, 4 << 30);
}

#[test]
fn what_fits_is_given_and_what_does_not_fit_is_not() {
    let mut env = Environment::new(block());
    env.edit(|block| block.cpu.max_sockets = 16);
    env.settle();
    env.room = room(8, 12);
    env.edit(|block| block.cpu.sockets = 4);
    memory(&mut env, "13Gi");
    env.settle();
    assert_eq!(times(&env, "set_vcpus"), 1, "{:#?}", env.host.calls());
    let text = message(&env, "Scheduled");
    assert!(text.contains("13Gi") && !text.contains("vCPUs"), "{text}");
    env.edit(|block| block.cpu.sockets = 5);
    env.settle();
    assert_eq!(times(&env, "set_vcpus"), 1);
    let text = message(&env, "Scheduled");
    assert!(
        text.contains("8 vCPUs of this Machine, which asks for 10 and keeps 8"),
        "{text}"
    );
}

#[test]
fn a_guest_that_is_off_grows_only_into_room() {
    let mut env = Environment::new(block());
    env.settle();
    env.power(PowerState::Stopped);
    env.settle();
    env.room = room(8, 3);
    memory(&mut env, "4Gi");
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(
        state(&env),
        Some(State::Running),
        "it starts with what it has"
    );
    assert_eq!(reported(&env, "Scheduled"), ("False", "NoRoom"));
    let detail = env.connection().unwrap().domain(domain_uuid(UID));
    assert_eq!(detail.unwrap().unwrap().state.memory, 2 << 30);
}

#[test]
fn a_machine_without_a_domain_gets_all_that_it_asks_for_or_nothing() {
    let mut env = Environment::new(block());
    env.room = room(8, 1);
    env.settle();
    assert_eq!(env.host.calls(), [""; 0]);
    assert_eq!(reported(&env, "Ready"), ("False", "NoRoom"));
    env.room = UNLIMITED;
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

fn disk_size(env: &mut Environment, gib: u64) {
    env.edit(|block| block.disks[0].size = Bytes::mib(gib * 1024));
}

fn pool_capacity(env: &Environment, gib: u64) {
    env.host.state().pools.get_mut(POOL).unwrap().capacity = gib << 30;
}

#[test]
fn a_disk_grows_only_into_the_room_of_its_pool() {
    let mut env = Environment::new(block());
    env.settle();
    pool_capacity(&env, 50);
    disk_size(&mut env, 64 * 1024);
    env.settle();
    assert_eq!(times(&env, "resize_disk"), 0);
    assert_eq!(reported(&env, "Scheduled"), ("False", "NoRoom"));
    let text = message(&env, "Scheduled");
    for figure in [
        "pool 'vms'",
        "room for 30Gi more",
        "asks for 64Ti, which keeps 20Gi",
    ] {
        assert!(text.contains(figure), "{figure}: {text}");
    }
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(
        env.machine().status.volumes[0].capacity.as_deref(),
        Some("20Gi")
    );
    disk_size(&mut env, 50);
    env.settle();
    assert_eq!(times(&env, "resize_disk"), 1);
    assert_eq!(reported(&env, "Scheduled"), ("", ""));
}

#[test]
fn a_disk_that_is_added_is_made_only_if_its_pool_has_room_for_it() {
    let mut env = Environment::new(block());
    env.settle();
    pool_capacity(&env, 35);
    env.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
    });
    env.settle();
    assert_eq!(
        (times(&env, "create_volume"), times(&env, "attach")),
        (1, 0)
    );
    assert_eq!(reported(&env, "Scheduled"), ("False", "NoRoom"));
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    // The rest goes on: it can be stopped and started.
    env.power(PowerState::Stopped);
    env.settle();
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
    pool_capacity(&env, 40);
    env.settle();
    assert_eq!(
        (times(&env, "create_volume"), times(&env, "attach")),
        (2, 1)
    );
}

#[test]
fn a_machine_without_a_domain_waits_for_room_for_its_disks() {
    let mut env = Environment::new(block());
    pool_capacity(&env, 19);
    env.settle();
    assert_eq!(env.host.calls(), [""; 0]);
    assert_eq!(reported(&env, "StorageReady"), ("False", "NoRoom"));
    pool_capacity(&env, 20);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

/// Makes a volume of this size, as another Machine of the host does.
fn other_volume(env: &Environment, gib: u64) {
    let xml = volume_xml(&VolumeSpec {
        name: "other",
        format: VolumeFormat::Qcow2,
        capacity: Bytes::mib(gib * 1024),
        backing: None,
    });
    let mut host = env.connection().unwrap();
    host.create_volume(POOL, &xml).unwrap();
}

/// Carries out the first action of a plan that fits, after another Machine has taken room.
fn act_late(env: &Environment, fits: impl Fn(&Action) -> bool) -> AccessError {
    let plan = env.plan().unwrap();
    let action = plan.actions.iter().find(|action| fits(action));
    let action = action
        .unwrap_or_else(|| panic!("{:?}", plan.actions))
        .clone();
    other_volume(env, 20);
    let job = Job {
        uuid: domain_uuid(UID),
        owner: UID.into(),
        domain: domain_name("default", "web", UID),
        guard: env.guard(),
        factor: StorageFactor::of(&env.object.spec),
        reservations: Reservations::default(),
    };
    act(&mut *env.connection().unwrap(), &job, action).unwrap_err()
}

#[test]
fn room_that_another_machine_took_since_the_plan_is_not_taken_again() {
    let mut env = Environment::new(block());
    pool_capacity(&env, 30);
    env.machine_mut().status.host = Some("alpha".into());
    let error = act_late(&env, |it| matches!(it, Action::CreateVolume { .. }));
    assert_eq!(error.kind(), "NoRoom");
    assert_eq!(times(&env, "create_volume"), 1, "only the other one");

    let mut block = block();
    block.disks[0].storage_class = "copied".into();
    block.disks[0].image = Some(image());
    let mut env = Environment::new(block);
    while copy(&env).is_none() {
        env.pass();
    }
    pool_capacity(&env, 30);
    let error = act_late(&env, |it| matches!(it, Action::CopyVolume { .. }));
    assert_eq!(error.kind(), "NoRoom");
    assert_eq!(times(&env, "copy_volume"), 0);
}

/// The copy that the plan has now.
fn copy(env: &Environment) -> Option<Action> {
    let plan = env.plan().unwrap();
    let mut actions = plan.actions.into_iter();
    actions.find(|it| matches!(it, Action::CopyVolume { .. }))
}

#[test]
fn a_disk_does_not_grow_into_room_that_another_machine_took_since_the_plan() {
    for power in [PowerState::Running, PowerState::Stopped] {
        let mut env = Environment::new(block());
        env.settle();
        env.power(power);
        env.settle();
        pool_capacity(&env, 50);
        disk_size(&mut env, 40);
        let grows = |it: &Action| matches!(it, Action::GrowDisk { .. } | Action::GrowVolume(_));
        let error = act_late(&env, grows);
        assert_eq!(error.kind(), "NoRoom");
        let text = error.to_string();
        assert!(text.contains("has room for 30Gi, and volume"), "{text}");
        assert_eq!(times(&env, "resize_disk") + times(&env, "resize_volume"), 0);
    }
}

#[test]
fn a_job_that_found_no_room_is_reported_as_a_plan_that_finds_none() {
    let refusal = Refusal {
        subject: Subject::Storage,
        reason: failed(&AccessError::NoRoom(String::new())).reason,
        message: "pool 'vms' has room for 1Gi".into(),
    };
    let condition = |env: &Environment, kind: &str| {
        let plan = env.plan_after(Some(&refusal)).unwrap();
        let conditions = plan.status.unwrap().conditions.into_iter();
        let mut found = conditions.filter(|it| it.kind == kind);
        found.next().map(|it| (it.status, it.reason, it.message))
    };
    let expected = ("False".into(), "NoRoom".into(), refusal.message.clone());
    let mut env = Environment::new(block());
    env.machine_mut().status.host = Some("alpha".into());
    assert_eq!(condition(&env, "StorageReady"), Some(expected.clone()));
    env.settle();
    assert_eq!(condition(&env, "Scheduled"), Some(expected));
    assert_eq!(condition(&env, "StorageReady").unwrap().0, "True");
}
