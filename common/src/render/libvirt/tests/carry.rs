//! A definition after another: what stays where it was.

use super::super::{Address, Controller, Disk, Domain, IntentKind, Kept, Mark};
use super::real;
use crate::api::choice::{DiskBus, FirmwareType, MachineType, NicModel, ReclaimPolicy};
use crate::api::normalized::{NormalizedDisk, NormalizedNetwork};

use super::fixtures;

fn place(domain: &Domain, disk: &str) -> (String, Option<Address>) {
    let found = domain.disks.iter().find(|it| it.name() == disk).unwrap();
    (found.target.clone(), found.address.clone())
}

fn nic(domain: &Domain, nic: &str) -> Option<Address> {
    let found = domain.nics.iter().find(|it| it.name() == nic).unwrap();
    found.address.clone()
}

#[test]
fn what_is_new_moves_nothing_that_stays() {
    let was = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    let first = NormalizedDisk {
        name: "aaa".into(),
        ..case.block.disks[0].clone()
    };
    case.block.disks.insert(0, first);
    let first = NormalizedNetwork {
        name: "aaa".into(),
        ..case.block.networks[0].clone()
    };
    case.block.networks.insert(0, first);
    case.wire("aaa", "network default");
    let is = case.render().carrying(&was);
    for disk in ["root", "data", "library", "cloudinitdisk"] {
        assert_eq!(place(&is, disk), place(&was, disk), "{disk}");
    }
    for card in ["eth0", "eth1"] {
        assert_eq!(nic(&is, card), nic(&was, card));
    }
    assert_eq!(place(&is, "aaa"), ("vdc".into(), None));
    assert_eq!(nic(&is, "aaa"), None, "libvirt finds it one");
    assert_eq!(is.addresses, was.addresses);
    assert!(is.controllers.starts_with(&[Controller {
        address: None,
        kind: "pci".into(),
        index: 0,
        model: Some("pcie-root".into()),
    }]));
    assert!(was.controllers.iter().all(|it| is.controllers.contains(it)));
}

#[test]
fn a_place_is_not_given_anew_while_it_may_be_in_use() {
    let was = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    case.block.disks.retain(|disk| disk.name != "root");
    let mut logs = case.block.disks[1].clone();
    logs.name = "logs".into();
    case.block.disks.push(logs);
    let is = case.render().carrying(&was);
    // The guest that runs still has root at vda, and library at vdb.
    assert_eq!(place(&is, "logs").0, "vdc");
    assert_eq!(place(&is, "library").0, "vdb");
}

#[test]
fn another_bus_or_model_is_another_place() {
    let was = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    case.block.disks[0].bus = DiskBus::Scsi;
    case.block.networks[0].model = NicModel::E1000;
    let is = case.render().carrying(&was);
    assert_eq!(place(&is, "root"), ("sdc".into(), None));
    assert_eq!(nic(&is, "eth0"), None);
    assert_eq!(nic(&is, "eth1"), nic(&was, "eth1"));
}

#[test]
fn another_chipset_has_other_places() {
    let was = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    case.block.machine_type = MachineType::Pc;
    let wish = case.render();
    let is = wish.clone().carrying(&was);
    assert_eq!(is, wish);
    assert_eq!(is.machine, "pc", "not what the other was frozen to");
}

#[test]
fn the_machine_type_stays_as_it_was_frozen() {
    for (name, frozen) in [("small", "pc-q35-7.2"), ("i440fx", "pc-i440fx-7.2")] {
        let was = real::domain(&format!("{name}.inactive"));
        let is = fixtures::named(name).render().carrying(&was);
        assert_eq!(is.machine, frozen);
        assert!(is.xml().contains(&format!("machine='{frozen}'")));
    }
}

#[test]
fn variables_stay_with_their_firmware() {
    let was = real::domain("growing.live");
    let path = "/var/lib/libvirt/qemu/nvram/prod-web-8d49d164_VARS.fd";
    let mut case = fixtures::named("growing");
    let nvram = |case: &fixtures::Case| case.render().carrying(&was).nvram;
    assert_eq!(nvram(&case).as_deref(), Some(path));
    case.block.firmware.secure_boot = Some(true);
    assert_eq!(
        nvram(&case).as_deref(),
        Some(path),
        "made anew at the start"
    );
    case.block.firmware.kind = FirmwareType::Bios;
    assert_eq!(nvram(&case), None);
}

#[test]
fn what_is_remembered_stays_with_its_machine() {
    let remembered = Mark {
        volumes: vec![Kept {
            disk: "old".into(),
            pool: "vms".into(),
            volume: "prod-web-8d49d164.old.raw".into(),
            reclaim_policy: ReclaimPolicy::Retain,
        }],
        reset_nvram: true,
        ..fixtures::mark(IntentKind::Restart, "now")
    };
    let mut was = real::domain("small.inactive");
    was.mark = Some(remembered.clone());
    let wish = fixtures::named("small").render();
    assert_eq!(wish.clone().carrying(&was).mark, Some(remembered.clone()));
    was.mark = Some(Mark {
        uid: "another".into(),
        ..remembered
    });
    assert_eq!(wish.clone().carrying(&was).mark, wish.mark);
}

#[test]
fn carrying_twice_is_as_once() {
    let was = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    case.block.disks.truncate(1);
    case.block.networks.truncate(1);
    let once = case.render().carrying(&was);
    let twice = case.render().carrying(&once);
    assert_eq!(twice, once);
}

#[test]
fn disks_are_in_their_places() {
    let mut case = fixtures::named("bare");
    case.block.disks = (0..60)
        .map(|index| NormalizedDisk {
            name: format!("disk-{index}"),
            bus: DiskBus::Scsi,
            ..fixtures::named("small").block.disks[0].clone()
        })
        .collect();
    let domain = case.render();
    let targets: Vec<_> = domain
        .disks
        .iter()
        .map(|disk: &Disk| &disk.target)
        .collect();
    assert_eq!(targets[..2], ["sda", "sdb"]);
    assert_eq!(targets[25..28], ["sdz", "sdaa", "sdab"]);
    assert_eq!(targets[51..53], ["sdaz", "sdba"]);
    assert_eq!(domain.disks[59].name(), "disk-59");
    let scsi = domain.controllers.iter().filter(|it| it.kind == "scsi");
    assert_eq!(scsi.count(), 4, "sixteen disks on each");
}
