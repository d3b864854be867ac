//! Warnings of changes of features, hardware of the node, watchdog and probes, firmware state and placement, which are
//! rules of [`Code::RestartRequired`](crate::code::Code::RestartRequired).

use std::collections::BTreeMap;

use crate::api::choice::{Backend, Choice};
use crate::api::normalized::{Normalized, devices_text};
use crate::field_path::FieldPath;
use crate::normalize::Merged;
use crate::render::kubevirt::{tolerations, tolerations_text};
use crate::rules::{
    affinity, clock, firmware, hardware, health, machine, placement, probes, state,
};
use crate::words::{labels_text, shortened};

use super::announced::Warnings;
use super::effects::Field;

pub(super) fn warn(
    merged: &Merged<'_>,
    old: &Normalized,
    new: &Normalized,
    warnings: &mut Warnings<'_>,
) {
    features(merged, old, new, warnings);
    of_node(merged, old, new, warnings);
    health(merged, old, new, warnings);
    firmware_state(merged, old, new, warnings);
}

/// What the machine has of its node or host for itself.
fn of_node(merged: &Merged<'_>, old: &Normalized, new: &Normalized, warnings: &mut Warnings<'_>) {
    let model = |block: &Normalized| block.cpu_model().unwrap_or("the default").to_owned();
    let path = hardware::cpu_model(merged).path;
    warnings.field(Field::CpuModel, path, (model(old), model(new)), false);
    let path = hardware::dedicated(merged).path;
    let change = (old.has_dedicated_cpus(), new.has_dedicated_cpus());
    warnings.field(Field::DedicatedCpu, path, change, false);
    let pages = |block: &Normalized| block.hugepages().map_or("none", Choice::as_str);
    let path = hardware::hugepages(merged).path;
    warnings.field(Field::Hugepages, path, (pages(old), pages(new)), false);
    let path = hardware::devices(merged).path;
    let change = (devices_text(old.devices()), devices_text(new.devices()));
    warnings.field(Field::Devices, path, change, false);
}

/// How a guest that no longer works is noticed.
fn health(merged: &Merged<'_>, old: &Normalized, new: &Normalized, warnings: &mut Warnings<'_>) {
    let action = |block: &Normalized| block.watchdog.map_or("none", Choice::as_str);
    let path = health::watchdog(merged).path;
    warnings.field(Field::Watchdog, path, (action(old), action(new)), false);
    if old.readiness_probe() != new.readiness_probe() {
        let path = probes::readiness(merged).path;
        warnings.add(Field::Readiness, path, false, "changes");
    }
    if old.liveness_probe() != new.liveness_probe() {
        let path = probes::liveness(merged).path;
        warnings.add(Field::Liveness, path, false, "changes");
    }
}

/// The EFI variables, the TPM, the clock and the time to shut down. A change of the firmware itself is refused while the machine runs.
fn firmware_state(
    merged: &Merged<'_>,
    old: &Normalized,
    new: &Normalized,
    warnings: &mut Warnings<'_>,
) {
    if old.firmware.kind == new.firmware.kind {
        let [was, is] = [old, new].map(|block| block.firmware.persistent == Some(true));
        let path = state::efi(merged).path;
        warnings.field(Field::PersistentEfi, path, (was, is), false);
    }
    let [was, is] = [old, new].map(|block| state::describe(block.tpm));
    warnings.field(Field::Tpm, state::tpm_path(merged), (was, is), false);
    let [was, is] = [old, new].map(|block| block.timezone.as_deref().unwrap_or("UTC"));
    let path = clock::timezone(merged).path;
    warnings.field(Field::Clock, path, (was, is), false);
    let seconds = |block: &Normalized| {
        let seconds = block.termination_grace_period_seconds;
        seconds.map_or_else(
            || "the default".to_owned(),
            |seconds| format!("{seconds} s"),
        )
    };
    let path = machine::requested_eviction_strategy(merged).path;
    let change = (old.on_eviction(), new.on_eviction());
    warnings.field(Field::EvictionStrategy, path, change, false);
    let group = |block: &Normalized| {
        let group = block.group();
        group.map_or_else(|| "none".to_owned(), ToString::to_string)
    };
    let path = placement::requested_group(merged).path;
    warnings.field(Field::Group, path, (group(old), group(new)), false);
    let tolerations = |block: &Normalized| tolerations_text(&tolerations(block));
    let path = placement::requested_tolerations(merged).path;
    let change = (tolerations(old), tolerations(new));
    warnings.field(Field::Tolerations, path, change, false);
    let class = |block: &Normalized| block.priority_class().unwrap_or("none").to_owned();
    let path = placement::requested_priority_class(merged).path;
    warnings.field(Field::PriorityClass, path, (class(old), class(new)), false);
    if old.affinity() != new.affinity() {
        let path = affinity::requested_affinity(merged).path;
        warnings.add(Field::Affinity, path, false, "changes");
    }
    if old.overrides() != new.overrides() {
        let path = FieldPath::field("backendOverrides.kubevirt");
        warnings.add(Field::BackendOverrides, path, false, "changes");
    }
    if old.spread() != new.spread() {
        let path = affinity::requested_spread(merged).path;
        warnings.add(Field::TopologySpread, path, false, "changes");
    }
    let path = machine::requested_grace_period(merged).path;
    warnings.field(
        Field::GracePeriod,
        path,
        (seconds(old), seconds(new)),
        false,
    );
}

fn features(merged: &Merged<'_>, old: &Normalized, new: &Normalized, warnings: &mut Warnings<'_>) {
    let (was, is) = (&old.features, &new.features);
    for (field, leaf, change) in [
        (Field::Acpi, firmware::acpi(merged), (was.acpi, is.acpi)),
        (Field::Apic, firmware::apic(merged), (was.apic, is.apic)),
        (
            Field::Hyperv,
            firmware::hyperv(merged),
            (was.hyperv, is.hyperv),
        ),
    ] {
        warnings.field(field, leaf.path, change, false);
    }
    let labels = |labels: &BTreeMap<String, String>| {
        if labels.is_empty() {
            "none".to_owned()
        } else {
            labels_text(labels)
        }
    };
    let (was, is) = (&old.node_selector, &new.node_selector);
    // A guest on KubeVirt that was placed by more labels is where it may be.
    let is_placed =
        new.backend == Backend::Kubevirt && is.iter().all(|it| was.get(it.0) == Some(it.1));
    if was != is && !is_placed {
        let what = format!(
            "changes from {} to {}",
            shortened(&labels(was)),
            shortened(&labels(is))
        );
        let path = FieldPath::field("nodeSelector");
        warnings.add(Field::NodeSelector, path, false, &what);
    }
}
