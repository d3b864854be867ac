//! Changes that a running guest does not have, and what brings each into effect.

mod another_pod;

use common::api::choice::{
    DeviceKind, DiskBus, DisplayType, EvictionStrategy, HugepageSize, PowerState, ReclaimPolicy,
    TaintEffect, TolerationOperator, VideoModel, WatchdogAction,
};
use common::api::machine::{
    Affinity, GuestAgentPing, NodeAffinity, Probe, Probes, TopologySpreadConstraint,
};
use common::api::normalized::{
    Normalized, NormalizedConsole, NormalizedDevice, NormalizedDisplay, NormalizedHardware,
    NormalizedPlacement, NormalizedToleration, NormalizedTpm,
};
use common::catalog::KubevirtRow;
use common::quantity::Bytes;
use serde_json::json;

use another_pod::pod;

use super::{cloud_init, edit, message, reported};
use crate::environment::{FakeCluster, decode};
use crate::objects::{ForeignCondition, GuestPod};
use controller_core::fixtures::{block, disk, machine, nic};
use controller_core::objects::Cacheable as _;

pub(super) fn running() -> FakeCluster {
    let mut environment = FakeCluster::new(machine(block()));
    environment.add_network("prod", "br0");
    environment.add_network("test", "br1");
    environment.settle();
    environment
}

/// The settings of a KubeVirt of this version with these feature gates.
pub(super) fn kubevirt(version: &str, gates: &[&str]) -> KubevirtRow {
    let spec = json!({"configuration": {"developerConfiguration": {"featureGates": gates}}});
    KubevirtRow::new(&spec, &json!({"observedKubeVirtVersion": version}))
}

fn kubevirt_says(kind: &str, status: &str, message: &str) -> ForeignCondition {
    ForeignCondition {
        kind: kind.into(),
        status: status.into(),
        reason: "Why".into(),
        message: message.into(),
    }
}

/// KubeVirt reports that it applies no change before a restart.
fn flag_restart(environment: &mut FakeCluster) {
    let vm = environment.vm.as_mut().unwrap();
    vm.status.conditions = vec![kubevirt_says(
        "RestartRequired",
        "True",
        "a field was changed",
    )];
}

/// KubeVirt takes the template over into the instance, and reports this of the guest.
fn take_over(environment: &mut FakeCluster, conditions: Vec<ForeignCondition>) {
    let template = environment.vm.as_ref().unwrap().spec.template.spec.clone();
    let instance = environment.instance.as_mut().unwrap();
    instance.spec = template;
    instance.status.conditions = conditions;
}

pub(super) fn pending(environment: &FakeCluster) -> Vec<[&str; 4]> {
    let changes = environment.machine().status.pending_changes.iter();
    changes
        .map(|it| [&*it.field, &*it.current, &*it.desired, &*it.action])
        .collect()
}

#[test]
fn hot_plugged_resources_are_pending_until_the_guest_has_them() {
    let mut environment = running();
    let desired = |environment: &mut FakeCluster| {
        edit(environment, |block| {
            (block.cpu.sockets, block.cpu.max_sockets) = (2, 4);
            (block.memory.size, block.memory.max_size) = (Bytes::mib(4096), Bytes::mib(8192));
        });
        // Like KubeVirt: its instance has the value at once, the guest later.
        environment.pass();
        let vm = environment.vm.as_ref().unwrap();
        environment.instance.as_mut().unwrap().spec = vm.spec.template.spec.clone();
    };
    desired(&mut environment);
    environment.settle();
    assert_eq!(environment.machine().status.pending_changes, []);

    let condition = |kind: &str, status: &str| ForeignCondition {
        kind: kind.into(),
        status: status.into(),
        ..ForeignCondition::default()
    };
    // The first is what KubeVirt reports before its conditions.
    for (is_said, migratable, action, required) in [
        (false, "True", "LiveMigration", ""),
        (true, "True", "LiveMigration", ""),
        (true, "False", "Restart", "True"),
    ] {
        let status = &mut environment.instance.as_mut().unwrap().status;
        status.cpu.sockets = Some(1);
        status.memory.guest_current = Some("2Gi".into());
        status.conditions = vec![condition("LiveMigratable", migratable)];
        if is_said {
            status.conditions.push(condition("HotVCPUChange", "True"));
            status.conditions.push(condition("HotMemoryChange", "True"));
        }
        environment.settle();
        let changes = environment.machine().status.pending_changes.iter();
        let changes: Vec<_> = changes
            .map(|it| [&*it.field, &it.current, &it.desired, &it.action])
            .collect();
        let expected = [
            ["cpu.sockets", "1", "2", action],
            ["memory.size", "2Gi", "4Gi", action],
        ];
        assert_eq!(changes, expected);
        assert_eq!(reported(&environment, "RestartRequired").0, required);
    }
    // libvirt rounds, and writes another unit.
    let status = &mut environment.instance.as_mut().unwrap().status;
    status.conditions.clear();
    status.cpu.sockets = Some(2);
    status.memory.guest_current = Some("4194303Ki".into());
    environment.settle();
    assert_eq!(environment.machine().status.pending_changes, []);
    assert_eq!(reported(&environment, "RestartRequired"), ("", ""));
}

#[test]
fn sockets_that_are_taken_away_need_a_restart_before_kubevirt_says_so() {
    let mut environment = running();
    edit(&mut environment, |block| {
        (block.cpu.sockets, block.cpu.max_sockets) = (3, 4);
    });
    environment.settle();
    take_over(
        &mut environment,
        vec![kubevirt_says("LiveMigratable", "True", "")],
    );
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);
    for (sockets, action) in [(2, "Restart"), (4, "LiveMigration")] {
        edit(&mut environment, |block| block.cpu.sockets = sockets);
        environment.pass();
        let desired = sockets.to_string();
        let change = ["cpu.sockets", "3", &desired, action];
        assert_eq!(pending(&environment), [change]);
    }
    // Together with other cores KubeVirt adds none.
    edit(&mut environment, |block| block.cpu.cores = 4);
    environment.pass();
    let expected = [
        ["cpu.sockets", "3", "4", "Restart"],
        ["cpu.cores", "2", "4", "Restart"],
    ];
    assert_eq!(pending(&environment), expected);
}

#[test]
fn memory_that_the_guest_cannot_be_given_needs_a_restart_before_kubevirt_says_so() {
    let mut environment = running();
    edit(&mut environment, |block| {
        (block.memory.size, block.memory.max_size) = (Bytes::mib(4096), Bytes::mib(8192));
    });
    environment.settle();
    take_over(
        &mut environment,
        vec![kubevirt_says("LiveMigratable", "True", "")],
    );
    let memory = &mut environment.instance.as_mut().unwrap().status.memory;
    memory.guest_at_boot = Some("3Gi".into());
    environment.settle();
    for (mib, desired, action) in [
        (2048, "2Gi", "Restart"),
        (3072, "3Gi", "LiveMigration"),
        (8192, "8Gi", "LiveMigration"),
    ] {
        edit(&mut environment, |block| {
            block.memory.size = Bytes::mib(mib);
        });
        environment.pass();
        let change = ["memory.size", "4Gi", desired, action];
        assert_eq!(pending(&environment), [change]);
    }
}

#[test]
fn restart_required_names_the_changed_fields() {
    let mut block = block();
    block.disks.push(disk("old", ReclaimPolicy::Delete));
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    edit(&mut environment, |block| {
        block.cpu.cores = 8;
        block.memory.size = Bytes::mib(4096);
        block.disks[0].bus = DiskBus::Scsi;
        block.disks[0].serial = Some("boot".into());
        block.display = Some(NormalizedDisplay {
            password_secret_ref: None,
            kind: DisplayType::Vnc,
            video: Some(VideoModel::Virtio),
        });
        block.console = Some(NormalizedConsole { log: true });
        block.tpm = Some(NormalizedTpm { persistent: true });
        block.timezone = Some("Europe/Oslo".into());
        block.termination_grace_period_seconds = Some(600);
        block.eviction_strategy = Some(EvictionStrategy::External);
        block.disks.truncate(1);
        block.networks.push(nic("eth1", Some("prod")));
    });
    environment.add_network("prod", "br0");
    environment.machine_mut().cloud_init = cloud_init("#cloud-config");
    environment.pass();
    flag_restart(&mut environment);
    environment.pass();
    let condition = environment.machine().status.pending_changes.iter();
    let condition: Vec<_> = condition
        .map(|change| format!("{}: {} -> {}", change.field, change.current, change.desired))
        .collect();
    assert_eq!(
        condition,
        [
            "cpu.cores: 2 -> 8",
            "memory.size: 2Gi -> 4Gi",
            "tpm: none -> persistent",
            "clock.timezone: UTC -> Europe/Oslo",
            "display.video: the default -> virtio",
            "console.log: the default -> true",
            "disks[old]: present -> absent",
            "disks[root].bus: virtio -> scsi",
            "disks[root].serial: none -> boot",
            "networks[eth1]: absent -> present",
            "evictionStrategy: LiveMigrateIfPossible -> External",
            "terminationGracePeriodSeconds: the default -> 600",
            "cloudInit: as it was -> as it is now",
        ]
    );
    assert!(message(&environment, "RestartRequired").contains("cpu.cores, memory.size"));

    environment.instance = None;
    environment.settle();
    assert_eq!(environment.machine().status.pending_changes, []);
}

#[test]
fn a_card_waits_for_a_migration_and_one_that_was_removed_again_leaves_nothing() {
    for (migratable, action, kind) in [
        ("True", "LiveMigration", "MigrationRequired"),
        ("False", "Restart", "RestartRequired"),
    ] {
        let mut environment = running();
        edit(&mut environment, |block| {
            block.networks.push(nic("eth1", Some("prod")));
        });
        environment.settle();
        let conditions = vec![
            kubevirt_says("MigrationRequired", "False", ""),
            kubevirt_says("LiveMigratable", migratable, "a disk is not shared"),
        ];
        take_over(&mut environment, conditions);
        environment.settle();
        let card = ["networks[eth1]", "absent", "present", action];
        assert_eq!(pending(&environment), [card]);
        assert_eq!(reported(&environment, kind), ("True", kind));
        let text = message(&environment, "RestartRequired");
        let why = "KubeVirt cannot apply it by a live migration (Why: a disk is not shared)";
        assert_eq!(text.ends_with(why), migratable == "False", "{text}");

        // The card is only in the pod so far, which a Multus that plugs into running pods may do.
        let instance = environment.instance.as_mut().unwrap();
        let in_pod = json!({"name": "eth1", "infoSource": "multus-status, pod-status"});
        instance.status.interfaces.push(decode(in_pod));
        environment.settle();
        assert_eq!(pending(&environment), [card]);

        // The instance keeps a card that leaves, and KubeVirt requires a restart for it.
        edit(&mut environment, |block| {
            block.networks.pop();
        });
        environment.pass();
        flag_restart(&mut environment);
        environment.settle();
        assert_eq!(pending(&environment), [[""; 4]; 0]);
        for kind in ["RestartRequired", "MigrationRequired"] {
            assert_eq!(reported(&environment, kind), ("", ""));
        }
    }
}

#[test]
fn a_card_is_pending_from_the_moment_in_which_the_instance_has_it() {
    let mut on_prod = block();
    on_prod.networks = vec![nic("eth0", Some("prod"))];
    let mut environment = FakeCluster::new(machine(on_prod));
    environment.add_network("prod", "br0");
    environment.settle();
    let card = json!({"name": "eth0", "infoSource": "domain", "podInterfaceName": "pod1"});
    let instance = environment.instance.as_mut().unwrap();
    instance.status.interfaces = vec![decode(card)];
    environment.pod = Some(pod("prod", &json!({})));
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);

    edit(&mut environment, |block| {
        block.networks.push(nic("eth1", Some("prod")));
    });
    environment.settle();
    // KubeVirt has not said MigrationRequired yet.
    take_over(&mut environment, Vec::new());
    environment.settle();
    let card = ["networks[eth1]", "absent", "present", "LiveMigration"];
    assert_eq!(pending(&environment), [card]);
}

#[test]
fn a_removed_card_is_pending_until_the_guest_is_restarted() {
    let mut two = block();
    two.networks.push(nic("eth1", Some("prod")));
    let mut environment = FakeCluster::new(machine(two));
    environment.add_network("prod", "br0");
    environment.settle();
    edit(&mut environment, |block| {
        block.networks.pop();
    });
    environment.pass();
    flag_restart(&mut environment);
    environment.settle();
    let card = ["networks[eth1]", "present", "absent", "Restart"];
    assert_eq!(pending(&environment), [card]);
}

#[test]
fn an_added_disk_changes_the_boot_order_of_no_other_device() {
    let mut ordered = block();
    ordered.disks[0].boot_order = Some(1);
    ordered.networks[0].boot_order = Some(2);
    let ordered = || {
        let mut environment = FakeCluster::new(machine(ordered.clone()));
        environment.settle();
        environment
    };
    let mut environment = ordered();
    edit(&mut environment, |block| {
        let mut data = disk("data", ReclaimPolicy::Retain);
        data.boot_order = Some(2);
        block.disks.push(data);
        block.networks[0].boot_order = Some(3);
    });
    environment.settle();
    let disk = ["disks[data]", "absent", "present", "Restart"];
    assert_eq!(pending(&environment), [disk]);

    let mut environment = ordered();
    edit(&mut environment, |block| {
        block.disks[0].boot_order = Some(2);
        block.networks[0].boot_order = Some(1);
    });
    environment.settle();
    let name = &environment.machine().desired().unwrap().networks[0].name;
    let card = format!("networks[{name}].bootOrder");
    let fields: Vec<_> = pending(&environment).iter().map(|it| it[0]).collect();
    assert_eq!(fields, ["disks[root].bootOrder", card.as_str()]);
}

#[test]
fn volumes_that_others_plugged_in_are_no_change() {
    let mut environment = running();
    let instance = environment.instance.as_mut().unwrap();
    let disk = json!({"name": "theirs", "disk": {"bus": "scsi"}});
    let volume = json!({"name": "theirs", "persistentVolumeClaim": {"claimName": "theirs"}});
    instance.spec.domain.devices.disks.push(decode(disk));
    instance.spec.volumes.push(decode(volume));
    let status = json!({"name": "theirs", "hotplugVolume": {"attachPodName": "hp-volume"}});
    instance.status.volume_status.push(decode(status));
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);
}

#[test]
fn a_guest_that_shuts_down_has_only_its_sizes_pending_and_one_that_is_off_nothing() {
    let mut environment = running();
    edit(&mut environment, |block| {
        block.cpu.cores = 8;
        block.timezone = Some("Europe/Oslo".into());
    });
    environment.settle();
    assert_eq!(reported(&environment, "RestartRequired").0, "True");
    assert_eq!(pending(&environment).len(), 2);
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.pass();
    // KubeVirt keeps its condition until the next start.
    flag_restart(&mut environment);
    assert_eq!(reported(&environment, "Ready"), ("False", "Stopping"));
    // What it has of the quota counts until it is off.
    let sizes = [["cpu.cores", "2", "8", "Restart"]];
    assert_eq!(pending(&environment), sizes);
    assert_eq!(reported(&environment, "RestartRequired"), ("", ""));
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);
    assert_eq!(reported(&environment, "RestartRequired"), ("", ""));
}

/// What KubeVirt has of this cluster's guest: a disk that is plugged in, in this phase; `None`: none.
fn plug(environment: &mut FakeCluster, phase: Option<&str>) {
    let template = environment.vm.as_ref().unwrap().spec.template.spec.clone();
    let instance = environment.instance.as_mut().unwrap();
    instance.spec = template;
    instance.status.volume_status = phase
        .map(|phase| decode(json!({"name": "data", "hotplugVolume": {}, "phase": phase})))
        .into_iter()
        .collect();
}

#[test]
fn a_disk_that_is_plugged_in_or_out_is_pending_until_the_guest_has_it_or_not() {
    let on = kubevirt("v1.8.4", &["DeclarativeHotplugVolumes"]);
    let off = kubevirt("v1.8.4", &[]);
    let mut environment = running();
    environment.settings = Some(on.clone());
    edit(&mut environment, |block| {
        let mut data = disk("data", ReclaimPolicy::Retain);
        data.hotpluggable = true;
        block.disks.push(data);
    });
    environment.settle();
    // KubeVirt does not migrate the guest for it, and does it while it waits for a restart, too.
    let instance = environment.instance.as_mut().unwrap();
    instance.status.conditions = vec![kubevirt_says("LiveMigratable", "False", "")];
    flag_restart(&mut environment);
    let volume = environment.vm.as_ref().unwrap().spec.template.spec.volumes[1].clone();
    assert_eq!(
        (volume.claim(), volume.is_plugged_in()),
        (Some("web-data"), true)
    );
    for (settings, action) in [
        (Some(&on), "HotPlug"),
        (Some(&off), "Restart"),
        (None, "Restart"),
    ] {
        environment.settings = settings.cloned();
        environment.pass();
        let disk = ["disks[data]", "absent", "present", action];
        assert_eq!(pending(&environment), [disk]);
        let restart = if action == "Restart" { "True" } else { "" };
        assert_eq!(reported(&environment, "RestartRequired").0, restart);
    }
    environment.settings = Some(on);
    for phase in ["Pending", "HotplugVolumeMounted"] {
        plug(&mut environment, Some(phase));
        environment.pass();
        assert_eq!(pending(&environment)[0][0], "disks[data]", "{phase}");
    }
    plug(&mut environment, Some("Ready"));
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);

    // What the Machine had is no volume of others.
    edit(&mut environment, |block| drop(block.disks.pop()));
    environment.settle();
    let disk = ["disks[data]", "present", "absent", "HotPlug"];
    assert_eq!(pending(&environment), [disk]);
    let volumes = &environment.vm.as_ref().unwrap().spec.template.spec.volumes;
    assert!(volumes.iter().all(|volume| volume.name != "data"));
    plug(&mut environment, None);
    environment.settle();
    assert_eq!(pending(&environment), [[""; 4]; 0]);
    assert!(environment.claims.contains_key("web-data"));
}
