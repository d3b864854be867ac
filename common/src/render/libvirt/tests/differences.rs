//! Differences of the desired domain from the running one, and which of them libvirt can remove at once.

use super::super::{Difference, Disk, Domain, LiveUpdate, Nic, UNTAGGED};
use super::fixtures::{self, Case};
use super::real;
use crate::api::choice::{AccessMode, DiskBus, FirmwareType, MachineType, NicModel};
use crate::api::machine::Image;
use crate::api::normalized::{Normalized, NormalizedCdrom, NormalizedDisk, NormalizedNetwork};

/// The differences after a change of a case's block. As in the controller, the desired domain preserves
/// what the current definition has.
fn differences(name: &str, change: impl FnOnce(&mut Case)) -> Vec<Difference> {
    let (desired, running) = both(name, change);
    desired.differences_from(&running)
}

/// The desired and the running domain.
fn both(name: &str, change: impl FnOnce(&mut Case)) -> (Domain, Domain) {
    let mut case = fixtures::named(name);
    let running = real::domain(&format!("{name}.inactive"));
    change(&mut case);
    (case.render().preserving(&running), running)
}

/// Lines of `field: current → desired; live update or restart`.
fn lines(differences: &[Difference]) -> Vec<String> {
    let line = |it: &Difference| {
        let live = it
            .live
            .as_ref()
            .map_or("restart".to_owned(), ToString::to_string);
        format!("{}: {} → {}; {live}", it.field, it.current, it.desired)
    };
    differences.iter().map(line).collect()
}

#[track_caller]
fn check(name: &str, change: impl FnOnce(&mut Normalized), expected: &[&str]) {
    assert_eq!(
        lines(&differences(name, |case| change(&mut case.block))),
        expected
    );
}

fn extra_disk(bus: DiskBus) -> NormalizedDisk {
    NormalizedDisk {
        name: "extra".into(),
        bus,
        boot_order: None,
        image: None,
        ..fixtures::named("small").block.disks[0].clone()
    }
}

fn add_nic(case: &mut Case, model: NicModel) {
    case.connect("extra", "ovs br-int 7");
    case.block.networks.push(NormalizedNetwork {
        boot_order: Some(2),
        ip_addresses: vec![],
        mac_address: None,
        model,
        name: "extra".into(),
        network_name: None,
    });
}

#[test]
fn an_unchanged_machine_has_no_differences() {
    for name in fixtures::names() {
        check(&name, |_| (), &[]);
    }
}

#[test]
fn a_serial_number_changes_at_the_restart() {
    check(
        "small",
        |block| block.disks[0].serial = Some("root".into()),
        &["disks[root].serial: none → root; restart"],
    );
}

#[test]
fn sockets_are_hot_plugged_up_to_the_maximum() {
    let more = ["cpu.sockets: 1 → 4; 8 vCPUs"];
    check("growing", |block| block.cpu.sockets = 4, &more);
    check(
        "growing",
        |block| (block.cpu.sockets, block.cpu.max_sockets) = (5, 5),
        &[
            "cpu.sockets: 1 → 5; restart",
            "cpu.maxSockets: 4 → 5; restart",
        ],
    );
    check(
        "growing",
        |block| (block.cpu.sockets, block.cpu.cores) = (2, 1),
        &["cpu.sockets: 1 → 2; restart", "cpu.cores: 2 → 1; restart"],
    );
    check(
        "growing",
        |block| block.cpu.threads = 2,
        &["cpu.threads: 1 → 2; restart"],
    );
}

#[test]
fn a_running_guest_never_loses_a_vcpu() {
    let (desired, mut running) = both("growing", |_| ());
    running.cpu.sockets = 3;
    assert_eq!(
        lines(&desired.differences_from(&running)),
        ["cpu.sockets: 3 → 1; restart"]
    );
}

#[test]
fn a_guest_without_acpi_gets_no_live_update() {
    let (mut desired, mut running) = both("growing", |case| {
        case.block.cpu.sockets = 2;
        case.block.disks.push(extra_disk(DiskBus::Virtio));
        add_nic(case, NicModel::Virtio);
    });
    (desired.features.acpi, running.features.acpi) = (false, false);
    let differences = desired.differences_from(&running);
    assert_eq!(differences.len(), 3);
    assert!(differences.iter().all(|it| it.live.is_none()));
}

#[test]
fn the_balloon_sets_memory_up_to_the_maximum() {
    let size = |size: &'static str| {
        move |block: &mut Normalized| block.memory.size = size.parse().unwrap()
    };
    check(
        "growing",
        size("2Gi"),
        &["memory.size: 1431Mi → 2Gi; memory 2097152 KiB"],
    );
    check(
        "growing",
        size("4Gi"),
        &["memory.size: 1431Mi → 4Gi; memory 4194304 KiB"],
    );
    check(
        "growing",
        size("1Gi"),
        &["memory.size: 1431Mi → 1Gi; memory 1048576 KiB"],
    );
    check(
        "growing",
        |block| {
            (block.memory.size, block.memory.max_size) =
                ("8Gi".parse().unwrap(), "8Gi".parse().unwrap());
        },
        &[
            "memory.size: 1431Mi → 8Gi; restart",
            "memory.maxSize: 4Gi → 8Gi; restart",
        ],
    );
}

#[test]
fn a_change_of_hardware_needs_a_restart() {
    check(
        "growing",
        |block| block.machine_type = MachineType::Pc,
        &["machineType: q35 → pc; restart"],
    );
    check(
        "growing",
        |block| block.firmware.secure_boot = Some(true),
        &["firmware: efi → efi with secureBoot; restart"],
    );
    check(
        "growing",
        |block| block.firmware.kind = FirmwareType::Bios,
        &["firmware: efi → bios; restart"],
    );
    check(
        "small",
        |block| block.features.hyperv = true,
        &["features.hyperv: false → true; restart"],
    );
    check(
        "bare",
        |block| (block.features.acpi, block.features.apic) = (true, true),
        &[
            "features.acpi: false → true; restart",
            "features.apic: false → true; restart",
        ],
    );
}

#[test]
fn disks_are_hot_plugged_on_virtio_and_scsi_only() {
    for (bus, expected) in [
        (
            DiskBus::Virtio,
            "disks[extra]: absent → present; disk extra plugged in",
        ),
        (
            DiskBus::Scsi,
            "disks[extra]: absent → present; disk extra plugged in",
        ),
        (DiskBus::Sata, "disks[extra]: absent → present; restart"),
    ] {
        for name in ["growing", "i440fx"] {
            check(name, |block| block.disks.push(extra_disk(bus)), &[expected]);
        }
    }
    check(
        "growing",
        |block| block.disks.truncate(1),
        &[
            "disks[data]: present → absent; disk data unplugged",
            "disks[library]: present → absent; disk library unplugged",
        ],
    );
    check(
        "windows",
        |block| block.disks.clear(),
        &["disks[root]: present → absent; restart"],
    );
}

#[test]
fn a_hot_plugged_device_takes_no_target_address_or_boot_order_of_a_running_one() {
    let (mut desired, mut running) = both("growing", |case| {
        case.block.disks.push(extra_disk(DiskBus::Virtio));
        add_nic(case, NicModel::Virtio);
    });
    let attached = |desired: &Domain, running: &Domain| {
        let differences = desired.differences_from(running);
        let mut live = differences.into_iter().filter_map(|it| it.live);
        match (live.next(), live.next(), live.next()) {
            (Some(LiveUpdate::AttachDisk(disk)), Some(LiveUpdate::AttachNic(nic)), None) => {
                (disk, nic)
            }
            live => panic!("{live:?}"),
        }
    };
    // Addresses that libvirt chose for the definition: the devices have them after a restart, too.
    let on_port = desired.nics[0].address.clone().unwrap();
    let free = |bus: &str| {
        let mut address = on_port.clone();
        address.0.insert("bus".into(), bus.into());
        Some(address)
    };
    let (on_ten, on_eleven) = (free("0x0a"), free("0x0b"));
    let named = |disk: &&mut Disk| disk.name() == "extra";
    let disk = desired.disks.iter_mut().find(named).unwrap();
    disk.address.clone_from(&on_ten);
    disk.boot_order = Some(3);
    desired.nics[2].address.clone_from(&on_eleven);
    desired.nics[2].boot_order = Some(2);
    let (disk, nic) = attached(&desired, &running);
    assert_eq!((&disk.target, &disk.address), (&"vdc".to_owned(), &on_ten));
    assert_eq!((disk.boot_order, nic.boot_order), (Some(3), Some(2)));
    assert_eq!(nic.address, on_eleven);

    // Devices that were removed from the definition, but not yet from the running guest.
    running.disks[0].target = "vdc".into();
    running.disks[0].address.clone_from(&on_ten);
    running.nics[0].address.clone_from(&on_eleven);
    running.disks[1].boot_order = Some(3);
    running.nics[1].boot_order = Some(2);
    let (disk, nic) = attached(&desired, &running);
    assert_eq!((disk.target.as_str(), disk.address), ("vdd", None));
    assert_eq!((disk.boot_order, nic.boot_order), (None, None));
    assert_eq!(nic.address, None);

    // A port of the new definition that the running guest does not have.
    desired.nics[2].address = free("0x30");
    assert_eq!(attached(&desired, &running).1.address, None);
}

#[test]
fn a_device_on_the_root_bus_is_removed_by_a_restart_only() {
    let (mut desired, mut running) = both("growing", |_| ());
    let on_root = |domain: &mut Domain| {
        let address = domain.nics[0].address.as_mut().unwrap();
        address.0.insert("bus".into(), "0x00".into());
    };
    on_root(&mut running);
    desired.nics.remove(0);
    assert_eq!(
        lines(&desired.differences_from(&running)),
        ["networks[eth0]: present → absent; restart"]
    );
}

#[test]
fn a_device_of_another_owner_is_never_unplugged() {
    let (desired, mut running) = both("growing", |_| ());
    running.disks.push(Disk {
        alias: "virtio-disk7".into(),
        target: "vdh".into(),
        ..running.disks[2].clone()
    });
    running.nics.push(Nic {
        alias: "net7".into(),
        ..running.nics[0].clone()
    });
    assert_eq!(
        lines(&desired.differences_from(&running)),
        [
            "disks[vdh]: present → absent; restart",
            "networks[net7]: present → absent; restart",
        ]
    );
}

#[test]
fn network_cards_are_hot_plugged_where_the_chipset_supports_it() {
    let live = "networks[extra]: absent → present; network card extra plugged in";
    let restart = "networks[extra]: absent → present; restart";
    for (name, model, expected) in [
        ("growing", NicModel::Virtio, live),
        ("growing", NicModel::E1000e, live),
        ("growing", NicModel::E1000, restart),
        ("growing", NicModel::Rtl8139, restart),
        ("i440fx", NicModel::E1000, live),
        ("i440fx", NicModel::Virtio, live),
    ] {
        let differences = differences(name, |case| add_nic(case, model));
        assert_eq!(lines(&differences), [expected], "{name} {model}");
    }
    check(
        "growing",
        |block| block.networks.clear(),
        &[
            "networks[eth0]: present → absent; network card eth0 unplugged",
            "networks[eth1]: present → absent; restart",
        ],
    );
}

#[test]
fn a_device_that_was_plugged_in_without_a_number_changes_no_boot_order() {
    let (desired, mut running) = both("small", |case| {
        let mut disk = extra_disk(DiskBus::Virtio);
        disk.boot_order = Some(2);
        case.block.disks.push(disk);
        case.block.networks[0].boot_order = Some(3);
    });
    running.disks.clone_from(&desired.disks);
    let named = |disk: &&mut Disk| disk.name() == "extra";
    running.disks.iter_mut().find(named).unwrap().boot_order = None;
    assert_eq!(lines(&desired.differences_from(&running)), [""; 0]);
    // None of the guest's cards was to boot.
    running.nics[0].boot_order = None;
    let differences = desired.differences_from(&running);
    assert!(
        lines(&differences).contains(&"networks[default].bootOrder: none → 3; restart".to_owned()),
        "{differences:?}"
    );
}

#[test]
fn a_change_of_a_network_card_needs_a_restart() {
    check(
        "small",
        |block| {
            let card = &mut block.networks[0];
            card.model = NicModel::E1000;
            card.mac_address = Some("52:54:00:00:00:01".parse().unwrap());
            card.boot_order = None;
        },
        &[
            "networks[default].model: virtio → e1000; restart",
            "networks[default].macAddress: 5a:b9:e2:28:3e:4b → 52:54:00:00:00:01; restart",
            "networks[default].bootOrder: 2 → none; restart",
        ],
    );
    let differences = differences("small", |case| {
        case.connect("default", "ovs br-int 42 9000");
    });
    assert_eq!(
        lines(&differences),
        [
            "networks[default].networkName: network default → ovs br-int vlan 42; restart",
            "networks[default].mtu: none → 9000; restart",
        ]
    );
}

#[test]
fn a_change_of_a_disk_needs_a_restart() {
    check(
        "small",
        |block| {
            let disk = &mut block.disks[0];
            disk.bus = DiskBus::Sata;
            disk.boot_order = None;
            disk.access_mode = AccessMode::ReadOnlyMany;
            disk.image = None;
        },
        &[
            "disks[root].bus: virtio → sata; restart",
            "disks[root].bootOrder: 1 → none; restart",
            "disks[root].volume: vms/prod-web-8d49d164.root.qcow2 → vms/prod-web-8d49d164.root.raw; restart",
            "disks[root].accessMode: read and write → read only; restart",
        ],
    );
}

#[test]
fn a_medium_is_changed_at_once_and_a_drive_at_the_next_restart() {
    let volume = "vms/prod-web-8d49d164.installer.raw";
    let emptied = differences("windows", |case| case.block.cdroms[0].image = None);
    assert_eq!(
        lines(&emptied),
        [format!(
            "cdroms[installer].image: {volume} → nothing; nothing in drive installer"
        )]
    );
    let Some(LiveUpdate::ChangeMedium(drive)) = &emptied[0].live else {
        panic!("{emptied:?}")
    };
    let running = real::domain("windows.inactive");
    let current = running
        .disks
        .iter()
        .find(|it| it.name() == "installer")
        .unwrap();
    assert_eq!(
        (&drive.target, &drive.address),
        (&current.target, &current.address)
    );
    assert!(!drive.xml().contains("<source"));

    let filled = differences("windows", |case| {
        case.block.cdroms[1].image = Some(Image::default());
    });
    let line = "cdroms[drivers].image: nothing → vms/prod-web-8d49d164.drivers.raw; vms/prod-web-8d49d164.drivers.raw in drive drivers";
    assert_eq!(lines(&filled), [line]);

    check(
        "windows",
        |block| {
            let drive = NormalizedCdrom {
                name: "third".into(),
                ..block.cdroms.remove(1)
            };
            block.cdroms.push(drive);
        },
        &[
            "cdroms[drivers]: present → absent; restart",
            "cdroms[third]: absent → present; restart",
        ],
    );
}

#[test]
fn a_trunk_port_of_open_vswitch_becomes_an_access_port_at_the_next_restart() {
    let defined = real::domain("ovs.inactive");
    let desired = fixtures::named("ovs").render().preserving(&defined);
    let tags: Vec<_> = desired.nics.iter().map(|nic| nic.attachment.vlan).collect();
    assert_eq!(tags, [Some(UNTAGGED), Some(42)]);
    // As earlier releases defined it, and with tags that somebody added.
    let none = defined
        .xml()
        .replacen("<vlan>", "<!--", 1)
        .replacen("</vlan>", "-->", 1);
    let two = defined
        .xml()
        .replacen("<tag id='0'/>", "<tag id='5'/><tag id='6'/>", 1);
    let marked = defined.xml().replacen("<vlan>", "<vlan trunk='yes'>", 1);
    for trunk in [none, two, marked] {
        let running = Domain::parse(&trunk).unwrap();
        assert_eq!(
            lines(&desired.differences_from(&running)),
            ["networks[eth0].networkName: ovs br-int all VLANs → ovs br-int untagged; restart"],
            "{trunk}"
        );
    }
}

#[test]
fn another_seed_takes_effect_at_the_next_restart() {
    let seed = "cloudInit: as it was → as it is now; restart";
    let running = real::domain("small.live");
    let mut desired = fixtures::named("small").render();
    let is_seed = |disk: &&mut Disk| disk.cdrom;
    let drive = desired.disks.iter_mut().find(is_seed).unwrap();
    drive.volume.as_mut().unwrap().volume = "another.iso".into();
    assert_eq!(lines(&desired.differences_from(&running)), [seed]);
    desired.disks.retain(|disk| !disk.cdrom);
    assert_eq!(lines(&desired.differences_from(&running)), [seed]);
    assert_eq!(lines(&running.differences_from(&desired)), [seed]);
}
