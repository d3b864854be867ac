//! What is said of a document: at a place of it, in words of ours alone.
//!
//! The content of a document may be a secret. A remark names keys of cloud-init's vocabulary and
//! what is expected of them, never a value.

use super::document::Mark;
use crate::code::{Code, Severity};
use crate::violation::{Findings, Kind, Violation};

/// Most remarks about one document that are told; the rest is counted.
pub(super) const TOLD_MAX: usize = 16;

/// One thing to say of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) mark: Mark,
    pub(super) code: Code,
    pub(super) text: String,
    /// What it is known by, wherever in the document it stands. It is not told: it may hold any key.
    identity: String,
}

impl Remark {
    pub(super) fn new(mark: Mark, code: Code, text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            mark,
            code,
            identity: text.clone(),
            text,
        }
    }

    /// The same remark, of which the text tells where in a list it stands.
    pub(super) fn known_as(self, identity: String) -> Self {
        Self { identity, ..self }
    }

    fn is_fault(&self) -> bool {
        self.code.severity() == Severity::Refuse
    }
}

/// Tells the remarks about the document of a field, in the order of its lines.
pub(super) fn tell(field: &str, mut remarks: Vec<Remark>, findings: &mut Findings) {
    remarks.sort_by_key(|remark| remark.mark);
    let (faults, doubts): (Vec<_>, Vec<_>) = remarks.into_iter().partition(Remark::is_fault);
    let invalid = |code, detail: &str| Violation::new(field, code, Kind::Invalid, detail);
    for fault in faults.iter().take(TOLD_MAX) {
        let detail = format!("{}: {}", fault.mark, fault.text);
        findings.deny(invalid(fault.code, &detail).known_as(&fault.identity));
    }
    if let Some(Remark { code, .. }) = faults.get(TOLD_MAX) {
        let more = faults.len() - TOLD_MAX;
        let rest = invalid(*code, &format!("and {more} more like these"));
        // However many they were before: what is told one by one is known one by one.
        findings.deny(rest.known_as("and more"));
    }
    for Remark {
        mark, code, text, ..
    } in doubts.iter().take(TOLD_MAX)
    {
        findings.warn(*code, &format!("{field}: {mark}: {text}"));
    }
    if let Some(Remark { code, .. }) = doubts.get(TOLD_MAX) {
        let more = doubts.len() - TOLD_MAX;
        findings.warn(*code, &format!("{field}: and {more} more like these"));
    }
}
