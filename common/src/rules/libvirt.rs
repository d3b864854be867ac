//! What only KubeVirt can do, asked of libvirt. A template is not asked: it says nothing about the backend.

use crate::api::choice::{AccessMode, VolumeMode};
use crate::api::machine::{Disk, Image};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Item, Merged};
use crate::violation::{Findings, Kind, Violation};

use super::disks;

/// Rules [`Code::VolumeNeedsKubevirt`], [`Code::ImageNeedsKubevirt`] and [`Code::VolumeFieldIgnored`].
pub(crate) fn check(merged: &Merged<'_>, findings: &mut Findings) {
    for item in &merged.disks {
        bound_volume(item, findings);
        ignored(item, findings);
        if let Some(image) = item.pick("image", |disk| disk.image.as_ref()).value {
            let at = |part| item.path(part, |disk| disk.image.is_some());
            source(image, &at, findings);
        }
    }
    for item in &merged.cdroms {
        if let Some(image) = item.pick("image", |cdrom| cdrom.image.as_ref()).value {
            source(image, &|part| item.path(part, |_| true), findings);
        }
    }
}

/// Rule [`Code::VolumeNeedsKubevirt`].
fn bound_volume(item: &Item<'_, Disk>, findings: &mut Findings) {
    let selector = item.pick("selector", |disk| disk.selector.as_ref().map(|_| ()));
    let name = item.pick("volumeName", |disk| disk.volume_name.as_ref().map(|_| ()));
    for leaf in [selector, name] {
        if leaf.value.is_some() {
            let detail = "PersistentVolumes are the cluster's, and no disk of a libvirt host; remove it, or use backend: kubevirt";
            let code = Code::VolumeNeedsKubevirt;
            let fault = Violation::new(leaf.path, code, Kind::Forbidden, detail);
            findings.deny(fault.given(FieldPath::field("backend")));
        }
    }
}

/// Rule [`Code::ImageNeedsKubevirt`].
fn source(image: &Image, at: &dyn Fn(&'static str) -> FieldPath, findings: &mut Findings) {
    let code = Code::ImageNeedsKubevirt;
    if let Some(claim) = &image.persistent_volume_claim {
        let detail = "a libvirt host cannot read a PersistentVolumeClaim; use url or volume, or backend: kubevirt";
        let path = at("image.persistentVolumeClaim");
        let fault = Violation::new(path, code, Kind::Invalid, detail).text(claim);
        findings.deny(fault.given(FieldPath::field("backend")));
    }
    let container = image
        .url
        .as_deref()
        .filter(|url| url.starts_with("docker://"));
    if let Some(url) = container {
        let detail = "a libvirt host fetches no container images; use https:// or http://, or backend: kubevirt";
        let fault = Violation::new(at("image.url"), code, Kind::Invalid, detail).text(url);
        findings.deny(fault.given(FieldPath::field("backend")));
    }
}

/// Rule [`Code::VolumeFieldIgnored`]: no fault, so that a template for KubeVirt serves for both.
fn ignored(item: &Item<'_, Disk>, findings: &mut Findings) {
    let quiet = &mut Findings::default();
    if disks::access_mode(item, quiet) == Some(AccessMode::ReadWriteMany) {
        let path = item
            .pick("accessMode", |disk| disk.access_mode.as_ref())
            .path;
        let text = format!(
            "{path}: ReadWriteMany has no effect on libvirt, where a volume is on one host"
        );
        findings.warn(Code::VolumeFieldIgnored, &text);
    }
    if disks::volume_mode(item, quiet) == Some(VolumeMode::Block) {
        let path = item
            .pick("volumeMode", |disk| disk.volume_mode.as_ref())
            .path;
        let text = format!(
            "{path}: Block has no effect on libvirt, where the pool decides what a volume is"
        );
        findings.warn(Code::VolumeFieldIgnored, &text);
    }
}
