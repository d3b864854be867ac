//! PCI devices of the host that a guest has for itself.

use std::collections::BTreeSet;

use roxmltree::Node;

use super::devices::Address;
use super::xml::{self, Element, XmlError, attribute, find};
use crate::pci::PciAddress;

/// Prefix of the aliases of devices of the host: libvirt keeps an alias only if it begins with `ua-`.
const ALIAS: &str = "ua-device-";

/// A PCI device of the host that a guest has for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// `ua-device-` and the name of the device; libvirt's alias for a device of another owner.
    pub alias: String,
    /// Where the device is on the host.
    pub source: PciAddress,
    /// Address in the guest; `None`: libvirt chooses.
    pub address: Option<Address>,
}

impl HostDevice {
    pub(super) fn new(name: &str, source: PciAddress) -> Self {
        Self {
            alias: format!("{ALIAS}{name}"),
            source,
            address: None,
        }
    }

    /// Name of the device in the Machine; libvirt's alias for a device of another owner.
    pub fn name(&self) -> &str {
        let name = self.alias.strip_prefix(ALIAS);
        name.unwrap_or(&self.alias)
    }

    /// libvirt takes a managed device from its driver when the guest starts, and gives it back afterwards.
    pub(super) fn element(&self) -> Element {
        let hex = |width: usize, number: u16| format!("0x{number:0width$x}");
        let [domain, bus, slot, function] = self.source.parts();
        let source = Element::new("address")
            .attr("domain", hex(4, domain))
            .attr("bus", hex(2, bus))
            .attr("slot", hex(2, slot))
            .attr("function", hex(1, function));
        Element::new("hostdev")
            .attr("mode", "subsystem")
            .attr("type", "pci")
            .attr("managed", "yes")
            .child(Element::new("source").child(source))
            .child(Element::new("alias").attr("name", &self.alias))
            .children(self.address.as_ref().map(Address::element))
    }

    /// `None` for a device that is no PCI device.
    pub(super) fn parse(node: Node<'_, '_>) -> Option<Self> {
        let is_pci = node.attribute("type") == Some("pci");
        let source = find(node, &["source"]).filter(|_| is_pci)?;
        Some(Self {
            alias: attribute(node, &["alias"], "name")
                .unwrap_or_default()
                .to_owned(),
            source: pci_source(source)?,
            address: Address::parse(node),
        })
    }
}

/// The PCI device that an element `source` names.
fn pci_source(source: Node<'_, '_>) -> Option<PciAddress> {
    let number = |name| {
        let text = attribute(source, &["address"], name)?;
        match text.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let small = |name| u8::try_from(number(name)?).ok();
    let domain = number("domain").unwrap_or_default();
    PciAddress::new(domain, small("bus")?, small("slot")?, small("function")?)
}

/// The PCI devices of the host that a domain has, in whichever way: as devices, network cards or disks. It accepts any
/// domain, also one that this operator did not create.
pub fn pci_devices(xml: &str) -> Result<BTreeSet<PciAddress>, XmlError> {
    let document = xml::document(xml)?;
    let sources = document.descendants();
    let sources = sources.filter(|node| node.has_tag_name("source"));
    Ok(sources.filter_map(pci_source).collect())
}
