//! Metrics, with the names and labels of the reference.
//!
//! Label values come from small, known sets: phases, states, and names that exist in the catalog. Anything else counts
//! as `other`, and no label contains the name of a Machine: users could otherwise create series without limit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use common::api::choice::Choice as _;
use common::api::choice::TemplateSource;
use common::api::status::MachineStatus;
use metrics::{counter, gauge, histogram};

use crate::caches::Caches;
use crate::errors::{ERROR_REASONS, Errors};
use crate::expectations::Expectations;
use crate::lease::LeaseGuard;
use crate::machine::{CachedMachine, Machine, named_networks};
use crate::objects::Meta as _;

const MACHINES: &str = "kubevirt_operator_machines_total";
const BY_BACKEND: &str = "kubevirt_operator_backend_machines";
const WITH_ERROR: &str = "kubevirt_operator_machines_with_error";
const DURATION: &str = "kubevirt_operator_reconciliation_duration_seconds";
const ERRORS: &str = "kubevirt_operator_reconciliation_errors_total";
const LEADING: &str = "kubevirt_operator_leading";
const NETWORK_ERRORS: &str = "kubevirt_operator_network_configuration_errors_total";

/// Value of the label `controller`.
const CONTROLLER: &str = "Machine";
/// Label value for everything outside the known set.
pub const OTHER: &str = "other";
/// Pause between two counts of the gauges: shorter than a scrape interval, usually 15 s or more.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Registers the help text of each metric.
pub fn describe() {
    metrics::describe_gauge!(MACHINES, "Machines by phase and template");
    metrics::describe_gauge!(BY_BACKEND, "Machines by backend and phase");
    metrics::describe_gauge!(WITH_ERROR, "Machines that show the error now");
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
    // A counter that appears with its first error has no increase then: `rate` needs the zero before it.
    for reason in ERROR_REASONS {
        counter!(ERRORS, "controller" => CONTROLLER, "error_type" => reason).absolute(0);
    }
}

/// Records the duration of a pass.
pub fn reconciled(took: Duration) {
    histogram!(DURATION, "controller" => CONTROLLER).record(took);
}

/// Counts an action that only a person can repair, or that failed several times in a row, under the reason of the condition
/// that reports it, unless [`transition`] counts that with the status `new`. A reason that is no error by itself, such as
/// that a claim is pending, counts as the `general` one of the backend.
pub fn refused(
    machine: &Machine,
    new: Option<&MachineStatus>,
    reason: &str,
    general: &'static str,
) {
    if let Some(reason) = not_counted(&machine.status, new, reason, general) {
        count_error(reason);
    }
}

fn not_counted(
    old: &MachineStatus,
    new: Option<&MachineStatus>,
    reason: &str,
    general: &'static str,
) -> Option<&'static str> {
    let mut errors = ERROR_REASONS.into_iter();
    let reason = errors.find(|error| *error == reason).unwrap_or(general);
    let appears = new.is_some_and(|new| Errors::of(new).without(Errors::of(old)).contain(reason));
    (!appears).then_some(reason)
}

fn count_error(reason: &'static str) {
    counter!(ERRORS, "controller" => CONTROLLER, "error_type" => reason).increment(1);
}

/// Counts the error reasons that a new status has and the old one has not.
pub fn transition(machine: &Machine, new: &MachineStatus, caches: &Caches) {
    let before = Errors::of(&machine.status);
    for reason in Errors::of(new).without(before).reasons() {
        count_error(reason);
        if reason.starts_with("Network") {
            network_errors(machine, caches, reason == "NetworkConfigurationNotFound");
        }
    }
}

/// Counts the networks of a Machine that do not exist (`missing`), or those that exist.
fn network_errors(machine: &Machine, caches: &Caches, missing: bool) {
    for name in machine.desired().into_iter().flat_map(named_networks) {
        let known = caches.networks.contains(machine.namespace(), name);
        if known == missing {
            continue;
        }
        // A name without an object is free text of a user: see the header.
        let label = if known { name } else { OTHER };
        counter!(NETWORK_ERRORS, "network_name" => label.to_owned()).increment(1);
    }
}

/// Sets the gauges every 5 s, for as long as the process runs. They are counted from the caches each time, so they
/// cannot drift. Also drops the expectations of Machines that no longer exist.
pub async fn update_gauges(
    caches: Caches,
    expectations: Arc<Expectations>,
    guard: LeaseGuard,
) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    let mut published = PublishedCounts::default();
    loop {
        ticks.tick().await;
        gauge!(LEADING).set(u32::from(guard.remaining().is_some()));
        let machines = caches.machines.state();
        expectations.retain(|kept| remaining(&machines, kept));
        published.update(count(&machines, &caches));
        published.publish();
    }
}

/// The uids of `kept` that a Machine has. `kept` is small, so no set of all uids is built.
fn remaining(machines: &[Arc<CachedMachine>], kept: &HashSet<&str>) -> HashSet<Box<str>> {
    let uids = machines.iter().map(|machine| machine.uid());
    uids.filter(|uid| kept.contains(uid))
        .map(Box::from)
        .collect()
}

fn count(machines: &[Arc<CachedMachine>], caches: &Caches) -> Counts {
    let mut groups: HashMap<_, f64> = HashMap::new();
    let mut counts = Counts::default();
    for machine in machines {
        let template = machine.template.as_ref();
        let key = (machine.backend(), machine.phase, template);
        *groups.entry(key).or_default() += 1.0;
        for reason in machine.errors.reasons() {
            *counts.with_error.entry(reason).or_default() += 1.0;
        }
    }
    for ((backend, phase, template), number) in groups {
        let phase = phase.map_or("", |phase| phase.as_str());
        let of_backend = counts.by_backend.entry([backend.as_str(), phase]);
        *of_backend.or_default() += number;
        let key = [phase.to_owned(), label_of(template, caches)];
        *counts.machines.entry(key).or_default() += number;
    }
    counts
}

#[derive(Default)]
struct Counts {
    /// Number of Machines by phase and template.
    machines: BTreeMap<[String; 2], f64>,
    /// Number of Machines by backend and phase.
    by_backend: BTreeMap<[&'static str; 2], f64>,
    /// Number of Machines by an error that they have. One with several errors counts in each.
    with_error: BTreeMap<&'static str, f64>,
}

/// Every series that was ever published: it has to be set to zero when nothing is left to count.
struct PublishedCounts(Counts);

impl Default for PublishedCounts {
    /// Every error is published from the start: there are few, and an alert that finds no series looks like one that
    /// is not met.
    fn default() -> Self {
        Self(Counts {
            with_error: ERROR_REASONS.map(|reason| (reason, 0.0)).into(),
            ..Counts::default()
        })
    }
}

impl PublishedCounts {
    fn update(&mut self, new: Counts) {
        let Counts {
            machines,
            by_backend,
            with_error,
        } = &mut self.0;
        let all = machines.values_mut().chain(by_backend.values_mut());
        for count in all.chain(with_error.values_mut()) {
            *count = 0.0;
        }
        machines.extend(new.machines);
        by_backend.extend(new.by_backend);
        with_error.extend(new.with_error);
    }

    fn publish(&self) {
        for ([phase, template], count) in &self.0.machines {
            gauge!(MACHINES, "phase" => phase.clone(), "template" => template.clone()).set(*count);
        }
        for ([backend, phase], count) in &self.0.by_backend {
            gauge!(BY_BACKEND, "backend" => *backend, "phase" => *phase).set(*count);
        }
        for (reason, count) in &self.0.with_error {
            gauge!(WITH_ERROR, "error_type" => *reason).set(*count);
        }
    }
}

/// Label value of the template: its name if the template exists.
fn label_of(template: Option<&(TemplateSource, Box<str>)>, caches: &Caches) -> String {
    match template {
        None => String::new(),
        Some((source, name))
            if *source == TemplateSource::BuiltIn || caches.templates.contains("", name) =>
        {
            name.to_string()
        }
        Some(_) => OTHER.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_refusal_is_counted_once_under_the_reason_that_the_status_shows() {
        let refused = |old: &str, new: &str, reason| {
            let [old, new] = [old, new].map(|reason| fixtures::ready("False", reason));
            not_counted(&old, Some(&new), reason, "VMFailed")
        };
        let volume = "VolumeFailed";
        // The transition counts it.
        assert_eq!(refused("Running", volume, volume), None);
        assert_eq!(refused(volume, volume, volume), Some(volume));
        // A deletion has another reason in its condition.
        assert_eq!(refused("Deleting", "Deleting", volume), Some(volume));
        assert_eq!(
            refused("PVCPending", "PVCPending", "PVCPending"),
            Some("VMFailed")
        );
    }
}
