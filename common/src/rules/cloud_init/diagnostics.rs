//! Messages about a document, each with its position and without text of the document.
//!
//! The content of a document may be a secret. A diagnostic names keys that cloud-init supports
//! and what is expected of them, never a value.

use std::fmt;

use super::position::Position;
use crate::code::{Code, Severity};
use crate::violation::{Findings, Kind, Violation};

/// Diagnostics of one document that are listed; further ones are counted.
pub(super) const REPORTED_MAX: usize = 16;

/// A message about a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Diagnostic {
    pub(super) position: Position,
    pub(super) code: Code,
    pub(super) text: String,
    /// Identifies the fault regardless of its position in the document. It is never shown: it may contain any key.
    identity: String,
}

impl Diagnostic {
    pub(super) fn new(position: Position, code: Code, text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            position,
            code,
            identity: text.clone(),
            text,
        }
    }

    /// The same diagnostic with a text that contains the index in a list.
    pub(super) fn with_identity(self, identity: String) -> Self {
        Self { identity, ..self }
    }

    /// What identifies the fault regardless of its position.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    fn is_error(&self) -> bool {
        self.code.severity() == Severity::Refuse
    }
}

/// Reports the diagnostics of the document of a field, in the order of its lines.
pub(super) fn report(field: &str, mut diagnostics: Vec<Diagnostic>, findings: &mut Findings) {
    diagnostics.sort_by_key(|diagnostic| diagnostic.position);
    let (errors, warnings): (Vec<_>, Vec<_>) =
        diagnostics.into_iter().partition(Diagnostic::is_error);
    let invalid = |code, detail: &str| Violation::new(field, code, Kind::Invalid, detail);
    for error in errors.iter().take(REPORTED_MAX) {
        let detail = format!("{}: {}", error.position, error.text);
        findings.deny(invalid(error.code, &detail).known_as(&error.identity));
    }
    if let Some(Diagnostic { code, .. }) = errors.get(REPORTED_MAX) {
        let more = errors.len() - REPORTED_MAX;
        let rest = invalid(*code, &format!("and {more} more like these"));
        // However many the stored document had: each fault that is listed has an identity of its own.
        findings.deny(rest.known_as("and more"));
    }
    for Diagnostic {
        position,
        code,
        text,
        ..
    } in warnings.iter().take(REPORTED_MAX)
    {
        findings.warn(*code, &format!("{field}: {position}: {text}"));
    }
    if let Some(Diagnostic { code, .. }) = warnings.get(REPORTED_MAX) {
        let more = warnings.len() - REPORTED_MAX;
        findings.warn(*code, &format!("{field}: and {more} more like these"));
    }
}

/// A fault of the text itself.
pub(super) fn invalid_yaml(position: Position, what: impl fmt::Display) -> Diagnostic {
    Diagnostic::new(position, Code::InvalidYaml, format!("is not YAML: {what}"))
}
