//! Generated documents: every key of the schemas with a value of every kind, and random networks of version 2.
//!
//! The file is long because of its tables: two thirds of it are keys of netplan and values for them.

use fastrand::Rng;
use lab::paths;
use lab::readers::Document;
use serde_json::{Map, Value};

/// Values of every kind, as YAML writes them in brackets.
const VALUES: [&str; 8] = [
    "true", "'no'", "enabled", "5", "null", "[word]", "[5]", "{a: b}",
];

/// Keys of cloud-config whose keys get values, too, and how deep.
const NESTED: [(&str, usize); 8] = [
    ("users", 2),
    ("packages", 2),
    ("write_files", 2),
    ("groups", 1),
    ("chpasswd", 1),
    ("power_state", 1),
    ("swap", 1),
    ("snap", 1),
];

/// Values of keys that a mapping needs beside the one that is varied.
const NEEDED: [(&str, &str); 16] = [
    ("path", "/a"),
    ("name", "ada"),
    ("device", "/dev/vdb"),
    ("filesystem", "ext4"),
    ("layout", "us"),
    ("arches", "[default]"),
    ("uri", "'https://example.com'"),
    ("url", "'https://example.com'"),
    ("baseurl", "'https://example.com'"),
    ("id", "1"),
    ("link", "eth9"),
    ("mode", "reboot"),
    ("content", "text"),
    ("version", "1"),
    ("interfaces", "[]"),
    ("actions", "[]"),
];

/// A mapping as YAML writes it in brackets.
fn mapping(fields: &[(String, String)]) -> String {
    let fields: Vec<_> = fields
        .iter()
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
    format!("{{{}}}", fields.join(", "))
}

/// A schema of the rules.
fn schema(name: &str) -> Value {
    let path = format!("common/src/rules/cloud_init/{name}.json");
    let text = std::fs::read_to_string(paths::repository().join(path)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The schema behind a reference.
fn resolved<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let target = schema["$ref"]
        .as_str()
        .and_then(|target| target.strip_prefix('#'));
    target
        .and_then(|target| root.pointer(target))
        .unwrap_or(schema)
}

/// Texts of a value of this schema: every kind of value, and below every key of a mapping or of the items of
/// a list again.
fn variants(root: &Value, schema: &Value, depth: usize) -> Vec<String> {
    let own = resolved(root, schema);
    let mut all: Vec<String> = VALUES.map(str::to_owned).to_vec();
    if depth == 0 {
        return all;
    }
    let items = &own["items"];
    if items.is_object() {
        let of_items = variants(root, items, depth - 1);
        all.extend(of_items.into_iter().map(|item| format!("[{item}]")));
    }
    let keys = own["properties"]
        .as_object()
        .or(schema["properties"].as_object());
    for (key, of_key) in keys.into_iter().flatten() {
        for value in variants(root, of_key, depth - 1) {
            let needed = NEEDED.iter().filter(|(needed, _)| {
                let required = own["required"].as_array().into_iter().flatten();
                needed != key && required.clone().any(|it| it == needed)
            });
            let needed = needed.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let fields: Vec<_> = needed.chain([(key.clone(), value)]).collect();
            all.push(mapping(&fields));
        }
    }
    all
}

/// Every key of cloud-config, with values of every kind.
pub(crate) fn user_data() -> Vec<Document> {
    let root = schema("user-data");
    let keys: Map<String, Value> = root["properties"].as_object().unwrap().clone();
    let documents = keys.iter().flat_map(|(key, of_key)| {
        let nested = NESTED.iter().find(|(nested, _)| nested == key);
        let depth = nested.map_or(0, |(_, depth)| *depth);
        let values = variants(&root, of_key, depth);
        values.into_iter().map(move |value| Document {
            field: "userData",
            text: format!("#cloud-config\n{key}: {value}\n"),
        })
    });
    documents.collect()
}

/// Sections of devices with the keys that such a device needs.
const SECTIONS: [(&str, &str); 4] = [
    ("ethernets", ""),
    ("bonds", "interfaces: [eth9], "),
    ("bridges", "interfaces: [eth9], "),
    ("vlans", "id: 5, link: eth9, "),
];

/// Keys of devices, whether or not netplan has them in the section.
const KEYS: [&str; 57] = [
    "match",
    "set-name",
    "wakeonlan",
    "wakeonwlan",
    "renderer",
    "dhcp4",
    "dhcp6",
    "dhcp4-overrides",
    "dhcp6-overrides",
    "dhcp-identifier",
    "ipv6-privacy",
    "ipv6-mtu",
    "ipv6-address-generation",
    "ipv6-address-token",
    "link-local",
    "accept-ra",
    "addresses",
    "gateway4",
    "gateway6",
    "nameservers",
    "routes",
    "routing-policy",
    "macaddress",
    "mtu",
    "optional",
    "optional-addresses",
    "critical",
    "activation-mode",
    "ignore-carrier",
    "interfaces",
    "parameters",
    "id",
    "link",
    "access-points",
    "auth",
    "networkmanager",
    "openvswitch",
    "neigh-suppress",
    "infiniband-mode",
    "embedded-switch-mode",
    "virtual-function-count",
    "delay-virtual-functions-rebind",
    "receive-checksum-offload",
    "large-receive-offload",
    "emit-lldp",
    "mode",
    "local",
    "remote",
    "ttl",
    "key",
    "keys",
    "mark",
    "port",
    "peers",
    "table",
    "regulatory-domain",
    "adresses",
];

/// Every key in every section of a network of version 2, with values of every kind.
pub(crate) fn settings_of_networks() -> Vec<Document> {
    let documents = SECTIONS.iter().flat_map(|(section, needed)| {
        KEYS.iter().flat_map(move |key| {
            let needed = needed
                .split_inclusive(", ")
                .filter(move |field| !field.starts_with(&format!("{key}:")));
            let needed: String = needed.collect();
            VALUES.iter().map(move |value| Document {
                field: "networkData",
                text: format!(
                    "version: 2\n{section}:\n  dev0: {{{needed}{key}: {value}}}\n{}",
                    if *section == "ethernets" {
                        "  eth9: {}\n"
                    } else {
                        "ethernets: {eth9: {}}\n"
                    }
                ),
            })
        })
    });
    documents.collect()
}

/// Settings of a device with values that are right, and with values that are nearly so.
const SETTINGS: [(&str, &[&str], &[&str]); 20] = [
    (
        "dhcp4",
        &["true", "no", "Off"],
        &["'yes'", "y", "enabled", "1", "null", "'true '"],
    ),
    (
        "dhcp6",
        &["false", "on"],
        &["'off'", "N", "auto", "0", "[true]"],
    ),
    ("optional", &["true"], &["'TRUE'", "maybe"]),
    ("accept-ra", &["false"], &["ignore", "2"]),
    (
        "addresses",
        &[
            "[192.0.2.10/24]",
            "['2001:db8::1/64', 192.0.2.11/32]",
            "[{192.0.2.12/24: {label: a, lifetime: 0}}]",
            "[]",
        ],
        &[
            "[192.0.2.10]",
            "['2001:db8::1']",
            "[192.0.2.10/0]",
            "[192.0.2.10/33]",
            "['2001:db8::1/129']",
            "[192.0.2.256/24]",
            "[192.0.2/24]",
            "[192.0.02.1/24]",
            "[192.0.2.10/255.255.255.0]",
            "192.0.2.10/24",
            "[192.0.2.10/24, eth0/24]",
            "[{192.0.2.12/24: {lifetime: 5}}]",
            "[{192.0.2.12/24: {labels: a}}]",
            "[{192.0.2.12: {label: a}}]",
            "[5]",
            "[null]",
            "[[192.0.2.10/24]]",
            "['fe80::1%eth0/64']",
            "null",
        ],
    ),
    (
        "gateway4",
        &["192.0.2.1"],
        &[
            "192.0.2.1/24",
            "192.0.2",
            "'2001:db8::1'",
            "gateway",
            "5",
            "[192.0.2.1]",
            "''",
        ],
    ),
    (
        "gateway6",
        &["'2001:db8::1'"],
        &[
            "'2001:db8::1/64'",
            "192.0.2.1",
            "2001:db8::1::2",
            "'fe80::1%eth0'",
        ],
    ),
    (
        "nameservers",
        &[
            "{addresses: [192.0.2.53, '2001:db8::53'], search: [example.com]}",
            "{search: []}",
            "{}",
        ],
        &[
            "{addresses: 192.0.2.53}",
            "{addresses: [192.0.2.53/32]}",
            "{addresses: [dns.example.com]}",
            "{address: [192.0.2.53]}",
            "[192.0.2.53]",
            "{search: example.com}",
            "{addresses: null}",
            "{addresses: [192.0.2.53 192.0.2.54]}",
            "{addresses: ['192.0.2.53,192.0.2.54']}",
        ],
    ),
    (
        "routes",
        &[
            "[{to: default, via: 192.0.2.1}]",
            "[{to: 198.51.100.0/24, via: 192.0.2.1, metric: 5, on-link: true}]",
            "[{to: '::/0', via: 'fe80::1'}]",
            "[{to: 198.51.100.7, scope: link}]",
            "[]",
            "[{to: 198.51.100.0/24, type: blackhole}]",
            "[{to: 198.51.100.0/24, via: 192.0.2.1, mtu: 1400}]",
        ],
        &[
            "[{to: default, via: gateway}]",
            "[{to: default, via: '192.0.2.1, 192.0.2.2'}]",
            "[{via: 192.0.2.1}]",
            "[{to: all, via: 192.0.2.1}]",
            "[{to: 198.51.100.0/24, via: 'fe80::1'}]",
            "[{to: default, gateway: 192.0.2.1}]",
            "[{to: default, via: 192.0.2.1, onlink: true}]",
            "[{to: default, via: 192.0.2.1, on-link: sure}]",
            "[{to: default, via: 192.0.2.1, metric: high}]",
            "[{to: default, scope: global}]",
            "[{to: default, via: 192.0.2.1, scope: world}]",
            "[{to: default, via: 192.0.2.1, type: fast}]",
            "[{to: default, via: 192.0.2.1, table: main}]",
            "[{}]",
            "[default]",
            "{to: default, via: 192.0.2.1}",
            "[{to: default, via: 192.0.2.1, from: here}]",
            "[{to: null, via: 192.0.2.1}]",
            "[{to: 198.51.100.0/99, via: 192.0.2.1}]",
            "[{to: default, via: 192.0.2.1/24}]",
        ],
    ),
    (
        "routing-policy",
        &[
            "[{from: 192.0.2.0/24, table: 5, priority: 1}]",
            "[{to: 198.51.100.7, mark: 1}]",
        ],
        &[
            "[{table: 5}]",
            "[{from: here}]",
            "[{from: 192.0.2.1, to: '::/0'}]",
            "[{from: 192.0.2.1, type-of-service: 256}]",
        ],
    ),
    (
        "match",
        &[
            "{macaddress: '52:54:00:12:34:56'}",
            "{name: 'en*'}",
            "{driver: virtio_net}",
            "{driver: [a, b]}",
        ],
        &[
            "{macaddress: 52:54:00:12:34:56}",
            "{macaddress: '52:54:00:12:34'}",
            "{macaddress: 52-54-00-12-34-56}",
            "{macaddress: '5254.0012.3456'}",
            "{mac: '52:54:00:12:34:56'}",
            "{path: 'pci-*'}",
            "{name: ''}",
            "{name: 'en* eth*'}",
            "{driver: 'a b'}",
            "{driver: []}",
            "en*",
            "{name: [a, b]}",
        ],
    ),
    ("set-name", &[], &["lan0", "5"]),
    (
        "macaddress",
        &["'52:54:00:12:34:57'"],
        &["52:54:00:12:34:57", "52:54:00:ab:cd", "random", "auto"],
    ),
    (
        "mtu",
        &["1500", "'9000'", "0x5dc"],
        &[
            "big",
            "-1",
            "1500.5",
            "1_500",
            "4294967296",
            "''",
            "[1500]",
            "1500 bytes",
        ],
    ),
    (
        "renderer",
        &["networkd"],
        &["network-manager", "NetworkManager", "systemd"],
    ),
    (
        "link-local",
        &["[ipv4]", "[]"],
        &["ipv4", "[ipv5]", "[IPv6]"],
    ),
    (
        "dhcp4-overrides",
        &["{use-dns: false, route-metric: 100}"],
        &["{use-dns: maybe}", "{metric: 5}", "{route-metric: low}"],
    ),
    (
        "dhcp-identifier",
        &["mac"],
        &["duid", "DUID", "client-id", "5"],
    ),
    ("activation-mode", &["manual", "'off'"], &["off", "auto"]),
    ("optional-addresses", &["[dhcp4]"], &["[dhcp]", "dhcp4"]),
];

/// Bonds, bridges and VLANs, with references that may lead nowhere.
const JOINING: [(&str, &str); 26] = [
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {mode: 802.3ad}}",
    ),
    ("bonds", "bond0: {interfaces: [eth0, eth7]}"),
    ("bonds", "bond0: {interfaces: []}"),
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {mode: lacp}}",
    ),
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {mode: 4}}",
    ),
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {primary: eth0, mode: active-backup}}",
    ),
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {primary: eth7}}",
    ),
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {mii-monitor-interval: 100, lacp-rate: fast}}",
    ),
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {arp-ip-targets: [192.0.2.1]}}",
    ),
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {arp-ip-targets: [host]}}",
    ),
    (
        "bonds",
        "bond0: {interfaces: [eth0], parameters: {all-slaves-active: maybe}}",
    ),
    (
        "bonds",
        "bond0: {interfaces: [eth0]}, bond1: {interfaces: [eth0]}",
    ),
    ("bonds", "bond0: {interfaces: [[eth0]]}"),
    (
        "bridges",
        "br0: {interfaces: [eth0], parameters: {stp: false, forward-delay: 4}}",
    ),
    ("bridges", "br0: {interfaces: [eth8]}"),
    (
        "bridges",
        "br0: {interfaces: [eth0], parameters: {path-cost: {eth0: 5}}}",
    ),
    (
        "bridges",
        "br0: {interfaces: [eth0], parameters: {path-cost: {eth8: 5}}}",
    ),
    (
        "bridges",
        "br0: {interfaces: [eth0], parameters: {port-priority: {eth0: 64}}}",
    ),
    (
        "bridges",
        "br0: {interfaces: [eth0], parameters: {stp: maybe, priority: high}}",
    ),
    ("bridges", "br0: {dhcp4: true}, br1: {interfaces: [br0]}"),
    ("vlans", "vlan5: {id: 5, link: eth0}"),
    ("vlans", "vlan5: {id: 5, link: eth7}"),
    ("vlans", "vlan5: {id: 4095, link: eth0}"),
    ("vlans", "vlan5: {id: five, link: eth0}"),
    ("vlans", "vlan5: {link: eth0}"),
    ("vlans", "eth0: {id: 5, link: eth0}"),
];

/// A network of version 2 with two devices and up to two that join them. One in three settings is doubtful.
pub(crate) fn network(rng: &mut Rng) -> Document {
    let mut lines = vec!["version: 2".to_owned(), "ethernets:".to_owned()];
    for name in ["eth0", "eth1"] {
        let settings = (0..rng.usize(1..=3)).map(|_| {
            let (key, right, doubtful) = rng.choice(&SETTINGS).unwrap();
            let values = if right.is_empty() || rng.u8(..3) == 0 {
                doubtful
            } else {
                right
            };
            (
                (*key).to_owned(),
                (*rng.choice(*values).unwrap()).to_owned(),
            )
        });
        let mut settings: Vec<_> = settings.collect();
        settings.sort();
        settings.dedup_by(|one, other| one.0 == other.0);
        lines.push(format!("  {name}: {}", mapping(&settings)));
    }
    let joining: Vec<_> = (0..rng.usize(..=2))
        .map(|_| rng.choice(&JOINING).unwrap())
        .collect();
    for section in ["bonds", "bridges", "vlans"] {
        if let Some((_, devices)) = joining.iter().find(|(of, _)| *of == section) {
            lines.push(format!("{section}: {{{devices}}}"));
        }
    }
    lines.push(String::new());
    Document {
        field: "networkData",
        text: lines.join("\n"),
    }
}
