//! What is written is read back, whatever it is.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::{
    Address, Attached, Controller, CpuMode, Disk, Domain, IntentKind, Kept, Mark, Nic, Placed,
    SeedMark, VirtType, VolumeFormat, Wire,
};
use super::fixtures;
use crate::api::choice::{FirmwareType, ReclaimPolicy};
use crate::api::normalized::{Firmware, NormalizedCpu, NormalizedFeatures, NormalizedMemory};
use crate::mac::Mac;
use crate::quantity::Bytes;

/// What XML has to write in another way, and what it cannot write at all where it is JSON.
fn anything() -> impl Strategy<Value = String> {
    "[ -~\t\n\ré<&'\">]{0,20}|[\0-\u{1f}\u{7f}\u{fffe}\u{ffff}%]{1,5}|\\PC{0,10}"
}

/// What an administrator may call things.
fn name() -> impl Strategy<Value = String> {
    "[ -~\t\n\ré]{1,20}"
}

fn placed() -> impl Strategy<Value = Placed> {
    let format = prop_oneof![Just(VolumeFormat::Qcow2), Just(VolumeFormat::Raw)];
    (name(), name(), format).prop_map(|(pool, volume, format)| Placed {
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
        option::of(placed()),
        any::<bool>(),
        option::of(1u32..99),
        address(),
    );
    vec(disk, 0..6).prop_map(|disks| {
        let disk = |(index, it): (u8, ((String, bool, &str), _, bool, _, _))| {
            let ((alias, cdrom, bus), volume, read_only, boot_order, address) = it;
            Disk {
                alias: format!("{alias}{index}"),
                cdrom,
                bus: bus.to_owned(),
                target: format!("x{}", char::from(b'a' + index)),
                volume,
                read_only,
                boot_order,
                address,
            }
        };
        (0..).zip(disks).map(disk).collect()
    })
}

fn nics() -> impl Strategy<Value = Vec<Nic>> {
    let wire = (0..3, name()).prop_map(|(kind, name)| match kind {
        0 => Wire::Network(name),
        1 => Wire::Bridge(name),
        _ => Wire::Ovs(name),
    });
    let nic = (
        name(),
        any::<[u8; 6]>(),
        wire,
        option::of(1u16..4095),
        option::of(68u32..65536),
        option::of(1u32..99),
        address(),
    );
    let nic = nic.prop_map(|(alias, mac, wire, vlan, mtu, boot_order, address)| Nic {
        alias,
        mac: Mac::new(mac),
        model: "virtio".into(),
        attached: Attached { wire, vlan, mtu },
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

fn mark() -> impl Strategy<Value = Mark> {
    (anything(), anything(), any::<bool>()).prop_map(|(text, other, flag)| Mark {
        volumes: vec![Kept {
            disk: text.clone(),
            pool: other.clone(),
            volume: text.clone(),
            reclaim_policy: ReclaimPolicy::Delete,
        }],
        seed: flag.then(|| SeedMark {
            secrets: [(text.clone(), other.clone())].into(),
            ..SeedMark::default()
        }),
        reset_nvram: flag,
        ..fixtures::mark(IntentKind::Stop, &text)
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
        kind: secure_boot.map_or(FirmwareType::Bios, |_| FirmwareType::Efi),
        secure_boot,
    });
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
    let basics = (cpu, memory, firmware, features, controllers);
    let single = (address(), any::<bool>(), any::<bool>());
    (basics, disks(), nics(), option::of(mark()), single).prop_map(
        |(basics, disks, nics, mark, single)| {
            let (cpu, memory, firmware, features, controllers) = basics;
            let (rng, is_kvm, maximum) = single;
            let has_nvram = firmware.kind == FirmwareType::Efi && maximum;
            Domain {
                name: "prod-web-8d49d164".into(),
                uuid: super::super::domain_uuid("a"),
                mark,
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
                cpu,
                memory,
                machine: "pc-q35-7.2".into(),
                firmware,
                nvram: has_nvram.then(|| "/var/lib/x & y_VARS.fd".into()),
                features,
                controllers,
                disks,
                nics,
                addresses: rng.map(|rng| ("rng".to_owned(), rng)).into_iter().collect(),
            }
            .sorted()
        },
    )
}

proptest! {
    #[test]
    fn a_domain_is_read_as_it_was_written(domain in domain()) {
        prop_assert_eq!(Domain::parse(&domain.xml()), Ok(domain));
    }

    #[test]
    fn what_runs_as_wished_has_no_changes_and_keeps_everything(domain in domain()) {
        prop_assert_eq!(domain.changes(&domain), vec![]);
    }

    #[test]
    fn a_mark_is_read_as_it_was_written(mark in mark()) {
        prop_assert_eq!(Mark::parse(&mark.xml()), Some(mark));
    }

    #[test]
    fn no_text_is_a_panic(text in "\\PC{0,40}|<domain>\\PC{0,40}</domain>") {
        let _ = Domain::parse(&text);
        let _ = Mark::parse(&text);
        let _ = super::super::references(&text);
    }
}

#[test]
fn a_mark_of_somebody_else_is_none() {
    for text in [
        "",
        "<machine/>",
        "<machine>[]</machine>",
        "<other>{}</other>",
        "<machine>{",
    ] {
        assert_eq!(Mark::parse(text), None, "{text}");
    }
    let mark = fixtures::mark(IntentKind::Start, "x");
    // As a definition has it, and as libvirt gives it out alone.
    let bare = mark.xml();
    let prefixed = bare
        .replace(
            "<machine>",
            "<v:machine xmlns:v='https://vitistack.io/machine/v1'>",
        )
        .replace("</machine>", "</v:machine>");
    assert_eq!(Mark::parse(&prefixed), Some(mark.clone()));
    assert_eq!(Mark::parse(&bare), Some(mark));
}
