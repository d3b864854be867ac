use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// A qcow2 header of version 3 with clusters of 64 KiB, as qemu-img writes it for a disk of 1 GiB.
fn qcow2() -> Vec<u8> {
    let mut head = vec![0; 512];
    head[..4].copy_from_slice(b"QFI\xfb");
    for (offset, number) in [(4, 3_u32), (20, 16), (36, 2), (56, 1), (96, 4), (100, 104)] {
        head[offset..offset + 4].copy_from_slice(&number.to_be_bytes());
    }
    for (offset, number) in [(24, 1_u64 << 30), (40, 3 << 16), (48, 1 << 16)] {
        head[offset..offset + 8].copy_from_slice(&number.to_be_bytes());
    }
    head
}

fn with_u32(mut head: Vec<u8>, offset: usize, number: u32) -> Vec<u8> {
    head[offset..offset + 4].copy_from_slice(&number.to_be_bytes());
    head
}

fn with_u64(mut head: Vec<u8>, offset: usize, number: u64) -> Vec<u8> {
    head[offset..offset + 8].copy_from_slice(&number.to_be_bytes());
    head
}

/// An extension right behind the header.
fn with_extension(head: Vec<u8>, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut head = with_u32(head, 104, kind);
    head = with_u32(head, 108, u32::try_from(data.len()).unwrap());
    head[112..112 + data.len()].copy_from_slice(data);
    head
}

/// An overlay of this file, which has this format.
fn overlay(name: &str, format: Option<&str>) -> Vec<u8> {
    let mut head = qcow2();
    if let Some(format) = format {
        head = with_extension(head, 0xE279_2ACA, format.as_bytes());
    }
    head[256..256 + name.len()].copy_from_slice(name.as_bytes());
    head = with_u64(head, 8, 256);
    with_u32(head, 16, u32::try_from(name.len()).unwrap())
}

fn begins_with(magic: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 512];
    head[..magic.len()].copy_from_slice(magic);
    head
}

fn begins_at(offset: usize, magic: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 512];
    head[offset..offset + magic.len()].copy_from_slice(magic);
    head
}

#[test]
fn a_whole_qcow2_of_either_version_is_accepted_with_the_size_of_its_disk() {
    let expected = ImageHeader {
        format: VolumeFormat::Qcow2,
        virtual_size: 1 << 30,
        backing: None,
    };
    let old = with_u32(qcow2(), 4, 2);
    // Not closed properly, compressed with zstd, extended L2 entries: QEMU reads them.
    let new = with_u64(qcow2(), 72, 0b11001);
    for head in [qcow2(), old, new] {
        assert_eq!(parse(&head, MIB), Ok(expected.clone()));
    }
}

#[test]
fn a_file_without_the_magic_of_another_format_is_raw_and_as_large_as_it_is() {
    let boot_sector = begins_at(510, b"\x55\xaa");
    let iso = begins_at(0, &[0; 16]);
    for head in [boot_sector, iso, b"MZ".to_vec(), vec![7]] {
        let header = parse(&head, 5 * MIB).unwrap();
        assert_eq!(
            (header.format, header.virtual_size),
            (VolumeFormat::Raw, 5 * MIB)
        );
    }
}

#[test]
fn a_qcow2_that_qemu_could_not_open_or_that_names_another_file_is_refused() {
    use HeaderError::{
        BeyondEnd, Corrupt, DataFile, Encrypted, Invalid, TooLarge, Truncated, UnknownFeatures,
        Version,
    };
    let long_header = with_u32(qcow2(), 100, 1 << 17);
    let endless = with_u32(with_u32(qcow2(), 104, 7), 108, u32::MAX);
    for (head, error) in [
        (with_u32(qcow2(), 4, 1), Version(1)),
        (with_u32(qcow2(), 4, 4), Version(4)),
        (with_u32(qcow2(), 32, 1), Encrypted),
        (with_u32(qcow2(), 32, 2), Encrypted),
        (with_extension(qcow2(), 0x0537_BE77, &[0; 16]), Encrypted),
        (with_u64(qcow2(), 72, 1 << 2), DataFile),
        (with_u64(qcow2(), 72, (1 << 2) | (1 << 9)), DataFile),
        (
            with_extension(qcow2(), 0x4441_5441, b"/etc/shadow"),
            DataFile,
        ),
        (with_u64(qcow2(), 72, 1 << 5), UnknownFeatures(1 << 5)),
        (with_u64(qcow2(), 72, 1 << 63), UnknownFeatures(1 << 63)),
        (with_u64(qcow2(), 72, 1 << 1), Corrupt),
        (with_u64(qcow2(), 24, 1 << 63), TooLarge(1 << 63)),
        (with_u64(qcow2(), 24, u64::MAX), TooLarge(u64::MAX)),
        (
            with_u64(qcow2(), 24, 1 << 40),
            Invalid("size of its L1 table"),
        ),
        (
            with_u32(qcow2(), 36, u32::MAX),
            Invalid("size of its L1 table"),
        ),
        (with_u64(qcow2(), 40, 16 << 16), BeyondEnd("L1 table")),
        (with_u64(qcow2(), 40, u64::MAX << 16), BeyondEnd("L1 table")),
        (with_u64(qcow2(), 40, 12345), Invalid("L1 table")),
        (with_u64(qcow2(), 48, 16 << 16), BeyondEnd("refcount table")),
        (with_u32(qcow2(), 56, u32::MAX), BeyondEnd("refcount table")),
        (with_u32(qcow2(), 20, 8), Invalid("cluster size")),
        (with_u32(qcow2(), 20, u32::MAX), Invalid("cluster size")),
        (with_u32(qcow2(), 96, 7), Invalid("width of refcounts")),
        (with_u32(qcow2(), 100, 72), Invalid("header length")),
        (long_header, Invalid("header length")),
        (endless, Invalid("header extension")),
    ] {
        assert_eq!(parse(&head, MIB), Err(error), "{head:?}");
    }
    for length in [4, 7, 71, 103] {
        let error = Truncated(length);
        let head = &qcow2()[..usize::try_from(length).unwrap()];
        assert_eq!(parse(head, length), Err(error));
    }
    assert_eq!(parse(&qcow2(), 512), Err(BeyondEnd("L1 table")));
}

#[test]
fn a_backing_file_is_refused_whatever_its_name_is() {
    let json = r#"json:{"driver":"file","filename":"/etc/shadow"}"#;
    for name in [
        "/etc/shadow",
        json,
        "nbd://10.0.0.1/secret",
        "base.qcow2",
        "",
    ] {
        let header = parse(&overlay(name, Some("raw")), MIB).unwrap();
        let backing = Backing {
            name: name.into(),
            format: Some("raw".into()),
        };
        assert_eq!(header.backing, Some(backing.clone()));
        let error = header.standalone().unwrap_err();
        assert_eq!(error, HeaderError::BackingFile(Quoted(backing.name)));
        assert!(error.to_string().contains("qemu-img convert -O qcow2"));
    }
    let probed = parse(&overlay("base.qcow2", None), MIB).unwrap();
    assert_eq!(probed.backing.unwrap().format, None);
    // Its name cannot be read, or is longer than QEMU reads.
    let far = with_u64(overlay("/etc/shadow", None), 8, 1 << 15);
    assert_eq!(parse(&far, MIB), Err(HeaderError::BackingFileName));
    let endless = with_u32(overlay("/etc/shadow", None), 16, u32::MAX);
    let error = HeaderError::Invalid("length of its backing file's name");
    assert_eq!(parse(&endless, MIB), Err(error));
}

#[test]
fn no_other_container_format_is_taken_for_a_raw_disk() {
    for (head, name) in [
        (begins_with(b"KDMV\x01\0\0\0"), "VMDK image"),
        (begins_with(b"COWD"), "VMDK image"),
        (
            begins_with(b"# Disk DescriptorFile\nversion=1\n"),
            "VMDK descriptor",
        ),
        (begins_with(b"vhdxfile"), "VHDX image"),
        (begins_with(b"conectix"), "VHD image"),
        (begins_at(0x40, b"\x7f\x10\xda\xbe"), "VDI image"),
        (begins_with(b"LUKS\xba\xbe\0\x01"), "LUKS volume"),
        (begins_with(b"LUKS\xba\xbe\0\x02"), "LUKS volume"),
        (begins_with(b"QED\0"), "QED image"),
        (begins_with(b"WithoutFreeSpace"), "Parallels image"),
        (begins_with(b"WithouFreSpacExt"), "Parallels image"),
        (begins_with(b"OOOM"), "COW image"),
        (begins_with(b"Bochs Virtual HD Image"), "Bochs image"),
        (
            begins_with(b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop"),
            "cloop image",
        ),
        (begins_with(b"\x1f\x8b\x08"), "gzip file"),
        (begins_with(b"\xfd7zXZ\0"), "xz file"),
        (begins_with(b"\x28\xb5\x2f\xfd"), "zstd file"),
        (begins_with(b"BZh9"), "bzip2 file"),
        (begins_with(b"PK\x03\x04"), "zip archive"),
        (begins_with(b"7z\xbc\xaf\x27\x1c"), "7z archive"),
        (begins_at(257, b"ustar"), "tar archive"),
    ] {
        let why = parse(&head, MIB).unwrap_err().to_string();
        assert!(why.contains(name), "{why}");
        assert!(
            why.contains("qemu-img convert") || why.contains("unpack it"),
            "{why}"
        );
    }
    assert_eq!(parse(b"", 0), Err(HeaderError::Empty));
    assert_eq!(parse(b"x", 1 << 63), Err(HeaderError::TooLarge(1 << 63)));
}

#[test]
fn a_message_shows_no_control_characters_of_a_file_and_not_all_of_a_long_name() {
    let text = Quoted(format!("a\n\u{1b}[31m{}", "x".repeat(500))).to_string();
    assert!(
        text.starts_with("'a??[31mxxx") && text.ends_with("…'"),
        "{text}"
    );
    assert!(text.chars().count() < 140);
}

proptest! {
    #[test]
    fn no_bytes_cause_a_panic(
        head in prop::collection::vec(any::<u8>(), 0..600),
        edits in prop::collection::vec((0..512_usize, any::<u8>()), 0..12),
        length in any::<u64>(),
    ) {
        let _ = parse(&head, length);
        let mut edited = qcow2();
        for (offset, byte) in edits {
            edited[offset] = byte;
        }
        let _ = parse(&edited, length);
        let _ = parse(&edited[..head.len().min(512)], length);
    }
}
