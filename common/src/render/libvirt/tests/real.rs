//! What libvirt 9.0 tells of the domains in `cases`: as defined and as run by QEMU 7.2, and as defined by
//! its test driver. The files of the folder `real` are its own words, but for the names of the domains.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::super::{Domain, Live, Reference, VirtType, references};
use super::fixtures;

fn told(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/libvirt/tests/real");
    fs::read_to_string(folder.join(format!("{name}.xml"))).unwrap()
}

pub(super) fn domain(name: &str) -> Domain {
    Domain::parse(&told(name)).unwrap()
}

#[test]
fn what_is_defined_needs_no_definition() {
    for name in fixtures::names() {
        let wish = fixtures::named(&name).render();
        let defined = domain(&format!("{name}.inactive"));
        assert_eq!(wish.clone().carrying(&defined), defined, "{name}");
        assert_eq!(wish.changes(&defined), [], "{name}");
        assert_eq!(Domain::parse(&defined.xml()), Ok(defined), "{name}");
    }
}

#[test]
fn the_test_driver_keeps_it_too() {
    for name in ["small", "growing"] {
        let mut wish = fixtures::named(name).render();
        wish.virt_type = VirtType::Test;
        let defined = domain(&format!("{name}.test"));
        assert_eq!(wish.clone().carrying(&defined), defined, "{name}");
        assert_eq!(wish.changes(&defined), [], "{name}");
    }
}

#[test]
fn what_runs_differs_by_the_balloon_alone() {
    let wish = fixtures::named("small").render();
    assert_eq!(wish.changes(&domain("small.live")), []);

    let wish = fixtures::named("growing").render();
    let changes = wish.changes(&domain("growing.live"));
    let [change] = &changes[..] else {
        panic!("{changes:?}")
    };
    let told = [&change.field, &change.current, &change.desired];
    assert_eq!(told, ["memory.size", "4Gi", "1431Mi"]);
    assert_eq!(change.live, Some(Live::SetMemory(1431 * 1024)));
}

#[test]
fn whatever_a_domain_refers_to_is_told() {
    let volume = |volume: &str| Reference::Volume {
        pool: "vms".into(),
        volume: format!("prod-web-8d49d164.{volume}"),
    };
    let path = |path: &str| Reference::Path(path.into());
    let expected = [
        volume("root.qcow2"),
        volume("data.raw"),
        volume("library.raw"),
        volume("seed-0123456789ab.iso"),
        path("/usr/share/OVMF/OVMF_CODE_4M.fd"),
        path("/var/lib/libvirt/qemu/nvram/prod-web-8d49d164_VARS.fd"),
    ];
    let told = references(&told("growing.live"));
    assert_eq!(told, Ok(BTreeSet::from(expected)));

    let foreign = "<domain><os><nvram/></os><devices>
        <disk><source file='/a.qcow2'/><backingStore><source file='/base.qcow2'/></backingStore></disk>
        <disk><source dev='/dev/vg/lv'/></disk></devices></domain>";
    let expected = ["/a.qcow2", "/base.qcow2", "/dev/vg/lv"].map(path);
    assert_eq!(references(foreign), Ok(BTreeSet::from(expected)));
}

#[test]
fn a_domain_of_somebody_else_is_read_as_far_as_it_goes() {
    let foreign = "<domain type='kvm' id='7'>
        <name>mail</name><uuid>8d49d164-2c69-5818-86d9-d2fe0cfd7642</uuid>
        <metadata><other:machine xmlns:other='https://example.com'>{}</other:machine></metadata>
        <memory unit='KiB'>1048576</memory><vcpu>3</vcpu>
        <os><type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type></os>
        <devices>
          <disk type='file' device='floppy'><target dev='fda' bus='fdc'/></disk>
          <interface type='user'><mac address='52:54:00:00:00:01'/></interface>
          <interface type='direct'><mac address='52:54:00:00:00:02'/><source dev='eth0' mode='vepa'/></interface>
          <controller type='usb'/>
        </devices>
      </domain>";
    let domain = Domain::parse(foreign).unwrap();
    assert_eq!(domain.mark, None);
    assert!(!domain.is_q35());
    assert_eq!((domain.cpu.vcpus(), domain.cpu.max_sockets), (3, 3));
    assert_eq!(domain.memory.size, domain.memory.max_size);
    assert_eq!(domain.memory.size.to_string(), "1Gi");
    assert_eq!((domain.disks.len(), domain.nics.len()), (1, 0));
    assert_eq!(domain.disks[0].name(), "fda");
}

#[test]
fn what_is_no_domain_says_why() {
    let error = |xml: &str| Domain::parse(xml).unwrap_err().to_string();
    assert!(error("<domain>").starts_with("is no XML: "));
    assert_eq!(error("<network/>"), "has no domain");
    assert_eq!(error("<domain/>"), "has no devices");
    let named = "<domain><devices/><name>a</name><uuid>b</uuid></domain>";
    assert_eq!(error(named), "has the wrong uuid \"b\"");
    let entity = "<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>";
    assert!(error(entity).starts_with("is no XML: "));
}
