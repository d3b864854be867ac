//! Documents of cloud-init: a verdict for each, and no value of them in it.

use common::admission::{ObjectKind, Stage};
use serde_json::json;

use crate::reviews::Question;

/// Stands in seeds where passwords and keys would. It is no word of cloud-init, nor like one.
const CANARY: &str = "Xq7Zk9";

/// A document, judged as user data and as network data.
pub fn documents(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for field in ["userData", "networkData"] {
        let machine = json!({
            "metadata": {"name": "web"},
            "spec": {"template": "small", "cloudInit": {field: text}},
        });
        let question = Question::creation(ObjectKind::Machine);
        let verdict = question.ask(Stage::Mutate, &machine);
        let said = format!("{:?}", verdict.findings);
        assert!(!said.contains(CANARY), "{said}\nof {field}\n{text}");
        let validated = question.ask(Stage::Validate, &machine);
        if !verdict.findings.accepted() {
            assert_eq!(verdict.findings.violations, validated.findings.violations);
        }
    }
}
