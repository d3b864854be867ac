//! Reviews as the API server requests them: objects as users write them, a catalog by name, the mutating
//! stage and then the validating one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use common::admission::{ObjectKind, Request, Settings, Stage, Verdict, review};
use common::api::choice::{Backend, ReclaimPolicy};
use common::catalog::StaticCatalog;
use common::code::Code;
use common::names::{GROUP, VERSION};
use common::{CloudInitSchema, MissingNetworks};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::clusters;
pub(crate) use crate::long_texts::spell_out;

/// The namespace of every object.
pub(crate) const NAMESPACE: &str = "default";

/// Path of a file of this crate.
pub(crate) fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// Reads a YAML file.
pub(crate) fn yaml<T: DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

static CATALOGS: LazyLock<BTreeMap<String, StaticCatalog>> = LazyLock::new(|| {
    let text = fs::read_to_string(path("tests/cases/catalogs.yaml")).unwrap();
    clusters::catalogs(&text).unwrap()
});

/// A catalog of `cases/catalogs.yaml`.
pub(crate) fn catalog(name: &str) -> &'static StaticCatalog {
    CATALOGS
        .get(name)
        .unwrap_or_else(|| panic!("no catalog is called {name}"))
}

/// The settings of the webhook that differ from their defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct SettingsOverrides {
    deny_missing_networks: bool,
    default_backend: Option<Backend>,
    default_reclaim_policy: Option<ReclaimPolicy>,
    max_vcpus: Option<u32>,
    cloud_init_schema: Option<Value>,
}

impl SettingsOverrides {
    pub(crate) fn settings(&self) -> Settings {
        let default = Settings::default();
        Settings {
            missing_networks: if self.deny_missing_networks {
                MissingNetworks::Deny
            } else {
                default.missing_networks
            },
            default_backend: self.default_backend.unwrap_or(default.default_backend),
            default_reclaim_policy: self
                .default_reclaim_policy
                .unwrap_or(default.default_reclaim_policy),
            max_vcpus: self.max_vcpus.unwrap_or(default.max_vcpus),
            cloud_init_schema: self
                .cloud_init_schema
                .as_ref()
                .map(|schema| Arc::new(CloudInitSchema::parse(&schema.to_string()).unwrap())),
        }
    }
}

/// The name of a kind.
pub(crate) fn kind_name(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Machine => "Machine",
        ObjectKind::MachineTemplate => "MachineTemplate",
        ObjectKind::NetworkConfiguration => "NetworkConfiguration",
        ObjectKind::LibvirtHost => "LibvirtHost",
        ObjectKind::MachinePolicy => "MachinePolicy",
        ObjectKind::MachineImage => "MachineImage",
    }
}

/// An object of this kind and spec, with more metadata than its name.
pub(crate) fn object(kind: ObjectKind, metadata: &Value, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind_name(kind),
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": spec,
    });
    merge_patch(&mut object["metadata"], metadata);
    spell_out(&mut object);
    object
}

/// A Machine of this spec.
pub(crate) fn machine(spec: &Value) -> Value {
    object(ObjectKind::Machine, &json!({}), spec)
}

/// Applies a JSON merge patch (RFC 7396).
pub(crate) use json_patch::merge as merge_patch;

/// Everything that a review depends on, except the object and the stage.
#[derive(Clone, Copy)]
pub(crate) struct ReviewContext<'a> {
    pub(crate) kind: ObjectKind,
    pub(crate) old: Option<&'a Value>,
    pub(crate) catalog: &'a StaticCatalog,
    pub(crate) settings: &'a Settings,
}

static DEFAULTS: LazyLock<Settings> = LazyLock::new(Settings::default);

impl<'a> ReviewContext<'a> {
    /// A review with the default settings and catalog.
    pub(crate) fn of(kind: ObjectKind, old: Option<&'a Value>) -> Self {
        Self {
            kind,
            old,
            catalog: catalog("default"),
            settings: &DEFAULTS,
        }
    }

    /// The verdict of one stage about an object.
    pub(crate) fn review(&self, stage: Stage, object: &Value) -> Verdict {
        self.review_text(stage, &object.to_string())
    }

    /// The verdict of one stage about any text in place of an object.
    pub(crate) fn review_text(&self, stage: Stage, object: &str) -> Verdict {
        let old = self.old.map(Value::to_string);
        let request = Request {
            kind: self.kind,
            stage,
            namespace: NAMESPACE,
            object,
            old: old.as_deref(),
        };
        review(&request, self.catalog, self.settings)
    }

    /// Reviews an object in both stages and returns it as it is stored. Checks that the validating stage
    /// accepts it, that only the block was written, and that a second review writes nothing.
    pub(crate) fn admit(&self, object: &Value) -> Result<Admitted, Verdict> {
        let verdict = self.review(Stage::Mutate, object);
        if !verdict.findings.accepted() {
            return Err(verdict);
        }
        let mut stored = object.clone();
        if let Some(block) = verdict.block {
            assert_eq!(self.kind, ObjectKind::Machine, "only Machines have a block");
            let value: Value = serde_json::from_str(&block).unwrap();
            assert_eq!(block, written(&value, false), "a block is canonical");
            stored["spec"]["normalized"] = value;
        }
        let validated = self.review(Stage::Validate, &stored);
        assert_eq!(
            validated.findings.violations,
            [],
            "the validating stage refuses what the mutating one made of {object}"
        );
        let reordered = self.review_text(Stage::Validate, &written(&stored, true));
        assert_eq!(
            reordered.findings, validated.findings,
            "the order of keys changes the validating stage's answer about {object}"
        );
        let again = self.review(Stage::Mutate, &stored);
        assert_eq!(again.findings.violations, [], "again: {stored}");
        for stage in [validated, again] {
            assert_eq!(stage.block, None, "a later stage writes to {stored}");
        }
        let all = verdict.findings.warnings.into_iter();
        let (warnings, notes): (Vec<_>, Vec<_>) = all.partition(|warning| warning.code.is_some());
        Ok(Admitted {
            stored,
            warnings: warnings.into_iter().map(|warning| warning.text).collect(),
            notes: notes.into_iter().map(|note| note.text).collect(),
        })
    }
}

/// An object that was admitted.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// As it is stored.
    pub(crate) stored: Value,
    /// Warnings of rules.
    pub(crate) warnings: Vec<String>,
    /// Warnings without a rule.
    pub(crate) notes: Vec<String>,
}

/// The violations of a verdict as messages.
pub(crate) fn messages(verdict: &Verdict) -> Vec<String> {
    let violations = verdict.findings.violations.iter();
    violations.map(ToString::to_string).collect()
}

/// Fields and codes of the violations of a verdict.
pub(crate) fn fields_and_codes(verdict: &Verdict) -> Vec<(String, Code)> {
    let violations = verdict.findings.violations.iter();
    violations
        .map(|violation| (violation.field.clone(), violation.code))
        .collect()
}

/// JSON text with the keys of every object in ascending or descending order.
pub(crate) fn written(value: &Value, descending: bool) -> String {
    let list = |items: Vec<String>, open, close| format!("{open}{}{close}", items.join(","));
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.iter().collect();
            let field = |(key, value): (&String, &Value)| {
                format!("{}:{}", json!(key), written(value, descending))
            };
            let fields = fields.into_iter().map(field);
            let fields = if descending {
                fields.rev().collect()
            } else {
                fields.collect()
            };
            list(fields, '{', '}')
        }
        Value::Array(items) => list(
            items.iter().map(|item| written(item, descending)).collect(),
            '[',
            ']',
        ),
        scalar => scalar.to_string(),
    }
}
