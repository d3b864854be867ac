//! A restart waits while the guest could not be started again, and the guest runs on.

use common::api::choice::DiskBus;
use common::api::libvirt_host::ExistingVolumes;
use common::api::normalized::{ExistingDisk, NormalizedCdrom};
use controller_core::conditions::Fault;
use controller_core::held_addresses::AddressFault;
use controller_core::plan::{Refusal, Subject};

use super::*;
use crate::access::fake::{FakePool, FakeVolume};
use crate::images::check::tests::header;
use crate::plan::action::Action;

const VOLUME: &str = "old-disk.qcow2";

fn request_restart(env: &mut Environment) {
    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(env.machine_mut(), key, "now");
}

fn add_disk(env: &mut Environment, image: Option<Image>) {
    env.edit(|block| {
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
        block.disks[1].image = image;
    });
}

fn has_importing_image(env: &mut Environment) {
    add_disk(env, Some(image()));
}

fn has_missing_medium(env: &mut Environment) {
    env.edit(|block| {
        block.cdroms.push(NormalizedCdrom {
            hotpluggable: false,
            image_pin: None,
            boot_order: None,
            name: "iso".into(),
            image: Some(Image {
                volume: Some("debian.iso".into()),
                ..Image::default()
            }),
            size: None,
            storage_class: None,
        });
    });
}

/// A volume that a domain of somebody else has.
fn has_used_volume(env: &mut Environment) {
    let volume = FakeVolume {
        capacity: 1 << 20,
        content: header(None),
        ..FakeVolume::default()
    };
    let mut pool = FakePool::of(1 << 30);
    pool.volumes.insert(VOLUME.into(), volume);
    env.host.state().pools.insert("legacy".into(), pool);
    env.object.spec.existing_volumes = Some(vec![ExistingVolumes {
        namespaces: vec!["default".into()],
        pool: "legacy".into(),
    }]);
    define_foreign_domain_on(env, "legacy", VOLUME);
    env.edit(|block| {
        block.existing_disks.push(ExistingDisk {
            boot_order: None,
            bus: DiskBus::Virtio,
            claim_name: None,
            name: "old".into(),
            serial: None,
            shareable: false,
            volume_name: Some(VOLUME.into()),
        });
    });
}

fn has_address_of_another(env: &mut Environment) {
    env.machine_mut().addresses.fault = Some(AddressFault {
        fault: Fault::new("AddressInUse", "Machine 'app' has it"),
        is_in_use: true,
        is_transient: false,
    });
}

#[test]
fn a_guest_runs_on_until_it_could_be_started_again() {
    type Change = fn(&mut Environment);
    let nothing: Change = |_| ();
    let cases: [(&str, &str, Change, Change); 4] = [
        (
            "StorageReady",
            "ImageImporting",
            has_importing_image,
            nothing,
        ),
        (
            "StorageReady",
            "ImageNotFound",
            has_missing_medium,
            |env: &mut Environment| env.edit(|block| block.cdroms.clear()),
        ),
        ("StorageReady", "VolumeInUse", has_used_volume, |env| {
            let mut host = env.connection().unwrap();
            let foreign = uuid::Uuid::from_u128(7);
            host.undefine(foreign, FirmwareState::Remove).unwrap();
        }),
        (
            "NetworkReady",
            "AddressInUse",
            has_address_of_another,
            |env| env.machine_mut().addresses.fault = None,
        ),
    ];
    for (kind, reason, begin, end) in cases {
        let mut env = Environment::new(block());
        env.settle();
        begin(&mut env);
        request_restart(&mut env);
        env.pass();
        assert_eq!(reported(&env, kind), ("False", reason));
        assert_eq!(times(&env, "shutdown"), 0, "{reason}");
        assert_eq!(state(&env), Some(State::Running), "{reason}");
        let waits = reported(&env, "RestartRequired");
        assert_eq!(waits, ("True", "RestartWaits"), "{reason}");
        let why = message(&env, "RestartRequired");
        assert!(why.contains(reason), "{why}");
        assert_eq!(env.machine().status.last_restart, None, "{reason}");

        end(&mut env);
        env.settle();
        assert_eq!(state(&env), Some(State::Running), "{reason}");
        assert_eq!(times(&env, "start"), 2, "{reason}");
        assert_eq!(reported(&env, "RestartRequired"), ("", ""), "{reason}");
        let last = env.machine().status.last_restart.clone();
        assert_eq!(last.map(|last| last.request).as_deref(), Some("now"));
    }
}

#[test]
fn a_guest_whose_restart_waits_is_reset() {
    let mut env = Environment::new(block());
    env.settle();
    has_missing_medium(&mut env);
    request_restart(&mut env);
    annotate(
        env.machine_mut(),
        names::ANNOTATION_RESET_REQUESTED,
        "hangs",
    );
    env.settle();
    assert_eq!((times(&env, "reset"), times(&env, "shutdown")), (1, 0));
}

/// The steps that shut the guest down, after this was refused.
fn stops(env: &Environment, subject: Subject) -> usize {
    let refusal = Refusal {
        subject,
        reason: None,
        message: "refused".into(),
    };
    let plan = env.plan_after(Some(&refusal)).unwrap();
    let stops = |action: &&Action| matches!(action, Action::AskToStop { .. } | Action::Destroy);
    plan.actions.iter().filter(stops).count()
}

#[test]
fn after_a_refusal_only_a_desired_stop_goes_on_or_a_restart_that_needs_nothing_of_it() {
    for (power, subject, has_new_disk, goes_on) in [
        // The volume of the new disk, and the definition with it.
        (PowerState::Running, Subject::Storage, true, false),
        (PowerState::Running, Subject::Guest, true, false),
        (PowerState::Stopped, Subject::Storage, true, true),
        (PowerState::Stopped, Subject::Guest, true, true),
        // A device that the running guest did not take: its next start has it.
        (PowerState::Running, Subject::Guest, false, true),
        (PowerState::Running, Subject::Display, true, true),
    ] {
        let mut env = Environment::new(block());
        env.settle();
        if has_new_disk {
            add_disk(&mut env, None);
        }
        env.power(power);
        request_restart(&mut env);
        let stops = stops(&env, subject);
        assert_eq!(
            stops == 1,
            goes_on,
            "{power:?}, {subject:?}, {has_new_disk}"
        );
    }
}

/// A guest has ignored the first request of a restart, which has waited for a medium since, for longer than the grace period.
fn waiting_restart() -> Environment {
    let mut env = Environment::new(block());
    env.host.state().guest.acpi = false;
    env.settle();
    request_restart(&mut env);
    env.pass();
    has_missing_medium(&mut env);
    for _ in 0..30 {
        env.pass();
    }
    env
}

#[test]
fn a_guest_that_ignores_a_restart_is_not_switched_off_while_it_could_not_be_started_again() {
    let mut env = waiting_restart();
    assert_eq!(state(&env), Some(State::Running));
    // A stop that is desired does not wait.
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(state(&env), Some(State::ShutOff));
}

#[test]
fn a_restart_that_waited_asks_the_guest_again_before_it_switches_it_off() {
    let mut env = waiting_restart();
    let asked = times(&env, "shutdown");
    env.edit(|block| block.cdroms.clear());
    while times(&env, "shutdown") == asked {
        assert_eq!(times(&env, "destroy"), 0);
        env.pass();
    }
    env.settle();
    assert_eq!((times(&env, "destroy"), times(&env, "start")), (1, 2));
}

#[test]
fn the_sizes_of_the_guest_are_pending_also_while_nothing_can_be_defined() {
    let mut env = Environment::new(block());
    env.edit(|block| block.cpu.cores = 4);
    env.settle();
    has_missing_medium(&mut env);
    env.edit(|block| block.cpu.cores = 1);
    env.settle();
    let status = &env.machine().status;
    let pending = status.pending_changes.iter();
    let pending: Vec<_> = pending
        .map(|it| (&*it.field, &*it.current, &*it.desired, &*it.action))
        .collect();
    assert_eq!(pending, [("cpu.cores", "4", "1", "Restart")]);
}
