//! Lengths of lists and texts. Runs first: a list or text that is too long gives one violation, and no
//! other rule reads the rest of it.

use super::rule::{Check, Parts, Subject, rules};
use crate::api::machine::{CloudInit, OpenObject};
use crate::bounds::{
    AFFINITY_ITEMS_MAX, CARD_ADDRESSES_MAX, CDROMS_MAX, DEVICES_MAX, DISKS_MAX, DNS_MAX,
    HOST_CLASSES_MAX, HOST_DEVICE_ADDRESSES_MAX, HOST_DEVICES_MAX, HOST_NETWORKS_MAX,
    HOST_SOURCES_MAX, HOST_VLANS_MAX, LABELS_MAX, NETWORKS_MAX, POLICY_ITEMS_MAX,
    PROBE_ARGUMENTS_MAX, RANGES_MAX, SEARCH_DOMAINS_MAX, SUBNETS_MAX, TEXT_MAX, TOLERATIONS_MAX,
};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::json::Json;
use crate::render::network_config_text;
use crate::violation::{Findings, Kind, Location, Violation};

rules! {
    "form" Check::Decode, on EVERY_KIND, Always {
        Refuse TooMany = "A list or map has more items than any machine or host can use."
            because "Lists are bounded so that one object cannot exhaust the API server or the backends."
            fix "Remove items, or split the object."
            crd Some,
    }
    "form" Check::Value, on EVERY_KIND, Always {
        Refuse TooLong = "A text is longer than its bound."
            because "Texts are bounded so that an object fits into etcd and into the backends' own limits."
            fix "Shorten the text; put long user data into a Secret or fetch it with `#include`."
            crd Some,
    }
    "form" Check::Part(merged_lists), on MACHINES_AND_TEMPLATES, Always, and [TooMany] {}
}

/// Most entries of a boot order that are checked. There are three classes of devices, so an order of more
/// than three entries has a violation among its first four.
const BOOT_ORDER_CHECKED_MAX: usize = 16;

/// Fields of an affinity or a spread over nodes that are lists, or that have lists in them.
const AFFINITY_FIELDS: [&str; 11] = [
    "labelSelector",
    "matchExpressions",
    "nodeAffinity",
    "nodeSelectorTerms",
    "podAffinity",
    "podAffinityTerm",
    "podAntiAffinity",
    "preference",
    "preferredDuringSchedulingIgnoredDuringExecution",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "values",
];

/// Truncates the lists of a kind to their bounds.
pub(crate) type Truncate = fn(&mut Json<'_>, &mut Findings);

/// Rule [`Code::TooMany`] for the lists of a Machine or a template as sent. A list that is too long is
/// truncated, so that the other rules check no more items than a machine can have.
pub(crate) fn truncate_machine(spec: &mut Json<'_>, findings: &mut Findings) {
    items(spec, "disks", DISKS_MAX, findings);
    items(spec, "networks", NETWORKS_MAX, findings);
    items(spec, "cdroms", CDROMS_MAX, findings);
    items(spec, "devices", DEVICES_MAX, findings);
    of_each(
        spec,
        ("networks", "ipAddresses"),
        CARD_ADDRESSES_MAX,
        findings,
    );
    let placement = spec.get_mut("placement");
    if let Some(Json::List(list)) = placement.and_then(|it| it.get_mut("tolerations")) {
        let path = FieldPath::field("placement.tolerations");
        truncate(list, path, TOLERATIONS_MAX, findings);
    }
    if let Some(placement) = spec.get_mut("placement") {
        for field in ["affinity", "topologySpreadConstraints"] {
            if let Some(json) = placement.get_mut(field) {
                let location = Location::from("spec.placement").member(field);
                every_list(json, &location, findings);
            }
        }
    }
    commands(spec, findings);
    if let Some(Json::List(order)) = spec.get_mut("bootOrder") {
        order.truncate(BOOT_ORDER_CHECKED_MAX);
    }
    keys(spec, Location::from("spec"), "nodeSelector", findings);
    if let Some(cloud_init) = spec.get_mut("cloudInit") {
        keys(
            cloud_init,
            Location::from("spec.cloudInit"),
            "metaData",
            findings,
        );
    }
    if let Some(Json::List(disks)) = spec.get_mut("disks") {
        for (index, disk) in disks.iter_mut().enumerate() {
            if let Some(selector) = disk.get_mut("selector") {
                let location = Location::from(FieldPath::item("disks", index, "selector"));
                keys(selector, location, "matchLabels", findings);
            }
        }
    }
}

/// Whether no list of a block, and none of the template content in it, is longer than those of any Machine. The block of a
/// new Machine comes from its author, and is read before the API server compares it with the schema of the CRD.
pub(crate) fn are_lists_within_bounds(mut block: Json<'_>) -> bool {
    let mut faults = Findings::default();
    items(&mut block, "existingDisks", DISKS_MAX, &mut faults);
    items(&mut block, "annotationKeys", POLICY_ITEMS_MAX, &mut faults);
    if let Some(hardware) = block.get_mut("hardware") {
        items(hardware, "devices", DEVICES_MAX, &mut faults);
    }
    truncate_machine(&mut block, &mut faults);
    let template = block.get_mut("template");
    if let Some(content) = template.and_then(|template| template.get_mut("content")) {
        truncate_machine(content, &mut faults);
    }
    faults.accepted()
}

/// Rule [`Code::TooMany`] for the commands of probes.
fn commands(spec: &mut Json<'_>, findings: &mut Findings) {
    for (probe, path) in [
        ("readiness", "probes.readiness.exec.command"),
        ("liveness", "probes.liveness.exec.command"),
    ] {
        let probes = spec.get_mut("probes");
        let exec = probes.and_then(|it| it.get_mut(probe)?.get_mut("exec"));
        if let Some(Json::List(list)) = exec.and_then(|it| it.get_mut("command")) {
            truncate(list, FieldPath::field(path), PROBE_ARGUMENTS_MAX, findings);
        }
    }
}

/// Rule [`Code::TooMany`] for every list and map of labels in a part of an affinity.
fn every_list(json: &mut Json<'_>, at: &Location, findings: &mut Findings) {
    match json {
        Json::List(list) => {
            if list.len() > AFFINITY_ITEMS_MAX {
                let count = list.len();
                findings.deny(too_many(at.clone(), count, AFFINITY_ITEMS_MAX));
                list.truncate(AFFINITY_ITEMS_MAX);
            }
            for (index, item) in list.iter_mut().enumerate() {
                every_list(item, &at.clone().key(&index.to_string()), findings);
            }
        }
        Json::Object(_) => {
            keys(json, at.clone(), "matchLabels", findings);
            for field in AFFINITY_FIELDS {
                if let Some(inner) = json.get_mut(field) {
                    every_list(inner, &at.clone().member(field), findings);
                }
            }
        }
        _ => {}
    }
}

/// Rule [`Code::TooMany`] for a list in each item of a list.
fn of_each(
    spec: &mut Json<'_>,
    (list, field): (&'static str, &'static str),
    most: usize,
    findings: &mut Findings,
) {
    let Some(Json::List(items)) = spec.get_mut(list) else {
        return;
    };
    for (index, item) in items.iter_mut().enumerate() {
        if let Some(Json::List(inner)) = item.get_mut(field) {
            truncate(inner, FieldPath::item(list, index, field), most, findings);
        }
    }
}

/// Rule [`Code::TooMany`] for the lists of a LibvirtHost as sent, which are truncated as a Machine's
/// are. VLANs are read up to the first that is not a number: an author who quotes one quotes all, and the
/// list may have up to [`HOST_VLANS_MAX`] entries, each with the same violation.
pub(crate) fn truncate_host(spec: &mut Json<'_>, findings: &mut Findings) {
    items(spec, "storage", HOST_CLASSES_MAX, findings);
    items(spec, "imageSources", HOST_SOURCES_MAX, findings);
    items(spec, "existingVolumes", HOST_CLASSES_MAX, findings);
    let namespaces = ("existingVolumes", "namespaces");
    of_each(spec, namespaces, HOST_NETWORKS_MAX, findings);
    items(spec, "networks", HOST_NETWORKS_MAX, findings);
    items(spec, "devices", HOST_DEVICES_MAX, findings);
    let addresses = ("devices", "addresses");
    of_each(spec, addresses, HOST_DEVICE_ADDRESSES_MAX, findings);
    let Some(Json::List(networks)) = spec.get_mut("networks") else {
        return;
    };
    for (index, network) in networks.iter_mut().enumerate() {
        if let Some(Json::List(vlans)) = network.get_mut("vlans") {
            let path = FieldPath::item("networks", index, "vlans");
            truncate(vlans, path, HOST_VLANS_MAX, findings);
            let is_read =
                |vlan: &Json<'_>| matches!(vlan, Json::Number(it) if it.as_i64().is_some());
            if let Some(first) = vlans.iter().position(|vlan| !is_read(vlan)) {
                vlans.truncate(first + 1);
            }
        }
    }
}

/// Rule [`Code::TooMany`] for the lists of a MachinePolicy as sent, which are truncated as a Machine's are.
pub(crate) fn truncate_policy(spec: &mut Json<'_>, findings: &mut Findings) {
    items(spec, "backends", POLICY_ITEMS_MAX, findings);
    for (field, list, path) in [
        ("annotations", "allow", "annotations.allow"),
        ("templates", "allow", "templates.allow"),
        ("storageClasses", "allow", "storageClasses.allow"),
        ("networks", "bridges", "networks.bridges"),
        ("images", "names", "images.names"),
        ("images", "sources", "images.sources"),
        ("images", "volumes", "images.volumes"),
        ("reclaimPolicies", "allow", "reclaimPolicies.allow"),
        ("hardware", "devices", "hardware.devices"),
        ("hardware", "overrides", "hardware.overrides"),
        ("hardware", "priorityClasses", "hardware.priorityClasses"),
        ("placement", "tolerations", "placement.tolerations"),
    ] {
        if let Some(Json::List(list)) = spec.get_mut(field).and_then(|it| it.get_mut(list)) {
            truncate(list, FieldPath::field(path), POLICY_ITEMS_MAX, findings);
        }
    }
    if let Some(Json::List(bridges)) = spec
        .get_mut("networks")
        .and_then(|networks| networks.get_mut("bridges"))
    {
        for (index, bridge) in bridges.iter_mut().enumerate() {
            if let Some(Json::List(vlans)) = bridge.get_mut("vlans") {
                let path = FieldPath::item("networks.bridges", index, "vlans");
                truncate(vlans, path, POLICY_ITEMS_MAX, findings);
            }
        }
    }
    if let Some(hosts) = spec.get_mut("libvirtHosts") {
        let location = Location::from("spec.libvirtHosts");
        keys(hosts, location, "matchLabels", findings);
    }
    let Some(selector) = spec.get_mut("namespaceSelector") else {
        return;
    };
    let location = Location::from("spec.namespaceSelector");
    keys(selector, location, "matchLabels", findings);
    if let Some(Json::List(requirements)) = selector.get_mut("matchExpressions") {
        let list = "namespaceSelector.matchExpressions";
        truncate(requirements, FieldPath::field(list), LABELS_MAX, findings);
        for (index, requirement) in requirements.iter_mut().enumerate() {
            if let Some(Json::List(values)) = requirement.get_mut("values") {
                let path = FieldPath::item(list, index, "values");
                truncate(values, path, LABELS_MAX, findings);
            }
        }
    }
}

/// Rule [`Code::TooMany`] for the lists of a NetworkConfiguration as sent, which are truncated as a Machine's are.
pub(crate) fn truncate_network(spec: &mut Json<'_>, findings: &mut Findings) {
    let Some(ipam) = spec.get_mut("ipam") else {
        return;
    };
    for (list, path, max) in [
        ("subnets", "ipam.subnets", SUBNETS_MAX),
        ("dns", "ipam.dns", DNS_MAX),
        ("searchDomains", "ipam.searchDomains", SEARCH_DOMAINS_MAX),
    ] {
        if let Some(Json::List(list)) = ipam.get_mut(list) {
            truncate(list, FieldPath::field(path), max, findings);
        }
    }
    if let Some(Json::List(subnets)) = ipam.get_mut("subnets") {
        for (index, subnet) in subnets.iter_mut().enumerate() {
            if let Some(Json::List(ranges)) = subnet.get_mut("ranges") {
                let path = FieldPath::item("ipam.subnets", index, "ranges");
                truncate(ranges, path, RANGES_MAX, findings);
            }
        }
    }
}

/// For a spec without lists.
pub(crate) fn truncate_nothing(_: &mut Json<'_>, _: &mut Findings) {}

fn items(spec: &mut Json<'_>, field: &'static str, max: usize, findings: &mut Findings) {
    if let Some(Json::List(list)) = spec.get_mut(field) {
        truncate(list, FieldPath::field(field), max, findings);
    }
}

fn truncate(list: &mut Vec<Json<'_>>, path: FieldPath, max: usize, findings: &mut Findings) {
    if list.len() > max {
        findings.deny(too_many(path, list.len(), max));
    }
    list.truncate(max);
}

fn keys(parent: &mut Json<'_>, location: Location, field: &str, findings: &mut Findings) {
    if let Some(Json::Object(map)) = parent.get_mut(field) {
        // A null means the same as an absent key.
        map.retain(|value| !value.is_null());
        if map.len() > LABELS_MAX {
            findings.deny(too_many(location.member(field), map.len(), LABELS_MAX));
            map.truncate(LABELS_MAX);
        }
    }
}

fn too_many(location: impl Into<Location>, count: usize, max: usize) -> Violation {
    let detail = format!("has {count} items; at most {max} are allowed");
    Violation::new(location, Code::TooMany, Kind::TooMany, detail)
}

/// Rule [`Code::TooMany`] for lists that only a template and its user together make too long.
fn merged_lists(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    for (list, count, max) in subject.merged.overlong() {
        let detail =
            format!("has {count} items together with the template's; at most {max} are allowed");
        let path = FieldPath::field(list);
        let fault = Violation::new(path, Code::TooMany, Kind::TooMany, detail);
        findings.deny(fault.unless_faulty(path));
    }
}

/// The inline documents of cloud-init: the field path of each, and its length in bytes as the guest gets it.
pub(crate) fn documents(cloud_init: &CloudInit) -> [(&'static str, usize); 4] {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let object = |object: &Option<OpenObject>| {
        let text = object.as_ref().and_then(network_config_text);
        text.map_or(0, |text| text.len())
    };
    [
        ("spec.cloudInit.userData", text(&cloud_init.user_data)),
        (
            "spec.cloudInit.cloudConfig",
            object(&cloud_init.cloud_config),
        ),
        ("spec.cloudInit.networkData", text(&cloud_init.network_data)),
        (
            "spec.cloudInit.networkConfig",
            object(&cloud_init.network_config),
        ),
    ]
}

/// Rule [`Code::TooLong`] for the documents of cloud-init and its metadata. `max`: of characters of a document that is a
/// text, and of bytes of an object.
pub(crate) fn cloud_init(cloud_init: &CloudInit, max: usize, findings: &mut Findings) {
    for (location, text) in [
        ("spec.cloudInit.userData", &cloud_init.user_data),
        ("spec.cloudInit.networkData", &cloud_init.network_data),
    ] {
        length(location, text.as_deref(), max, findings);
    }
    for (location, object) in [
        ("spec.cloudInit.cloudConfig", &cloud_init.cloud_config),
        ("spec.cloudInit.networkConfig", &cloud_init.network_config),
    ] {
        let text = object.as_ref().and_then(network_config_text);
        let bytes = text.map_or(0, |text| text.len());
        if bytes > max {
            let detail = format!("has {bytes} bytes as JSON; at most {max} are allowed");
            findings.deny(Violation::new(
                location,
                Code::TooLong,
                Kind::TooLong,
                detail,
            ));
        }
    }
    let meta_data = Location::from("spec.cloudInit.metaData");
    for (key, value) in cloud_init.meta_data.iter().flatten() {
        length(meta_data.clone(), Some(key), TEXT_MAX, findings);
        length(meta_data.clone().key(key), Some(value), TEXT_MAX, findings);
    }
}

/// Rule [`Code::TooLong`] for one text, counted in characters as the schema counts.
pub(crate) fn length(
    location: impl Into<Location>,
    text: Option<&str>,
    max: usize,
    findings: &mut Findings,
) {
    let characters = text.map_or(0, |text| text.chars().count());
    if characters > max {
        let detail = format!("has {characters} characters; at most {max} are allowed");
        findings.deny(Violation::new(
            location,
            Code::TooLong,
            Kind::TooLong,
            detail,
        ));
    }
}
