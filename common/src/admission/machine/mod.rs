//! The review of a Machine. Read [`review`] from top to bottom.
//!
//! ```text
//! review ─▶ object: as sent, as stored ─▶ resolve ─▶ kept: what an update keeps
//!                                            ├─────▶ rules: pins, block, faults
//!                                            └─────▶ update: refused changes, warnings
//!        ─▶ sent_block: the block that was sent
//! ```

mod kept;
mod object;
mod sent_block;
mod update;

use super::block::{self, Block, Differences};
use super::{Request, Stage, Verdict, ratchet};
use crate::api::choice::{Backend, Choice as _};
use crate::api::machine::MachineSpec;
use crate::api::normalized::Normalized;
use crate::catalog::{Catalog, MachineName};
use crate::normalize::{
    LeftToBackend, Pins, TemplateChoice, device_kinds, disks_without_serial, merge,
};
use crate::rules::rule::{Lookup, PolicySubject, TemplateRequest};
use crate::rules::{self, Settings};
use crate::violation::{Findings, Warning};
use kept::{KeptChoices, KeptPins, images, kept_choices, kept_pin, known_template};
use object::{Object, Old};
use sent_block::{add_notes, verify_block};
use update::{Reviewed, migration_request, notes};

/// What a review depends on, apart from the objects.
struct Environment<'a> {
    stage: Stage,
    namespace: &'a str,
    catalog: &'a dyn Catalog,
    settings: &'a Settings,
}

pub(super) fn review(request: &Request<'_>, catalog: &dyn Catalog, settings: &Settings) -> Verdict {
    let mut findings = Findings::default();
    let object = Object::decode(request.object, &mut findings);
    let old = request.old.map(Old::decode);
    let stage = request.stage;
    let restored = || {
        let is_new = old.is_none();
        is_new.then(|| object.restored_block()).flatten()
    };
    let stored_backend = old.as_ref().and_then(Old::backend);
    // Reading the block costs time, and most objects name no target.
    let names_target = object.metadata.migration_target().is_some();
    let of_backup = names_target.then(restored).flatten();
    let (_, backend) = backends(&object.spec, stored_backend, of_backup.as_ref(), settings);
    // A move to another backend is refused as such.
    let backend = stored_backend.unwrap_or(backend);
    let migration = migration_request(request.namespace, &object, old.as_ref(), backend, catalog);
    rules::check_migration(&migration, &mut findings);

    if let Some(old) = &old
        && let Some(stored) = unchanged(&object, old)
    {
        let block = carry_over(&object, Some(stored), stage, &mut findings);
        return Verdict { findings, block };
    }

    request.check_name(&object.metadata, &mut findings);
    let environment = Environment {
        stage,
        namespace: request.namespace,
        catalog,
        settings,
    };
    if stage == Stage::Validate
        && old.is_none()
        && let Some(findings) = findings_if_block_is_current(&object, &environment, &findings)
    {
        return Verdict {
            findings,
            block: None,
        };
    }
    let restored = restored();
    let Resolution { block, kept, notes } = resolve(
        &object,
        old.as_ref(),
        restored.as_ref(),
        &environment,
        &mut findings,
    );
    let mut is_writable = findings.accepted();
    if let Some(old) = old.as_ref().filter(|_| !is_writable) {
        let old_findings = findings_of(old, &environment);
        ratchet::ratchet(&mut findings, &object.spec, &old_findings, &old.object.spec);
        // A Machine that already has a block gets a new one; a Machine that never had one stays
        // without until its faults are fixed.
        is_writable = old.block.is_some();
        if old.object.metadata.is_being_deleted() {
            rules::check_deletion(&mut findings);
        }
    }
    findings.dedupe();
    if !findings.accepted() {
        return Verdict {
            findings,
            block: None,
        };
    }
    let block = match (block.filter(|_| is_writable), &old, stage) {
        (Some(block), _, Stage::Mutate) => {
            findings.warnings.extend(notes);
            let written = block::text(&block).unwrap_or_default();
            let is_sent = object
                .block
                .as_ref()
                .is_some_and(|sent| sent.is_same_json(&written));
            (!is_sent).then(|| {
                add_notes(&object, old.as_ref(), &block, &written, &mut findings);
                written
            })
        }
        (Some(block), _, Stage::Validate) => {
            verify_block(&object, &block, kept, &mut findings);
            None
        }
        (None, Some(old), _) => {
            findings.note("until these faults are fixed, the Machine stays as it is");
            carry_over(&object, old.object.block.as_ref(), stage, &mut findings)
        }
        (None, None, _) => None,
    };
    Verdict { findings, block }
}

/// All faults of the stored object under the current catalog and settings.
fn findings_of(old: &Old<'_>, environment: &Environment<'_>) -> Findings {
    let mut findings = old.faults.clone();
    resolve(&old.object, Some(old), None, environment, &mut findings);
    findings
}

/// The findings about a new object whose block is the one that the catalog gives now. This is nearly
/// always the case in the validating stage, which follows the mutating one at once; the sent block then
/// need not be decoded.
fn findings_if_block_is_current(
    object: &Object<'_>,
    environment: &Environment<'_>,
    findings: &Findings,
) -> Option<Findings> {
    let sent = object.block.as_ref().filter(|_| findings.accepted())?;
    let mut findings = findings.clone();
    let block = resolve(object, None, None, environment, &mut findings).block?;
    let written = block::text(&block)?;
    (findings.accepted() && sent.0 == written).then_some(findings)
}

/// The stored block, if the intent did not change: it is then kept, whatever the catalog contains now.
fn unchanged<'o>(object: &Object<'_>, old: &'o Old<'_>) -> Option<&'o Block<'o>> {
    let stored = old.object.block.as_ref()?;
    let matches = || old.block.is_some() || old.object.has_block_of_another_release();
    let same = object.hash == old.object.hash;
    (same && matches() && !is_refresh_requested(object, stored)).then_some(stored)
}

/// Keeps the stored block: refuses another one, and returns the block to write if none was sent.
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
        (Some(sent), Some(stored)) if sent.is_same_json(&stored.0) => {}
        (Some(sent), _) => {
            let stored = stored.map_or("null", |stored| &stored.0);
            Differences::between(&sent.0, stored).deny(rules::block_edited, findings);
        }
    }
    None
}

/// Whether the refresh annotation has a new value, which requests the template's current content.
fn is_refresh_requested(object: &Object<'_>, stored: &Block<'_>) -> bool {
    let Some(refresh) = object.metadata.refresh() else {
        return false;
    };
    let template = stored.header().template;
    template.is_some_and(|pin| pin.refresh.as_deref() != Some(refresh))
}

/// What an intent resolves to.
struct Resolution {
    /// The block; not to be written if there are faults.
    block: Option<Normalized>,
    kept: KeptPins,
    /// Notes on the effects of the update.
    notes: Vec<Warning>,
}

/// The backend of a spec that names none, and the one that it has. A machine stays on its backend, even if its block no
/// longer matches its spec.
fn backends(
    spec: &MachineSpec,
    stored: Option<Backend>,
    restored: Option<&Normalized>,
    settings: &Settings,
) -> (Backend, Backend) {
    let pinned = stored
        .or(restored.map(|block| block.backend))
        .unwrap_or(settings.default_backend);
    let chosen = spec.backend.as_deref().and_then(Backend::parse);
    (pinned, chosen.unwrap_or(pinned))
}

/// Resolves an intent: references → pins → block, with the findings of all rules. `restored` is the block
/// that was sent with a new object and matches its intent, as in a restored backup.
fn resolve(
    object: &Object<'_>,
    old: Option<&Old<'_>>,
    restored: Option<&Normalized>,
    environment: &Environment<'_>,
    findings: &mut Findings,
) -> Resolution {
    let Environment {
        stage,
        namespace,
        catalog,
        settings,
    } = *environment;
    let intent = object.intent();
    let old_block = old.and_then(|old| old.block.as_ref());
    let [old_pin, restored_pin] = [old_block, restored].map(|block| block?.template.as_ref());
    let request = TemplateRequest {
        intent: &intent,
        refresh: object.metadata.refresh(),
        known: known_template(old_pin, restored_pin),
        catalog,
    };
    let template = rules::choose_template(&request, findings);
    let plain = merge(&intent, &template);
    let (kept_images, images) = images(&plain, old_block, catalog, findings);
    let merged = plain.with_images(&images);

    let stored_backend = old.and_then(Old::backend);
    let (pinned, backend) = backends(&object.spec, stored_backend, restored, settings);
    let KeptChoices {
        storage_classes,
        reclaim_policies,
        defaults,
    } = kept_choices(&merged, backend, old.zip(old_block), restored);
    let merged = merged.with_defaults(defaults);
    let policies = rules::policies_of(namespace, catalog, findings);
    let kept = KeptPins {
        template: kept_pin(old_pin, &template),
        backend: stored_backend,
        storage_classes,
        reclaim_policies,
        images: kept_images,
        disks_without_serial: disks_without_serial(old_block.or(restored)),
        hotpluggable: rules::hotpluggable(&merged, old_block, restored),
        left_to_backend: LeftToBackend::by(old_block.or(restored)),
        defaults,
        device_kinds: device_kinds(old_block.or(restored)),
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
        is_restored: restored.is_some(),
        bound_host: old.and_then(|old| old.object.status.host.as_deref()),
        catalog,
        settings,
    };
    let known_classes = match restored {
        Some(block) => rules::restored_classes(&merged, backend, block, catalog, findings),
        None => kept.storage_classes.clone(),
    };
    let storage_classes = rules::look_up(&lookup, &known_classes, findings);
    let pins = Pins {
        template: template.clone(),
        backend: pinned,
        storage_classes,
        reclaim_policies: kept.reclaim_policies.clone(),
        reclaim_policy: rules::default_reclaim_policy(&policies, settings),
        images: images.clone(),
        disks_without_serial: kept.disks_without_serial.clone(),
        hotpluggable: kept.hotpluggable.clone(),
        left_to_backend: kept.left_to_backend,
        defaults,
        device_kinds: rules::device_kinds(&lookup, &kept.device_kinds),
        annotation_keys: rules::annotation_keys(&policies),
    };
    let named = intent.template();
    let governed = PolicySubject {
        merged: &merged,
        template: named.filter(|_| template != TemplateChoice::Unknown),
        backend,
        machine: lookup.machine,
        pins: &pins,
        stored: old_block,
        catalog,
    };
    rules::check_policies(&governed, &policies, findings);
    // A move to another backend is refused as such: what else depends on the backend is checked on the present one.
    let present = stored_backend.unwrap_or(backend);
    let vcpus = settings.max_vcpus;
    let block = rules::resolve(&intent, &merged, &pins, present, vcpus, findings);
    let reviewed = Reviewed {
        object,
        backend,
        merged: &merged,
        pins: &pins,
        machine: lookup.machine,
    };
    // The validating stage writes no block and returns no warnings.
    let written = block.as_ref().filter(|_| stage == Stage::Mutate);
    let notes = notes(&reviewed, &lookup, old, written, findings);
    Resolution { block, kept, notes }
}
