//! The stable codes of the rules: the same word in message, metric label, audit annotation and
//! documentation.

use std::fmt;

/// What a rule does with what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The object is refused.
    Refuse,
    /// The object is accepted with a warning.
    Warn,
    /// Refused or warned, as a setting says.
    Setting,
}

macro_rules! codes {
    ($( $family:literal { $( $severity:ident $code:ident = $what:literal, )+ } )+) => {
        /// Code of a rule. The texts say what the rule finds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $($( #[doc = $what] $code, )+)+ }

        impl Code {
            /// Every code, family by family.
            pub const ALL: &'static [Self] = &[$($(Self::$code,)+)+];

            /// The code as messages show it.
            pub fn as_str(self) -> &'static str {
                match self { $($(Self::$code => stringify!($code),)+)+ }
            }

            /// Family of the rule.
            pub fn family(self) -> &'static str {
                match self { $($(Self::$code => $family,)+)+ }
            }

            /// What the rule does with what it finds.
            pub fn severity(self) -> Severity {
                match self { $($(Self::$code => Severity::$severity,)+)+ }
            }

            /// What the rule finds.
            pub fn what(self) -> &'static str {
                match self { $($(Self::$code => $what,)+)+ }
            }
        }
    };
}

codes! {
    "form" {
        Refuse Unreadable = "The object is not JSON, or is nested deeper than any object can be.",
        Refuse WrongType = "A value has the wrong JSON type.",
        Refuse SpecRequired = "The object has no spec.",
        Refuse TooMany = "A list or map has more items than any machine can use.",
        Refuse TooLong = "A text is longer than its bound.",
        Refuse InvalidObjectName = "The name of another object cannot be the name of any.",
        Refuse InvalidLabel = "A label of a selector cannot be on any object.",
    }
    "references" {
        Refuse TemplateNotFound = "The template does not exist.",
        Refuse TemplateLabelConflict = "The template label and spec.template name different templates.",
        Warn TemplateDeprecated = "The template should no longer be used.",
        Warn RestoredTemplate = "A restored Machine keeps a template content that the catalog no longer has.",
        Refuse TemplateNameReserved = "A MachineTemplate has the name of a built-in template.",
        Refuse StorageClassNotFound = "The storage class does not exist.",
        Warn TemplateStorageClassNotFound = "A MachineTemplate names a storage class that does not exist.",
        Refuse NoDefaultStorageClass = "No storage class is named and the cluster has no default one.",
        Refuse EmptyStorageClass = "The storage class is empty, and nothing says which volume to bind.",
        Setting NetworkConfigurationNotFound = "The NetworkConfiguration does not exist in the Machine's namespace.",
    }
    "sizing" {
        Refuse MemoryRequired = "Neither the Machine nor its template gives a memory size.",
        Refuse InvalidQuantity = "A size is not a Kubernetes quantity.",
        Refuse UnitMissing = "A size is a bare number of bytes, too small to be meant.",
        Refuse MemoryTooSmall = "Memory is below what any guest boots with.",
        Refuse MemoryTooLarge = "Memory is above what the backends can give.",
        Refuse MaxMemoryTooSmall = "The memory to grow to is below the memory to start with.",
        Refuse MemoryNotAligned = "Memory that grows while the guest runs is not in whole steps of 2Mi.",
        Refuse InvalidCpuCount = "A CPU count is not from 1 to 255.",
        Refuse TooManyVcpus = "Cores times threads times sockets are more vCPUs than allowed.",
        Refuse MaxSocketsTooSmall = "The sockets to grow to are below the sockets to start with.",
    }
    "disks" {
        Refuse DiskNameRequired = "A disk has no name.",
        Refuse InvalidDiskName = "The name of a disk is not a DNS label.",
        Refuse ReservedDiskName = "The name of a disk is one the product uses itself.",
        Refuse DuplicateDiskName = "Two disks or CD-ROMs have the same name.",
        Refuse DiskSizeRequired = "Neither the Machine nor its template gives the size of a disk.",
        Refuse DiskTooSmall = "A disk is smaller than any storage provides.",
        Refuse DiskTooLarge = "A disk is larger than the backends can attach.",
        Refuse UnsupportedAccessMode = "The access mode of a disk is none that exists.",
        Refuse UnsupportedVolumeMode = "The volume mode of a disk is none that exists.",
        Refuse UnsupportedBus = "The bus of a disk is none that every backend has.",
        Refuse UnsupportedReclaimPolicy = "The reclaim policy of a disk is none that exists.",
        Refuse ReadOnlyDisk = "A disk that must be written is read only.",
        Warn SharedFilesystem = "A disk is shared between nodes through a file system.",
        Refuse ImageSource = "An image has no source, or more than one.",
        Refuse UnsupportedImageUrl = "The address of an image has a scheme that cannot be fetched.",
        Refuse InvalidImageChecksum = "The checksum of an image is not a SHA-256 of a url.",
        Refuse ImageVolumeNeedsLibvirt = "An image names a volume of a libvirt host, and the backend is KubeVirt.",
        Refuse ImageOnBoundDisk = "A disk that binds an existing volume has an image to fill it with.",
        Refuse EmptySelector = "The selector of a disk has no labels, and so chooses no particular volume.",
        Refuse VolumeChosenTwice = "A disk chooses its volume both by name and by labels.",
        Refuse RemovedDiskNotFound = "A disk to remove is not in the template.",
        Refuse RemovedDiskHasFields = "A disk to remove has other fields.",
    }
    "networks" {
        Refuse NicNameRequired = "A network card has no name.",
        Refuse InvalidNicName = "The name of a network card has characters it cannot have.",
        Refuse DuplicateNicName = "Two network cards have the same name.",
        Refuse UnsupportedNicModel = "The model of a network card is none that every backend has.",
        Refuse TooManyDefaultNics = "More than one network card names no network.",
        Refuse InvalidMac = "A MAC address is not one of six bytes.",
        Refuse MacNotUnicast = "A MAC address is multicast, broadcast or zero.",
        Refuse ReservedMac = "A MAC address is the one the pod network uses itself.",
        Refuse DuplicateMac = "Two network cards of the Machine have the same MAC address.",
        Warn SameNetworkTwice = "Two network cards are on the same network.",
    }
    "boot" {
        Refuse UnsupportedBootDevice = "The boot order names a class of devices that does not exist.",
        Refuse DuplicateBootDevice = "The boot order names a class of devices twice.",
        Refuse BootWithoutDisk = "The boot order names disks, and the Machine has none.",
        Refuse BootWithoutCdrom = "The boot order names CD-ROMs, and none holds an image.",
        Warn BlankBootDisk = "The Machine boots from nothing but blank disks.",
        Refuse EmptyCdrom = "A CD-ROM drive is empty, and the backend is KubeVirt.",
        Refuse CdromSizeRequired = "The image of a CD-ROM is imported into a volume of unknown size.",
    }
    "firmware" {
        Refuse UnsupportedMachineType = "The machine type is none that exists.",
        Refuse MachineTypeNeedsLibvirt = "The machine type is i440fx, and the backend is KubeVirt.",
        Refuse SecureBootNeedsEfi = "Secure Boot is on, and the firmware is BIOS.",
        Refuse SecureBootNeedsQ35 = "Secure Boot is on, and the machine type is i440fx.",
        Refuse EfiNeedsAcpi = "The firmware is UEFI, and ACPI is off.",
        Refuse HypervNeedsAcpi = "Enlightenments for Windows are on, and ACPI is off.",
    }
    "machine" {
        Refuse UnsupportedBackend = "The backend is none that exists.",
        Refuse UnsupportedPowerState = "The power state is none that exists.",
        Refuse SecretNameRequired = "A reference to a Secret names none.",
        Warn SecretIgnored = "Both inline cloud-init data and a Secret are given; the inline data wins.",
    }
    "names" {
        Refuse InvalidName = "The name of the object is not a DNS label of at most 63 characters.",
    }
    "networkconfigurations" {
        Refuse BridgeRequired = "A NetworkConfiguration names neither a bridge nor an existing definition.",
        Refuse InvalidBridge = "The name of a bridge cannot be the name of a Linux interface.",
        Refuse InvalidVlan = "A VLAN tag is not from 1 to 4094.",
        Refuse InvalidMtu = "An MTU is not from 68 to 65535.",
        Refuse SegmentChanged = "The VLAN or the bridge of an existing NetworkConfiguration changes.",
    }
    "update" {
        Refuse BackendChanged = "The backend of an existing Machine changes.",
        Refuse DiskShrunk = "A disk of an existing Machine becomes smaller.",
        Refuse DiskCannotGrow = "A disk grows, and its storage class does not allow it.",
        Refuse DiskChanged = "A field of an existing disk changes that its volume was made from.",
        Refuse CdromChanged = "The volume of an existing CD-ROM would have to be another one.",
        Refuse StopFirst = "The firmware or the machine type changes while the machine runs.",
        Warn RestartRequired = "A running machine has the change after its next restart.",
        Warn NewInstanceRequired = "Cloud-init reads the change on a new instance only.",
    }
    "block" {
        Refuse NormalizedEdited = "spec.normalized was edited by hand.",
        Refuse NormalizedMismatch = "spec.normalized is not what the rest of the spec resolves to.",
    }
}

impl Code {
    /// Whether the value itself is sound, and only the change to it is refused.
    pub(crate) fn is_about_the_change(self) -> bool {
        self.family() == "update"
    }

    /// Whether nothing can be said about what stands below a field with this fault.
    pub(crate) fn hides_what_is_below(self) -> bool {
        matches!(
            self,
            Self::Unreadable | Self::WrongType | Self::SpecRequired
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
