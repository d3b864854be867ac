//! Our element in a domain's metadata: whose it is, and what has to be known of it later.
//!
//! libvirt keeps the element as it is, lives and dies with the domain, and shows it to whoever looks at the
//! domain. What deletion needs is here and not in the Machine's spec, which may be broken by then.

use std::collections::BTreeMap;

use roxmltree::Node;
use serde::{Deserialize, Serialize};

use super::xml::{self, Element};
use crate::api::choice::ReclaimPolicy;

/// XML namespace of the element.
pub const METADATA_URI: &str = "https://vitistack.io/machine/v1";
/// Its prefix, which libvirt calls its key.
pub const METADATA_KEY: &str = "vitistack";
/// Its name.
const ELEMENT: &str = "machine";

/// What a domain tells of the Machine it was made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mark {
    /// Namespace of the Machine.
    pub namespace: String,
    /// Name of the Machine.
    pub name: String,
    /// Uid of the Machine. A domain is ours when this and its uuid fit.
    pub uid: String,
    /// The volumes of its disks, and what becomes of each. Those that are no longer wished stay here until
    /// they are let go.
    pub volumes: Vec<Kept>,
    /// The volume cloud-init is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<SeedMark>,
    /// What was begun and has not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<Intent>,
    /// Whether the firmware's settings have to be made anew at the next start, because secure boot was switched.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reset_nvram: bool,
}

/// A volume of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Name of the disk.
    pub disk: String,
    /// Pool of the volume.
    pub pool: String,
    /// Name of the volume.
    pub volume: String,
    /// What becomes of it when its disk or the Machine goes.
    pub reclaim_policy: ReclaimPolicy,
}

/// The volume cloud-init is given, and what it was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeedMark {
    /// Pool of the volume.
    pub pool: String,
    /// Name of the volume.
    pub volume: String,
    /// [`CloudInitPlan::digest`](crate::render::CloudInitPlan::digest) of the wish.
    pub digest: String,
    /// Which contents of the user's Secrets, as [`CloudInitPlan::marks`](crate::render::CloudInitPlan::marks).
    pub secrets: BTreeMap<String, String>,
}

/// Something that takes several steps. It is recorded before the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// What is to happen.
    pub kind: IntentKind,
    /// When it was begun, as Kubernetes writes times.
    pub since: String,
    /// The text that asked for a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

/// What is to happen to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IntentKind {
    /// It is to be off. A guest that is off without this has shut itself down.
    Stop,
    /// It is to be off, and then on.
    Restart,
    /// It is off for a restart, and to be on.
    Start,
}

impl Mark {
    /// The element, as `virDomainSetMetadata` takes it: libvirt adds the prefix.
    pub fn xml(&self) -> String {
        self.element(ELEMENT.to_owned()).to_string()
    }

    /// The element, as it stands in a definition.
    pub(super) fn prefixed(&self) -> Element {
        self.element(format!("{METADATA_KEY}:{ELEMENT}"))
            .attr(format!("xmlns:{METADATA_KEY}"), METADATA_URI)
    }

    fn element(&self, name: String) -> Element {
        // Types of this module always serialize: no maps but those with text keys.
        let json = serde_json::to_string(self).unwrap_or_default();
        // All that JSON leaves as it is and XML cannot hold.
        let json = json.replace('\u{fffe}', r"\ufffe");
        let json = json.replace('\u{ffff}', r"\uffff");
        Element::new(name).text(json)
    }

    /// Reads the element, whichever way it was sent back: bare, or with its prefix. `None`: it is not ours.
    pub fn parse(element: &str) -> Option<Self> {
        let document = xml::document(element).ok()?;
        Self::of(document.root_element())
    }

    /// Reads the element among the metadata of a definition.
    pub(super) fn within(metadata: Node<'_, '_>) -> Option<Self> {
        let ours = (METADATA_URI, ELEMENT);
        Self::of(metadata.children().find(|node| node.has_tag_name(ours))?)
    }

    fn of(element: Node<'_, '_>) -> Option<Self> {
        let is_ours = element.tag_name().name() == ELEMENT;
        let json = element.text().filter(|_| is_ours)?;
        let mark: Self = serde_json::from_str(json).ok()?;
        (!mark.uid.is_empty()).then_some(mark)
    }
}
