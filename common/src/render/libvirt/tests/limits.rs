//! What a host imposes on guests: how it is written and read, and when a definition gets it.

use super::super::{DiskLimits, Domain, NicPolicy, NicSource};
use super::fixtures;
use super::golden::validate;

/// The domain with every limit on every device.
fn limited(mut domain: Domain) -> Domain {
    domain.vcpu_quota = true;
    for disk in domain.disks.iter_mut().filter(|disk| !disk.cdrom) {
        disk.limits = DiskLimits {
            bytes_per_second: Some(200_000_000),
            iops: Some(2000),
        };
    }
    for nic in &mut domain.nics {
        nic.attachment.policy = NicPolicy {
            mac_filter: true,
            isolated: true,
            kilobytes_per_second: Some(125_000),
        };
    }
    domain
}

#[test]
fn limits_render_to_xml_that_libvirts_schema_accepts_and_are_read_again() {
    let domain = limited(fixtures::named("small").render());
    let xml = domain.xml();
    validate("domain", &xml);
    assert_eq!(Domain::parse(&xml), Ok(domain));
    for part in [
        "<filterref filter='no-mac-spoofing'/>",
        "<port isolated='yes'/>",
        "<inbound average='125000'/>",
        "<outbound average='125000'/>",
        "<total_bytes_sec>200000000</total_bytes_sec>",
        "<total_iops_sec>2000</total_iops_sec>",
        "<period>100000</period>",
        "<quota>100000</quota>",
        "<emulator_quota>100000</emulator_quota>",
    ] {
        assert!(xml.contains(part), "{part}: {xml}");
    }
}

#[test]
fn a_running_guest_without_limits_differs_in_nothing() {
    for name in fixtures::names() {
        let plain = fixtures::named(&name).render();
        let desired = limited(plain.clone());
        assert_eq!(desired.differences_from(&plain), [], "{name}");
        assert_eq!(desired.with_limits_of(&plain), plain, "{name}");
    }
}

#[test]
fn a_new_device_and_one_on_another_network_have_the_limits_of_the_host() {
    let plain = fixtures::named("small").render();
    let mut current = plain.clone();
    current.disks.retain(|disk| disk.name() == "nothing");
    current.nics[0].attachment.source = NicSource::Ovs("br-int".into());
    let mut desired = limited(plain);
    desired.vcpu_quota = false;
    assert_eq!(desired.clone().with_limits_of(&current), desired);
}
