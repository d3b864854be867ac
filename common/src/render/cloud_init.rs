//! The data for cloud-init, for both backends: which parts there are, and where each comes from.
//!
//! A guest keeps the data that it was started with. A [`Mark`] on the guest records which content of a
//! Secret that was.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::identity::digest;
use crate::api::machine::{CloudInit, SecretKeyRef};
use crate::bounds::CLOUD_INIT_INLINE_MAX;
use crate::names;

/// A key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: String,
    /// Key in it.
    pub key: String,
}

/// What a key of a Secret held when it was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Reading {
    /// The content.
    pub content: Vec<u8>,
    /// What may be told of it.
    pub mark: Mark,
}

/// Tells nothing of the content.
impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.mark).finish()
    }
}

impl Reading {
    /// The content of a key of the Secret of this uid and resourceVersion.
    pub fn new(uid: &str, version: &str, content: Vec<u8>) -> Self {
        let mark = Mark {
            version: version.to_owned(),
            digest: digest(&(uid, &content)),
        };
        Self { content, mark }
    }
}

/// Tells one content of a Secret from another, and nothing of either.
///
/// The version says that nobody has written the Secret since, so that it need not be read; the digest,
/// that what was written is another content. The Secret's uid is in the digest: whoever knows it can
/// read the Secret, and nobody else can try contents against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The Secret's resourceVersion.
    pub version: String,
    /// Digest of the content.
    pub digest: String,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.version, self.digest)
    }
}

impl Mark {
    /// Reads what `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let (version, digest) = text.rsplit_once('-')?;
        Some(Self {
            version: version.to_owned(),
            digest: digest.to_owned(),
        })
    }
}

/// Where a part of the data comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The Machine.
    Inline(String),
    /// A Secret of the user.
    Secret(SecretKey),
}

/// The two parts, with KubeVirt's and NoCloud's names for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    User,
    Network,
}

impl Part {
    /// The key KubeVirt reads from a Secret.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::User => "userdata",
            Self::Network => "networkdata",
        }
    }

    /// The annotation that tells what was in the user's Secret.
    const fn annotation(self) -> &'static str {
        match self {
            Self::User => names::ANNOTATION_USER_DATA,
            Self::Network => names::ANNOTATION_NETWORK_DATA,
        }
    }

    /// The file NoCloud reads from a volume.
    pub(super) const fn file(self) -> &'static str {
        match self {
            Self::User => "user-data",
            Self::Network => "network-config",
        }
    }
}

/// What cloud-init is given, from which source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudInitPlan {
    user: Option<Source>,
    network: Option<Source>,
    pub(super) meta: Option<BTreeMap<String, String>>,
}

impl From<&CloudInit> for CloudInitPlan {
    /// Inline data wins over a Secret; an empty text is as absent.
    fn from(wish: &CloudInit) -> Self {
        Self {
            user: source(
                wish.user_data.as_deref(),
                wish.secret_ref.as_ref(),
                Part::User,
            ),
            network: source(
                wish.network_data.as_deref(),
                wish.network_data_secret_ref.as_ref(),
                Part::Network,
            ),
            meta: wish.meta_data.clone().filter(|meta| !meta.is_empty()),
        }
    }
}

fn source(inline: Option<&str>, secret: Option<&SecretKeyRef>, part: Part) -> Option<Source> {
    if let Some(text) = inline.filter(|text| !text.is_empty()) {
        return Some(Source::Inline(text.to_owned()));
    }
    let secret = secret?;
    Some(Source::Secret(SecretKey {
        name: secret.name.clone()?,
        key: secret.key.clone().unwrap_or_else(|| part.key().to_owned()),
    }))
}

impl CloudInitPlan {
    pub(super) fn parts(&self) -> impl Iterator<Item = (Part, &Source)> {
        [(Part::User, &self.user), (Part::Network, &self.network)]
            .into_iter()
            .filter_map(|(part, source)| Some((part, source.as_ref()?)))
    }

    /// Whether a part can stay where the user put it.
    pub(super) fn stays(&self, part: Part, source: &Source) -> bool {
        self.meta.is_none()
            && match source {
                Source::Inline(text) => text.len() <= CLOUD_INIT_INLINE_MAX,
                Source::Secret(secret) => secret.key == part.key(),
            }
    }

    pub(super) fn moved(&self) -> impl Iterator<Item = (Part, &Source)> {
        self.parts()
            .filter(|(part, source)| !self.stays(*part, source))
    }

    /// Every Secret of the user that must be there before the guest can start.
    pub fn references(&self) -> impl Iterator<Item = &SecretKey> {
        self.parts().filter_map(|(_, source)| match source {
            Source::Secret(secret) => Some(secret),
            Source::Inline(_) => None,
        })
    }

    /// Annotations of the guest: what the user's Secrets hold that it is given, as far as they were
    /// `read`; else as it is known already. KubeVirt hands them down to the instance it makes, so that
    /// an instance tells what it was given.
    pub fn marks(
        &self,
        known: &BTreeMap<String, String>,
        read: impl Fn(&SecretKey) -> Option<Mark>,
    ) -> BTreeMap<String, String> {
        let mark = |(part, source): (Part, &Source)| {
            let Source::Secret(secret) = source else {
                return None;
            };
            let key = part.annotation();
            let mark = read(secret).map(|mark| mark.to_string());
            Some((key.to_owned(), mark.or_else(|| known.get(key).cloned())?))
        };
        self.parts().filter_map(mark).collect()
    }

    /// Whether a Secret of the user has been written since these marks were made. `version` tells its
    /// resourceVersion, if that is known.
    pub fn is_behind(
        &self,
        marks: &BTreeMap<String, String>,
        version: impl Fn(&str) -> Option<String>,
    ) -> bool {
        self.parts().any(|(part, source)| {
            let Source::Secret(secret) = source else {
                return false;
            };
            let mark = marks.get(part.annotation());
            let mark = mark.and_then(|mark| Mark::parse(mark));
            version(&secret.name)
                .is_some_and(|version| mark.is_none_or(|mark| mark.version != version))
        })
    }

    /// Whether a Secret of ours is needed.
    pub fn needs_secret(&self) -> bool {
        self.meta.is_some() || self.moved().next().is_some()
    }

    /// Digest of the wish, not of the contents of Secrets: our Secret is current when it carries
    /// this, and no Secret of the user has to be read to know.
    pub fn digest(&self) -> String {
        digest(self)
    }

    /// Everything, with the contents of the user's Secrets as `read`. `None`: one of these is not there,
    /// or there is nothing to give.
    pub(super) fn contents<'a>(
        &'a self,
        read: impl Fn(&SecretKey) -> Option<&'a Reading>,
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
        })
    }
}

/// All that cloud-init is given, wherever it was.
#[derive(Debug, Serialize)]
pub(super) struct Contents<'a> {
    pub(super) user: Option<&'a [u8]>,
    pub(super) network: Option<&'a [u8]>,
    pub(super) meta: Option<&'a BTreeMap<String, String>>,
}

/// cloud-init's meta-data: the user's, with an identity and a name for the instance where the user
/// gives none. JSON, which is YAML that needs no quoting rules.
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
