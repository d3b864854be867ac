//! Devices of the host: how they are written and read, and that they stay where the guest has found them.

use std::collections::BTreeSet;

use super::super::{Domain, pci_devices};
use super::fixtures;
use super::golden::validate;
use crate::api::choice::DeviceKind;
use crate::api::normalized::{NormalizedDevice, NormalizedHardware};
use crate::pci::PciAddress;

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// A guest with these devices, by name.
fn with(devices: &[(&str, &str)]) -> Domain {
    let mut case = fixtures::named("small");
    let named = devices.iter().map(|(name, _)| NormalizedDevice {
        device_name: "nvidia.com/A100".into(),
        kind: DeviceKind::Pci,
        name: (*name).into(),
    });
    case.block.hardware = NormalizedHardware {
        devices: named.collect(),
        ..NormalizedHardware::default()
    }
    .if_any();
    let devices = devices.iter();
    case.devices = devices
        .map(|(name, source)| ((*name).to_owned(), at(source)))
        .collect();
    case.render()
}

#[test]
fn devices_render_to_xml_that_libvirts_schema_accepts_and_are_read_again() {
    let domain = with(&[("gpu", "0000:3b:00.0"), ("nic", "0001:af:1f.7")]);
    let xml = domain.xml();
    validate("domain", &xml);
    for part in [
        "<hostdev mode='subsystem' type='pci' managed='yes'>",
        "<address domain='0x0001' bus='0xaf' slot='0x1f' function='0x7'/>",
        "<alias name='ua-device-gpu'/>",
    ] {
        assert!(xml.contains(part), "{part}\n{xml}");
    }
    let found = pci_devices(&xml).unwrap();
    assert_eq!(
        found,
        BTreeSet::from([at("0000:3b:00.0"), at("0001:af:1f.7")])
    );
    assert_eq!(Domain::parse(&xml), Ok(domain));
}

/// Each device has a port of its own, so that as many are left for what is plugged in.
#[test]
fn a_device_takes_no_port_from_what_is_plugged_in() {
    let ports = |domain: &Domain| {
        let controllers = domain.controllers.iter();
        let ports = controllers.filter(|it| it.model.as_deref() == Some("pcie-root-port"));
        ports.count()
    };
    let one = with(&[("gpu", "0000:3b:00.0")]);
    assert_eq!(ports(&one), ports(&with(&[])) + 1);
}

#[test]
fn devices_of_others_are_found_in_whichever_way_they_are_given() {
    let xml = "<domain><name>other</name><devices>\
        <interface type='hostdev'><source><address type='pci' domain='0x0000' bus='0x04' slot='0x10' function='0x2'/></source></interface>\
        <disk type='nvme' device='disk'><source type='pci' namespace='1'><address domain='0' bus='5' slot='0' function='0'/></source></disk>\
        <hostdev mode='subsystem' type='usb'><source><address bus='1' device='3'/></source></hostdev>\
        <controller type='pci' index='1'><address type='pci' domain='0x0000' bus='0x00' slot='0x01' function='0x0'/></controller>\
        </devices></domain>";
    let found = pci_devices(xml).unwrap();
    assert_eq!(
        found,
        BTreeSet::from([at("0000:04:10.2"), at("0000:05:00.0")])
    );
}

#[test]
fn another_device_is_a_restart_and_leaves_the_others_at_their_addresses() {
    let desired = with(&[("gpu", "0000:3b:00.0"), ("nic", "0000:04:10.2")]);
    let alias = "<alias name='ua-device-gpu'/>";
    let slot = "<address type='pci' domain='0x0000' bus='0x09' slot='0x00' function='0x0'/>";
    let xml = with(&[("gpu", "0000:3b:00.0")]).xml();
    let current = Domain::parse(&xml.replace(alias, &format!("{alias}{slot}"))).unwrap();
    let differences = desired.differences_from(&current);
    let [difference] = differences.as_slice() else {
        panic!("{differences:?}");
    };
    assert_eq!(difference.field, "devices");
    assert_eq!(difference.current, "gpu=0000:3b:00.0");
    assert_eq!(difference.desired, "gpu=0000:3b:00.0,nic=0000:04:10.2");
    assert!(difference.live.is_none());
    let kept = desired.preserving(&current);
    let addresses = |domain: &Domain| domain.host_devices[0].address.clone();
    assert!(addresses(&kept).is_some());
    assert_eq!(addresses(&kept), addresses(&current));
    assert_eq!(Domain::parse(&kept.xml()), Ok(kept));
}
