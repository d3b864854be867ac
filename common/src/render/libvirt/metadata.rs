//! This operator's element in a domain's metadata: the Machine of the domain, its volumes, and operations
//! in progress.
//!
//! libvirt stores the element unchanged and deletes it with the domain. Everything that a deletion needs
//! is recorded here, because the Machine's spec may be invalid at that time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use roxmltree::Node;
use serde::{Deserialize, Deserializer, Serialize};

use super::xml::{self, Element};
use crate::api::choice::ReclaimPolicy;
use crate::api::lenient::or_absent;
use crate::api::libvirt_host::HostResources;
use crate::mac::Mac;

/// XML namespace of the element.
pub const METADATA_URI: &str = "https://vitistack.io/machine/v1";
/// XML namespace prefix of the element; libvirt's API calls it the key.
pub const METADATA_KEY: &str = "vitistack";
/// Local name of the element.
const ELEMENT: &str = "machine";

/// The Machine that a domain was created for, and what the controller recorded about it. The element's
/// text is this type as JSON: field names must stay readable across releases. A value that a later release may add is read
/// as absent, so that the domain stays the Machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DomainMetadata {
    /// Namespace of the Machine.
    pub namespace: String,
    /// Name of the Machine.
    pub name: String,
    /// Uid of the Machine. A domain is the Machine's if this uid and the domain's uuid match.
    pub uid: String,
    /// The volumes of the Machine's disks with their reclaim policies. The volume of a disk that left the
    /// spec stays in the list with the policy Retain until it is gone.
    pub volumes: Vec<VolumeRecord>,
    /// The volume with cloud-init's seed image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<SeedRecord>,
    /// Addresses that the DHCP servers of libvirt's networks give to the cards. Each is recorded before it is given, and
    /// stays in the list until it is taken back: what the list does not have is not the Machine's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dhcp: Vec<DhcpRecord>,
    /// The stop or restart in progress.
    #[serde(
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub intent: Option<Intent>,
    /// vCPUs and memory that the definition gives the next start, if that is more than the running guest has. They
    /// count as allocated on the host. Absent otherwise.
    #[serde(
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub grown: Option<HostResources>,
    /// Whether the firmware's variables must be reset at the next start, because Secure Boot was switched.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reset_nvram: bool,
    /// Whether another client has switched the guest off and it is kept off. libvirt has the reason why a guest is off
    /// only until its daemon starts again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kept_off: bool,
    /// Whether another client has migrated the guest to another host, and this definition was left behind. Recorded for
    /// the same reason.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub migrated_away: bool,
}

/// The volume of a disk, as recorded in the domain's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecord {
    /// Name of the disk, as in `spec.disks`.
    pub disk: String,
    /// Name of the volume's storage pool.
    pub pool: String,
    /// Name of the volume in the pool; of a copy of an image, with the number of the attempt that made it.
    pub volume: String,
    /// Whether the volume is deleted or retained when the Machine is deleted. Retain if this release does not know what is
    /// recorded.
    #[serde(deserialize_with = "known_or_retain")]
    pub reclaim_policy: ReclaimPolicy,
}

fn known_or_retain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReclaimPolicy, D::Error> {
    or_absent(deserializer).map(|policy| policy.unwrap_or(ReclaimPolicy::Retain))
}

/// An address that the DHCP server of a libvirt network has for a card, as recorded in the domain's metadata.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DhcpRecord {
    /// Name of the libvirt network.
    pub network: String,
    /// MAC address of the card.
    pub mac: Mac,
    /// IPv4 address that the server gives to this card only.
    pub address: Ipv4Addr,
}

/// The volume with cloud-init's seed image, and what the image was generated from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeedRecord {
    /// Name of the volume's storage pool.
    pub pool: String,
    /// Name of the volume.
    pub volume: String,
    /// [`CloudInitPlan::digest`](crate::render::CloudInitPlan::digest) of the plan that the image was
    /// generated from. A seed is generated again if this differs, never because a release writes other bytes.
    pub digest: String,
    /// The same of the plan [without the network data](crate::render::CloudInitPlan::without_generated) that follow from
    /// addresses. Absent in records of earlier releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_digest: Option<String>,
    /// Revisions of the user's Secrets in the image, as returned by
    /// [`CloudInitPlan::secret_revisions`](crate::render::CloudInitPlan::secret_revisions).
    pub secrets: BTreeMap<String, String>,
}

/// An operation of several steps. It is recorded before the first step, so that a restarted controller
/// continues it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// The operation and its current step.
    pub kind: IntentKind,
    /// When the operation began, as an RFC 3339 time.
    pub since: String,
    /// Value of the annotation that requested the restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

/// The next step of an operation on a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IntentKind {
    /// Shut the guest down. A guest that is off without this intent shut itself down, or was switched off by another
    /// client.
    Stop,
    /// Shut the guest down, then start it again.
    Restart,
    /// Second half of a restart: the guest is off and must be started.
    Start,
}

impl DomainMetadata {
    /// The element without a prefix, for `virDomainSetMetadata`, which adds the prefix itself.
    pub fn xml(&self) -> String {
        self.element(ELEMENT.to_owned()).to_string()
    }

    /// The element with prefix and namespace, for a domain's definition.
    pub(super) fn prefixed(&self) -> Element {
        self.element(format!("{METADATA_KEY}:{ELEMENT}"))
            .attr(format!("xmlns:{METADATA_KEY}"), METADATA_URI)
    }

    fn element(&self, name: String) -> Element {
        // Serialization cannot fail: all maps have string keys.
        let json = serde_json::to_string(self).unwrap_or_default();
        // These two are valid in JSON but not in XML. serde_json escapes all others that XML cannot hold.
        let json = json.replace('\u{fffe}', r"\ufffe");
        let json = json.replace('\u{ffff}', r"\uffff");
        Element::new(name).text(json)
    }

    /// Parses the element, with or without a prefix: libvirt returns both forms. `None` if it is another
    /// element, or has no valid content.
    pub fn parse(element: &str) -> Option<Self> {
        let document = xml::document(element).ok()?;
        Self::from_node(document.root_element())
    }

    /// Finds and parses the element in a definition's metadata.
    pub(super) fn find_in(metadata: Node<'_, '_>) -> Option<Self> {
        let tag = (METADATA_URI, ELEMENT);
        Self::from_node(metadata.children().find(|node| node.has_tag_name(tag))?)
    }

    fn from_node(element: Node<'_, '_>) -> Option<Self> {
        let has_name = element.tag_name().name() == ELEMENT;
        let json = element.text().filter(|_| has_name)?;
        let metadata: Self = serde_json::from_str(json).ok()?;
        (!metadata.uid.is_empty()).then_some(metadata)
    }
}
