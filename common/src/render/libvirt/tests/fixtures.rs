//! Machines on a libvirt host: the cases of the folder `cases`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::super::{
    CpuMode, Domain, DomainInput, DomainMetadata, GuestLimits, Intent, IntentKind, NicAttachment,
    NicPolicy, NicSource, Pinning, PoolVolume, VirtType, VolumeFormat, domain, volume_name,
};
use crate::api::choice::{DiskBus, MachineType, NicModel};
use crate::api::normalized::{Normalized, NormalizedDisk, NormalizedNetwork};
use crate::bounds;
use crate::pci::PciAddress;
use crate::render::Identity;

pub(super) const WEB: Identity<'_> = Identity {
    cluster: "0b0e2c3a-5f6f-4b0c-9a3e-0e6f8f0f7a11",
    namespace: "prod",
    name: "web",
    uid: "7f0c2f9e-3f1a-4b7b-8d3e-6f1d2c3b4a59",
};

/// A Machine and its host, as in a file of the folder `cases`.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Case {
    pub(super) block: Normalized,
    #[serde(default)]
    kvm: bool,
    #[serde(default)]
    seed: bool,
    /// `<kind> <name> [vlan] [mtu]` by name of the network card.
    attachments: BTreeMap<String, String>,
    /// Devices of the host by name of the device.
    #[serde(skip)]
    pub(super) devices: BTreeMap<String, PciAddress>,
    #[serde(skip)]
    pub(super) pinning: Pinning,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/libvirt/tests/cases")
}

/// The names of all cases.
pub(super) fn names() -> BTreeSet<String> {
    let files = fs::read_dir(folder()).unwrap();
    let name = |file: PathBuf| file.file_stem().unwrap().to_str().unwrap().to_owned();
    files.map(|file| name(file.unwrap().path())).collect()
}

/// The case with this name.
pub(super) fn named(name: &str) -> Case {
    let text = fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A case with as many devices as a block can have, each with the longest name.
pub(super) fn largest(machine_type: MachineType, bus: DiskBus, model: NicModel) -> Case {
    let mut case = named("windows");
    let longest = |index: usize| format!("{}{index:03}", "a".repeat(60));
    let (disk, nic) = (case.block.disks[0].clone(), case.block.networks[1].clone());
    case.block.disks = (0..bounds::DISKS_MAX)
        .map(|index| NormalizedDisk {
            name: longest(index),
            boot_order: None,
            bus,
            ..disk.clone()
        })
        .collect();
    case.block.networks = (0..bounds::NETWORKS_MAX)
        .map(|index| NormalizedNetwork {
            name: longest(index),
            model,
            ..nic.clone()
        })
        .collect();
    for index in 0..bounds::NETWORKS_MAX {
        case.connect(&longest(index), "network default");
    }
    case.block.machine_type = machine_type;
    case
}

impl Case {
    /// Connects a network card.
    pub(super) fn connect(&mut self, nic: &str, attachment: &str) {
        self.attachments
            .insert(nic.to_owned(), attachment.to_owned());
    }

    /// The domain. Every disk and every drive with a medium gets a volume; a disk with an image gets a qcow2
    /// overlay.
    pub(super) fn render(&self) -> Domain {
        let disks = self.block.disks.iter().map(|disk| {
            let format = match disk.image {
                Some(_) => VolumeFormat::Qcow2,
                None => VolumeFormat::Raw,
            };
            (&disk.name, format)
        });
        let cdroms = self.block.cdroms.iter();
        let filled = cdroms.filter(|drive| drive.image.is_some());
        let media = filled.map(|drive| (&drive.name, VolumeFormat::Raw));
        let volumes: BTreeMap<_, _> = disks
            .chain(media)
            .map(|(name, format)| {
                let volume = volume_name(WEB.namespace, WEB.name, WEB.uid, name, format);
                (name.clone(), pool_volume(&volume, format))
            })
            .collect();
        let networks: BTreeMap<_, _> = self
            .attachments
            .iter()
            .map(|(nic, text)| (nic.clone(), attachment(text)))
            .collect();
        let seed = pool_volume("prod-web-8d49d164.seed-0123456789ab.iso", VolumeFormat::Raw);
        domain(&DomainInput {
            console_logs: Some("/srv/logs"),
            machine: WEB,
            block: &self.block,
            virt_type: if self.kvm {
                VirtType::Kvm
            } else {
                VirtType::Qemu
            },
            cpu_mode: if self.kvm {
                CpuMode::HostPassthrough
            } else {
                CpuMode::Maximum
            },
            volumes: &volumes,
            networks: &networks,
            devices: &self.devices,
            pinning: &self.pinning,
            seed: self.seed.then_some(&seed),
            limits: GuestLimits::default(),
        })
    }
}

fn pool_volume(volume: &str, format: VolumeFormat) -> PoolVolume {
    PoolVolume {
        pool: "vms".into(),
        volume: volume.into(),
        format,
    }
}

fn attachment(text: &str) -> NicAttachment {
    let words: Vec<_> = text.split(' ').collect();
    let name = words[1].to_owned();
    NicAttachment {
        source: match words[0] {
            "network" => NicSource::Network(name),
            "bridge" => NicSource::Bridge(name),
            "ovs" => NicSource::Ovs(name),
            kind => panic!("{kind}"),
        },
        vlan: words.get(2).map(|vlan| vlan.parse().unwrap()),
        mtu: words.get(3).map(|mtu| mtu.parse().unwrap()),
        policy: NicPolicy::default(),
    }
}

/// The metadata of the Machine's domain while an operation is in progress.
pub(super) fn metadata(kind: IntentKind, request: &str) -> DomainMetadata {
    DomainMetadata {
        namespace: WEB.namespace.into(),
        name: WEB.name.into(),
        uid: WEB.uid.into(),
        intent: Some(Intent {
            kind,
            since: "2026-01-01T00:00:00Z".into(),
            request: Some(request.into()),
        }),
        ..DomainMetadata::default()
    }
}
