//! Property tests: written XML is parsed back to the same value, for any content.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::{
    Address, Controller, CpuMode, Disk, DiskLimits, Display, Domain, DomainMetadata, HostDevice,
    IntentKind, Nic, NicAttachment, NicPolicy, NicSource, Pinning, PoolVolume, Screen, SeedRecord,
    VirtType, VolumeFormat, VolumeRecord,
};
use super::fixtures;
use crate::api::choice::{FirmwareType, HugepageSize, ReclaimPolicy, WatchdogAction};
use crate::api::normalized::{
    Firmware, NormalizedCpu, NormalizedFeatures, NormalizedMemory, NormalizedTpm,
};
use crate::cpu_list::CpuList;
use crate::mac::Mac;
use crate::pci::PciAddress;
use crate::quantity::Bytes;

/// Texts with characters that XML must escape, and with those that only JSON can escape.
fn any_text() -> impl Strategy<Value = String> {
    "[ -~\t\n\ré<&'\">]{0,20}|[\0-\u{1f}\u{7f}\u{fffe}\u{ffff}%]{1,5}|\\PC{0,10}"
}

/// Names that an administrator may choose on a host.
fn name() -> impl Strategy<Value = String> {
    "[ -~\t\n\ré]{1,20}"
}

fn pool_volume() -> impl Strategy<Value = PoolVolume> {
    let format = prop_oneof![Just(VolumeFormat::Qcow2), Just(VolumeFormat::Raw)];
    (name(), name(), format).prop_map(|(pool, volume, format)| PoolVolume {
        pool,
        volume,
        format,
    })
}

fn address() -> impl Strategy<Value = Option<Address>> {
    let pci = (0u8..40, 0u8..32).prop_map(|(bus, slot)| {
        let attributes = [
            ("type", "pci".to_owned()),
            ("domain", "0x0000".to_owned()),
            ("bus", format!("{bus:#04x}")),
            ("slot", format!("{slot:#04x}")),
            ("function", "0x0".to_owned()),
        ];
        Address(
            attributes
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        )
    });
    option::of(pci)
}

fn disks() -> impl Strategy<Value = Vec<Disk>> {
    let bus = proptest::sample::select(vec!["virtio", "sata", "scsi", "ide"]);
    let disk = (
        (name(), any::<bool>(), bus),
        option::of(pool_volume()),
        any::<bool>(),
        option::of(1u32..99),
        address(),
    );
    vec(disk, 0..6).prop_map(|disks| {
        let disk = |(index, it): (u8, ((String, bool, &str), _, bool, _, _))| {
            let ((alias, cdrom, bus), volume, read_only, boot_order, address) = it;
            let disk = Disk {
                limits: DiskLimits::default(),
                alias: format!("{alias}{index}"),
                cdrom,
                bus: bus.to_owned(),
                target: format!("x{}", char::from(b'a' + index)),
                volume,
                read_only,
                boot_order,
                serial: None,
                address,
            };
            Disk {
                serial: disk.address.is_some().then(|| disk.target.clone()),
                limits: DiskLimits {
                    bytes_per_second: disk.boot_order.map(u64::from),
                    iops: disk.read_only.then_some(1),
                },
                ..disk
            }
        };
        (0..).zip(disks).map(disk).collect()
    })
}

fn nics() -> impl Strategy<Value = Vec<Nic>> {
    let source = (0..3, name()).prop_map(|(kind, name)| match kind {
        0 => NicSource::Network(name),
        1 => NicSource::Bridge(name),
        _ => NicSource::Ovs(name),
    });
    let nic = (
        name(),
        any::<[u8; 6]>(),
        source,
        option::of(1u16..4095),
        option::of(68u32..65536),
        option::of(1u32..99),
        address(),
    );
    let nic = nic.prop_map(|(alias, mac, source, vlan, mtu, boot_order, address)| Nic {
        alias,
        mac: Mac::new(mac),
        model: "virtio".into(),
        attachment: NicAttachment {
            source,
            vlan,
            mtu,
            policy: NicPolicy {
                mac_filter: mac[5] & 1 == 0,
                isolated: mac[5] & 2 == 0,
                kilobytes_per_second: mtu.map(u64::from),
            },
        },
        boot_order,
        address,
    });
    vec(nic, 0..4).prop_map(|nics| {
        let named = |(index, nic): (u8, Nic)| Nic {
            alias: format!("{}{index}", nic.alias),
            ..nic
        };
        (0..).zip(nics).map(named).collect()
    })
}

fn metadata() -> impl Strategy<Value = DomainMetadata> {
    (any_text(), any_text(), any::<bool>()).prop_map(|(text, other, flag)| DomainMetadata {
        volumes: vec![VolumeRecord {
            disk: text.clone(),
            pool: other.clone(),
            volume: text.clone(),
            reclaim_policy: ReclaimPolicy::Delete,
        }],
        seed: flag.then(|| SeedRecord {
            secrets: [(text.clone(), other.clone())].into(),
            ..SeedRecord::default()
        }),
        reset_nvram: flag,
        migrated_away: flag,
        ..fixtures::metadata(IntentKind::Stop, &text)
    })
}

fn domain() -> impl Strategy<Value = Domain> {
    let cpu = (1u32..6, 1u32..6, 1u32..6, 0u32..6);
    let cpu = cpu.prop_map(|(cores, threads, sockets, more)| NormalizedCpu {
        cores,
        threads,
        sockets,
        max_sockets: sockets + more,
    });
    let memory = (1u64..1 << 20, 0u64..1 << 20).prop_map(|(size, more)| NormalizedMemory {
        size: Bytes::mib(size),
        max_size: Bytes::mib(size + more),
    });
    let firmware = option::of(any::<bool>()).prop_map(|secure_boot| Firmware {
        persistent: None,
        kind: secure_boot.map_or(FirmwareType::Bios, |_| FirmwareType::Efi),
        secure_boot,
    });
    let tpm = option::of(any::<bool>())
        .prop_map(|tpm| tpm.map(|persistent| NormalizedTpm { persistent }));
    let features = any::<[bool; 3]>();
    let features =
        features.prop_map(|[acpi, apic, hyperv]| NormalizedFeatures { acpi, apic, hyperv });
    let controllers = vec((name(), option::of(name()), address()), 0..4).prop_map(|all| {
        let controller = |(index, (kind, model, address))| Controller {
            kind,
            index,
            model,
            address,
        };
        (0..).zip(all).map(controller).collect::<Vec<_>>()
    });
    let basics = (cpu, memory, firmware, tpm, features, controllers);
    let single = (address(), any::<bool>(), any::<bool>());
    (basics, disks(), nics(), option::of(metadata()), single).prop_map(
        |(basics, disks, nics, metadata, single)| {
            let (cpu, memory, firmware, tpm, features, controllers) = basics;
            let (rng, is_kvm, maximum) = single;
            let has_nvram = firmware.kind == FirmwareType::Efi && maximum;
            Domain {
                name: "prod-web-8d49d164".into(),
                uuid: super::super::domain_uuid("a"),
                metadata,
                virt_type: if is_kvm {
                    VirtType::Kvm
                } else {
                    VirtType::Qemu
                },
                cpu_mode: if maximum {
                    CpuMode::Maximum
                } else {
                    CpuMode::HostModel
                },
                cpu_model: (is_kvm && !maximum).then(|| "Skylake-Server".to_owned()),
                cpu,
                memory,
                hugepages: maximum.then_some(HugepageSize::Mebi2),
                machine: "pc-q35-7.2".into(),
                firmware,
                tpm,
                watchdog: is_kvm.then_some(WatchdogAction::PowerOff),
                timezone: maximum.then(|| "Europe/Oslo".into()),
                nvram: has_nvram.then(|| "/var/lib/x & y_VARS.fd".into()),
                features,
                controllers,
                disks,
                nics,
                host_devices: PciAddress::new(1, 2, 3, 4)
                    .map(|source| HostDevice::new("gpu", source))
                    .into_iter()
                    .filter(|_| maximum)
                    .collect(),
                vcpu_quota: is_kvm,
                pinning: Pinning {
                    dedicated: if maximum { vec![3, 2] } else { vec![] },
                    shared: is_kvm.then(|| CpuList([0, 1, 7].into())),
                },
                display: Display {
                    screen: match (is_kvm, maximum) {
                        (true, true) => Screen::Socket(None),
                        (true, false) => Screen::Port,
                        (false, _) => Screen::None,
                    },
                    video: if is_kvm { "vga" } else { "none" }.to_owned(),
                    password: None,
                },
                console_log: maximum.then(|| "/srv/logs/a & b.log".to_owned()),
                addresses: rng.map(|rng| ("rng".to_owned(), rng)).into_iter().collect(),
            }
            .sorted()
        },
    )
}

proptest! {
    #[test]
    fn a_written_domain_is_parsed_to_the_same_domain(domain in domain()) {
        prop_assert_eq!(Domain::parse(&domain.xml()), Ok(domain));
    }

    #[test]
    fn a_domain_has_no_differences_from_itself(domain in domain()) {
        prop_assert_eq!(domain.differences_from(&domain), vec![]);
    }

    #[test]
    fn written_metadata_is_parsed_to_the_same_metadata(metadata in metadata()) {
        prop_assert_eq!(DomainMetadata::parse(&metadata.xml()), Some(metadata));
    }

    #[test]
    fn parsers_never_panic(text in "\\PC{0,40}|<domain>\\PC{0,40}</domain>") {
        let _ = Domain::parse(&text);
        let _ = DomainMetadata::parse(&text);
        let _ = super::super::references(&text);
    }
}

#[test]
fn metadata_with_values_of_a_later_release_are_those_of_the_machine() {
    let text = r#"<machine>{"namespace":"default","name":"web","uid":"uid","volumes":[{"disk":"root","pool":"vms","volume":"root.qcow2","reclaimPolicy":"Snapshot"}],"intent":{"kind":"Suspend","since":"2026-01-01T00:00:00Z"},"grown":"much","later":1}</machine>"#;
    let read = DomainMetadata::parse(text).unwrap();
    assert_eq!(read.uid, "uid");
    assert_eq!(read.volumes[0].reclaim_policy, ReclaimPolicy::Retain);
    assert_eq!((read.intent, read.grown), (None, None));
}

#[test]
fn metadata_of_another_owner_is_ignored() {
    for text in [
        "",
        "<machine/>",
        "<machine>[]</machine>",
        "<other>{}</other>",
        "<machine>{",
    ] {
        assert_eq!(DomainMetadata::parse(text), None, "{text}");
    }
    let metadata = fixtures::metadata(IntentKind::Start, "x");
    // With prefix, as in a definition; without, as libvirt returns the element alone.
    let bare = metadata.xml();
    let prefixed = bare
        .replace(
            "<machine>",
            "<v:machine xmlns:v='https://vitistack.io/machine/v1'>",
        )
        .replace("</machine>", "</v:machine>");
    assert_eq!(DomainMetadata::parse(&prefixed), Some(metadata.clone()));
    assert_eq!(DomainMetadata::parse(&bare), Some(metadata));
}
