//! The review of a Machine, top to bottom.

use std::collections::BTreeMap;

use super::block::{self, Block, Peek, first_difference, source_of, summary};
use super::decode::{self, Metadata, Wire};
use super::{Request, Stage, Verdict, ratchet};
use crate::api::choice::{Backend, Choice as _};
use crate::api::machine::MachineSpec;
use crate::api::normalized::{BLOCK_VERSION, Normalized, TemplatePin};
use crate::catalog::{Catalog, MachineName};
use crate::normalize::{Intent, Pins, TemplateChoice, hash, merge, pins_of};
use crate::rules::rule::{KnownTemplate, Lookup, TemplateRequest, Update};
use crate::rules::{self, Settings, limits};
use crate::violation::{Findings, Warning};

/// A Machine as sent or as stored.
struct Object<'a> {
    metadata: Metadata,
    spec: MachineSpec,
    hash: String,
    /// The block as it stands there, whatever it is.
    block: Option<Block<'a>>,
    /// The libvirt host it is bound to.
    host: Option<String>,
}

impl<'a> Object<'a> {
    fn decode(text: &'a str, findings: &mut Findings) -> Self {
        let Wire {
            metadata,
            spec,
            host,
        } = decode::object(text, findings);
        Self {
            hash: hash(&spec.intent, metadata.template_label()),
            spec: decode::spec(spec.intent, limits::truncate_machine, findings),
            metadata,
            // Whatever was sent in its place is no fault of the intent.
            block: spec.block.map(Block),
            host,
        }
    }

    fn intent(&self) -> Intent<'_> {
        Intent {
            spec: &self.spec,
            template_label: self.metadata.template_label(),
            hash: &self.hash,
        }
    }

    /// The block, if it belongs to the intent it stands beside and this release can read it.
    fn own_block(&self) -> Option<Normalized> {
        let block = self.block.as_ref()?.read()?;
        (block.intent_hash == self.hash).then_some(block)
    }

    /// Whether there is a block that belongs to the intent by the word of another release.
    fn has_block_of_another_release(&self) -> bool {
        self.block.as_ref().is_some_and(|block| {
            let Peek {
                version,
                intent_hash,
                ..
            } = block.peek();
            intent_hash.as_deref() == Some(&self.hash) && version != Some(BLOCK_VERSION)
        })
    }
}

/// The stored object and the block that belongs to it.
struct Old<'a> {
    object: Object<'a>,
    block: Option<Normalized>,
    /// What of it cannot be read.
    faults: Findings,
}

impl<'a> Old<'a> {
    fn decode(text: &'a str) -> Self {
        let mut faults = Findings::default();
        let object = Object::decode(text, &mut faults);
        Self {
            block: object.own_block(),
            object,
            faults,
        }
    }

    /// The backend that the block names, whether it belongs to the intent or not.
    fn backend(&self) -> Option<Backend> {
        let own = self.block.as_ref().map(|block| block.backend);
        own.or_else(|| Backend::parse(self.object.block.as_ref()?.peek().backend.as_deref()?))
    }

    /// Everything that is wrong with it today.
    fn findings(&self, surroundings: &Surroundings<'_>) -> Findings {
        let mut findings = self.faults.clone();
        expand(&self.object, Some(self), None, surroundings, &mut findings);
        findings
    }
}

/// What an object is judged by.
struct Surroundings<'a> {
    namespace: &'a str,
    catalog: &'a dyn Catalog,
    settings: &'a Settings,
}

pub(super) fn review(request: &Request<'_>, catalog: &dyn Catalog, settings: &Settings) -> Verdict {
    let mut findings = Findings::default();
    let object = Object::decode(request.object, &mut findings);
    let old = request.old.map(Old::decode);
    let stage = request.stage;

    if let Some(stored) = old.as_ref().and_then(|old| unchanged(&object, old)) {
        let block = carry_over(&object, Some(stored), stage, &mut findings);
        return Verdict { findings, block };
    }

    request.judge_name(&object.metadata, &mut findings);
    let surroundings = Surroundings {
        namespace: request.namespace,
        catalog,
        settings,
    };
    if stage == Stage::Validate
        && old.is_none()
        && let Some(findings) = as_looked_up(&object, &surroundings, &findings)
    {
        return Verdict {
            findings,
            block: None,
        };
    }
    let restored = if old.is_none() {
        object.own_block()
    } else {
        None
    };
    let Expansion { block, kept, notes } = expand(
        &object,
        old.as_ref(),
        restored.as_ref(),
        &surroundings,
        &mut findings,
    );
    findings.dedupe();

    let mut fit = findings.accepted();
    if let Some(old) = old.as_ref().filter(|_| !fit) {
        let known = old.findings(&surroundings);
        ratchet::ratchet(&mut findings, &object.spec, &known, &old.object.spec);
        // What was normalized once is so again. What never was has yet to be mended.
        fit = old.block.is_some();
    }
    if !findings.accepted() {
        return Verdict {
            findings,
            block: None,
        };
    }
    let block = match (block.filter(|_| fit), &old, stage) {
        (Some(block), _, Stage::Mutate) => {
            findings.warnings.extend(notes);
            let written = block::text(&block).unwrap_or_default();
            let is_there = object.block.as_ref().is_some_and(|sent| sent.is(&written));
            (!is_there).then(|| {
                told(&object, old.as_ref(), &block, &written, &mut findings);
                written
            })
        }
        (Some(block), _, Stage::Validate) => {
            verify(&object, &block, kept, &mut findings);
            None
        }
        (None, Some(old), _) => {
            findings.note("until that is mended, the Machine stays as it is");
            carry_over(&object, old.object.block.as_ref(), stage, &mut findings)
        }
        (None, None, _) => None,
    };
    Verdict { findings, block }
}

/// The findings of a new object whose block is what a lookup gives, as it nearly always is a moment
/// after the mutating stage: then nothing has to be known of the block but its text.
fn as_looked_up(
    object: &Object<'_>,
    surroundings: &Surroundings<'_>,
    findings: &Findings,
) -> Option<Findings> {
    let sent = object.block.as_ref().filter(|_| findings.accepted())?;
    let mut findings = findings.clone();
    let block = expand(object, None, None, surroundings, &mut findings).block?;
    let written = block::text(&block)?;
    (findings.accepted() && sent.0 == written).then_some(findings)
}

/// The stored block, if it stays whatever the catalog says today: the intent did not change.
fn unchanged<'o>(object: &Object<'_>, old: &'o Old<'_>) -> Option<&'o Block<'o>> {
    let stored = old.object.block.as_ref()?;
    let belongs = || old.block.is_some() || old.object.has_block_of_another_release();
    let same = object.hash == old.object.hash;
    (same && belongs() && !expands_again(object, stored)).then_some(stored)
}

/// Holds to what is stored in the block's place. Returns what must be written.
fn carry_over(
    object: &Object<'_>,
    stored: Option<&Block<'_>>,
    stage: Stage,
    findings: &mut Findings,
) -> Option<String> {
    match (&object.block, stored) {
        (None, None) => {}
        (None, Some(stored)) if stage == Stage::Mutate => return Some(stored.0.to_string()),
        (None, _) => findings.deny(rules::block_missing()),
        (Some(sent), Some(stored)) if sent.is(&stored.0) => {}
        (Some(sent), _) => {
            let edited = first_difference(&sent.0, stored.map_or("null", |stored| &stored.0));
            findings.deny(rules::block_edited(&edited, &source_of(&edited)));
        }
    }
    None
}

/// Whether a new refresh text asks for the template's current content.
fn expands_again(object: &Object<'_>, stored: &Block<'_>) -> bool {
    let Some(refresh) = object.metadata.refresh() else {
        return false;
    };
    let template = stored.peek().template;
    template.is_some_and(|pin| pin.refresh.as_deref() != Some(refresh))
}

/// What an intent resolves to.
struct Expansion {
    /// Not fit to be written if there are faults.
    block: Option<Normalized>,
    kept: KeptPins,
    /// What its user should know of what the update changes.
    notes: Vec<Warning>,
}

/// Pins that come from the old object: nothing that is sent in their place counts.
struct KeptPins {
    template: Option<TemplatePin>,
    backend: Option<Backend>,
    storage_classes: BTreeMap<String, String>,
}

impl KeptPins {
    /// These pins, and those of `looked_up` for the rest.
    fn over(self, mut looked_up: Pins) -> Pins {
        if let Some(pin) = self.template {
            looked_up.template = TemplateChoice::Pinned(Box::new(pin));
        }
        looked_up.backend = self.backend.unwrap_or(looked_up.backend);
        looked_up.storage_classes.extend(self.storage_classes);
        looked_up
    }
}

/// References → pins → block, with everything the rules have to say. `restored` is the block that
/// came with a new object, and belongs to its intent.
fn expand(
    object: &Object<'_>,
    old: Option<&Old<'_>>,
    restored: Option<&Normalized>,
    surroundings: &Surroundings<'_>,
    findings: &mut Findings,
) -> Expansion {
    let Surroundings {
        namespace,
        catalog,
        settings,
    } = *surroundings;
    let intent = object.intent();
    let old_block = old.and_then(|old| old.block.as_ref());
    let old_pin = old_block.and_then(|block| block.template.as_ref());
    let restored_pin = restored.and_then(|block| block.template.as_ref());
    let known = old_pin
        .map(KnownTemplate::Stored)
        .or(restored_pin.map(KnownTemplate::Restored))
        .unwrap_or(KnownTemplate::Nothing);
    let request = TemplateRequest {
        intent: &intent,
        refresh: object.metadata.refresh(),
        known,
        catalog,
    };
    let template = rules::choose_template(&request, findings);
    let merged = merge(&intent, &template);

    // A machine stays on its backend, even if its block does not belong to its spec any more.
    let stored_backend = old.and_then(Old::backend);
    let pinned = stored_backend.unwrap_or(settings.default_backend);
    let written = object.spec.backend.as_deref().and_then(Backend::parse);
    let backend = written.unwrap_or(pinned);

    let kept_classes = old.zip(old_block).map(|(old, block)| {
        let template = pins_of(block).template;
        let old = merge(&old.object.intent(), &template);
        rules::kept_classes(&merged, backend, &old, block)
    });
    let kept = KeptPins {
        template: old_pin
            .filter(|pin| matches!(&template, TemplateChoice::Pinned(chosen) if **chosen == **pin))
            .cloned(),
        backend: stored_backend,
        storage_classes: kept_classes.unwrap_or_default(),
    };
    let lookup = Lookup {
        merged: &merged,
        machine: MachineName {
            namespace,
            name: object.metadata.name(),
        },
        backend,
        stored_backend,
        stored: old_block,
        is_new: old.is_none(),
        bound_host: old.and_then(|old| old.object.host.as_deref()),
        catalog,
        settings,
    };
    let storage_classes = rules::look_up(&lookup, &kept.storage_classes, findings);

    let pins = Pins {
        template: template.clone(),
        backend: pinned,
        storage_classes,
    };
    let block = rules::resolve(&intent, &merged, &pins, settings.max_vcpus, findings);
    let mut notes = Findings::default();
    if let Some((old, old_block)) = old.zip(old_block) {
        let update = Update {
            old: old_block,
            old_spec: &old.object.spec,
            merged: &merged,
            pins: &pins,
            backend,
            runs: rules::keeps_running(old_block, &merged),
        };
        rules::check_update(&update, catalog, findings);
        if let Some(block) = &block {
            rules::warn_of_effects(&update, block, &mut notes);
        }
    }
    Expansion {
        block,
        kept,
        notes: notes.warnings,
    }
}

/// Notes for the user of an accepted object, whose block has to be `written`.
fn told(
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
    if stored.is_some_and(|stored| sent.is(&stored.0)) {
        return;
    }
    if old.is_some() {
        findings.note(
            "the spec.normalized that was sent is ignored: it follows from the rest of the spec",
        );
    } else if object.own_block().is_none() {
        findings.note(
            "the spec.normalized that was sent belongs to another spec; it was computed anew",
        );
    } else {
        let path = first_difference(&sent.0, written);
        findings.note(&format!(
            "{path} differs from the block that was sent: it was looked up anew"
        ));
    }
}

/// Accepts nothing but the block that the intent resolves to.
fn verify(object: &Object<'_>, expected: &Normalized, kept: KeptPins, findings: &mut Findings) {
    let Some(sent) = &object.block else {
        findings.deny(rules::block_missing());
        return;
    };
    let is_sent = |block: &Normalized| block::text(block).is_some_and(|text| sent.is(&text));
    // A replica of another release may have written it: then its digest and the rules must do.
    if is_sent(expected) || object.has_block_of_another_release() {
        return;
    }
    // The catalog may have changed between the two stages: what was looked up is the block's own
    // word.
    let recomputed = object.own_block().and_then(|own| {
        let pins = kept.over(pins_of(&own));
        rules::normalize(&object.intent(), &pins, &mut Findings::default())
    });
    let expected = recomputed.as_ref().unwrap_or(expected);
    if !is_sent(expected) {
        let path = first_difference(&sent.0, &block::text(expected).unwrap_or_default());
        findings.deny(rules::block_mismatch(&path, &source_of(&path)));
    }
}
