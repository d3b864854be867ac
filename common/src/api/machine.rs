//! `Machine`: a virtual machine as its user describes it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cel;
use super::choice::{
    AccessMode, Backend, BootDevice, DiskBus, MachineTypeName, NicModel, PowerState, ReclaimPolicy,
    VolumeMode,
};
use super::normalized::Normalized;
use super::schema;
use crate::bounds;

/// A virtual machine. Everything but `normalized` is the user's and is never written by the webhook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "Machine",
        plural = "machines",
        shortname = "mach",
        category = "vitistack",
        namespaced,
        status = "crate::api::status::MachineStatus",
        doc = "A virtual machine, run by KubeVirt or libvirt.",
        validation = kube::core::Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
            .message("the name of a Machine must be a DNS label of at most 63 characters (lower-case letters, digits and '-')"),
        printcolumn = r#"{"name":"Template","type":"string","jsonPath":".spec.normalized.template.name"}"#,
        printcolumn = r#"{"name":"CPU","type":"integer","jsonPath":".spec.normalized.cpu.cores","description":"Cores per socket"}"#,
        printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".spec.normalized.memory.size"}"#,
        printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
        printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
        printcolumn = r#"{"name":"IP","type":"string","jsonPath":".status.ipAddresses[0]"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
        printcolumn = r#"{"name":"Backend","type":"string","jsonPath":".spec.normalized.backend","priority":1}"#,
        printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.nodeName","priority":1}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::machine()))]
pub struct MachineSpec {
    /// Name of the MachineTemplate, or of a built-in one (small, medium, large), that this machine
    /// starts from. Every field set here wins over the template's. The label
    /// vitistack.io/machine-template names the template when this field is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>")]
    pub template: Option<String>,

    /// What runs the machine: kubevirt or libvirt. Default: the setting of the webhook, else
    /// kubevirt. Cannot change after creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Backend>")]
    pub backend: Option<String>,

    /// Whether the machine is powered on: Running (default) or Stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PowerState>")]
    pub power_state: Option<String>,

    /// Whether a shutdown from inside the guest leaves the machine stopped. Default false: it is
    /// started again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_shutdown_stops: Option<bool>,

    /// CPU and memory. What is absent comes from the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Disks, merged by name over the template's: a disk of a template's name changes only the
    /// fields it sets, any other name adds a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DISKS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub disks: Option<Vec<Disk>>,

    /// Network cards, merged by name over the template's. Absent: one card named default on the
    /// pod network (KubeVirt) or the host's default network (libvirt).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NETWORKS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub networks: Option<Vec<Network>>,

    /// Classes of devices to boot from, first one first. Default: disk, cdrom, network, as far as
    /// the machine has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<BootDevice>>", length(max = bounds::BOOT_ORDER_MAX), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [cel::named_once()]))]
    pub boot_order: Option<Vec<String>>,

    /// CD-ROM drives.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::CDROMS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub cdroms: Option<Vec<Cdrom>>,

    /// What cloud-init does inside the guest at its first boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,

    /// Machine type, features and firmware of the virtual hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,

    /// Labels of the nodes (KubeVirt) or LibvirtHosts (libvirt) the machine may run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub node_selector: Option<BTreeMap<String, String>>,

    /// What all of the above resolved to, written by the admission webhook. Never edit it: change
    /// the fields above and it follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub normalized: Option<Normalized>,
}

/// CPU and memory of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// CPU topology. The machine has cores × threads × sockets vCPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Guest memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// CPU topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.maxSockets) || !has(self.sockets) || self.maxSockets >= self.sockets",
        "message": "maxSockets must be at least sockets"
    },
    {
        "rule": "(has(self.cores) ? self.cores : 1) * (has(self.threads) ? self.threads : 1) * (has(self.sockets) ? self.sockets : 1) <= 255 && (has(self.cores) ? self.cores : 1) * (has(self.threads) ? self.threads : 1) * (has(self.maxSockets) ? self.maxSockets : 1) <= 255",
        "message": "cores × threads × sockets must be at most 255"
    }
]))]
pub struct Cpu {
    /// Cores per socket. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub cores: Option<i64>,
    /// Sockets the machine can grow to without a restart, where the backend can do it. Default:
    /// sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub max_sockets: Option<i64>,
    /// Sockets. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub sockets: Option<i64>,
    /// Threads per core. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub threads: Option<i64>,
}

/// Guest memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::memory()))]
pub struct Memory {
    /// Memory the machine can grow to without a restart, where the backend can do it. Default:
    /// size.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub max_size: Option<String>,
    /// Memory the guest sees, such as 2Gi. From 32Mi to 12Ti.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<String>,
}

/// A disk of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.remove) || !self.remove || !(has(self.size) || has(self.storageClass) || has(self.accessMode) || has(self.volumeMode) || has(self.bus) || has(self.image) || has(self.reclaimPolicy) || has(self.selector) || has(self.volumeName))",
        "message": "a disk with remove: true takes no other field"
    },
    {
        "rule": "!(has(self.selector) && has(self.volumeName))",
        "message": "selector and volumeName exclude each other"
    },
    {
        "rule": "!has(self.image) || !(has(self.selector) || has(self.volumeName))",
        "message": "a disk with an image cannot bind an existing volume"
    },
    cel::not_reserved(),
    cel::bounded("size", bounds::CAPACITY_MIN, bounds::CAPACITY_MAX)
]))]
pub struct Disk {
    /// Access mode of the volume: ReadWriteOnce (default), ReadWriteMany (needed for live
    /// migration) or ReadOnlyMany.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AccessMode>")]
    pub access_mode: Option<String>,
    /// Bus the guest sees the disk on: virtio (default), sata or scsi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DiskBus>")]
    pub bus: Option<String>,
    /// What the disk is filled with at first. Absent: a blank disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Name of the disk, a DNS label, unique among disks and CD-ROMs. A template's disk of the
    /// same name is changed by this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>", required)]
    pub name: Option<String>,
    /// What becomes of the volume when the disk or the machine is deleted: Delete (default) or
    /// Retain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ReclaimPolicy>")]
    pub reclaim_policy: Option<String>,
    /// Drops the template's disk of this name. No other field beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove: Option<bool>,
    /// Labels of an existing PersistentVolume to bind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<VolumeSelector>,
    /// Capacity of the disk, such as 20Gi. From 1Mi to 64Ti.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<String>,
    /// Name of the StorageClass that provisions the disk. Absent: the cluster's default class.
    /// default: a class of that name if there is one, else the cluster's default class. Empty: no
    /// class, only together with selector or volumeName.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::StorageClassName>")]
    pub storage_class: Option<String>,
    /// Mode of the volume: Filesystem (default) or Block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VolumeMode>")]
    pub volume_mode: Option<String>,
    /// Name of an existing PersistentVolume to bind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub volume_name: Option<String>,
}

/// Selects a PersistentVolume by its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.matchLabels) && self.matchLabels.size() > 0",
        "message": "matchLabels must have a label"
    }
]))]
pub struct VolumeSelector {
    /// Labels the volume must have, all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// Where the content of a disk or CD-ROM comes from: exactly one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "[has(self.url), has(self.persistentVolumeClaim), has(self.volume)].filter(x, x).size() == 1",
        "message": "an image has exactly one of url, persistentVolumeClaim and volume"
    },
    {
        "rule": "!has(self.checksum) || has(self.url)",
        "message": "a checksum belongs to a url"
    }
]))]
pub struct Image {
    /// Checksum of what the url gives: sha256: and 64 lower-case hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Checksum>")]
    pub checksum: Option<String>,
    /// Name of a PersistentVolumeClaim of the same namespace to clone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub persistent_volume_claim: Option<String>,
    /// Address of the image: https://, http:// or docker://.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ImageUrl>")]
    pub url: Option<String>,
    /// Name of a volume in the libvirt host's image pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::FreeText>")]
    pub volume: Option<String>,
}

/// A network card of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.macAddress) || !self.macAddress.matches('^[0:.-]+$')",
        "message": "no network card has the address zero"
    },
    {
        "rule": "!has(self.macAddress) || self.macAddress.matches('^[0-9A-Fa-f][02468ACEace]')",
        "message": "a multicast address is no network card's"
    }
]))]
pub struct Network {
    /// MAC address of the card, unicast. Absent: derived from the cluster, the namespace, the
    /// machine and the card, and always the same for these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::MacText>")]
    pub mac_address: Option<String>,
    /// Model of the card: virtio (default), e1000, e1000e or rtl8139.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<NicModel>")]
    pub model: Option<String>,
    /// Name of the network card: letters, digits, - and _.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::NicName>", required)]
    pub name: Option<String>,
    /// Name of the NetworkConfiguration of this namespace the card is attached to. Absent: the pod
    /// network (KubeVirt) or the host's default network (libvirt), for one card at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>")]
    pub network_name: Option<String>,
}

/// A CD-ROM drive of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    cel::not_reserved(),
    cel::bounded("size", bounds::CAPACITY_MIN, bounds::CAPACITY_MAX)
]))]
pub struct Cdrom {
    /// Name of the drive, a DNS label, unique among disks and CD-ROMs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>", required)]
    pub name: Option<String>,
    /// What is in the drive. Absent: nothing (libvirt only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Capacity of the volume the image is imported into.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<String>,
    /// Name of the StorageClass of the volume the image is imported into, as of a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CdromClassName>")]
    pub storage_class: Option<String>,
}

/// What cloud-init is given. Handed on verbatim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudInit {
    /// cloud-init user data, readable by whoever may read the Machine. Keep secrets in a Secret and
    /// name it in secretRef.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::UserData>")]
    pub user_data: Option<String>,
    /// cloud-init network configuration, version 1 or 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::UserData>")]
    pub network_data: Option<String>,
    /// cloud-init instance metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::FreeText>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub meta_data: Option<BTreeMap<String, String>>,
    /// Secret that holds the user data. Inline userData wins over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRef>,
    /// Secret that holds the network configuration. Inline networkData wins over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<SecretKeyRef>,
}

/// A key of a Secret in the Machine's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>", required)]
    pub name: Option<String>,
    /// Key in the Secret. Default: userdata for user data, networkdata for network data.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::SecretKey>")]
    pub key: Option<String>,
}

/// The virtual hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.firmware) || !has(self.firmware.bootloader) || !has(self.firmware.bootloader.secureBoot) || !self.firmware.bootloader.secureBoot || !has(self.machine) || !has(self.machine.type) || !(self.machine.type in ['pc', 'pc-i440fx'])",
        "message": "secureBoot needs the machine type pc-q35"
    },
    {
        "rule": "!has(self.firmware) || !has(self.firmware.bootloader) || !has(self.firmware.bootloader.efi) || !self.firmware.bootloader.efi || !has(self.features) || !has(self.features.acpi) || self.features.acpi",
        "message": "efi needs acpi"
    }
]))]
pub struct Domain {
    /// Features of the virtual hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Features>,
    /// Firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<FirmwareIntent>,
    /// Chipset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineKind>,
}

/// Chipset of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineKind {
    /// Machine type: pc-q35 (default) or, on libvirt only, pc-i440fx. q35 and pc mean the same.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<MachineTypeName>")]
    pub kind: Option<String>,
}

/// Features of the virtual hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.hyperv) || !self.hyperv || !has(self.acpi) || self.acpi",
        "message": "hyperv needs acpi"
    }
]))]
pub struct Features {
    /// ACPI. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acpi: Option<bool>,
    /// APIC. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apic: Option<bool>,
    /// Enlightenments for Windows guests. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<bool>,
}

/// Firmware of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirmwareIntent {
    /// Boot loader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootloader: Option<Bootloader>,
}

/// Boot loader of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.secureBoot) || !self.secureBoot || !has(self.efi) || self.efi",
        "message": "secureBoot needs efi"
    }
]))]
pub struct Bootloader {
    /// Boot by UEFI instead of BIOS. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efi: Option<bool>,
    /// Boot signed code only. Needs efi. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
}
