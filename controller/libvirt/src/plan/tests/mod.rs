//! Lifecycles of Machines on a host in memory: which actions, in which order, and which status.

mod adoption;
mod console_log;
mod copies;
mod dhcp;
mod elsewhere;
mod existing;
mod faults;
mod hardware;
mod headers;
mod held;
mod images;
mod inputs;
mod laws;
mod left_alone;
mod limits;
mod lost;
mod moving;
mod other_hosts;
mod partial;
mod power;
mod preconditions;
mod released;
mod restart;
mod returned;
mod room;
mod screen;
mod seed;
mod unmounted;
mod unrecorded;

use common::api::choice::{Phase, PowerState, ReclaimPolicy};
use common::api::machine::{CloudInit, Image};
use common::names;
use common::render::CloudInitPlan;
use common::render::libvirt::{DomainMetadata, domain_uuid};

use crate::access::{FirmwareState, Lease, State};
use crate::environment::{Environment, POOL, block};
use crate::probing::Readiness;
use controller_core::fixtures::{annotate, disk, nic, pause};
use controller_core::foreign_stop::OnForeignStop;

const UID: &str = "uid-of-web";

/// A Machine with everything: a blank disk that is kept, one of an image, and cloud-init.
fn rich() -> Environment {
    let mut block = block();
    block.disks[0].image = Some(image());
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    block.disks[1].storage_class = "local".into();
    block.disks.push(disk("copy", ReclaimPolicy::Delete));
    block.disks[2].storage_class = "copied".into();
    block.disks[2].image = Some(image());
    let mut env = Environment::new(block);
    env.machine_mut().cloud_init = CloudInitPlan::from(&CloudInit {
        user_data: Some("#cloud-config\n".into()),
        ..CloudInit::default()
    });
    env
}

fn image() -> Image {
    Image {
        url: Some("https://images.example.com/debian.qcow2".into()),
        ..Image::default()
    }
}

fn reported<'a>(env: &'a Environment, kind: &str) -> (&'a str, &'a str) {
    let mut conditions = env.machine().status.conditions.iter();
    let found = conditions.find(|condition| condition.kind == kind);
    found.map_or(("", ""), |found| (&found.status, &found.reason))
}

fn message(env: &Environment, kind: &str) -> String {
    let mut conditions = env.machine().status.conditions.iter();
    let found = conditions.find(|condition| condition.kind == kind);
    found.map_or("", |found| &found.message).to_owned()
}

fn phase(env: &Environment) -> Option<Phase> {
    env.machine().status.phase
}

fn volumes(env: &Environment) -> Vec<String> {
    env.host.state().pools[POOL]
        .volumes
        .keys()
        .cloned()
        .collect()
}

fn state(env: &Environment) -> Option<State> {
    env.host
        .state()
        .domains
        .get(&domain_uuid(UID))
        .map(|domain| domain.state)
}

/// Number of calls of this name.
fn times(env: &Environment, call: &str) -> usize {
    env.host
        .calls()
        .iter()
        .filter(|it| it.starts_with(call))
        .count()
}

#[test]
fn a_machine_is_bound_before_anything_is_sent_to_its_host() {
    let mut env = Environment::new(block());
    assert_eq!(
        env.pass(),
        [
            "added the finalizer",
            "bound the Machine to LibvirtHost alpha"
        ]
    );
    assert_eq!(env.host.calls(), [""; 0]);
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Running));
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(state(&env), Some(State::Running));
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls, "a second pass does nothing");
}

#[test]
fn a_deleted_machine_leaves_retained_disks_and_images_only() {
    let mut env = rich();
    env.settle();
    assert_eq!(
        reported(&env, "Ready"),
        ("True", "Running"),
        "{:#?}",
        env.machine().status
    );
    let all = volumes(&env);
    assert_eq!(
        all.len(),
        3 + 1 + 2 + 1,
        "disks, marker of the copy, image and its marker, seed: {all:?}"
    );
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    assert_eq!(state(&env), None);
    let left = volumes(&env);
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
fn an_edited_definition_is_restored_without_a_restart() {
    let mut env = Environment::new(block());
    env.settle();
    let uuid = domain_uuid(UID);
    let defined = env.host.state().domains[&uuid].inactive.clone();
    let edited = defined.replacen("virtio", "sata", 1);
    assert_ne!(edited, defined);
    env.host.state().domains.get_mut(&uuid).unwrap().inactive = edited.clone();
    env.settle();
    assert_ne!(env.host.state().domains[&uuid].inactive, edited);
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(times(&env, "start"), 1, "the guest keeps running");
}

#[test]
fn hot_pluggable_changes_are_applied_and_others_wait_for_a_restart() {
    let mut env = Environment::new(block());
    env.settle();
    env.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
        block.networks.push(nic("eth1", None));
        block.cpu.cores = 4;
    });
    env.settle();
    assert_eq!(times(&env, "attach"), 2, "{:#?}", env.host.calls());
    assert_eq!(
        reported(&env, "RestartRequired"),
        ("True", "RestartRequired")
    );
    let pending = &env.machine().status.pending_changes;
    let fields: Vec<_> = pending.iter().map(|change| change.field.as_str()).collect();
    assert_eq!(fields, ["cpu.cores"]);
    annotate(
        env.machine_mut(),
        names::ANNOTATION_RESTART_REQUESTED,
        "now",
    );
    env.settle();
    assert_eq!(reported(&env, "RestartRequired"), ("", ""));
    // The disk goes: out of the guest and out of the definition. Its volume stays.
    env.edit(|block| drop(block.disks.pop()));
    env.settle();
    assert_eq!(times(&env, "detach"), 1);
    assert!(volumes(&env).iter().any(|name| name.contains(".data.")));
}

#[test]
fn a_disk_grows_where_it_is() {
    let mut env = Environment::new(block());
    env.settle();
    env.edit(|block| block.disks[0].size = common::quantity::Bytes::mib(30 * 1024));
    env.settle();
    assert_eq!(
        (times(&env, "resize_disk"), times(&env, "resize_volume")),
        (1, 0)
    );
    env.power(PowerState::Stopped);
    env.settle();
    env.edit(|block| block.disks[0].size = common::quantity::Bytes::mib(40 * 1024));
    env.settle();
    assert_eq!(
        (times(&env, "resize_disk"), times(&env, "resize_volume")),
        (1, 1)
    );
}

/// QEMU keeps the size of a file that grows below it.
#[test]
fn a_disk_of_a_guest_that_is_started_grows_through_the_guest() {
    let mut env = Environment::new(block());
    env.settle();
    env.power(PowerState::Stopped);
    env.settle();
    env.edit(|block| {
        block.disks[0].size = common::quantity::Bytes::mib(40 * 1024);
        block.power_state = PowerState::Running;
    });
    env.settle();
    assert_eq!(
        (times(&env, "resize_disk"), times(&env, "resize_volume")),
        (1, 0)
    );
    assert_eq!(reported(&env, "StorageReady"), ("True", "VolumesReady"));
}

#[test]
fn an_unreachable_host_keeps_its_machine_until_force_delete() {
    let mut env = Environment::new(block());
    env.settle();
    let before = env.machine().status.clone();
    env.host.set_reachable(false);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("Unknown", "HostUnreachable"));
    assert_eq!(phase(&env), Some(Phase::Running), "what was known last");
    assert_eq!(env.machine().status.ip_addresses, before.ip_addresses);
    env.delete();
    env.pass();
    assert!(env.machine.is_some(), "deletion waits");
    annotate(env.machine_mut(), names::ANNOTATION_FORCE_DELETE, "true");
    assert_eq!(
        env.pass(),
        [
            "recorded a tombstone on LibvirtHost alpha",
            "removed the finalizer"
        ]
    );
}

#[test]
fn a_domain_of_the_uuid_with_other_metadata_is_not_changed() {
    let mut env = Environment::new(block());
    env.settle();
    let uuid = domain_uuid(UID);
    let foreign = DomainMetadata {
        uid: "another".into(),
        ..DomainMetadata::default()
    };
    let mut host = env.connection().unwrap();
    host.set_metadata(uuid, Some(&foreign.xml())).unwrap();
    let calls = env.host.calls().len();
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("False", "NameConflict"));
    // Its volume is the disk of a domain: it is kept, and so is the Machine, although the policy is Delete.
    env.delete();
    for _ in 0..10 {
        env.pass();
    }
    assert!(env.machine.is_some());
    assert_eq!(state(&env), Some(State::Running));
    assert!(volumes(&env).iter().any(|name| name.contains(".root.")));
    let after = &env.host.calls()[calls..];
    assert_eq!(after, [""; 0], "nothing is changed on the host");
}

#[test]
fn a_guest_that_runs_is_ready_as_its_probe_shows() {
    let mut env = Environment::new(block());
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    let mut shows = |is_ready| {
        env.readiness = Some(Readiness {
            is_ready,
            why: "the guest agent was not asked yet".into(),
        });
        env.settle();
        assert_eq!(phase(&env), Some(Phase::Running));
        (
            reported(&env, "Ready").0 == "True",
            message(&env, "Ready").ends_with("not asked yet"),
        )
    };
    assert_eq!(shows(false), (false, true));
    assert_eq!(shows(true), (true, false));
    assert_eq!(shows(false), (false, true));
    assert_eq!(reported(&env, "Ready"), ("False", "ReadinessProbeFailing"));
    // A guest that is off has another cause.
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Stopped"));
}

#[test]
fn a_card_whose_address_an_older_machine_has_keeps_the_guest_off() {
    let mut block = block();
    block.networks = vec![nic("eth0", Some("prod"))];
    block.networks[0].mac_address = Some(common::mac::Mac::new([2, 0, 0, 0, 0, 1]));
    let mut older = controller_core::fixtures::machine(block.clone());
    older.metadata.name = Some("app".into());
    let mut env = Environment::new(block);
    env.add_network("prod", "default");
    env.others = vec![older];
    env.settle();
    assert_eq!(reported(&env, "NetworkReady"), ("False", "NetworkFailed"));
    assert_eq!(state(&env), None, "nothing is defined");
    env.others.clear();
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
}

#[test]
fn addresses_of_a_guest_are_reported_ipv4_first_and_link_local_ones_only_without_others() {
    let mut env = Environment::new(block());
    env.settle();
    let mac = env.machine().status.network_interfaces[0]
        .mac_address
        .clone()
        .unwrap();
    let mut reported = |addresses: &[&str]| {
        let lease = |ip: &&str| Lease {
            mac: mac.clone(),
            ip: ip.parse().unwrap(),
            expiry: 0,
        };
        let leases = addresses.iter().map(lease).collect();
        env.host.state().networks.get_mut("default").unwrap().leases = leases;
        env.pass();
        env.machine().status.ip_addresses.clone()
    };
    let addresses = ["2001:db8::1", "fe80::1", "203.0.113.5"];
    assert_eq!(reported(&addresses), ["203.0.113.5", "2001:db8::1"]);
    let addresses = ["fe80::1", "169.254.0.1"];
    assert_eq!(reported(&addresses), ["169.254.0.1", "fe80::1"]);
}

#[test]
fn of_sixty_thousand_addresses_of_a_guest_sixty_four_are_in_the_status() {
    let mut env = Environment::new(block());
    env.settle();
    let mac = env.machine().status.network_interfaces[0]
        .mac_address
        .clone();
    let lease = |number: u32| Lease {
        mac: mac.clone().unwrap(),
        ip: std::net::Ipv4Addr::from(0x0a00_0000 + number).into(),
        expiry: 0,
    };
    let leases = (0..60_000).map(lease).collect();
    env.host.state().networks.get_mut("default").unwrap().leases = leases;
    env.pass();
    let status = &env.machine().status;
    assert_eq!(status.network_interfaces[0].ip_addresses.len(), 64);
    assert_eq!(status.ip_addresses.len(), 64);
}

/// An administrator gives a volume to a guest of his own.
fn define_foreign_domain(env: &Environment, volume: &str) -> uuid::Uuid {
    define_foreign_domain_on(env, POOL, volume)
}

fn define_foreign_domain_on(env: &Environment, pool: &str, volume: &str) -> uuid::Uuid {
    let uuid = uuid::Uuid::from_u128(7);
    let xml = format!(
        "<domain type='qemu'><name>theirs</name><uuid>{uuid}</uuid><memory>1024</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices><disk type='volume' device='disk'><source pool='{pool}' volume='{volume}'/><target dev='vda'/></disk></devices></domain>"
    );
    env.connection().unwrap().define(&xml).unwrap();
    uuid
}

#[test]
fn a_volume_of_a_foreign_domain_is_not_deleted() {
    let mut env = Environment::new(block());
    env.settle();
    let name = volumes(&env)
        .into_iter()
        .find(|name| name.contains(".root."))
        .unwrap();
    let uuid = define_foreign_domain(&env, &name);
    env.delete();
    for _ in 0..10 {
        if env.machine.is_some() {
            env.pass();
        }
    }
    assert!(env.machine.is_some(), "deletion waits");
    assert!(volumes(&env).contains(&name));
    env.connection()
        .unwrap()
        .undefine(uuid, FirmwareState::Remove)
        .unwrap();
    env.settle();
    assert!(env.machine.is_none());
    assert!(!volumes(&env).contains(&name));
}
