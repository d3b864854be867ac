//! Reviews as API servers send them: every request is answered, and a written block is not changed again.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::admission::{self, ObjectKind, Settings, Stage, Verdict};
use common::names::GROUP;
use json_patch::Patch;
use serde_json::Value;
use serde_json::value::RawValue;
use webhook::catalog::Cache;
use webhook::review::{Operation, Request};

use crate::environment::{CACHE, post};

/// Status codes of a failure of the webhook, as opposed to a refusal of the object.
const FAILURES: [u64; 3] = [500, 503, 504];

/// A body with a request uid is answered with that uid.
pub fn body(data: &[u8]) {
    for path in ["/mutate", "/validate"] {
        let (status, answer) = post(path, data);
        let text = String::from_utf8_lossy(data);
        let sent = serde_json::from_str::<Value>(&text).ok();
        let uid = sent.as_ref().and_then(|sent| sent.pointer("/request/uid"));
        let uid = uid.and_then(Value::as_str).filter(|uid| !uid.is_empty());
        match status {
            StatusCode::OK => check_answer(&answer, uid, &text),
            StatusCode::BAD_REQUEST => {
                // A duplicate key makes a body unreadable; without the duplicate it can be read.
                if let (Some(_), Some(sent)) = (uid, &sent) {
                    let (status, _) = post(path, sent.to_string().as_bytes());
                    assert_eq!(status, StatusCode::OK, "{answer} to {text}");
                }
            }
            status => assert_eq!(status, StatusCode::OK, "{answer} to {text}"),
        }
    }
}

fn check_answer(answer: &Value, uid: Option<&str>, text: &str) {
    let response = &answer["response"];
    let returned = response["uid"].as_str().unwrap_or_default();
    assert!(!returned.is_empty(), "{answer} to {text}");
    assert!(uid.is_none_or(|uid| uid == returned), "{answer} to {text}");
    let code = response.pointer("/status/code").and_then(Value::as_u64);
    assert!(
        code.is_none_or(|code| !FAILURES.contains(&code)),
        "{answer} to {text}"
    );
    let allowed = response["allowed"] == true;
    assert_eq!(allowed, code.is_none(), "{answer} to {text}");
    if let Some(patch) = decoded_patch(answer) {
        assert!(allowed, "{answer} to {text}");
        assert_eq!(patch.as_array().map(Vec::len), Some(1), "{patch}");
        assert_eq!(patch[0]["op"], "add", "{patch}");
        assert_eq!(patch[0]["path"], "/spec/normalized", "{patch}");
    }
}

fn decoded_patch(answer: &Value) -> Option<Value> {
    let patch = answer.pointer("/response/patch")?.as_str()?;
    Some(serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap())
}

/// The mutating stage does not change an object that it wrote, and the validating stage accepts it. Both
/// stages refuse an object for the same reasons.
pub fn twice(data: &[u8]) {
    let Some(review) = Review::read(data) else {
        return;
    };
    // The mutating stage does not check a name that the API server will still generate.
    if !review.has_name() {
        return;
    }
    let context = review.context();
    let Some(stored) = context.admit(&review.object) else {
        return;
    };
    let again = context.review(Stage::Mutate, &stored);
    assert!(
        again.findings.accepted(),
        "{:?} of {stored}",
        again.findings
    );
    assert_eq!(again.block, None, "{stored}");

    // Tools send an object back with the block that they read, or without it.
    let update = ReviewContext {
        old: Some(&stored),
        ..context
    };
    let mut bare = stored.clone();
    // Only a Machine has a block, and an object stored by an old release may have no spec.
    if let Some(spec) = bare.get_mut("spec").and_then(Value::as_object_mut)
        && update.kind == ObjectKind::Machine
    {
        spec.remove("normalized");
    }
    for sent in [&stored, &bare] {
        let admitted = update.admit(sent);
        assert_eq!(admitted.as_ref(), Some(&stored), "{sent}");
    }
}

/// The patch of the answer, applied by another library, gives the object with the block that the core
/// computed.
pub fn patch(data: &[u8]) {
    let Some(review) = Review::read(data) else {
        return;
    };
    let (status, answer) = post("/mutate", data);
    assert_eq!(status, StatusCode::OK, "{answer}");
    let Some(patch) = decoded_patch(&answer) else {
        return;
    };
    let patch: Patch = serde_json::from_value(patch).unwrap();
    let mut patched = review.object.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    let verdict = review.context().review(Stage::Mutate, &review.object);
    let expected = with_block(&review.object, verdict.block.as_deref());
    assert_eq!(patched, expected);

    if review.has_name() {
        let Ok(mut envelope) = serde_json::from_slice::<Value>(data) else {
            return;
        };
        envelope["request"]["object"] = patched;
        let (_, validated) = post("/validate", envelope.to_string().as_bytes());
        assert_eq!(
            validated["response"]["allowed"], true,
            "{validated} to {envelope}"
        );
    }
}

/// An update that changes nothing is never refused, whatever is stored. Both stages give the same verdict
/// about any update.
pub fn update(data: &[u8]) {
    let Some(review) = Review::read(data) else {
        return;
    };
    let stored = review.old.as_ref().unwrap_or(&review.object);
    // The object as it is stored, and as the webhook would have stored it.
    let admitted = ReviewContext::creation(review.kind).admit(stored);
    for stored in [Some(stored), admitted.as_ref()].into_iter().flatten() {
        let context = ReviewContext {
            old: Some(stored),
            ..review.context()
        };
        let same = context.admit(stored);
        assert!(same.is_some(), "refused though nothing changed: {stored}");
        context.admit(&review.object);
    }
}

/// Everything that a review depends on, except the object and the stage.
#[derive(Clone, Copy)]
pub(crate) struct ReviewContext<'a> {
    pub(crate) kind: ObjectKind,
    pub(crate) namespace: &'a str,
    pub(crate) old: Option<&'a Value>,
    pub(crate) cache: &'a Cache,
}

impl ReviewContext<'_> {
    /// The review of a new object.
    pub(crate) fn creation(kind: ObjectKind) -> Self {
        Self {
            kind,
            namespace: "default",
            old: None,
            cache: &CACHE,
        }
    }

    pub(crate) fn review(&self, stage: Stage, object: &Value) -> Verdict {
        let old = self.old.map(Value::to_string);
        let request = admission::Request {
            kind: self.kind,
            stage,
            namespace: self.namespace,
            object: &object.to_string(),
            old: old.as_deref(),
        };
        admission::review(&request, self.cache, &Settings::default())
    }

    /// Reviews an object in both stages, which must agree. Returns it as it is stored; `None` if it is
    /// refused.
    fn admit(&self, object: &Value) -> Option<Value> {
        let mutating = self.review(Stage::Mutate, object);
        let refused = &mutating.findings.violations;
        if !refused.is_empty() {
            assert_eq!(mutating.block, None, "{object}");
            let validating = self.review(Stage::Validate, object);
            if has_name(object) {
                assert_eq!(*refused, validating.findings.violations, "{object}");
            }
            return None;
        }
        let stored = with_block(object, mutating.block.as_deref());
        let validating = self.review(Stage::Validate, &stored);
        assert_eq!(validating.block, None, "{stored}");
        if has_name(object) {
            let refused = validating.findings.violations;
            assert!(
                refused.is_empty(),
                "{refused:?} of {stored} on {:?}",
                self.old
            );
        }
        Some(stored)
    }
}

/// An object with a block, if there is one to write.
pub(crate) fn with_block(object: &Value, block: Option<&str>) -> Value {
    let mut object = object.clone();
    if let Some(block) = block {
        object["spec"]["normalized"] = serde_json::from_str(block).unwrap();
    }
    object
}

fn has_name(object: &Value) -> bool {
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    name.is_some_and(|name| !name.is_empty())
}

/// A body about an object of one of our kinds.
struct Review {
    kind: ObjectKind,
    namespace: String,
    object: Value,
    /// The stored object of an update.
    old: Option<Value>,
}

impl Review {
    fn read(data: &[u8]) -> Option<Self> {
        let request = Request::decode(data).ok()?;
        let kind = match (&*request.kind.group, &*request.kind.kind) {
            (GROUP, "Machine") => ObjectKind::Machine,
            (GROUP, "MachineTemplate") => ObjectKind::MachineTemplate,
            (GROUP, "NetworkConfiguration") => ObjectKind::NetworkConfiguration,
            (GROUP, "LibvirtHost") => ObjectKind::LibvirtHost,
            (GROUP, "MachinePolicy") => ObjectKind::MachinePolicy,
            (GROUP, "MachineImage") => ObjectKind::MachineImage,
            _ => return None,
        };
        let value = |raw: &RawValue| serde_json::from_str(raw.get()).ok();
        Some(Self {
            kind,
            namespace: request.namespace.unwrap_or_default().into_owned(),
            object: value(request.object?)?,
            old: match (request.operation, request.old_object) {
                (Operation::Update, Some(old)) => Some(value(old)?),
                (Operation::Update | Operation::Create, _) => None,
                (Operation::Delete | Operation::Connect, _) => return None,
            },
        })
    }

    fn context(&self) -> ReviewContext<'_> {
        ReviewContext {
            namespace: &self.namespace,
            old: self.old.as_ref(),
            ..ReviewContext::creation(self.kind)
        }
    }

    fn has_name(&self) -> bool {
        has_name(&self.object)
    }
}
