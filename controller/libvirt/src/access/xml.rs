//! Parses libvirt's XML descriptions.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::Ipv4Addr;

use common::address::Cidr;
use common::api::choice::{Choice as _, HugepageSize, VirtType};
use common::render::libvirt::{
    Reference, pci_devices, pinned_cpus, references, written_references,
};
use roxmltree::{Document, Node};
use uuid::Uuid;

use super::raw_disk::as_it_is;
use super::{AccessError, DhcpHost, DhcpServer, DomainHardware, Result, Volume};

/// A description, parsed.
pub(super) fn parse(text: &str) -> Result<Document<'_>> {
    Document::parse(text).map_err(|error| refused(&error))
}

/// The child element of that name.
pub(super) fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|it| it.has_tag_name(name))
}

/// The text at a path of elements below the root, if there is any.
pub(super) fn text<'a>(document: &'a Document<'_>, path: &[&str]) -> Option<&'a str> {
    let node = path
        .iter()
        .try_fold(document.root_element(), |node, name| child(node, name))?;
    node.text().map(str::trim).filter(|it| !it.is_empty())
}

/// The volumes and files that a description of a domain refers to.
pub(super) struct DomainSources {
    pub(super) all: BTreeSet<Reference>,
    /// Those that its guest can write.
    pub(super) written: BTreeSet<Reference>,
}

/// The volumes and files that a domain refers to.
pub(super) fn sources(domain: &str) -> Result<DomainSources> {
    Ok(DomainSources {
        all: references(domain).map_err(|error| refused(&error))?,
        written: written_references(domain).map_err(|error| refused(&error))?,
    })
}

/// What a domain has of its host for itself.
pub(super) fn hardware(domain: &str) -> Result<DomainHardware> {
    Ok(DomainHardware {
        devices: pci_devices(domain).map_err(|error| refused(&error))?,
        cpus: pinned_cpus(domain).map_err(|error| refused(&error))?,
    })
}

fn refused(error: &dyn Display) -> AccessError {
    AccessError::Refused(format!("libvirt's description: {error}"))
}

/// The UUID of a host, of its capabilities.
pub(super) fn host_uuid(capabilities: &str) -> Result<Option<Uuid>> {
    let document = parse(capabilities)?;
    Ok(text(&document, &["host", "uuid"]).and_then(|it| it.parse().ok()))
}

/// The machine types of an architecture, canonical names and aliases, of a host's capabilities.
pub(super) fn machine_types(capabilities: &str, architecture: &str) -> Result<Vec<String>> {
    let document = parse(capabilities)?;
    let arches = document
        .descendants()
        .filter(|it| it.has_tag_name("arch") && it.attribute("name") == Some(architecture));
    let machines = arches
        .flat_map(|it| it.descendants())
        .filter(|it| it.has_tag_name("machine"));
    let names: BTreeSet<String> = machines
        .flat_map(|it| [it.text(), it.attribute("canonical")])
        .flatten()
        .map(str::to_owned)
        .collect();
    Ok(names.into_iter().collect())
}

/// The type of a pool, and the folder of its volumes.
#[cfg_attr(
    not(feature = "native"),
    allow(dead_code, reason = "the fake knows its pools")
)]
pub(super) fn pool_type(pool: &str) -> Result<(String, Option<String>)> {
    let document = parse(pool)?;
    let kind = document.root_element().attribute("type");
    let path = text(&document, &["target", "path"]);
    Ok((kind.unwrap_or_default().to_owned(), path.map(str::to_owned)))
}

/// What a host can give to a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GuestHardware {
    /// UEFI.
    pub(super) efi: bool,
    /// UEFI with Secure Boot.
    pub(super) secure_boot: bool,
    /// An emulated TPM 2.0.
    pub(super) tpm: bool,
}

/// What a host can give to a guest, of the capabilities of a domain.
pub(super) fn guest_hardware(capabilities: &str) -> Result<GuestHardware> {
    let document = parse(capabilities)?;
    let root = document.root_element();
    let offers = |within: Node<'_, '_>, name: &str, value: &str| {
        within
            .children()
            .filter(|it| it.has_tag_name("enum") && it.attribute("name") == Some(name))
            .flat_map(|it| it.children())
            .any(|it| it.text() == Some(value))
    };
    let os = child(root, "os");
    let loader = os.and_then(|os| child(os, "loader"));
    let tpm = child(root, "devices").and_then(|devices| child(devices, "tpm"));
    Ok(GuestHardware {
        efi: os.is_some_and(|os| offers(os, "firmware", "efi")),
        secure_boot: loader.is_some_and(|it| offers(it, "secure", "yes")),
        // libvirt 9.0 lists the backend if swtpm and swtpm_setup are installed.
        tpm: tpm.is_some_and(|it| offers(it, "backendModel", "emulator")),
    })
}

/// The CPU models that guests can have, and the ways to take that of the host, of the capabilities of a domain. Sorted.
/// Emulated guests can have each model: libvirt compares it with the host under KVM only, and QEMU leaves out what it
/// cannot emulate.
pub(super) fn cpu_models(capabilities: &str, virt_type: VirtType) -> Result<Vec<String>> {
    let document = parse(capabilities)?;
    let cpu = child(document.root_element(), "cpu");
    let modes = cpu.into_iter().flat_map(|cpu| cpu.children());
    let mut found = BTreeSet::new();
    for mode in modes.filter(|it| it.attribute("supported") == Some("yes")) {
        if mode.attribute("name") == Some("custom") {
            let listed = mode.children().filter(|it| it.has_tag_name("model"));
            let usable = listed
                .filter(|it| virt_type == VirtType::Qemu || it.attribute("usable") == Some("yes"));
            found.extend(usable.filter_map(|it| it.text()).map(str::to_owned));
        } else {
            found.extend(mode.attribute("name").map(str::to_owned));
        }
    }
    Ok(found.into_iter().collect())
}

/// The sizes of huge pages of which a host has any, of its capabilities; `None`: they do not say.
pub(super) fn hugepages(capabilities: &str) -> Result<Option<Vec<HugepageSize>>> {
    let document = parse(capabilities)?;
    let cells = document.descendants();
    let counts: Vec<_> = cells
        .filter(|it| it.has_tag_name("cell"))
        .flat_map(|it| it.children())
        .filter(|it| it.has_tag_name("pages"))
        .collect();
    let has = |size: HugepageSize| {
        let kib = (size.bytes().get() / 1024).to_string();
        counts.iter().any(|pages| {
            let of_size = pages.attribute("unit") == Some("KiB")
                && pages.attribute("size") == Some(kib.as_str());
            of_size && pages.text().is_some_and(|count| count.trim() != "0")
        })
    };
    let sizes = HugepageSize::ALL.iter().copied().filter(|size| has(*size));
    Ok((!counts.is_empty()).then(|| sizes.collect()))
}

/// The security models of a host that confine a guest, of its capabilities. The model `dac` changes owners of files only.
pub(super) fn security_drivers(capabilities: &str) -> Result<Vec<String>> {
    let document = parse(capabilities)?;
    let host = child(document.root_element(), "host");
    let models = host
        .into_iter()
        .flat_map(|host| host.children())
        .filter(|it| it.has_tag_name("secmodel"))
        .filter_map(|it| child(it, "model")?.text());
    let confining = models.filter(|model| !["none", "dac"].contains(model));
    Ok(confining.map(str::to_owned).collect())
}

/// Whether the cards on a network are ports of a Linux bridge, and not of Open vSwitch or of a device of the host.
pub(super) fn is_linux_bridge(network: &str) -> Result<bool> {
    let document = parse(network)?;
    let has_bridge = child(document.root_element(), "bridge").is_some();
    let mut nodes = document.descendants();
    Ok(has_bridge && !nodes.any(|it| it.has_tag_name("virtualport")))
}

/// The DHCP server of a network, for IPv4.
pub(super) fn dhcp_server(network: &str) -> Result<DhcpServer> {
    let document = parse(network)?;
    let mut server = DhcpServer::default();
    let subnets = document.root_element().children();
    for subnet in subnets.filter(|it| it.has_tag_name("ip")) {
        let Some(dhcp) = child(subnet, "dhcp") else {
            continue;
        };
        // One of IPv6 has no address of IPv4.
        let Some(addresses) = served(subnet) else {
            continue;
        };
        server.subnets.push(addresses);
        let parsed = |node: Node<'_, '_>, name: &str| -> Option<Ipv4Addr> {
            node.attribute(name)?.parse().ok()
        };
        let hosts = dhcp.children().filter(|it| it.has_tag_name("host"));
        for host in hosts {
            let mac = host.attribute("mac").and_then(|it| it.parse().ok());
            match (mac, parsed(host, "ip")) {
                (Some(mac), Some(address)) => server.hosts.push(DhcpHost { mac, address }),
                partial => server.partial.push(partial),
            }
        }
    }
    Ok(server)
}

/// Position of the subnet of an address among the network's elements `ip`, by which libvirt finds it: without, it takes the
/// first one with a DHCP server, of IPv6, too. `None`: no DHCP server of the network gives the address.
#[cfg_attr(
    not(feature = "native"),
    allow(dead_code, reason = "the fake has no definitions of networks")
)]
pub(super) fn subnet_of(network: &str, address: Ipv4Addr) -> Result<Option<usize>> {
    let document = parse(network)?;
    let subnets = document.root_element().children();
    let mut subnets = subnets.filter(|it| it.has_tag_name("ip")).enumerate();
    let found = subnets
        .find(|(_, subnet)| served(*subnet).is_some_and(|subnet| subnet.contains(address.into())));
    Ok(found.map(|(index, _)| index))
}

/// The addresses of a subnet with a DHCP server; `None`: there is none for IPv4.
fn served(subnet: Node<'_, '_>) -> Option<Cidr> {
    child(subnet, "dhcp")?;
    let parsed = |name: &str| -> Option<Ipv4Addr> { subnet.attribute(name)?.parse().ok() };
    let own = parsed("address")?;
    let prefix = subnet.attribute("prefix").and_then(|it| it.parse().ok());
    let mask = || parsed("netmask").map(|it| it.to_bits().leading_ones());
    let prefix = prefix.or_else(|| u8::try_from(mask()?).ok())?;
    Some(Cidr::containing(own.into(), prefix))
}

/// The element of an address that a DHCP server keeps for a card.
#[cfg_attr(
    not(feature = "native"),
    allow(dead_code, reason = "the fake has no definitions of networks")
)]
pub(super) fn dhcp_host(host: DhcpHost) -> String {
    format!("<host mac='{}' ip='{}'/>", host.mac, host.address)
}

/// The interface of a node device.
pub(super) fn interface(device: &str) -> Result<Option<String>> {
    let document = parse(device)?;
    Ok(document
        .descendants()
        .find(|it| it.has_tag_name("interface"))
        .and_then(|it| it.text())
        .map(str::to_owned))
}

/// The path of a volume's backing file.
pub(super) fn backing(volume: &Document<'_>) -> Option<String> {
    text(volume, &["backingStore", "path"]).map(str::to_owned)
}

/// A volume, as libvirt describes it: in bytes.
pub(super) fn volume(volume: &str) -> Result<Volume> {
    let document = parse(volume)?;
    let wanted = |path: &[&str]| {
        let what = path.join("/");
        text(&document, path).ok_or_else(|| refused(&format!("a volume without {what}")))
    };
    let bytes = |name: &str| {
        let number = wanted(&[name])?;
        number
            .parse()
            .map_err(|_| refused(&format!("a volume's {name} '{number}'")))
    };
    let target = child(document.root_element(), "target");
    let format = target.and_then(|it| child(it, "format")?.attribute("type"));
    // libvirt leaves it out where it is not known.
    let physical = text(&document, &["physical"]).map(|_| bytes("physical"));
    let physical = physical.transpose()?;
    let reported = Volume {
        name: wanted(&["name"])?.to_owned(),
        // Every driver reports a key; without it the path identifies the volume.
        key: text(&document, &["key"])
            .map_or_else(|| wanted(&["target", "path"]), Ok)?
            .to_owned(),
        path: wanted(&["target", "path"])?.to_owned(),
        capacity: bytes("capacity")?,
        allocation: bytes("allocation")?,
        backing: backing(&document),
        format: format.map_or_else(|| "raw".to_owned(), str::to_owned),
        is_misread: false,
    };
    Ok(as_it_is(reported, physical))
}

/// The folder of a pool's volumes.
pub(super) fn target(pool: &str) -> Result<Option<String>> {
    let document = parse(pool)?;
    Ok(text(&document, &["target", "path"]).map(str::to_owned))
}

#[cfg(test)]
mod tests;
