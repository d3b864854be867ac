//! The envelope: an `AdmissionReview` that asks.
//!
//! The uid is known before anything else may fail, and every answer from then on carries it; an
//! answer without it counts as a failure of the webhook. The object inside stays raw text here.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer::{Answer, Failure};

/// The only version spoken; API servers since 1.16 speak it.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// Group of older versions, which are answered in kind.
const API_GROUP: &str = "admission.k8s.io/";
/// The kind, asking and answering.
pub(crate) const KIND: &str = "AdmissionReview";

/// A review as it was sent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: Request<'a>,
}

/// What is asked.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<'a> {
    /// Identifies the review.
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    /// Kind of the object, after a conversion to what the webhook registered for.
    #[serde(borrow)]
    pub kind: GroupKind<'a>,
    /// Set when only a part of the object is written.
    #[serde(borrow, default)]
    pub sub_resource: Option<Cow<'a, str>>,
    /// Name of the object; absent while it is to be generated.
    #[serde(borrow, default)]
    pub name: Option<Cow<'a, str>>,
    /// Namespace of the object.
    #[serde(borrow, default)]
    pub namespace: Option<Cow<'a, str>>,
    /// What happens to it.
    pub operation: Operation,
    /// Who wants it.
    #[serde(borrow, default)]
    pub user_info: UserInfo<'a>,
    /// Whether nothing of it will be kept.
    #[serde(default)]
    pub dry_run: Option<bool>,
    /// The object as it shall be.
    #[serde(borrow, default)]
    pub object: Option<&'a RawValue>,
    /// The object as it is.
    #[serde(borrow, default)]
    pub old_object: Option<&'a RawValue>,
}

/// Group and kind of an object.
#[derive(Debug, Deserialize)]
pub struct GroupKind<'a> {
    /// The API group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// The kind.
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
}

/// Who asks the API server.
#[derive(Debug, Default, Deserialize)]
pub struct UserInfo<'a> {
    /// The name.
    #[serde(borrow, default)]
    pub username: Cow<'a, str>,
}

/// What happens to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is made.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
    /// Somebody connects to it.
    Connect,
}

impl Operation {
    /// Its name as a label of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Connect => "connect",
        }
    }
}

/// A body that is no review.
#[derive(Debug)]
pub enum Undecodable {
    /// Nothing in it tells whom to answer: an HTTP error.
    NoUid(String),
    /// An answer is possible.
    Answer(Box<Answer>),
}

impl<'a> Request<'a> {
    /// Reads a body.
    pub fn decode(body: &'a [u8]) -> Result<Self, Undecodable> {
        let text = match std::str::from_utf8(body) {
            Ok(text) => text,
            Err(error) => {
                let reason = format!("the body is not UTF-8: {error}");
                return Err(undecodable(&String::from_utf8_lossy(body), reason));
            }
        };
        let reason = match serde_json::from_str::<Wire<'_>>(text) {
            Ok(wire) if wire.api_version != API_VERSION || wire.kind != KIND => format!(
                "got {} {}, but this webhook speaks {KIND} of {API_VERSION}",
                wire.kind, wire.api_version
            ),
            Ok(wire) if wire.request.uid.is_empty() => {
                return Err(Undecodable::NoUid("request.uid is empty".to_owned()));
            }
            Ok(wire) => return Ok(wire.request),
            Err(error) => format!("not an {KIND} of {API_VERSION}: {error}"),
        };
        Err(undecodable(text, reason))
    }
}

fn undecodable(text: &str, reason: String) -> Undecodable {
    match uid_and_version(text) {
        Some((uid, version)) => {
            let answer = Answer::error(uid, &Failure::Undecodable(reason)).in_version(version);
            Undecodable::Answer(Box::new(answer))
        }
        None => Undecodable::NoUid(reason),
    }
}

/// The uid and the version to answer in, of anything that is JSON and has a uid in the right place.
fn uid_and_version(text: &str) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Outer<'a> {
        #[serde(borrow, default, rename = "apiVersion")]
        api_version: Option<&'a RawValue>,
        #[serde(borrow)]
        request: Inner<'a>,
    }
    #[derive(Deserialize)]
    struct Inner<'a> {
        #[serde(borrow)]
        uid: Cow<'a, str>,
    }
    let outer: Outer<'_> = serde_json::from_str(text).ok()?;
    let version = outer
        .api_version
        .and_then(|raw| serde_json::from_str::<String>(raw.get()).ok())
        .filter(|version| version.starts_with(API_GROUP))
        .unwrap_or_else(|| API_VERSION.to_owned());
    let uid = outer.request.uid.into_owned();
    (!uid.is_empty()).then_some((uid, version))
}

/// The field of metadata that the API server sets when a deletion is asked for.
pub(crate) const DELETION_TIMESTAMP: &str = "deletionTimestamp";

/// What an answer needs of the object's metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    name: Option<String>,
    generate_name: Option<String>,
    deletion_timestamp: Option<String>,
}

impl Head {
    /// Metadata of a wrong type is a matter of the rules.
    pub(crate) fn of(object: &str) -> Self {
        #[derive(Deserialize)]
        struct Object {
            metadata: Head,
        }
        serde_json::from_str(object)
            .map_or_else(|_| Self::default(), |object: Object| object.metadata)
    }

    /// Whether somebody has asked for its deletion.
    pub(crate) fn is_being_deleted(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The name, or how it will begin.
    pub(crate) fn name(self) -> String {
        self.name.or(self.generate_name).unwrap_or_default()
    }
}
