//! From an intent to its block: `Merged` (whose value counts) → typed parts, family by family.
//!
//! ```text
//! intent + pins ──merge──▶ Merged ──rules::<family>::resolve──▶ parts, or faults ──▶ Normalized
//! ```
//!
//! [`normalize`] is a pure function of the intent and the pins: no clock, no random, no lookup, not
//! even the Machine's name.

mod hash;
mod merge;

use std::collections::BTreeMap;

pub(crate) use hash::hash;
pub use hash::intent_hash;
pub use merge::{Base, Item, Leaf, Merged, Named, Place};

use crate::api::choice::Backend;
use crate::api::machine::MachineSpec;
use crate::api::normalized::{BLOCK_VERSION, Normalized, TemplatePin};
use crate::names;
use crate::rules;
use crate::violation::Findings;

/// What a user wishes, as sent.
#[derive(Clone, Copy, Debug)]
pub struct Intent<'a> {
    /// The spec; its block is not looked at.
    pub spec: &'a MachineSpec,
    /// The label that names the template when the spec does not.
    pub template_label: Option<&'a str>,
    /// Digest of both: [`intent_hash`].
    pub hash: &'a str,
}

impl<'a> Intent<'a> {
    /// The name of the template and where it stands: the field, else the label. A label without a
    /// value is as absent.
    pub fn template(&self) -> Option<(&'a str, Place)> {
        let field = self
            .spec
            .template
            .as_deref()
            .map(|name| (name, Place::TEMPLATE));
        let label = self.template_label.filter(|name| !name.is_empty());
        field.or(label.map(|name| (name, Place::TEMPLATE_LABEL)))
    }
}

/// The template an intent stands on, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateChoice {
    /// The intent names none.
    None,
    /// The named one, with its content.
    Pinned(Box<TemplatePin>),
    /// The named one does not exist.
    Unknown,
}

/// What an intent resolves to beyond itself. Comes from a lookup or from an earlier block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// The template.
    pub template: TemplateChoice,
    /// The backend, when the intent names none.
    pub backend: Backend,
    /// Storage classes by name of disk or CD-ROM, where the intent leaves the choice to the
    /// cluster.
    pub storage_classes: BTreeMap<String, String>,
}

/// The pins a block holds.
pub fn pins_of(block: &Normalized) -> Pins {
    let disks = block
        .disks
        .iter()
        .map(|disk| (&disk.name, Some(&disk.storage_class)));
    let cdroms = block
        .cdroms
        .iter()
        .map(|cdrom| (&cdrom.name, cdrom.storage_class.as_ref()));
    Pins {
        template: match &block.template {
            Some(pin) => TemplateChoice::Pinned(Box::new(pin.clone())),
            None => TemplateChoice::None,
        },
        backend: block.backend,
        storage_classes: disks
            .chain(cdroms)
            .filter_map(|(name, class)| Some((name.clone(), class?.clone())))
            .collect(),
    }
}

/// Merges an intent over the template of its pins.
pub fn merge<'a>(intent: &Intent<'a>, template: &'a TemplateChoice) -> Merged<'a> {
    let base = match (template, intent.template()) {
        (TemplateChoice::Pinned(pin), Some((_, place))) => Base::Template(&pin.content, place),
        (TemplateChoice::Unknown, _) => Base::Unknown,
        (TemplateChoice::None | TemplateChoice::Pinned(_), _) => Base::Nothing,
    };
    Merged::new(intent.spec, base)
}

/// Computes the block of an intent, as far as it has one. Faults of the intent are added to
/// `findings`; with any, the block is not fit to be written.
pub fn normalize(intent: &Intent<'_>, pins: &Pins, findings: &mut Findings) -> Option<Normalized> {
    let merged = merge(intent, &pins.template);
    resolve(intent, &merged, pins, rules::sizing::VCPUS_MAX, findings)
}

/// [`normalize`] for an intent that is merged already, with the vCPUs an administrator allows.
pub(crate) fn resolve(
    intent: &Intent<'_>,
    merged: &Merged<'_>,
    pins: &Pins,
    max_vcpus: u32,
    findings: &mut Findings,
) -> Option<Normalized> {
    rules::limits::merged_lists(merged, findings);
    let backend = rules::machine::backend(merged, pins.backend, findings);
    // A wrong backend is one fault; what rests on it is judged for the pinned one, and not told.
    let assumed = backend.unwrap_or(pins.backend);
    let power_state = rules::machine::power_state(merged, findings);
    let cpu = rules::sizing::cpu(merged, max_vcpus, findings);
    let memory = rules::sizing::memory(merged, findings);
    let mut disks = rules::disks::disks(merged, assumed, pins, findings);
    let mut networks = rules::networks::networks(merged, findings);
    let mut cdroms = rules::boot::cdroms(merged, assumed, pins, findings);
    let order = rules::boot::boot_order(merged, assumed, findings);
    let features = rules::firmware::features(merged, findings);
    let machine_type = rules::firmware::machine_type(merged, assumed, findings);
    let firmware = rules::firmware::firmware(merged, machine_type, findings);
    rules::machine::node_selector(merged, findings);
    if let (Some(order), Some(disks), Some(networks), Some(cdroms)) =
        (&order, &mut disks, &mut networks, &mut cdroms)
    {
        rules::boot::number(order, disks, cdroms, networks);
    }
    Some(Normalized {
        version: BLOCK_VERSION,
        intent_hash: intent.hash.to_owned(),
        template: match &pins.template {
            TemplateChoice::Pinned(pin) => Some(pin.as_ref().clone()),
            TemplateChoice::None | TemplateChoice::Unknown => None,
        },
        backend: backend?,
        power_state: power_state?,
        guest_shutdown_stops: merged.user().guest_shutdown_stops.unwrap_or(false),
        cpu: cpu?,
        memory: memory?,
        machine_type: machine_type?,
        firmware,
        features,
        disks: disks?,
        cdroms: cdroms?,
        networks: networks?,
        node_selector: merged.user().node_selector.clone().unwrap_or_default(),
    })
}

/// How an intent asks for a storage class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassRequest<'a> {
    /// By name.
    Named(&'a str),
    /// Explicitly none.
    NoClass,
    /// Whatever the cluster has as its default; `prefer_named` when a class that is itself called
    /// `default` comes first.
    ClusterDefault {
        /// Whether the word `default` was written.
        prefer_named: bool,
    },
}

impl<'a> ClassRequest<'a> {
    /// Reads the field.
    pub fn of(field: Option<&'a str>) -> Self {
        match field {
            None => Self::ClusterDefault {
                prefer_named: false,
            },
            Some("") => Self::NoClass,
            Some(names::DEFAULT_STORAGE_CLASS) => Self::ClusterDefault { prefer_named: true },
            Some(name) => Self::Named(name),
        }
    }

    /// The class of the disk or CD-ROM of this name; none when its pin is missing.
    pub fn resolved(self, name: &str, pins: &Pins) -> Option<String> {
        match self {
            Self::Named(class) => Some(class.to_owned()),
            Self::NoClass => Some(String::new()),
            Self::ClusterDefault { .. } => pins.storage_classes.get(name).cloned(),
        }
    }
}
