//! The parts of KubeVirt's, Multus' and Kubernetes' objects that this product writes.
//!
//! Every field can be absent, so that an object of a newer KubeVirt still decodes; what is not
//! listed here is somebody else's and is neither read nor written.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

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

/// Absent and empty are the same here: an empty value is never written.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn ours<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let mut map = BTreeMap::<String, String>::deserialize(deserializer)?;
    map.retain(|key, _| names::is_ours(key));
    Ok(map)
}

/// An object with no fields of its own; that it is there is what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Present {}

objects! {
    /// The metadata this product writes.
    Metadata {
        /// Name of the object.
        name: String,
        /// Namespace of the object.
        namespace: String,
        /// Uid the object must have for the write to go through.
        uid: Option<String>,
        /// Labels.
        labels: BTreeMap<String, String>,
        /// Annotations.
        annotations: BTreeMap<String, String>,
        /// The object that takes this one with it when it goes.
        owner_references: Vec<OwnerReference>,
    }
    /// An owner of an object.
    OwnerReference {
        /// Group and version of the owner.
        api_version: String,
        /// Kind of the owner.
        kind: String,
        /// Name of the owner.
        name: String,
        /// Uid of the owner.
        uid: String,
        /// Whether the owner is the one that manages the object.
        controller: bool,
    }
    /// A `kubevirt.io/v1` `VirtualMachine`.
    VirtualMachine {
        /// Group and version.
        api_version: String,
        /// Kind.
        kind: String,
        /// Metadata.
        metadata: Metadata,
        /// What is wished.
        spec: VirtualMachineSpec,
    }
    /// What is wished of a `VirtualMachine`.
    VirtualMachineSpec {
        /// When KubeVirt starts and restarts the guest.
        run_strategy: String,
        /// The guest.
        template: Template,
    }
    /// The `VirtualMachineInstance` a `VirtualMachine` makes.
    Template {
        /// Metadata of the instance.
        metadata: TemplateMetadata,
        /// The instance.
        spec: InstanceSpec,
    }
    /// Metadata of an instance.
    TemplateMetadata {
        /// Labels of the instance and of its pod.
        labels: BTreeMap<String, String>,
        /// Annotations of the instance and of its pod. KubeVirt adds its own.
        #[serde(deserialize_with = "ours")]
        annotations: BTreeMap<String, String>,
    }
    /// A virtual machine instance.
    InstanceSpec {
        /// CPU architecture.
        architecture: String,
        /// Virtual hardware.
        domain: Domain,
        /// What a node drain does to the guest.
        eviction_strategy: String,
        /// Networks, one per interface of the domain.
        networks: Vec<Network>,
        /// Labels of the nodes the guest may run on.
        node_selector: BTreeMap<String, String>,
        /// Volumes, one per disk of the domain.
        volumes: Vec<Volume>,
    }
    /// Virtual hardware.
    Domain {
        /// Clock.
        clock: Option<Clock>,
        /// CPU topology.
        cpu: Cpu,
        /// Devices.
        devices: Devices,
        /// Features of the hypervisor.
        features: Features,
        /// Firmware.
        firmware: Firmware,
        /// Chipset.
        machine: MachineKind,
        /// Memory.
        memory: Memory,
    }
    /// Clock of a guest.
    Clock {
        /// The hardware clock shows universal time.
        utc: Option<Present>,
        /// Timers.
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
    /// Whether a timer is there.
    Presence {
        /// Whether it is.
        present: Option<bool>,
    }
    /// What a timer does about ticks the guest missed.
    TickPolicy {
        /// The policy.
        tick_policy: String,
    }
    /// CPU topology.
    Cpu {
        /// Sockets.
        sockets: u32,
        /// Cores per socket.
        cores: u32,
        /// Threads per core.
        threads: u32,
        /// Sockets that can be plugged in while the guest runs, the present ones included.
        max_sockets: Option<u32>,
    }
    /// Memory.
    Memory {
        /// What the guest sees.
        guest: String,
        /// What the guest can grow to while it runs.
        max_guest: Option<String>,
    }
    /// Chipset.
    MachineKind {
        /// Its name.
        r#type: String,
    }
    /// Firmware.
    Firmware {
        /// SMBIOS uuid.
        uuid: String,
        /// SMBIOS serial number.
        serial: String,
        /// Boot loader.
        bootloader: Bootloader,
    }
    /// Boot loader: one of the two.
    Bootloader {
        /// Legacy BIOS.
        bios: Option<Present>,
        /// UEFI.
        efi: Option<Efi>,
    }
    /// UEFI.
    Efi {
        /// Whether only signed code boots.
        secure_boot: Option<bool>,
    }
    /// Features of the hypervisor.
    Features {
        /// ACPI.
        acpi: Option<Switch>,
        /// APIC.
        apic: Option<Switch>,
        /// System management mode.
        smm: Option<Switch>,
        /// Enlightenments for Windows guests.
        hyperv: Option<Hyperv>,
    }
    /// A feature that is on or off.
    Switch {
        /// Whether it is on.
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
        /// Whether they are on.
        enabled: Option<bool>,
        /// Attempts before the hypervisor is told.
        spinlocks: Option<u32>,
    }
    /// Synthetic timers.
    SynicTimer {
        /// Whether they are on.
        enabled: Option<bool>,
        /// Delivered as interrupts, not as messages.
        direct: Switch,
    }
    /// Devices of a domain.
    Devices {
        /// Whether an interface on the pod network is added when there is none.
        autoattach_pod_interface: Option<bool>,
        /// Disks and CD-ROM drives.
        disks: Vec<Disk>,
        /// Network cards.
        interfaces: Vec<Interface>,
        /// A queue per vCPU on every virtio network card.
        network_interface_multiqueue: Option<bool>,
        /// A source of entropy.
        rng: Option<Present>,
    }
    /// A disk or CD-ROM drive: one of the two.
    Disk {
        /// Name of its volume.
        name: String,
        /// A disk.
        disk: Option<DiskTarget>,
        /// A CD-ROM drive.
        cdrom: Option<DiskTarget>,
        /// Place in the boot order, from 1.
        boot_order: Option<u32>,
    }
    /// How a guest sees a disk.
    DiskTarget {
        /// The bus it is on.
        bus: String,
        /// Whether the guest can only read it.
        readonly: Option<bool>,
    }
    /// A network card.
    Interface {
        /// Name of its network.
        name: String,
        /// Model.
        model: String,
        /// MAC address.
        mac_address: String,
        /// Place in the boot order, from 1.
        boot_order: Option<u32>,
        /// Behind the pod's address; on the pod network only.
        masquerade: Option<Present>,
        /// Bridged to the network.
        bridge: Option<Present>,
    }
    /// A network: one of the two.
    Network {
        /// Name of the network card.
        name: String,
        /// The pod network.
        pod: Option<Present>,
        /// A network of Multus.
        multus: Option<Multus>,
    }
    /// A network of Multus.
    Multus {
        /// `namespace/name` of the NetworkAttachmentDefinition.
        network_name: String,
    }
    /// A volume: exactly one source.
    Volume {
        /// Name of the disk.
        name: String,
        /// A claim.
        persistent_volume_claim: Option<ClaimSource>,
        /// cloud-init's data.
        cloud_init_no_cloud: Option<NoCloud>,
        /// The keys of a Secret as files.
        secret: Option<SecretVolume>,
    }
    /// A claim as a volume.
    ClaimSource {
        /// Name of the claim.
        claim_name: String,
    }
    /// cloud-init's data: at most one source for each of the two parts.
    NoCloud {
        /// User data.
        user_data: Option<String>,
        /// Secret with the user data under the key `userdata`.
        secret_ref: Option<LocalReference>,
        /// Network configuration.
        network_data: Option<String>,
        /// Secret with the network configuration under the key `networkdata`.
        network_data_secret_ref: Option<LocalReference>,
    }
    /// A name in the same namespace.
    LocalReference {
        /// The name.
        name: String,
    }
    /// The keys of a Secret as files.
    SecretVolume {
        /// Name of the Secret.
        secret_name: String,
        /// Label of the file system.
        volume_label: String,
    }
    /// A `PersistentVolumeClaim`.
    Claim {
        /// Group and version.
        api_version: String,
        /// Kind.
        kind: String,
        /// Metadata.
        metadata: Metadata,
        /// What is wished.
        spec: ClaimSpec,
    }
    /// What is wished of a claim.
    ClaimSpec {
        /// Access modes.
        access_modes: Vec<String>,
        /// Filesystem or Block.
        volume_mode: String,
        /// Name of the class. Always written: absent would mean the default class of that moment.
        storage_class_name: Option<String>,
        /// Size.
        resources: ClaimResources,
        /// Labels of the volume to bind.
        selector: Option<LabelSelector>,
        /// Name of the volume to bind.
        volume_name: Option<String>,
    }
    /// Resources of a claim.
    ClaimResources {
        /// The least that is wished.
        requests: ClaimRequests,
    }
    /// The least a claim wishes.
    ClaimRequests {
        /// Capacity.
        storage: String,
    }
    /// Selects by labels.
    LabelSelector {
        /// Labels, all of them.
        match_labels: BTreeMap<String, String>,
    }
    /// A `DataVolume` of CDI.
    DataVolume {
        /// Group and version.
        api_version: String,
        /// Kind.
        kind: String,
        /// Metadata, which CDI gives to the claim, too.
        metadata: Metadata,
        /// What is wished.
        spec: DataVolumeSpec,
    }
    /// What is wished of a `DataVolume`.
    DataVolumeSpec {
        /// What the claim is filled with.
        source: DataVolumeSource,
        /// The claim, to the letter.
        pvc: ClaimSpec,
    }
    /// What a claim is filled with: exactly one.
    DataVolumeSource {
        /// A file on a web server.
        http: Option<HttpSource>,
        /// A containerDisk in a registry.
        registry: Option<RegistrySource>,
        /// Another claim.
        pvc: Option<CloneSource>,
    }
    /// A file on a web server.
    HttpSource {
        /// Its address.
        url: String,
        /// `sha256:` and the digest it must have.
        checksum: Option<String>,
    }
    /// A containerDisk in a registry.
    RegistrySource {
        /// Its address.
        url: String,
    }
    /// A claim to copy.
    CloneSource {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    }
    /// A `NetworkAttachmentDefinition` of Multus.
    NetworkAttachmentDefinition {
        /// Group and version.
        api_version: String,
        /// Kind.
        kind: String,
        /// Metadata.
        metadata: Metadata,
        /// What is wished.
        spec: AttachmentSpec,
    }
    /// What is wished of a `NetworkAttachmentDefinition`.
    AttachmentSpec {
        /// Configuration of the CNI plugin, as JSON text.
        config: String,
    }
}

/// A Secret of ours. Its bytes are encoded by whoever sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    /// Metadata.
    pub metadata: Metadata,
    /// Contents by key.
    pub data: BTreeMap<String, Vec<u8>>,
}
