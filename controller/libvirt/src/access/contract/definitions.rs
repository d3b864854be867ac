//! Contracts about a host, and about what is defined there.

use std::net::IpAddr;

use common::api::choice::VirtType;
use common::mac::Mac;
use common::render::libvirt::{Domain, METADATA_KEY, METADATA_URI};

use super::*;
use crate::access::{DhcpHost, FirmwareState, Shutdown, State};

pub(super) fn info(on: &mut TestHost) {
    let facts = on.host.info().unwrap();
    let parts: Vec<u32> = facts
        .libvirt_version
        .split('.')
        .map(|it| it.parse().unwrap())
        .collect();
    assert!(parts.len() == 3 && parts[0] >= 6, "{facts:?}");
    assert!(facts.cpus > 0 && facts.memory > 1 << 30, "{facts:?}");
    if on.driver != Driver::Test {
        let has = |wanted: &dyn Fn(&str) -> bool| facts.machine_types.iter().any(|it| wanted(it));
        assert!(
            has(&|it| it == "q35") && has(&|it| it.starts_with("pc-q35-")),
            "{facts:?}"
        );
        let models = &facts.cpu_models[&VirtType::Qemu];
        assert!(models.iter().any(|it| it == "qemu64"), "{facts:?}");
        assert!(models.iter().any(|it| it == "host-model"), "{facts:?}");
        assert!(facts.hugepages.is_some(), "{facts:?}");
    }
}

pub(super) fn surroundings(on: &mut TestHost) {
    let pools = on.host.pools().unwrap();
    let pool = pools.iter().find(|it| it.name == on.pool).unwrap();
    assert!(
        pool.active && pool.capacity >= pool.available && pool.available > 0,
        "{pool:?}"
    );
    on.host.refresh(&on.pool).unwrap();
    if on.driver != Driver::Qemu {
        let networks = on.host.networks().unwrap();
        let network = networks.iter().find(|it| it.name == "default").unwrap();
        assert!(network.active && network.bridge.is_some(), "{network:?}");
    }
    for network in on.host.networks().unwrap() {
        let leases = on.host.leases(&network.name);
        // The test driver gives no addresses.
        assert_eq!(
            kind(leases),
            if on.driver == Driver::Test {
                "Unsupported"
            } else {
                "done"
            }
        );
    }
    on.host.bridges().unwrap();
}

/// No host has a device at this address: a definition does not look for it.
pub(super) fn host_devices(on: &mut TestHost) {
    let device = "<hostdev mode='subsystem' type='pci' managed='yes'>\
        <source><address domain='0x0000' bus='0xff' slot='0x1f' function='0x7'/></source>\
        <alias name='ua-device-gpu'/></hostdev>";
    let (with, without) = (on.defined("with", device), on.defined("without", ""));
    let source = "0000:ff:1f.7".parse().unwrap();
    let all = on.host.hardware_of_all().unwrap();
    assert_eq!(all[&with].devices, [source].into());
    assert_eq!(all[&without].devices, [].into());
    let found = on.host.domain(with).unwrap().unwrap();
    let defined = Domain::parse(&found.inactive).unwrap();
    let [device] = defined.host_devices.as_slice() else {
        panic!("{defined:?}");
    };
    assert_eq!((device.name(), device.source), ("gpu", source));
}

pub(super) fn pinning(on: &mut TestHost) {
    let (_, text) = on.domain("pinned", "");
    let uuid = on.defined("pinned", "");
    let tune = "</vcpu><cputune><vcpupin vcpu='0' cpuset='0'/></cputune>";
    assert!(text.contains("</vcpu>"), "{text}");
    on.host.define(&text.replace("</vcpu>", tune)).unwrap();
    let all = on.host.hardware_of_all().unwrap();
    assert_eq!(all[&uuid].cpus, [0].into());
    let found = on.host.domain(uuid).unwrap().unwrap();
    let defined = Domain::parse(&found.inactive).unwrap();
    assert_eq!(defined.pinning.dedicated, [0]);
}

pub(super) fn dhcp(on: &mut TestHost) {
    let networks = on.host.networks().unwrap();
    let Some(network) = networks.iter().find(|it| it.name == "default") else {
        return println!("skipped: the host has no network 'default'");
    };
    let server = on.host.dhcp_server(&network.name).unwrap();
    let Some(subnet) = server.subnets.first() else {
        return println!("skipped: the network 'default' has no subnet");
    };
    assert!((8..=30).contains(&subnet.prefix()), "{server:?}");
    // Tests of another process may use the same network.
    let number = std::process::id().to_be_bytes();
    let [a, b, c, d] = number;
    let mac = |last: u8| Mac::new([0x52, a, b, c, d, last]);
    let Some(IpAddr::V4(address)) = subnet.hosts().nth(100 + u128::from(d) % 100) else {
        panic!("{server:?}");
    };
    assert!(server.serves(address), "{server:?}");
    let host = DhcpHost {
        mac: mac(1),
        address,
    };
    on.host.add_dhcp_host(&network.name, host).unwrap();
    let has = |on: &mut TestHost| {
        let server = on.host.dhcp_server("default").unwrap();
        server.hosts.contains(&host)
    };
    assert!(has(on));
    let other = DhcpHost {
        mac: mac(2),
        ..host
    };
    // One entry for an address, and one for a card.
    for again in [host, other] {
        assert_eq!(
            kind(on.host.add_dhcp_host(&network.name, again)),
            "Refused",
            "{again:?}"
        );
    }
    on.host.remove_dhcp_host(&network.name, host).unwrap();
    assert!(!has(on));
    let gone = on.host.remove_dhcp_host(&network.name, host);
    assert_eq!(kind(gone), "Refused");
}

pub(super) fn definition(on: &mut TestHost) {
    let (uuid, text) = on.domain("web", "");
    assert_eq!(on.host.domain(uuid).unwrap(), None);
    on.host.define(&text).unwrap();
    let state = on.state(uuid).unwrap();
    assert_eq!(state.name, on.name("web"));
    assert_eq!((state.state, state.persistent), (State::ShutOff, true));
    assert_eq!((state.memory, state.metadata.as_deref()), (128 << 20, None));
    let detail = on.host.domain(uuid).unwrap().unwrap();
    assert_eq!((&detail.state, detail.live.as_deref()), (&state, None));
    assert!(
        detail.inactive.contains(&uuid.to_string()),
        "{}",
        detail.inactive
    );

    on.host.define(&text.replace("131072", "262144")).unwrap();
    assert_eq!(on.state(uuid).unwrap().memory, 256 << 20);
    on.host.undefine(uuid, FirmwareState::Remove).unwrap();
    assert_eq!(
        (on.state(uuid), on.host.domain(uuid).unwrap()),
        (None, None)
    );
}

/// No host needs Open vSwitch for a definition: only a start does.
pub(super) fn access_port(on: &mut TestHost) {
    let port =
        "<interface type='bridge'><mac address='52:54:00:00:00:01'/><source bridge='br-int'/>
        <virtualport type='openvswitch'/><vlan><tag id='0'/></vlan></interface>";
    let uuid = on.defined("web", port);
    let defined = on.host.domain(uuid).unwrap().unwrap().inactive;
    let domain = Domain::parse(&defined).unwrap();
    assert_eq!(domain.nics[0].attachment.vlan, Some(0), "{defined}");
}

pub(super) fn clashes(on: &mut TestHost) {
    let uuid = on.defined("web", "");
    let (_, text) = on.domain("web", "");
    let other = text.replace(&uuid.to_string(), "5bd6f4f1-8ee4-4b1c-9a1f-2f1d0a2f5a11");
    assert_eq!(kind(on.host.define(&other)), "Refused");
    let renamed = text.replace(&on.name("web"), &on.name("mail"));
    assert_eq!(kind(on.host.define(&renamed)), "Refused");
    assert_eq!(on.state(uuid).unwrap().name, on.name("web"));
}

pub(super) fn nonsense(on: &mut TestHost) {
    for text in [
        "",
        "<domain",
        "<domain type='qemu'><memory>1</memory></domain>",
    ] {
        assert_eq!(kind(on.host.define(text)), "Refused", "{text}");
    }
    let uuid = on.defined("web", "");
    assert_eq!(kind(on.host.set_vcpus(uuid, 3)), "Refused");
    assert_eq!(kind(on.host.set_memory(uuid, 1 << 30)), "Refused");
    assert_eq!(
        kind(on.host.create_volume(&on.pool, "<volume/>")),
        "Refused"
    );
}

pub(super) fn absent(on: &mut TestHost) {
    let absent = Uuid::new_v5(&Uuid::NAMESPACE_OID, on.name("absent").as_bytes());
    let nothing = on.name("nothing");
    let (host, pool) = (&mut on.host, &on.pool);
    assert_eq!(host.domain(absent).unwrap(), None);
    assert_eq!(kind(host.undefine(absent, FirmwareState::Remove)), "Absent");
    assert_eq!(kind(host.set_metadata(absent, None)), "Absent");
    assert_eq!(kind(host.start(absent, false)), "Absent");
    assert_eq!(kind(host.shutdown(absent, Shutdown::Acpi)), "Absent");
    assert_eq!(kind(host.destroy(absent)), "Absent");
    assert_eq!(kind(host.attach(absent, "<disk/>")), "Absent");
    assert_eq!(kind(host.set_vcpus(absent, 1)), "Absent");
    assert_eq!(kind(host.resize_disk(absent, "vda", 1)), "Absent");
    let known = &mut CardAddresses::default();
    assert_eq!(kind(host.agent_addresses(absent, known)), "Absent");
    assert_eq!(kind(host.guest_os(absent)), "Absent");
    assert_eq!(host.volume(pool, &nothing).unwrap(), None);
    assert_eq!(kind(host.volume(&nothing, &nothing)), "Absent");
    assert_eq!(kind(host.volumes(&nothing)), "Absent");
    assert_eq!(kind(host.refresh(&nothing)), "Absent");
    assert_eq!(
        kind(host.create_volume(&nothing, &volume(&nothing, 1))),
        "Absent"
    );
    assert_eq!(
        kind(host.copy_volume(pool, &volume(&nothing, 1), (pool, &nothing))),
        "Absent"
    );
    assert_eq!(kind(host.resize_volume(pool, &nothing, 1)), "Absent");
    assert_eq!(
        kind(host.upload(pool, &nothing, &mut &b"x"[..], 1)),
        "Absent"
    );
    assert_eq!(kind(host.head(pool, &nothing, 1)), "Absent");
    assert_eq!(kind(host.leases(&nothing)), "Absent");
    assert_eq!(kind(host.dhcp_server(&nothing)), "Absent");
    host.delete_volume(pool, &nothing).unwrap();
    // The volume may be in a pool that is not defined at the moment.
    assert_eq!(kind(host.delete_volume(&nothing, &nothing)), "Absent");
}

pub(super) fn metadata(on: &mut TestHost) {
    let uuid = on.defined("web", "");
    assert_eq!(on.state(uuid).unwrap().metadata, None);
    for (running, texts) in [(false, ["one", "two"]), (true, ["three", "four"])] {
        if running {
            on.host.start(uuid, false).unwrap();
        }
        for text in texts {
            let element = format!("<machine>{text}</machine>");
            on.host.set_metadata(uuid, Some(&element)).unwrap();
            let metadata = on.state(uuid).unwrap().metadata.unwrap();
            assert!(
                metadata.contains(&format!(">{text}</machine>")),
                "{metadata}"
            );
        }
    }
    // The metadata of the definition is used, even before the guest is started with it.
    let (_, text) = on.domain("web", "");
    let metadata = format!(
        "<metadata><{METADATA_KEY}:machine xmlns:{METADATA_KEY}='{METADATA_URI}'>five</{METADATA_KEY}:machine></metadata>"
    );
    on.host
        .define(&text.replace("<memory", &(metadata + "<memory")))
        .unwrap();
    let metadata = on.state(uuid).unwrap().metadata.unwrap();
    assert!(metadata.contains("five"), "{metadata}");
    on.host
        .set_metadata(uuid, Some("<machine>four</machine>"))
        .unwrap();
    // Metadata written while a guest runs is still there after it ended.
    on.host.destroy(uuid).unwrap();
    let metadata = on.state(uuid).unwrap().metadata.unwrap();
    assert!(metadata.contains("four"), "{metadata}");
    on.host.set_metadata(uuid, None).unwrap();
    assert_eq!(on.state(uuid).unwrap().metadata, None);
}
