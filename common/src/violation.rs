//! Findings about an object: field path, stable code, Kubernetes' kind of fault, and what is allowed.
//!
//! ```text
//! spec.template: Not found: "smal": did you mean 'small'? known templates: small, large and medium [TemplateNotFound]
//! └ field        └ kind     └ value └ detail: what is allowed                                    └ code
//! ```

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use crate::bounds::LABEL_KEY_MAX;
use crate::code::{Code, Scope};
use crate::field_path::FieldPath;
use crate::words::{VALUE_SHOWN_MAX, cut, quoted, shortened};

/// Longest warning in characters. The API server cuts warnings to 256 when they are many. Kubernetes
/// recommends 120; a warning with long names may be longer, because its end has the fix of the fault.
pub const WARNING_MAX: usize = 256;

/// Kubernetes' kinds of field faults (`metav1.CauseType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A value that is not allowed.
    Invalid,
    /// A value of the wrong JSON type.
    TypeInvalid,
    /// A reference to something that does not exist.
    NotFound,
    /// A value outside a closed set.
    NotSupported,
    /// A value that must be unique and is not.
    Duplicate,
    /// A required value that is missing.
    Required,
    /// A value that must be absent.
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

/// The field at which a violation is reported, and the path within the template if the value comes from
/// one.
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

    /// The value of a key of the map at this path; the map itself if the key cannot be part of a path.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        if key.len() > LABEL_KEY_MAX || key.contains(|c: char| c.is_control() || c == ']') {
            self
        } else {
            self.below(&format!("[{key}]"))
        }
    }

    /// The path of the field.
    pub(crate) fn field(&self) -> &str {
        &self.field
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

/// One reason to refuse an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field; it exists in the object or in the schema.
    pub field: String,
    /// Code of the rule.
    pub code: Code,
    /// Kubernetes' kind of fault.
    pub kind: Kind,
    /// What is wrong and what is allowed, without field, value and code.
    pub detail: String,
    /// The rejected value as messages show it; absent for kinds that show none.
    pub value: Option<String>,
    /// Paths of other fields. The violation is a consequence, and dropped, if one of them has a violation
    /// of its own.
    unless_faulty: Vec<String>,
    /// Identity across two versions of an object, if the message would differ.
    identity: Option<String>,
}

impl Violation {
    /// A violation that shows no value.
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
            unless_faulty: vec![],
            identity: None,
        }
    }

    /// The same violation, reported only if the field at `path` has none of its own. A path in a template
    /// is ignored: its value was checked when the template was stored.
    #[must_use]
    pub fn unless_faulty(mut self, path: FieldPath) -> Self {
        if path.in_template().is_none() {
            self.unless_faulty.push(path.to_string());
        }
        self
    }

    /// The same violation with the rejected text, shortened and quoted. Its identity has the whole text.
    #[must_use]
    pub fn text(mut self, value: &str) -> Self {
        self.value = Some(quoted(value));
        if value.chars().nth(VALUE_SHOWN_MAX).is_some() {
            self.identity = Some(format!("{}: {value}", self.detail));
        }
        self
    }

    /// The same violation with a rejected value that is not a text.
    #[must_use]
    pub fn value(mut self, value: impl fmt::Display) -> Self {
        self.value = Some(shortened(&value.to_string()));
        self
    }

    /// The same violation with an identity of its own, because its message contains a line number,
    /// which changes with every line before it.
    #[must_use]
    pub(crate) fn known_as(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Identity of the violation at its field, without the line number.
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

/// A warning about an object that is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Code of the rule; `None` for a note.
    pub code: Option<Code>,
    /// The text, at most [`WARNING_MAX`] characters.
    pub text: String,
}

/// A reference that was looked up and not found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A `MachineTemplate` of this name.
    Template(String),
    /// A `MachineImage` of this name.
    Image(String),
    /// A `StorageClass` of this name.
    StorageClass(String),
    /// A `PriorityClass` of this name.
    PriorityClass(String),
    /// A `NetworkConfiguration` of this name, in the namespace of the object under review.
    Network(String),
    /// A `LibvirtHost` that offers something.
    Hosts,
    /// The namespace of the object under review.
    Namespace,
}

/// Violations of one object that are kept. Lists in lists multiply: an object of 3 MiB, the most that an API server reads,
/// could have 600,000, whose texts need more memory than the webhook may use. 64 disks that 11 policies forbid for two
/// reasons each have 1,408.
const VIOLATIONS_MAX: usize = 1500;

/// Everything that the rules report about one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Reasons to refuse the object.
    pub violations: Vec<Violation>,
    /// At least so many further violations, beyond [`VIOLATIONS_MAX`], which are only counted.
    omitted: usize,
    /// Warnings, if it is accepted.
    pub warnings: Vec<Warning>,
    /// References that were not found in the catalog. Its caches may be older than the object, so the
    /// caller reads these objects from the API server before it refuses.
    pub misses: Vec<Reference>,
}

impl Findings {
    /// Adds a violation. Those after the first [`VIOLATIONS_MAX`] are only counted.
    pub fn deny(&mut self, violation: Violation) {
        if !self.skips() {
            self.violations.push(violation);
        }
    }

    /// Whether what follows in a long list need not be read, because its violations would only be counted. Counts one.
    pub(crate) fn skips(&mut self) -> bool {
        let is_full = self.violations.len() >= VIOLATIONS_MAX;
        self.omitted += usize::from(is_full);
        is_full
    }

    /// The number of violations, those included that are only counted.
    pub(crate) fn count(&self) -> usize {
        self.violations.len() + self.omitted
    }

    /// Adds a violation that says how many are only counted. Of these nobody knows whether the stored object has the same:
    /// they count as new in every review.
    pub(crate) fn report_omitted(&mut self) {
        let omitted = std::mem::take(&mut self.omitted);
        if omitted > 0 {
            let detail = format!(
                "further faults, which are not listed: {omitted} or more; correct the listed ones first"
            );
            let fault = Violation::new("spec", Code::TooMany, Kind::TooMany, detail);
            self.violations.push(fault);
        }
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

    /// Turns the violations that the stored object has as well, by `is_old`, into warnings: without consequences and
    /// duplicates.
    pub(crate) fn ratchet(&mut self, is_old: impl FnMut(&Violation) -> bool) {
        let (old, new): (Vec<_>, _) = self.violations.drain(..).partition(is_old);
        self.violations = new;
        for fault in &deduped(old) {
            let text = format!(
                "not new, so accepted: {}: {}",
                fault.field,
                fault.statement()
            );
            self.warn(fault.code, &text);
        }
    }

    /// Adds a warning without a rule.
    pub fn note(&mut self, text: &str) {
        self.warnings.push(Warning {
            code: None,
            text: cut(&one_line(text), WARNING_MAX),
        });
    }

    /// Adds a reference that the catalog does not have.
    pub fn miss(&mut self, reference: Reference) {
        self.misses.push(reference);
    }

    /// Drops consequences of other violations, and duplicates: two items of a template may have the
    /// same violation.
    pub fn dedupe(&mut self) {
        self.violations = deduped(std::mem::take(&mut self.violations));
    }

    /// Whether the object is accepted.
    pub fn accepted(&self) -> bool {
        self.count() == 0
    }
}

/// The violations without consequences of others among them, and without duplicates.
fn deduped(all: Vec<Violation>) -> Vec<Violation> {
    let fields = |which: fn(&Violation) -> bool| -> BTreeSet<&str> {
        let chosen = all.iter().filter(|violation| which(violation));
        chosen.map(|violation| violation.field.as_str()).collect()
    };
    let unreadable = fields(|violation| violation.code.scope() == Scope::FieldsBelow);
    let causes = fields(|violation| {
        let scope = violation.code.scope();
        violation.unless_faulty.is_empty() && !matches!(scope, Scope::Taken | Scope::Change)
    });
    let at_or_above = |field: &str, faults: &BTreeSet<&str>| {
        let mut ends = field.match_indices(['.', '[']).map(|(end, _)| end);
        faults.contains(field) || ends.any(|end| faults.contains(&field[..end]))
    };
    let kept: Vec<bool> = all
        .iter()
        .map(|violation| {
            let hidden = violation.code.scope() != Scope::FieldsBelow
                && at_or_above(&violation.field, &unreadable);
            let mut others = violation.unless_faulty.iter();
            !hidden && !others.any(|field| at_or_above(field, &causes))
        })
        .collect();
    let mut seen = BTreeSet::new();
    let kept = all.into_iter().zip(kept).filter(|(_, kept)| *kept);
    kept.map(|(violation, _)| violation)
        .filter(|violation| seen.insert((violation.field.clone(), violation.message())))
        .collect()
}

/// A text without control characters: the API server drops a warning that contains them.
fn one_line(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests;
