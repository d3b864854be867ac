//! What the fake reads from the XML descriptions of a call.

use common::render::libvirt::Reference;
use roxmltree::Document;
use uuid::Uuid;

use super::found::refused;
use super::{FakeDomain, FakeVolume, HostState, edit};
use crate::access::{DomainState, Result, xml};

/// Name and desired state of a volume.
pub(super) fn desired(xml: &str) -> Result<(String, FakeVolume)> {
    let document = xml::parse(xml)?;
    let name =
        xml::text(&document, &["name"]).ok_or_else(|| refused("missing volume name element"))?;
    let capacity = xml::child(document.root_element(), "capacity")
        .and_then(bytes)
        .ok_or_else(|| refused("missing capacity element"))?;
    let desired_volume = FakeVolume {
        capacity,
        raw: document
            .descendants()
            .filter(|it| it.parent().is_some_and(|it| it.has_tag_name("target")))
            .all(|it| it.attribute("type") != Some("qcow2")),
        backing: xml::backing(&document),
        content: vec![],
        key: None,
    };
    Ok((name.to_owned(), desired_volume))
}

/// A number of bytes with its unit, which is bytes where there is none.
pub(super) fn bytes(node: roxmltree::Node<'_, '_>) -> Option<u64> {
    let number: u64 = node.text()?.trim().parse().ok()?;
    let factor = match node.attribute("unit") {
        None | Some("bytes" | "B") => 1,
        Some("KiB" | "k" | "K") => 1 << 10,
        Some("MiB" | "M") => 1 << 20,
        Some("GiB" | "G") => 1 << 30,
        Some(_) => return None,
    };
    Some(number * factor)
}

pub(super) fn domain_state(uuid: Uuid, domain: &FakeDomain) -> DomainState {
    DomainState {
        uuid,
        name: domain.name.clone(),
        metadata: edit::metadata(&domain.inactive),
        state: domain.state,
        reason: domain.reason,
        vcpus: vcpus(
            domain.live.as_ref().unwrap_or(&domain.inactive),
            Some("current"),
        ),
        memory: memory(&domain.inactive),
        persistent: domain.persistent,
    }
}

pub(super) fn vcpus(domain: &str, attribute: Option<&str>) -> u32 {
    let document = Document::parse(domain).unwrap();
    let vcpu = xml::child(document.root_element(), "vcpu");
    let current = vcpu.and_then(|it| it.attribute(attribute?));
    current
        .or_else(|| vcpu.and_then(|it| it.text()))
        .and_then(|it| it.trim().parse().ok())
        .unwrap_or(1)
}

/// Bytes, at most. Memory without a unit is KiB.
pub(super) fn memory(domain: &str) -> u64 {
    let document = Document::parse(domain).unwrap();
    let memory = xml::child(document.root_element(), "memory");
    let number = memory.and_then(bytes).unwrap_or(0);
    match memory.and_then(|it| it.attribute("unit")) {
        None => number * 1024,
        Some(_) => number,
    }
}

/// The path of what a domain refers to.
pub(super) fn resolved(state: &HostState, source: Reference) -> Option<String> {
    match source {
        Reference::Path(path) => Some(path),
        Reference::Volume { pool, volume: name } => state
            .pools
            .contains_key(&pool)
            .then(|| HostState::path(&pool, &name)),
    }
}

/// What the disk with that target refers to.
pub(super) fn disk(domain: &str, target: &str) -> Option<Reference> {
    let document = Document::parse(domain).unwrap();
    let disk = document.descendants().find(|it| {
        it.has_tag_name("disk")
            && xml::child(*it, "target").and_then(|it| it.attribute("dev")) == Some(target)
    })?;
    let text = format!(
        "<domain><devices>{}</devices></domain>",
        &domain[disk.range()]
    );
    xml::sources(&text).unwrap().all.into_iter().next()
}
