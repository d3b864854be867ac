//! A domain with the settings that this operator decides, and its XML. Everything else in libvirt's XML is
//! left to libvirt.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::devices::{Address, Controller, Disk, Nic};
use super::display::{Display, log_element};
use super::host_device::HostDevice;
use super::limits;
use super::metadata::DomainMetadata;
use super::pinning::Pinning;
use super::xml::Element;
use crate::api::choice::{Choice as _, CpuMode, FirmwareType, HugepageSize, WatchdogAction};
use crate::api::normalized::{
    Firmware, NormalizedCpu, NormalizedFeatures, NormalizedMemory, NormalizedTpm,
};
use crate::quantity::Bytes;
use crate::render::SPINLOCK_RETRIES;

/// Enlightenments that QEMU provides with and without KVM.
const HYPERV_ANY_TYPE: [&str; 2] = ["relaxed", "vapic"];
/// Enlightenments that need KVM. The set contains every enlightenment that one of its members requires.
const HYPERV_KVM: [&str; 8] = [
    "vpindex",
    "runtime",
    "synic",
    "reset",
    "frequencies",
    "reenlightenment",
    "tlbflush",
    "ipi",
];
/// Elements of the PCI devices that every domain has exactly once.
pub(super) const SINGLE_DEVICES: [&str; 3] = ["video", "memballoon", "rng"];

/// Model of the watchdog. Both machine types have PCI, which it needs, and KubeVirt has the same one.
pub(super) const WATCHDOG_MODEL: &str = "i6300esb";

/// Hypervisor of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtType {
    /// QEMU with hardware virtualization.
    Kvm,
    /// QEMU with emulation in software.
    Qemu,
    /// Libvirt's test driver, which runs no guest.
    Test,
}

impl VirtType {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Qemu => "qemu",
            Self::Test => "test",
        }
    }
}

/// A libvirt domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Name of the domain, unique on its host: see [`domain_name`](super::domain_name).
    pub name: String,
    /// Uuid of the domain and of the guest's SMBIOS.
    pub uuid: Uuid,
    /// Metadata of this operator. `None`: the domain is not managed by this operator.
    pub metadata: Option<DomainMetadata>,
    /// Hypervisor of the domain.
    pub virt_type: VirtType,
    /// CPU model that the guest sees.
    pub cpu_mode: CpuMode,
    /// Model of the CPU that the Machine requests, or that a running guest has; `None`: that of the mode.
    pub cpu_model: Option<String>,
    /// CPU topology. Sockets can be hot-plugged up to `max_sockets`.
    pub cpu: NormalizedCpu,
    /// Memory, in whole MiB, the unit of QEMU. The guest boots with `max_size`, and its balloon returns
    /// what is above `size`. So `size` can change in both directions while the guest runs, on every guest
    /// system with a balloon driver. The host needs free memory for `max_size`.
    pub memory: NormalizedMemory,
    /// Huge pages of the host that the memory consists of; `None`: ordinary pages.
    pub hugepages: Option<HugepageSize>,
    /// Machine type: `q35` or `pc` when rendered; with libvirt's version, such as `pc-q35-7.2`, when read.
    pub machine: String,
    /// Firmware and Secure Boot.
    pub firmware: Firmware,
    /// Path of the file with the firmware's variables, chosen by libvirt at the first start.
    pub nvram: Option<String>,
    /// Emulated TPM 2.0; libvirt keeps the content of a persistent one when the domain is undefined, unless the
    /// call says otherwise.
    pub tpm: Option<NormalizedTpm>,
    /// What the watchdog, an i6300esb, does when its timer runs out; `None`: there is none.
    pub watchdog: Option<WatchdogAction>,
    /// Time zone of the hardware clock; `None`: UTC.
    pub timezone: Option<String>,
    /// ACPI, APIC and Hyper-V enlightenments.
    pub features: NormalizedFeatures,
    /// Controllers of all buses, sorted by kind and index.
    pub controllers: Vec<Controller>,
    /// Disks and CD-ROM drives, sorted by target.
    pub disks: Vec<Disk>,
    /// Network cards, in the order of the block.
    pub nics: Vec<Nic>,
    /// Devices of the host, in the order of the block.
    pub host_devices: Vec<HostDevice>,
    /// Screen and graphics card.
    pub display: Display,
    /// Path of the file with the output of the serial console; `None`: it is not kept.
    pub console_log: Option<String>,
    /// Addresses of the devices that exist at most once, by element name, such as `rng`.
    pub addresses: BTreeMap<String, Address>,
    /// Whether the guest has a quota of CPU time: see [`GuestLimits`](super::GuestLimits).
    pub vcpu_quota: bool,
    /// CPUs of the host that the guest runs on.
    pub pinning: Pinning,
}

impl Domain {
    /// Sorts disks and controllers. libvirt returns them in an order that can change with each definition.
    pub(super) fn sorted(mut self) -> Self {
        let target = |disk: &Disk| (disk.target.len(), disk.target.clone());
        self.disks.sort_by_key(target);
        let kind_and_index = |it: &Controller| (it.kind.clone(), it.index);
        self.controllers.sort_by_key(kind_and_index);
        self
    }

    /// Whether the machine type is q35, which has PCI Express and SATA instead of PCI and IDE.
    pub fn is_q35(&self) -> bool {
        self.machine == "q35" || self.machine.starts_with("pc-q35")
    }

    /// Libvirt's XML of the domain.
    pub fn xml(&self) -> String {
        let switch = |name: &str| Element::new(name).attr("enabled", "no");
        let power = Element::new("pm")
            .child(switch("suspend-to-mem"))
            .child(switch("suspend-to-disk"));
        let metadata = self.metadata.as_ref().map(DomainMetadata::prefixed);
        let vcpus = self.cpu.vcpus();
        let maximum = NormalizedCpu {
            sockets: self.cpu.max_sockets,
            ..self.cpu
        };
        let vcpu = Element::new("vcpu");
        let vcpu = match &self.pinning.shared {
            Some(shared) => vcpu.attr("cpuset", shared),
            None => vcpu,
        };
        Element::new("domain")
            .attr("type", self.virt_type.as_str())
            .child(Element::new("name").text(&self.name))
            .child(Element::new("uuid").text(self.uuid))
            .children(metadata.map(|it| Element::new("metadata").child(it)))
            .child(memory("memory", self.memory.max_size))
            .child(memory("currentMemory", self.memory.size))
            .children(self.hugepages.map(hugepages))
            .child(vcpu.attr("current", vcpus).text(maximum.vcpus()))
            .children(self.cpu_tune())
            .child(self.os())
            .child(self.features())
            .child(self.processor())
            .child(self.clock())
            // libvirt must not restart the guest: the controller decides that.
            .child(Element::new("on_poweroff").text("destroy"))
            .child(Element::new("on_reboot").text("restart"))
            .child(Element::new("on_crash").text("destroy"))
            .child(power)
            .child(self.devices())
            .to_string()
    }

    /// Quota and pinning of vCPUs.
    fn cpu_tune(&self) -> Option<Element> {
        let quota = self.vcpu_quota.then(limits::vcpu_quota);
        let elements = quota.into_iter().flatten().chain(self.pinning.elements());
        let elements: Vec<_> = elements.collect();
        (!elements.is_empty()).then(|| Element::new("cputune").children(elements))
    }

    /// With `firmware='efi'` alone, the host's distribution chooses the firmware: Debian's default has Secure
    /// Boot on. So the features are always written.
    fn os(&self) -> Element {
        let kind = Element::new("type")
            .attr("arch", "x86_64")
            .attr("machine", &self.machine)
            .text("hvm");
        let os = Element::new("os");
        if self.firmware.kind == FirmwareType::Bios {
            return os.child(kind);
        }
        let is_secure = self.firmware.secure_boot == Some(true);
        let secure = if is_secure { "yes" } else { "no" };
        // libvirt 9.0 accepts a loader element beside firmware='efi' only for Secure Boot.
        let loader = is_secure.then(|| Element::new("loader").attr("secure", secure));
        let feature = |name| {
            Element::new("feature")
                .attr("enabled", secure)
                .attr("name", name)
        };
        let firmware = Element::new("firmware")
            .child(feature("enrolled-keys"))
            .child(feature("secure-boot"));
        let nvram = self.nvram.as_ref();
        os.attr("firmware", "efi")
            .child(kind)
            .child(firmware)
            .children(loader)
            .children(nvram.map(|path| Element::new("nvram").text(path)))
    }

    fn features(&self) -> Element {
        let NormalizedFeatures { acpi, apic, hyperv } = self.features;
        let on = |name: &str| Element::new(name).attr("state", "on");
        // Secure Boot needs system management mode to protect the firmware's variables.
        let is_secure = self.firmware.secure_boot == Some(true);
        Element::new("features")
            .children(acpi.then(|| Element::new("acpi")))
            .children(apic.then(|| Element::new("apic")))
            .children(hyperv.then(|| self.hyperv()))
            .children(is_secure.then(|| on("smm")))
    }

    fn hyperv(&self) -> Element {
        let on = |name: &str| Element::new(name).attr("state", "on");
        let hyperv = Element::new("hyperv")
            .attr("mode", "custom")
            .children(HYPERV_ANY_TYPE.map(on))
            .child(on("spinlocks").attr("retries", SPINLOCK_RETRIES));
        if self.virt_type == VirtType::Kvm {
            hyperv
                .children(HYPERV_KVM.map(on))
                .child(on("stimer").child(on("direct")))
        } else {
            hyperv
        }
    }

    fn processor(&self) -> Element {
        let NormalizedCpu {
            cores,
            max_sockets,
            threads,
            sockets: _,
        } = self.cpu;
        let topology = Element::new("topology")
            .attr("sockets", max_sockets)
            .attr("cores", cores)
            .attr("threads", threads);
        let cpu = Element::new("cpu");
        match &self.cpu_model {
            None => cpu.attr("mode", self.cpu_mode.as_str()),
            Some(model) => match CpuMode::parse(model) {
                Some(mode) => cpu.attr("mode", mode.as_str()),
                // A host without the model must not start the guest with another one.
                None => cpu
                    .attr("mode", "custom")
                    .attr("match", "exact")
                    .child(Element::new("model").attr("fallback", "forbid").text(model)),
            },
        }
        .child(topology)
    }

    /// Timers as virt-install sets them: the guest's time stays right even if the host is overcommitted.
    fn clock(&self) -> Element {
        let timer = |name: &str| Element::new("timer").attr("name", name);
        let is_kvm = self.virt_type == VirtType::Kvm;
        let hyperv = self.features.hyperv && is_kvm;
        let clock = Element::new("clock");
        let clock = match &self.timezone {
            None => clock.attr("offset", "utc"),
            Some(zone) => clock.attr("offset", "timezone").attr("timezone", zone),
        };
        clock
            .child(timer("rtc").attr("tickpolicy", "catchup"))
            .child(timer("pit").attr("tickpolicy", "delay"))
            .child(timer("hpet").attr("present", "no"))
            .children(hyperv.then(|| timer("hypervclock").attr("present", "yes")))
    }

    fn devices(&self) -> Element {
        let single = |name: &str, element: Element| {
            let address = self.addresses.get(name);
            element.children(address.map(Address::element))
        };
        let serial = |name: &str| Element::new(name).attr("type", "pty");
        let target = |kind: &str| Element::new("target").attr("type", kind);
        let agent = Element::new("channel")
            .attr("type", "unix")
            .child(target("virtio").attr("name", "org.qemu.guest_agent.0"));
        let log = || self.console_log.as_deref().map(log_element);
        let (screen, video) = self.display.elements();
        let balloon = Element::new("memballoon").attr("model", "virtio");
        let backend = Element::new("backend")
            .attr("model", "random")
            .text("/dev/urandom");
        let rng = Element::new("rng").attr("model", "virtio").child(backend);
        let tablet = Element::new("input")
            .attr("type", "tablet")
            .attr("bus", "usb");
        Element::new("devices")
            .children(self.disks.iter().map(Disk::element))
            .children(self.controllers.iter().map(Controller::element))
            .children(self.nics.iter().map(Nic::element))
            .child(
                serial("serial")
                    .children(log())
                    .child(Element::new("target").attr("port", 0)),
            )
            .child(
                serial("console")
                    .children(log())
                    .child(target("serial").attr("port", 0)),
            )
            .child(agent)
            .child(tablet)
            .children(screen)
            .child(single("video", video))
            .children(self.host_devices.iter().map(HostDevice::element))
            .child(single("memballoon", balloon))
            .child(single("rng", rng))
            .children(self.tpm.map(tpm))
            .children(
                self.watchdog
                    .map(|action| single("watchdog", watchdog(action))),
            )
    }
}

/// The interface CRB, which every guest system with a driver for TPM 2.0 supports.
fn tpm(tpm: NormalizedTpm) -> Element {
    let backend = Element::new("backend")
        .attr("type", "emulator")
        .attr("version", "2.0");
    let backend = if tpm.persistent {
        backend.attr("persistent_state", "yes")
    } else {
        backend
    };
    Element::new("tpm").attr("model", "tpm-crb").child(backend)
}

fn watchdog(action: WatchdogAction) -> Element {
    Element::new("watchdog")
        .attr("model", WATCHDOG_MODEL)
        .attr("action", action.backend_name())
}

fn hugepages(size: HugepageSize) -> Element {
    let page = Element::new("page")
        .attr("size", kib(size.bytes()))
        .attr("unit", "KiB");
    Element::new("memoryBacking").child(Element::new("hugepages").child(page))
}

fn memory(name: &str, amount: Bytes) -> Element {
    Element::new(name).attr("unit", "KiB").text(kib(amount))
}

/// An amount in KiB, the unit of libvirt, rounded up.
pub(super) fn kib(amount: Bytes) -> u64 {
    u64::try_from(amount.get().div_ceil(1024)).unwrap_or(u64::MAX)
}
