//! The review of a Machine, top to bottom.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::block::{BLOCK, first_difference, source_of, summary, to_value};
use super::decode::{self, Metadata, Wire};
use super::{Request, Settings, Stage, Verdict, ratchet};
use crate::api::choice::{Backend, Choice as _};
use crate::api::machine::MachineSpec;
use crate::api::normalized::{BLOCK_VERSION, Normalized, TemplatePin};
use crate::catalog::{Catalog, MachineName};
use crate::code::Code;
use crate::normalize::{
    self, Intent, Pins, TemplateChoice, intent_hash, merge, normalize, pins_of,
};
use crate::rules::references::{self, Kept};
use crate::rules::uniqueness;
use crate::rules::update::{self, Update};
use crate::violation::{Findings, Kind, Violation, Warning};

/// A Machine as sent or as stored.
struct Object {
    metadata: Metadata,
    spec: MachineSpec,
    hash: String,
    /// The block as it stands there, whatever it is.
    block: Option<Value>,
}

impl Object {
    fn decode(text: &str, findings: &mut Findings) -> Self {
        let Wire { metadata, mut spec } = decode::object(text, findings);
        let hash = intent_hash(&spec, metadata.template_label());
        // The block is no part of the intent, and whatever was sent in its place is no fault of it.
        let block = spec
            .as_object_mut()
            .and_then(|fields| fields.remove("normalized"))
            .filter(|block| !block.is_null());
        Self {
            spec: decode::spec(spec, findings),
            metadata,
            hash,
            block,
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
        let block: Normalized = Deserialize::deserialize(self.block.as_ref()?).ok()?;
        (block.intent_hash == self.hash).then_some(block)
    }

    /// The block, if it belongs to the intent it stands beside by the word of another release.
    fn block_of_another_release(&self) -> Option<&Value> {
        self.block.as_ref().filter(|block| {
            block["intentHash"] == self.hash.as_str() && block["version"] != BLOCK_VERSION
        })
    }

    /// The backend that the block names, whether it belongs to the intent or not.
    fn block_backend(&self) -> Option<Backend> {
        Backend::parse(self.block.as_ref()?["backend"].as_str()?)
    }
}

/// The stored object and the block that belongs to it.
struct Old {
    object: Object,
    block: Option<Normalized>,
    /// What of it cannot be read.
    faults: Findings,
}

impl Old {
    fn decode(text: &str) -> Self {
        let mut faults = Findings::default();
        let object = Object::decode(text, &mut faults);
        Self {
            block: object.own_block(),
            object,
            faults,
        }
    }

    /// Everything that is wrong with it today.
    fn findings(&self, surroundings: &Surroundings<'_>) -> Findings {
        let mut findings = self.faults.clone();
        expand(&self.object, Some(self), surroundings, &mut findings);
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
    let Expansion { block, kept, notes } =
        expand(&object, old.as_ref(), &surroundings, &mut findings);
    findings.settle();

    let mut fit = findings.accepted();
    if let Some(old) = old.as_ref().filter(|_| !fit) {
        let known = old.findings(&surroundings);
        ratchet::tolerate(&mut findings, &object.spec, &known, &old.object.spec);
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
            told(&object, old.as_ref(), &block, &mut findings);
            to_value(&block).filter(|value| Some(value) != object.block.as_ref())
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

/// The stored block, if it stays whatever the catalog says today: the intent did not change.
fn unchanged<'a>(object: &Object, old: &'a Old) -> Option<&'a Value> {
    let stored = old.object.block.as_ref()?;
    let belongs = old.block.is_some() || old.object.block_of_another_release().is_some();
    let same = object.hash == old.object.hash;
    (same && belongs && !expands_again(object, stored)).then_some(stored)
}

/// Holds to what is stored in the block's place. Returns what must be written.
fn carry_over(
    object: &Object,
    stored: Option<&Value>,
    stage: Stage,
    findings: &mut Findings,
) -> Option<Value> {
    let sent = object.block.as_ref();
    match (sent, stored) {
        _ if sent == stored => {}
        (None, Some(stored)) if stage == Stage::Mutate => return Some(stored.clone()),
        (None, _) => findings.deny(nobody_wrote_it()),
        (Some(sent), _) => {
            let edited = first_difference(BLOCK, sent, stored.unwrap_or(&Value::Null));
            let detail = format!(
                "is written by the webhook; delete {BLOCK} from your file and edit {}",
                source_of(&edited)
            );
            let code = Code::NormalizedEdited;
            let fault = Violation::new(edited.as_str(), code, Kind::Forbidden, detail);
            findings.deny(fault);
        }
    }
    None
}

fn nobody_wrote_it() -> Violation {
    let detail = "the mutating webhook did not write it; check that its configuration is installed";
    Violation::new(BLOCK, Code::NormalizedMismatch, Kind::Required, detail)
}

/// Whether a new refresh text asks for the template's current content.
fn expands_again(object: &Object, stored: &Value) -> bool {
    let pinned = stored["template"]["refresh"].as_str();
    let refresh = object.metadata.refresh();
    stored["template"].is_object() && refresh.is_some() && refresh != pinned
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

/// References → pins → block, with everything the rules have to say.
fn expand(
    object: &Object,
    old: Option<&Old>,
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
    let restored = object.own_block().filter(|_| old.is_none());
    let old_pin = old_block.and_then(|block| block.template.as_ref());
    let restored_pin = restored.as_ref().and_then(|block| block.template.as_ref());
    let known = old_pin
        .map(Kept::Old)
        .or(restored_pin.map(Kept::Restored))
        .unwrap_or(Kept::Nothing);
    let refresh = object.metadata.refresh();
    let template = references::template(&intent, refresh, known, catalog, findings);
    references::template_label(&intent, &template, findings);
    let merged = merge(&intent, &template);

    // A machine stays where it was made, even if its block is not the one of its intent any more.
    let made_on = old.and_then(|old| old.object.block_backend());
    if let Some(made_on) = made_on {
        update::backend(&merged, made_on, findings);
    }
    let pinned = made_on.unwrap_or(settings.default_backend);
    let written = object.spec.backend.as_deref().and_then(Backend::parse);
    let backend = written.unwrap_or(pinned);

    let kept_classes = old.zip(old_block).map(|(old, block)| {
        let template = pins_of(block).template;
        let old = merge(&old.object.intent(), &template);
        references::kept_classes(&merged, backend, &old, block)
    });
    let kept = KeptPins {
        template: old_pin
            .filter(|pin| matches!(&template, TemplateChoice::Pinned(chosen) if **chosen == **pin))
            .cloned(),
        backend: made_on,
        storage_classes: kept_classes.unwrap_or_default(),
    };
    let storage_classes =
        references::storage_classes(&merged, backend, &kept.storage_classes, catalog, findings);
    references::networks(
        &merged,
        &old_block.map(references::networks_of).unwrap_or_default(),
        namespace,
        settings.missing_networks,
        catalog,
        findings,
    );
    let who = MachineName {
        namespace,
        name: object.metadata.name(),
    };
    // What is new of a Machine that has no block of its own, nobody can tell: it had all of it before.
    if old.is_none() || old_block.is_some() {
        uniqueness::check(&merged, backend, who, old_block, catalog, findings);
    }

    let pins = Pins {
        template: template.clone(),
        backend: pinned,
        storage_classes,
    };
    let block = normalize::resolve(&intent, &merged, &pins, settings.max_vcpus, findings);
    let mut notes = Findings::default();
    if let Some((old, old_block)) = old.zip(old_block) {
        let update = Update {
            old: old_block,
            old_spec: &old.object.spec,
            merged: &merged,
            pins: &pins,
            backend,
        };
        update::refused(&update, catalog, findings);
        if let Some(block) = &block {
            update::noted(&update, block, &mut notes);
        }
    }
    Expansion {
        block,
        kept,
        notes: notes.warnings,
    }
}

/// Notes for the user of an accepted object.
fn told(object: &Object, old: Option<&Old>, block: &Normalized, findings: &mut Findings) {
    match (&object.block, old) {
        (None, None) => findings.note(&format!("normalized to {}", summary(block))),
        (Some(sent), None) if object.own_block().is_none() => {
            if to_value(block).as_ref() != Some(sent) {
                findings.note("the spec.normalized that was sent belongs to another spec; it was computed anew");
            }
        }
        (Some(sent), None) => {
            if let Some(expected) = to_value(block)
                && expected != *sent
            {
                let path = first_difference(BLOCK, sent, &expected);
                findings.note(&format!(
                    "{path} differs from the block that was sent: it was looked up anew"
                ));
            }
        }
        (Some(sent), Some(old))
            if old.object.block.as_ref() != Some(sent)
                && to_value(block).as_ref() != Some(sent) =>
        {
            findings.note("the spec.normalized that was sent is ignored: it follows from the rest of the spec");
        }
        (_, Some(_)) => {}
    }
}

/// Accepts nothing but the block that the intent resolves to.
fn verify(object: &Object, expected: &Normalized, kept: KeptPins, findings: &mut Findings) {
    let Some(sent) = &object.block else {
        findings.deny(nobody_wrote_it());
        return;
    };
    // A replica of another release may have written it: then its digest and the rules must do.
    let by_another_release = object.block_of_another_release().is_some();
    if by_another_release || to_value(expected).as_ref() == Some(sent) {
        return;
    }
    // The catalog may have changed between the two stages: what was looked up is the block's own
    // word.
    let recomputed = object.own_block().and_then(|own| {
        let pins = kept.over(pins_of(&own));
        normalize(&object.intent(), &pins, &mut Findings::default())
    });
    let expected = recomputed.as_ref().unwrap_or(expected);
    if let Some(value) = to_value(expected)
        && value != *sent
    {
        let path = first_difference(BLOCK, sent, &value);
        let detail = format!(
            "does not follow from the rest of the spec; delete {BLOCK} from your file and edit {}",
            source_of(&path)
        );
        findings.deny(Violation::new(
            path.as_str(),
            Code::NormalizedMismatch,
            Kind::Invalid,
            detail,
        ));
    }
}
