use common::render::libvirt::VolumeFormat;

use super::*;
use crate::access::fake::{FakeLibvirt, FakeVolume, HostState};
use crate::access::{Connector as _, Target};

const POOL: &str = "vms";

/// The header of a qcow2 image, with its backing file and the format of that.
pub(crate) fn header(backing: Option<(&str, Option<&str>)>) -> Vec<u8> {
    let mut file = vec![0; 1 << 18];
    file[..4].copy_from_slice(b"QFI\xfb");
    for (offset, number) in [(4, 3_u32), (20, 16), (36, 1), (56, 1), (96, 4), (100, 104)] {
        file[offset..offset + 4].copy_from_slice(&number.to_be_bytes());
    }
    for (offset, number) in [(24, 16_u64 << 20), (40, 3 << 16), (48, 1 << 16)] {
        file[offset..offset + 8].copy_from_slice(&number.to_be_bytes());
    }
    if let Some((name, format)) = backing {
        if let Some(format) = format {
            file[104..108].copy_from_slice(&0xE279_2ACA_u32.to_be_bytes());
            let length = u32::try_from(format.len()).unwrap();
            file[108..112].copy_from_slice(&length.to_be_bytes());
            file[112..112 + format.len()].copy_from_slice(format.as_bytes());
        }
        file[8..16].copy_from_slice(&512_u64.to_be_bytes());
        let length = u32::try_from(name.len()).unwrap();
        file[16..20].copy_from_slice(&length.to_be_bytes());
        file[512..512 + name.len()].copy_from_slice(name.as_bytes());
    }
    file
}

fn put(host: &FakeLibvirt, name: &str, content: Vec<u8>) {
    let volume = FakeVolume {
        capacity: content.len() as u64,
        raw: !content.starts_with(b"QFI"),
        content,
        ..FakeVolume::default()
    };
    let mut state = host.state();
    let pool = state.pools.get_mut(POOL).unwrap();
    pool.volumes.insert(name.into(), volume);
}

fn checked(host: &FakeLibvirt, name: &str, format: VolumeFormat) -> Result<(), String> {
    let target = Target {
        uri: String::new(),
        credentials: None,
    };
    let mut connection = host.open(&target).unwrap();
    let image = PoolVolume {
        pool: POOL.into(),
        volume: name.into(),
        format,
    };
    check_image(&mut *connection, &image).map_err(|error| error.to_string())
}

#[test]
fn an_image_may_stand_on_another_one_of_its_pool_and_on_nothing_else() {
    let host = FakeLibvirt::new();
    put(&host, "base.raw", b"MBR".to_vec());
    put(&host, "other-web-1a2b3c4d.root.qcow2", header(None));
    let path = |name: &str| HostState::path(POOL, name);
    for (backing, format, expected) in [
        (path("base.raw"), Some("raw"), Ok(())),
        ("base.raw".into(), Some("raw"), Ok(())),
        (
            path("base.raw"),
            Some("qcow2"),
            Err("is raw by its header, and qcow2 by"),
        ),
        (path("base.raw"), None, Err("which QEMU would probe")),
        (
            "/etc/shadow".into(),
            Some("raw"),
            Err("has the backing file '/etc/shadow'"),
        ),
        (
            "../vms/base.raw".into(),
            Some("raw"),
            Err("which is no volume of its pool"),
        ),
        (
            "nbd://10.0.0.1/x".into(),
            Some("raw"),
            Err("which is no volume of its pool"),
        ),
        (
            path("other-web-1a2b3c4d.root.qcow2"),
            Some("qcow2"),
            Err("is the disk of a Machine and no image"),
        ),
        (
            path("golden"),
            Some("qcow2"),
            Err("has more than 8 files below it"),
        ),
    ] {
        put(&host, "golden", header(Some((&backing, format))));
        let outcome = checked(&host, "golden", VolumeFormat::Qcow2);
        match (outcome, expected) {
            (Ok(()), Ok(())) => {}
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (outcome, expected) => panic!("{backing}: {outcome:?}, not {expected:?}"),
        }
        // A volume that was fetched from a tenant's URL may have no backing file.
        put(&host, "vitistack-image-1", header(Some((&backing, format))));
        let why = checked(&host, "vitistack-image-1", VolumeFormat::Qcow2).unwrap_err();
        assert!(why.contains("has the backing file"), "{why}");
    }
}

/// Defines a domain of somebody else with this disk.
fn define(host: &FakeLibvirt, disk: &str) {
    let target = Target {
        uri: String::new(),
        credentials: None,
    };
    let xml = format!(
        "<domain><name>theirs</name><uuid>00000000-0000-0000-0000-000000000007</uuid><devices>{disk}</devices></domain>"
    );
    host.open(&target).unwrap().define(&xml).unwrap();
}

#[test]
fn a_volume_that_a_guest_can_write_is_no_image_and_neither_is_what_stands_on_it() {
    let host = FakeLibvirt::new();
    put(&host, "golden", header(None));
    let above = header(Some(("golden", Some("qcow2"))));
    put(&host, "above", above);
    let path = HostState::path(POOL, "golden");
    let outcomes = || ["golden", "above"].map(|name| checked(&host, name, VolumeFormat::Qcow2));
    for disk in [
        "<disk type='volume' device='disk'><source pool='vms' volume='golden'/><target dev='vda'/></disk>".to_owned(),
        format!("<disk type='file' device='disk'><source file='{path}'/><target dev='vda'/></disk>"),
        format!("<disk type='file'><source file='/other'/><mirror><source file='{path}'/></mirror><target dev='vda'/></disk>"),
    ] {
        define(&host, &disk);
        for outcome in outcomes() {
            let why = outcome.unwrap_err();
            assert!(why.contains("image vms/golden is a disk that domain 00000000"), "{why}");
        }
    }
    // Backing files and media are only read.
    for disk in [
        format!(
            "<disk type='file' device='cdrom'><source file='{path}'/><target dev='sda'/></disk>"
        ),
        format!(
            "<disk type='file' device='disk'><source file='{path}'/><readonly/><target dev='vda'/></disk>"
        ),
        format!(
            "<disk type='file'><source file='/overlay'/><backingStore type='file'><source file='{path}'/></backingStore><target dev='vda'/></disk>"
        ),
    ] {
        define(&host, &disk);
        assert_eq!(outcomes(), [Ok(()), Ok(())], "{disk}");
    }
}

#[test]
fn the_header_decides_the_format_and_the_disk_of_a_machine_is_no_image() {
    let host = FakeLibvirt::new();
    put(&host, "golden", header(None));
    assert_eq!(checked(&host, "golden", VolumeFormat::Qcow2), Ok(()));
    let why = checked(&host, "golden", VolumeFormat::Raw).unwrap_err();
    assert!(why.contains("is qcow2 by its header, and raw by"), "{why}");
    assert!(why.contains("virsh pool-refresh vms"), "{why}");
    put(&host, "disk.vmdk", b"KDMV".to_vec());
    let why = checked(&host, "disk.vmdk", VolumeFormat::Raw).unwrap_err();
    assert!(why.contains("is a VMDK image"), "{why}");
    for name in [
        "other-web-1a2b3c4d.root.qcow2",
        "other-web-1a2b3c4d.seed-0123456789ab.iso",
    ] {
        put(&host, name, header(None));
        let why = checked(&host, name, VolumeFormat::Qcow2).unwrap_err();
        assert!(
            why.contains("is the disk of a Machine and no image"),
            "{why}"
        );
    }
}
