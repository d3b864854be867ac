//! Metrics: the names and labels of the reference.
//!
//! Labels are words of a known, small set: phases, states, and names that exist in the catalog.
//! Whatever else there is counts as `other`; no Machine's name is ever a label.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use common::api::choice::Choice as _;
use common::api::choice::TemplateSource;
use common::api::status::MachineStatus;
use common::render::kubevirt::PRINTABLE_STATUSES;
use k8s_openapi::jiff::Timestamp;
use metrics::{counter, gauge, histogram};

use crate::cache::Change;
use crate::kubevirt::plan::named_networks;
use crate::leader::Permit;
use crate::machine::{Machine, Stored};
use crate::memory::Memory;
use crate::objects::{Claim, Meta as _};
use crate::watch::Caches;

const MACHINES: &str = "kubevirt_operator_machines_total";
const DURATION: &str = "kubevirt_operator_reconciliation_duration_seconds";
const ERRORS: &str = "kubevirt_operator_reconciliation_errors_total";
const VIRTUAL_MACHINES: &str = "kubevirt_operator_virtual_machines_total";
const PROVISIONING: &str = "kubevirt_operator_storage_provisioning_duration_seconds";
const LEADING: &str = "kubevirt_operator_leading";
const NETWORK_ERRORS: &str = "kubevirt_operator_network_configuration_errors_total";

/// A volume takes seconds where storage is fast and minutes where it is copied.
pub(crate) const BUCKETS: [(&str, &[f64]); 1] = [(
    PROVISIONING,
    &[
        0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    ],
)];

/// The controller's name on every metric that has one.
const CONTROLLER: &str = "Machine";
/// What is not of a known set.
const OTHER: &str = "other";
/// How often the gauges are counted: more often than anybody scrapes.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Reasons that count as an error when a Machine gets one.
const ERROR_REASONS: [&str; 18] = [
    "NetworkConfigurationNotFound",
    "StorageClassNotFound",
    "InsufficientResources",
    "KubeVirtApiError",
    "NameConflict",
    "ImageImportUnavailable",
    "ImageImportFailed",
    "CloudInitSecretNotFound",
    "NetworkFailed",
    "VMFailed",
    "NotNormalized",
    "Stale",
    "NoHostFits",
    "PoolNotFound",
    "VolumeFailed",
    "ImageNotFound",
    "ImageTooLarge",
    "GuestPaused",
];

/// Tells Prometheus what each metric is.
pub(crate) fn describe() {
    metrics::describe_gauge!(MACHINES, "Machines by phase and template");
    metrics::describe_histogram!(
        DURATION,
        metrics::Unit::Seconds,
        "Duration of a pass over a Machine"
    );
    metrics::describe_counter!(ERRORS, "Errors by the reason a Machine shows");
    metrics::describe_gauge!(
        VIRTUAL_MACHINES,
        "VirtualMachines of Machines by KubeVirt's state"
    );
    metrics::describe_histogram!(
        PROVISIONING,
        metrics::Unit::Seconds,
        "Time from a claim to its volume"
    );
    metrics::describe_gauge!(
        LEADING,
        "Whether this replica acts: 1, or 0 while another does"
    );
    metrics::describe_counter!(NETWORK_ERRORS, "Machines that found a network not ready");
}

/// A pass over a Machine took so long.
pub(crate) fn reconciled(took: Duration) {
    histogram!(DURATION, "controller" => CONTROLLER).record(took);
}

/// The API server refused something for good, or again and again.
pub(crate) fn refused() {
    count_error("KubeVirtApiError");
}

fn count_error(reason: &'static str) {
    counter!(ERRORS, "controller" => CONTROLLER, "error_type" => reason).increment(1);
}

/// Counts what became wrong between two statuses.
pub(crate) fn transition(machine: &Machine, new: &MachineStatus, caches: &Caches) {
    let before: BTreeSet<_> = reasons(&machine.status).collect();
    for reason in reasons(new).collect::<BTreeSet<_>>() {
        if before.contains(reason) {
            continue;
        }
        count_error(reason);
        if reason.starts_with("Network") {
            network_errors(machine, caches, reason == "NetworkConfigurationNotFound");
        }
    }
}

fn reasons(status: &MachineStatus) -> impl Iterator<Item = &'static str> {
    status
        .conditions
        .iter()
        .filter(|condition| condition.status == "False")
        .filter_map(|condition| {
            ERROR_REASONS
                .into_iter()
                .find(|known| *known == condition.reason)
        })
}

/// Counts the networks of a Machine that are missing, or those that are there and do not work.
fn network_errors(machine: &Machine, caches: &Caches, missing: bool) {
    for name in machine.wish().into_iter().flat_map(named_networks) {
        let known = caches.networks.has(machine.namespace(), name);
        if known == missing {
            continue;
        }
        // A name that does not exist is a user's text, and there is no end to these.
        let label = if known { name } else { OTHER };
        counter!(NETWORK_ERRORS, "network_name" => label.to_owned()).increment(1);
    }
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

/// Counts what there is, for ever: a gauge that is counted anew cannot drift, and a Machine that is
/// gone leaves nothing behind.
pub(crate) async fn count(
    caches: Caches,
    memory: Arc<Memory>,
    permit: Permit,
) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    let mut shown = Shown::default();
    loop {
        ticks.tick().await;
        gauge!(LEADING).set(u32::from(permit.left().is_some()));
        let machines = caches.machines.state();
        let uids: BTreeSet<_> = machines.iter().map(|machine| machine.uid()).collect();
        memory.keep(|uid| uids.contains(uid));

        let mut counts = Counts::default();
        for machine in &machines {
            let phase = machine.phase.map_or("", |phase| phase.as_str());
            let key = [phase.to_owned(), template(machine, &caches)];
            *counts.machines.entry(key).or_default() += 1.0;
        }
        caches.vms.summaries(|_, vm| {
            if let Some(state) = vm.state.as_deref() {
                // A newer KubeVirt's words count as other.
                let state = PRINTABLE_STATUSES.into_iter().find(|known| *known == state);
                *counts.vms.entry(state.unwrap_or(OTHER)).or_default() += 1.0;
            }
        });
        shown.show(counts);
    }
}

#[derive(Default)]
struct Counts {
    machines: BTreeMap<[String; 2], f64>,
    vms: BTreeMap<&'static str, f64>,
}

/// Series that were shown once: they go to zero when there is nothing left to count.
#[derive(Default)]
struct Shown(Counts);

impl Shown {
    fn show(&mut self, counts: Counts) {
        for count in self.0.machines.values_mut().chain(self.0.vms.values_mut()) {
            *count = 0.0;
        }
        self.0.machines.extend(counts.machines);
        self.0.vms.extend(counts.vms);
        for ([phase, template], count) in &self.0.machines {
            gauge!(MACHINES, "phase" => phase.clone(), "template" => template.clone()).set(*count);
        }
        for (status, count) in &self.0.vms {
            gauge!(VIRTUAL_MACHINES, "status" => *status).set(*count);
        }
    }
}

/// The template's name as far as the catalog knows it.
fn template(machine: &Stored, caches: &Caches) -> String {
    match &machine.template {
        None => String::new(),
        Some((source, name))
            if *source == TemplateSource::BuiltIn || caches.templates.has("", name) =>
        {
            name.to_string()
        }
        Some(_) => OTHER.to_owned(),
    }
}
