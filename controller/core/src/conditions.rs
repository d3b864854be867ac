//! Conditions of a Machine: types, reasons and texts that every backend shares.
//!
//! A condition that is not met names its cause and what to do about it. `docs/operate.md` lists the reasons.

use std::collections::BTreeMap;

use common::api::normalized::{BLOCK_VERSION, Normalized};
use common::api::status::{Condition, MachineStatus};
use common::api::template::TemplateContent;
use common::names;
use common::render::{SecretKey, SecretValue};

use crate::machine::{Block, Machine};
use crate::objects::{Meta as _, Template};
use crate::plan::Now;

/// Reason and message of a condition: why it is not met and what to do about it, or why it is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Machine-readable, in CamelCase. Users' alerts depend on it.
    reason: &'static str,
    /// For a person; may change between releases.
    message: String,
}

impl Fault {
    /// A reason of `docs/operate.md` with its message.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// The reason.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Result of planning one part of a Machine, such as its storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The first fault that was found; `None`: the part is as desired.
    pub fault: Option<Fault>,
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        Self { fault: Some(fault) }
    }
}

impl Outcome {
    /// Records a fault, if there is one and none was recorded before.
    pub fn record_first(&mut self, fault: impl Into<Option<Fault>>) {
        self.fault = self.fault.take().or(fault.into());
    }
}

/// `Normalized`, False: why there is no desired state to act on.
pub fn not_normalized(machine: &Machine) -> Fault {
    if let Some(name) = machine
        .named_template
        .as_ref()
        .filter(|_| machine.lacks_template)
    {
        return Fault::new(
            "TemplateNotFound",
            format!(
                "template '{name}' not found, so nothing is done: create the MachineTemplate and set the annotation {} to a new text, or name another template in spec.template",
                names::ANNOTATION_REFRESH_TEMPLATE
            ),
        );
    }
    let remedy = format!(
        "the admission webhook writes it: see that machine-webhook runs and is registered, then set the annotation {} to a new text, or change the spec",
        names::ANNOTATION_REFRESH_TEMPLATE
    );
    match &machine.block {
        Block::Stale => Fault::new(
            "Stale",
            format!("spec.normalized was made of another spec, so nothing is done; {remedy}"),
        ),
        Block::Newer(version) => Fault::new(
            "NotNormalized",
            format!(
                "spec.normalized has version {version}, and this machine-controller reads versions up to {BLOCK_VERSION}, so nothing is done: upgrade it to the release of machine-webhook, or, if both went back to this release, set the annotation {} to a new text",
                names::ANNOTATION_REFRESH_TEMPLATE
            ),
        ),
        Block::Unreadable(why) => Fault::new(
            "NotNormalized",
            format!("spec.normalized cannot be used ({why}), so nothing is done; {remedy}"),
        ),
        Block::Missing | Block::Matching(_) => Fault::new(
            "NotNormalized",
            format!("spec.normalized is missing, so nothing is done; {remedy}"),
        ),
    }
}

/// `Normalized`, True: whether the template has changed since the block was made from it, or a MachineImage since a disk
/// was filled from it. `images`: [`Caches::outdated_images`](crate::caches::Caches::outdated_images).
pub fn normalized(
    block: Option<&Normalized>,
    template: Option<&Template>,
    images: &[String],
) -> Fault {
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
        _ if !images.is_empty() => {
            let images: Vec<_> = images.iter().map(|name| format!("'{name}'")).collect();
            Fault::new(
                "ImageOutdated",
                format!(
                    "MachineImage {} has another source since disks of this Machine were added; they keep their content, new disks get the new one",
                    images.join(" and ")
                ),
            )
        }
        _ => Fault::new("Normalized", "the block matches the spec"),
    }
}

/// The fault of a Machine whose `spec.cloudInit` names a Secret or a key that does not exist. `contents`: what was
/// read, by reference.
pub fn missing_secret(
    machine: &Machine,
    contents: &BTreeMap<SecretKey, Option<SecretValue>>,
) -> Option<Fault> {
    let (secret, _) = contents.iter().find(|(_, content)| content.is_none())?;
    Some(Fault::new(
        "CloudInitSecretNotFound",
        format!(
            "Secret '{}' with the key '{}', which spec.cloudInit names, not found in namespace {}: create it; the Machine continues automatically when it appears",
            secret.name,
            secret.key,
            machine.namespace()
        ),
    ))
}

/// Status of a condition (`True`, `False` or `Unknown`) with reason and message.
pub type Verdict = (&'static str, Fault);

/// `NetworkReady`.
pub fn network(outcome: &Outcome) -> Verdict {
    match &outcome.fault {
        Some(fault) => ("False", fault.clone()),
        None => (
            "True",
            Fault::new("NetworkConfigured", "every network card has its network"),
        ),
    }
}

/// A condition. Its transition time changes only if its status differs from that in `old`.
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

/// `RestartRequired`, True: a restart brings these fields into effect. `obstacle`: what keeps the backend from applying them now.
pub fn restart_required(machine: &Machine, fields: &[&str], obstacle: &str) -> Option<Fault> {
    if fields.is_empty() {
        return None;
    }
    let has_data = fields.iter().any(|field| field.starts_with("cloudInit"));
    let instance = match (machine.cloud_init.is_sysprep(), machine.is_on_libvirt()) {
        _ if !has_data => "",
        (true, _) => {
            "; the guest is given the new answer file then, and Windows Setup reads it on a new instance only: recreate the Machine"
        }
        (false, false) => {
            "; the guest is given the new cloud-init data then, and cloud-init acts on it on a new instance only: run 'cloud-init clean' in the guest before, or recreate the Machine"
        }
        (false, true) => {
            "; cloud-init acts on the new data then, but if only ipAddresses of network cards are new, on a new instance only: run 'cloud-init clean' in the guest before, or recreate the Machine"
        }
    };
    let fields = fields.join(", ");
    let message =
        format!("a change takes effect when the guest is restarted: {fields}{obstacle}{instance}");
    Some(Fault::new("RestartRequired", message))
}

/// `AgentConnected`, True.
pub fn agent_connected() -> Fault {
    Fault::new("AgentConnected", "the guest agent answers")
}

/// `Paused`, True.
pub fn paused() -> Fault {
    let message = format!(
        "the Machine is observed only: remove the annotation {} to continue",
        names::ANNOTATION_PAUSED
    );
    Fault::new("Paused", message)
}

/// Types of the conditions that this controller writes. Conditions of other writers are not touched.
pub const TYPES: [&str; 14] = [
    "Ready",
    "Normalized",
    "StorageReady",
    "NetworkReady",
    "VirtualMachineReady",
    "Scheduled",
    "RestartRequired",
    "MigrationRequired",
    "LiveMigratable",
    "Migrating",
    "EvictionRequested",
    "AgentConnected",
    "DisplayReady",
    "Paused",
];

/// Status and reason of the condition `Ready`.
pub fn ready(status: &MachineStatus) -> Option<(&str, &str)> {
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.kind == "Ready")?;
    Some((&ready.status, &ready.reason))
}

/// Collects the conditions of a new status.
#[derive(Debug)]
pub struct Conditions<'a> {
    machine: &'a Machine,
    now: Now,
    /// The conditions so far.
    pub list: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    /// No conditions yet. `machine` has the old ones.
    pub fn new(machine: &'a Machine, now: Now) -> Self {
        Self {
            machine,
            now,
            list: Vec::new(),
        }
    }

    /// Takes over the old condition of this type, if there is one.
    pub(crate) fn keep(&mut self, kind: &str) {
        let old = self.machine.status.conditions.iter();
        self.list
            .extend(old.filter(|old| old.kind == kind).cloned());
    }

    /// Adds the condition `Paused`, if the Machine is paused.
    pub fn set_paused(&mut self) {
        if self.machine.is_paused() {
            self.set("Paused", "True", &paused());
        }
    }

    /// Adds a condition, if there is one.
    pub fn set_if(&mut self, kind: &str, verdict: Option<&Verdict>) {
        if let Some((status, why)) = verdict {
            self.set(kind, status, why);
        }
    }

    /// Adds a condition.
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

#[cfg(test)]
mod tests {
    use common::api::choice::Backend;
    use common::api::machine::{CloudInit, LocalSecretRef, Sysprep};
    use common::render::CloudInitPlan;

    use super::*;
    use crate::fixtures::{block, machine};

    #[test]
    fn a_restart_is_reported_with_what_a_guest_reads_on_a_new_instance_only() {
        let data = CloudInit {
            user_data: Some("#cloud-config".into()),
            ..CloudInit::default()
        };
        let answers = CloudInit {
            sysprep: Some(Sysprep {
                secret_ref: Some(LocalSecretRef {
                    name: Some("answers".into()),
                }),
            }),
            ..CloudInit::default()
        };
        for (backend, data, fields, expected) in [
            (Backend::Libvirt, &data, &["cpu.cores"][..], "cpu.cores"),
            (
                Backend::Libvirt,
                &data,
                &["cpu.cores", "cloudInit"],
                "if only ipAddresses",
            ),
            (
                Backend::Kubevirt,
                &data,
                &["cloudInit"],
                "acts on it on a new instance only",
            ),
            (
                Backend::Libvirt,
                &answers,
                &["cloudInit"],
                "recreate the Machine",
            ),
            (
                Backend::Kubevirt,
                &answers,
                &["cloudInit.sysprep"],
                "Windows Setup",
            ),
        ] {
            let mut machine = machine(Normalized { backend, ..block() });
            machine.cloud_init = CloudInitPlan::from(data);
            let fault = restart_required(&machine, fields, "").unwrap();
            let message = fault.message();
            assert!(message.contains(expected), "{message}");
            assert_eq!(message.contains("new instance"), expected != "cpu.cores");
        }
        let machine = machine(block());
        assert!(restart_required(&machine, &[], "").is_none());
    }
}
