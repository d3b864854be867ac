//! cloud-init documents: each gets a verdict, which quotes no value of the document.

use common::admission::{ObjectKind, Stage};
use serde_json::json;

use crate::reviews::ReviewContext;

/// A value in the seeds in place of passwords and keys. It resembles no key of cloud-init.
const CANARY: &str = "Xq7Zk9";

/// Reviews a document as user data and as network data.
pub fn documents(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for field in ["userData", "networkData"] {
        let machine = json!({
            "metadata": {"name": "web"},
            "spec": {"template": "small", "cloudInit": {field: text}},
        });
        let context = ReviewContext::creation(ObjectKind::Machine);
        let verdict = context.review(Stage::Mutate, &machine);
        let violations = verdict.findings.violations.iter().map(ToString::to_string);
        let warnings = verdict.findings.warnings.iter().map(|it| it.text.clone());
        for message in violations.chain(warnings).filter(|_| !is_in_key(&text)) {
            assert!(!message.contains(CANARY), "{message}\nof {field}\n{text}");
        }
        let validated = context.review(Stage::Validate, &machine);
        if !verdict.findings.accepted() {
            assert_eq!(verdict.findings.violations, validated.findings.violations);
        }
    }
}

/// Whether the canary is part of a key. A key that resembles a known one is shown.
fn is_in_key(text: &str) -> bool {
    let is_key = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    let mut rests = text.split(CANARY).skip(1);
    rests.any(|rest| rest.trim_start_matches(is_key).starts_with(':'))
}
