//! Metrics of the KubeVirt backend: VirtualMachines by state, settings of KubeVirt that Machines need and it lacks, and
//! how long volumes take.

use std::collections::BTreeMap;
use std::convert::Infallible;

use common::catalog::KubevirtSetting;
use common::render::kubevirt::PRINTABLE_STATUSES;
use controller_core::cache::Change;
use controller_core::caches::Caches;
use controller_core::metrics::{COUNT_INTERVAL, OTHER};
use controller_core::objects::Meta as _;
use k8s_openapi::jiff::Timestamp;
use metrics::{gauge, histogram};

use crate::caches::KubeVirtCaches;
use crate::objects::Claim;

const VIRTUAL_MACHINES: &str = "kubevirt_operator_virtual_machines_total";
const SETTINGS_MISSING: &str = "kubevirt_operator_kubevirt_settings_missing";
const PROVISIONING: &str = "kubevirt_operator_storage_provisioning_duration_seconds";

/// A volume takes seconds where storage is fast and minutes where it is copied.
pub const BUCKETS: [(&str, &[f64]); 1] = [(
    PROVISIONING,
    &[
        0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    ],
)];

/// Describes each metric to Prometheus.
pub fn describe() {
    metrics::describe_gauge!(
        VIRTUAL_MACHINES,
        "VirtualMachines of Machines by KubeVirt's state"
    );
    metrics::describe_gauge!(
        SETTINGS_MISSING,
        "Machines that need a setting which KubeVirt lacks"
    );
    metrics::describe_histogram!(
        PROVISIONING,
        metrics::Unit::Seconds,
        "Time from a claim to its volume"
    );
}

/// Records how long a claim took that has just been bound.
pub(crate) fn claim_changed(change: &Change<Claim>) {
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return;
    };
    let bound = old.status.phase != "Bound" && new.status.phase == "Bound";
    if !bound || new.machine_uid().is_none() {
        return;
    }
    if let Some(created) = &new.metadata.creation_timestamp {
        let took = Timestamp::now()
            .duration_since(created.0)
            .as_secs_f64()
            .max(0.0);
        // A claim that is bound has a class that exists, or none.
        let class = new.spec.storage_class_name.clone().unwrap_or_default();
        histogram!(PROVISIONING, "storage_class" => class).record(took);
    }
}

/// Counts the VirtualMachines of Machines by state, and the Machines that need what KubeVirt lacks, for as long as the
/// process runs. A gauge that is counted each time cannot drift.
pub async fn count(caches: Caches, cluster: KubeVirtCaches) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    // States that were shown once: they go to zero when no VirtualMachine is left in them.
    let mut states: BTreeMap<&'static str, f64> = BTreeMap::new();
    let mut before = BTreeMap::new();
    loop {
        ticks.tick().await;
        count_states(&cluster, &mut states);
        for (state, count) in &states {
            gauge!(VIRTUAL_MACHINES, "status" => *state).set(*count);
        }
        let missing = missing_settings(&caches, &cluster);
        for setting in KubevirtSetting::ALL {
            let machines = missing.get(&setting).copied().unwrap_or(0);
            gauge!(SETTINGS_MISSING, "setting" => setting.field()).set(machines);
            if machines > 0 && !before.contains_key(&setting) {
                let setting = setting.field();
                tracing::warn!(
                    setting,
                    machines,
                    "KubeVirt lacks a setting that Machines need"
                );
            }
        }
        before = missing;
    }
}

fn count_states(cluster: &KubeVirtCaches, counts: &mut BTreeMap<&'static str, f64>) {
    for count in counts.values_mut() {
        *count = 0.0;
    }
    cluster.vms.for_each_summary(|_, vm| {
        if let Some(state) = vm.state.as_deref() {
            // States of a newer KubeVirt count as other: labels are of a known set.
            let state = PRINTABLE_STATUSES.into_iter().find(|known| *known == state);
            *counts.entry(state.unwrap_or(OTHER)).or_default() += 1.0;
        }
    });
}

/// The settings that KubeVirt lacks, with the number of Machines that need them. None while its settings are not known.
fn missing_settings(caches: &Caches, cluster: &KubeVirtCaches) -> BTreeMap<KubevirtSetting, u32> {
    let mut missing = BTreeMap::new();
    let Some(kubevirt) = cluster.settings() else {
        return missing;
    };
    let mut has_default = false;
    caches
        .classes
        .for_each_summary(|_, is_default| has_default |= is_default);
    let exists = |class: &str| caches.classes.contains("", class);
    let stores_state = kubevirt.stores_state(exists, has_default);
    let machines = caches.machines.state();
    let on_kubevirt = machines.iter().filter_map(|it| it.kubevirt_needs.as_ref());
    for setting in on_kubevirt.flat_map(|it| it.missing(&kubevirt, stores_state)) {
        *missing.entry(setting).or_default() += 1;
    }
    missing
}
