//! What a host offers by its spec: pools for storage classes, and networks for cards.

use common::api::choice::HostNetworkType;
use common::api::libvirt_host::{HostStorage, LibvirtHostSpec};
use common::api::machine::Image;
use common::api::network::NetworkConfigurationSpec;
use common::api::normalized::{ExistingDisk, Normalized, NormalizedDisk};
use common::image_source::{SourceUrl, redacted};
use common::names::DEFAULT_NETWORK;
use common::render::libvirt::{NicAttachment, NicSource};

use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use crate::access::VolumeKey;
use crate::switches::Switches;

/// The images of the disks and drives.
pub(crate) fn images(block: &Normalized) -> impl Iterator<Item = &Image> {
    let disks = block.disks.iter().filter_map(|disk| disk.image.as_ref());
    disks.chain(block.cdroms.iter().filter_map(|cdrom| cdrom.image.as_ref()))
}

/// Why a host fetches no image from a URL; `None`: it may, as far as that is known before its name is resolved.
pub(crate) fn source_fault(image: &Image, sources: Option<&[String]>) -> Option<String> {
    let url = image.url.as_deref()?;
    let source: Result<SourceUrl, _> = url.parse();
    let checked = source.and_then(|source| source.check(sources));
    let error = checked.err()?;
    Some(format!("{} {error}", redacted(url)))
}

/// The pool a host offers for a storage class.
pub(crate) fn storage<'a>(spec: &'a LibvirtHostSpec, class: &str) -> Option<&'a HostStorage> {
    let mut offers = spec.storage.iter().flatten();
    offers.find(|offer| offer.storage_class == class)
}

/// The disks of a Machine that are on existing volumes of a host, with pool and volume; none where the host offers no
/// such pool to its namespace.
pub(crate) fn existing_volumes<'m>(
    machine: &'m Machine,
    spec: &LibvirtHostSpec,
) -> impl Iterator<Item = (&'m ExistingDisk, VolumeKey)> {
    let pool = spec.existing_volumes_of(machine.namespace());
    let pool = pool.map(|offer| offer.pool.clone());
    let block = machine.desired().into_iter();
    let disks = block.flat_map(|block| &block.existing_disks);
    disks.filter_map(move |disk| {
        let pool = pool.clone()?;
        Some((disk, (pool, disk.source().to_owned())))
    })
}

/// Whether a disk of an image is a copy of it, and no overlay.
pub(crate) fn is_copy(offer: &HostStorage) -> bool {
    offer.copies()
}

/// Whether the volume of a disk is made as an overlay of its image.
pub(crate) fn is_overlay(disk: &NormalizedDisk, offer: &HostStorage) -> bool {
    disk.image.is_some() && !is_copy(offer)
}

/// How a network card is attached on a host; without a NetworkConfiguration to the host's default network. The
/// error names what the host lacks.
pub(crate) fn attach(
    spec: &LibvirtHostSpec,
    switches: &Switches,
    network: Option<&NetworkConfigurationSpec>,
) -> Result<NicAttachment, String> {
    let (name, vlan) = match network {
        None => (DEFAULT_NETWORK, None),
        Some(network) => {
            let bridge = network.bridge.as_deref();
            let name =
                bridge.ok_or("a NetworkConfiguration without a bridge is for KubeVirt only")?;
            (name, network.vlan.and_then(|tag| u16::try_from(tag).ok()))
        }
    };
    let mut offers = spec
        .networks
        .iter()
        .flatten()
        .filter(|offer| offer.name == name);
    let offer = offers
        .next()
        .ok_or_else(|| format!("offers no network '{name}'"))?;
    if !offer.carries(vlan.map(i64::from)) {
        let tag = vlan.map_or_else(|| "untagged frames".to_owned(), |tag| format!("VLAN {tag}"));
        return Err(format!("its network '{name}' does not carry {tag}"));
    }
    let source = offer.source.clone();
    let wire = match offer.kind {
        HostNetworkType::Network => NicSource::Network(source),
        HostNetworkType::Bridge => NicSource::Bridge(source),
        HostNetworkType::Ovs => NicSource::Ovs(source),
    };
    Ok(NicAttachment {
        // A bridge for a VLAN forwards frames without a tag.
        vlan: vlan.filter(|_| offer.kind == HostNetworkType::Ovs),
        mtu: network.and_then(|network| u32::try_from(network.mtu?).ok()),
        source: wire,
        policy: switches.policy(spec, offer),
    })
}

#[cfg(test)]
mod tests {
    use common::api::libvirt_host::HostNetwork;

    use super::*;
    use crate::environment;

    #[test]
    fn a_vlan_needs_a_bridge_of_its_own_or_one_that_tags() {
        let network = |name: &str, kind, vlans| HostNetwork {
            name: name.into(),
            kind,
            source: format!("{name}0"),
            vlans,
            port_isolation: None,
            allow_mac_spoofing: None,
        };
        let mut spec = environment::host_spec();
        spec.networks = Some(vec![
            network("plain", HostNetworkType::Bridge, None),
            network("tagged", HostNetworkType::Bridge, Some(vec![100])),
            network("ovs", HostNetworkType::Ovs, None),
        ]);
        let configuration = |bridge: &str, vlan| NetworkConfigurationSpec {
            bridge: Some(bridge.into()),
            vlan,
            mtu: Some(9000),
            ..NetworkConfigurationSpec::default()
        };
        let on = |bridge, vlan| {
            attach(
                &spec,
                &Switches::default(),
                Some(&configuration(bridge, vlan)),
            )
        };
        let tag = |bridge, vlan| on(bridge, vlan).map(|attached| attached.vlan);
        assert_eq!(tag("plain", None), Ok(None));
        assert!(
            on("plain", Some(100))
                .unwrap_err()
                .contains("does not carry VLAN 100")
        );
        assert_eq!(tag("tagged", Some(100)), Ok(None), "the bridge is the VLAN");
        assert!(on("tagged", Some(200)).unwrap_err().contains("VLAN 200"));
        assert!(on("tagged", None).unwrap_err().contains("untagged frames"));
        assert_eq!(tag("ovs", Some(7)), Ok(Some(7)));
        assert_eq!(tag("ovs", None), Ok(None));
        assert_eq!(on("ovs", None).unwrap().mtu, Some(9000));
        let nad = NetworkConfigurationSpec::default();
        assert!(
            attach(&spec, &Switches::default(), Some(&nad))
                .unwrap_err()
                .contains("KubeVirt only")
        );
    }
}
