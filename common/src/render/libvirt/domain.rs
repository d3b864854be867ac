//! The domain: what of libvirt's XML this product decides, and nothing else.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::devices::{Address, Controller, Disk, Nic};
use super::mark::Mark;
use super::xml::Element;
use crate::api::choice::{Choice as _, CpuMode, FirmwareType};
use crate::api::normalized::{Firmware, NormalizedCpu, NormalizedFeatures, NormalizedMemory};
use crate::quantity::Bytes;

/// Attempts to take a spin lock before a Windows guest tells the hypervisor: Microsoft's own
/// recommendation, and what QEMU and KubeVirt use.
const SPINLOCK_RETRIES: u32 = 8191;
/// Enlightenments that any QEMU emulates.
const HYPERV_ANYWHERE: [&str; 2] = ["relaxed", "vapic"];
/// Enlightenments of KVM; the set is closed under what each needs.
const HYPERV_OF_KVM: [&str; 8] = [
    "vpindex",
    "runtime",
    "synic",
    "reset",
    "frequencies",
    "reenlightenment",
    "tlbflush",
    "ipi",
];
/// Devices of which every domain has one, on a PCI bus.
pub(super) const SINGLE: [&str; 3] = ["video", "memballoon", "rng"];

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtType {
    /// The processor, by KVM.
    Kvm,
    /// QEMU's emulation.
    Qemu,
    /// Nothing: libvirt's test driver, which has no other type.
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

/// A domain of libvirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its uuid.
    pub uuid: Uuid,
    /// Whose it is. Absent: nobody of this product.
    pub mark: Option<Mark>,
    /// What runs it.
    pub virt_type: VirtType,
    /// Its processor.
    pub cpu_mode: CpuMode,
    /// Topology. Sockets are plugged in one by one up to the most there can be.
    pub cpu: NormalizedCpu,
    /// Memory, in whole MiB as QEMU gives it. The guest boots with the most there can be, and its balloon
    /// gives back what is above its size: this way size can change in both directions while it runs,
    /// and on every guest system with a balloon driver. A host must have room for the most.
    pub memory: NormalizedMemory,
    /// Machine type: `q35` or `pc` as wished, `pc-q35-7.2` as libvirt froze it.
    pub machine: String,
    /// Firmware.
    pub firmware: Firmware,
    /// Path of the firmware's variables; libvirt chooses.
    pub nvram: Option<String>,
    /// Features.
    pub features: NormalizedFeatures,
    /// What devices are plugged into.
    pub controllers: Vec<Controller>,
    /// Disks and CD-ROM drives.
    pub disks: Vec<Disk>,
    /// Network cards.
    pub nics: Vec<Nic>,
    /// Where the devices sit of which there is one each, by their name.
    pub addresses: BTreeMap<String, Address>,
}

impl Domain {
    /// In one order. libvirt has its own, and tells another one after each definition.
    pub(super) fn sorted(mut self) -> Self {
        let target = |disk: &Disk| (disk.target.len(), disk.target.clone());
        self.disks.sort_by_key(target);
        let place = |it: &Controller| (it.kind.clone(), it.index);
        self.controllers.sort_by_key(place);
        self
    }

    /// Whether the machine has PCI Express, and the devices that go with it.
    pub fn is_q35(&self) -> bool {
        self.machine == "q35" || self.machine.starts_with("pc-q35")
    }

    /// Libvirt's XML.
    pub fn xml(&self) -> String {
        let switch = |name: &str| Element::new(name).attr("enabled", "no");
        let power = Element::new("pm")
            .child(switch("suspend-to-mem"))
            .child(switch("suspend-to-disk"));
        let mark = self.mark.as_ref().map(Mark::prefixed);
        let vcpus = self.cpu.vcpus();
        let most = NormalizedCpu {
            sockets: self.cpu.max_sockets,
            ..self.cpu
        };
        Element::new("domain")
            .attr("type", self.virt_type.as_str())
            .child(Element::new("name").text(&self.name))
            .child(Element::new("uuid").text(self.uuid))
            .children(mark.map(|mark| Element::new("metadata").child(mark)))
            .child(memory("memory", self.memory.max_size))
            .child(memory("currentMemory", self.memory.size))
            .child(
                Element::new("vcpu")
                    .attr("current", vcpus)
                    .text(most.vcpus()),
            )
            .child(self.os())
            .child(self.features())
            .child(self.processor())
            .child(self.clock())
            // Whether it is started again is the controller's decision.
            .child(Element::new("on_poweroff").text("destroy"))
            .child(Element::new("on_reboot").text("restart"))
            .child(Element::new("on_crash").text("destroy"))
            .child(power)
            .child(self.devices())
            .to_string()
    }

    /// With `firmware='efi'` alone, which firmware it becomes is the distribution's choice: Debian's has
    /// Secure Boot on. So the features are always written.
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
        // libvirt 9.0 takes no other loader while it chooses the firmware.
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
        // Secure Boot keeps its variables behind system management mode.
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
            .children(HYPERV_ANYWHERE.map(on))
            .child(on("spinlocks").attr("retries", SPINLOCK_RETRIES));
        if self.virt_type == VirtType::Kvm {
            hyperv
                .children(HYPERV_OF_KVM.map(on))
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
        Element::new("cpu")
            .attr("mode", self.cpu_mode.as_str())
            .child(topology)
    }

    /// Timers as virt-install sets them: they keep time in a guest that is not always given a processor.
    fn clock(&self) -> Element {
        let timer = |name: &str| Element::new("timer").attr("name", name);
        let is_kvm = self.virt_type == VirtType::Kvm;
        let hyperv = self.features.hyperv && is_kvm;
        Element::new("clock")
            .attr("offset", "utc")
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
        // On the host alone, and any number of guests beside each other.
        let screen = Element::new("graphics")
            .attr("type", "vnc")
            .attr("port", "-1")
            .attr("autoport", "yes")
            .attr("listen", "127.0.0.1");
        // Every firmware and every system draws on it without a driver.
        let model = Element::new("model").attr("type", "vga");
        let video = Element::new("video").child(model);
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
            .child(serial("serial").child(Element::new("target").attr("port", 0)))
            .child(serial("console").child(target("serial").attr("port", 0)))
            .child(agent)
            .child(tablet)
            .child(screen)
            .child(single("video", video))
            .child(single("memballoon", balloon))
            .child(single("rng", rng))
    }
}

fn memory(name: &str, amount: Bytes) -> Element {
    Element::new(name).attr("unit", "KiB").text(kib(amount))
}

/// An amount as libvirt counts it.
pub(super) fn kib(amount: Bytes) -> u64 {
    u64::try_from(amount.get().div_ceil(1024)).unwrap_or(u64::MAX)
}
