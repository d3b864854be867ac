//! The request of an `AdmissionReview`.
//!
//! The uid is read before anything else may fail, and every response has it: the API server counts a
//! response without it as a failure of the webhook. The object stays raw text here.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The supported version; API servers have it since 1.16.
pub(super) const API_VERSION: &str = "admission.k8s.io/v1";
/// Group of all versions. A review of an unsupported version is answered with an error in that version.
const API_GROUP: &str = "admission.k8s.io/";
/// The kind of request and response.
pub(super) const KIND: &str = "AdmissionReview";

/// An `AdmissionReview` as it was sent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: Request<'a>,
}

/// The request of a review.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<'a> {
    /// Identifies the review; the response repeats it.
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    /// Group and kind of the object, after conversion to a version that the webhook registered for.
    #[serde(borrow)]
    pub kind: GroupKind<'a>,
    /// Set if a subresource is written, such as `status`.
    #[serde(borrow, default)]
    pub sub_resource: Option<Cow<'a, str>>,
    /// Name of the object; empty or absent if the API server is going to generate it.
    #[serde(borrow, default)]
    pub name: Option<Cow<'a, str>>,
    /// Namespace of the object; absent for a cluster-scoped one.
    #[serde(borrow, default)]
    pub namespace: Option<Cow<'a, str>>,
    /// The operation on the object.
    pub operation: Operation,
    /// The user of the API server.
    #[serde(borrow, default)]
    pub user_info: UserInfo<'a>,
    /// Whether the object will not be stored.
    #[serde(default)]
    pub dry_run: Option<bool>,
    /// The object after the operation; absent for a deletion.
    #[serde(borrow, default)]
    pub object: Option<&'a RawValue>,
    /// The object before the operation; absent for a creation.
    #[serde(borrow, default)]
    pub old_object: Option<&'a RawValue>,
}

/// Group and kind of an object.
#[derive(Debug, Deserialize)]
pub struct GroupKind<'a> {
    /// The API group; empty for the core group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// The kind, such as `Machine`.
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
}

/// The user of the API server.
#[derive(Debug, Default, Deserialize)]
pub struct UserInfo<'a> {
    /// The name by which the user was authenticated.
    #[serde(borrow, default)]
    pub username: Cow<'a, str>,
}

/// The operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// The object is created.
    Create,
    /// The object is changed.
    Update,
    /// The object is deleted.
    Delete,
    /// A connection to the object is opened, such as a proxy.
    Connect,
}

impl Operation {
    /// The operation as metrics and logs write it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Connect => "connect",
        }
    }
}

/// Why a body is not a review.
#[derive(Debug)]
pub enum DecodeError {
    /// There is no uid: the response has to be an HTTP error. The text describes the fault.
    NoUid(String),
    /// There is a uid: a review can be the response.
    Invalid {
        /// The uid that the response repeats.
        uid: String,
        /// The `apiVersion` of the response.
        api_version: String,
        /// What is wrong.
        reason: String,
    },
}

impl<'a> Request<'a> {
    /// Decodes a body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let text = match std::str::from_utf8(body) {
            Ok(text) => text,
            Err(error) => {
                let reason = format!("the body is not UTF-8: {error}");
                return Err(decode_error(&String::from_utf8_lossy(body), reason));
            }
        };
        let reason = match serde_json::from_str::<Review<'_>>(text) {
            Ok(review) if review.api_version != API_VERSION || review.kind != KIND => format!(
                "got {} {}, but this webhook accepts {KIND} of {API_VERSION}",
                review.kind, review.api_version
            ),
            Ok(review) if review.request.uid.is_empty() => {
                return Err(DecodeError::NoUid("request.uid is empty".to_owned()));
            }
            Ok(review) => return Ok(review.request),
            Err(error) => format!("not an {KIND} of {API_VERSION}: {error}"),
        };
        Err(decode_error(text, reason))
    }
}

fn decode_error(text: &str, reason: String) -> DecodeError {
    match uid_and_version(text) {
        Some((uid, api_version)) => DecodeError::Invalid {
            uid,
            api_version,
            reason,
        },
        None => DecodeError::NoUid(reason),
    }
}

/// The uid, and the `apiVersion` of the response, of any JSON that has a uid at the right path.
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

/// The metadata field that the API server sets when a deletion is requested.
pub(crate) const DELETION_TIMESTAMP: &str = "deletionTimestamp";

/// The part of the object's metadata that the handler and the response need.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectHead {
    name: Option<String>,
    generate_name: Option<String>,
    deletion_timestamp: Option<String>,
}

impl ObjectHead {
    /// Decodes the metadata. Metadata of a wrong type counts as empty: the rules report it.
    pub(crate) fn of(object: &str) -> Self {
        #[derive(Deserialize)]
        struct Object {
            metadata: ObjectHead,
        }
        serde_json::from_str(object)
            .map_or_else(|_| Self::default(), |object: Object| object.metadata)
    }

    /// Whether the deletion of the object was requested.
    pub(crate) fn is_being_deleted(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The name, or the prefix of the name that will be generated.
    pub(crate) fn name(self) -> String {
        self.name.or(self.generate_name).unwrap_or_default()
    }
}

/// The spec of an object, for comparison; `None` inside if it has none.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct Spec {
    spec: Option<Value>,
}

impl Spec {
    /// The spec of this object; `None` if the object cannot be read.
    pub(crate) fn of(object: &str) -> Option<Self> {
        serde_json::from_str(object).ok()
    }
}
