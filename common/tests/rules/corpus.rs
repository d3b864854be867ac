//! Valid objects, and their faults and variations, as data in `cases/corpus`.
//!
//! A fault is a patch of a valid object, with the expected violations. Faults are independent unless one
//! changes a field that another one changes or needs, so the violations of any combination are known
//! without evaluating a rule. A variation is a patch after which the object is still valid.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use common::admission::ObjectKind;
use common::code::Code;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::{kind_name, merge_patch, object, path, spell_out, yaml};

/// All kinds.
pub(crate) const KINDS: [ObjectKind; 6] = [
    ObjectKind::Machine,
    ObjectKind::MachineTemplate,
    ObjectKind::NetworkConfiguration,
    ObjectKind::LibvirtHost,
    ObjectKind::MachinePolicy,
    ObjectKind::MachineImage,
];

/// Lists whose order is the user's choice.
pub(crate) const LISTS: [&str; 3] = ["disks", "networks", "cdroms"];

/// Fields and codes of violations.
pub(crate) type Violations = BTreeSet<(String, Code)>;

/// The code for each field.
type Codes = BTreeMap<String, String>;

/// A fault of a valid object, independent of most others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Fault {
    #[serde(default)]
    at: String,
    patch: Value,
    #[serde(default)]
    refused: Codes,
    #[serde(default)]
    on_create: Codes,
    #[serde(default)]
    on_update: Codes,
    #[serde(default)]
    needs: Vec<String>,
}

/// A change of a valid object, independent of most others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variation {
    #[serde(default)]
    at: String,
    patch: Value,
    #[serde(default)]
    needs: Vec<String>,
    /// Codes of the rules that warn of it.
    #[serde(default)]
    pub(crate) warns: Vec<String>,
}

static BASES: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| file("bases"));
static FAULTS: LazyLock<BTreeMap<String, Vec<Fault>>> = LazyLock::new(|| file("faults"));
static VARIATIONS: LazyLock<BTreeMap<String, Vec<Variation>>> =
    LazyLock::new(|| file("variations"));

fn file<T: serde::de::DeserializeOwned>(name: &str) -> T {
    yaml(&path(&format!("tests/cases/corpus/{name}.yaml")))
}

/// The valid spec of a kind.
pub(crate) fn base(kind: ObjectKind) -> &'static Value {
    &BASES[kind_name(kind)]
}

/// Every fault of a kind.
pub(crate) fn faults(kind: ObjectKind) -> &'static [Fault] {
    &FAULTS[kind_name(kind)]
}

/// Every variation of a kind.
pub(crate) fn variations(kind: ObjectKind) -> &'static [Variation] {
    &VARIATIONS[kind_name(kind)]
}

/// The valid object of a kind.
pub(crate) fn valid(kind: ObjectKind) -> Value {
    object(kind, &json!({}), base(kind))
}

/// The part of an object that a patch applies to.
#[derive(Debug)]
enum Target {
    Whole(&'static str),
    Item { list: String, index: usize },
}

impl Target {
    fn of(at: &str, valid: &Value, changed: &Value) -> Self {
        match at {
            "" => Self::Whole("spec"),
            "metadata" => Self::Whole("metadata"),
            item => {
                let (list, name) = item.split_once('/').unwrap();
                let items = |object: &Value| object["spec"][list].as_array().unwrap().clone();
                let key = match list {
                    "storage" => "storageClass",
                    _ => "name",
                };
                let known = items(valid).iter().position(|item| item[key] == name);
                Self::Item {
                    list: list.to_owned(),
                    index: known.unwrap_or_else(|| items(changed).len()),
                }
            }
        }
    }

    fn patch(&self, object: &mut Value, patch: &Value) {
        match self {
            Self::Whole(part) => merge_patch(&mut object[*part], patch),
            Self::Item { list, index } => {
                let items = object["spec"][list].as_array_mut().unwrap();
                if *index == items.len() {
                    items.push(json!({}));
                }
                merge_patch(&mut items[*index], patch);
            }
        }
    }

    /// The path of a field below the part; one with a leading slash is a path of its own.
    fn field(&self, field: &str) -> String {
        if let Some(absolute) = field.strip_prefix('/') {
            return absolute.to_owned();
        }
        match self {
            Self::Whole(part) => format!("{part}.{field}"),
            Self::Item { list, index } => format!("spec.{list}[{index}].{field}"),
        }
    }
}

/// The JSON pointers of the values that a patch sets, with names for indexes of items.
fn touched(at: &str, patch: &Value) -> Vec<String> {
    let root = match at {
        "" => "/spec".to_owned(),
        "metadata" => "/metadata".to_owned(),
        item => format!("/spec/{item}"),
    };
    let mut leaves = vec![];
    collect_leaves(patch, root, &mut leaves);
    leaves
}

fn collect_leaves(value: &Value, at: String, leaves: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                collect_leaves(value, format!("{at}/{key}"), leaves);
            }
        }
        _ => leaves.push(at),
    }
}

/// Whether one pointer is equal to the other or a prefix of it.
fn overlap(left: &str, right: &str) -> bool {
    let is_at_or_below = |long: &str, short: &str| {
        long.strip_prefix(short)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    is_at_or_below(left, right) || is_at_or_below(right, left)
}

fn any_overlap(left: &[String], right: &[String]) -> bool {
    left.iter()
        .any(|left| right.iter().any(|right| overlap(left, right)))
}

fn name(at: &str, patch: &Value) -> String {
    format!("{at} {patch}").trim().to_owned()
}

/// The fields that a patch changes and needs.
struct Dependencies<'p> {
    touched: Vec<String>,
    needs: &'p [String],
}

impl Dependencies<'_> {
    fn is_disjoint_from(&self, other: &Self) -> bool {
        !any_overlap(&self.touched, &other.touched)
            && !any_overlap(&self.touched, other.needs)
            && !any_overlap(self.needs, &other.touched)
    }
}

impl Fault {
    /// A name for messages: part and patch.
    pub(crate) fn name(&self) -> String {
        name(&self.at, &self.patch)
    }

    fn dependencies(&self) -> Dependencies<'_> {
        Dependencies {
            touched: touched(&self.at, &self.patch),
            needs: &self.needs,
        }
    }

    /// Whether both together are reported as each alone.
    pub(crate) fn is_independent_of(&self, other: &Self) -> bool {
        self.dependencies().is_disjoint_from(&other.dependencies())
    }
}

impl Variation {
    /// A name for messages: part and patch.
    pub(crate) fn name(&self) -> String {
        name(&self.at, &self.patch)
    }

    fn dependencies(&self) -> Dependencies<'_> {
        Dependencies {
            touched: touched(&self.at, &self.patch),
            needs: &self.needs,
        }
    }

    /// Whether both together are warned of as each alone.
    pub(crate) fn is_independent_of(&self, other: &Self) -> bool {
        self.dependencies().is_disjoint_from(&other.dependencies())
    }
}

/// An object with faults, and its violations on a creation and on an update.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) object: Value,
    pub(crate) on_create: Violations,
    pub(crate) on_update: Violations,
}

/// Applies faults to a valid object.
pub(crate) fn with_faults(valid: &Value, all: &[&Fault]) -> Faulty {
    let mut faulty = Faulty {
        object: valid.clone(),
        on_create: Violations::new(),
        on_update: Violations::new(),
    };
    for fault in all {
        let target = Target::of(&fault.at, valid, &faulty.object);
        target.patch(&mut faulty.object, &fault.patch);
        let refused = |codes: &Codes| -> Violations {
            let refused = fault.refused.iter().chain(codes);
            refused
                .map(|(field, name)| (target.field(field), code(name)))
                .collect()
        };
        faulty.on_create.extend(refused(&fault.on_create));
        faulty.on_update.extend(refused(&fault.on_update));
    }
    spell_out(&mut faulty.object);
    faulty
}

/// Applies variations to a valid object.
pub(crate) fn varied(valid: &Value, variations: &[&Variation]) -> Value {
    let mut varied = valid.clone();
    for variation in variations {
        let target = Target::of(&variation.at, valid, &varied);
        target.patch(&mut varied, &variation.patch);
    }
    spell_out(&mut varied);
    varied
}

/// The code of this name.
pub(crate) fn code(name: &str) -> Code {
    static CODES: LazyLock<Vec<Code>> = LazyLock::new(common::rules::codes);
    let found = CODES.iter().find(|code| code.as_str() == name);
    *found.unwrap_or_else(|| panic!("no code is called {name}"))
}

/// Runs the jobs on one thread per processor. Returns the results in the order of the jobs.
pub(crate) fn in_parallel<J: Sync, R: Send>(jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = jobs.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .chunks(share)
            .map(|jobs| scope.spawn(|| jobs.iter().map(&work).collect::<Vec<_>>()))
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.flatten().collect()
    })
}
