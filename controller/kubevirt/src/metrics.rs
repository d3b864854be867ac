//! Metrics of KubeVirt's side: VirtualMachines by state, and how long volumes take.

use std::collections::BTreeMap;
use std::convert::Infallible;

use common::render::kubevirt::PRINTABLE_STATUSES;
use controller_core::cache::Change;
use controller_core::metrics::{COUNT_INTERVAL, OTHER};
use controller_core::objects::Meta as _;
use k8s_openapi::jiff::Timestamp;
use metrics::{gauge, histogram};

use crate::objects::Claim;
use crate::watch::Cluster;

const VIRTUAL_MACHINES: &str = "kubevirt_operator_virtual_machines_total";
const PROVISIONING: &str = "kubevirt_operator_storage_provisioning_duration_seconds";

/// A volume takes seconds where storage is fast and minutes where it is copied.
pub const BUCKETS: [(&str, &[f64]); 1] = [(
    PROVISIONING,
    &[
        0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    ],
)];

/// Tells Prometheus what each metric is.
pub fn describe() {
    metrics::describe_gauge!(
        VIRTUAL_MACHINES,
        "VirtualMachines of Machines by KubeVirt's state"
    );
    metrics::describe_histogram!(
        PROVISIONING,
        metrics::Unit::Seconds,
        "Time from a claim to its volume"
    );
}

/// Takes the time of a claim that has just been bound.
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

/// Counts the VirtualMachines of Machines by state, for as long as the process runs. A gauge that is counted
/// anew cannot drift.
pub async fn count(cluster: Cluster) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    // States that were shown once: they go to zero when no VirtualMachine is left in them.
    let mut counts: BTreeMap<&'static str, f64> = BTreeMap::new();
    loop {
        ticks.tick().await;
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
        for (status, count) in &counts {
            gauge!(VIRTUAL_MACHINES, "status" => *status).set(*count);
        }
    }
}
