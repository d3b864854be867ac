//! What a host imposes on its guests, whatever their Machines say: filters of network cards, rates and quotas.
//!
//! A guest gets them when it is started. They are no part of the differences between the desired and the running
//! domain, so a guest that runs without them is never restarted for them.

use roxmltree::Node;

use super::xml::{self, Element, XmlError, attribute, find, text};

/// The filter of libvirt that drops frames with another source address than that of the card.
pub const MAC_FILTER: &str = "no-mac-spoofing";

/// Length of a scheduling period in microseconds: the kernel's default, and libvirt's.
const PERIOD: u32 = 100_000;

/// What a host imposes on a network card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicPolicy {
    /// Whether [`MAC_FILTER`] is in force. libvirt has no filters for ports of Open vSwitch.
    pub mac_filter: bool,
    /// Whether the port exchanges no frames with other isolated ports of its bridge.
    pub isolated: bool,
    /// Rate of each direction in kilobytes per second, the unit of libvirt; `None`: no limit.
    pub kilobytes_per_second: Option<u64>,
}

impl NicPolicy {
    pub(super) fn elements(self) -> impl Iterator<Item = Element> {
        let bandwidth = self.kilobytes_per_second.map(|rate| {
            let direction = |name: &str| Element::new(name).attr("average", rate);
            Element::new("bandwidth")
                .child(direction("inbound"))
                .child(direction("outbound"))
        });
        let isolated = || Element::new("port").attr("isolated", "yes");
        let filter = || Element::new("filterref").attr("filter", MAC_FILTER);
        let isolated = self.isolated.then(isolated);
        let filter = self.mac_filter.then(filter);
        [bandwidth, isolated, filter].into_iter().flatten()
    }

    pub(super) fn parse(interface: Node<'_, '_>) -> Result<Self, XmlError> {
        let rate = attribute(interface, &["bandwidth", "inbound"], "average");
        let rate = rate.map(|rate| xml::value("rate of a network card", rate));
        Ok(Self {
            mac_filter: attribute(interface, &["filterref"], "filter") == Some(MAC_FILTER),
            isolated: attribute(interface, &["port"], "isolated") == Some("yes"),
            kilobytes_per_second: rate.transpose()?,
        })
    }
}

/// Limits of a disk, reads and writes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// Bytes per second; `None`: no limit.
    pub bytes_per_second: Option<u64>,
    /// Operations per second; `None`: no limit.
    pub iops: Option<u64>,
}

impl DiskLimits {
    pub(super) fn element(self) -> Option<Element> {
        let limit =
            |name: &str, limit: Option<u64>| limit.map(|limit| Element::new(name).text(limit));
        let bytes = limit("total_bytes_sec", self.bytes_per_second);
        let iops = limit("total_iops_sec", self.iops);
        let is_set = bytes.is_some() || iops.is_some();
        is_set.then(|| Element::new("iotune").children(bytes).children(iops))
    }

    pub(super) fn parse(disk: Node<'_, '_>) -> Result<Self, XmlError> {
        let limit = |name: &'static str| {
            let limit = text(disk, &["iotune", name]);
            limit.map(|limit| xml::value(name, limit)).transpose()
        };
        Ok(Self {
            bytes_per_second: limit("total_bytes_sec")?,
            iops: limit("total_iops_sec")?,
        })
    }
}

/// Limits of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestLimits {
    /// Limits of each disk. CD-ROM drives have none.
    pub disk: DiskLimits,
    /// Whether each vCPU gets at most the time of one CPU, and QEMU's other threads that of one more. libvirt applies
    /// the quota to each vCPU, so it also holds for those that are hot-plugged.
    pub vcpu_quota: bool,
}

/// The quota of vCPUs: the whole period for each.
pub(super) fn vcpu_quota() -> [Element; 4] {
    let number = |name: &str| Element::new(name).text(PERIOD);
    ["period", "quota", "emulator_period", "emulator_quota"].map(number)
}

pub(super) fn has_vcpu_quota(domain: Node<'_, '_>) -> bool {
    find(domain, &["cputune", "quota"]).is_some()
}
