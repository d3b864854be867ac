//! The fields of KubeVirt's, CDI's, Multus' and Kubernetes' objects that the controller writes.
//!
//! All are in one file, so that it can be compared with the references of these APIs field by field. Every field may be
//! absent, so that objects of a newer KubeVirt still decode. Fields that are not
//! listed here are owned by other writers and are neither read nor written.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::volume::is_of_medium;
use crate::api::machine::{Affinity, Probe, TopologySpreadConstraint};
use crate::api::normalized::NormalizedCpu;
use crate::names;

macro_rules! objects {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$fdoc:meta])* $field:ident: $type:ty, )* } )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name {
            $(
                $(#[$fdoc])*
                #[serde(skip_serializing_if = "is_default")]
                pub $field: $type,
            )*
        }
    )+};
}

/// Empty values are not written: an absent field and an empty one mean the same in all these objects.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads only the annotations of this operator and those that a Machine can give its guest, so that those that KubeVirt
/// adds are no difference.
fn rendered_annotations<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let mut map = BTreeMap::<String, String>::deserialize(deserializer)?;
    map.retain(|key, _| names::is_ours(key) || names::may_carry_annotation(key));
    Ok(map)
}

/// Reads a probe of the form that this operator writes. Others may write ports by name, and must not keep the rest of the
/// object from being read.
fn known_probe<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<Probe>>, D::Error> {
    let probe = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(probe).ok())
}

/// An object without fields: its presence is the setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Present {}

objects! {
    /// The metadata that the controller writes.
    Metadata {
        /// Name of the object.
        name: String,
        /// Namespace of the object.
        namespace: String,
        /// Precondition of a write: the API server refuses it if the object has another uid.
        uid: Option<String>,
        /// Labels of this operator.
        labels: BTreeMap<String, String>,
        /// Annotations of this operator.
        annotations: BTreeMap<String, String>,
        /// The owner, whose deletion makes the garbage collector delete this object.
        owner_references: Vec<OwnerReference>,
    }
    /// An owner reference.
    OwnerReference {
        /// Group and version of the owner, such as `kubevirt.io/v1`.
        api_version: String,
        /// Kind of the owner.
        kind: String,
        /// Name of the owner.
        name: String,
        /// Uid of the owner.
        uid: String,
        /// Whether this owner manages the object; at most one owner does.
        controller: bool,
    }
    /// A `kubevirt.io/v1` `VirtualMachine`.
    VirtualMachine {
        /// API group and version of the object.
        api_version: String,
        /// Kind of the object.
        kind: String,
        /// Name, labels, annotations and owner.
        metadata: Metadata,
        /// Desired state.
        spec: VirtualMachineSpec,
    }
    /// Desired state of a `VirtualMachine`.
    VirtualMachineSpec {
        /// When KubeVirt starts the guest: `Always`, `RerunOnFailure` or `Halted`.
        run_strategy: String,
        /// The instance that KubeVirt creates when the guest starts.
        template: Template,
    }
    /// Template of the `VirtualMachineInstance` that KubeVirt creates for a `VirtualMachine`.
    Template {
        /// Metadata of the instance.
        metadata: TemplateMetadata,
        /// Desired state of the instance.
        spec: InstanceSpec,
    }
    /// Metadata of an instance.
    TemplateMetadata {
        /// Labels of the instance and of its pod.
        labels: BTreeMap<String, String>,
        /// Annotations of the instance and of its pod. KubeVirt adds others, which are not read.
        #[serde(deserialize_with = "rendered_annotations")]
        annotations: BTreeMap<String, String>,
    }
    /// Desired state of a `VirtualMachineInstance`.
    InstanceSpec {
        /// Nodes and pods that the pod of the guest is placed by.
        affinity: Option<Affinity>,
        /// CPU architecture: always `amd64`.
        architecture: String,
        /// Virtual hardware.
        domain: Domain,
        /// What KubeVirt does with the guest when its node is drained.
        eviction_strategy: String,
        /// By what KubeVirt notices whether the guest still works; absent: by nothing.
        #[serde(deserialize_with = "known_probe")]
        liveness_probe: Option<Box<Probe>>,
        /// Networks, one per interface of the domain.
        networks: Vec<Network>,
        /// Labels of the nodes that the guest may run on.
        node_selector: BTreeMap<String, String>,
        /// Name of the PriorityClass of the guest's pod; empty: the cluster's default.
        priority_class_name: String,
        /// By what KubeVirt notices whether the guest serves; absent: by nothing.
        #[serde(deserialize_with = "known_probe")]
        readiness_probe: Option<Box<Probe>>,
        /// Seconds from the request to shut down until the power is cut; absent: KubeVirt's default.
        termination_grace_period_seconds: Option<u32>,
        /// Taints of nodes that the pod of the guest tolerates.
        tolerations: Vec<Toleration>,
        /// How the pods are spread over nodes.
        topology_spread_constraints: Vec<TopologySpreadConstraint>,
        /// Volumes, one per disk of the domain.
        volumes: Vec<Volume>,
    }
    /// A taint of nodes that a pod tolerates.
    Toleration {
        /// Effect of the taint; empty: any.
        effect: String,
        /// Key of the taint; empty: any.
        key: String,
        /// `Equal` or `Exists`.
        operator: String,
        /// How long the pod stays on a node that gets the taint; absent: for ever.
        toleration_seconds: Option<i64>,
        /// Value of the taint.
        value: String,
    }
    /// Virtual hardware.
    Domain {
        /// Clock of a Windows guest; absent: KubeVirt's default.
        clock: Option<Clock>,
        /// CPU topology.
        cpu: Cpu,
        /// Disks, network cards and others.
        devices: Devices,
        /// Features of the hypervisor.
        features: Features,
        /// Firmware and SMBIOS identity.
        firmware: Firmware,
        /// Machine type.
        machine: MachineKind,
        /// Memory sizes.
        memory: Memory,
    }
    /// Clock of a guest.
    Clock {
        /// Present: the hardware clock shows UTC.
        utc: Option<Present>,
        /// Time zone whose time the hardware clock shows.
        timezone: Option<String>,
        /// Settings of the timers.
        timer: Timer,
    }
    /// Timers of a guest.
    Timer {
        /// High precision event timer.
        hpet: Option<Presence>,
        /// Hyper-V reference timer.
        hyperv: Option<Presence>,
        /// Interval timer.
        pit: Option<TickPolicy>,
        /// Real time clock.
        rtc: Option<TickPolicy>,
    }
    /// Switches a timer on or off.
    Presence {
        /// Whether the guest has the timer.
        present: Option<bool>,
    }
    /// How a timer treats ticks that the guest missed.
    TickPolicy {
        /// `delay`: missed ticks are delivered later, at the normal rate; `catchup`: at a higher rate.
        tick_policy: String,
    }
    /// CPU topology.
    Cpu {
        /// Sockets at the start of the guest.
        sockets: u32,
        /// Cores per socket.
        cores: u32,
        /// Threads per core.
        threads: u32,
        /// Largest number of sockets that the guest can have after hot-plugging.
        max_sockets: Option<u32>,
        /// Whether each vCPU has a processor of the node for itself.
        dedicated_cpu_placement: bool,
        /// Model of the CPU; empty: KubeVirt chooses.
        model: String,
    }
    /// Memory of a guest, as Kubernetes quantities.
    Memory {
        /// Memory at the start of the guest.
        guest: String,
        /// Largest memory that the guest can have after hot-plugging.
        max_guest: Option<String>,
        /// Huge pages of the node that the memory consists of; absent: ordinary pages.
        hugepages: Option<Hugepages>,
    }
    /// Huge pages of a node.
    Hugepages {
        /// Their size: `2Mi` or `1Gi`.
        page_size: String,
    }
    /// A device of a node.
    HostDevice {
        /// Name of the resource that nodes offer.
        device_name: String,
        /// Name of the device in the guest's list.
        name: String,
    }
    /// Machine type of a guest.
    MachineKind {
        /// Name of the machine type, such as `q35`.
        r#type: String,
    }
    /// Firmware and SMBIOS identity of a guest.
    Firmware {
        /// SMBIOS uuid, derived from the Machine's uid.
        uuid: String,
        /// SMBIOS serial number: a uuid that is derived from the SMBIOS uuid.
        serial: String,
        /// BIOS or UEFI.
        bootloader: Bootloader,
    }
    /// The firmware that boots the guest: exactly one field is set.
    Bootloader {
        /// SeaBIOS.
        bios: Option<Present>,
        /// UEFI firmware.
        efi: Option<Efi>,
    }
    /// Settings of the UEFI firmware.
    Efi {
        /// Whether the firmware's variables outlast the instance; absent: no.
        persistent: Option<bool>,
        /// Whether Secure Boot is on; absent: on, KubeVirt's default.
        secure_boot: Option<bool>,
    }
    /// Features of the hypervisor.
    Features {
        /// Advanced Configuration and Power Interface.
        acpi: Option<Switch>,
        /// Advanced programmable interrupt controller.
        apic: Option<Switch>,
        /// System management mode, which Secure Boot needs.
        smm: Option<Switch>,
        /// Enlightenments for Windows guests.
        hyperv: Option<Hyperv>,
    }
    /// Switches a feature on or off.
    Switch {
        /// Whether the feature is on; absent: on, KubeVirt's default.
        enabled: Option<bool>,
    }
    /// Enlightenments for Windows guests.
    Hyperv {
        /// Relaxed timing checks.
        relaxed: Switch,
        /// Paravirtualized interrupt controller.
        vapic: Switch,
        /// Paravirtualized spin locks.
        spinlocks: Spinlocks,
        /// Virtual processor index.
        vpindex: Switch,
        /// Run time counter.
        runtime: Switch,
        /// Synthetic interrupt controller.
        synic: Switch,
        /// Synthetic timers.
        synictimer: SynicTimer,
        /// Reset by hypercall.
        reset: Switch,
        /// Frequency registers.
        frequencies: Switch,
        /// Notification of a migration.
        reenlightenment: Switch,
        /// Flush of other processors' translation caches.
        tlbflush: Switch,
        /// Interrupts between processors.
        ipi: Switch,
    }
    /// Paravirtualized spin locks.
    Spinlocks {
        /// Whether the feature is on; absent: on, KubeVirt's default.
        enabled: Option<bool>,
        /// Attempts before the guest notifies the hypervisor; absent: 4096, KubeVirt's default.
        spinlocks: Option<u32>,
    }
    /// Synthetic timers.
    SynicTimer {
        /// Whether the feature is on; absent: on, KubeVirt's default.
        enabled: Option<bool>,
        /// Whether expirations are delivered as interrupts instead of messages.
        direct: Switch,
    }
    /// Devices of a domain.
    Devices {
        /// Whether the guest has a screen; absent: it has.
        autoattach_graphics_device: Option<bool>,
        /// Whether KubeVirt adds an interface on the pod network to a guest without interfaces.
        autoattach_pod_interface: Option<bool>,
        /// Disks and CD-ROM drives.
        disks: Vec<Disk>,
        /// PCI devices and mediated devices of the node.
        gpus: Vec<HostDevice>,
        /// USB devices of the node.
        host_devices: Vec<HostDevice>,
        /// Input devices besides keyboard and mouse.
        inputs: Vec<Input>,
        /// Network cards.
        interfaces: Vec<Interface>,
        /// Whether the output of the serial console is kept; absent: by the setting of the cluster.
        log_serial_console: Option<bool>,
        /// Whether every virtio network card has one queue per vCPU.
        network_interface_multiqueue: Option<bool>,
        /// Source of random numbers.
        rng: Option<Present>,
        /// Emulated TPM 2.0.
        tpm: Option<Tpm>,
        /// Graphics card; absent: KubeVirt chooses.
        video: Option<Video>,
        /// Watchdog of the virtual hardware; absent: none.
        watchdog: Option<Watchdog>,
    }
    /// A watchdog of the virtual hardware.
    Watchdog {
        /// Name of the device.
        name: String,
        /// The model, the only one that KubeVirt has.
        i6300esb: Option<I6300esb>,
    }
    /// An Intel 6300ESB, the watchdog that guests on x86-64 have drivers for.
    I6300esb {
        /// What happens when its timer runs out: `reset`, `poweroff` or `shutdown`.
        action: String,
    }
    /// An input device.
    Input {
        /// Bus: `usb` or `virtio`.
        bus: String,
        /// Name of the device.
        name: String,
        /// Kind: `tablet`.
        r#type: String,
    }
    /// An emulated TPM 2.0.
    Tpm {
        /// Whether its content outlasts the instance.
        persistent: Option<bool>,
    }
    /// A graphics card.
    Video {
        /// Model: `vga`, `virtio` or `bochs`.
        r#type: String,
    }
    /// A disk or a CD-ROM drive: exactly one of `disk` and `cdrom` is set.
    Disk {
        /// Name of the disk and of its volume.
        name: String,
        /// Set for a disk.
        disk: Option<DiskTarget>,
        /// Set for a CD-ROM drive.
        cdrom: Option<DiskTarget>,
        /// Position in the boot order, from 1; absent: the guest does not boot from it.
        boot_order: Option<u32>,
        /// Serial number that the guest sees; absent: none.
        serial: Option<String>,
        /// Whether several guests may have the disk at the same time.
        shareable: Option<bool>,
    }
    /// How a disk is attached to the guest.
    DiskTarget {
        /// Bus: `virtio`, `sata` or `scsi`.
        bus: String,
        /// Whether the guest can only read the disk.
        readonly: Option<bool>,
    }
    /// A network card.
    Interface {
        /// Name of the network card and of its network.
        name: String,
        /// Emulated model, such as `virtio`.
        model: String,
        /// MAC address, always set.
        mac_address: String,
        /// Position in the boot order, from 1; absent: the guest does not boot from it.
        boot_order: Option<u32>,
        /// Present: connected by address translation behind the pod's address (pod network only).
        masquerade: Option<Present>,
        /// Present: bridged to the network.
        bridge: Option<Present>,
    }
    /// The network of an interface: exactly one of `pod` and `multus` is set.
    Network {
        /// Name of the network card.
        name: String,
        /// Present: the pod network.
        pod: Option<Present>,
        /// Present: a secondary network, which Multus attaches.
        multus: Option<Multus>,
    }
    /// A secondary network that Multus attaches.
    Multus {
        /// `namespace/name` of the NetworkAttachmentDefinition.
        network_name: String,
    }
    /// A volume of an instance: exactly one source is set.
    Volume {
        /// Name of the disk.
        name: String,
        /// A PersistentVolumeClaim.
        persistent_volume_claim: Option<ClaimSource>,
        /// The claim of a DataVolume. Read only: others plug such volumes in.
        data_volume: Option<ImportedClaim>,
        /// Data for cloud-init.
        cloud_init_no_cloud: Option<NoCloud>,
        /// A file system with the keys of a Secret as files.
        secret: Option<SecretVolume>,
        /// An answer file of Windows Setup.
        sysprep: Option<AnswerFile>,
    }
    /// An answer file of Windows Setup.
    AnswerFile {
        /// The Secret with the key `autounattend.xml`.
        secret: LocalReference,
    }
    /// A PersistentVolumeClaim as a volume.
    ClaimSource {
        /// Name of the claim.
        claim_name: String,
        /// Whether the volume is plugged into the running guest.
        hotpluggable: Option<bool>,
    }
    /// The claim of a DataVolume as a volume.
    ImportedClaim {
        /// Name of the DataVolume and of its claim.
        name: String,
        /// Whether the volume was plugged into the running guest.
        hotpluggable: Option<bool>,
    }
    /// Data for cloud-init: at most one source for each of the two parts.
    NoCloud {
        /// Inline user data, at most 2048 bytes.
        user_data: Option<String>,
        /// Secret with the user data under the key `userdata`.
        secret_ref: Option<LocalReference>,
        /// Inline network configuration, at most 2048 bytes.
        network_data: Option<String>,
        /// Secret with the network configuration under the key `networkdata`.
        network_data_secret_ref: Option<LocalReference>,
    }
    /// Reference to an object in the same namespace.
    LocalReference {
        /// Name of the object.
        name: String,
    }
    /// A file system with the keys of a Secret as files.
    SecretVolume {
        /// Name of the Secret.
        secret_name: String,
        /// Label of the file system.
        volume_label: String,
    }
    /// A `PersistentVolumeClaim`.
    Claim {
        /// API group and version of the object.
        api_version: String,
        /// Kind of the object.
        kind: String,
        /// Name, labels, annotations and owner.
        metadata: Metadata,
        /// Desired state.
        spec: ClaimSpec,
    }
    /// Desired state of a claim.
    ClaimSpec {
        /// Access modes; exactly one is written.
        access_modes: Vec<String>,
        /// `Filesystem` or `Block`.
        volume_mode: String,
        /// Name of the StorageClass; empty: none. Always written, because an absent field means the default
        /// class at the time of creation.
        storage_class_name: Option<String>,
        /// Least capacity that the claim asks for.
        resources: ClaimResources,
        /// Labels of the PersistentVolume to bind.
        selector: Option<LabelSelector>,
        /// Name of the PersistentVolume to bind.
        volume_name: Option<String>,
    }
    /// Resources of a claim.
    ClaimResources {
        /// Minimum resources; the bound volume may be larger.
        requests: ClaimRequests,
    }
    /// Minimum resources of a claim.
    ClaimRequests {
        /// Capacity, as a Kubernetes quantity.
        storage: String,
    }
    /// Selects objects by labels.
    LabelSelector {
        /// Labels that an object must have, all of them.
        match_labels: BTreeMap<String, String>,
    }
    /// A `DataVolume` of CDI.
    DataVolume {
        /// API group and version of the object.
        api_version: String,
        /// Kind of the object.
        kind: String,
        /// Metadata, whose labels and annotations CDI copies to the claim.
        metadata: Metadata,
        /// Desired state.
        spec: DataVolumeSpec,
    }
    /// Desired state of a `DataVolume`.
    DataVolumeSpec {
        /// Source of the claim's content; empty if it is `source_ref`.
        source: DataVolumeSource,
        /// Object that names the source.
        source_ref: Option<SourceRef>,
        /// Spec of the claim, which CDI copies unchanged.
        pvc: ClaimSpec,
    }
    /// A DataSource of CDI.
    SourceRef {
        /// Always `DataSource`.
        kind: String,
        /// Namespace of the DataSource.
        namespace: String,
        /// Name of the DataSource.
        name: String,
    }
    /// Source of a claim's content: exactly one field is set.
    DataVolumeSource {
        /// A file on a web server.
        http: Option<HttpSource>,
        /// A containerDisk in a registry.
        registry: Option<RegistrySource>,
        /// Another claim, which is cloned.
        pvc: Option<CloneSource>,
    }
    /// A file on a web server.
    HttpSource {
        /// `http://` or `https://` address.
        url: String,
        /// `sha256:` and the expected digest, which CDI verifies.
        checksum: Option<String>,
    }
    /// A containerDisk in a registry.
    RegistrySource {
        /// `docker://` address.
        url: String,
    }
    /// A claim to clone.
    CloneSource {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        name: String,
    }
    /// A `VirtualMachineInstanceMigration`: a running guest moves to another node, once.
    Migration {
        /// API group and version of the object.
        api_version: String,
        /// Kind of the object.
        kind: String,
        /// Name, labels, annotations and owner.
        metadata: Metadata,
        /// Desired state.
        spec: MigrationSpec,
    }
    /// Desired state of a `VirtualMachineInstanceMigration`.
    MigrationSpec {
        /// Name of the instance.
        vmi_name: String,
        /// Labels that the node has to have beside those of the instance (KubeVirt 1.6 and later).
        added_node_selector: BTreeMap<String, String>,
    }
    /// A `NetworkAttachmentDefinition` of Multus.
    NetworkAttachmentDefinition {
        /// API group and version of the object.
        api_version: String,
        /// Kind of the object.
        kind: String,
        /// Name, labels, annotations and owner.
        metadata: Metadata,
        /// Desired state.
        spec: AttachmentSpec,
    }
    /// Desired state of a `NetworkAttachmentDefinition`.
    AttachmentSpec {
        /// Configuration of the CNI plugin, as JSON text.
        config: String,
    }
}

/// A Secret that the controller creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    /// Name, labels, annotations and owner.
    pub metadata: Metadata,
    /// Contents by key, not yet base64-encoded.
    pub data: BTreeMap<String, Vec<u8>>,
}

impl Cpu {
    /// Its topology. Without a maximum no socket can be added.
    pub fn topology(&self) -> NormalizedCpu {
        NormalizedCpu {
            cores: self.cores,
            max_sockets: self.max_sockets.unwrap_or(self.sockets),
            sockets: self.sockets,
            threads: self.threads,
        }
    }
}

impl Volume {
    /// The claim of the volume.
    #[must_use]
    pub fn claim(&self) -> Option<&str> {
        let direct = self.persistent_volume_claim.as_ref();
        let imported = self.data_volume.as_ref();
        direct
            .map(|source| source.claim_name.as_str())
            .or_else(|| Some(imported?.name.as_str()))
    }

    /// Whether others plugged the volume into the running guest of this Machine. What the Machine itself has plugged in is
    /// on the claims of its disks and media; `virtctl addvolume` names a volume like its claim.
    #[must_use]
    pub fn is_foreign(&self, machine: &str) -> bool {
        let is_ours = |claim: &str| {
            claim == names::claim(machine, &self.name) || is_of_medium(machine, &self.name, claim)
        };
        self.is_plugged_in() && !self.claim().is_some_and(is_ours)
    }

    /// Whether the volume is plugged into the running guest.
    #[must_use]
    pub fn is_plugged_in(&self) -> bool {
        let direct = self.persistent_volume_claim.as_ref();
        let imported = self.data_volume.as_ref();
        direct.is_some_and(|source| source.hotpluggable == Some(true))
            || imported.is_some_and(|source| source.hotpluggable == Some(true))
    }
}
