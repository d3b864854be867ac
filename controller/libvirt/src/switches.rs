//! What a host imposes on guests: limits of its spec, and what libvirt can impose on cards by the switch that they are
//! ports of.

use std::collections::BTreeSet;

use common::api::choice::HostNetworkType;
use common::api::libvirt_host::{HostNetwork, LibvirtHostSpec};
use common::render::libvirt::{DiskLimits, GuestLimits, NicPolicy};

use crate::snapshot::Snapshot;

/// Kilobytes in a megabit.
const KILOBYTES: u64 = 125;
/// Bytes in a megabyte.
const MEGABYTE: u64 = 1_000_000;

/// The switches of a host. libvirt filters and isolates ports of Linux bridges only; for all others it refuses the start
/// of a guest with such a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Switches {
    /// Whether libvirt has the filter of MAC addresses.
    has_mac_filter: bool,
    /// Names of libvirt's networks that are Linux bridges.
    bridged: BTreeSet<String>,
}

impl Switches {
    /// The switches that the last poll of a host found.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let networks = snapshot.networks.iter();
        let bridged = networks.filter(|network| network.linux_bridge);
        Self {
            has_mac_filter: snapshot.info.mac_filter,
            bridged: bridged.map(|network| network.name.clone()).collect(),
        }
    }

    /// Whether cards on a network are ports of a Linux bridge.
    pub(crate) fn is_linux_bridge(&self, offer: &HostNetwork) -> bool {
        match offer.kind {
            HostNetworkType::Network => self.bridged.contains(&offer.source),
            HostNetworkType::Bridge => true,
            HostNetworkType::Ovs => false,
        }
    }

    /// What is imposed on a card on a network.
    pub(crate) fn policy(&self, spec: &LibvirtHostSpec, offer: &HostNetwork) -> NicPolicy {
        let is_linux_bridge = self.is_linux_bridge(offer);
        let is_filtered = is_filtered(offer) && self.has_mac_filter;
        let limits = spec.limits.as_ref();
        let megabits = limits.and_then(|limits| limits.network_megabits_per_second);
        NicPolicy {
            mac_filter: is_linux_bridge && is_filtered,
            isolated: is_linux_bridge && offer.port_isolation == Some(true),
            kilobytes_per_second: megabits.map(|megabits| u64::from(megabits) * KILOBYTES),
        }
    }
}

/// Whether guests on a network are to send from the addresses of their cards only.
pub(crate) fn is_filtered(offer: &HostNetwork) -> bool {
    offer.allow_mac_spoofing != Some(true)
}

/// The limits of each guest.
pub(crate) fn guest_limits(spec: &LibvirtHostSpec) -> GuestLimits {
    let Some(limits) = &spec.limits else {
        return GuestLimits::default();
    };
    let megabytes = limits.disk_megabytes_per_second;
    GuestLimits {
        disk: DiskLimits {
            bytes_per_second: megabytes.map(|megabytes| u64::from(megabytes) * MEGABYTE),
            iops: limits.disk_iops.map(u64::from),
        },
        vcpu_quota: limits.vcpu_quota == Some(true),
    }
}
