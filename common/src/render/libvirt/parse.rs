//! Parses libvirt's XML of a domain, inactive or live.

use std::collections::BTreeSet;

use roxmltree::Node;

use super::devices::{Address, Controller, Disk, Nic};
use super::display::{Display, console_log};
use super::domain::{Domain, SINGLE_DEVICES, VirtType, WATCHDOG_MODEL, kib};
use super::host_device::HostDevice;
use super::limits::has_vcpu_quota;
use super::metadata::DomainMetadata;
use super::pinning::Pinning;
use super::xml::{self, XmlError, all, attribute, find, text, value};
use crate::api::choice::{Choice as _, CpuMode, HugepageSize, WatchdogAction};
use crate::api::normalized::{
    Firmware, NormalizedCpu, NormalizedFeatures, NormalizedMemory, NormalizedTpm,
};
use crate::quantity::Bytes;

impl Domain {
    /// Parses libvirt's XML of any domain, also of one that this operator did not create. Elements that have
    /// no field in [`Domain`] are ignored.
    pub fn parse(xml: &str) -> Result<Self, XmlError> {
        let document = xml::document(xml)?;
        let root = document.root_element();
        if !root.has_tag_name("domain") {
            return Err(XmlError::Missing("domain"));
        }
        let required = |name: &'static str| text(root, &[name]).ok_or(XmlError::Missing(name));
        let machine = attribute(root, &["os", "type"], "machine").unwrap_or_default();
        let features = |name| find(root, &["features", name]).is_some();
        let devices = find(root, &["devices"]).ok_or(XmlError::Missing("devices"))?;
        let nics = all(devices, "interface").map(Nic::parse);
        let address = |name: &&str| {
            let device = find(devices, &[name])?;
            Some(((*name).to_owned(), Address::parse(device)?))
        };
        let watchdog = watchdog(devices);
        let watchdog_address = watchdog
            .and_then(Address::parse)
            .map(|address| ("watchdog".to_owned(), address));
        let domain = Self {
            name: required("name")?.to_owned(),
            uuid: value("uuid", required("uuid")?)?,
            metadata: find(root, &["metadata"]).and_then(DomainMetadata::find_in),
            virt_type: match root.attribute("type") {
                Some("kvm") => VirtType::Kvm,
                Some("test") => VirtType::Test,
                _ => VirtType::Qemu,
            },
            cpu_mode: match attribute(root, &["cpu"], "mode") {
                Some("host-passthrough") => CpuMode::HostPassthrough,
                Some("maximum") => CpuMode::Maximum,
                // A running guest shows the CPU model that libvirt chose for host-model.
                _ => CpuMode::HostModel,
            },
            cpu_model: text(root, &["cpu", "model"])
                .filter(|_| attribute(root, &["cpu"], "mode") == Some("custom"))
                .map(ToOwned::to_owned),
            cpu: cpu(root)?,
            memory: memory(root)?,
            hugepages: hugepages(root),
            machine: machine.to_owned(),
            firmware: firmware(root),
            nvram: text(root, &["os", "nvram"]).map(ToOwned::to_owned),
            tpm: find(devices, &["tpm", "backend"]).map(|backend| NormalizedTpm {
                persistent: backend.attribute("persistent_state") == Some("yes"),
            }),
            watchdog: watchdog.and_then(|it| WatchdogAction::of_backend(it.attribute("action")?)),
            timezone: attribute(root, &["clock"], "timezone").map(ToOwned::to_owned),
            features: NormalizedFeatures {
                acpi: features("acpi"),
                apic: features("apic"),
                hyperv: features("hyperv"),
            },
            controllers: all(devices, "controller")
                .map(Controller::parse)
                .collect::<Result<_, _>>()?,
            disks: all(devices, "disk")
                .map(Disk::parse)
                .collect::<Result<_, _>>()?,
            nics: nics
                .filter_map(Result::transpose)
                .collect::<Result<_, _>>()?,
            host_devices: all(devices, "hostdev")
                .filter_map(HostDevice::parse)
                .collect(),
            display: Display::parse(root, devices),
            console_log: console_log(devices),
            addresses: SINGLE_DEVICES
                .iter()
                .filter_map(address)
                .chain(watchdog_address)
                .collect(),
            vcpu_quota: has_vcpu_quota(root),
            pinning: Pinning::parse(root),
        };
        Ok(domain.sorted())
    }
}

fn cpu(root: Node<'_, '_>) -> Result<NormalizedCpu, XmlError> {
    let maximum = text(root, &["vcpu"]).ok_or(XmlError::Missing("vcpu"))?;
    let current = attribute(root, &["vcpu"], "current").unwrap_or(maximum);
    let topology = |name| attribute(root, &["cpu", "topology"], name);
    let count = |name, absent| value("topology", topology(name).unwrap_or(absent));
    let (cores, threads): (u32, u32) = (count("cores", "1")?, count("threads", "1")?);
    let current: u32 = value("vcpu", current)?;
    Ok(NormalizedCpu {
        cores,
        // Without a topology, libvirt gives every vCPU a socket of its own.
        max_sockets: count("sockets", maximum)?,
        sockets: current.div_ceil(cores.saturating_mul(threads).max(1)),
        threads,
    })
}

fn memory(root: Node<'_, '_>) -> Result<NormalizedMemory, XmlError> {
    let amount = |name: &'static str| {
        let kib = text(root, &[name]).map(|text| value::<u64>(name, text));
        let kib = kib.transpose()?;
        Ok(kib.map(|kib| Bytes::new(u128::from(kib) * 1024)))
    };
    let max_size = amount("memory")?.ok_or(XmlError::Missing("memory"))?;
    Ok(NormalizedMemory {
        size: amount("currentMemory")?.unwrap_or(max_size),
        max_size,
    })
}

/// libvirt writes the size of the pages in KiB.
fn hugepages(root: Node<'_, '_>) -> Option<HugepageSize> {
    let page = attribute(root, &["memoryBacking", "hugepages", "page"], "size")?;
    let size = |size: &HugepageSize| kib(size.bytes()).to_string() == page;
    HugepageSize::ALL.iter().copied().find(size)
}

/// The watchdog of this operator. libvirt adds that of the chipset, an itco, to machines of the type q35.
fn watchdog<'a, 'input>(devices: Node<'a, 'input>) -> Option<Node<'a, 'input>> {
    all(devices, "watchdog").find(|it| it.attribute("model") == Some(WATCHDOG_MODEL))
}

fn firmware(root: Node<'_, '_>) -> Firmware {
    let loader = |name| attribute(root, &["os", "loader"], name);
    let is_efi =
        attribute(root, &["os"], "firmware") == Some("efi") || loader("type") == Some("pflash");
    if is_efi {
        Firmware::efi(loader("secure") == Some("yes"))
    } else {
        Firmware::BIOS
    }
}

/// Storage that a domain reads or writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reference {
    /// A volume of a storage pool.
    Volume {
        /// Name of the pool.
        pool: String,
        /// Name of the volume.
        volume: String,
    },
    /// Path of a file or a block device.
    Path(String),
}

/// All storage that a domain refers to, including the backing images that its XML lists. It accepts any
/// domain, also one that this operator did not create. A volume in the result must not be deleted.
pub fn references(xml: &str) -> Result<BTreeSet<Reference>, XmlError> {
    let document = xml::document(xml)?;
    let sources = document
        .descendants()
        .filter_map(|node| match node.tag_name().name() {
            "source" => reference(node),
            "nvram" | "kernel" | "initrd" | "loader" => {
                let path = node.text()?.trim();
                (!path.is_empty()).then(|| Reference::Path(path.to_owned()))
            }
            _ => None,
        });
    Ok(sources.collect())
}

/// The storage that the guest of a domain can write: its disks that are not read-only, and what they are mirrored to.
/// Their backing images are not among it, and neither are media: libvirt makes every CD-ROM read-only.
pub fn written_references(xml: &str) -> Result<BTreeSet<Reference>, XmlError> {
    let document = xml::document(xml)?;
    let is_written = |disk: &Node<'_, '_>| {
        disk.has_tag_name("disk")
            && disk.attribute("device") != Some("cdrom")
            && !disk.children().any(|it| it.has_tag_name("readonly"))
    };
    let disks = document.descendants().filter(is_written);
    let own = disks.flat_map(|disk| disk.children());
    let sources = own.flat_map(|node| match node.tag_name().name() {
        "source" => vec![node],
        "mirror" => node.children().collect(),
        _ => vec![],
    });
    let sources = sources.filter(|node| node.has_tag_name("source"));
    Ok(sources.filter_map(reference).collect())
}

/// What an element `source` refers to.
fn reference(source: Node<'_, '_>) -> Option<Reference> {
    let text = |name| source.attribute(name).map(ToOwned::to_owned);
    match text("pool").zip(text("volume")) {
        Some((pool, volume)) => Some(Reference::Volume { pool, volume }),
        None => text("file").or_else(|| text("dev")).map(Reference::Path),
    }
}
