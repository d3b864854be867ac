//! What an intent says before any rule reads it: digest, pins, and the merge with its template.
//!
//! ```text
//! intent + pins ──merge──▶ Merged ──rules::resolve──▶ parts of the block, or violations
//! ```
//!
//! Pure functions of the intent and the pins: no clock, no random number, no lookup, not even the
//! Machine's name.

mod hash;
mod merge;

use std::collections::BTreeMap;

pub(crate) use hash::hash;
pub use hash::intent_hash;
pub use merge::{Base, Item, Leaf, Merged, Named};

use crate::api::choice::Backend;
use crate::api::machine::MachineSpec;
use crate::api::normalized::{Normalized, TemplatePin};
use crate::field_path::FieldPath;
use crate::names;

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
    pub fn template(&self) -> Option<(&'a str, FieldPath)> {
        let field = self
            .spec
            .template
            .as_deref()
            .map(|name| (name, FieldPath::TEMPLATE));
        let label = self.template_label.filter(|name| !name.is_empty());
        field.or(label.map(|name| (name, FieldPath::TEMPLATE_LABEL)))
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
        (TemplateChoice::Pinned(pin), Some((_, path))) => Base::Template(&pin.content, path),
        (TemplateChoice::Unknown, _) => Base::Unknown,
        (TemplateChoice::None | TemplateChoice::Pinned(_), _) => Base::Nothing,
    };
    Merged::new(intent.spec, base)
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
