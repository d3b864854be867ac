//! Disks, CD-ROM drives, network cards and what they are plugged into.

use std::collections::BTreeMap;
use std::fmt;

use roxmltree::Node;

use super::xml::{self, Element, XmlError, attribute, find};
use crate::api::choice::{Choice as _, VolumeFormat};
use crate::mac::Mac;

/// What libvirt asks of a name that it shall keep: all others it makes anew at every start.
const ALIAS_DISK: &str = "ua-disk-";
/// See [`ALIAS_DISK`].
const ALIAS_NIC: &str = "ua-nic-";

/// Where the content of a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Name of the pool.
    pub pool: String,
    /// Name of the volume in it.
    pub volume: String,
    /// Its format.
    pub format: VolumeFormat,
}

/// What a network card is wired to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// A network of libvirt.
    Network(String),
    /// A Linux bridge.
    Bridge(String),
    /// A bridge of Open vSwitch.
    Ovs(String),
}

/// How a network card is wired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// What it is wired to.
    pub wire: Wire,
    /// VLAN of the card. Open vSwitch tags; any other wire *is* the VLAN, and has no tag.
    pub vlan: Option<u16>,
    /// Largest packet in bytes.
    pub mtu: Option<u32>,
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match &self.wire {
            Wire::Network(name) => ("network", name),
            Wire::Bridge(name) => ("bridge", name),
            Wire::Ovs(name) => ("ovs", name),
        };
        write!(f, "{kind} {name}")?;
        self.vlan.map_or(Ok(()), |vlan| write!(f, " vlan {vlan}"))
    }
}

/// Where on a bus a device sits: the attributes of libvirt's element, which are handed back as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(pub BTreeMap<String, String>);

impl Address {
    pub(super) fn of(device: Node<'_, '_>) -> Option<Self> {
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

    /// The PCI bus: the index of a PCI controller.
    pub(super) fn pci_bus(&self) -> Option<u32> {
        let is_pci = self.0.get("type").is_some_and(|kind| kind == "pci");
        let bus = self.0.get("bus").filter(|_| is_pci)?;
        u32::from_str_radix(bus.trim_start_matches("0x"), 16).ok()
    }
}

/// What devices are plugged into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// `pci`, `scsi`, `sata` and so on.
    pub kind: String,
    /// Its number among those of its kind.
    pub index: u32,
    /// Its model; libvirt chooses where there is none.
    pub model: Option<String>,
    /// Where it sits.
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

    pub(super) fn of(node: Node<'_, '_>) -> Result<Self, XmlError> {
        let kind = node.attribute("type");
        let index = node.attribute("index").unwrap_or("0");
        Ok(Self {
            kind: kind.ok_or(XmlError::Missing("controller type"))?.to_owned(),
            index: xml::value("controller index", index)?,
            model: node.attribute("model").map(ToOwned::to_owned),
            address: Address::of(node),
        })
    }
}

/// A disk or a CD-ROM drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// `ua-disk-` and the name of the disk; as libvirt calls it where the disk is not ours.
    pub alias: String,
    /// Whether it is a CD-ROM drive.
    pub cdrom: bool,
    /// The bus the guest sees it on.
    pub bus: String,
    /// libvirt's name for its place, such as `vda`. The guest does not see it.
    pub target: String,
    /// What is in it. Absent: an empty drive, or what is no volume of a pool.
    pub volume: Option<Placed>,
    /// Whether the guest may only read. Every CD-ROM drive is so.
    pub read_only: bool,
    /// Place in the boot order, from 1.
    pub boot_order: Option<u32>,
    /// Where it sits.
    pub address: Option<Address>,
}

impl Disk {
    pub(super) fn alias_of(name: &str) -> String {
        format!("{ALIAS_DISK}{name}")
    }

    /// Whether this product made it.
    pub fn is_ours(&self) -> bool {
        self.alias.starts_with(ALIAS_DISK)
    }

    /// Name of the disk; of its place where the disk is not ours.
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
        let format = self.volume.as_ref().map(|placed| placed.format);
        let driver = Element::new("driver")
            .attr("name", "qemu")
            .attr("type", format.unwrap_or(VolumeFormat::Raw).as_str());
        // What the guest trims is given back to the pool.
        let driver = if self.cdrom {
            driver
        } else {
            driver.attr("discard", "unmap")
        };
        let source = self.volume.as_ref().map(|placed| {
            Element::new("source")
                .attr("pool", &placed.pool)
                .attr("volume", &placed.volume)
        });
        let target = Element::new("target")
            .attr("dev", &self.target)
            .attr("bus", &self.bus);
        Element::new("disk")
            .attr("type", kind)
            .attr("device", if self.cdrom { "cdrom" } else { "disk" })
            .child(driver)
            .children(source)
            .child(target)
            .children(self.read_only.then(|| Element::new("readonly")))
            .children(boot(self.boot_order))
            .child(Element::new("alias").attr("name", &self.alias))
            .children(self.address.as_ref().map(Address::element))
    }

    pub(super) fn of(node: Node<'_, '_>) -> Result<Self, XmlError> {
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
            volume: volume.map(|(pool, volume)| Placed {
                pool,
                volume,
                format,
            }),
            read_only: find(node, &["readonly"]).is_some(),
            boot_order: boot_order(node)?,
            address: Address::of(node),
        })
    }
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// `ua-nic-` and the name of the card; as libvirt calls it where the card is not ours.
    pub alias: String,
    /// Its MAC address.
    pub mac: Mac,
    /// Its model.
    pub model: String,
    /// How it is wired.
    pub attached: Attached,
    /// Place in the boot order, from 1.
    pub boot_order: Option<u32>,
    /// Where it sits.
    pub address: Option<Address>,
}

impl Nic {
    pub(super) fn alias_of(name: &str) -> String {
        format!("{ALIAS_NIC}{name}")
    }

    /// Whether this product made it.
    pub fn is_ours(&self) -> bool {
        self.alias.starts_with(ALIAS_NIC)
    }

    /// Name of the card; libvirt's where the card is not ours.
    pub fn name(&self) -> &str {
        let name = self.alias.strip_prefix(ALIAS_NIC);
        name.unwrap_or(&self.alias)
    }

    /// Libvirt's XML of the device.
    pub fn xml(&self) -> String {
        self.element().to_string()
    }

    pub(super) fn element(&self) -> Element {
        let Attached { wire, vlan, mtu } = &self.attached;
        let (kind, name) = match wire {
            Wire::Network(name) => ("network", name),
            Wire::Bridge(name) | Wire::Ovs(name) => ("bridge", name),
        };
        let is_ovs = matches!(wire, Wire::Ovs(_));
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
            .child(Element::new("alias").attr("name", &self.alias))
            .children(self.address.as_ref().map(Address::element))
    }

    /// `None`: a card that is wired in a way of which this product makes none.
    pub(super) fn of(node: Node<'_, '_>) -> Result<Option<Self>, XmlError> {
        let text = |path: &[&str], name| attribute(node, path, name).map(ToOwned::to_owned);
        let is_ovs = attribute(node, &["virtualport"], "type") == Some("openvswitch");
        // A card that runs tells the bridge behind its network, too.
        let wire = match (text(&["source"], "network"), text(&["source"], "bridge")) {
            (Some(network), _) => Wire::Network(network),
            (None, Some(bridge)) if is_ovs => Wire::Ovs(bridge),
            (None, Some(bridge)) => Wire::Bridge(bridge),
            (None, None) => return Ok(None),
        };
        let mac = attribute(node, &["mac"], "address");
        let vlan = attribute(node, &["vlan", "tag"], "id");
        let mtu = attribute(node, &["mtu"], "size");
        Ok(Some(Self {
            alias: text(&["alias"], "name").unwrap_or_default(),
            mac: xml::value("MAC address", mac.ok_or(XmlError::Missing("MAC address"))?)?,
            model: text(&["model"], "type").unwrap_or_default(),
            attached: Attached {
                wire,
                vlan: vlan.map(|vlan| xml::value("VLAN", vlan)).transpose()?,
                mtu: mtu.map(|mtu| xml::value("MTU", mtu)).transpose()?,
            },
            boot_order: boot_order(node)?,
            address: Address::of(node),
        }))
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
