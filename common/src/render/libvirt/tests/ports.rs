//! Free ports of running guests, and devices that find none.

use super::super::ports::{FreePorts, SPARE_PORTS};
use super::super::{Difference, Domain};
use super::fixtures;
use super::real;
use crate::api::choice::{DiskBus, NicModel};
use crate::api::normalized::{NormalizedDisk, NormalizedNetwork};

/// How many devices a guest takes, up to a number that no guest here reaches.
fn free(running: &Domain) -> usize {
    let mut ports = FreePorts::of(running);
    (0..100).take_while(|_| ports.take()).count()
}

/// The differences of a Machine that gets these disks and cards while it runs, with whether each is plugged in.
fn plugged(running: &Domain, disks: &[DiskBus], cards: usize) -> Vec<(String, bool)> {
    let mut case = fixtures::named("growing");
    let disk = case.block.disks[0].clone();
    for (index, bus) in disks.iter().enumerate() {
        case.block.disks.push(NormalizedDisk {
            name: format!("disk{index}"),
            bus: *bus,
            boot_order: None,
            image: None,
            ..disk.clone()
        });
    }
    for index in 0..cards {
        let name = format!("card{index}");
        case.connect(&name, "network default");
        case.block.networks.push(NormalizedNetwork {
            boot_order: None,
            ip_addresses: vec![],
            mac_address: None,
            model: NicModel::Virtio,
            name,
            network_name: None,
        });
    }
    let desired = case.render().preserving(running);
    let differences = desired.differences_from(running);
    let is_new = |it: &Difference| it.current == "absent";
    let line = |it: Difference| (it.field, it.live.is_some());
    differences.into_iter().filter(is_new).map(line).collect()
}

#[test]
fn a_guest_has_its_spare_ports_free_after_each_start() {
    for name in ["small", "growing"] {
        let live = real::domain(&format!("{name}.live"));
        assert!(
            (SPARE_PORTS..=SPARE_PORTS + 2).contains(&free(&live)),
            "{name}: {}",
            free(&live)
        );
    }
    assert_eq!(free(&real::domain("i440fx.inactive")), 100);
}

#[test]
fn a_port_is_free_until_a_device_is_on_it() {
    let mut running = real::domain("growing.live");
    let count = free(&running);
    let card = running.nics.remove(0);
    assert_eq!(free(&running), count + 1);
    running.nics.push(card);
    running.controllers.retain(|it| it.index != 15);
    assert_eq!(free(&running), count - 1);
}

#[test]
fn a_device_without_a_free_port_waits_for_the_restart() {
    let running = real::domain("growing.live");
    let count = free(&running);
    let changes = plugged(&running, &[], count + 2);
    let live: Vec<_> = changes.iter().map(|(_, live)| *live).collect();
    assert_eq!(live, [vec![true; count], vec![false; 2]].concat());
    assert_eq!(changes[count].0, format!("networks[card{count}]"));
}

#[test]
fn disks_and_cards_share_the_ports_and_a_disk_on_scsi_needs_none() {
    let running = real::domain("growing.live");
    let count = free(&running);
    let virtio = vec![DiskBus::Virtio; count];
    let disks = [virtio, vec![DiskBus::Scsi, DiskBus::Virtio]].concat();
    let changes = plugged(&running, &disks, 1);
    let waits = changes.iter().filter(|(_, live)| !live);
    let waits: Vec<_> = waits.map(|(field, _)| field.clone()).collect();
    let last = format!("disks[disk{}]", count + 1);
    assert_eq!(waits, [last, "networks[card0]".to_owned()]);
}
