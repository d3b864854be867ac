//! Devices and CPUs of the host that the guest has for itself.

use common::api::choice::{DeviceKind, FirmwareType, Phase, PowerState};
use common::api::libvirt_host::HostDevices;
use common::api::normalized::{Normalized, NormalizedDevice, NormalizedHardware};
use common::names;
use common::render::libvirt::domain_uuid;
use uuid::Uuid;

use super::{Environment, UID, block, message, phase, reported, times};
use crate::access::AccessError;
use crate::plan::action::Action;
use controller_core::client::Remedy;
use controller_core::fixtures::{annotate, nic};
use controller_core::objects::Meta as _;
use controller_core::plan::Step;

const GPU: &str = "a.b/gpu";
const FIRST: &str = "domain='0x0000' bus='0x01' slot='0x00' function='0x0'";
const SECOND: &str = "domain='0x0000' bus='0x02' slot='0x00' function='0x0'";

/// A block with devices of these names.
fn with_devices(names: &[&str]) -> Normalized {
    let device = |name: &&str| NormalizedDevice {
        device_name: GPU.into(),
        kind: DeviceKind::Pci,
        name: (*name).into(),
    };
    let mut block = block();
    block.hardware = NormalizedHardware {
        devices: names.iter().map(device).collect(),
        ..NormalizedHardware::default()
    }
    .if_any();
    block
}

/// A Machine with a device, on a host that offers two.
fn with_gpu() -> Environment {
    let mut env = Environment::new(with_devices(&["gpu"]));
    env.object.spec.devices = Some(vec![HostDevices {
        addresses: vec!["0000:01:00.0".into(), "0000:02:00.0".into()],
        name: GPU.into(),
    }]);
    env
}

/// Somebody defines another domain with a device.
fn define_foreign(env: &Environment, number: u128, source: &str) {
    let uuid = Uuid::from_u128(number);
    let xml = format!(
        "<domain><name>theirs-{number}</name><uuid>{uuid}</uuid><devices><hostdev mode='subsystem' type='pci'><source><address {source}/></source></hostdev></devices></domain>"
    );
    env.connection().unwrap().define(&xml).unwrap();
}

fn defined(env: &Environment) -> String {
    env.host.state().domains[&domain_uuid(UID)].inactive.clone()
}

#[test]
fn the_guest_gets_the_first_device_that_nobody_has_and_keeps_it() {
    let mut env = with_gpu();
    define_foreign(&env, 1, FIRST);
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Running));
    assert!(defined(&env).contains(SECOND), "{}", defined(&env));
    // The other one is free now, and its own one stays where it is.
    let theirs = Uuid::from_u128(1);
    env.host.state().domains.remove(&theirs);
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls);
    // A second device waits for the restart.
    env.edit(|block| block.hardware = with_devices(&["gpu", "more"]).hardware);
    env.settle();
    let pending = &env.machine().status.pending_changes;
    let change = &pending[0];
    assert_eq!((&*change.field, &*change.action), ("devices", "Restart"));
    assert_eq!(change.current, "gpu=0000:02:00.0");
    assert_eq!(change.desired, "gpu=0000:02:00.0,more=0000:01:00.0");
}

#[test]
fn a_machine_without_a_free_device_is_placed_when_there_is_one() {
    let mut env = with_gpu();
    define_foreign(&env, 1, FIRST);
    define_foreign(&env, 2, SECOND);
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Pending));
    let why = message(&env, "Ready");
    let lacks = "alpha: has 0 of 2 devices 'a.b/gpu' left, 1 needed";
    assert!(why.contains(lacks), "{why}");
    env.host.state().domains.remove(&Uuid::from_u128(1));
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Running));
    assert!(defined(&env).contains(FIRST), "{}", defined(&env));
}

#[test]
fn a_running_guest_keeps_what_it_has_while_its_host_has_no_more_devices() {
    let mut env = with_gpu();
    define_foreign(&env, 1, SECOND);
    env.settle();
    let before = defined(&env);
    env.edit(|block| block.hardware = with_devices(&["gpu", "more"]).hardware);
    env.settle();
    assert_eq!(defined(&env), before);
    assert_eq!(phase(&env), Some(Phase::Running));
    assert_eq!(reported(&env, "Scheduled"), ("False", "NoRoom"));
    let why = message(&env, "Scheduled");
    let lacks = "has no device 'a.b/gpu' left: other domains have all 2";
    assert!(why.contains(lacks), "{why}");
    // Off it would start without the device: it waits.
    env.host.guest_shuts_down(domain_uuid(UID));
    env.settle();
    assert_eq!(times(&env, "start"), 1);
    assert_eq!(reported(&env, "Ready"), ("False", "NoRoom"));
    env.host.state().domains.remove(&Uuid::from_u128(1));
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Running));
    assert!(defined(&env).contains(SECOND), "{}", defined(&env));
}

/// The definition and the start: another domain gets the device after the plan was made.
#[test]
fn no_effect_gives_a_device_to_the_guest_that_another_domain_has_by_then() {
    type IsTried = fn(&Action) -> bool;
    let tried: [IsTried; 2] = [
        |action| matches!(action, Action::Define(_)),
        |action| matches!(action, Action::Start { .. }),
    ];
    for is_tried in tried {
        let mut env = with_gpu();
        let action = loop {
            let plan = env.plan().unwrap();
            let mut actions = plan.actions.iter();
            if let Some(action) = actions.find(|it| is_tried(it)) {
                break action.clone();
            }
            env.pass_until(1);
        };
        define_foreign(&env, 1, FIRST);
        let outcome = env.step(&Step::Act(&action));
        assert!(
            outcome
                .as_ref()
                .is_err_and(|it| it.remedy == Remedy::Reobserve),
            "{action}: {outcome:?}"
        );
        // The next passes take the other device.
        env.settle();
        assert_eq!(phase(&env), Some(Phase::Running));
        assert!(defined(&env).contains(SECOND), "{}", defined(&env));
    }
}

/// A Machine with two dedicated CPUs, on a host that has three.
fn with_cpus() -> Environment {
    let mut block = block();
    block.hardware = Some(NormalizedHardware {
        dedicated_cpu: true,
        ..NormalizedHardware::default()
    });
    let mut env = Environment::new(block);
    env.object.spec.dedicated_cpus = Some("2-4".into());
    env
}

/// Somebody defines another domain that is pinned to a CPU.
fn pin_foreign(env: &Environment, cpu: u32) {
    let uuid = Uuid::from_u128(1);
    let xml = format!(
        "<domain><name>theirs</name><uuid>{uuid}</uuid><cputune><vcpupin vcpu='0' cpuset='{cpu}'/></cputune><devices/></domain>"
    );
    env.connection().unwrap().define(&xml).unwrap();
}

#[test]
fn each_vcpu_is_pinned_to_a_cpu_of_its_own_and_stays_there() {
    let mut env = with_cpus();
    pin_foreign(&env, 2);
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Running));
    let xml = defined(&env);
    for part in [
        "<vcpu cpuset='0-1,5-7' current='2'>",
        "<vcpupin vcpu='0' cpuset='3'/>",
        "<vcpupin vcpu='1' cpuset='4'/>",
    ] {
        assert!(xml.contains(part), "{part}\n{xml}");
    }
    env.host.state().domains.remove(&Uuid::from_u128(1));
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls);
    env.edit(|block| block.hardware = None);
    env.settle();
    let change = &env.machine().status.pending_changes[0];
    assert_eq!(
        (&*change.field, &*change.action),
        ("cpu.dedicated", "Restart")
    );
    assert_eq!((&*change.current, &*change.desired), ("CPUs 3-4", "none"));
}

#[test]
fn no_effect_pins_the_guest_to_a_cpu_that_another_domain_has_by_then() {
    let mut env = with_cpus();
    let action = loop {
        let plan = env.plan().unwrap();
        let mut actions = plan.actions.iter();
        if let Some(action) = actions.find(|it| matches!(it, Action::Define(_))) {
            break action.clone();
        }
        env.pass_until(1);
    };
    pin_foreign(&env, 3);
    let outcome = env.step(&Step::Act(&action));
    let why = "another domain is pinned to CPU 3 of the host";
    let refused = outcome.unwrap_err();
    assert_eq!(refused.remedy, Remedy::Reobserve);
    assert_eq!(
        refused.message,
        AccessError::Changed(why.into()).to_string()
    );
    env.settle();
    assert!(defined(&env).contains("<vcpupin vcpu='0' cpuset='2'/>"));
    assert!(defined(&env).contains("<vcpupin vcpu='1' cpuset='4'/>"));
}

#[test]
fn a_guest_without_dedicated_cpus_runs_on_the_others_from_its_next_start() {
    let mut env = Environment::new(block());
    env.settle();
    assert!(
        defined(&env).contains("<vcpu current='2'>"),
        "{}",
        defined(&env)
    );
    env.object.spec.dedicated_cpus = Some("2-4".into());
    assert_eq!(env.settle(), [""; 0]);
    env.host.guest_shuts_down(domain_uuid(UID));
    env.settle();
    let xml = defined(&env);
    assert!(xml.contains("<vcpu cpuset='0-1,5-7' current='2'>"), "{xml}");
    assert_eq!(times(&env, "start"), 2);
}

#[test]
fn another_firmware_uses_up_the_confirmation_that_the_variables_of_the_former_one_are_discarded() {
    let key = names::ANNOTATION_DISCARD_STATE;
    let secure = |block: &mut Normalized, secure_boot: bool| {
        block.power_state = PowerState::Stopped;
        block.firmware.kind = FirmwareType::Efi;
        block.firmware.persistent = Some(true);
        block.firmware.secure_boot = Some(secure_boot);
    };
    let mut block = block();
    secure(&mut block, false);
    let mut env = Environment::new(block);
    annotate(env.machine_mut(), key, "efi");
    env.settle();
    assert_eq!(
        env.machine().annotation(key),
        Some("efi"),
        "before the change"
    );
    env.edit(|block| secure(block, true));
    env.settle();
    assert_eq!(env.machine().annotation(key), None);
}

#[test]
fn vcpus_that_can_be_plugged_in_are_the_guests_already() {
    let mut env = with_cpus();
    env.edit(|block| {
        (block.cpu.cores, block.cpu.threads) = (1, 1);
        (block.cpu.sockets, block.cpu.max_sockets) = (1, 3);
    });
    env.settle();
    env.room.cpu = 1;
    env.settle();
    assert_eq!(reported(&env, "Scheduled"), ("", ""));
    env.edit(|block| block.cpu.sockets = 3);
    env.settle();
    assert_eq!(reported(&env, "Scheduled"), ("", ""));
    assert_eq!(times(&env, "set_vcpus"), 1);
}

#[test]
fn a_machine_with_a_cpu_model_is_defined_once_and_gets_what_is_plugged_in() {
    for model in ["Nehalem", "host-model", "maximum"] {
        let mut env = Environment::new(block());
        env.edit(|block| {
            let hardware = block.hardware.get_or_insert_default();
            hardware.cpu_model = Some(model.into());
        });
        env.settle();
        assert_eq!(env.settle(), [""; 0], "{model}");
        env.edit(|block| block.networks.push(nic("second", None)));
        env.settle();
        assert_eq!(env.machine().status.pending_changes, [], "{model}");
    }
}
