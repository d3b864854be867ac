//! Snapshots of the XML of domains and volumes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::super::{Domain, VolumeFormat, VolumeSpec, volume_xml};
use super::{fixtures, real};
use crate::api::choice::{DiskBus, MachineType, NicModel};
use crate::quantity::Bytes;

#[test]
fn every_case_renders_to_xml_that_libvirts_schema_accepts() {
    for name in fixtures::names() {
        let domain = fixtures::named(&name).render();
        let xml = domain.xml();
        validate("domain", &xml);
        assert_eq!(Domain::parse(&xml), Ok(domain));
        insta::assert_snapshot!(name, xml);
    }
}

#[test]
fn a_domain_that_preserves_a_definition_is_valid_by_libvirts_schema() {
    for name in fixtures::names() {
        let defined = real::domain(&format!("{name}.inactive"));
        let domain = fixtures::named(&name).render().preserving(&defined);
        validate("domain", &domain.xml());
    }
}

/// As many devices as a block can have, each with the longest name. QEMU starts these domains.
#[test]
fn the_largest_machine_has_a_target_and_a_port_for_every_device() {
    for (machine_type, bus, model) in [
        (MachineType::Q35, DiskBus::Virtio, NicModel::Virtio),
        (MachineType::Q35, DiskBus::Scsi, NicModel::E1000),
        (MachineType::Pc, DiskBus::Sata, NicModel::Rtl8139),
    ] {
        let domain = fixtures::largest(machine_type, bus, model).render();
        let xml = domain.xml();
        validate("domain", &xml);
        let targets: BTreeSet<_> = domain.disks.iter().map(|disk| &disk.target).collect();
        assert_eq!(targets.len(), domain.disks.len());
        let ports = domain.controllers.iter();
        let ports = ports.filter(|it| it.model.as_deref() == Some("pcie-root-port"));
        let express = domain.disks.iter().filter(|disk| disk.bus == "virtio");
        match machine_type {
            MachineType::Q35 => assert!(ports.count() > express.count() + domain.nics.len() + 4),
            MachineType::Pc => assert_eq!(ports.count(), 0),
        }
        assert_eq!(Domain::parse(&xml), Ok(domain));
    }
}

#[test]
fn volumes_render_to_xml_that_libvirts_schema_accepts() {
    let spec = VolumeSpec {
        name: "prod-web-8d49d164.root.qcow2",
        format: VolumeFormat::Qcow2,
        capacity: Bytes::mib(20 * 1024),
        backing: Some((
            "/var/lib/libvirt/images/debian & more.qcow2",
            VolumeFormat::Qcow2,
        )),
    };
    let overlay = volume_xml(&spec);
    let blank = volume_xml(&VolumeSpec {
        name: "prod-web-8d49d164.data.raw",
        format: VolumeFormat::Raw,
        backing: None,
        ..spec
    });
    for xml in [&overlay, &blank] {
        validate("storagevol", xml);
    }
    insta::assert_snapshot!("volumes", overlay + &blank);
}

/// Validates XML with libvirt's schema, if libvirt's tool is installed.
pub(super) fn validate(schema: &str, xml: &str) {
    let validator = Command::new("virt-xml-validate")
        .args(["-", schema])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut validator) = validator else {
        eprintln!("skipped: virt-xml-validate of the package libvirt-clients is not installed");
        return;
    };
    let mut input = validator.stdin.take().unwrap();
    input.write_all(xml.as_bytes()).unwrap();
    drop(input);
    let output = validator.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}\n{xml}");
}
