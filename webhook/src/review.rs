//! The envelope: `AdmissionReview` in, `AdmissionReview` out.
//!
//! The uid is known before anything else may fail, and every answer from then on carries it; an
//! answer without it counts as a failure of the webhook. The object inside stays raw text here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::code::Code;
use common::violation::{Findings, Violation};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The only version spoken; API servers since 1.16 speak it.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// Group of older versions, which are answered in kind.
const API_GROUP: &str = "admission.k8s.io/";
const KIND: &str = "AdmissionReview";

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
            let mut answer = Answer::error(uid, Failure::BadRequest, reason);
            answer.api_version = version;
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

/// Why a review cannot be judged; never the fault of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The review itself is wrong.
    BadRequest,
    /// The webhook is.
    Internal,
    /// The webhook has only just started.
    Starting,
    /// There is no time left.
    Timeout,
}

impl Failure {
    fn status(self) -> (u16, &'static str) {
        match self {
            Self::BadRequest => (400, "BadRequest"),
            Self::Internal => (500, "InternalError"),
            Self::Starting => (503, "ServiceUnavailable"),
            Self::Timeout => (504, "Timeout"),
        }
    }
}

/// What is answered.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    api_version: String,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// `metav1.Status`, as far as a refusal needs it.
#[expect(clippy::struct_field_names, reason = "Kubernetes named the field")]
#[derive(Debug, Clone, Serialize)]
struct Status {
    status: &'static str,
    code: u16,
    reason: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

#[derive(Debug, Clone, Serialize)]
struct Details {
    group: String,
    kind: String,
    name: String,
    causes: Vec<Cause>,
}

#[derive(Debug, Clone, Serialize)]
struct Cause {
    reason: &'static str,
    field: String,
    message: String,
}

impl Answer {
    fn new(uid: String, allowed: bool) -> Self {
        let response = Response {
            uid,
            allowed,
            status: None,
            patch_type: None,
            patch: None,
            audit_annotations: BTreeMap::new(),
            warnings: Vec::new(),
        };
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND,
            response,
        }
    }

    /// Yes, whatever it is.
    pub fn allow(request: &Request<'_>) -> Self {
        Self::new(request.uid.clone().into_owned(), true)
    }

    /// Yes, with a word to the user.
    pub fn allow_with_warning(request: &Request<'_>, warning: String) -> Self {
        let mut answer = Self::allow(request);
        answer.response.warnings.push(warning);
        answer
    }

    /// No, because the review could not be judged.
    pub fn error(uid: String, failure: Failure, message: String) -> Self {
        let (code, reason) = failure.status();
        let mut answer = Self::new(uid, false);
        answer.response.status = Some(Status {
            status: "Failure",
            code,
            reason,
            message,
            details: None,
        });
        answer
    }

    /// What the rules found, and the block to write when they found no fault.
    pub fn verdict(
        request: &Request<'_>,
        name: &str,
        findings: &Findings,
        block: Option<&Value>,
    ) -> Self {
        let mut answer = Self::allow(request);
        let response = &mut answer.response;
        response.warnings = findings.warnings.iter().map(|w| w.text.clone()).collect();
        if let Some(codes) = codes(findings) {
            response.audit_annotations.insert("codes", codes);
        }
        if findings.accepted() {
            response.patch_type = block.map(|_| "JSONPatch");
            response.patch = block.map(patch);
        } else {
            response.allowed = false;
            response.status = Some(refusal(request, name, &findings.violations));
        }
        answer
    }

    /// Whether the answer is yes.
    pub fn allowed(&self) -> bool {
        self.response.allowed
    }

    /// Whether the answer changes the object.
    pub fn patches(&self) -> bool {
        self.response.patch.is_some()
    }
}

/// JSON Patch. `add` also replaces, and nothing but the block is ever written.
fn patch(block: &Value) -> String {
    STANDARD.encode(format!(
        r#"[{{"op":"add","path":"/spec/normalized","value":{block}}}]"#
    ))
}

/// Every code once, for the audit log.
fn codes(findings: &Findings) -> Option<String> {
    let refused = findings.violations.iter().map(|violation| violation.code);
    let warned = findings.warnings.iter().filter_map(|warning| warning.code);
    let codes: BTreeSet<&str> = refused.chain(warned).map(Code::as_str).collect();
    (!codes.is_empty()).then(|| codes.into_iter().collect::<Vec<_>>().join(","))
}

/// A creation is answered as the API server itself answers an invalid object. An update is not:
/// `kubectl apply --force` and its like answer 422 on an update by deleting the object and making it
/// anew, and a machine must never die of a typo.
fn refusal(request: &Request<'_>, name: &str, violations: &[Violation]) -> Status {
    let (code, reason) = match request.operation {
        Operation::Update => (403, "Forbidden"),
        _ => (422, "Invalid"),
    };
    let mut message = match violations.len() {
        1 => "1 fault:".to_owned(),
        faults => format!("{faults} faults:"),
    };
    for violation in violations {
        message.push_str("\n* ");
        message.push_str(&violation.to_string());
    }
    let cause = |violation: &Violation| Cause {
        reason: violation.kind.reason(),
        field: violation.field.clone(),
        message: violation.message(),
    };
    Status {
        status: "Failure",
        code,
        reason,
        message,
        details: Some(Details {
            group: request.kind.group.clone().into_owned(),
            kind: request.kind.kind.clone().into_owned(),
            name: name.to_owned(),
            causes: violations.iter().map(cause).collect(),
        }),
    }
}
