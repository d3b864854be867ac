//! What a running guest lacks, and what can be done about it at once.

use super::super::{Change, Disk, Domain, Live, Nic};
use super::fixtures::{self, Case};
use super::real;
use crate::api::choice::{AccessMode, DiskBus, FirmwareType, MachineType, NicModel};
use crate::api::machine::Image;
use crate::api::normalized::{Normalized, NormalizedCdrom, NormalizedDisk, NormalizedNetwork};

/// What becomes of the guest of a case when its block is changed: as the controller does it, with what
/// was carried over.
fn changes(name: &str, change: impl FnOnce(&mut Case)) -> Vec<Change> {
    let (wish, runs) = both(name, change);
    wish.changes(&runs)
}

fn both(name: &str, change: impl FnOnce(&mut Case)) -> (Domain, Domain) {
    let mut case = fixtures::named(name);
    let runs = real::domain(&format!("{name}.inactive"));
    change(&mut case);
    (case.render().carrying(&runs), runs)
}

/// Lines of `field: current → desired`, with what can be done at once.
fn lines(changes: &[Change]) -> Vec<String> {
    let line = |it: &Change| {
        let live = it
            .live
            .as_ref()
            .map_or("restart".to_owned(), ToString::to_string);
        format!("{}: {} → {}; {live}", it.field, it.current, it.desired)
    };
    changes.iter().map(line).collect()
}

#[track_caller]
fn check(name: &str, change: impl FnOnce(&mut Normalized), expected: &[&str]) {
    assert_eq!(
        lines(&changes(name, |case| change(&mut case.block))),
        expected
    );
}

fn extra(bus: DiskBus) -> NormalizedDisk {
    NormalizedDisk {
        name: "extra".into(),
        bus,
        boot_order: None,
        image: None,
        ..fixtures::named("small").block.disks[0].clone()
    }
}

fn plugged(case: &mut Case, model: NicModel) {
    case.wire("extra", "ovs br-int 7");
    case.block.networks.push(NormalizedNetwork {
        boot_order: Some(2),
        mac_address: None,
        model,
        name: "extra".into(),
        network_name: None,
    });
}

#[test]
fn nothing_changes_by_itself() {
    for name in fixtures::names() {
        check(&name, |_| (), &[]);
    }
}

#[test]
fn sockets_are_plugged_up_to_the_most() {
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
fn no_vcpu_is_taken_from_a_guest_that_runs() {
    let (wish, mut runs) = both("growing", |_| ());
    runs.cpu.sockets = 3;
    assert_eq!(lines(&wish.changes(&runs)), ["cpu.sockets: 3 → 1; restart"]);
}

#[test]
fn without_acpi_a_guest_is_told_nothing() {
    let (mut wish, mut runs) = both("growing", |case| {
        case.block.cpu.sockets = 2;
        case.block.disks.push(extra(DiskBus::Virtio));
        plugged(case, NicModel::Virtio);
    });
    (wish.features.acpi, runs.features.acpi) = (false, false);
    let changes = wish.changes(&runs);
    assert_eq!(changes.len(), 3);
    assert!(changes.iter().all(|change| change.live.is_none()));
}

#[test]
fn memory_is_given_and_taken_by_the_balloon() {
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
fn hardware_takes_a_restart() {
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
fn disks_are_plugged_where_the_bus_can() {
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
            check(name, |block| block.disks.push(extra(bus)), &[expected]);
        }
    }
    check(
        "growing",
        |block| block.disks.truncate(1),
        &[
            "disks[data]: present → absent; disk data pulled out",
            "disks[library]: present → absent; disk library pulled out",
        ],
    );
    check(
        "windows",
        |block| block.disks.clear(),
        &["disks[root]: present → absent; restart"],
    );
}

#[test]
fn what_is_plugged_in_collides_with_nothing_that_runs() {
    let (mut wish, mut runs) = both("growing", |case| {
        case.block.disks.push(extra(DiskBus::Virtio));
        plugged(case, NicModel::Virtio);
    });
    let attached = |wish: &Domain, runs: &Domain| {
        let changes = wish.changes(runs);
        let mut live = changes.into_iter().filter_map(|change| change.live);
        match (live.next(), live.next(), live.next()) {
            (Some(Live::AttachDisk(disk)), Some(Live::AttachNic(nic)), None) => (disk, nic),
            live => panic!("{live:?}"),
        }
    };
    // As libvirt places them when they are defined: they sit there after a restart, too.
    let on_port = wish.nics[0].address.clone().unwrap();
    let free = |bus: &str| {
        let mut address = on_port.clone();
        address.0.insert("bus".into(), bus.into());
        Some(address)
    };
    let (on_ten, on_eleven) = (free("0x0a"), free("0x0b"));
    let named = |disk: &&mut Disk| disk.name() == "extra";
    let disk = wish.disks.iter_mut().find(named).unwrap();
    disk.address.clone_from(&on_ten);
    disk.boot_order = Some(3);
    wish.nics[2].address.clone_from(&on_eleven);
    wish.nics[2].boot_order = Some(2);
    let (disk, nic) = attached(&wish, &runs);
    assert_eq!((&disk.target, &disk.address), (&"vdc".to_owned(), &on_ten));
    assert_eq!((disk.boot_order, nic.boot_order), (Some(3), Some(2)));
    assert_eq!(nic.address, on_eleven);

    // What was pulled out of the definition and not yet out of the guest.
    runs.disks[0].target = "vdc".into();
    runs.disks[0].address.clone_from(&on_ten);
    runs.nics[0].address.clone_from(&on_eleven);
    runs.disks[1].boot_order = Some(3);
    runs.nics[1].boot_order = Some(2);
    let (disk, nic) = attached(&wish, &runs);
    assert_eq!((disk.target.as_str(), disk.address), ("vdd", None));
    assert_eq!((disk.boot_order, nic.boot_order), (None, None));
    assert_eq!(nic.address, None);

    // A port that came with the new definition is not in the guest.
    wish.nics[2].address = free("0x30");
    assert_eq!(attached(&wish, &runs).1.address, None);
}

#[test]
fn what_sits_on_the_root_stays_there() {
    let (mut wish, mut runs) = both("growing", |_| ());
    let on_root = |domain: &mut Domain| {
        let address = domain.nics[0].address.as_mut().unwrap();
        address.0.insert("bus".into(), "0x00".into());
    };
    on_root(&mut runs);
    wish.nics.remove(0);
    assert_eq!(
        lines(&wish.changes(&runs)),
        ["networks[eth0]: present → absent; restart"]
    );
}

#[test]
fn what_somebody_else_plugged_in_is_not_pulled_out() {
    let (wish, mut runs) = both("growing", |_| ());
    runs.disks.push(Disk {
        alias: "virtio-disk7".into(),
        target: "vdh".into(),
        ..runs.disks[2].clone()
    });
    runs.nics.push(Nic {
        alias: "net7".into(),
        ..runs.nics[0].clone()
    });
    assert_eq!(
        lines(&wish.changes(&runs)),
        [
            "disks[vdh]: present → absent; restart",
            "networks[net7]: present → absent; restart",
        ]
    );
}

#[test]
fn cards_are_plugged_where_the_chipset_can() {
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
        let changes = changes(name, |case| plugged(case, model));
        assert_eq!(lines(&changes), [expected], "{name} {model}");
    }
    check(
        "growing",
        |block| block.networks.clear(),
        &[
            "networks[eth0]: present → absent; network card eth0 pulled out",
            "networks[eth1]: present → absent; restart",
        ],
    );
}

#[test]
fn what_a_card_is_takes_a_restart() {
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
    let changes = changes("small", |case| case.wire("default", "ovs br-int 42 9000"));
    assert_eq!(
        lines(&changes),
        [
            "networks[default].networkName: network default → ovs br-int vlan 42; restart",
            "networks[default].mtu: none → 9000; restart",
        ]
    );
}

#[test]
fn what_a_disk_is_takes_a_restart() {
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
fn a_medium_is_changed_in_its_drive() {
    let volume = "vms/prod-web-8d49d164.installer.raw";
    let emptied = changes("windows", |case| case.block.cdroms[0].image = None);
    assert_eq!(
        lines(&emptied),
        [format!(
            "cdroms[installer].image: {volume} → nothing; nothing in drive installer"
        )]
    );
    let Some(Live::ChangeMedium(drive)) = &emptied[0].live else {
        panic!("{emptied:?}")
    };
    let runs = real::domain("windows.inactive");
    let was = runs
        .disks
        .iter()
        .find(|it| it.name() == "installer")
        .unwrap();
    assert_eq!((&drive.target, &drive.address), (&was.target, &was.address));
    assert!(!drive.xml().contains("<source"));

    let filled = changes("windows", |case| {
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
fn cloud_init_is_read_when_a_guest_starts() {
    let seed = "cloudInit: as it was → as it is now; restart";
    let runs = real::domain("small.live");
    let mut wish = fixtures::named("small").render();
    let is_seed = |disk: &&mut Disk| disk.cdrom;
    let drive = wish.disks.iter_mut().find(is_seed).unwrap();
    drive.volume.as_mut().unwrap().volume = "another.iso".into();
    assert_eq!(lines(&wish.changes(&runs)), [seed]);
    wish.disks.retain(|disk| !disk.cdrom);
    assert_eq!(lines(&wish.changes(&runs)), [seed]);
    assert_eq!(lines(&runs.changes(&wish)), [seed]);
}
