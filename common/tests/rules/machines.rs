//! Generated objects: most values are valid, including all limits, and a few are just outside a limit.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

pub(crate) type Values = BoxedStrategy<Value>;

/// Mostly one of the good texts, rarely one of the bad ones.
pub(crate) fn texts(good: &'static [&'static str], bad: &'static [&'static str]) -> Values {
    prop_oneof![40 => select(good), 1 => select(bad)]
        .prop_map(Value::from)
        .boxed()
}

/// Objects with any subset of these fields.
pub(crate) fn object(fields: Vec<(&'static str, Values)>) -> Values {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, values)| proptest::option::of(values).prop_map(move |value| (name, value)))
        .collect();
    fields
        .prop_map(|fields| {
            let there = fields.into_iter();
            Value::Object(
                there
                    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                    .collect(),
            )
        })
        .boxed()
}

/// The same objects with this field added.
pub(crate) fn with(objects: Values, field: &'static str, values: Values) -> Values {
    (objects, values)
        .prop_map(move |(mut object, value)| {
            object[field] = value;
            object
        })
        .boxed()
}

/// Lists of items with different names.
pub(crate) fn named(names: &'static [&'static str], item: Values) -> Values {
    let items = vec(proptest::option::weighted(0.4, item), names.len());
    items
        .prop_map(|items| {
            let items = names.iter().zip(items).filter_map(|(name, item)| {
                let mut item = item?;
                item["name"] = (*name).into();
                Some(item)
            });
            items.collect()
        })
        .boxed()
}

fn labels() -> Values {
    let keys = texts(
        &["zone", "a.b/c", "A_b.c-d", "x", "example.com/Zone"],
        &["", "a b", "/x", "A/x", "a/b/c"],
    );
    let values = texts(
        &["", "a", "A_b.c", "1", "eu-west"],
        &["-", "a b", "é", "a/b"],
    );
    vec((keys, values), 0..4)
        .prop_map(|pairs| {
            let pairs = pairs.into_iter();
            Value::Object(
                pairs
                    .map(|(key, value)| (key.as_str().unwrap().to_owned(), value))
                    .collect(),
            )
        })
        .boxed()
}

fn object_names() -> Values {
    texts(
        &["a", "golden", "pv-1", "a.b-c.d", "0"],
        &["", "A", "a_b", "a..b", ".a", "a-", "a/b", "a.-b"],
    )
}

fn images() -> Values {
    let urls = texts(
        &[
            "https://images.example.com/debian.qcow2",
            "http://127.0.0.1:8080/a?b=c#d",
            "https://é/ü",
            "http://x",
        ],
        &[
            "ftp://a/b",
            "https://",
            "HTTPS://a/b",
            "https:///a",
            "http://a b",
            "a",
            "",
        ],
    );
    let checksums = texts(
        &["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"],
        &["", "sha256:", "md5:d41d8cd98f00b204e9800998ecf8427e"],
    );
    let containers = texts(&["docker://registry.example.com/a:b"], &["docker://"]);
    prop_oneof![
        3 => with(object(vec![("checksum", checksums)]), "url", urls),
        1 => with(Just(json!({})).boxed(), "url", containers),
        1 => with(Just(json!({})).boxed(), "persistentVolumeClaim", object_names()),
        1 => with(Just(json!({})).boxed(), "volume", texts(&["debian.qcow2", "a b"], &[""])),
    ]
    .boxed()
}

fn disk_sizes() -> Values {
    texts(
        &[
            "1Mi",
            "64Ti",
            "1G",
            "500M",
            "1e9",
            "1E9",
            "+1Gi",
            ".5Gi",
            "1.Gi",
            "1.5Gi",
            "007Gi",
            "1048576",
            "1048576000m",
            "2000000000000000n",
            "1e+10",
            "70368744177664",
        ],
        &[
            "", "0", "1", "-1Gi", "1gi", "1 Gi", "65Ti", "1e999", "Gi", "1e", "1e-3",
        ],
    )
}

fn classes() -> Values {
    texts(&["standard", "fast-ssd", "default"], &["", "gone", "A"])
}

fn disks() -> Values {
    let disk = with(
        object(vec![
            ("storageClass", classes()),
            (
                "accessMode",
                texts(
                    &["ReadWriteOnce", "ReadWriteMany"],
                    &["ReadOnlyMany", "RWX", ""],
                ),
            ),
            (
                "volumeMode",
                texts(&["Filesystem", "Block"], &["block", ""]),
            ),
            ("bus", texts(&["virtio", "sata", "scsi"], &["ide", ""])),
            ("reclaimPolicy", texts(&["Delete", "Retain"], &["Keep", ""])),
            ("image", images()),
        ]),
        "size",
        disk_sizes(),
    );
    let bound = with(
        object(vec![
            (
                "storageClass",
                texts(&["", "standard", "default"], &["gone"]),
            ),
            (
                "accessMode",
                texts(&["ReadOnlyMany", "ReadWriteOnce"], &["ROX"]),
            ),
        ]),
        "size",
        disk_sizes(),
    );
    let by_name = with(bound.clone(), "volumeName", object_names());
    let selector = with(Just(json!({})).boxed(), "matchLabels", labels());
    let by_labels = with(bound, "selector", selector);
    let removed = Just(json!({"remove": true})).boxed();
    let item = prop_oneof![8 => disk, 2 => by_name, 2 => by_labels, 1 => removed].boxed();
    named(&["root", "data", "a", "0", "x-1"], item)
}

fn networks() -> Values {
    let card = object(vec![
        (
            "networkName",
            texts(
                &["prod-network", "storage-network", "missing"],
                &["", "A", "a.b"],
            ),
        ),
        (
            "model",
            texts(&["virtio", "e1000", "e1000e", "rtl8139"], &["vmxnet3", ""]),
        ),
    ]);
    let macs = [
        "52:54:00:ab:cd:e0",
        "52-54-00-AB-CD-E1",
        "5254.00ab.cde2",
        "02:00:00:00:00:01",
    ];
    // Each card has an address of its own.
    named(&["eth0", "eth1", "_", "A-b_0"], card)
        .prop_flat_map(move |cards| {
            let count = cards.as_array().map_or(0, Vec::len);
            (Just(cards), vec(any::<bool>(), count))
        })
        .prop_map(move |(mut cards, with_mac)| {
            for (index, _) in with_mac
                .iter()
                .enumerate()
                .filter(|(_, with_mac)| **with_mac)
            {
                cards[index]["macAddress"] = macs[index].into();
            }
            // One card without a network is enough.
            let mut alone = false;
            for card in cards.as_array_mut().into_iter().flatten() {
                if card.get("networkName").is_none() && std::mem::replace(&mut alone, true) {
                    card["networkName"] = "prod-network".into();
                }
            }
            cards
        })
        .boxed()
}

fn cdroms() -> Values {
    let sizes = disk_sizes();
    let full = with(
        with(object(vec![("storageClass", classes())]), "image", images()),
        "size",
        sizes,
    );
    let empty = Just(json!({})).boxed();
    named(
        &["iso", "tools"],
        prop_oneof![9 => full, 1 => empty].boxed(),
    )
}

fn boot_orders() -> Values {
    let orders: &'static [&'static [&'static str]] = &[
        &[],
        &["network"],
        &["disk", "network"],
        &["network", "disk"],
        &["network", "cdrom", "disk"],
        &["disk"],
        &["disk", "disk"],
        &["floppy"],
    ];
    select(orders).prop_map(Value::from).boxed()
}

fn resources() -> Values {
    let counts = |good: &'static [i64]| {
        prop_oneof![40 => select(good), 1 => select(&[0_i64, -1, 256, i64::MAX])]
            .prop_map(Value::from)
            .boxed()
    };
    let of_sockets = object(vec![
        ("cores", counts(&[1, 2, 4, 15])),
        ("threads", counts(&[1, 2])),
        ("sockets", counts(&[1, 2])),
        ("maxSockets", counts(&[2, 4, 8])),
    ]);
    let of_cores = object(vec![
        ("cores", counts(&[1, 2, 4, 15])),
        ("threads", counts(&[1, 2])),
        ("maxCores", counts(&[15, 16])),
    ]);
    let cpu = prop_oneof![3 => of_sockets, 1 => of_cores].boxed();
    let sizes = texts(
        &[
            "2Gi",
            "4Gi",
            "2048Mi",
            "1.5Gi",
            "4294967296",
            "32Mi",
            "4e9",
            "+2Gi",
            "2147483648000m",
        ],
        &["", "2G", "4", "31Mi", "13Ti", "2 Gi", "1e99"],
    );
    let max_sizes = texts(&["8Gi", "12Ti", "16384Mi"], &["1Gi", "8193Ki", ""]);
    let memory = with(object(vec![("maxSize", max_sizes)]), "size", sizes);
    with(object(vec![("cpu", cpu)]), "memory", memory)
}

fn domains() -> Values {
    let flag = || any::<bool>().prop_map(Value::from).boxed();
    let machine = object(vec![(
        "type",
        texts(&["pc-q35", "q35"], &["pc", "pc-i440fx", "", "pc-q35-9.0"]),
    )]);
    let features = object(vec![("apic", flag()), ("hyperv", flag())]);
    let secure = with(Just(json!({"efi": true})).boxed(), "secureBoot", flag());
    let bootloader = prop_oneof![
        Just(json!({})),
        Just(json!({"efi": false})),
        Just(json!({"secureBoot": true})),
        secure
    ];
    let firmware = object(vec![("bootloader", bootloader.boxed())]);
    object(vec![
        ("machine", machine),
        ("features", features),
        ("firmware", firmware),
    ])
}

/// A document of cloud-init as an object.
fn open_objects(documents: &'static [&'static str]) -> Values {
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    select(documents).prop_map(parse).boxed()
}

/// Data for cloud-init that templates have, too.
fn shared_cloud_init() -> Vec<(&'static str, Values)> {
    let meta_data = vec(("[a-z_]{1,6}", texts(&["", "a b\n", "é"], &["x"])), 0..3)
        .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>()));
    let cloud_config = open_objects(&[
        "{}",
        r#"{"hostname": "web"}"#,
        r#"{"users": ["default", {"name": null}], "ü": 1}"#,
        r#"{"runcmd": "ls", "hunter2": [[]]}"#,
        r#"{"users": [{"name": 7, "sudo": 1.5e300}]}"#,
    ]);
    let network_config = open_objects(&[
        "{}",
        r#"{"version": 2, "ethernets": {"eth0.5": {"dhcp4": true}}}"#,
        r#"{"version": 1, "config": []}"#,
        r#"{"network": {"version": 2, "bonds": {"b0": {"interfaces": ["x"]}}}}"#,
        r#"{"ethernets": {}}"#,
    ]);
    vec![
        ("metaData", meta_data.boxed()),
        ("cloudConfig", cloud_config),
        ("networkConfig", network_config),
    ]
}

fn cloud_inits() -> Values {
    let user_data = texts(
        &[
            "#cloud-config\n",
            "",
            "#cloud-config\nhostname: web\n",
            "#!/bin/sh",
        ],
        &[
            "hostname: web",
            "#cloud-config\nruncmd: ls",
            "#cloud-config\n- [",
            "ü",
        ],
    );
    let network_data = texts(
        &[
            "version: 2",
            "",
            "network: {config: disabled}",
            "{version: 1, config: []}",
        ],
        &["ethernets: {}", "version: '2'", "\t", "ü"],
    );
    let secret = || {
        let keys = texts(
            &["userdata", "User_Data.1", "-", ".x"],
            &["", "a b", "a/b", ".", "..x"],
        );
        with(object(vec![("key", keys)]), "name", object_names())
    };
    let mut fields = shared_cloud_init();
    fields.extend([
        ("userData", user_data),
        ("networkData", network_data),
        ("secretRef", secret()),
        ("networkDataSecretRef", secret()),
    ]);
    object(fields)
}

/// Specs of Machines; about half of them are accepted.
pub(crate) fn machine_specs() -> Values {
    let flag = any::<bool>().prop_map(Value::from).boxed();
    let rest = object(vec![
        (
            "template",
            texts(&["small", "large", "web", "legacy", "empty"], &["smal", ""]),
        ),
        (
            "backend",
            texts(&["kubevirt", "libvirt"], &["KubeVirt", ""]),
        ),
        ("powerState", texts(&["Running", "Stopped"], &["On", ""])),
        ("guestShutdownStops", flag.clone()),
        ("deletionProtection", flag),
        ("disks", disks()),
        ("networks", networks()),
        ("bootOrder", boot_orders()),
        ("cdroms", cdroms()),
        ("cloudInit", cloud_inits()),
        ("domain", domains()),
        ("nodeSelector", labels()),
    ]);
    with(rest, "resources", resources())
}

/// Specs of MachineTemplates.
pub(crate) fn template_specs() -> Values {
    object(vec![
        ("description", texts(&["", "for the web"], &["ü"])),
        ("deprecated", texts(&["", "use web"], &["ü"])),
        (
            "deletionProtection",
            any::<bool>().prop_map(Value::from).boxed(),
        ),
        ("resources", resources()),
        ("disks", disks()),
        ("networks", networks()),
        ("bootOrder", boot_orders()),
        ("cloudInit", object(shared_cloud_init())),
        ("domain", domains()),
    ])
}

/// Specs of NetworkConfigurations.
pub(crate) fn network_specs() -> Values {
    let numbers = |values: &'static [i64]| select(values).prop_map(Value::from).boxed();
    object(vec![
        ("vlan", numbers(&[1, 100, 4094, 0, 4095, -1])),
        (
            "bridge",
            texts(
                &["br0", "br-prod.east_01", "é"],
                &["", "a b", "a/b", "a:b", ".", "..", "br-production-east"],
            ),
        ),
        ("mtu", numbers(&[68, 1500, 65535, 67, 65536])),
        ("networkAttachmentDefinition", object_names()),
    ])
}
