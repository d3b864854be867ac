//! What a LibvirtHost imposes on its guests.

use crate::api::choice::{Choice as _, HostNetworkType};
use crate::bounds::{DISK_IOPS_MAX, DISK_MEGABYTES_MAX, NETWORK_MEGABITS_MAX};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::violation::{Findings, Kind, Violation};

use super::super::rule::{Check, rules};
use super::HostIntent;
use super::intent::LimitsIntent;

rules! {
    "libvirthosts" Check::Host(limits), on HOSTS, Always {
        Refuse InvalidHostLimit = "A limit of a LibvirtHost is out of its range."
            because "With a limit of zero no guest would read a block or send a frame; QEMU and the kernel refuse very large ones when a guest starts."
            fix "Take a number of the range that the message names, or leave the limit out for none."
            crd All,
    }
    "libvirthosts" Check::Host(isolation), on HOSTS, Always {
        Refuse IsolationOnOvs = "A network of type ovs is to have isolated ports."
            because "libvirt isolates ports of Linux bridges only: it would define no guest with a card on this network."
            fix "Leave `portIsolation` out, and install flows on the host that keep its guests apart."
            crd All,
    }
}

/// Rule [`Code::InvalidHostLimit`].
fn limits(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    let none = LimitsIntent::default();
    let limits = spec.limits.as_ref().unwrap_or(&none);
    for (field, limit, max) in [
        ("limits.diskIops", limits.disk_iops, DISK_IOPS_MAX),
        (
            "limits.diskMegabytesPerSecond",
            limits.disk_megabytes_per_second,
            DISK_MEGABYTES_MAX,
        ),
        (
            "limits.networkMegabitsPerSecond",
            limits.network_megabits_per_second,
            NETWORK_MEGABITS_MAX,
        ),
    ] {
        if let Some(limit) = limit.filter(|limit| !(1..=i64::from(max)).contains(limit)) {
            let detail = format!("must be from 1 to {max}; leave it out for no limit");
            let path = FieldPath::field(field);
            let fault = Violation::new(path, Code::InvalidHostLimit, Kind::Invalid, detail);
            findings.deny(fault.value(limit));
        }
    }
}

/// Rule [`Code::IsolationOnOvs`].
fn isolation(spec: &HostIntent, _: Option<&HostIntent>, findings: &mut Findings) {
    for (index, item) in spec.networks.iter().flatten().enumerate() {
        let is_ovs = item.kind.as_deref() == Some(HostNetworkType::Ovs.as_str());
        if is_ovs && item.port_isolation == Some(true) {
            let path = FieldPath::item("networks", index, "portIsolation");
            let detail = "libvirt cannot isolate ports of Open vSwitch; leave it out, and install flows on the host";
            let fault = Violation::new(path, Code::IsolationOnOvs, Kind::Forbidden, detail);
            findings.deny(fault);
        }
    }
}
