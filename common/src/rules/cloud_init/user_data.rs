//! User data: the validation of a cloud-config by the schemas.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::built_in;
use super::diagnostics::Diagnostic;
use super::document::Document;
use super::format::{self, Format};
use super::schema::{CloudInitSchema, Codes, Problem, Schema};
use crate::code::Code;

const CODES: Codes = Codes {
    invalid: Code::InvalidCloudConfig,
    unknown: Code::UnknownCloudInitKey,
    doubtful: Code::DoubtfulCloudInit,
    empty: Code::DoubtfulCloudInit,
};

static CLOUD_CONFIG: LazyLock<Schema> = LazyLock::new(|| built_in(include_str!("user-data.json")));

/// Rules [`Code::UnknownUserData`], [`Code::InvalidYaml`], [`Code::DuplicateYamlKey`],
/// [`Code::InvalidCloudConfig`], [`Code::UnknownCloudInitKey`], [`Code::DoubtfulCloudInit`].
pub(super) fn check(text: &str, given: Option<&CloudInitSchema>) -> Vec<Diagnostic> {
    match Format::of(text) {
        Format::Blank | Format::Unchecked => return vec![],
        Format::Unknown => return vec![format::unknown(text)],
        Format::CloudConfig => {}
    }
    let document = match Document::read(text) {
        Ok(document) => document,
        Err(diagnostic) => return vec![diagnostic],
    };
    // Nothing but comments.
    if document.value.is_null() {
        return document.diagnostics;
    }
    check_document(document, given)
}

/// Whether messages may quote a key.
pub(super) fn knows(key: &str, given: Option<&CloudInitSchema>) -> bool {
    CLOUD_CONFIG.has_key(key) || given.is_some_and(|CloudInitSchema(given)| given.has_key(key))
}

/// [`check`] of a cloud-config that was read.
pub(super) fn check_document(
    document: Document,
    given: Option<&CloudInitSchema>,
) -> Vec<Diagnostic> {
    let given = given.map(|CloudInitSchema(given)| given);
    // A key that only the administrator's schema defines is not reported as unknown.
    let is_configured_module = |pointer: &str| {
        let module = pointer.strip_prefix('/').unwrap_or_default();
        given.is_some_and(|given| given.has_key(module))
    };
    let mut violations = CLOUD_CONFIG.check(&document, |pointer, problem| {
        problem != Problem::UnknownKey || !is_configured_module(pointer)
    });
    if let Some(given) = given {
        let reported = violations.iter().map(|one| one.pointer.clone()).collect();
        let mut further = given.check(&document, |pointer, _| {
            !overlaps_reported(&reported, pointer)
        });
        for one in &mut further {
            // It may describe another release than the guest's: only types are certain.
            if one.problem == Problem::Content {
                one.problem = Problem::Tolerated;
            }
        }
        violations.append(&mut further);
    }
    let violations = violations.into_iter().map(|one| one.diagnostic(CODES));
    document.diagnostics.into_iter().chain(violations).collect()
}

/// Whether a fault of a value, of a value in it or of one around it is reported already.
fn overlaps_reported(reported: &BTreeSet<String>, pointer: &str) -> bool {
    let mut around = pointer.match_indices('/').map(|(end, _)| &pointer[..end]);
    let inside = format!("{pointer}/");
    let mut within = reported.range(inside.clone()..);
    reported.contains(pointer)
        || around.any(|outer| reported.contains(outer))
        || within
            .next()
            .is_some_and(|inner| inner.starts_with(&inside))
}
