//! A Machine as the API server sends it.

use std::collections::BTreeMap;

use common::api::choice::{Backend, Choice as _};
use common::api::machine::CloudInit;
use common::api::normalized::{BLOCK_VERSION, Normalized};
use common::api::status::MachineStatus;
use common::bounds::LABELS_MAX;
use common::glob::Glob;
use common::names;
use common::normalize::intent_hash;
use common::render::CloudInitPlan;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use runtime::metadata::{Kept, kept};
use serde::Deserialize;
use serde_json::Value;

use super::{Block, Machine};
use crate::held_addresses::Addresses;
use crate::objects::{Own, lenient};

/// The labels that are carried to the guest: the first ones in the order of their keys, so that the choice is stable.
fn carried(metadata: &ObjectMeta) -> BTreeMap<String, String> {
    let labels = metadata.labels.iter().flatten();
    let carried = labels.filter(|(key, _)| names::is_carried_label(key));
    let carried = carried.map(|(key, value)| (key.clone(), value.clone()));
    carried.take(LABELS_MAX).collect()
}

/// The annotations that are carried to the guest.
fn carried_annotations(metadata: &ObjectMeta, block: &Block) -> BTreeMap<String, String> {
    let keys = block.matching().into_iter();
    let keys = keys.flat_map(|block| &block.annotation_keys);
    let keys: Vec<_> = keys.map(|key| Glob::new(key)).collect();
    let annotations = metadata.annotations.iter().flatten();
    let carried = annotations.filter(|(key, _)| {
        names::may_carry_annotation(key) && keys.iter().any(|it| it.matches(key))
    });
    carried
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// What the controller keeps of the metadata of a Machine, and what may be carried to the guest. Only one Machine is in
/// memory like this: [`CachedMachine`](super::CachedMachine) is made of it before the next one of a list is decoded.
enum OwnAndCarried {}

impl Kept for OwnAndCarried {
    fn keeps_label(key: &str) -> bool {
        Own::keeps_label(key) || names::is_carried_label(key)
    }

    fn keeps_annotation(key: &str) -> bool {
        Own::keeps_annotation(key) || names::may_carry_annotation(key)
    }

    fn add_owner(owners: &mut Vec<OwnerReference>, owner: OwnerReference) {
        Own::add_owner(owners, owner);
    }

    fn add_finalizer(finalizers: &mut Vec<String>, finalizer: String) {
        Own::add_finalizer(finalizers, finalizer);
    }
}

/// A Machine as the API server sends it.
#[derive(Deserialize)]
pub(super) struct Wire {
    #[serde(default, deserialize_with = "kept::<_, OwnAndCarried>")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default, deserialize_with = "lenient")]
    status: MachineStatus,
}

impl Wire {
    /// The Machine, and the spec that it was decoded from.
    pub(super) fn decode(self) -> (Machine, Value) {
        let Self {
            metadata,
            spec,
            status,
        } = self;
        let label = metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(names::LABEL_TEMPLATE));
        let block = Block::of(&spec, label.map(String::as_str));
        let own = spec
            .get("cloudInit")
            .and_then(|value| serde_json::from_value::<CloudInit>(value.clone()).ok());
        // The block holds the content of the template, as it was when admission merged it.
        let template = block.matching().and_then(|block| block.template.as_ref());
        let template = template.and_then(|pin| pin.content.cloud_init.as_ref());
        let cloud_init = CloudInit::merged(own.as_ref(), template)
            .map(|cloud_init| CloudInitPlan::from(&cloud_init))
            .unwrap_or_default();
        let protection = |spec: &Value| spec.get("deletionProtection").and_then(Value::as_bool);
        let of_block = || protection(spec.get("normalized")?);
        let backend = || Backend::parse(spec.get("normalized")?.get("backend")?.as_str()?);
        let backend = backend();
        let name = spec.get("template").and_then(Value::as_str);
        let named_template = name.or(label.map(String::as_str)).map(str::to_owned);
        let machine = Machine {
            named_template: named_template.filter(|_| block == Block::Missing),
            lacks_template: false,
            is_protected: protection(&spec).or_else(of_block).unwrap_or(false),
            backend,
            labels: carried(&metadata),
            annotations: carried_annotations(&metadata, &block),
            block,
            cloud_init,
            status,
            metadata,
            namespace_uid: String::new(),
            addresses: Addresses::default(),
        };
        (machine, spec)
    }
}

impl Block {
    /// Compares digests only: the controller neither normalizes nor looks up templates.
    fn of(spec: &Value, template_label: Option<&str>) -> Self {
        let Some(raw) = spec.get("normalized").filter(|block| !block.is_null()) else {
            return Self::Missing;
        };
        match raw.get("version").and_then(Value::as_u64) {
            Some(version) if version > u64::from(BLOCK_VERSION) => return Self::Newer(version),
            Some(1..) => {}
            Some(0) | None => return Self::Unreadable("it has no version".into()),
        }
        let block: Normalized = match serde_json::from_value(raw.clone()) {
            Ok(block) => block,
            Err(error) => return Self::Unreadable(error.to_string()),
        };
        if let Err(error) = block.check_bounds() {
            return Self::Unreadable(error.to_string());
        }
        if block.intent_hash == intent_hash(spec, template_label) {
            Self::Matching(Box::new(block))
        } else {
            Self::Stale
        }
    }
}
