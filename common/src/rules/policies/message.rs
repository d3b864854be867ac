//! What a policy allows, as messages say it.

use std::collections::BTreeSet;

use crate::catalog::Policy;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::glob::Glob;
use crate::normalize::Leaf;
use crate::violation::{Kind, Violation};
use crate::words::nearest_first;

/// The names that some patterns allow: the known names that a pattern matches, else the pattern.
pub(super) fn names_of(patterns: &[Glob], known: &[String]) -> Vec<String> {
    let mut names = BTreeSet::new();
    for pattern in patterns {
        let before = names.len();
        if !pattern.is_name() {
            names.extend(known.iter().filter(|name| pattern.matches(name)).cloned());
        }
        if names.len() == before {
            names.insert(pattern.to_string());
        }
    }
    names.into_iter().collect()
}

/// `policy 'tenants' allows small, web-a, web-b`: the names that are nearest to the refused value first.
pub(super) fn allows(policy: &Policy, value: &str, names: Vec<String>) -> String {
    let (policy, names) = (&policy.name, nearest_first(value, names));
    format!("policy '{policy}' allows {names}")
}

/// A violation for a value that a policy does not allow. `absent` says what the value is of a field that is absent.
pub(super) fn not_allowed(
    code: Code,
    leaf: Leaf<&str>,
    absent: impl FnOnce() -> String,
    allowed: &str,
) -> Violation {
    if let Some(value) = leaf.value {
        Violation::new(leaf.path, code, Kind::Forbidden, allowed).text(value)
    } else {
        let detail = format!("{}; {allowed}", absent());
        Violation::new(leaf.path, code, Kind::Required, detail)
    }
}

/// A violation for something that a policy does not allow at all. `instead`: what the user can do.
pub(super) fn allows_no(
    code: Code,
    path: FieldPath,
    policy: &Policy,
    what: &str,
    instead: &str,
) -> Violation {
    let detail = format!("policy '{}' allows no {what}; {instead}", policy.name);
    Violation::new(path, code, Kind::Forbidden, detail)
}
