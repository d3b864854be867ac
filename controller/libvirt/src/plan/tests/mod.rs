//! Lives of Machines on a host in memory: what is done, in which order, and what is told.

mod faults;

use common::api::choice::{Phase, PowerState, ReclaimPolicy};
use common::api::machine::{CloudInit, Image};
use common::names;
use common::render::CloudInitPlan;
use common::render::libvirt::{DomainMetadata, domain_uuid};

use crate::access::State;
use crate::world::{POOL, World, block};
use controller_core::fixtures::{annotate, disk, nic, pause};

const UID: &str = "uid-of-web";

/// A Machine with everything: a blank disk that is kept, one of an image, and cloud-init.
fn rich() -> World {
    let mut block = block();
    block.disks[0].image = Some(image());
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    block.disks[1].storage_class = "local".into();
    block.disks.push(disk("copy", ReclaimPolicy::Delete));
    block.disks[2].storage_class = "copied".into();
    block.disks[2].image = Some(image());
    let mut world = World::new(block);
    world.machine_mut().cloud_init = CloudInitPlan::from(&CloudInit {
        user_data: Some("#cloud-config\n".into()),
        ..CloudInit::default()
    });
    world
}

fn image() -> Image {
    Image {
        url: Some("https://images.example.com/debian.qcow2".into()),
        ..Image::default()
    }
}

fn told<'a>(world: &'a World, kind: &str) -> (&'a str, &'a str) {
    let mut conditions = world.machine().status.conditions.iter();
    let found = conditions.find(|condition| condition.kind == kind);
    found.map_or(("", ""), |found| (&found.status, &found.reason))
}

fn phase(world: &World) -> Option<Phase> {
    world.machine().status.phase
}

fn volumes(world: &World) -> Vec<String> {
    world.host.world().pools[POOL]
        .volumes
        .keys()
        .cloned()
        .collect()
}

fn state(world: &World) -> Option<State> {
    world
        .host
        .world()
        .domains
        .get(&domain_uuid(UID))
        .map(|domain| domain.state)
}

/// How often a call was asked for.
fn asked(world: &World, call: &str) -> usize {
    world
        .host
        .calls()
        .iter()
        .filter(|it| it.starts_with(call))
        .count()
}

#[test]
fn a_machine_is_bound_before_anything_is_sent_to_its_host() {
    let mut world = World::new(block());
    assert_eq!(
        world.pass(),
        [
            "added the finalizer",
            "bound the Machine to LibvirtHost alpha"
        ]
    );
    assert_eq!(world.host.calls(), [""; 0]);
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
    assert_eq!(told(&world, "Ready"), ("True", "Running"));
    assert_eq!(state(&world), Some(State::Running));
    let calls = world.host.calls().len();
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(world.host.calls().len(), calls, "nothing is done at rest");
}

#[test]
fn everything_a_machine_has_is_made_once_and_goes_with_it_but_what_is_kept() {
    let mut world = rich();
    world.settle();
    assert_eq!(
        told(&world, "Ready"),
        ("True", "Running"),
        "{:#?}",
        world.machine().status
    );
    let all = volumes(&world);
    assert_eq!(
        all.len(),
        3 + 1 + 2 + 1,
        "disks, marker of the copy, image and its marker, seed: {all:?}"
    );
    world.delete();
    world.settle();
    assert!(world.machine.is_none());
    assert_eq!(state(&world), None);
    let left = volumes(&world);
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left.iter().any(|name| name.contains(".data.")), "{left:?}");
    assert_eq!(
        left.iter()
            .filter(|name| name.starts_with("vitistack-image-"))
            .count(),
        2
    );
}

#[test]
fn a_guest_is_stopped_and_started_as_wished() {
    let mut world = World::new(block());
    world.settle();
    world.power(PowerState::Stopped);
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Stopped));
    assert_eq!(told(&world, "Ready"), ("True", "Stopped"));
    assert_eq!(state(&world), Some(State::ShutOff));
    world.power(PowerState::Running);
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
    assert_eq!((asked(&world, "start"), asked(&world, "destroy")), (2, 0));
}

#[test]
fn a_guest_that_hears_nothing_is_switched_off_when_patience_ends() {
    let mut world = World::new(block());
    world.host.world().guest.acpi = false;
    world.settle();
    world.power(PowerState::Stopped);
    for _ in 0..6 {
        world.pass();
        assert_eq!(state(&world), Some(State::Running), "it has a minute");
        assert_eq!(told(&world, "Ready"), ("False", "Stopping"));
    }
    world.settle();
    assert_eq!(state(&world), Some(State::ShutOff));
    assert_eq!(asked(&world, "destroy"), 1);
}

#[test]
fn a_guest_that_shuts_itself_down_comes_back_or_stays_as_its_user_wishes() {
    let mut world = World::new(block());
    world.settle();
    world.host.guest_shuts_down(domain_uuid(UID));
    world.settle();
    assert_eq!(state(&world), Some(State::Running));

    world.edit(|block| block.guest_shutdown_stops = true);
    world.settle();
    world.host.guest_shuts_down(domain_uuid(UID));
    world.settle();
    assert_eq!(state(&world), Some(State::ShutOff));
    assert_eq!(told(&world, "Ready"), ("True", "Stopped"));
    // The daemon was restarted, and no longer knows why it is off.
    world
        .host
        .world()
        .domains
        .get_mut(&domain_uuid(UID))
        .unwrap()
        .reason = 0;
    world.settle();
    assert_eq!(state(&world), Some(State::ShutOff));
    // Off and on again by its user.
    world.power(PowerState::Stopped);
    world.settle();
    world.power(PowerState::Running);
    world.settle();
    assert_eq!(state(&world), Some(State::Running));
    // QEMU died: that is not the guest's wish.
    world.host.qemu_dies(domain_uuid(UID));
    world.pass();
    assert_eq!(told(&world, "Ready"), ("False", "VMFailed"));
    assert_eq!(state(&world), Some(State::ShutOff), "it rests first");
    world.settle();
    assert_eq!(state(&world), Some(State::Running));
}

#[test]
fn what_somebody_edits_on_the_host_is_put_right() {
    let mut world = World::new(block());
    world.settle();
    let uuid = domain_uuid(UID);
    let defined = world.host.world().domains[&uuid].inactive.clone();
    let edited = defined.replacen("virtio", "sata", 1);
    assert_ne!(edited, defined);
    world.host.world().domains.get_mut(&uuid).unwrap().inactive = edited.clone();
    world.settle();
    assert_ne!(world.host.world().domains[&uuid].inactive, edited);
    assert_eq!(told(&world, "Ready"), ("True", "Running"));
    assert_eq!(asked(&world, "start"), 1, "the guest goes on");
}

#[test]
fn a_restart_happens_once_for_each_text_however_often_it_is_broken_off() {
    for broken in 0..12 {
        let mut world = World::new(block());
        world.edit(|block| block.guest_shutdown_stops = true);
        world.settle();
        let key = names::ANNOTATION_RESTART_REQUESTED;
        annotate(world.machine_mut(), key, "now");
        for _ in 0..broken {
            world.pass_until(broken % 3);
        }
        world.settle();
        assert_eq!(state(&world), Some(State::Running), "{broken}");
        assert_eq!(
            asked(&world, "start"),
            2,
            "{broken}: {:#?}",
            world.host.calls()
        );
        let last = world.machine().status.last_restart.clone();
        assert_eq!(last.map(|last| last.request).as_deref(), Some("now"));
        world.settle();
        assert_eq!(asked(&world, "start"), 2);
    }
}

#[test]
fn what_the_guest_can_take_while_it_runs_it_gets_and_the_rest_waits() {
    let mut world = World::new(block());
    world.settle();
    world.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
        block.networks.push(nic("eth1", None));
        block.cpu.cores = 4;
    });
    world.settle();
    assert_eq!(asked(&world, "attach"), 2, "{:#?}", world.host.calls());
    assert_eq!(told(&world, "RestartRequired"), ("True", "RestartRequired"));
    let pending = &world.machine().status.pending_changes;
    let fields: Vec<_> = pending.iter().map(|change| change.field.as_str()).collect();
    assert_eq!(fields, ["cpu.cores"]);
    annotate(
        world.machine_mut(),
        names::ANNOTATION_RESTART_REQUESTED,
        "now",
    );
    world.settle();
    assert_eq!(told(&world, "RestartRequired"), ("", ""));
    // The disk goes: out of the guest, out of the definition, and its volume with it.
    world.edit(|block| drop(block.disks.pop()));
    world.settle();
    assert_eq!(asked(&world, "detach"), 1);
    assert!(volumes(&world).iter().all(|name| !name.contains(".data.")));
}

#[test]
fn a_disk_grows_where_it_is() {
    let mut world = World::new(block());
    world.settle();
    world.edit(|block| block.disks[0].size = common::quantity::Bytes::mib(30 * 1024));
    world.settle();
    assert_eq!(
        (asked(&world, "resize_disk"), asked(&world, "resize_volume")),
        (1, 0)
    );
    world.power(PowerState::Stopped);
    world.settle();
    world.edit(|block| block.disks[0].size = common::quantity::Bytes::mib(40 * 1024));
    world.settle();
    assert_eq!(
        (asked(&world, "resize_disk"), asked(&world, "resize_volume")),
        (1, 1)
    );
}

#[test]
fn a_host_that_cannot_be_asked_is_waited_for() {
    let mut world = World::new(block());
    world.settle();
    let before = world.machine().status.clone();
    world.host.reachable(false);
    world.settle();
    assert_eq!(told(&world, "Ready"), ("Unknown", "HostUnreachable"));
    assert_eq!(phase(&world), Some(Phase::Running), "what was known last");
    assert_eq!(world.machine().status.ip_addresses, before.ip_addresses);
    world.delete();
    world.pass();
    assert!(world.machine.is_some(), "deletion waits");
    annotate(world.machine_mut(), names::ANNOTATION_FORCE_DELETE, "true");
    assert_eq!(
        world.pass(),
        [
            "left a tombstone on LibvirtHost alpha",
            "removed the finalizer"
        ]
    );
}

#[test]
fn a_look_alike_is_left_alone() {
    let mut world = World::new(block());
    world.settle();
    let uuid = domain_uuid(UID);
    let foreign = DomainMetadata {
        uid: "another".into(),
        ..DomainMetadata::default()
    };
    let mut host = world.connection().unwrap();
    host.set_mark(uuid, Some(&foreign.xml())).unwrap();
    let calls = world.host.calls().len();
    world.settle();
    assert_eq!(told(&world, "Ready"), ("False", "NameConflict"));
    // Its volume is the disk of a domain: it stays, and the Machine with it, though the policy says Delete.
    world.delete();
    for _ in 0..10 {
        world.pass();
    }
    assert!(world.machine.is_some());
    assert_eq!(state(&world), Some(State::Running));
    assert!(volumes(&world).iter().any(|name| name.contains(".root.")));
    let after = &world.host.calls()[calls..];
    assert_eq!(after, [""; 0], "nothing is changed on the host");
}

#[test]
fn a_paused_machine_and_one_on_a_host_in_maintenance_are_observed_only() {
    let mut world = World::new(block());
    world.settle();
    let calls = world.host.calls().len();
    pause(world.machine_mut());
    world.power(PowerState::Stopped);
    world.settle();
    world.machine_mut().metadata.annotations = None;
    world.object.spec.maintenance = Some(true);
    world.settle();
    assert_eq!(world.host.calls().len(), calls);
    world.object.spec.maintenance = None;
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Stopped));
}

#[test]
fn a_card_whose_address_an_older_machine_has_keeps_the_guest_off() {
    let mut block = block();
    block.networks = vec![nic("eth0", Some("prod"))];
    block.networks[0].mac_address = Some(common::mac::Mac::new([2, 0, 0, 0, 0, 1]));
    let mut older = controller_core::fixtures::machine(block.clone());
    older.metadata.name = Some("app".into());
    let mut world = World::new(block);
    world.add_network("prod", "default");
    world.conflicts = vec![std::sync::Arc::new(older)];
    world.settle();
    assert_eq!(told(&world, "NetworkReady"), ("False", "NetworkFailed"));
    assert_eq!(state(&world), None, "nothing is defined");
    world.conflicts.clear();
    world.settle();
    assert_eq!(state(&world), Some(State::Running));
}

#[test]
fn a_volume_somebody_uses_is_not_deleted() {
    let mut world = World::new(block());
    world.settle();
    let name = volumes(&world)
        .into_iter()
        .find(|name| name.contains(".root."))
        .unwrap();
    // An administrator gave the disk to a guest of his own.
    let uuid = uuid::Uuid::from_u128(7);
    let xml = format!(
        "<domain type='qemu'><name>theirs</name><uuid>{uuid}</uuid><memory>1024</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices><disk type='volume' device='disk'><source pool='{POOL}' volume='{name}'/><target dev='vda'/></disk></devices></domain>"
    );
    world.connection().unwrap().define(&xml).unwrap();
    world.delete();
    for _ in 0..10 {
        if world.machine.is_some() {
            world.pass();
        }
    }
    assert!(world.machine.is_some(), "deletion waits");
    assert!(volumes(&world).contains(&name));
    world.connection().unwrap().undefine(uuid).unwrap();
    world.settle();
    assert!(world.machine.is_none());
    assert!(!volumes(&world).contains(&name));
}
