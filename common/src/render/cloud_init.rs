//! The data for cloud-init, for both backends: which parts there are, and where each comes from.
//!
//! A running guest keeps the data it was started with. A [`SecretRevision`] on the guest records which
//! content of a user's Secret that was.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::identity::digest;
use super::json_yaml;
use crate::api::machine::{CloudInit, OpenObject, SecretKeyRef, Sysprep};
use crate::bounds::CLOUD_INIT_INLINE_MAX;
use crate::names;

/// A key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretKey {
    /// Name of the Secret, which is in the Machine's namespace.
    pub name: String,
    /// Key in the Secret's `data`.
    pub key: String,
}

/// The value of a key of a Secret, as it was read from the API server.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue {
    /// The value: confidential, never logged or printed.
    pub content: Vec<u8>,
    /// Identifies the value without disclosing it.
    pub revision: SecretRevision,
}

/// Prints the revision alone: the content is confidential.
impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretValue").field(&self.revision).finish()
    }
}

impl SecretValue {
    /// A value of the Secret with this uid, read at this resourceVersion.
    pub fn new(uid: &str, version: &str, content: Vec<u8>) -> Self {
        let revision = SecretRevision {
            version: version.to_owned(),
            digest: digest(&(uid, &content)),
        };
        Self { content, revision }
    }
}

/// Identifies one content of a Secret without disclosing it.
///
/// An equal `version` means that the Secret was not written since, so it need not be read again. A
/// different `digest` means that a write changed the content. The digest covers the Secret's uid, too:
/// everyone who can read the uid can also read the Secret, and no one else can test guessed contents
/// against the digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRevision {
    /// The Secret's resourceVersion.
    pub version: String,
    /// Digest of the Secret's uid and the content.
    pub digest: String,
}

/// `<version>-<digest>`: the value of the annotations.
impl fmt::Display for SecretRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.version, self.digest)
    }
}

impl SecretRevision {
    /// Parses the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (version, digest) = text.rsplit_once('-')?;
        Some(Self {
            version: version.to_owned(),
            digest: digest.to_owned(),
        })
    }
}

/// Where a part of the data comes from. Variant names are part of [`CloudInitPlan::digest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// Text in the Machine's spec.
    Inline(String),
    /// A key of a Secret that the user created.
    Secret(SecretKey),
}

/// The two parts that can be inline or in a Secret, with KubeVirt's and NoCloud's names for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    User,
    Network,
}

impl Part {
    /// The key that KubeVirt reads from a Secret, and our default key.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::User => "userdata",
            Self::Network => "networkdata",
        }
    }

    /// The annotation with the [`SecretRevision`] of the part.
    const fn annotation(self) -> &'static str {
        match self {
            Self::User => names::ANNOTATION_USER_DATA,
            Self::Network => names::ANNOTATION_NETWORK_DATA,
        }
    }

    /// The file that NoCloud reads from a volume.
    pub(super) const fn file(self) -> &'static str {
        match self {
            Self::User => "user-data",
            Self::Network => "network-config",
        }
    }
}

/// The parts of a Machine's cloud-init data and their sources. Field names are part of
/// [`digest`](Self::digest).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudInitPlan {
    user: Option<Source>,
    network: Option<Source>,
    pub(super) meta: Option<BTreeMap<String, String>>,
    /// Network data that follow from the addresses of the Machine's cards; set for a pass if the user gives none.
    /// Absent in the digests of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generated: Option<Source>,
    /// Whether the user data are an answer file of Windows Setup. Absent in the digests of earlier releases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_sysprep: bool,
}

/// The file that Windows Setup reads from the root of a CD-ROM, and the key of the Secret that has it.
pub(super) const ANSWER_FILE: &str = "autounattend.xml";

/// The text that the guest gets of user data in the form of an object; `None` if the object is empty.
pub fn cloud_config_text(object: &OpenObject) -> Option<String> {
    Some(format!("#cloud-config\n{}", network_config_text(object)?))
}

/// The text that the guest gets of a network configuration in the form of an object; `None` if the object is empty.
pub fn network_config_text(OpenObject(fields): &OpenObject) -> Option<String> {
    (!fields.is_empty()).then(|| json_yaml::text(fields))
}

impl From<&CloudInit> for CloudInitPlan {
    /// Inline data has priority over a Secret. An empty text and an empty object count as absent.
    fn from(spec: &CloudInit) -> Self {
        if let Some(sysprep) = &spec.sysprep {
            return Self::answer_file(sysprep);
        }
        let cloud_config = spec.cloud_config.as_ref().and_then(cloud_config_text);
        let network_config = spec.network_config.as_ref().and_then(network_config_text);
        Self {
            user: source(
                spec.user_data.as_ref(),
                cloud_config,
                spec.secret_ref.as_ref(),
                Part::User,
            ),
            network: source(
                spec.network_data.as_ref(),
                network_config,
                spec.network_data_secret_ref.as_ref(),
                Part::Network,
            ),
            meta: spec.meta_data.clone().filter(|meta| !meta.is_empty()),
            generated: None,
            is_sysprep: false,
        }
    }
}

fn source(
    text: Option<&String>,
    object: Option<String>,
    secret: Option<&SecretKeyRef>,
    part: Part,
) -> Option<Source> {
    let text = text.filter(|text| !text.is_empty()).cloned();
    if let Some(text) = text.or(object) {
        return Some(Source::Inline(text));
    }
    let secret = secret?;
    Some(Source::Secret(SecretKey {
        name: secret.name.clone()?,
        key: secret.key.clone().unwrap_or_else(|| part.key().to_owned()),
    }))
}

impl CloudInitPlan {
    /// Whether the data is an answer file of Windows Setup.
    pub fn is_sysprep(&self) -> bool {
        self.is_sysprep
    }

    fn answer_file(sysprep: &Sysprep) -> Self {
        let secret = sysprep.secret_ref.as_ref();
        let name = secret.and_then(|secret| secret.name.clone());
        let source = name.map(|name| {
            let key = ANSWER_FILE.to_owned();
            Source::Secret(SecretKey { name, key })
        });
        Self {
            is_sysprep: source.is_some(),
            user: source,
            ..Self::default()
        }
    }

    /// The plan with network data for the addresses of the Machine's cards, unless the user gives network data.
    #[must_use]
    pub fn with_network_configuration(mut self, network: Option<String>) -> Self {
        self.generated = network
            .filter(|_| self.network.is_none() && !self.is_sysprep)
            .map(Source::Inline);
        self
    }

    /// The plan without the network data that follow from addresses: what decides whether cloud-init runs again.
    #[must_use]
    pub fn without_generated(&self) -> Self {
        Self {
            generated: None,
            ..self.clone()
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = (Part, &Source)> {
        let network = if self.network.is_some() {
            &self.network
        } else {
            &self.generated
        };
        [(Part::User, &self.user), (Part::Network, network)]
            .into_iter()
            .filter_map(|(part, source)| Some((part, source.as_ref()?)))
    }

    /// Whether KubeVirt can read the part where the user put it, so that it is not copied into our
    /// Secret.
    pub(super) fn is_used_in_place(&self, part: Part, source: &Source) -> bool {
        self.meta.is_none()
            && match source {
                Source::Inline(text) => text.len() <= CLOUD_INIT_INLINE_MAX,
                Source::Secret(secret) => self.is_sysprep || secret.key == part.key(),
            }
    }

    /// The parts that are copied into our Secret.
    pub(super) fn copied(&self) -> impl Iterator<Item = (Part, &Source)> {
        self.parts()
            .filter(|(part, source)| !self.is_used_in_place(*part, source))
    }

    /// The keys of the user's Secrets that must exist before the guest can start.
    pub fn references(&self) -> impl Iterator<Item = &SecretKey> {
        self.parts().filter_map(|(_, source)| match source {
            Source::Secret(secret) => Some(secret),
            Source::Inline(_) => None,
        })
    }

    /// Names of the user's Secrets that KubeVirt mounts where they are: without them a guest does not start, even if
    /// they existed when it was made.
    pub fn mounted_secrets(&self) -> impl Iterator<Item = &str> {
        let in_place = self
            .parts()
            .filter(|(part, source)| self.is_used_in_place(*part, source));
        in_place.filter_map(|(_, source)| match source {
            Source::Secret(secret) => Some(secret.name.as_str()),
            Source::Inline(_) => None,
        })
    }

    /// Annotations of the guest: the [`SecretRevision`] of each part that comes from a user's Secret,
    /// from `read` if the Secret was read in this pass, otherwise from the `known` annotations. KubeVirt
    /// copies the annotations to the instance it creates, so an instance shows the revisions it was
    /// started with.
    pub fn secret_revisions(
        &self,
        known: &BTreeMap<String, String>,
        read: impl Fn(&SecretKey) -> Option<SecretRevision>,
    ) -> BTreeMap<String, String> {
        let annotation = |(part, source): (Part, &Source)| {
            let Source::Secret(secret) = source else {
                return None;
            };
            let key = part.annotation();
            let revision = read(secret).map(|revision| revision.to_string());
            let revision = revision.or_else(|| known.get(key).cloned())?;
            Some((key.to_owned(), revision))
        };
        self.parts().filter_map(annotation).collect()
    }

    /// Whether a user's Secret was written after these `revisions` (annotations) were recorded.
    /// `version` returns the current resourceVersion of a Secret; `None` if it is not cached.
    pub fn is_outdated(
        &self,
        revisions: &BTreeMap<String, String>,
        version: impl Fn(&str) -> Option<String>,
    ) -> bool {
        self.parts().any(|(part, source)| {
            let Source::Secret(secret) = source else {
                return false;
            };
            let recorded = revisions.get(part.annotation());
            let recorded = recorded.and_then(|text| SecretRevision::parse(text));
            version(&secret.name)
                .is_some_and(|version| recorded.is_none_or(|it| it.version != version))
        })
    }

    /// Whether KubeVirt needs a Secret of ours for this data.
    pub fn needs_secret(&self) -> bool {
        self.meta.is_some() || self.copied().next().is_some()
    }

    /// Digest of the plan, not of the contents of the user's Secrets. It is stored with the data that
    /// was generated from the plan (our Secret, the seed image), so comparing it needs no read of a
    /// user's Secret. Stored digests must stay valid across releases.
    pub fn digest(&self) -> String {
        digest(self)
    }

    /// All parts, with the contents of the user's Secrets from `read`. `None` if one of the Secrets
    /// does not exist, or if the plan has no parts.
    pub(super) fn contents<'a>(
        &'a self,
        read: impl Fn(&SecretKey) -> Option<&'a SecretValue>,
    ) -> Option<Contents<'a>> {
        if *self == Self::default() {
            return None;
        }
        let content = |source: &'a Option<Source>| match source {
            None => Some(None),
            Some(Source::Inline(text)) => Some(Some(text.as_bytes())),
            Some(Source::Secret(secret)) => Some(Some(read(secret)?.content.as_slice())),
        };
        Some(Contents {
            user: content(&self.user)?,
            network: content(&self.network)?,
            meta: self.meta.as_ref(),
            generated: match &self.generated {
                Some(Source::Inline(text)) => Some(text.as_bytes()),
                Some(Source::Secret(_)) | None => None,
            },
        })
    }
}

/// The data for cloud-init with the Secrets' contents filled in. Field names are part of the instance
/// id of libvirt guests.
#[derive(Debug, Serialize)]
pub(super) struct Contents<'a> {
    pub(super) user: Option<&'a [u8]>,
    pub(super) network: Option<&'a [u8]>,
    pub(super) meta: Option<&'a BTreeMap<String, String>>,
    /// Network data that follow from addresses. Not part of the instance id: an address that is allocated later is no
    /// reason for cloud-init to run again.
    #[serde(skip)]
    pub(super) generated: Option<&'a [u8]>,
}

/// cloud-init's meta-data: the user's keys, plus `instance-id` and `local-hostname` unless the user
/// sets them. Written as JSON, which is valid YAML and needs no quoting rules.
pub(super) fn meta_data(
    meta: &BTreeMap<String, String>,
    instance: &str,
    hostname: &str,
) -> Vec<u8> {
    let mut meta = meta.clone();
    meta.entry("instance-id".into())
        .or_insert_with(|| instance.to_owned());
    meta.entry("local-hostname".into())
        .or_insert_with(|| hostname.to_owned());
    serde_json::to_vec(&meta).unwrap_or_default()
}
