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

/// How much of what a rule refuses the CRDs alone refuse, too: what stands when the webhook is
/// bypassed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondLine {
    /// All of it.
    All,
    /// What can be seen without a template or a setting, in the usual way of writing.
    Some,
    /// Nothing: it rests on other objects, on metadata, on what a spec resolves to or on the content of
    /// a text.
    Nothing,
}

macro_rules! codes {
    ($( $family:literal { $(
        $severity:ident $code:ident = $what:literal because $why:literal fix $fix:literal,
    )+ } )+) => {
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

            /// What would become of it without the rule.
            pub fn why(self) -> &'static str {
                match self { $($(Self::$code => $why,)+)+ }
            }

            /// What its user does about it, in Markdown.
            pub fn fix(self) -> &'static str {
                match self { $($(Self::$code => $fix,)+)+ }
            }
        }
    };
}

codes! {
    "form" {
        Refuse Unreadable = "The object is not JSON, or is nested deeper than any object can be."
            because "Nothing in it can be judged, and no machine can be made from it."
            fix "Send valid JSON or YAML.",
        Refuse WrongType = "A value has the wrong JSON type."
            because "The API server would refuse it later, alone and without the other faults."
            fix "Write the value in the type that the message names; numbers that are names or sizes need quotes.",
        Refuse SpecRequired = "The object has no spec."
            because "An object without a spec wishes for nothing."
            fix "Add a spec, if only `template: small`.",
        Refuse TooMany = "A list or map has more items than any machine or host can use."
            because "Lists are bounded so that one object cannot exhaust the API server or the backends."
            fix "Remove items, or split the object.",
        Refuse TooLong = "A text is longer than its bound."
            because "Texts are bounded so that an object fits into etcd and into the backends' own limits."
            fix "Shorten the text; put long user data into a Secret or fetch it with `#include`.",
        Refuse InvalidObjectName = "The name of another object cannot be the name of any."
            because "No object can have this name, so the reference could never be satisfied."
            fix "Write the name as `kubectl get` shows it; pools and networks of libvirt as `virsh pool-list` and `virsh net-list` do.",
        Refuse InvalidLabel = "A label of a selector cannot be on any object."
            because "No node, host or volume can carry such a label, so nothing would ever match."
            fix "Use a key and a value that `kubectl label` accepts.",
    }
    "references" {
        Refuse TemplateNotFound = "The template does not exist."
            because "Nothing says what the machine should be; elsewhere this is found by a controller, minutes later."
            fix "Take one of the names that the message lists, or apply the MachineTemplate first.",
        Refuse TemplateLabelConflict = "The template label and spec.template name different templates."
            because "Two answers to one question: whichever wins, somebody is surprised."
            fix "Make label and field the same, or remove one of them.",
        Warn TemplateDeprecated = "The template should no longer be used."
            because "The template's owner asks everybody to use another one; nothing is broken yet."
            fix "Follow the owner's text in the message.",
        Warn RestoredTemplate = "A restored Machine keeps a template content that the catalog no longer has."
            because "A backup holds the template as it was, and a restored machine shall be the machine that was saved."
            fix "Nothing, or set the refresh annotation to take what the template says today.",
        Refuse TemplateNameReserved = "A MachineTemplate has the name of a built-in template."
            because "Machines that name it would silently get something else than the built-in template."
            fix "Choose another name.",
        Refuse StorageClassNotFound = "The storage class does not exist; on libvirt, no LibvirtHost offers it."
            because "The claim would stay Pending for ever, and with it the machine. On libvirt the classes are those of `storage` of the LibvirtHosts; a StorageClass of Kubernetes is neither needed nor looked for."
            fix "Take one of the classes that the message lists.",
        Warn TemplateStorageClassNotFound = "A MachineTemplate names a storage class that does not exist."
            because "Every Machine that takes the class over from the template would be refused."
            fix "Name a class that exists, or create it before the template is used.",
        Refuse NoDefaultStorageClass = "No storage class is named and there is no default one."
            because "The claim would wait for a default class that nobody has marked. On libvirt the default is the class `default` that a host offers, else the only class there is, else the cluster's default class if a host offers it."
            fix "Name a class at the disk, or mark one as default.",
        Refuse EmptyStorageClass = "The storage class is empty, and nothing says which volume to bind."
            because "An empty class asks Kubernetes to provision nothing; without a volume to bind the claim waits for ever."
            fix "Leave the field out, name a class, or choose a volume with `volumeName` or `selector`.",
        Setting NetworkConfigurationNotFound = "The NetworkConfiguration does not exist in the Machine's namespace."
            because "The machine waits until the network exists. Sets of objects are often checked before the network of the same set is there, so this is a warning unless an administrator decides otherwise."
            fix "Correct the name, or apply the NetworkConfiguration.",
        Warn SourceClaimNotFound = "The claim that a disk is to be a copy of does not exist in the Machine's namespace."
            because "The copy waits until the claim is there, and the Machine with it."
            fix "Correct the name, or make the claim.",
    }
    "sizing" {
        Refuse MemoryRequired = "Neither the Machine nor its template gives a memory size."
            because "No backend starts a machine without memory, and any default would be a guess."
            fix "Give `resources.memory.size`, or a template that has one.",
        Refuse InvalidQuantity = "A size is not a Kubernetes quantity."
            because "The backends would refuse it, each with words of its own."
            fix "Write a number and a unit, such as `2Gi`.",
        Refuse UnitMissing = "A size is a bare number of bytes, too small to be meant."
            because "`4` is four bytes. Nobody means that, and the machine would not start."
            fix "Add the unit: `4Gi`.",
        Refuse MemoryTooSmall = "Memory is below what any guest boots with."
            because "No guest boots with so little; QEMU itself needs more."
            fix "Give at least the size that the message names.",
        Refuse MemoryTooLarge = "Memory is above what the backends can give."
            because "No host has so much; the machine would stay unschedulable."
            fix "Give at most the size that the message names.",
        Refuse MaxMemoryTooSmall = "The memory to grow to is below the memory to start with."
            because "KubeVirt refuses a guest that starts with more than its maximum."
            fix "Raise `maxSize`, or leave it out.",
        Refuse MemoryNotAligned = "Memory that grows while the guest runs is not in whole steps of 2Mi."
            because "Memory is plugged in whole blocks; KubeVirt refuses other sizes when a maximum is given."
            fix "Take the next multiple, which the message names.",
        Refuse InvalidCpuCount = "A CPU count is not from 1 to 255."
            because "A topology has at least one of everything, and no backend has more than 255 vCPUs."
            fix "Give a count from 1 to 255.",
        Refuse TooManyVcpus = "Cores times threads times sockets are more vCPUs than allowed."
            because "The product counts, not its factors: the machine would be refused by QEMU or be unschedulable."
            fix "Lower cores, threads or sockets.",
        Refuse MaxSocketsTooSmall = "The sockets to grow to are below the sockets to start with."
            because "A machine cannot start with more sockets than it can ever have."
            fix "Raise `maxSockets`, or leave it out.",
    }
    "disks" {
        Refuse DiskNameRequired = "A disk has no name."
            because "The name ties a disk to its volume and to the template's disk."
            fix "Give a name such as `data`.",
        Refuse InvalidDiskName = "The name of a disk is not a DNS label."
            because "The name becomes part of the claim's name and of the guest's device id."
            fix "Take the corrected name from the message.",
        Refuse ReservedDiskName = "The name of a disk is that of a volume a guest has beside its disks."
            because "One of them carries cloud-init's data, the others are those of the pod in which KubeVirt runs the guest; no pod has two volumes of one name."
            fix "Choose another name.",
        Refuse DuplicateDiskName = "Two disks or CD-ROMs have the same name."
            because "Both would have the same claim."
            fix "Rename one of them.",
        Refuse DiskSizeRequired = "Neither the Machine nor its template gives the size of a disk."
            because "A claim without a size is refused by Kubernetes."
            fix "Give a size such as `20Gi`.",
        Refuse DiskTooSmall = "A disk is smaller than any storage provides."
            because "Storage provides at least one MiB, and images need more."
            fix "Give a larger size.",
        Refuse DiskTooLarge = "A disk is larger than the backends can attach."
            because "Image formats and file systems end there."
            fix "Give a smaller size, or several disks.",
        Refuse UnsupportedAccessMode = "The access mode of a disk is none that exists."
            because "Kubernetes would refuse the claim."
            fix "Take one of the values that the message lists.",
        Refuse UnsupportedVolumeMode = "The volume mode of a disk is none that exists."
            because "Kubernetes would refuse the claim."
            fix "Take one of the values that the message lists.",
        Refuse UnsupportedBus = "The bus of a disk is none that every backend has."
            because "The backends refuse it, or the guest does not find the disk."
            fix "Take one of the values that the message lists.",
        Refuse UnsupportedReclaimPolicy = "The reclaim policy of a disk is none that exists."
            because "What happens to data must not be a guess."
            fix "Take one of the values that the message lists.",
        Refuse ReadOnlyDisk = "A disk that must be written is read only."
            because "A new volume is empty, and one that cannot be written stays so."
            fix "Use `ReadWriteOnce` or `ReadWriteMany`, or bind an existing volume.",
        Warn SharedFilesystem = "A disk is shared between nodes through a file system."
            because "Live migration needs shared access, and through a file system it is slower and depends on its locking."
            fix "Use `volumeMode: Block` if the class offers it.",
        Refuse ImageSource = "An image has no source, or more than one."
            because "A disk is filled from one place."
            fix "Give exactly one of `url`, `persistentVolumeClaim` and `volume`.",
        Refuse UnsupportedImageUrl = "The address of an image is none that can be fetched."
            because "The importer knows three schemes only, and CDI refuses what is no URL or no reference to a container image."
            fix "Use an address that begins with `https://`, `http://` or `docker://`, in the form that the message names.",
        Refuse InvalidImageChecksum = "The checksum of an image is not a SHA-256 of a url, or nobody verifies it."
            because "A checksum that cannot be right would refuse every image. CDI verifies none of a container image, and the controller imports nothing whose checksum stays unread."
            fix "Write `sha256:` and 64 hexadecimal digits, beside a `url` with `https://` or `http://`. Of a container image, put the digest into the `url`.",
        Refuse ImageVolumeNeedsLibvirt = "An image names a volume of a libvirt host, and the backend is KubeVirt."
            because "Pools of volumes exist on libvirt hosts only."
            fix "Use `url` or `persistentVolumeClaim`, or `backend: libvirt`.",
        Refuse ImageOnBoundDisk = "A disk that binds an existing volume has an image to fill it with."
            because "An image would overwrite what the existing volume holds."
            fix "Remove the image, or the choice of the volume.",
        Refuse CopyOfItself = "A disk is to be a copy of the claim that it itself gets."
            because "The copy would wait for its own source for ever, and the Machine with it."
            fix "Name another claim, or rename the disk.",
        Refuse EmptySelector = "The selector of a disk has no labels, and so chooses no particular volume."
            because "An empty selector matches every volume of the cluster."
            fix "Give the labels of the volume.",
        Refuse VolumeChosenTwice = "A disk chooses its volume both by name and by labels."
            because "Name and labels may choose different volumes."
            fix "Remove one of the two.",
        Refuse DuplicateVolume = "Two disks of the Machine bind the same PersistentVolume."
            because "A PersistentVolume binds one claim; that of the other disk would stay Pending for ever, and with it the machine."
            fix "Name another volume at one of the disks, or leave `volumeName` out for a new one.",
        Refuse RemovedDiskNotFound = "A disk to remove is not in the template."
            because "A removal that removes nothing is a misspelled name, and the disk would stay."
            fix "Take the name from the list in the message.",
        Refuse RemovedDiskHasFields = "A disk to remove has other fields."
            because "A disk that is removed has no size or class; one of the two is a mistake."
            fix "Drop the fields, or `remove`.",
    }
    "networks" {
        Refuse NicNameRequired = "A network card has no name."
            because "The name ties a card to the template's card and to its MAC address."
            fix "Give a name such as `eth0`.",
        Refuse InvalidNicName = "The name of a network card has characters it cannot have."
            because "KubeVirt refuses other characters."
            fix "Use letters, digits, `-` and `_`.",
        Refuse DuplicateNicName = "Two network cards have the same name."
            because "KubeVirt refuses two interfaces of one name."
            fix "Rename one of them.",
        Refuse UnsupportedNicModel = "The model of a network card is none that every backend has."
            because "The backends refuse it when the machine starts."
            fix "Take one of the values that the message lists.",
        Refuse TooManyDefaultNics = "More than one network card names no network."
            because "A machine has one card on the pod network at most."
            fix "Name the NetworkConfiguration of the others.",
        Refuse InvalidMac = "A MAC address is not one of six bytes."
            because "The backends refuse it when the machine starts."
            fix "Write six bytes such as `52:54:00:12:34:56`, or leave the address out.",
        Refuse MacNotUnicast = "A MAC address is multicast, broadcast or zero."
            because "No card can have an address that stands for many receivers or for none."
            fix "Take the address that the message names, or leave it out.",
        Refuse ReservedMac = "A MAC address is the one the pod network uses itself."
            because "On the pod network the other end of the link has this address."
            fix "Choose another one, or leave it out.",
        Refuse DuplicateMac = "Two network cards of the Machine have the same MAC address."
            because "Two cards with one address disturb each other on every switch."
            fix "Change one of them, or leave it out.",
        Refuse MacInUse = "Another Machine has the MAC address on the same network."
            because "Two cards with one address on a network take each other's frames: both guests lose their connections now and then, and nothing tells why."
            fix "Choose another address, or leave `macAddress` out: the one that is derived then is the Machine's own.",
        Warn SameNetworkTwice = "Two network cards are on the same network."
            because "Two cards on one network are rarely meant, and guests route through one of them only."
            fix "Nothing, if it is meant; else name another network.",
    }
    "boot" {
        Refuse UnsupportedBootDevice = "The boot order names a class of devices that does not exist."
            because "There are three classes of devices to boot from."
            fix "Take one of the values that the message lists.",
        Refuse DuplicateBootDevice = "The boot order names a class of devices twice."
            because "A class has one place in the order."
            fix "Name each class once.",
        Refuse BootWithoutDisk = "The boot order names disks, and the Machine has none."
            because "The machine would not find what it shall boot from."
            fix "Add a disk, or take `disk` out of the order.",
        Refuse BootWithoutCdrom = "The boot order names CD-ROMs, and none holds an image."
            because "The machine would not find what it shall boot from."
            fix "Add an image, or take `cdrom` out of the order.",
        Warn BlankBootDisk = "The Machine boots from nothing but blank disks."
            because "A blank disk boots nothing; the machine stops at its firmware."
            fix "Add an image, or `network` to the order.",
        Refuse EmptyCdrom = "A CD-ROM drive is empty, and the backend is KubeVirt."
            because "KubeVirt has empty drives only behind a feature gate."
            fix "Give an image, or remove the drive.",
        Refuse CdromSizeRequired = "The image of a CD-ROM is imported into a volume of unknown size."
            because "The image is imported into a claim, and a claim has a size."
            fix "Give a size that holds the image.",
    }
    "firmware" {
        Refuse UnsupportedMachineType = "The machine type is none that exists."
            because "The backends refuse it when the machine starts."
            fix "Take one of the values that the message lists.",
        Refuse MachineTypeNeedsLibvirt = "The machine type is i440fx, and the backend is KubeVirt."
            because "KubeVirt offers q35 only; the machine would fail to start."
            fix "Use `pc-q35`, or `backend: libvirt`.",
        Refuse SecureBootNeedsEfi = "Secure Boot is on, and the firmware is BIOS."
            because "BIOS checks no signatures; KubeVirt refuses the pair."
            fix "Set `efi: true`, or drop `secureBoot`.",
        Refuse SecureBootNeedsQ35 = "Secure Boot is on, and the machine type is i440fx."
            because "Secure Boot rests on system management mode, which i440fx does not have."
            fix "Use `pc-q35`, or drop `secureBoot`.",
        Refuse EfiNeedsAcpi = "The firmware is UEFI, and ACPI is off."
            because "The UEFI firmware hands its tables over by ACPI and does not start without."
            fix "Drop `acpi: false`, or `efi`.",
        Refuse HypervNeedsAcpi = "Enlightenments for Windows are on, and ACPI is off."
            because "Windows does not run without ACPI, and libvirt refuses some of the enlightenments."
            fix "Drop `acpi: false`, or `hyperv`.",
    }
    "machine" {
        Refuse UnsupportedBackend = "The backend is none that exists."
            because "There are two."
            fix "Take one of the values that the message lists.",
        Refuse UnsupportedPowerState = "The power state is none that exists."
            because "There are two."
            fix "Take one of the values that the message lists.",
    }
    "cloud-init" {
        Refuse UnknownUserData = "The first line of the user data is none that cloud-init acts on."
            because "cloud-init ignores such a text, and the machine comes up as if there were none."
            fix "Add `#cloud-config` as the first line, or `#!/bin/sh` for a script. What is meant for another program than cloud-init goes into a Secret, which is handed on unread.",
        Refuse InvalidYaml = "User data or network data is not YAML as cloud-init reads it."
            because "cloud-init drops the whole document, and says so in a log inside the guest that nobody can reach."
            fix "Correct the line and column that the message names; they count within the text.",
        Warn DuplicateYamlKey = "A key stands twice in a mapping of user data or network data; the last one counts."
            because "What the first one says is lost without a word."
            fix "Put both into one, or remove one of them.",
        Refuse InvalidCloudConfig = "A value of the user data is not what cloud-init takes there."
            because "The module of cloud-init fails or ignores the value, and users, keys or packages are missing in the guest."
            fix "Write the value in the form that the message names.",
        Refuse InvalidNetworkData = "The network data, or a value of it, is not what cloud-init takes there."
            because "cloud-init gives up on the whole document, and the machine comes up without its network."
            fix "Write the value in the form that the message names; `version` is the number 1 or 2.",
        Warn UnknownCloudInitKey = "A key of user data or network data is none that cloud-init knows."
            because "cloud-init ignores what it does not know; a misspelled key does nothing."
            fix "Correct the key; ignore the warning if the image has a module of its own.",
        Warn DoubtfulCloudInit = "A value of user data or network data is not quite what it should be, and cloud-init copes with it."
            because "A number is not the text it looks like (`0644` is 420), and later releases may be stricter."
            fix "Write the value in the form that the message names.",
        Warn LargeCloudInit = "User data or network data on libvirt is longer than 16 KiB."
            because "It arrives, since a libvirt host hands it over on an ISO image. Other sources end earlier, EC2's at 16 KB, so the same document works on few clouds."
            fix "Nothing, or keep large files where `#include` or `runcmd` can fetch them.",
        Refuse SecretNameRequired = "A reference to a Secret names none."
            because "There is nothing to read from."
            fix "Name the Secret.",
        Warn SecretIgnored = "Both inline cloud-init data and a Secret are given; the inline data wins."
            because "Both give the same document, and only one can be used."
            fix "Remove one of the two.",
    }
    "names" {
        Refuse InvalidName = "The name of the object is not a DNS label of at most 63 characters."
            because "The name becomes the guest's host name, a label's value and part of other names."
            fix "Take the corrected name from the message.",
        Refuse NameInUse = "The claim that a disk would have is another Machine's, or a stranger's; or the Secret that is referred to has the name of the Machine's own."
            because "A claim is called as Machine and disk together: disk `b-c` of `a` and disk `c` of `a-b` would be one volume. Data for cloud-init that KubeVirt cannot take from where it is, the controller keeps in a Secret called as the Machine with `-cloudinit`. It never takes over what was made for somebody else, so the machine would not start."
            fix "Choose another name for the disk, for the Secret or for the Machine, or delete the claim if nobody needs what is on it.",
    }
    "networkconfigurations" {
        Refuse BridgeRequired = "A NetworkConfiguration names neither a bridge nor an existing definition."
            because "Nothing says where the machines are to be attached."
            fix "Name a bridge, or an existing NetworkAttachmentDefinition.",
        Refuse InvalidBridge = "The name of a bridge cannot be the name of a Linux interface."
            because "No Linux interface can have this name."
            fix "Write the name as `ip link` shows it.",
        Refuse InvalidVlan = "A VLAN tag is not from 1 to 4094."
            because "IEEE 802.1Q has the tags from 1 to 4094."
            fix "Take one of them, or leave it out for untagged.",
        Refuse InvalidMtu = "An MTU is not from 68 to 65535."
            because "IP needs at least 68 bytes, and the field ends at 65535."
            fix "Take a value within, or leave it out for the bridge's own.",
        Refuse SegmentChanged = "The VLAN or the bridge of an existing NetworkConfiguration changes."
            because "Running machines would be moved to another segment, or stay behind on the old one."
            fix "Create another NetworkConfiguration and change the Machines.",
    }
    "libvirt" {
        Refuse NoLibvirtHost = "The backend is libvirt, and there is no LibvirtHost."
            because "Nothing could run the machine; it would stay Pending."
            fix "Register a LibvirtHost, or use `backend: kubevirt`.",
        Refuse NoHostSelected = "The node selector of a Machine on libvirt selects no LibvirtHost."
            because "Labels of hosts are what a node selector chooses by; none has these, so the machine would stay Pending."
            fix "Take labels that the message lists, or label a LibvirtHost.",
        Refuse NetworkNotOffered = "No LibvirtHost offers a network that the Machine is to be on."
            because "Hosts offer networks by the name of a bridge and its VLANs. A card without its bridge is found when the machine starts, and a VLAN on a plain bridge is not found at all."
            fix "Add the network or its VLAN to `networks` of a LibvirtHost, or take another NetworkConfiguration.",
        Refuse NoImagePool = "An image is named, and no LibvirtHost has a pool for images."
            because "Images are downloaded once for each host, into a pool of their own."
            fix "Set `imagePool` of a LibvirtHost, or drop the image.",
        Refuse NoHostFits = "Each thing that the Machine needs is on some LibvirtHost, and all of it on none."
            because "A machine runs on one host, with that host's pools and bridges; it would stay Pending."
            fix "Take what one host has, as the message lists, or extend a LibvirtHost. A machine that is bound to a host stays there.",
        Warn HypervEmulated = "Enlightenments for Windows are on, and every LibvirtHost that fits emulates."
            because "Most enlightenments are KVM's; without it only relaxed, vapic and spinlocks are left, and Windows runs slowly."
            fix "Nothing, or select a host with `virtType: kvm`.",
        Refuse VolumeNeedsKubevirt = "A disk on libvirt chooses a PersistentVolume."
            because "A PersistentVolume is mounted by a node of the cluster; a libvirt host has pools of its own."
            fix "Remove `selector` and `volumeName`, or use `backend: kubevirt`.",
        Refuse ImageNeedsKubevirt = "An image on libvirt is a PersistentVolumeClaim or a container image."
            because "A host downloads images by http or takes them from its image pool; it reads neither claims nor registries."
            fix "Use `url` with `https://` or `http://`, or `volume`; or `backend: kubevirt`.",
        Warn VolumeFieldIgnored = "A disk on libvirt has an access mode or a volume mode that means nothing there."
            because "A volume is on one host, and its pool decides whether it is a file or a block device. A template that is written for KubeVirt may serve for both."
            fix "Nothing, or leave the field out.",
    }
    "libvirthosts" {
        Refuse HostFieldRequired = "A field is missing that a LibvirtHost, or an item of its lists, cannot do without."
            because "The controller would have to guess what is offered, and where."
            fix "Give what the message names.",
        Refuse UnsupportedHostValue = "A value of a LibvirtHost is none of those there are."
            because "The controller would not know how to run guests or make volumes there."
            fix "Take one of the values that the message lists.",
        Refuse DuplicateOffer = "A LibvirtHost offers a storage class, a network or a VLAN twice."
            because "A name stands for one pool or one network; of two, neither is what a Machine asks for."
            fix "Rename or remove one of them.",
        Refuse InvalidHostUri = "The URI of a LibvirtHost is none that reaches a host and does nothing else."
            because "Parameters of libvirt's URIs name programs that are run where the controller is; other transports are not encrypted, or open any socket."
            fix "Write one of `qemu:///system`, `qemu+tls://host/system`, `qemu+ssh://user@host/system`.",
        Refuse CredentialsRequired = "A LibvirtHost is reached by tls or ssh, and no Secret with credentials is named."
            because "The controller could not prove who it is, nor know that it speaks with the right host."
            fix "Name a Secret in `credentialsSecretRef`.",
        Warn CredentialsUnused = "A LibvirtHost is reached without a network, and a Secret with credentials is named."
            because "Nobody asks for credentials on a local socket; the URI may be another one than was meant."
            fix "Remove `credentialsSecretRef`, or correct the URI.",
        Warn HostMoved = "The URI of an existing LibvirtHost names another host."
            because "Machines that are bound to the LibvirtHost have their disks on the old one; on another host they would not be found."
            fix "Nothing, if it is the same host by another name; else register the other host under a name of its own.",
        Refuse InvalidFactor = "A factor of overcommit is not a positive decimal number."
            because "Of nothing, or of what is no number, no machine could have anything."
            fix "Write a number such as `\"1.5\"`, or leave it out for 1.",
        Refuse OverlayNeedsQcow2 = "Volumes of a class are raw, and are to stand on an image."
            because "A raw file has no room for the name of what it stands on."
            fix "Set `provisioning: copy`, or `format: qcow2`.",
        Refuse ManyVlansOnBridge = "A plain bridge is to carry more than one VLAN."
            because "libvirt puts no tags on frames of a plain bridge: all machines would be in one VLAN, whatever they ask for."
            fix "Use one bridge for each VLAN, or `type: ovs`.",
    }
    "update" {
        Refuse BackendChanged = "The backend of an existing Machine changes."
            because "Disks do not move between backends."
            fix "Create another Machine on the other backend.",
        Refuse DiskShrunk = "A disk of an existing Machine becomes smaller."
            because "Neither claims nor file systems give space back."
            fix "Keep the size; after a switch of templates, override it at the disk.",
        Refuse DiskCannotGrow = "A disk grows, and its storage class does not allow it."
            because "The API server would refuse the larger claim, for ever."
            fix "Keep the size and add another disk, or have an administrator allow expansion in the class.",
        Refuse DiskChanged = "A field of an existing disk changes that its volume was made from."
            because "The claim was made from this field and cannot be made again without losing its content."
            fix "Set the field back, or take another disk.",
        Refuse StopFirst = "The firmware or the machine type changes while the machine runs."
            because "A guest that was installed for one firmware may not start with another; such a change is made with the machine off."
            fix "Set `powerState: Stopped`, before or in the same update.",
        Warn RestartRequired = "A running machine has the change after its next restart."
            because "The change is accepted; until the restart it stands in `status.pendingChanges`."
            fix "Restart the machine when it suits.",
        Warn NewInstanceRequired = "Cloud-init reads the change on a new instance only."
            because "cloud-init acts on most of its data once per instance, and the Machine stays the same instance."
            fix "Create the Machine anew, or run `cloud-init clean` in the guest and restart it.",
    }
    "block" {
        Refuse NormalizedEdited = "spec.normalized was edited by hand."
            because "The block is what the spec resolved to; edited by hand it would contradict the spec."
            fix "Delete `spec.normalized` from the file and edit the field that the message names.",
        Refuse NormalizedMismatch = "spec.normalized is not what the rest of the spec resolves to."
            because "Only what the mutating webhook computed may be stored; something changed or bypassed it."
            fix "Send the object without `spec.normalized`; if that does not help, look at other webhooks and at the installation.",
    }
}

impl Code {
    /// What the CRDs alone refuse of it.
    pub fn second_line(self) -> SecondLine {
        match self {
            Self::WrongType
            | Self::SpecRequired
            | Self::TemplateNameReserved
            | Self::InvalidQuantity
            | Self::UnitMissing
            | Self::MemoryTooSmall
            | Self::MemoryTooLarge
            | Self::InvalidCpuCount
            | Self::DiskNameRequired
            | Self::InvalidDiskName
            | Self::ReservedDiskName
            | Self::DuplicateDiskName
            | Self::DiskTooSmall
            | Self::DiskTooLarge
            | Self::UnsupportedAccessMode
            | Self::UnsupportedVolumeMode
            | Self::UnsupportedBus
            | Self::UnsupportedReclaimPolicy
            | Self::EmptySelector
            | Self::RemovedDiskHasFields
            | Self::NicNameRequired
            | Self::InvalidNicName
            | Self::DuplicateNicName
            | Self::UnsupportedNicModel
            | Self::InvalidMac
            | Self::MacNotUnicast
            | Self::UnsupportedBootDevice
            | Self::DuplicateBootDevice
            | Self::UnsupportedMachineType
            | Self::SecureBootNeedsQ35
            | Self::HypervNeedsAcpi
            | Self::UnsupportedBackend
            | Self::UnsupportedPowerState
            | Self::SecretNameRequired
            | Self::BridgeRequired
            | Self::InvalidBridge
            | Self::InvalidVlan
            | Self::InvalidMtu
            | Self::HostFieldRequired
            | Self::UnsupportedHostValue
            | Self::DuplicateOffer
            | Self::InvalidHostUri
            | Self::OverlayNeedsQcow2
            | Self::ManyVlansOnBridge
            | Self::SegmentChanged
            | Self::CredentialsRequired
            | Self::BackendChanged => SecondLine::All,
            Self::TooMany
            | Self::TooLong
            | Self::InvalidObjectName
            | Self::InvalidLabel
            | Self::TemplateNotFound
            | Self::EmptyStorageClass
            | Self::MaxMemoryTooSmall
            | Self::MemoryNotAligned
            | Self::TooManyVcpus
            | Self::MaxSocketsTooSmall
            | Self::ImageSource
            | Self::UnsupportedImageUrl
            | Self::InvalidImageChecksum
            | Self::ImageVolumeNeedsLibvirt
            | Self::ImageOnBoundDisk
            | Self::VolumeChosenTwice
            | Self::DuplicateMac
            | Self::BootWithoutCdrom
            | Self::EmptyCdrom
            | Self::CdromSizeRequired
            | Self::MachineTypeNeedsLibvirt
            | Self::SecureBootNeedsEfi
            | Self::EfiNeedsAcpi
            | Self::VolumeNeedsKubevirt
            | Self::ImageNeedsKubevirt
            | Self::InvalidFactor
            | Self::InvalidName
            | Self::NormalizedEdited => SecondLine::Some,
            _ => SecondLine::Nothing,
        }
    }

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
