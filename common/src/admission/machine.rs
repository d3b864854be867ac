//! The review of a Machine. Read [`review`] from top to bottom.

use std::collections::{BTreeMap, BTreeSet};

use super::block::{self, Block, BlockHeader, Differences, summary};
use super::decode::{self, Metadata, RawObject, Status};
use super::{Request, Stage, Verdict, ratchet};
use crate::api::choice::{Backend, Choice as _, DeviceKind, PowerState, ReclaimPolicy};
use crate::api::machine::MachineSpec;
use crate::api::machine_image::PinnedImage;
use crate::api::normalized::{BLOCK_VERSION, Normalized, NormalizedDisk, TemplatePin};
use crate::catalog::{Catalog, MachineName};
use crate::normalize::{
    ImageDefaults, Intent, LeftToBackend, Merged, Pins, TemplateChoice, defaults_of, device_kinds,
    disks_without_serial, hash, images_in, merge, pins_of,
};
use crate::rules::rule::{
    Governed, ImageRequest, KnownTemplate, Lookup, MigrationRequest, TemplateRequest, Update,
};
use crate::rules::{self, Settings, limits};
use crate::violation::{Findings, Warning};
use crate::words::listed;

/// A Machine as sent or as stored.
struct Object<'a> {
    metadata: Metadata,
    spec: MachineSpec,
    hash: String,
    /// The block of the spec, which may be any JSON.
    block: Option<Block<'a>>,
    status: Status,
}

impl<'a> Object<'a> {
    fn decode(text: &'a str, findings: &mut Findings) -> Self {
        let RawObject {
            metadata,
            spec,
            status,
        } = decode::object(text, findings);
        Self {
            hash: hash(&spec.intent, metadata.template_label()),
            spec: decode::spec(spec.intent, limits::truncate_machine, findings),
            metadata,
            // Any JSON is accepted here: a wrong block is not a fault of the intent.
            block: spec.block.map(Block),
            status,
        }
    }

    fn intent(&self) -> Intent<'_> {
        Intent {
            spec: &self.spec,
            template_label: self.metadata.template_label(),
            hash: &self.hash,
        }
    }

    /// The block, if it matches the intent of the same object, this release can read it, and admission can have written
    /// it.
    fn matching_block(&self) -> Option<Normalized> {
        let block = self.block.as_ref()?.parse()?;
        (block.intent_hash == self.hash && block.check_bounds().is_ok()).then_some(block)
    }

    /// Whether another release wrote the block, and its digest matches the intent.
    fn has_block_of_another_release(&self) -> bool {
        self.block.as_ref().is_some_and(|block| {
            let BlockHeader {
                version,
                intent_hash,
                ..
            } = block.header();
            intent_hash.as_deref() == Some(&self.hash) && version != Some(BLOCK_VERSION)
        })
    }
}

/// The stored object and its block, if the block matches the intent.
struct Old<'a> {
    object: Object<'a>,
    block: Option<Normalized>,
    /// Faults found while decoding it.
    faults: Findings,
}

impl<'a> Old<'a> {
    fn decode(text: &'a str) -> Self {
        let mut faults = Findings::default();
        let object = Object::decode(text, &mut faults);
        Self {
            block: object.matching_block(),
            object,
            faults,
        }
    }

    /// The backend that the stored block names, even if the block does not match the intent.
    fn backend(&self) -> Option<Backend> {
        let own = self.block.as_ref().map(|block| block.backend);
        own.or_else(|| Backend::parse(self.object.block.as_ref()?.header().backend.as_deref()?))
    }

    /// All faults of the stored object under the current catalog and settings.
    fn findings(&self, environment: &Environment<'_>) -> Findings {
        let mut findings = self.faults.clone();
        resolve(&self.object, Some(self), None, environment, &mut findings);
        findings
    }
}

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
    let migration = migration_request(request.namespace, &object, old.as_ref(), catalog);
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
    let restored = if old.is_none() {
        object.matching_block()
    } else {
        None
    };
    let Resolution { block, kept, notes } = resolve(
        &object,
        old.as_ref(),
        restored.as_ref(),
        &environment,
        &mut findings,
    );
    findings.dedupe();

    let mut is_writable = findings.accepted();
    if let Some(old) = old.as_ref().filter(|_| !is_writable) {
        let old_findings = old.findings(&environment);
        ratchet::ratchet(&mut findings, &object.spec, &old_findings, &old.object.spec);
        // A Machine that already has a block gets a new one; a Machine that never had one stays
        // without until its faults are fixed.
        is_writable = old.block.is_some();
    }
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

/// Pins from the stored object. Values of the sent block are ignored in their place.
struct KeptPins {
    template: Option<TemplatePin>,
    backend: Option<Backend>,
    storage_classes: BTreeMap<String, String>,
    reclaim_policies: BTreeMap<String, ReclaimPolicy>,
    images: BTreeMap<String, PinnedImage>,
    disks_without_serial: BTreeSet<String>,
    hotpluggable: BTreeSet<String>,
    left_to_backend: LeftToBackend,
    defaults: ImageDefaults,
    device_kinds: BTreeMap<String, DeviceKind>,
}

impl KeptPins {
    /// These pins, and those of `looked_up` for the rest.
    fn over(self, mut looked_up: Pins) -> Pins {
        if let Some(pin) = self.template {
            looked_up.template = TemplateChoice::Pinned(Box::new(pin));
        }
        looked_up.backend = self.backend.unwrap_or(looked_up.backend);
        looked_up.storage_classes.extend(self.storage_classes);
        looked_up.reclaim_policies.extend(self.reclaim_policies);
        looked_up.images.extend(self.images);
        looked_up.disks_without_serial = self.disks_without_serial;
        looked_up.hotpluggable = self.hotpluggable;
        looked_up.left_to_backend = self.left_to_backend;
        looked_up.defaults = self.defaults;
        looked_up.device_kinds.extend(self.device_kinds);
        looked_up
    }
}

/// What the spec leaves open and the stored block, or that of a backup, has.
#[derive(Default)]
struct KeptChoices {
    /// By name of disk or CD-ROM.
    storage_classes: BTreeMap<String, String>,
    /// By name of disk.
    reclaim_policies: BTreeMap<String, ReclaimPolicy>,
    defaults: ImageDefaults,
}

fn kept_choices(
    merged: &Merged<'_>,
    backend: Backend,
    stored: Option<(&Old<'_>, &Normalized)>,
    restored: Option<&Normalized>,
) -> KeptChoices {
    let stored = stored.map(|(old, block)| stored_choices(merged, backend, old, block));
    let mut kept = stored.unwrap_or_default();
    if let Some(block) = restored {
        kept.reclaim_policies = reclaim_policies_in(block);
        kept.defaults = defaults_of(block);
    }
    kept
}

fn stored_choices(
    merged: &Merged<'_>,
    backend: Backend,
    old: &Old<'_>,
    block: &Normalized,
) -> KeptChoices {
    let Pins {
        template, images, ..
    } = pins_of(block);
    let intent = old.object.intent();
    let old = merge(&intent, &template).with_images(&images);
    KeptChoices {
        storage_classes: rules::kept_classes(merged, backend, &old, block),
        reclaim_policies: rules::kept_reclaim_policies(merged, &old, block),
        defaults: rules::kept_defaults(merged, &old, block),
    }
}

/// The reclaim policies of a block, by name of the disk.
fn reclaim_policies_in(block: &Normalized) -> BTreeMap<String, ReclaimPolicy> {
    let of_disk = |disk: &NormalizedDisk| (disk.name.clone(), disk.reclaim_policy);
    block.disks.iter().map(of_disk).collect()
}

/// The template that a Machine has a pin of: the stored one overrides that of a backup.
fn known_template<'a>(
    stored: Option<&'a TemplatePin>,
    restored: Option<&'a TemplatePin>,
) -> KnownTemplate<'a> {
    match (stored, restored) {
        (Some(pin), _) => KnownTemplate::Stored(pin),
        (None, Some(pin)) => KnownTemplate::Restored(pin),
        (None, None) => KnownTemplate::Nothing,
    }
}

/// The MachineImages that the stored block has and the spec still names, and all that it names, by name of the disk or
/// CD-ROM.
fn images(
    merged: &Merged<'_>,
    stored: Option<&Normalized>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> (BTreeMap<String, PinnedImage>, BTreeMap<String, PinnedImage>) {
    let kept = stored.map(|block| rules::kept_images(merged, images_in(block)));
    let kept = kept.unwrap_or_default();
    let request = ImageRequest {
        merged,
        kept: &kept,
        catalog,
    };
    let images = rules::choose_images(&request, findings);
    (kept, images)
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

/// The stored pin, if it is of the template that was chosen.
fn kept_pin(stored: Option<&TemplatePin>, chosen: &TemplateChoice) -> Option<TemplatePin> {
    let is_chosen =
        |pin: &&TemplatePin| matches!(chosen, TemplateChoice::Pinned(chosen) if **chosen == **pin);
    stored.filter(is_chosen).cloned()
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
    let governed = Governed {
        merged: &merged,
        template: named.filter(|_| template != TemplateChoice::Unknown),
        backend,
        machine: lookup.machine,
        pins: &pins,
        stored: old_block,
        catalog,
    };
    rules::check_policies(&governed, &policies, findings);
    // A move to another backend is refused as such: what else depends on the backend is judged on the present one.
    let judged = stored_backend.unwrap_or(backend);
    let vcpus = settings.max_vcpus;
    let block = rules::resolve(&intent, &merged, &pins, judged, vcpus, findings);
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

/// Refuses changes of a stored Machine. Returns warnings of an accepted Machine: of the effects of a change, or of what a
/// new one lacks.
fn notes(
    reviewed: &Reviewed<'_, '_>,
    lookup: &Lookup<'_>,
    old: Option<&Old<'_>>,
    block: Option<&Normalized>,
    findings: &mut Findings,
) -> Vec<Warning> {
    match old.zip(lookup.stored) {
        Some((old, old_block)) => {
            check_update(reviewed, old, old_block, block, lookup.catalog, findings)
        }
        None => warnings_of_new(lookup, block),
    }
}

/// Warnings of what a Machine lacks that is new and has a block.
fn warnings_of_new(lookup: &Lookup<'_>, block: Option<&Normalized>) -> Vec<Warning> {
    let mut notes = Findings::default();
    if block.is_some() && lookup.is_new {
        rules::warn_of_creation(lookup, &mut notes);
    }
    notes.warnings
}

/// What the annotations of a Machine request that those of the stored one do not.
fn migration_request<'a>(
    namespace: &'a str,
    object: &'a Object<'_>,
    old: Option<&'a Old<'_>>,
    catalog: &'a dyn Catalog,
) -> MigrationRequest<'a> {
    let before = old.map(|old| &old.object);
    let (text, target) = (
        object.metadata.requested_migration(),
        object.metadata.migration_target(),
    );
    let is_known = before.is_none_or(|before| {
        before.metadata.requested_migration() == text || before.status.last_migration() == text
    });
    let old_target = before.and_then(|before| before.metadata.migration_target());
    let power_state = object.spec.power_state.as_deref();
    MigrationRequest {
        is_new: text.is_some() && !is_known,
        new_target: target.filter(|_| target != old_target),
        target,
        backend: old.and_then(Old::backend),
        power_state: power_state.and_then(PowerState::parse),
        node: before.and_then(|before| before.status.node_name.as_deref()),
        obstacle: before.and_then(|before| before.status.obstacle_to_migration()),
        namespace,
        block: old.and_then(|old| old.block.as_ref()),
        host: before.and_then(|before| before.status.host.as_deref()),
        kept_disks: before
            .map(|before| before.status.kept_disks())
            .unwrap_or_default(),
        catalog,
    }
}

/// A Machine under review, merged, with everything that its block depends on.
struct Reviewed<'r, 'a> {
    object: &'r Object<'a>,
    backend: Backend,
    merged: &'r Merged<'r>,
    pins: &'r Pins,
    machine: MachineName<'r>,
}

/// Compares a Machine with the stored one. Returns warnings of the effects of what is accepted.
fn check_update(
    reviewed: &Reviewed<'_, '_>,
    old: &Old<'_>,
    old_block: &Normalized,
    block: Option<&Normalized>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> Vec<Warning> {
    let incomplete_imports = old.object.status.incomplete_imports();
    let is_on_kubevirt = reviewed.backend == Backend::Kubevirt;
    let kubevirt = is_on_kubevirt.then(|| catalog.kubevirt()).flatten();
    let update = Update {
        machine: reviewed.machine,
        old: old_block,
        old_spec: &old.object.spec,
        merged: reviewed.merged,
        pins: reviewed.pins,
        backend: reviewed.backend,
        incomplete_imports: &incomplete_imports,
        discarded_state: reviewed.object.metadata.discarded_state(),
        runs: rules::machine::keeps_running(old_block, reviewed.merged),
        kubevirt: kubevirt.as_deref(),
        guest: old.object.status.guest_report(),
    };
    rules::check_update(&update, catalog, findings);
    let mut notes = Findings::default();
    if let Some(block) = block {
        rules::warn_of_effects(&update, block, &mut notes);
    }
    notes.warnings
}

/// Tells the author of an accepted object that its block is replaced by `written`, and why.
fn add_notes(
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
            "the spec.normalized that was sent was computed for another spec; it was computed anew",
        );
    } else {
        let mut paths = Differences::between(&sent.0, written).paths;
        // A backup of an earlier release has a block of an earlier version.
        paths.retain(|path| path != block::VERSION);
        if !paths.is_empty() {
            let paths = listed(paths);
            findings.note(&format!(
                "values of the spec.normalized that was sent differ, because they were looked up anew: {paths}"
            ));
        }
    }
}

/// Refuses any block except the one that the intent resolves to.
fn verify_block(
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
