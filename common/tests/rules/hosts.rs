//! Generated LibvirtHosts: most values are valid, a few are not.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

use crate::machines::{Values, named, object, texts, with};

/// Names of pools and networks.
fn names() -> Values {
    texts(&["default", "A_b.c", "é"], &["", "a b", "a/b"])
}

fn storage() -> Values {
    let item = object(vec![
        ("format", texts(&["qcow2"], &["", "raw", "vmdk"])),
        ("provisioning", texts(&["overlay", "copy"], &["", "thin"])),
    ]);
    let classes = texts(&["fast", "a.b"], &["", "Fast", "a b"]);
    let item = with(with(item, "storageClass", classes), "pool", names());
    vec(item, 0..2).prop_map(Value::from).boxed()
}

fn sources() -> Values {
    let item = texts(
        &["https://images.example.com/", "http://10.0.0.5:8080"],
        &["", "ftp://host/", "https://host/?a", "https://user@host/"],
    );
    vec(item, 0..2).prop_map(Value::from).boxed()
}

fn networks() -> Values {
    let vlan = prop_oneof![
        30 => select(vec![1_i64, 7, 4094]),
        1 => select(vec![0, 4095, 70_000, -1]),
    ];
    let vlans = vec(vlan, 0..2).prop_map(Value::from).boxed();
    let types = texts(&["network", "ovs"], &["", "bridge", "vxlan"]);
    let flag = || any::<bool>().prop_map(Value::from).boxed();
    let more = vec![
        ("vlans", vlans),
        ("portIsolation", flag()),
        ("allowMacSpoofing", flag()),
    ];
    let item = with(object(more), "type", types);
    named(&["default", "br0", "br1"], with(item, "source", names()))
}

fn devices() -> Values {
    let address = texts(&["0000:3b:00.0", "0000:3c:00.0"], &["", "3b:00.0"]);
    let addresses = vec(address, 1..3).prop_map(Value::from).boxed();
    let names = &["nvidia.com/A100", "nvidia.com/T4"];
    named(names, object(vec![("addresses", addresses)]))
}

fn limits() -> Values {
    let limit = || {
        let limit = prop_oneof![
            30 => select(vec![1_i64, 200, 100_000]),
            1 => select(vec![0, -1, 5_000_000_000]),
        ];
        limit.prop_map(Value::from).boxed()
    };
    object(vec![
        ("diskIops", limit()),
        ("diskMegabytesPerSecond", limit()),
        ("networkMegabitsPerSecond", limit()),
        ("vcpuQuota", any::<bool>().prop_map(Value::from).boxed()),
    ])
}

fn credentials() -> Values {
    let namespaces = texts(&["libvirt"], &["", "a.b"]);
    let secrets = texts(&["hv1", "hv1.example.com"], &["", "Hv1"]);
    with(
        with(object(vec![]), "namespace", namespaces),
        "name",
        secrets,
    )
}

/// A field for CPUs and one for memory.
fn amounts(good: &'static [&'static str], bad: &'static [&'static str]) -> Values {
    object(vec![
        ("cpu", texts(good, bad)),
        ("memory", texts(good, bad)),
    ])
}

/// Specs of LibvirtHosts.
pub(crate) fn host_specs() -> Values {
    let uris = texts(
        &[
            "qemu:///system",
            "test:///default",
            "qemu+tls://hv1.example.com:16514/system",
            "qemu+ssh://root@[fd00::1]:2222/system",
        ],
        &["", "qemu+tcp://hv1/system", "qemu:///system?socket=x"],
    );
    let factors = amounts(
        &["1", "1.5", "0.001", "999.999"],
        &["0", "1.", ".5", "1000", "1.2345", "1e1"],
    );
    let reserved = amounts(
        &["1", "500m", "2Gi", "+1.5Gi"],
        &["", "two", "-1", "00000000000000000000000000000000001"],
    );
    let rest = object(vec![
        (
            "cpuMode",
            texts(&["host-model", "maximum"], &["", "custom"]),
        ),
        ("schedulable", any::<bool>().prop_map(Value::from).boxed()),
        ("maintenance", any::<bool>().prop_map(Value::from).boxed()),
        ("overcommit", factors),
        ("reserved", reserved),
        ("storage", storage()),
        ("imagePool", names()),
        ("imageSources", sources()),
        ("networks", networks()),
        ("dedicatedCpus", texts(&["2-7", "1,3"], &["", "7-2", "a"])),
        ("devices", devices()),
        ("limits", limits()),
    ]);
    let rest = with(rest, "uri", uris);
    let rest = with(rest, "credentialsSecretRef", credentials());
    with(rest, "virtType", texts(&["kvm", "qemu"], &["", "xen"]))
}
