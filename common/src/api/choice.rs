//! Fields with a closed set of values: one enum each, with the spelling of its values. Parser, schema,
//! messages and rendering use the same enum, so they allow the same values.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::quantity::Bytes;

/// A closed set of values with one spelling each.
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

        // Not derived: the derived schema would replace the field's description by the type's.
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
    /// Backend that runs a machine.
    Backend {
        /// A KubeVirt `VirtualMachine` in the cluster.
        Kubevirt = "kubevirt",
        /// A libvirt domain on a `LibvirtHost`.
        Libvirt = "libvirt",
    }
    /// Family of an operating system.
    OsFamily {
        /// Linux.
        Linux = "linux",
        /// Windows.
        Windows = "windows",
    }
    /// Devices that a guest has drivers for.
    Drivers {
        /// Those that the operating system brings along.
        Inbox = "inbox",
        /// Virtio drivers, which are in the image or are installed from a CD-ROM.
        Virtio = "virtio",
    }
    /// Desired power state of a machine.
    PowerState {
        /// Powered on.
        Running = "Running",
        /// Powered off.
        Stopped = "Stopped",
    }
    /// What happens to a running guest when its node is drained.
    EvictionStrategy {
        /// The guest is migrated to another node if it can be, else it is shut down.
        LiveMigrateIfPossible = "LiveMigrateIfPossible",
        /// The guest is migrated to another node; while it cannot be, the drain waits.
        LiveMigrate = "LiveMigrate",
        /// The drain waits until somebody else has moved or stopped the guest.
        External = "External",
        /// The guest is shut down.
        None = "None",
    }
    /// What the Machines of a group do not share.
    GroupScope {
        /// A node of the cluster, or a LibvirtHost.
        Host = "Host",
        /// A zone: the value of the label `topology.kubernetes.io/zone` of a node or LibvirtHost.
        Zone = "Zone",
    }
    /// How a toleration compares the taint of its key.
    TolerationOperator {
        /// The taint has this value.
        Equal = "Equal",
        /// The taint has any value.
        Exists = "Exists",
    }
    /// What a taint of a node does to pods that do not tolerate it.
    TaintEffect {
        /// Such pods are not scheduled on the node.
        NoSchedule = "NoSchedule",
        /// Such pods are scheduled on the node only if there is no other.
        PreferNoSchedule = "PreferNoSchedule",
        /// Such pods are not scheduled on the node, and those that run there are evicted.
        NoExecute = "NoExecute",
    }
    /// Size of the pages of a guest's memory on its node.
    HugepageSize {
        /// 2 MiB.
        Mebi2 = "2Mi",
        /// 1 GiB.
        Gibi1 = "1Gi",
    }
    /// What happens to a guest when the timer of its watchdog runs out.
    WatchdogAction {
        /// The guest is restarted.
        Reset = "Reset",
        /// The power of the guest is cut.
        PowerOff = "PowerOff",
        /// The guest is asked to shut down.
        Shutdown = "Shutdown",
    }
    /// Protocol of a probe by HTTP.
    ProbeScheme {
        /// Without encryption.
        Http = "HTTP",
        /// With TLS.
        Https = "HTTPS",
    }
    /// How a device of a node is given to a guest.
    DeviceKind {
        /// A PCI device or a mediated device, such as a graphics processor.
        Pci = "pci",
        /// A USB device.
        Usb = "usb",
    }
    /// What makes a pending change effective.
    PendingAction {
        /// The next restart of the guest.
        Restart = "Restart",
        /// A live migration, by which KubeVirt applies the change.
        LiveMigration = "LiveMigration",
        /// A hot-plug into the running guest or out of it, by the backend itself.
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
    /// How a volume is presented to the node.
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
    /// What the controller does with a volume after its disk or machine is deleted.
    ReclaimPolicy {
        /// Delete the volume.
        Delete = "Delete",
        /// Keep the volume, with labels by which it can be found.
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
    /// Spelling of a machine type in specs; each means one [`MachineType`].
    MachineTypeName {
        /// Alias of `q35`.
        PcQ35 = "pc-q35",
        /// Alias of `pc`.
        PcI440fx = "pc-i440fx",
        /// QEMU's name.
        Q35 = "q35",
        /// QEMU's name for i440fx.
        Pc = "pc",
    }
    /// Protocol of a machine's screen.
    DisplayType {
        /// VNC.
        Vnc = "vnc",
        /// No screen.
        None = "none",
    }
    /// Model of an emulated graphics card.
    VideoModel {
        /// VGA, which every firmware and guest supports.
        Vga = "vga",
        /// Paravirtualized; needs a driver in the guest.
        Virtio = "virtio",
        /// A frame buffer without VGA's registers.
        Bochs = "bochs",
    }
    /// Machine type under its QEMU name.
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
    /// Source of a template's content.
    TemplateSource {
        /// Compiled in: `small`, `medium`, `large`.
        BuiltIn = "BuiltIn",
        /// A `MachineTemplate` object.
        MachineTemplate = "MachineTemplate",
    }
    /// How a libvirt host runs its guests.
    VirtType {
        /// With hardware virtualization.
        Kvm = "kvm",
        /// With emulation of each instruction.
        Qemu = "qemu",
    }
    /// CPU model of the guests of a libvirt host.
    CpuMode {
        /// The CPU of the host.
        HostPassthrough = "host-passthrough",
        /// The named model that is nearest to the CPU of the host.
        HostModel = "host-model",
        /// All features that the hypervisor supports.
        Maximum = "maximum",
    }
    /// Format of a volume in a pool of a libvirt host.
    VolumeFormat {
        /// Grows with its content; can have a backing file.
        Qcow2 = "qcow2",
        /// Has its full size from the start; cannot have a backing file.
        Raw = "raw",
    }
    /// How a volume on a libvirt host gets the content of an image.
    Provisioning {
        /// The image is its backing file; the volume holds the differences.
        Overlay = "overlay",
        /// The image is copied into it.
        Copy = "copy",
    }
    /// Type of a network that a libvirt host offers.
    HostNetworkType {
        /// A libvirt network.
        Network = "network",
        /// A Linux bridge.
        Bridge = "bridge",
        /// An Open vSwitch bridge.
        Ovs = "ovs",
    }
    /// How a requirement of a selector compares a label.
    SelectorOperator {
        /// The label has one of the values.
        In = "In",
        /// The label has none of the values, or is absent.
        NotIn = "NotIn",
        /// The label is there.
        Exists = "Exists",
        /// The label is absent.
        DoesNotExist = "DoesNotExist",
    }
    /// How a label of a node is compared.
    NodeOperator {
        /// The label has one of the values.
        In = "In",
        /// The label has none of the values, or is absent.
        NotIn = "NotIn",
        /// The label is there.
        Exists = "Exists",
        /// The label is absent.
        DoesNotExist = "DoesNotExist",
        /// The label is a whole number above the value.
        Gt = "Gt",
        /// The label is a whole number below the value.
        Lt = "Lt",
    }
    /// What happens where pods would be spread less evenly than a constraint says.
    UnsatisfiableAction {
        /// The guest is not started there.
        DoNotSchedule = "DoNotSchedule",
        /// Other places are preferred.
        ScheduleAnyway = "ScheduleAnyway",
    }
    /// How a requested migration has ended.
    MigrationResult {
        /// The guest runs on another node.
        Succeeded = "Succeeded",
        /// The guest is where it was, because the migration failed or was cancelled.
        Failed = "Failed",
        /// The guest is where it was, because it cannot be moved.
        Refused = "Refused",
    }
    /// How a requested reset has ended.
    ResetResult {
        /// The hardware was reset: the guest boots.
        Done = "Done",
        /// Nothing was reset: the guest does not run, or KubeVirt cannot reset it.
        Refused = "Refused",
    }
    /// Summary of a machine's state.
    Phase {
        /// The controller has read the Machine and created nothing yet.
        Pending = "Pending",
        /// The controller is creating the machine's objects.
        Creating = "Creating",
        /// The guest runs.
        Running = "Running",
        /// The guest is powered off.
        Stopped = "Stopped",
        /// The controller cannot continue until something changes; it then continues without a request.
        Failed = "Failed",
    }
}

impl WatchdogAction {
    /// The name that KubeVirt and libvirt have for it.
    pub fn backend_name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::PowerOff => "poweroff",
            Self::Shutdown => "shutdown",
        }
    }

    /// The action of this [name](Self::backend_name).
    pub fn of_backend(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|action| action.backend_name() == name)
    }
}

impl HugepageSize {
    /// The size as an amount of memory.
    pub fn bytes(self) -> Bytes {
        match self {
            Self::Mebi2 => Bytes::mib(2),
            Self::Gibi1 => Bytes::mib(1024),
        }
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
