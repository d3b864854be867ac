//! What a Machine needs of its host, with the field that requests it.

use crate::catalog::Need;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::violation::{Kind, Violation};

/// A need, with the field that requests it.
pub(super) struct Requirement<'a> {
    pub(super) need: Need<'a>,
    pub(super) path: FieldPath,
    /// Value of the field; `None` if the need follows from an absent field.
    pub(super) value: Option<&'a str>,
}

impl Requirement<'_> {
    /// A violation at its field; an absent field is reported as required.
    pub(super) fn fault(&self, code: Code, kind: Kind, detail: String) -> Violation {
        if let Need::Source(url) = &self.need {
            // The field may have a user and a token.
            return Violation::new(self.path, code, kind, detail).text(&url.to_string());
        }
        match self.value {
            Some(value) => Violation::new(self.path, code, kind, detail).text(value),
            None => Violation::new(self.path, code, Kind::Required, detail),
        }
    }
}
