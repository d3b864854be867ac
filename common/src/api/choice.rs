//! Closed sets of words. Each is one enum that knows its spelling, so that the parser, the schema,
//! the error message and the rendering cannot disagree about what is allowed.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A closed set of words with one spelling each.
pub trait Choice: Sized + Copy + PartialEq + 'static {
    /// Every value, in the order messages list them.
    const ALL: &'static [Self];

    /// The value's spelling in specs and schemas.
    fn as_str(self) -> &'static str;

    /// The value with exactly this spelling.
    fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|choice| choice.as_str() == text)
    }

    /// The spellings, in the order messages list them.
    fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|choice| choice.as_str()).collect()
    }
}

macro_rules! choices {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal, )+ } )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $( $(#[$vdoc])* #[serde(rename = $text)] $variant, )+ }

        impl Choice for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];
            fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        // By hand, because a derived schema brings the type's description, and the field's says more.
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "enum": Self::names() })
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )+};
}

choices! {
    /// What runs the machine.
    Backend {
        /// A KubeVirt `VirtualMachine` in the cluster.
        Kubevirt = "kubevirt",
        /// A libvirt domain on a plain host.
        Libvirt = "libvirt",
    }
    /// Whether the machine is wished to run.
    PowerState {
        /// Powered on.
        Running = "Running",
        /// Powered off.
        Stopped = "Stopped",
    }
    /// What brings a pending change into effect.
    PendingAction {
        /// The next restart of the guest.
        Restart = "Restart",
        /// A live migration, by which KubeVirt plugs the change in.
        LiveMigration = "LiveMigration",
        /// The controller, which plugs the change into the running guest on its libvirt host.
        HotPlug = "HotPlug",
    }
    /// How many nodes may mount a volume, and how.
    AccessMode {
        /// One node, read and write.
        ReadWriteOnce = "ReadWriteOnce",
        /// Many nodes, read and write.
        ReadWriteMany = "ReadWriteMany",
        /// Many nodes, read only.
        ReadOnlyMany = "ReadOnlyMany",
    }
    /// What a volume is to the node.
    VolumeMode {
        /// A file system that holds a disk image.
        Filesystem = "Filesystem",
        /// A raw block device.
        Block = "Block",
    }
    /// The bus a disk is attached to.
    DiskBus {
        /// Paravirtualized; needs a driver in the guest.
        Virtio = "virtio",
        /// Emulated AHCI.
        Sata = "sata",
        /// A virtio SCSI controller.
        Scsi = "scsi",
    }
    /// What becomes of a disk's volume when its disk or machine is deleted.
    ReclaimPolicy {
        /// Deleted with it.
        Delete = "Delete",
        /// Kept, findable by its labels.
        Retain = "Retain",
    }
    /// Model of an emulated network card.
    NicModel {
        /// Paravirtualized; needs a driver in the guest.
        Virtio = "virtio",
        /// Intel 82540EM.
        E1000 = "e1000",
        /// Intel 82574L.
        E1000e = "e1000e",
        /// Realtek 8139.
        Rtl8139 = "rtl8139",
    }
    /// A class of devices to boot from.
    BootDevice {
        /// The disks, in their order.
        Disk = "disk",
        /// The CD-ROMs that hold an image, in their order.
        Cdrom = "cdrom",
        /// The network cards, in their order.
        Network = "network",
    }
    /// Machine type as users write it; every spelling means one [`MachineType`].
    MachineTypeName {
        /// Means `q35`.
        PcQ35 = "pc-q35",
        /// Means `pc`.
        PcI440fx = "pc-i440fx",
        /// The backends' own name.
        Q35 = "q35",
        /// The backends' own name for i440fx.
        Pc = "pc",
    }
    /// Machine type as the backends know it.
    MachineType {
        /// PCI Express chipset.
        Q35 = "q35",
        /// The i440fx chipset; libvirt only.
        Pc = "pc",
    }
    /// Firmware the machine boots with.
    FirmwareType {
        /// Legacy BIOS.
        Bios = "bios",
        /// UEFI.
        Efi = "efi",
    }
    /// Where a template's content came from.
    TemplateSource {
        /// Compiled in: `small`, `medium`, `large`.
        BuiltIn = "BuiltIn",
        /// A `MachineTemplate` object.
        MachineTemplate = "MachineTemplate",
    }
    /// How a libvirt host runs its guests.
    VirtType {
        /// With the processor's help.
        Kvm = "kvm",
        /// Emulated, instruction by instruction.
        Qemu = "qemu",
    }
    /// Which CPU a libvirt host shows its guests.
    CpuMode {
        /// The host's own.
        HostPassthrough = "host-passthrough",
        /// The named model that is nearest to the host's own.
        HostModel = "host-model",
        /// Everything the hypervisor can show.
        Maximum = "maximum",
    }
    /// Format of a volume in a pool of a libvirt host.
    VolumeFormat {
        /// Grows as it is written; can stand on another volume.
        Qcow2 = "qcow2",
        /// Byte for byte.
        Raw = "raw",
    }
    /// How a volume on a libvirt host comes to the content of an image.
    Provisioning {
        /// It stands on the image, and holds what differs.
        Overlay = "overlay",
        /// It is filled with a copy.
        Copy = "copy",
    }
    /// What a network of a libvirt host is there.
    HostNetworkType {
        /// A network of libvirt's.
        Network = "network",
        /// A Linux bridge.
        Bridge = "bridge",
        /// A bridge of Open vSwitch.
        Ovs = "ovs",
    }
    /// Where a machine is in its life.
    Phase {
        /// Seen; nothing made yet.
        Pending = "Pending",
        /// Its resources are being made.
        Creating = "Creating",
        /// The guest runs.
        Running = "Running",
        /// The guest is powered off.
        Stopped = "Stopped",
        /// Something must change before it can go on; recovers by itself when it does.
        Failed = "Failed",
    }
}

impl From<MachineTypeName> for MachineType {
    fn from(name: MachineTypeName) -> Self {
        match name {
            MachineTypeName::PcQ35 | MachineTypeName::Q35 => Self::Q35,
            MachineTypeName::PcI440fx | MachineTypeName::Pc => Self::Pc,
        }
    }
}
