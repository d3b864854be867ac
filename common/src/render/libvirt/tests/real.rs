//! XML that libvirt 9.0 returned for the domains in `cases`: after defining and running them with QEMU 7.2,
//! and after defining them with its test driver. In the files of the folder `real`, only the names of the
//! domains were edited.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::super::{Domain, LiveUpdate, Reference, VirtType, references, written_references};
use super::fixtures;

fn xml(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/libvirt/tests/real");
    fs::read_to_string(folder.join(format!("{name}.xml"))).unwrap()
}

pub(super) fn domain(name: &str) -> Domain {
    Domain::parse(&xml(name)).unwrap()
}

#[test]
fn a_defined_domain_has_no_differences_from_the_desired_one() {
    for name in fixtures::names() {
        let desired = fixtures::named(&name).render();
        let defined = domain(&format!("{name}.inactive"));
        assert_eq!(desired.clone().preserving(&defined), defined, "{name}");
        assert_eq!(desired.differences_from(&defined), [], "{name}");
        assert_eq!(Domain::parse(&defined.xml()), Ok(defined), "{name}");
    }
}

#[test]
fn a_domain_of_the_test_driver_has_no_differences_either() {
    for name in ["small", "growing"] {
        let mut desired = fixtures::named(name).render();
        desired.virt_type = VirtType::Test;
        let defined = domain(&format!("{name}.test"));
        assert_eq!(desired.clone().preserving(&defined), defined, "{name}");
        assert_eq!(desired.differences_from(&defined), [], "{name}");
    }
}

#[test]
fn a_running_domain_differs_only_in_the_memory_of_a_full_balloon() {
    let desired = fixtures::named("small").render();
    assert_eq!(desired.differences_from(&domain("small.live")), []);

    let desired = fixtures::named("growing").render();
    let differences = desired.differences_from(&domain("growing.live"));
    let [difference] = &differences[..] else {
        panic!("{differences:?}")
    };
    let values = [&difference.field, &difference.current, &difference.desired];
    assert_eq!(values, ["memory.size", "4Gi", "1431Mi"]);
    assert_eq!(difference.live, Some(LiveUpdate::SetMemory(1431 * 1024)));
}

#[test]
fn references_lists_all_storage_of_a_domain() {
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
    let found = references(&xml("growing.live"));
    assert_eq!(found, Ok(BTreeSet::from(expected)));

    let foreign = "<domain><os><nvram/></os><devices>
        <disk><source file='/a.qcow2'/><backingStore><source file='/base.qcow2'/></backingStore></disk>
        <disk><source dev='/dev/vg/lv'/></disk></devices></domain>";
    let expected = ["/a.qcow2", "/base.qcow2", "/dev/vg/lv"].map(path);
    assert_eq!(references(foreign), Ok(BTreeSet::from(expected)));
}

#[test]
fn a_guest_writes_its_own_disks_and_neither_media_nor_backing_images() {
    let volume = |volume: &str| Reference::Volume {
        pool: "vms".into(),
        volume: format!("prod-web-8d49d164.{volume}"),
    };
    let expected = [volume("root.qcow2"), volume("data.raw")];
    let found = written_references(&xml("growing.live"));
    let found: BTreeSet<_> = found.unwrap();
    let readable = references(&xml("growing.live")).unwrap();
    assert!(found.is_subset(&readable));
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn a_domain_of_another_owner_is_parsed_without_its_unknown_parts() {
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
    assert_eq!(domain.metadata, None);
    assert!(!domain.is_q35());
    assert_eq!((domain.cpu.vcpus(), domain.cpu.max_sockets), (3, 3));
    assert_eq!(domain.memory.size, domain.memory.max_size);
    assert_eq!(domain.memory.size.to_string(), "1Gi");
    assert_eq!((domain.disks.len(), domain.nics.len()), (1, 0));
    assert_eq!(domain.disks[0].name(), "fda");
}

#[test]
fn invalid_xml_is_refused_with_the_reason() {
    let error = |xml: &str| Domain::parse(xml).unwrap_err().to_string();
    assert!(error("<domain>").starts_with("is not valid XML: "));
    assert_eq!(error("<network/>"), "has no domain");
    assert_eq!(error("<domain/>"), "has no devices");
    let named = "<domain><devices/><name>a</name><uuid>b</uuid></domain>";
    assert_eq!(error(named), "has an invalid uuid \"b\"");
    let entity = "<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>";
    assert!(error(entity).starts_with("is not valid XML: "));
}
