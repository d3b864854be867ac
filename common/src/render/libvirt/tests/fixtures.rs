//! Machines on a libvirt host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::super::{
    Attached, CpuMode, Domain, Guest, Intent, IntentKind, Mark, Placed, VirtType, VolumeFormat,
    Wire, domain, volume_name,
};
use crate::api::choice::{DiskBus, MachineType, NicModel};
use crate::api::normalized::{Normalized, NormalizedDisk, NormalizedNetwork};
use crate::bounds;
use crate::render::Identity;

pub(super) const WEB: Identity<'_> = Identity {
    cluster: "0b0e2c3a-5f6f-4b0c-9a3e-0e6f8f0f7a11",
    namespace: "prod",
    name: "web",
    uid: "7f0c2f9e-3f1a-4b7b-8d3e-6f1d2c3b4a59",
};

/// A Machine and the host it is on, as a file of the folder `cases` has it.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Case {
    pub(super) block: Normalized,
    #[serde(default)]
    kvm: bool,
    #[serde(default)]
    seed: bool,
    /// By network card, `<kind> <name> [vlan] [mtu]`.
    wires: BTreeMap<String, String>,
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

/// The case of this name.
pub(super) fn named(name: &str) -> Case {
    let text = fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// With as many devices as a block can have.
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
        case.wire(&longest(index), "network default");
    }
    case.block.machine_type = machine_type;
    case
}

impl Case {
    /// Wires a network card.
    pub(super) fn wire(&mut self, nic: &str, wire: &str) {
        self.wires.insert(nic.to_owned(), wire.to_owned());
    }

    /// Every disk and every filled drive has a volume; one with an image over it, and so qcow2.
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
                (name.clone(), placed(&volume, format))
            })
            .collect();
        let networks: BTreeMap<_, _> = self
            .wires
            .iter()
            .map(|(nic, wire)| (nic.clone(), attached(wire)))
            .collect();
        let seed = placed("prod-web-8d49d164.seed-0123456789ab.iso", VolumeFormat::Raw);
        domain(&Guest {
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
            seed: self.seed.then_some(&seed),
        })
    }
}

fn placed(volume: &str, format: VolumeFormat) -> Placed {
    Placed {
        pool: "vms".into(),
        volume: volume.into(),
        format,
    }
}

pub(super) fn attached(text: &str) -> Attached {
    let words: Vec<_> = text.split(' ').collect();
    let name = words[1].to_owned();
    Attached {
        wire: match words[0] {
            "network" => Wire::Network(name),
            "bridge" => Wire::Bridge(name),
            "ovs" => Wire::Ovs(name),
            kind => panic!("{kind}"),
        },
        vlan: words.get(2).map(|vlan| vlan.parse().unwrap()),
        mtu: words.get(3).map(|mtu| mtu.parse().unwrap()),
    }
}

/// What is remembered with the domain of the Machine while something is under way.
pub(super) fn mark(kind: IntentKind, request: &str) -> Mark {
    Mark {
        namespace: WEB.namespace.into(),
        name: WEB.name.into(),
        uid: WEB.uid.into(),
        intent: Some(Intent {
            kind,
            since: "2026-01-01T00:00:00Z".into(),
            request: Some(request.into()),
        }),
        ..Mark::default()
    }
}
