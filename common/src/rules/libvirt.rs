//! Fields that only KubeVirt supports, on a Machine whose backend is libvirt. Templates are not checked:
//! they have no backend.

use std::collections::BTreeMap;

use crate::api::choice::{AccessMode, VolumeMode};
use crate::api::machine::{Disk, Image};
use crate::bounds::AGENT_TIMEOUT_MAX;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Filled, Item};
use crate::violation::{Findings, Kind, Location, Violation};

use super::rule::{Check, Lookup, rules};
use super::{affinity, disks, machine, placement, probes};

rules! {
    "libvirt" Check::Lookup(bound_volumes), on MACHINES, Always {
        Refuse VolumeNeedsKubevirt = "A disk on libvirt chooses a PersistentVolume or a claim."
            because "A PersistentVolume is mounted by a node of the cluster; a libvirt host has pools of its own."
            fix "Remove `selector` and `claimName`, or use `backend: kubevirt`. A volume of a host that exists already is named in `volumeName`."
            crd Some,
    }
    "libvirt" Check::Lookup(sources), on MACHINES, Always {
        Refuse ImageNeedsKubevirt = "An image on libvirt is a PersistentVolumeClaim or a container image."
            because "A host downloads images by http or takes them from its image pool; it reads neither claims nor registries."
            fix "Use `url` with `https://` or `http://`, or `volume`; or `backend: kubevirt`."
            crd Some,
    }
    "libvirt" Check::Lookup(eviction_strategy), on MACHINES, Always {
        Refuse EvictionStrategyNeedsKubevirt = "A Machine on libvirt says what happens when its node is drained."
            because "A libvirt host is not drained: a Machine stays on the host that it is bound to."
            fix "Drop `evictionStrategy`, or use `backend: kubevirt`."
            crd Some,
    }
    "libvirt" Check::Lookup(tolerations), on MACHINES, Always {
        Refuse TolerationsNeedKubevirt = "A Machine on libvirt tolerates taints of nodes."
            because "A libvirt host has no taints."
            fix "Drop `placement.tolerations` and select hosts with `nodeSelector`, or use `backend: kubevirt`."
            crd Some,
    }
    "libvirt" Check::Lookup(affinity), on MACHINES, Always {
        Refuse AffinityNeedsKubevirt = "A Machine on libvirt is placed by an affinity, or by a spread over nodes."
            because "A Machine stays on the LibvirtHost that it is bound to, and no scheduler places it."
            fix "Drop the field: select hosts with `nodeSelector`, and keep Machines apart with `placement.antiAffinityGroup`; or use `backend: kubevirt`."
            crd Some,
    }
    "libvirt" Check::Lookup(priority_class), on MACHINES, Always {
        Refuse PriorityClassNeedsKubevirt = "A Machine on libvirt names a PriorityClass."
            because "A libvirt host stops no guest to make room for another one."
            fix "Drop `placement.priorityClassName`, or use `backend: kubevirt`."
            crd Some,
    }
    "libvirt" Check::Lookup(health_probes), on MACHINES, Always {
        Refuse ProbesNeedKubevirt = "A Machine on libvirt has a probe other than that its guest agent is ready."
            because "A libvirt host reaches a guest by its agent alone, and nothing restarts a guest there that fails a probe."
            fix "Write `readiness: {guestAgentPing: {}}`, and let the guest watch itself with `watchdog`; or use `backend: kubevirt`."
            crd Some,
    }
    "libvirt" Check::Lookup(ignored_fields), on MACHINES, Always {
        Warn VolumeFieldIgnored = "A disk on libvirt has an access mode or a volume mode that means nothing there."
            because "A volume is on one host, and its pool decides whether it is a file or a block device. A template that is written for KubeVirt may serve for both."
            fix "Nothing, or leave the field out."
            crd Nothing,
    }
}

/// Rule [`Code::VolumeNeedsKubevirt`].
fn bound_volumes(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    for item in libvirt_disks(lookup) {
        let selector = item.pick("selector", |disk| disk.selector.as_ref().map(|_| ()));
        let claim = item.pick("claimName", |disk| disk.claim_name.as_ref().map(|_| ()));
        let name = item.pick("volumeName", |disk| disk.volume_name.as_ref().map(|_| ()));
        // In the Machine it is that of a volume of the host.
        let name = Some(name).filter(|leaf| !leaf.path.is_from_user());
        let leaves = [selector, claim].into_iter().chain(name);
        for leaf in leaves.filter(|leaf| leaf.value.is_some()) {
            let detail = "a libvirt host cannot use volumes and claims of the cluster; remove it, or use backend: kubevirt";
            let code = Code::VolumeNeedsKubevirt;
            let violation = Violation::new(leaf.path, code, Kind::Forbidden, detail);
            findings.deny(violation.unless_faulty(FieldPath::field("backend")));
        }
    }
}

/// The disks of a Machine on libvirt.
fn libvirt_disks<'l>(lookup: &'l Lookup<'_>) -> impl Iterator<Item = &'l Item<'l, Disk>> {
    let disks = lookup.merged.disks.iter();
    disks.filter(|_| lookup.is_on_libvirt())
}

/// Refuses a field of a Machine on libvirt that only KubeVirt has. `why`: what libvirt lacks, and what to do.
pub(super) fn refuse(
    lookup: &Lookup<'_>,
    path: impl Into<Location>,
    code: Code,
    why: &'static str,
    findings: &mut Findings,
) {
    if lookup.is_on_libvirt() {
        let detail = format!("{why}, or use backend: kubevirt");
        let fault = Violation::new(path, code, Kind::Forbidden, detail);
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    }
}

/// Rule [`Code::EvictionStrategyNeedsKubevirt`].
fn eviction_strategy(
    lookup: &Lookup<'_>,
    _: &mut BTreeMap<String, String>,
    findings: &mut Findings,
) {
    let leaf = machine::requested_eviction_strategy(lookup.merged);
    if leaf.value.is_some() {
        let why = "a libvirt host is not drained, and a Machine stays on it; drop it";
        let code = Code::EvictionStrategyNeedsKubevirt;
        refuse(lookup, leaf.path, code, why, findings);
    }
}

/// Rule [`Code::TolerationsNeedKubevirt`].
fn tolerations(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let leaf = placement::requested_tolerations(lookup.merged);
    if leaf.value.is_some() {
        let why = "a libvirt host has no taints; drop it and select hosts with nodeSelector";
        let code = Code::TolerationsNeedKubevirt;
        refuse(lookup, leaf.path, code, why, findings);
    }
}

/// Rule [`Code::AffinityNeedsKubevirt`].
fn affinity(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let affinity = affinity::requested_affinity(lookup.merged);
    let spread = affinity::requested_spread(lookup.merged);
    let why = "no scheduler places a Machine on libvirt; drop it, select hosts with nodeSelector and keep Machines apart with placement.antiAffinityGroup";
    let code = Code::AffinityNeedsKubevirt;
    if affinity.value.is_some() {
        refuse(lookup, affinity.path, code, why, findings);
    }
    if spread.value.is_some() {
        refuse(lookup, spread.path, code, why, findings);
    }
}

/// Rule [`Code::PriorityClassNeedsKubevirt`].
fn priority_class(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let leaf = placement::requested_priority_class(lookup.merged);
    if leaf.value.is_some() {
        let why = "a libvirt host stops no guest to make room for another one; drop it";
        let code = Code::PriorityClassNeedsKubevirt;
        refuse(lookup, leaf.path, code, why, findings);
    }
}

/// Rule [`Code::ProbesNeedKubevirt`].
fn health_probes(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let code = Code::ProbesNeedKubevirt;
    let liveness = probes::liveness(lookup.merged);
    if liveness.value.is_some() {
        let why = "nothing restarts a guest on a libvirt host that fails a probe; drop it, and let the guest watch itself with watchdog";
        refuse(lookup, liveness.path, code, why, findings);
    }
    let readiness = probes::readiness(lookup.merged);
    let Some(probe) = readiness.value else {
        return;
    };
    let at = Location::from(readiness.path);
    for (field, is_given) in [
        ("exec", probe.exec.is_some()),
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
    ] {
        if is_given {
            let why = "a libvirt host only asks whether the guest agent answers; write guestAgentPing: {} in its place";
            refuse(lookup, at.clone().member(field), code, why, findings);
        }
    }
    let longest = i64::from(AGENT_TIMEOUT_MAX);
    if probe.timeout_seconds.is_some_and(|it| it > longest) {
        let why = "a libvirt host waits at most 5 s for the guest agent; set at most 5";
        refuse(lookup, at.member("timeoutSeconds"), code, why, findings);
    }
}

/// Rule [`Code::ImageNeedsKubevirt`] for disks and CD-ROMs.
fn sources(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    for item in libvirt_disks(lookup) {
        if let Some(image) = item.written_image().value {
            let at = |part| item.path(part, |disk| disk.image.is_some());
            source(image, &at, findings);
        }
        resolved(item, findings);
    }
    let cdroms = lookup.merged.cdroms.iter();
    for item in cdroms.filter(|_| lookup.is_on_libvirt()) {
        if let Some(image) = item.written_image().value {
            source(image, &|part| item.path(part, |_| true), findings);
        }
        resolved(item, findings);
    }
}

/// Rule [`Code::ImageNeedsKubevirt`].
fn source(image: &Image, at: &dyn Fn(&'static str) -> FieldPath, findings: &mut Findings) {
    let code = Code::ImageNeedsKubevirt;
    if let Some(claim) = &image.persistent_volume_claim {
        let detail = "a libvirt host cannot read a PersistentVolumeClaim; use url or volume, or backend: kubevirt";
        let path = at("image.persistentVolumeClaim");
        let fault = Violation::new(path, code, Kind::Invalid, detail).text(claim);
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    }
    let container = image
        .url
        .as_deref()
        .filter(|url| url.starts_with("docker://"));
    if let Some(url) = container {
        let detail = "a libvirt host fetches no container images; use https:// or http://, or backend: kubevirt";
        let fault = Violation::new(at("image.url"), code, Kind::Invalid, detail).text(url);
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    }
}

/// Rule [`Code::ImageNeedsKubevirt`] for the MachineImage that an item names.
fn resolved<T: Filled>(item: &Item<'_, T>, findings: &mut Findings) {
    let Some(pinned) = item.pinned_image() else {
        return;
    };
    let url = pinned.image.url.as_deref().unwrap_or_default();
    let what = if pinned.pin.data_source.is_some() {
        "a DataSource of CDI"
    } else if url.starts_with("docker://") {
        "a container image"
    } else {
        return;
    };
    let name = item.image_name();
    let detail = format!(
        "is a MachineImage of {what}, which a libvirt host cannot use; use another one, or backend: kubevirt"
    );
    let code = Code::ImageNeedsKubevirt;
    let fault = Violation::new(name.path, code, Kind::Invalid, detail);
    let fault = fault.text(name.value.unwrap_or_default());
    findings.deny(fault.unless_faulty(FieldPath::field("backend")));
}

/// Rule [`Code::VolumeFieldIgnored`] for every disk.
fn ignored_fields(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    for item in libvirt_disks(lookup) {
        ignored(item, findings);
    }
}

/// Rule [`Code::VolumeFieldIgnored`]: a warning, so that a template for KubeVirt can be used on both backends.
fn ignored(item: &Item<'_, Disk>, findings: &mut Findings) {
    let discarded = &mut Findings::default();
    if disks::access_mode(item, discarded) == Some(AccessMode::ReadWriteMany) {
        let path = item
            .pick("accessMode", |disk| disk.access_mode.as_ref())
            .path;
        let text = format!(
            "{path}: ReadWriteMany has no effect on libvirt, where a volume is on one host"
        );
        findings.warn(Code::VolumeFieldIgnored, &text);
    }
    if disks::volume_mode(item, discarded) == Some(VolumeMode::Block) {
        let path = item
            .pick("volumeMode", |disk| disk.volume_mode.as_ref())
            .path;
        let text = format!(
            "{path}: Block has no effect on libvirt, where the pool decides what a volume is"
        );
        findings.warn(Code::VolumeFieldIgnored, &text);
    }
}
