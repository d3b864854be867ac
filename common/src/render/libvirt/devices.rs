//! Disks, CD-ROM drives, network cards and the controllers of their buses.

use std::collections::BTreeMap;
use std::fmt;

use roxmltree::Node;

use super::limits::{DiskLimits, NicPolicy};
use super::xml::{self, Element, XmlError, attribute, find};
use crate::api::choice::{Choice as _, VolumeFormat};
use crate::mac::Mac;

/// Prefix of the aliases of disks. libvirt keeps an alias only if it begins with `ua-`; it generates all
/// others at every start.
const ALIAS_DISK: &str = "ua-disk-";
/// Prefix of the aliases of network cards: see [`ALIAS_DISK`].
const ALIAS_NIC: &str = "ua-nic-";

/// A volume of a storage pool, as the source of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolVolume {
    /// Name of the storage pool.
    pub pool: String,
    /// Name of the volume in the pool.
    pub volume: String,
    /// Format of the volume's file.
    pub format: VolumeFormat,
}

/// The tag of an access port of Open vSwitch that carries untagged frames only. A port without any tag would be a
/// trunk: the guest could read and send frames of every VLAN.
pub const UNTAGGED: u16 = 0;

/// What a network card is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicSource {
    /// A libvirt network, by name.
    Network(String),
    /// A Linux bridge, by device name.
    Bridge(String),
    /// An Open vSwitch bridge, by name.
    Ovs(String),
}

/// How a network card is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAttachment {
    /// The network or bridge.
    pub source: NicSource,
    /// VLAN tag of a port of Open vSwitch: 1 to 4094, or [`UNTAGGED`]. `None` on Open vSwitch is a trunk port, which
    /// carries all VLANs; rendering never makes one. Any other source cannot tag and is itself in the VLAN: `None`.
    pub vlan: Option<u16>,
    /// Largest packet in bytes; `None`: that of the source.
    pub mtu: Option<u32>,
    /// What the host imposes on the card.
    pub policy: NicPolicy,
}

impl fmt::Display for NicAttachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match &self.source {
            NicSource::Network(name) => ("network", name),
            NicSource::Bridge(name) => ("bridge", name),
            NicSource::Ovs(name) => ("ovs", name),
        };
        write!(f, "{kind} {name}")?;
        match (&self.source, self.vlan) {
            (NicSource::Ovs(_), None) => f.write_str(" all VLANs"),
            (NicSource::Ovs(_), Some(UNTAGGED)) => f.write_str(" untagged"),
            (_, Some(vlan)) => write!(f, " vlan {vlan}"),
            (_, None) => Ok(()),
        }
    }
}

/// Address of a device on its bus: the attributes of libvirt's `address` element, written back unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(pub BTreeMap<String, String>);

impl Address {
    pub(super) fn parse(device: Node<'_, '_>) -> Option<Self> {
        let attributes = find(device, &["address"])?.attributes();
        let attributes = attributes.map(|it| (it.name().to_owned(), it.value().to_owned()));
        Some(Self(attributes.collect()))
    }

    pub(super) fn element(&self) -> Element {
        let attributes = self.0.iter();
        attributes.fold(Element::new("address"), |element, (name, value)| {
            element.attr(name.as_str(), value)
        })
    }

    /// The PCI bus, which is the index of a PCI controller; `None` if the address is not a PCI address.
    pub(super) fn pci_bus(&self) -> Option<u32> {
        let is_pci = self.0.get("type").is_some_and(|kind| kind == "pci");
        let bus = self.0.get("bus").filter(|_| is_pci)?;
        u32::from_str_radix(bus.trim_start_matches("0x"), 16).ok()
    }
}

/// The controller of a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// `pci`, `scsi`, `sata` and so on.
    pub kind: String,
    /// Index among the controllers of the same kind, from 0.
    pub index: u32,
    /// Model; `None`: libvirt chooses.
    pub model: Option<String>,
    /// Address on its own bus; `None`: libvirt chooses.
    pub address: Option<Address>,
}

impl Controller {
    pub(super) fn new(kind: &str, index: u32, model: Option<&str>) -> Self {
        Self {
            kind: kind.to_owned(),
            index,
            model: model.map(ToOwned::to_owned),
            address: None,
        }
    }

    pub(super) fn element(&self) -> Element {
        let element = Element::new("controller")
            .attr("type", &self.kind)
            .attr("index", self.index);
        let element = match &self.model {
            Some(model) => element.attr("model", model),
            None => element,
        };
        element.children(self.address.as_ref().map(Address::element))
    }

    pub(super) fn parse(node: Node<'_, '_>) -> Result<Self, XmlError> {
        let kind = node.attribute("type");
        let index = node.attribute("index").unwrap_or("0");
        Ok(Self {
            kind: kind.ok_or(XmlError::Missing("controller type"))?.to_owned(),
            index: xml::value("controller index", index)?,
            model: node.attribute("model").map(ToOwned::to_owned),
            address: Address::parse(node),
        })
    }
}

/// A disk or a CD-ROM drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// `ua-disk-` and the name of the disk; libvirt's alias for a disk of another owner.
    pub alias: String,
    /// Whether this is a CD-ROM drive.
    pub cdrom: bool,
    /// Bus: `virtio`, `scsi`, `sata` or `ide`.
    pub bus: String,
    /// libvirt's name of the disk, such as `vda`, unique in the domain. The guest does not see it.
    pub target: String,
    /// The disk's volume. `None`: an empty drive, or a source that is not a volume of a pool.
    pub volume: Option<PoolVolume>,
    /// Whether the guest can only read. Always true for a CD-ROM drive.
    pub read_only: bool,
    /// Position in the boot order, from 1; `None`: the guest does not boot from it.
    pub boot_order: Option<u32>,
    /// Serial number that the guest sees; `None`: none.
    pub serial: Option<String>,
    /// Address on the bus; `None`: libvirt chooses.
    pub address: Option<Address>,
    /// What the host limits the disk to.
    pub limits: DiskLimits,
}

impl Disk {
    pub(super) fn alias_of(name: &str) -> String {
        format!("{ALIAS_DISK}{name}")
    }

    /// Whether this operator created the device.
    pub fn is_ours(&self) -> bool {
        self.alias.starts_with(ALIAS_DISK)
    }

    /// Whether it is a disk that this operator created, and no drive.
    pub fn is_our_disk(&self) -> bool {
        self.is_ours() && !self.cdrom
    }

    /// Name of the disk in the Machine; the target for a disk of another owner.
    pub fn name(&self) -> &str {
        let name = self.alias.strip_prefix(ALIAS_DISK);
        name.unwrap_or(&self.target)
    }

    /// Libvirt's XML of the device.
    pub fn xml(&self) -> String {
        self.element().to_string()
    }

    pub(super) fn element(&self) -> Element {
        let kind = self.volume.as_ref().map_or("file", |_| "volume");
        let format = self.volume.as_ref().map(|volume| volume.format);
        let driver = Element::new("driver")
            .attr("name", "qemu")
            .attr("type", format.unwrap_or(VolumeFormat::Raw).as_str());
        // Blocks that the guest discards are freed in the pool.
        let driver = if self.cdrom {
            driver
        } else {
            driver.attr("discard", "unmap")
        };
        let source = self.volume.as_ref().map(|volume| {
            Element::new("source")
                .attr("pool", &volume.pool)
                .attr("volume", &volume.volume)
        });
        let serial = self.serial.as_ref();
        let serial = serial.map(|serial| Element::new("serial").text(serial));
        let target = Element::new("target")
            .attr("dev", &self.target)
            .attr("bus", &self.bus);
        Element::new("disk")
            .attr("type", kind)
            .attr("device", if self.cdrom { "cdrom" } else { "disk" })
            .child(driver)
            .children(source)
            .child(target)
            .children(self.limits.element())
            .children(self.read_only.then(|| Element::new("readonly")))
            .children(serial)
            .children(boot(self.boot_order))
            .child(Element::new("alias").attr("name", &self.alias))
            .children(self.address.as_ref().map(Address::element))
    }

    pub(super) fn parse(node: Node<'_, '_>) -> Result<Self, XmlError> {
        let text = |path: &[&str], name| attribute(node, path, name).map(ToOwned::to_owned);
        let format = match attribute(node, &["driver"], "type") {
            Some("qcow2") => VolumeFormat::Qcow2,
            _ => VolumeFormat::Raw,
        };
        let volume = text(&["source"], "pool").zip(text(&["source"], "volume"));
        Ok(Self {
            alias: text(&["alias"], "name").unwrap_or_default(),
            cdrom: node.attribute("device") == Some("cdrom"),
            bus: text(&["target"], "bus").unwrap_or_default(),
            target: text(&["target"], "dev").ok_or(XmlError::Missing("disk target"))?,
            volume: volume.map(|(pool, volume)| PoolVolume {
                pool,
                volume,
                format,
            }),
            read_only: find(node, &["readonly"]).is_some(),
            boot_order: boot_order(node)?,
            serial: xml::text(node, &["serial"]).map(ToOwned::to_owned),
            address: Address::parse(node),
            limits: DiskLimits::parse(node)?,
        })
    }
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// `ua-nic-` and the name of the card; libvirt's alias for a card of another owner.
    pub alias: String,
    /// MAC address: that of the spec, else one that is derived from the Machine's identity.
    pub mac: Mac,
    /// Emulated model, such as `virtio`.
    pub model: String,
    /// Network or bridge, VLAN and MTU.
    pub attachment: NicAttachment,
    /// Position in the boot order, from 1; `None`: the guest does not boot from it.
    pub boot_order: Option<u32>,
    /// Address on the bus; `None`: libvirt chooses.
    pub address: Option<Address>,
}

impl Nic {
    /// Name of the card in the spec; `None`: it is not one of ours.
    pub fn card(&self) -> Option<&str> {
        self.alias.strip_prefix(ALIAS_NIC)
    }

    pub(super) fn alias_of(name: &str) -> String {
        format!("{ALIAS_NIC}{name}")
    }

    /// Whether this operator created the device.
    pub fn is_ours(&self) -> bool {
        self.alias.starts_with(ALIAS_NIC)
    }

    /// Name of the card in the Machine; libvirt's alias for a card of another owner.
    pub fn name(&self) -> &str {
        let name = self.alias.strip_prefix(ALIAS_NIC);
        name.unwrap_or(&self.alias)
    }

    /// Libvirt's XML of the device.
    pub fn xml(&self) -> String {
        self.element().to_string()
    }

    pub(super) fn element(&self) -> Element {
        let NicAttachment {
            source,
            vlan,
            mtu,
            policy,
        } = &self.attachment;
        let (kind, name) = match source {
            NicSource::Network(name) => ("network", name),
            NicSource::Bridge(name) | NicSource::Ovs(name) => ("bridge", name),
        };
        let is_ovs = matches!(source, NicSource::Ovs(_));
        let port = is_ovs.then(|| Element::new("virtualport").attr("type", "openvswitch"));
        let tag = vlan.map(|vlan| Element::new("tag").attr("id", vlan));
        Element::new("interface")
            .attr("type", kind)
            .child(Element::new("mac").attr("address", self.mac))
            .child(Element::new("source").attr(kind, name))
            .children(port)
            .children(tag.map(|tag| Element::new("vlan").child(tag)))
            .child(Element::new("model").attr("type", &self.model))
            .children(boot(self.boot_order))
            .children(mtu.map(|mtu| Element::new("mtu").attr("size", mtu)))
            .children(policy.elements())
            .child(Element::new("alias").attr("name", &self.alias))
            .children(self.address.as_ref().map(Address::element))
    }

    /// `None` for a card with a source that is no [`NicSource`].
    pub(super) fn parse(node: Node<'_, '_>) -> Result<Option<Self>, XmlError> {
        let text = |path: &[&str], name| attribute(node, path, name).map(ToOwned::to_owned);
        let is_ovs = attribute(node, &["virtualport"], "type") == Some("openvswitch");
        // In a running domain, a card on a network also has the name of the network's bridge.
        let source = match (text(&["source"], "network"), text(&["source"], "bridge")) {
            (Some(network), _) => NicSource::Network(network),
            (None, Some(bridge)) if is_ovs => NicSource::Ovs(bridge),
            (None, Some(bridge)) => NicSource::Bridge(bridge),
            (None, None) => return Ok(None),
        };
        let mac = attribute(node, &["mac"], "address");
        let mtu = attribute(node, &["mtu"], "size");
        Ok(Some(Self {
            alias: text(&["alias"], "name").unwrap_or_default(),
            mac: xml::value("MAC address", mac.ok_or(XmlError::Missing("MAC address"))?)?,
            model: text(&["model"], "type").unwrap_or_default(),
            attachment: NicAttachment {
                source,
                vlan: vlan(node)?,
                mtu: mtu.map(|mtu| xml::value("MTU", mtu)).transpose()?,
                policy: NicPolicy::parse(node)?,
            },
            boot_order: boot_order(node)?,
            address: Address::parse(node),
        }))
    }
}

/// The tag of an access port; `None` for a trunk port, which has several tags or says that it is one.
fn vlan(interface: Node<'_, '_>) -> Result<Option<u16>, XmlError> {
    let Some(vlan) = find(interface, &["vlan"]) else {
        return Ok(None);
    };
    let mut tags = xml::all(vlan, "tag").filter_map(|tag| tag.attribute("id"));
    let is_trunk = vlan.attribute("trunk") == Some("yes");
    match (tags.next(), tags.next()) {
        (Some(tag), None) if !is_trunk => xml::value("VLAN", tag).map(Some),
        _ => Ok(None),
    }
}

fn boot(order: Option<u32>) -> Option<Element> {
    order.map(|order| Element::new("boot").attr("order", order))
}

fn boot_order(device: Node<'_, '_>) -> Result<Option<u32>, XmlError> {
    let order = attribute(device, &["boot"], "order");
    let order = order.map(|order| xml::value("boot order", order));
    order.transpose()
}
