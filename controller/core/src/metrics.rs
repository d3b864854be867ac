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
use metrics::{counter, gauge, histogram};

use crate::expectations::Expectations;
use crate::lease::LeaseGuard;
use crate::machine::{CachedMachine, Machine, named_networks};
use crate::objects::Meta as _;
use crate::watch::Caches;

const MACHINES: &str = "kubevirt_operator_machines_total";
const DURATION: &str = "kubevirt_operator_reconciliation_duration_seconds";
const ERRORS: &str = "kubevirt_operator_reconciliation_errors_total";
const LEADING: &str = "kubevirt_operator_leading";
const NETWORK_ERRORS: &str = "kubevirt_operator_network_configuration_errors_total";

/// The controller's name on every metric that has one.
const CONTROLLER: &str = "Machine";
/// What is not of a known set.
pub const OTHER: &str = "other";
/// How often the gauges are counted: more often than anybody scrapes.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(5);

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
pub fn describe() {
    metrics::describe_gauge!(MACHINES, "Machines by phase and template");
    metrics::describe_histogram!(
        DURATION,
        metrics::Unit::Seconds,
        "Duration of a pass over a Machine"
    );
    metrics::describe_counter!(ERRORS, "Errors by the reason a Machine shows");
    metrics::describe_gauge!(
        LEADING,
        "Whether this replica acts: 1, or 0 while another does"
    );
    metrics::describe_counter!(NETWORK_ERRORS, "Machines that found a network not ready");
}

/// A pass over a Machine took so long.
pub fn reconciled(took: Duration) {
    histogram!(DURATION, "controller" => CONTROLLER).record(took);
}

/// The API server refused something for good, or again and again.
pub fn refused() {
    count_error("KubeVirtApiError");
}

fn count_error(reason: &'static str) {
    counter!(ERRORS, "controller" => CONTROLLER, "error_type" => reason).increment(1);
}

/// Counts what became wrong between two statuses.
pub fn transition(machine: &Machine, new: &MachineStatus, caches: &Caches) {
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
    for name in machine.desired().into_iter().flat_map(named_networks) {
        let known = caches.networks.has(machine.namespace(), name);
        if known == missing {
            continue;
        }
        // A name that does not exist is a user's text, and there is no end to these.
        let label = if known { name } else { OTHER };
        counter!(NETWORK_ERRORS, "network_name" => label.to_owned()).increment(1);
    }
}

/// Counts what there is, for ever: a gauge that is counted anew cannot drift, and a Machine that is
/// gone leaves nothing behind.
pub async fn count(
    caches: Caches,
    expectations: Arc<Expectations>,
    guard: LeaseGuard,
) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    let mut shown = Shown::default();
    loop {
        ticks.tick().await;
        gauge!(LEADING).set(u32::from(guard.left().is_some()));
        let machines = caches.machines.state();
        let uids: BTreeSet<_> = machines.iter().map(|machine| machine.uid()).collect();
        expectations.retain(|uid| uids.contains(uid));

        let mut counts = Counts::default();
        for machine in &machines {
            let phase = machine.phase.map_or("", |phase| phase.as_str());
            let key = [phase.to_owned(), template(machine, &caches)];
            *counts.machines.entry(key).or_default() += 1.0;
        }
        shown.show(counts);
    }
}

#[derive(Default)]
struct Counts {
    machines: BTreeMap<[String; 2], f64>,
}

/// Series that were shown once: they go to zero when there is nothing left to count.
#[derive(Default)]
struct Shown(Counts);

impl Shown {
    fn show(&mut self, counts: Counts) {
        for count in self.0.machines.values_mut() {
            *count = 0.0;
        }
        self.0.machines.extend(counts.machines);
        for ([phase, template], count) in &self.0.machines {
            gauge!(MACHINES, "phase" => phase.clone(), "template" => template.clone()).set(*count);
        }
    }
}

/// The template's name as far as the catalog knows it.
fn template(machine: &CachedMachine, caches: &Caches) -> String {
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
