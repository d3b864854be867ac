//! The status, whatever runs the Machine: faults, conditions, and when one is worth a write.
//!
//! A condition that is not met names its cause and what to do about it.

use std::collections::BTreeMap;
use std::time::Duration;

use common::api::choice::Phase;
use common::api::normalized::Normalized;
use common::api::status::{Condition, MachineStatus};
use common::api::template::TemplateContent;
use common::names;
use common::render::{SecretKey, SecretValue};

use crate::machine::{Block, Machine};
use crate::objects::{Meta as _, Template};
use crate::plan::{Now, Plan};

/// While a Machine is being created its progress is written at most this often: a claim that binds
/// a moment before the guest starts is worth no write of its own.
const PROGRESS_PAUSE: Duration = Duration::from_secs(2);

/// Why something is not as wished, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    reason: &'static str,
    message: String,
}

impl Fault {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

/// Whether something is as wished. The first fault found is the one that is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub fault: Option<Fault>,
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        Self { fault: Some(fault) }
    }
}

impl Outcome {
    pub fn worsen(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }
}

/// Why there is nothing to act on.
pub fn not_normalized(block: &Block) -> Fault {
    let heal = format!(
        "the admission webhook writes it: see that machine-webhook runs and is registered, then set the annotation {} to a new text, or change the spec",
        names::ANNOTATION_REFRESH_TEMPLATE
    );
    match block {
        Block::Stale => Fault::new(
            "Stale",
            format!("spec.normalized was made of another spec, so nothing is done; {heal}"),
        ),
        Block::Unreadable(why) => Fault::new(
            "NotNormalized",
            format!("spec.normalized cannot be read ({why}), so nothing is done; {heal}"),
        ),
        Block::Missing | Block::Matching(_) => Fault::new(
            "NotNormalized",
            format!("spec.normalized is missing, so nothing is done; {heal}"),
        ),
    }
}

/// Whether a newer content of the template waits to be taken over.
pub fn normalized(block: Option<&Normalized>, template: Option<&Template>) -> Fault {
    let pin = block.and_then(|block| block.template.as_ref());
    let current = template.map(|template| TemplateContent::from(template.spec.clone()));
    match (pin, current) {
        (Some(pin), Some(current)) if *pin.content != current => Fault::new(
            "TemplateOutdated",
            format!(
                "MachineTemplate '{}' has changed since this Machine was expanded from it: set the annotation {} to a new text to take it over",
                pin.name,
                names::ANNOTATION_REFRESH_TEMPLATE
            ),
        ),
        _ => Fault::new("Normalized", "the block belongs to the spec"),
    }
}

/// The Secret of the user that cloud-init is to be given and that is not there.
pub fn missing_secret(
    machine: &Machine,
    contents: &BTreeMap<SecretKey, Option<SecretValue>>,
) -> Option<Fault> {
    let (secret, _) = contents.iter().find(|(_, content)| content.is_none())?;
    Some(Fault::new(
        "CloudInitSecretNotFound",
        format!(
            "Secret '{}' with the key '{}', which spec.cloudInit names, not found in namespace {}: create it; the Machine goes on by itself when it appears",
            secret.name,
            secret.key,
            machine.namespace()
        ),
    ))
}

/// Status of a condition, and why.
pub type Verdict = (&'static str, Fault);

/// What is told of the networks.
pub fn network(outcome: &Outcome) -> Verdict {
    match &outcome.fault {
        Some(fault) => ("False", fault.clone()),
        None => (
            "True",
            Fault::new("NetworkConfigured", "every network card has its network"),
        ),
    }
}

/// A condition; its time is that of the last change of its status.
pub fn condition(
    old: &[Condition],
    (kind, status): (&str, &str),
    (reason, message): (&str, String),
    generation: Option<i64>,
    now: Now,
) -> Condition {
    let old = old.iter().find(|old| old.kind == kind);
    let since = match old {
        Some(old) if old.status == status => old.last_transition_time.clone(),
        _ => now.text(),
    };
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since,
        observed_generation: generation,
    }
}

/// What is told of a Machine that is only observed.
pub fn paused() -> Fault {
    let message = format!(
        "the Machine is observed only: remove the annotation {} to go on",
        names::ANNOTATION_PAUSED
    );
    Fault::new("Paused", message)
}

/// Decides whether the status is worth a write, and dates it.
pub fn finish<A>(
    machine: &Machine,
    now: Now,
    mut status: MachineStatus,
    actions: Vec<A>,
) -> Plan<A> {
    let old = &machine.status;
    if undated(&status) == undated(old) {
        return Plan {
            actions,
            ..Plan::default()
        };
    }
    let progress = status.phase == Some(Phase::Creating)
        && old.phase == status.phase
        && old.observed_generation == status.observed_generation
        && verdict(&status) == verdict(old);
    if progress && let Some(wait) = now.until(old.last_updated.as_deref(), PROGRESS_PAUSE) {
        return Plan {
            actions,
            again: Some(wait),
            ..Plan::default()
        };
    }
    status.last_updated = Some(now.text());
    status
        .resource_version
        .clone_from(&machine.metadata.resource_version);
    Plan {
        actions,
        status: Some(status),
        ..Plan::default()
    }
}

/// Status and reason of `Ready`.
pub fn verdict(status: &MachineStatus) -> Option<(&str, &str)> {
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.kind == "Ready")?;
    Some((&ready.status, &ready.reason))
}

/// The conditions this controller writes.
pub const OURS: [&str; 8] = [
    "Ready",
    "Normalized",
    "StorageReady",
    "NetworkReady",
    "VirtualMachineReady",
    "RestartRequired",
    "AgentConnected",
    "Paused",
];

/// A status without what changes by itself, and without other writers' conditions.
fn undated(status: &MachineStatus) -> MachineStatus {
    let mut status = status.clone();
    status.last_updated = None;
    status.resource_version = None;
    status
        .conditions
        .retain(|condition| OURS.contains(&condition.kind.as_str()));
    for condition in &mut status.conditions {
        condition.last_transition_time = String::new();
    }
    status.conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    status
}

/// The conditions of a new status.
#[derive(Debug)]
pub struct Conditions<'a> {
    machine: &'a Machine,
    now: Now,
    pub list: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    pub fn new(machine: &'a Machine, now: Now) -> Self {
        Self {
            machine,
            now,
            list: Vec::new(),
        }
    }

    /// Leaves a condition as it is.
    pub fn keep(&mut self, kind: &str) {
        let old = self.machine.status.conditions.iter();
        self.list
            .extend(old.filter(|old| old.kind == kind).cloned());
    }

    pub fn set(&mut self, kind: &str, status: &str, why: &Fault) {
        let machine = self.machine;
        self.list.push(condition(
            &machine.status.conditions,
            (kind, status),
            (why.reason, why.message.clone()),
            machine.generation(),
            self.now,
        ));
    }
}
