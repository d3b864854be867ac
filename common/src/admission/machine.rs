//! The review of a Machine, top to bottom.

use serde_json::Value;

use super::{Request, Settings, Stage, Verdict, decode};
use crate::api::machine::MachineSpec;
use crate::api::normalized::{BLOCK_VERSION, Normalized};
use crate::catalog::Catalog;
use crate::code::Code;
use crate::names;
use crate::normalize::{self, Intent, Pins, intent_hash, merge, normalize, pins_of};
use crate::rules::references::{Kept, OldClasses};
use crate::rules::{self, limits, references};
use crate::violation::{Findings, Kind, Violation, cut};

const BLOCK: &str = "spec.normalized";
/// Most characters of the line that says what a template became; the rest is for its frame.
const SUMMARY_MAX: usize = 108;

/// A Machine as sent or as stored.
struct Object {
    name: String,
    spec: MachineSpec,
    template_label: Option<String>,
    refresh: Option<String>,
    hash: String,
    /// The block as it stands there, whatever it is.
    block: Option<Value>,
}

impl Object {
    fn decode(text: &str, findings: &mut Findings) -> Self {
        let wire = decode::object(text, findings);
        let annotation = |name: &str| wire.metadata.annotations.as_ref()?.get(name).cloned();
        let template_label = wire
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(names::LABEL_TEMPLATE))
            .cloned();
        let refresh =
            annotation(names::ANNOTATION_REFRESH_TEMPLATE).filter(|text| !text.is_empty());
        let hash = intent_hash(&wire.spec, template_label.as_deref());
        let mut spec = wire.spec;
        // The block is no part of the intent, and whatever was sent in its place is no fault of it.
        let block = spec
            .as_object_mut()
            .and_then(|fields| fields.remove("normalized"))
            .filter(|block| !block.is_null());
        Self {
            name: wire.metadata.name.unwrap_or_default(),
            spec: decode::typed(spec, "spec", findings),
            template_label,
            refresh,
            hash,
            block,
        }
    }

    fn intent(&self) -> Intent<'_> {
        Intent {
            spec: &self.spec,
            template_label: self.template_label.as_deref(),
            hash: &self.hash,
        }
    }

    /// The block, if it belongs to the intent it stands beside.
    fn own_block(&self) -> Option<Normalized> {
        let block: Normalized = serde::Deserialize::deserialize(self.block.as_ref()?).ok()?;
        (block.intent_hash == self.hash).then_some(block)
    }
}

/// The stored object and the block that belongs to it.
struct Old {
    object: Object,
    block: Option<Normalized>,
}

pub(super) fn review(request: &Request<'_>, catalog: &dyn Catalog, settings: &Settings) -> Verdict {
    let mut findings = Findings::default();
    let mut object = Object::decode(request.object, &mut findings);
    let old = request.old.map(|text| {
        // What is stored is not judged again.
        let object = Object::decode(text, &mut Findings::default());
        Old {
            block: object.own_block(),
            object,
        }
    });

    if let Some(carried) = carried_over(&object, old.as_ref(), request.stage, &mut findings) {
        return Verdict {
            findings,
            block: carried,
        };
    }

    if request.old.is_none() && !(object.name.is_empty() && request.stage == Stage::Mutate) {
        rules::names::object(&object.name, &mut findings);
    }
    limits::enforce(&mut object.spec, &mut findings);
    let block = expand(
        &object,
        old.as_ref(),
        request,
        catalog,
        settings,
        &mut findings,
    );
    decode::without_consequences(&mut findings);

    let Some(block) = block.filter(|_| findings.accepted()) else {
        return Verdict {
            findings,
            block: None,
        };
    };
    match request.stage {
        Stage::Mutate => {
            told(&object, old.as_ref(), &block, &mut findings);
            Verdict {
                findings,
                block: to_value(&block).filter(|value| Some(value) != object.block.as_ref()),
            }
        }
        Stage::Validate => {
            verify(&object, &block, &mut findings);
            Verdict {
                findings,
                block: None,
            }
        }
    }
}

/// The answer when the intent did not change: the stored block stays, whatever the catalog says
/// today. Returns what must be written, or nothing if the block has to be computed.
#[expect(
    clippy::option_option,
    reason = "the outer one is whether the case applies, the inner one the block to write"
)]
fn carried_over(
    object: &Object,
    old: Option<&Old>,
    stage: Stage,
    findings: &mut Findings,
) -> Option<Option<Value>> {
    let old = old?;
    let block = old.block.as_ref()?;
    let asked_again = object.refresh.is_some()
        && object.refresh != block.template.as_ref().and_then(|pin| pin.refresh.clone());
    if object.hash != old.object.hash || asked_again && block.template.is_some() {
        return None;
    }
    let stored = old.object.block.clone();
    match (&object.block, stage) {
        (None, Stage::Mutate) => Some(stored),
        (sent, _) if *sent == stored => Some(None),
        (sent, _) => {
            let edited = first_difference(
                BLOCK,
                sent.as_ref().unwrap_or(&Value::Null),
                stored.as_ref().unwrap_or(&Value::Null),
            );
            let detail = format!(
                "is written by the webhook; delete {BLOCK} from your file and edit {}",
                source_of(&edited)
            );
            findings.deny(Violation::new(
                edited,
                Code::NormalizedEdited,
                Kind::Forbidden,
                detail,
            ));
            Some(None)
        }
    }
}

/// References → pins → block, with everything the rules have to say.
fn expand(
    object: &Object,
    old: Option<&Old>,
    request: &Request<'_>,
    catalog: &dyn Catalog,
    settings: &Settings,
    findings: &mut Findings,
) -> Option<Normalized> {
    let intent = object.intent();
    let old_block = old.and_then(|old| old.block.as_ref());
    let restored = if old.is_none() {
        object.own_block()
    } else {
        None
    };
    let kept = match (old_block, &restored) {
        (Some(block), _) => block.template.as_ref().map_or(Kept::Nothing, Kept::Old),
        (None, Some(block)) => block
            .template
            .as_ref()
            .map_or(Kept::Nothing, Kept::Restored),
        (None, None) => Kept::Nothing,
    };
    references::template_label(&intent, findings);
    let template =
        references::template(&intent, object.refresh.as_deref(), kept, catalog, findings);
    let merged = merge(&intent, &template);

    // What the old object asked for and got is not looked up again.
    let old_pins = old_block.map(pins_of);
    let old_merged = old
        .zip(old_pins.as_ref())
        .map(|(old, pins)| merge(&old.object.intent(), &pins.template));
    let old_classes = match (&old_merged, old_block) {
        (Some(merged), Some(block)) => OldClasses::new(merged, block),
        _ => OldClasses::default(),
    };
    let storage_classes = references::storage_classes(&merged, &old_classes, catalog, findings);
    let old_networks = old_block.map(references::networks_of).unwrap_or_default();
    references::networks(
        &merged,
        &old_networks,
        request.namespace,
        settings.missing_networks,
        catalog,
        findings,
    );

    let pins = Pins {
        template: template.clone(),
        backend: old_pins.map_or(settings.default_backend, |pins| pins.backend),
        storage_classes,
    };
    let block = normalize::resolve(&intent, &merged, &pins, findings)?;
    rules::sizing::vcpu_limit(&block.cpu, settings.max_vcpus, findings);
    if let Some(old) = old_block {
        rules::machine::backend_change(old.backend, block.backend, findings);
    }
    Some(block)
}

/// Notes for the user of an accepted object.
fn told(object: &Object, old: Option<&Old>, block: &Normalized, findings: &mut Findings) {
    match (&object.block, old) {
        (None, None) => findings.note(&format!(
            "normalized to {}",
            cut(&summary(block), SUMMARY_MAX)
        )),
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
fn verify(object: &Object, expected: &Normalized, findings: &mut Findings) {
    let Some(sent) = &object.block else {
        let detail =
            "the mutating webhook did not write it; check that its configuration is installed";
        findings.deny(Violation::new(
            BLOCK,
            Code::NormalizedMismatch,
            Kind::Required,
            detail,
        ));
        return;
    };
    let own = object.own_block();
    // Replicas of another release may have written it: then its digest and the rules must do.
    let by_another_release =
        own.is_some() && sent.get("version").and_then(Value::as_u64) != Some(BLOCK_VERSION.into());
    if by_another_release || to_value(expected).as_ref() == Some(sent) {
        return;
    }
    // The catalog may have changed between the two stages: the block's own pins decide.
    let recomputed =
        own.and_then(|own| normalize(&object.intent(), &pins_of(&own), &mut Findings::default()));
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
            path,
            Code::NormalizedMismatch,
            Kind::Invalid,
            detail,
        ));
    }
}

fn to_value(block: &Normalized) -> Option<Value> {
    serde_json::to_value(block).ok()
}

/// The path of the first value that differs, as deep as both have it.
fn first_difference(path: &str, left: &Value, right: &Value) -> String {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => left
            .keys()
            .chain(right.keys())
            .find(|key| left.get(*key) != right.get(*key))
            .map_or(path.to_owned(), |key| {
                let (left, right) = (
                    left.get(key).unwrap_or(&Value::Null),
                    right.get(key).unwrap_or(&Value::Null),
                );
                let path = if key.contains(['.', '/']) {
                    format!("{path}[{key}]")
                } else {
                    format!("{path}.{key}")
                };
                first_difference(&path, left, right)
            }),
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find(|(_, (left, right))| left != right)
            .map_or(path.to_owned(), |(index, (left, right))| {
                first_difference(&format!("{path}[{index}]"), left, right)
            }),
        _ => path.to_owned(),
    }
}

/// The field of the intent that a field of the block comes from.
fn source_of(block_path: &str) -> String {
    let rest = block_path
        .strip_prefix(BLOCK)
        .unwrap_or_default()
        .trim_start_matches('.');
    let first: String = rest
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect();
    let field = match first.as_str() {
        "cpu" | "memory" => return format!("spec.resources.{rest}"),
        "machineType" => "domain.machine.type",
        "firmware" => "domain.firmware.bootloader",
        "features" => return format!("spec.domain.{rest}"),
        known @ ("template" | "backend" | "powerState" | "guestShutdownStops" | "disks"
        | "cdroms" | "networks" | "nodeSelector") => known,
        _ => return "the rest of the spec".to_owned(),
    };
    format!("spec.{field}")
}

/// What a block says, in a line.
fn summary(block: &Normalized) -> String {
    let template = block
        .template
        .as_ref()
        .map(|pin| format!("template {}", pin.name));
    let size = format!("{} vCPU, {}", block.cpu.vcpus(), block.memory.size);
    let disks = block
        .disks
        .iter()
        .map(|disk| match disk.storage_class.as_str() {
            "" => format!("{} {}", disk.name, disk.size),
            class => format!("{} {} on {class}", disk.name, disk.size),
        });
    let nics = block.networks.iter().map(|nic| match &nic.network_name {
        None => nic.name.clone(),
        Some(network) => format!("{} on {network}", nic.name),
    });
    let disks = Some(disks.collect::<Vec<_>>().join(", ")).filter(|disks| !disks.is_empty());
    let nics = Some(format!("NIC {}", nics.collect::<Vec<_>>().join(", ")));
    [template, Some(size), disks, nics]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
}
