//! What a new definition preserves of the current one.

use super::super::{Address, Controller, Disk, Domain, DomainMetadata, IntentKind, VolumeRecord};
use super::real;
use crate::api::choice::{
    Choice as _, CpuMode, DiskBus, FirmwareType, MachineType, NicModel, ReclaimPolicy,
};
use crate::api::normalized::{NormalizedDisk, NormalizedNetwork};

use super::fixtures;

fn target_and_address(domain: &Domain, disk: &str) -> (String, Option<Address>) {
    let found = domain.disks.iter().find(|it| it.name() == disk).unwrap();
    (found.target.clone(), found.address.clone())
}

fn nic_address(domain: &Domain, nic: &str) -> Option<Address> {
    let found = domain.nics.iter().find(|it| it.name() == nic).unwrap();
    found.address.clone()
}

#[test]
fn a_new_device_does_not_move_the_existing_ones() {
    let old = real::domain("growing.inactive");
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
    case.connect("aaa", "network default");
    let new = case.render().preserving(&old);
    for disk in ["root", "data", "library", "cloudinitdisk"] {
        assert_eq!(
            target_and_address(&new, disk),
            target_and_address(&old, disk),
            "{disk}"
        );
    }
    for card in ["eth0", "eth1"] {
        assert_eq!(nic_address(&new, card), nic_address(&old, card));
    }
    assert_eq!(target_and_address(&new, "aaa"), ("vdc".into(), None));
    assert_eq!(
        nic_address(&new, "aaa"),
        None,
        "libvirt chooses its address"
    );
    assert_eq!(new.addresses, old.addresses);
    assert!(new.controllers.starts_with(&[Controller {
        address: None,
        kind: "pci".into(),
        index: 0,
        model: Some("pcie-root".into()),
    }]));
    assert!(
        old.controllers
            .iter()
            .all(|it| new.controllers.contains(it))
    );
}

#[test]
fn a_new_disk_never_gets_a_target_that_the_running_guest_may_use() {
    let old = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    case.block.disks.retain(|disk| disk.name != "root");
    let mut logs = case.block.disks[1].clone();
    logs.name = "logs".into();
    case.block.disks.push(logs);
    let new = case.render().preserving(&old);
    // The running guest still has root at vda, and library at vdb.
    assert_eq!(target_and_address(&new, "logs").0, "vdc");
    assert_eq!(target_and_address(&new, "library").0, "vdb");
}

#[test]
fn a_disk_on_another_bus_or_a_card_of_another_model_gets_a_new_address() {
    let old = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    case.block.disks[0].bus = DiskBus::Scsi;
    case.block.networks[0].model = NicModel::E1000;
    let new = case.render().preserving(&old);
    assert_eq!(target_and_address(&new, "root"), ("sdc".into(), None));
    assert_eq!(nic_address(&new, "eth0"), None);
    assert_eq!(nic_address(&new, "eth1"), nic_address(&old, "eth1"));
}

#[test]
fn a_change_of_the_chipset_preserves_no_address() {
    let old = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    case.block.machine_type = MachineType::Pc;
    let desired = case.render();
    let new = desired.clone().preserving(&old);
    assert_eq!(new, desired);
    assert_eq!(new.machine, "pc", "not the exact type of the old chipset");
}

#[test]
fn the_exact_machine_type_that_libvirt_chose_is_preserved() {
    for (name, exact) in [("small", "pc-q35-7.2"), ("i440fx", "pc-i440fx-7.2")] {
        let old = real::domain(&format!("{name}.inactive"));
        let new = fixtures::named(name).render().preserving(&old);
        assert_eq!(new.machine, exact);
        assert!(new.xml().contains(&format!("machine='{exact}'")));
    }
}

#[test]
fn firmware_variables_are_preserved_until_the_firmware_kind_changes() {
    let old = real::domain("growing.live");
    let path = "/var/lib/libvirt/qemu/nvram/prod-web-8d49d164_VARS.fd";
    let mut case = fixtures::named("growing");
    let nvram = |case: &fixtures::Case| case.render().preserving(&old).nvram;
    assert_eq!(nvram(&case).as_deref(), Some(path));
    case.block.firmware.secure_boot = Some(true);
    assert_eq!(
        nvram(&case).as_deref(),
        Some(path),
        "libvirt resets them at the start"
    );
    case.block.firmware.kind = FirmwareType::Bios;
    assert_eq!(nvram(&case), None);
}

#[test]
fn metadata_is_preserved_for_the_same_machine_only() {
    let recorded = DomainMetadata {
        volumes: vec![VolumeRecord {
            disk: "old".into(),
            pool: "vms".into(),
            volume: "prod-web-8d49d164.old.raw".into(),
            reclaim_policy: ReclaimPolicy::Retain,
        }],
        reset_nvram: true,
        ..fixtures::metadata(IntentKind::Restart, "now")
    };
    let mut old = real::domain("small.inactive");
    old.metadata = Some(recorded.clone());
    let desired = fixtures::named("small").render();
    assert_eq!(
        desired.clone().preserving(&old).metadata,
        Some(recorded.clone())
    );
    old.metadata = Some(DomainMetadata {
        uid: "another".into(),
        ..recorded
    });
    assert_eq!(desired.clone().preserving(&old).metadata, desired.metadata);
}

#[test]
fn preserving_is_idempotent() {
    let old = real::domain("growing.inactive");
    let mut case = fixtures::named("growing");
    case.block.disks.truncate(1);
    case.block.networks.truncate(1);
    let once = case.render().preserving(&old);
    let twice = case.render().preserving(&once);
    assert_eq!(twice, once);
}

#[test]
fn sixty_disks_get_targets_in_order_and_four_scsi_controllers() {
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

#[test]
fn each_definition_is_recognized_when_it_is_read_whatever_cpu_the_machine_asks_for() {
    for mode in CpuMode::ALL {
        let models = CpuMode::ALL.iter().map(|mode| Some(mode.as_str()));
        for model in models.chain([None, Some("Nehalem")]) {
            let mut desired = fixtures::named("small").render();
            desired.cpu_mode = *mode;
            desired.cpu_model = model.map(ToOwned::to_owned);
            let read = Domain::parse(&desired.xml()).unwrap();
            assert!(desired.is_defined_by(&read), "{mode} {model:?}");
            desired.cpu.threads += 1;
            assert!(!desired.is_defined_by(&read), "{mode} {model:?}");
        }
    }
    let mut desired = fixtures::named("small").render();
    desired.cpu_model = Some("Nehalem".into());
    let read = Domain::parse(&desired.xml()).unwrap();
    desired.cpu_model = Some("Westmere".into());
    assert!(!desired.is_defined_by(&read));
}
