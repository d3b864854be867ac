//! Blocks and the XML they become.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::super::{Domain, VolumeFormat, VolumeWish, volume_xml};
use super::fixtures;
use crate::quantity::Bytes;

#[test]
fn every_case_is_what_libvirts_schema_accepts() {
    for name in fixtures::names() {
        let domain = fixtures::named(&name).render();
        let xml = domain.xml();
        validate("domain", &xml);
        assert_eq!(Domain::parse(&xml), Ok(domain));
        insta::assert_snapshot!(name, xml);
    }
}

#[test]
fn volumes_are_what_libvirts_schema_accepts() {
    let wish = VolumeWish {
        name: "prod-web-8d49d164.root.qcow2",
        format: VolumeFormat::Qcow2,
        capacity: Bytes::mib(20 * 1024),
        backing: Some((
            "/var/lib/libvirt/images/debian & more.qcow2",
            VolumeFormat::Qcow2,
        )),
    };
    let overlay = volume_xml(&wish);
    let blank = volume_xml(&VolumeWish {
        name: "prod-web-8d49d164.data.raw",
        format: VolumeFormat::Raw,
        backing: None,
        ..wish
    });
    for xml in [&overlay, &blank] {
        validate("storagevol", xml);
    }
    insta::assert_snapshot!("volumes", overlay + &blank);
}

/// Libvirt's schema, of the machine the tests run on.
fn validate(schema: &str, xml: &str) {
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
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{xml}");
}
