//! Every limit of the API, with the reason for its number.
//!
//! The schemas of the CRDs and the rules of the webhook read these constants, so neither refuses a
//! value that the other accepts. Amounts of memory and storage are in bytes.

const MIB: u128 = 1 << 20;
const GIB: u128 = 1 << 30;
const TIB: u128 = 1 << 40;

/// Longest DNS label in bytes (RFC 1123). Bounds every name that becomes part of a host name, a
/// label's value or the name of another object.
pub const NAME_MAX: usize = 63;
/// Longest name of a Kubernetes object in bytes (DNS subdomain, RFC 1123).
pub const OBJECT_NAME_MAX: usize = 253;
/// Longest key of a label in bytes: prefix, slash and name.
pub const LABEL_KEY_MAX: usize = OBJECT_NAME_MAX + 1 + NAME_MAX;
/// Longest quantity in characters. `u128` holds 39 digits; an amount of a real host needs far fewer.
pub const QUANTITY_MAX: usize = 32;
/// Longest user data or network data in characters. etcd stores objects up to 1.5 MiB, and a Machine
/// can hold both.
pub const USER_DATA_MAX: usize = 256 * 1024;
/// Longest user data or network data of a template in bytes. The block of each Machine of the template holds it.
pub const TEMPLATE_DATA_MAX: usize = 16 * 1024;
/// Most fields of a cloud-init document that is an object: cloud-init has some 70 modules.
pub const OBJECT_FIELDS_MAX: usize = 256;
/// Most values in such a document, so that its validation takes milliseconds.
pub const OBJECT_VALUES_MAX: usize = 10_000;
/// Most levels of such a document. The API server itself has a limit of its own far beyond.
pub const OBJECT_DEPTH_MAX: usize = 32;
/// Longest key in such a document in characters. PyYAML reads a key of at most 1024 characters, with quotes, and an
/// escape takes 6.
pub const OBJECT_KEY_MAX: usize = 160;
/// Longest description, URL or value of metadata in characters: a screen of text, and 64 of them fit
/// into an object.
pub const TEXT_MAX: usize = 1024;
/// Longest serial number of a disk in bytes: that of virtio-blk (`VIRTIO_BLK_ID_BYTES`), the shortest of all buses.
pub const SERIAL_MAX: usize = 20;
/// Longest name of a time zone in characters; the longest of the IANA database has 32.
pub const TIME_ZONE_MAX: usize = 64;
/// Longest time that a guest has to shut down, in seconds: a day. Installing updates takes Windows up to an hour.
pub const GRACE_PERIOD_MAX: u32 = 24 * 60 * 60;
/// Longest interface name of Linux in bytes: `IFNAMSIZ` without the terminating zero.
pub const INTERFACE_NAME_MAX: usize = 15;
/// Longest URI of a libvirt host in characters: a DNS name of 253, and scheme, user, port and path.
pub const HOST_URI_MAX: usize = 512;

/// Most disks of a machine. Chosen, because no guest is known that needs more: on q35 each has a bus of its own behind a
/// root port, and PCI numbers 256 buses, so the machine type would take some 200 beside the cards.
pub const DISKS_MAX: usize = 64;
/// Most CD-ROM drives of a machine. More than installations need; each takes a SATA port.
pub const CDROMS_MAX: usize = 16;
/// Most network cards of a machine: one PCI slot each, beside the disks.
pub const NETWORKS_MAX: usize = 32;
/// Most imports of one image: one for each storage class and volume mode, and a cluster has a few dozen classes.
pub const IMAGE_IMPORTS_MAX: usize = 64;
/// Most tolerations of a Machine: those of a pod are not bounded, and few nodes have more than a handful of taints.
pub const TOLERATIONS_MAX: usize = 32;
/// Most devices of a node or host that a machine has. More than any host has slots for.
pub const DEVICES_MAX: usize = 16;
/// Longest name of a CPU model in characters. KubeVirt makes the name of a label of nodes from it.
pub const CPU_MODEL_MAX: usize = NAME_MAX;
/// Most terms of an affinity, requirements of a term, values of a requirement, and constraints on the spread over nodes:
/// those of a pod are not bounded, so the number only keeps the cost of a review bounded.
pub const AFFINITY_ITEMS_MAX: usize = LABELS_MAX;
/// Largest skew and number of domains of a spread over nodes: Kubernetes has an `int32` for each.
pub const SPREAD_COUNT_MAX: u32 = 2_147_483_647;
/// Most values that overrides set. Each is compared with the fields that policies allow, and the number only keeps the
/// cost of a review bounded.
pub const OVERRIDES_MAX: usize = 64;
/// Longest path of a field that a MachinePolicy allows to override, in characters. KubeVirt's longest has some 110.
pub const OVERRIDE_PATH_MAX: usize = 256;
/// Most arguments of a command by which a guest is probed, with the program: 64 of [`TEXT_MAX`] characters are 64 KiB, so
/// that an object with both probes fits into etcd.
pub const PROBE_ARGUMENTS_MAX: usize = 64;
/// Largest number of seconds and attempts of a probe: Kubernetes has an `int32` for each.
pub const PROBE_COUNT_MAX: u32 = 2_147_483_647;
/// Longest time in seconds that a libvirt host waits for an agent that it asks whether it answers. One connection asks
/// all agents of a host, one after the other.
pub const AGENT_TIMEOUT_MAX: u32 = 5;
/// Largest port of TCP.
pub const PORT_MAX: u32 = 65_535;
/// Most labels of a selector and most entries of cloud-init's metadata: 64 entries of [`TEXT_MAX`] characters are 64 KiB,
/// so that an object with them fits into etcd.
pub const LABELS_MAX: usize = 64;
/// Most storage classes that a libvirt host offers: one pool each.
pub const HOST_CLASSES_MAX: usize = 64;
/// Most prefixes of URLs that a libvirt host fetches images from: one server each.
pub const HOST_SOURCES_MAX: usize = 64;
/// Most networks that a libvirt host offers: one bridge each.
pub const HOST_NETWORKS_MAX: usize = 256;
/// Most kinds of devices that a libvirt host offers: one machine can have one of each.
pub const HOST_DEVICES_MAX: usize = DEVICES_MAX;
/// Most devices of one kind that a libvirt host offers: the virtual functions of a network card, for instance.
pub const HOST_DEVICE_ADDRESSES_MAX: usize = 64;
/// Length of the address of a PCI device in characters.
pub const PCI_ADDRESS_MAX: usize = "0000:00:00.0".len();
/// Largest number of a CPU of a libvirt host: libvirt's lists have no larger ones.
pub const HOST_CPU_MAX: u32 = 4095;
/// Longest list of CPUs in characters: every second one of a large host.
pub const CPU_LIST_MAX: usize = 1024;
/// Most operations of a disk per second: more than the fastest drives do.
pub const DISK_IOPS_MAX: u32 = 1_000_000;
/// Highest rate of a disk in megabytes per second: more than the fastest drives have.
pub const DISK_MEGABYTES_MAX: u32 = 100_000;
/// Highest rate of a network card in megabits per second: a terabit.
pub const NETWORK_MEGABITS_MAX: u32 = 1_000_000;
/// Most VLANs of one network of a libvirt host. With all networks full, the object still fits into
/// etcd.
pub const HOST_VLANS_MAX: usize = 512;
/// Most items of a list of a policy. With all lists full, the object still fits into etcd.
pub const POLICY_ITEMS_MAX: usize = 256;
/// Longest VLAN range in characters: two tags of four digits and a dash.
pub const VLAN_RANGE_MAX: usize = 9;
/// Most machine types that a libvirt host reports; QEMU 10 has 120 on x86.
pub const MACHINE_TYPES_MAX: usize = 512;
/// Most CPU models in the status of a `LibvirtHost`. QEMU 9 has about 90 for x86-64.
pub const CPU_MODELS_MAX: usize = 512;
/// Most deleted Machines whose domain a libvirt host could not remove yet: more Machines than one host runs.
pub const TOMBSTONES_MAX: usize = 1024;
/// Most of them of one namespace: a quarter, so that no namespace takes the place of all others.
pub const TOMBSTONES_OF_NAMESPACE_MAX: usize = 256;
/// Most volumes that they list: with some 300 bytes each they are below half of what etcd stores of one object.
pub const TOMBSTONE_VOLUMES_MAX: usize = 2048;
/// Most of these volumes of one namespace: a quarter.
pub const TOMBSTONE_VOLUMES_OF_NAMESPACE_MAX: usize = 512;
/// Most volumes of deleted Machines that the status of a libvirt host lists: 1024 entries are below half of what etcd
/// stores of one object.
pub const KEPT_VOLUMES_MAX: usize = 1024;
/// Most kept volumes of one namespace in that list: a quarter of it, so that no namespace takes the place of all others.
pub const KEPT_VOLUMES_OF_NAMESPACE_MAX: usize = 256;

/// Most subnets of a NetworkConfiguration: both families, and some that were added when others were full.
pub const SUBNETS_MAX: usize = 16;
/// Most ranges of a subnet that addresses are allocated from. Each is compared with all others of the subnet, and the
/// number only keeps the cost of a review bounded.
pub const RANGES_MAX: usize = 32;
/// Longest IP network or address in characters: an IPv6 address of eight groups with an IPv4 part, and a prefix.
pub const ADDRESS_MAX: usize = 49;
/// Longest range of addresses in characters: two addresses, with a dash and blanks between.
pub const RANGE_MAX: usize = 2 * ADDRESS_MAX + 3;
/// Shortest prefix of a subnet in bits: the largest networks for private use have 8 (RFC 1918, RFC 4193).
pub const SUBNET_PREFIX_MIN: u8 = 8;
/// Most name servers of a network. glibc asks three of them; others ask more.
pub const DNS_MAX: usize = 8;
/// Most search domains of a network: glibc before 2.26 reads six.
pub const SEARCH_DOMAINS_MAX: usize = 8;
/// Most IP addresses that are given to one network card. Each is an object that the controller creates, and the number
/// keeps those of a Machine with [`NETWORKS_MAX`] cards to 256.
pub const CARD_ADDRESSES_MAX: usize = 8;

/// Most IP addresses of a guest that are read and shown, of all its cards together. A guest can report any
/// number.
pub const GUEST_ADDRESSES_MAX: usize = 64;
/// Longest reported IP address in bytes: IPv6 needs 45, beside a zone or the length of a prefix.
pub const GUEST_ADDRESS_MAX: usize = 64;
/// Most volumes of removed disks that the status of a Machine lists: four times the disks that it can have.
pub const KEPT_DISKS_MAX: usize = 256;
/// Longest reported name of a guest's system in bytes; `uname` has 64 for each of its parts.
pub const GUEST_TEXT_MAX: usize = 256;
/// Most pending changes that are shown: one for each device and each of its fields that can wait in practice.
pub const PENDING_CHANGES_MAX: usize = 512;

/// Most vCPUs of a machine: what QEMU's q35 offers without an emulated IOMMU.
pub const VCPUS_MAX: u32 = 255;
/// Least memory: the smallest guests boot with it.
pub const MEMORY_MIN: u128 = 32 * MIB;
/// Most memory. Chosen, because it is 48 GiB for each of [`VCPUS_MAX`] vCPUs. QEMU takes more, and the largest hosts have
/// more.
pub const MEMORY_MAX: u128 = 12 * TIB;
/// Unit in which memory is added to a running guest. KubeVirt requires size and maximum to be
/// whole blocks.
pub const MEMORY_BLOCK: u128 = 2 * MIB;
/// Smallest volume: storage provides no less.
pub const CAPACITY_MIN: u128 = MIB;
/// Largest volume. Chosen, because the largest block volumes of cloud providers have that size (io2 Block Express of EBS,
/// Hyperdisk, Ultra Disk of Azure). Storage may hold less: a file on ext4 ends at 16 TiB with blocks of 4 KiB, of which it
/// numbers 2^32. A qcow2 image with clusters of 64 KiB holds more.
pub const CAPACITY_MAX: u128 = 64 * TIB;
/// Largest file of an image in a CD-ROM drive that a libvirt host gets. The largest installers are below 20 GiB, and a
/// medium has no disk whose size would limit it.
pub const MEDIUM_MAX: u128 = 64 * GIB;
/// First VLAN tag of IEEE 802.1Q.
pub const VLAN_MIN: i64 = 1;
/// Last VLAN tag of IEEE 802.1Q.
pub const VLAN_MAX: i64 = 4094;
/// Smallest MTU in bytes: every IPv4 network forwards packets of 68 bytes (RFC 791).
pub const MTU_MIN: i64 = 68;
/// Largest MTU in bytes: the length field of an IPv4 packet has 16 bits.
pub const MTU_MAX: i64 = 65_535;
/// Longest digest of an intent or checksum of an image: `sha256:` and 64 hexadecimal digits.
pub const DIGEST_MAX: usize = "sha256:".len() + 64;
/// Most entries of a boot order: one for each class of devices.
pub const BOOT_ORDER_MAX: usize = 3;
/// Most conditions of a status. The controller writes up to 14 types to a Machine, more than to any other kind; the rest
/// is for other writers.
pub const CONDITIONS_MAX: usize = 32;
/// Longest type of a condition, as in Kubernetes' `metav1.Condition`.
pub const CONDITION_TYPE_MAX: usize = 316;
/// Longest reason of a condition, as in Kubernetes' `metav1.Condition`.
pub const CONDITION_REASON_MAX: usize = 1024;
/// Longest message of a condition, as in Kubernetes' `metav1.Condition`.
pub const CONDITION_MESSAGE_MAX: usize = 32_768;
/// Longest user data or network data in bytes that is written into a KubeVirt VirtualMachine itself:
/// KubeVirt refuses longer ones.
pub const CLOUD_INIT_INLINE_MAX: usize = 2048;
