//! The envelope: an `AdmissionReview` that answers.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::code::Code;
use common::violation::{Findings, Violation};
use serde::Serialize;

use crate::review::{API_VERSION, KIND, Operation, Request};

/// Why a review cannot be judged; never the fault of the object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The body is no review.
    #[error("{0}")]
    Undecodable(String),
    /// There is nothing to judge.
    #[error("the review has no object")]
    NoObject,
    /// The core panicked.
    #[error("the webhook failed on this object; its log says where")]
    Internal,
    /// What the rules may ask was not read yet.
    #[error("the webhook has not read the cluster yet; try again")]
    Starting,
    /// An answer would come too late.
    #[error("no time was left for the review; try again")]
    Timeout,
}

impl Failure {
    fn code(&self) -> u16 {
        match self {
            Self::Undecodable(_) | Self::NoObject => 400,
            Self::Internal => 500,
            Self::Starting => 503,
            Self::Timeout => 504,
        }
    }

    /// Kubernetes' word for it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Undecodable(_) | Self::NoObject => "BadRequest",
            Self::Internal => "InternalError",
            Self::Starting => "ServiceUnavailable",
            Self::Timeout => "Timeout",
        }
    }
}

/// What is answered.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    api_version: String,
    kind: &'static str,
    /// JSON Patch, which [`Answer::text`] puts into the response.
    #[serde(skip)]
    patch: Option<String>,
    response: Response,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
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
            audit_annotations: BTreeMap::new(),
            warnings: Vec::new(),
        };
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND,
            patch: None,
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
    pub fn error(uid: String, failure: &Failure) -> Self {
        let mut answer = Self::new(uid, false);
        answer.response.status = Some(Status {
            status: "Failure",
            code: failure.code(),
            reason: failure.reason(),
            message: failure.to_string(),
            details: None,
        });
        answer
    }

    /// The same in another version of the envelope.
    pub(crate) fn in_version(mut self, version: String) -> Self {
        self.api_version = version;
        self
    }

    /// What the rules found, and the block to write when they found no fault.
    pub fn verdict(
        request: &Request<'_>,
        name: &str,
        findings: &Findings,
        block: Option<&str>,
    ) -> Self {
        let mut answer = Self::allow(request);
        let response = &mut answer.response;
        response.warnings = findings.warnings.iter().map(|w| w.text.clone()).collect();
        let codes = codes(findings);
        if !codes.is_empty() {
            response.audit_annotations.insert("codes", codes);
        }
        if findings.accepted() {
            answer.patch = block.map(patch);
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
        self.patch.is_some()
    }

    /// The answer as it is sent.
    pub fn text(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string(self)?;
        if let Some(patch) = &self.patch {
            // Past serde, at the end of the response: nothing in base64 needs an escape, so nobody has to
            // look for one in what is nearly all of the answer.
            text.truncate(text.len() - "}}".len());
            text.reserve(patch.len() * 4 / 3 + 64);
            text.push_str(r#","patchType":"JSONPatch","patch":""#);
            STANDARD.encode_string(patch, &mut text);
            text.push_str(r#""}}"#);
        }
        Ok(text)
    }
}

/// JSON Patch. `add` also replaces, and nothing but the block is ever written.
fn patch(block: &str) -> String {
    let begin = r#"[{"op":"add","path":"/spec/normalized","value":"#;
    [begin, block, "}]"].concat()
}

/// Every code once, for logs.
pub(crate) fn codes(findings: &Findings) -> String {
    let refused = findings.violations.iter().map(|violation| violation.code);
    let warned = findings.warnings.iter().filter_map(|warning| warning.code);
    let codes: BTreeSet<&str> = refused.chain(warned).map(Code::as_str).collect();
    codes.into_iter().collect::<Vec<_>>().join(",")
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
