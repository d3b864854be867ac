//! The stable codes of the rules. Messages, metric labels, audit annotations and the documentation use
//! the same code.
//!
//! A code is declared in the file of the rule that reports it, as a constant of [`Code`];
//! [`rules::codes`](crate::rules::codes) lists all of them.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Whether a finding refuses the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The object is refused.
    Refuse,
    /// The object is accepted with a warning.
    Warn,
    /// A setting of the webhook decides between refusal and warning.
    Setting,
}

/// How much of what the webhook refuses under a code is also refused by the CRDs, and so also when the
/// webhook is bypassed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrdCoverage {
    /// All of it.
    All,
    /// The part that does not depend on a template or a setting, in the usual spelling.
    Some,
    /// Nothing: the rule depends on other objects, on labels or annotations, on what a spec resolves to or on the
    /// content of a text.
    Nothing,
}

/// What a fault says about an object beside that it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The value at its field is wrong.
    Value,
    /// The value cannot be read, and neither can the fields below.
    FieldsBelow,
    /// The value is valid, but another object has it. Faults that were found in other fields remain if the value is
    /// replaced.
    Taken,
    /// The value is valid, and only the change to it is refused.
    Change,
}

/// The documentation of a code.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) family: &'static str,
    pub(crate) severity: Severity,
    pub(crate) crd: CrdCoverage,
    pub(crate) scope: Scope,
    pub(crate) what: &'static str,
    pub(crate) why: &'static str,
    pub(crate) fix: &'static str,
}

/// Code of a rule. Two codes are the same if their names are.
#[derive(Clone, Copy)]
pub struct Code(&'static Entry);

impl Code {
    pub(crate) const fn new(entry: &'static Entry) -> Self {
        Self(entry)
    }

    /// The code as messages show it.
    pub fn as_str(self) -> &'static str {
        self.0.name
    }

    /// Family of the rule: the name of its table of cases and of its chapter in the documentation.
    pub fn family(self) -> &'static str {
        self.0.family
    }

    /// Whether a finding refuses the object.
    pub fn severity(self) -> Severity {
        self.0.severity
    }

    /// How much of what the code refuses is also refused by the CRDs.
    pub fn crd_coverage(self) -> CrdCoverage {
        self.0.crd
    }

    /// What the rule finds, as a sentence.
    pub fn what(self) -> &'static str {
        self.0.what
    }

    /// What would happen without the rule, as a sentence.
    pub fn why(self) -> &'static str {
        self.0.why
    }

    /// What the author of the object does about it, in Markdown.
    pub fn fix(self) -> &'static str {
        self.0.fix
    }

    pub(crate) fn scope(self) -> Scope {
        self.0.scope
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for Code {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Code {}

impl PartialOrd for Code {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Code {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Code {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}
