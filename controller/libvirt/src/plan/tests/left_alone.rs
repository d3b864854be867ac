//! Machines of which not everything is carried out: paused, on a host in maintenance, or about to stop.

use super::*;

#[test]
fn a_paused_machine_and_one_on_a_host_in_maintenance_are_observed_only() {
    let mut env = Environment::new(block());
    env.settle();
    let calls = env.host.calls().len();
    pause(env.machine_mut());
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("False", "Paused"));
    env.machine_mut().metadata.annotations = None;
    env.object.spec.maintenance = Some(true);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("False", "HostMaintenance"));
    assert_eq!(env.host.calls().len(), calls);
    env.object.spec.maintenance = None;
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Stopped));
}

#[test]
fn a_machine_without_a_domain_says_that_its_host_is_in_maintenance() {
    let mut env = Environment::new(block());
    env.settle();
    env.host.state().domains.clear();
    env.object.spec.maintenance = Some(true);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("False", "HostMaintenance"));
    assert_eq!(
        reported(&env, "VirtualMachineReady"),
        ("False", "VMPending")
    );
    assert_eq!(phase(&env), Some(Phase::Pending));
    env.object.spec.maintenance = None;
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

#[test]
fn what_is_not_done_while_a_machine_is_left_alone_is_reported() {
    type Change = fn(&mut Environment);
    let adds_disk: Change = |env| {
        env.edit(|block| {
            block.disks.push(disk("data", ReclaimPolicy::Delete));
            block.disks[1].storage_class = "local".into();
        });
    };
    let requests_restart: Change = |env| {
        let key = names::ANNOTATION_RESTART_REQUESTED;
        annotate(env.machine_mut(), key, "now");
    };
    let no_volume = ("False", "VolumesPending");
    let every_volume = ("True", "VolumesReady");
    for (change, storage) in [(adds_disk, no_volume), (requests_restart, every_volume)] {
        let mut env = Environment::new(block());
        env.settle();
        env.object.spec.maintenance = Some(true);
        env.settle();
        assert_eq!(reported(&env, "Ready"), ("True", "Running"));
        change(&mut env);
        env.settle();
        assert_eq!(reported(&env, "Ready"), ("False", "HostMaintenance"));
        assert_eq!(reported(&env, "StorageReady"), storage);
        env.object.spec.maintenance = None;
        env.settle();
        assert_eq!(reported(&env, "StorageReady"), every_volume);
        assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    }

    let mut env = Environment::new(block());
    env.settle();
    pause(env.machine_mut());
    adds_disk(&mut env);
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), no_volume);
    env.machine_mut().metadata.annotations = None;
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), every_volume);
}

#[test]
fn a_guest_that_shuts_down_has_only_its_sizes_pending_and_gets_no_device() {
    let mut env = Environment::new(block());
    env.settle();
    env.edit(|block| {
        block.cpu.cores = 4;
        block.timezone = Some("Europe/Oslo".into());
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
        block.power_state = PowerState::Stopped;
    });
    env.pass();
    assert_eq!(reported(&env, "Ready"), ("False", "Stopping"));
    assert_eq!(reported(&env, "RestartRequired"), ("", ""));
    let pending = &env.machine().status.pending_changes;
    let fields: Vec<_> = pending.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(fields, ["cpu.cores"]);
    assert_eq!(times(&env, "attach"), 0);
}
