//! Conditions of a LibvirtHost that say what protects guests from each other. They block nothing.

use common::api::libvirt_host::{HostNetwork, LibvirtHostSpec};
use common::render::libvirt::MAC_FILTER;

use crate::snapshot::Snapshot;
use crate::switches::{Switches, is_filtered};

/// Status, reason and message of a condition.
pub(super) type Protection = (&'static str, &'static str, String);

/// Condition `MacFiltered`: whether guests send from the addresses of their cards only.
pub(super) fn mac_filtered(spec: &LibvirtHostSpec, snapshot: &Snapshot) -> Protection {
    let switches = Switches::of(snapshot);
    let offers = spec.networks.iter().flatten();
    let offers: Vec<_> = offers.filter(|offer| is_filtered(offer)).collect();
    let is_bridged = |offer: &&HostNetwork| switches.is_linux_bridge(offer);
    if !snapshot.info.mac_filter && offers.iter().any(is_bridged) {
        let message = format!(
            "guests can send frames from MAC addresses of others, because libvirt has no filter '{MAC_FILTER}': install libvirt's filters on the host (Debian and Ubuntu: apt-get install libvirt-daemon-config-nwfilter) and restart libvirtd; guests are filtered from their next start on"
        );
        return ("False", "FilterMissing", message);
    }
    let unfiltered = offers.iter().filter(|offer| !is_bridged(offer));
    let unfiltered: Vec<_> = unfiltered.map(|it| format!("'{}'", it.source)).collect();
    if !unfiltered.is_empty() {
        let message = format!(
            "guests can send frames from MAC addresses of others on {}: libvirt filters ports of Linux bridges only; install flows on the host that drop frames of a port from another address than that of its guest, or set allowMacSpoofing of the network to confirm that this is meant",
            unfiltered.join(", ")
        );
        return ("False", "SwitchNotFiltered", message);
    }
    let message = "guests that were started by this release send frames from the addresses of their cards only, except on networks with allowMacSpoofing";
    ("True", "MacFiltered", message.to_owned())
}

/// Condition `Confined`: whether the host's kernel confines QEMU to the files of its guest.
pub(super) fn confined(snapshot: &Snapshot) -> Protection {
    let drivers = &snapshot.info.security_drivers;
    if drivers.is_empty() {
        let message = "a guest that breaks out of QEMU reaches the disks of all others, because libvirt has no security driver: enable SELinux or AppArmor on the host, set security_driver in /etc/libvirt/qemu.conf to selinux or apparmor, and restart libvirtd; guests are confined from their next start on";
        return ("False", "NoSecurityDriver", message.to_owned());
    }
    let message = format!("QEMU is confined by {}", drivers.join(" and "));
    ("True", "SecurityDriver", message)
}

#[cfg(test)]
mod tests {
    use common::api::choice::HostNetworkType;

    use super::*;
    use crate::access::{HostInfo, Network};
    use crate::environment::host_spec;

    fn snapshot(mac_filter: bool, linux_bridge: bool) -> Snapshot {
        Snapshot {
            info: HostInfo {
                mac_filter,
                ..HostInfo::default()
            },
            networks: vec![Network {
                name: "default".into(),
                active: true,
                bridge: Some("virbr0".into()),
                linux_bridge,
            }],
            ..Snapshot::default()
        }
    }

    fn verdict(spec: &LibvirtHostSpec, snapshot: &Snapshot) -> (&'static str, &'static str) {
        let (status, reason, _) = mac_filtered(spec, snapshot);
        (status, reason)
    }

    #[test]
    fn a_host_without_the_filter_or_with_another_switch_says_what_to_install() {
        let mut spec = host_spec();
        let filtered = ("True", "MacFiltered");
        assert_eq!(verdict(&spec, &snapshot(true, true)), filtered);
        let missing = ("False", "FilterMissing");
        assert_eq!(verdict(&spec, &snapshot(false, true)), missing);
        let switch = ("False", "SwitchNotFiltered");
        assert_eq!(verdict(&spec, &snapshot(true, false)), switch);
        assert_eq!(verdict(&spec, &snapshot(false, false)), switch);
        let offers = spec.networks.as_mut().unwrap();
        (offers[0].kind, offers[0].source) = (HostNetworkType::Ovs, "br-int".into());
        assert_eq!(verdict(&spec, &snapshot(true, true)), switch);
        let (.., message) = mac_filtered(&spec, &snapshot(true, true));
        assert!(message.contains("on 'br-int'"), "{message}");
        spec.networks.as_mut().unwrap()[0].allow_mac_spoofing = Some(true);
        assert_eq!(verdict(&spec, &snapshot(false, false)), filtered);
    }

    #[test]
    fn a_host_without_a_security_driver_says_how_to_get_one() {
        let mut snapshot = snapshot(true, true);
        let (status, reason, message) = confined(&snapshot);
        assert_eq!((status, reason), ("False", "NoSecurityDriver"));
        assert!(message.contains("/etc/libvirt/qemu.conf"), "{message}");
        snapshot.info.security_drivers = vec!["selinux".into()];
        let (status, reason, _) = confined(&snapshot);
        assert_eq!((status, reason), ("True", "SecurityDriver"));
    }
}
