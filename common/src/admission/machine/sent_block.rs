//! Compares the block that was sent with the one that the intent resolves to.

use super::kept::KeptPins;
use super::object::{Object, Old};
use crate::admission::block::{self, Differences, summary};
use crate::api::normalized::Normalized;
use crate::normalize::pins_of;
use crate::rules;
use crate::violation::Findings;
use crate::words::listed;

/// Tells the author of an accepted object that its block is replaced by `written`, and why.
pub(super) fn add_notes(
    object: &Object<'_>,
    old: Option<&Old<'_>>,
    block: &Normalized,
    written: &str,
    findings: &mut Findings,
) {
    let Some(sent) = &object.block else {
        if old.is_none() {
            findings.note(&format!("normalized to {}", summary(block)));
        }
        return;
    };
    let stored = old.and_then(|old| old.object.block.as_ref());
    if stored.is_some_and(|stored| sent.is_same_json(&stored.0)) {
        return;
    }
    if old.is_some() {
        findings.note(
            "the spec.normalized that was sent is ignored: it follows from the rest of the spec",
        );
    } else if object.matching_block().is_none() {
        findings.note(
            "the spec.normalized that was sent was computed for another spec; it was computed again",
        );
    } else {
        let mut paths = Differences::between(&sent.0, written).paths;
        // A backup of an earlier release has a block of an earlier version.
        paths.retain(|path| path != block::VERSION);
        if !paths.is_empty() {
            let paths = listed(paths);
            findings.note(&format!(
                "values of the spec.normalized that was sent differ, because they were looked up again: {paths}"
            ));
        }
    }
}

/// Refuses any block except the one that the intent resolves to.
pub(super) fn verify_block(
    object: &Object<'_>,
    expected: &Normalized,
    kept: KeptPins,
    findings: &mut Findings,
) {
    let Some(sent) = &object.block else {
        findings.deny(rules::block_missing());
        return;
    };
    let is_sent =
        |block: &Normalized| block::text(block).is_some_and(|text| sent.is_same_json(&text));
    // If a replica of another release wrote the block, this release cannot recompute it: the digest and
    // the rules have to suffice.
    if is_sent(expected) || object.has_block_of_another_release() {
        return;
    }
    // The catalog may have changed since the mutating stage, so the values that were looked up are taken
    // from the sent block.
    let recomputed = object.matching_block().and_then(|own| {
        let pins = kept.over(pins_of(&own));
        rules::normalize(&object.intent(), &pins, &mut Findings::default())
    });
    let expected = recomputed.as_ref().unwrap_or(expected);
    if !is_sent(expected) {
        let expected = block::text(expected).unwrap_or_default();
        Differences::between(&sent.0, &expected).deny(rules::block_mismatch, findings);
    }
}
