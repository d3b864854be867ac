//! What is wrong with an object: a place, a stable code, Kubernetes' kind of fault, and the fix.
//!
//! ```text
//! spec.template: Not found: "smal": did you mean 'small'? known templates: large, medium, small [TemplateNotFound]
//! └ field        └ kind     └ value └ detail: what would be right                                └ code
//! ```

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use crate::bounds::{NAME_MAX, OBJECT_NAME_MAX};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::words::{cut, quoted, shortened};

/// Longest warning: what the API server leaves of one when there are many. Kubernetes recommends
/// 120; a warning with long names in it goes beyond rather than lose the fix at its end.
pub const WARNING_MAX: usize = 256;
/// Kubernetes' kinds of field faults (`metav1.CauseType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A value that cannot be right.
    Invalid,
    /// A value of the wrong JSON type.
    TypeInvalid,
    /// A reference to something that does not exist.
    NotFound,
    /// A value outside a closed set.
    NotSupported,
    /// A value that must be unique and is not.
    Duplicate,
    /// A value that must be there and is not.
    Required,
    /// A value that must not be there.
    Forbidden,
    /// A text that is too long.
    TooLong,
    /// A list with too many items.
    TooMany,
}

impl Kind {
    /// The `reason` of a `StatusCause`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Required => "FieldValueRequired",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotFound => "Not found",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Required => "Required value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}

/// Longest key of a label: prefix, slash and name. A longer key of a map stands in no path.
const KEY_SHOWN_MAX: usize = OBJECT_NAME_MAX + 1 + NAME_MAX;

/// The field a fault is told at, and where in a template the value stands that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    field: String,
    in_template: Option<String>,
}

impl Location {
    /// A field below this one.
    #[must_use]
    pub fn member(self, name: &str) -> Self {
        self.below(&format!(".{name}"))
    }

    /// The value of a key of the map that stands here; the map itself if the key cannot stand in a
    /// path.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        if key.len() > KEY_SHOWN_MAX || key.contains(|c: char| c.is_control() || c == ']') {
            self
        } else {
            self.below(&format!("[{key}]"))
        }
    }

    fn below(mut self, rest: &str) -> Self {
        self.in_template
            .as_mut()
            .unwrap_or(&mut self.field)
            .push_str(rest);
        self
    }
}

impl From<&str> for Location {
    fn from(field: &str) -> Self {
        Self {
            field: field.to_owned(),
            in_template: None,
        }
    }
}

impl From<FieldPath> for Location {
    fn from(path: FieldPath) -> Self {
        Self {
            field: path.to_string(),
            in_template: path.in_template(),
        }
    }
}

/// One fault of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// JSON path of the fault; resolves in the object or in the schema.
    pub field: String,
    /// The rule that found it.
    pub code: Code,
    /// Kubernetes' kind.
    pub kind: Kind,
    /// What is wrong and what would be right, without field and code.
    pub detail: String,
    /// The offending value as shown; absent for kinds that show none.
    pub value: Option<String>,
    /// Other fields that it rests on: it is a consequence, and not told, if one of them is at fault.
    given: Vec<String>,
    /// What it is known by in the place of its message.
    identity: Option<String>,
}

impl Violation {
    /// A fault without a value to show.
    pub fn new(
        location: impl Into<Location>,
        code: Code,
        kind: Kind,
        detail: impl Into<String>,
    ) -> Self {
        let Location { field, in_template } = location.into();
        let mut detail = detail.into();
        if let Some(segment) = in_template {
            detail = format!("{detail} ({segment} of the template)");
        }
        Self {
            field,
            code,
            kind,
            detail,
            value: None,
            given: vec![],
            identity: None,
        }
    }

    /// The same fault, told only if the field at `place` is not at fault itself. What a template
    /// says is no cause: it was judged when the template was stored.
    #[must_use]
    pub fn given(mut self, path: FieldPath) -> Self {
        if path.in_template().is_none() {
            self.given.push(path.to_string());
        }
        self
    }

    /// The same fault, showing the text that is wrong, shortened and quoted.
    #[must_use]
    pub fn text(mut self, value: &str) -> Self {
        self.value = Some(quoted(value));
        self
    }

    /// The same fault, showing a value that is no text.
    #[must_use]
    pub fn value(mut self, value: impl fmt::Display) -> Self {
        self.value = Some(shortened(&value.to_string()));
        self
    }

    /// The same fault, known by this in the place of its message, which tells where in a text it
    /// stands: that changes with every line before it.
    #[must_use]
    pub(crate) fn known_as(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// What it is known by at its field, wherever in a text it stands.
    pub(crate) fn identity(&self) -> String {
        self.identity.clone().unwrap_or_else(|| self.message())
    }

    /// The message of the cause: everything but the field.
    pub fn message(&self) -> String {
        format!("{} [{}]", self.statement(), self.code)
    }

    /// The message without the code.
    fn statement(&self) -> String {
        let (kind, detail) = (self.kind.text(), &self.detail);
        match &self.value {
            Some(value) => format!("{kind}: {value}: {detail}"),
            None => format!("{kind}: {detail}"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}

/// Something the user should know about an object that is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The rule that speaks, if one does.
    pub code: Option<Code>,
    /// The text, at most [`WARNING_MAX`] characters.
    pub text: String,
}

/// A reference that was looked up and not found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A `MachineTemplate` of this name.
    Template(String),
    /// A `StorageClass` of this name.
    StorageClass(String),
    /// A `NetworkConfiguration` of this name, in the namespace of the object under review.
    Network(String),
    /// A `LibvirtHost` that offers something.
    Hosts,
}

/// Everything the rules have to say about one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Why the object is refused.
    pub violations: Vec<Violation>,
    /// What its user should know if it is not.
    pub warnings: Vec<Warning>,
    /// What the catalog did not have. A cache may be behind: look again, then decide.
    pub misses: Vec<Reference>,
}

impl Findings {
    /// Adds a fault.
    pub fn deny(&mut self, violation: Violation) {
        self.violations.push(violation);
    }

    /// Adds a warning of a rule, cut to [`WARNING_MAX`] characters.
    pub fn warn(&mut self, code: Code, text: &str) {
        let suffix = format!(" [{code}]");
        let text = cut(&one_line(text), WARNING_MAX - suffix.len()) + &suffix;
        self.warnings.push(Warning {
            code: Some(code),
            text,
        });
    }

    /// Turns faults into warnings: those that `is_old` knows, which the object had before.
    pub(crate) fn tolerate(&mut self, is_old: impl FnMut(&Violation) -> bool) {
        let (old, new): (Vec<_>, _) = self.violations.drain(..).partition(is_old);
        self.violations = new;
        for fault in &old {
            let text = format!(
                "not new, so accepted: {}: {}",
                fault.field,
                fault.statement()
            );
            self.warn(fault.code, &text);
        }
    }

    /// Adds a note that no rule stands behind.
    pub fn note(&mut self, text: &str) {
        self.warnings.push(Warning {
            code: None,
            text: cut(&one_line(text), WARNING_MAX),
        });
    }

    /// Notes a reference that the catalog does not have.
    pub fn miss(&mut self, reference: Reference) {
        self.misses.push(reference);
    }

    /// Drops what only follows from another fault, and what is told already: two items of a
    /// template may have the same one.
    pub fn settle(&mut self) {
        let all = std::mem::take(&mut self.violations);
        let fields = |which: fn(&Violation) -> bool| -> BTreeSet<&str> {
            let chosen = all.iter().filter(|violation| which(violation));
            chosen.map(|violation| violation.field.as_str()).collect()
        };
        let unreadable = fields(|violation| violation.code.hides_fields_below());
        let causes =
            fields(|violation| violation.given.is_empty() && !violation.code.is_about_the_change());
        let at_or_above = |field: &str, faults: &BTreeSet<&str>| {
            let mut ends = field.match_indices(['.', '[']).map(|(end, _)| end);
            faults.contains(field) || ends.any(|end| faults.contains(&field[..end]))
        };
        let kept: Vec<bool> = all
            .iter()
            .map(|violation| {
                let hidden = !violation.code.hides_fields_below()
                    && at_or_above(&violation.field, &unreadable);
                let mut given = violation.given.iter();
                !hidden && !given.any(|field| at_or_above(field, &causes))
            })
            .collect();
        let mut told = BTreeSet::new();
        let kept = all.into_iter().zip(kept).filter(|(_, kept)| *kept);
        self.violations = kept
            .map(|(violation, _)| violation)
            .filter(|violation| told.insert((violation.field.clone(), violation.message())))
            .collect();
    }

    /// Whether nothing speaks against the object.
    pub fn accepted(&self) -> bool {
        self.violations.is_empty()
    }
}

/// The API server drops a warning that has control characters.
fn one_line(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_like_kubernetes_own() {
        let violation = Violation::new(
            "spec.template",
            Code::TemplateNotFound,
            Kind::NotFound,
            "known templates: small",
        )
        .text("smal");
        assert_eq!(
            violation.to_string(),
            "spec.template: Not found: \"smal\": known templates: small [TemplateNotFound]"
        );
    }

    #[test]
    fn a_long_warning_keeps_its_code() {
        let mut findings = Findings::default();
        findings.warn(Code::TemplateDeprecated, &"x".repeat(500));
        let text = &findings.warnings[0].text;
        assert_eq!(text.chars().count(), WARNING_MAX);
        assert!(text.ends_with("… [TemplateDeprecated]"));
    }
}
