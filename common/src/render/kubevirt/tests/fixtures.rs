//! Blocks and cloud-init data to render.

use std::collections::BTreeMap;

use crate::api::choice::{
    AccessMode, Backend, DiskBus, FirmwareType, MachineType, NicModel, PowerState, ReclaimPolicy,
    VolumeMode,
};
use crate::api::machine::{CloudInit, Image, SecretKeyRef};
use crate::api::normalized::{
    Firmware, Normalized, NormalizedCdrom, NormalizedCpu, NormalizedDisk, NormalizedFeatures,
    NormalizedMemory, NormalizedNetwork,
};
use crate::render::Identity;

/// A Machine with the longest name that is allowed.
pub(super) const LONGEST: Identity<'_> = Identity {
    cluster: "0b0e2c3a-5f6f-4b0c-9a3e-0e6f8f0f7a11",
    namespace: "prod",
    name: "machine-with-a-name-that-is-exactly-sixty-three-characters-long",
    uid: "7f0c2f9e-3f1a-4b7b-8d3e-6f1d2c3b4a59",
};

/// A Machine with a short name, for snapshots.
pub(super) const WEB: Identity<'_> = Identity {
    name: "web",
    ..LONGEST
};

pub(super) fn block() -> Normalized {
    Normalized {
        version: 1,
        intent_hash: "sha256:0".into(),
        template: None,
        annotation_keys: Vec::new(),
        backend: Backend::Kubevirt,
        power_state: PowerState::Running,
        deletion_protection: false,
        guest_shutdown_stops: false,
        cpu: cpu(1, 1, 1),
        memory: memory("2Gi", "2Gi"),
        hardware: None,
        watchdog: None,
        probes: None,
        overrides: None,
        machine_type: MachineType::Q35,
        firmware: Firmware {
            persistent: None,
            kind: FirmwareType::Bios,
            secure_boot: None,
        },
        os: None,
        tpm: None,
        timezone: None,
        termination_grace_period_seconds: None,
        eviction_strategy: None,
        placement: None,
        features: NormalizedFeatures {
            acpi: true,
            apic: true,
            hyperv: false,
        },
        disks: vec![disk("root", "20Gi")],
        existing_disks: vec![],
        cdroms: vec![],
        networks: vec![nic("default", NicModel::Virtio)],
        display: None,
        console: None,
        node_selector: BTreeMap::new(),
    }
}

pub(super) fn cpu(sockets: u32, cores: u32, threads: u32) -> NormalizedCpu {
    NormalizedCpu {
        sockets,
        cores,
        threads,
        max_sockets: sockets,
    }
}

pub(super) fn memory(size: &str, max_size: &str) -> NormalizedMemory {
    NormalizedMemory {
        size: size.parse().unwrap(),
        max_size: max_size.parse().unwrap(),
    }
}

pub(super) fn disk(name: &str, size: &str) -> NormalizedDisk {
    NormalizedDisk {
        name: name.into(),
        size: size.parse().unwrap(),
        storage_class: "standard".into(),
        access_mode: AccessMode::ReadWriteOnce,
        volume_mode: VolumeMode::Filesystem,
        bus: DiskBus::Virtio,
        boot_order: None,
        hotpluggable: false,
        reclaim_policy: ReclaimPolicy::Delete,
        image: None,
        selector: None,
        image_pin: None,
        serial: None,
        volume_name: None,
    }
}

pub(super) fn nic(name: &str, model: NicModel) -> NormalizedNetwork {
    NormalizedNetwork {
        name: name.into(),
        network_name: None,
        model,
        mac_address: None,
        ip_addresses: vec![],
        boot_order: None,
    }
}

fn on(network: &str, nic: NormalizedNetwork) -> NormalizedNetwork {
    NormalizedNetwork {
        network_name: Some(network.into()),
        ..nic
    }
}

/// Sizes: those of the built-in templates, and sizes that can and cannot be hot-plugged.
pub(super) fn sizes() -> Vec<(NormalizedCpu, NormalizedMemory)> {
    let growing = NormalizedCpu {
        max_sockets: 8,
        ..cpu(2, 2, 2)
    };
    vec![
        (cpu(1, 1, 1), memory("2Gi", "2Gi")),
        (cpu(1, 2, 1), memory("4Gi", "4Gi")),
        (cpu(1, 4, 1), memory("8Gi", "8Gi")),
        (growing, memory("1Gi", "16Gi")),
        (growing, memory("512Mi", "1Gi")),
        (cpu(1, 1, 1), memory("1500M", "3G")),
    ]
}

/// Disks and CD-ROM drives: none, one, on another bus, and one of every kind.
pub(super) fn storage() -> Vec<(Vec<NormalizedDisk>, Vec<NormalizedCdrom>)> {
    let image = Image {
        url: Some("https://images.example.com/installer.iso".into()),
        ..Image::default()
    };
    let boot = NormalizedDisk {
        boot_order: Some(1),
        ..disk("root", "20Gi")
    };
    let every = vec![
        boot.clone(),
        NormalizedDisk {
            bus: DiskBus::Sata,
            volume_mode: VolumeMode::Block,
            access_mode: AccessMode::ReadWriteMany,
            reclaim_policy: ReclaimPolicy::Retain,
            ..disk("data", "1Ti")
        },
        NormalizedDisk {
            bus: DiskBus::Scsi,
            access_mode: AccessMode::ReadOnlyMany,
            storage_class: String::new(),
            volume_name: Some("pv-library".into()),
            ..disk("library", "500M")
        },
        NormalizedDisk {
            storage_class: String::new(),
            selector: Some([("tier".to_owned(), "cold".to_owned())].into()),
            ..disk("archive", "10Ti")
        },
        NormalizedDisk {
            image: Some(image.clone()),
            ..disk("d", "1Mi")
        },
    ];
    let cdrom = |name: &str, image: Option<Image>, boot_order| NormalizedCdrom {
        hotpluggable: false,
        image_pin: None,
        name: name.into(),
        boot_order,
        size: image.is_some().then(|| "5Gi".parse().unwrap()),
        storage_class: image.is_some().then(|| "standard".into()),
        image,
    };
    let swappable = |cdrom: NormalizedCdrom| NormalizedCdrom {
        hotpluggable: true,
        ..cdrom
    };
    let drives = vec![
        cdrom("installer", Some(image.clone()), Some(2)),
        swappable(cdrom("tools", Some(image), Some(3))),
        swappable(cdrom("empty", None, Some(4))),
        cdrom("added", None, None),
    ];
    let sata_root = NormalizedDisk {
        bus: DiskBus::Sata,
        ..boot.clone()
    };
    vec![
        (vec![], vec![]),
        (vec![boot], vec![]),
        (vec![sata_root], drives.clone()),
        (every, drives),
    ]
}

/// Network cards: every model, none, and several on different networks.
pub(super) fn networks() -> Vec<Vec<NormalizedNetwork>> {
    use NicModel::{E1000, E1000e, Rtl8139, Virtio};
    let mut all: Vec<_> = [Virtio, E1000, E1000e, Rtl8139]
        .into_iter()
        .map(|model| vec![nic("default", model)])
        .collect();
    all.push(vec![]);
    all.push(vec![
        NormalizedNetwork {
            boot_order: Some(9),
            ..on("prod-network", nic("eth0", Virtio))
        },
        NormalizedNetwork {
            mac_address: Some("52-54-00-AB-CD-EF".parse().unwrap()),
            ..on("storage-network", nic("eth_1", E1000))
        },
        nic("pod", Rtl8139),
    ]);
    all
}

/// BIOS, and UEFI with every setting of Secure Boot.
pub(super) fn firmware() -> Vec<Firmware> {
    let efi = |secure_boot| Firmware {
        persistent: None,
        kind: FirmwareType::Efi,
        secure_boot,
    };
    let bios = Firmware {
        persistent: None,
        kind: FirmwareType::Bios,
        secure_boot: None,
    };
    vec![bios, efi(None), efi(Some(false)), efi(Some(true))]
}

/// The defaults, a Windows guest, and no features.
pub(super) fn features() -> Vec<NormalizedFeatures> {
    [
        (true, true, false),
        (true, true, true),
        (false, false, false),
    ]
    .map(|(acpi, apic, hyperv)| NormalizedFeatures { acpi, apic, hyperv })
    .into()
}

/// cloud-init data: none, inline on both sides of the limit of 2048 bytes, in Secrets with the default and
/// with other keys, and with meta-data.
pub(super) fn cloud_inits() -> Vec<CloudInit> {
    let text = |length: usize| Some(format!("#cloud-config\n{}", "#".repeat(length - 14)));
    let secret = |name: &str, key: Option<&str>| {
        Some(SecretKeyRef {
            name: Some(name.into()),
            key: key.map(Into::into),
        })
    };
    vec![
        CloudInit::default(),
        CloudInit {
            user_data: text(2048),
            ..CloudInit::default()
        },
        CloudInit {
            user_data: text(2049),
            network_data: text(2048),
            ..CloudInit::default()
        },
        CloudInit {
            user_data: text(100),
            network_data: text(2049),
            secret_ref: secret("ignored", None),
            ..CloudInit::default()
        },
        CloudInit {
            secret_ref: secret("user", None),
            network_data_secret_ref: secret("net", Some("networkdata")),
            ..CloudInit::default()
        },
        CloudInit {
            secret_ref: secret("user", Some("init.yaml")),
            network_data_secret_ref: secret("net", None),
            ..CloudInit::default()
        },
        CloudInit {
            network_data: text(64),
            ..CloudInit::default()
        },
        CloudInit {
            user_data: text(64),
            network_data_secret_ref: secret("net", None),
            meta_data: Some([("instance-id".to_owned(), "i-1".to_owned())].into()),
            ..CloudInit::default()
        },
    ]
}
