//! Sound objects, and what can become of them, as data: `cases/corpus`.
//!
//! A fault is a patch of a sound object and what is told of it. Any faults come together unless one
//! touches what another one touches or needs; so what is told of them is known without a rule being
//! asked. A variation is a patch that leaves the object sound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use common::admission::ObjectKind;
use common::code::Code;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::{kind_name, merge_patch, object, path, spell_out, yaml};

/// Every kind.
pub(crate) const KINDS: [ObjectKind; 4] = [
    ObjectKind::Machine,
    ObjectKind::MachineTemplate,
    ObjectKind::NetworkConfiguration,
    ObjectKind::LibvirtHost,
];

/// Lists whose order is the user's choice.
pub(crate) const LISTS: [&str; 3] = ["disks", "networks", "cdroms"];

/// What is told: fields and codes.
pub(crate) type Told = BTreeSet<(String, Code)>;

/// Fields, and the code that each is told with.
type ToldAt = BTreeMap<String, String>;

/// One thing that can be wrong with a sound object, whatever else is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    #[serde(default)]
    at: String,
    patch: Value,
    #[serde(default)]
    told: ToldAt,
    #[serde(default)]
    created: ToldAt,
    #[serde(default)]
    changed: ToldAt,
    #[serde(default)]
    needs: Vec<String>,
}

/// One thing that can be otherwise, whatever else is.
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

/// The sound spec of a kind.
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

/// The sound object of a kind.
pub(crate) fn sound(kind: ObjectKind) -> Value {
    object(kind, &json!({}), base(kind))
}

/// Where a patch goes in an object whose items are still called as they were.
#[derive(Debug)]
enum Place {
    Whole(&'static str),
    Item { list: String, index: usize },
}

impl Place {
    fn of(at: &str, sound: &Value, changed: &Value) -> Self {
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
                let known = items(sound).iter().position(|item| item[key] == name);
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

    /// The path of a field below; an absolute one starts with a slash.
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

/// The pointers of what a patch sets; items of lists by their names.
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

/// Whether one pointer leads to the other's value, into it or around it.
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

/// What a patch touches and needs.
struct Reach<'p> {
    touched: Vec<String>,
    needs: &'p [String],
}

impl Reach<'_> {
    fn apart_from(&self, other: &Self) -> bool {
        !any_overlap(&self.touched, &other.touched)
            && !any_overlap(&self.touched, other.needs)
            && !any_overlap(self.needs, &other.touched)
    }
}

impl Fault {
    /// What it is called: where it is and what it sets.
    pub(crate) fn name(&self) -> String {
        name(&self.at, &self.patch)
    }

    fn reach(&self) -> Reach<'_> {
        Reach {
            touched: touched(&self.at, &self.patch),
            needs: &self.needs,
        }
    }

    /// Whether both can be there and each is told as if it were alone.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        self.reach().apart_from(&other.reach())
    }
}

impl Variation {
    /// What it is called: where it is and what it sets.
    pub(crate) fn name(&self) -> String {
        name(&self.at, &self.patch)
    }

    fn reach(&self) -> Reach<'_> {
        Reach {
            touched: touched(&self.at, &self.patch),
            needs: &self.needs,
        }
    }

    /// Whether both can be there and each is warned of as if it were alone.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        self.reach().apart_from(&other.reach())
    }
}

/// A sound object with faults, and what is told of it on a creation and on an update.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) object: Value,
    pub(crate) created: Told,
    pub(crate) changed: Told,
}

/// Brings faults into a sound object.
pub(crate) fn with_faults(sound: &Value, all: &[&Fault]) -> Faulty {
    let mut faulty = Faulty {
        object: sound.clone(),
        created: Told::new(),
        changed: Told::new(),
    };
    for fault in all {
        let place = Place::of(&fault.at, sound, &faulty.object);
        place.patch(&mut faulty.object, &fault.patch);
        let told = |codes: &ToldAt| -> Told {
            let told = fault.told.iter().chain(codes);
            told.map(|(field, name)| (place.field(field), code(name)))
                .collect()
        };
        faulty.created.extend(told(&fault.created));
        faulty.changed.extend(told(&fault.changed));
    }
    spell_out(&mut faulty.object);
    faulty
}

/// Varies a sound object.
pub(crate) fn varied(sound: &Value, variations: &[&Variation]) -> Value {
    let mut varied = sound.clone();
    for variation in variations {
        let place = Place::of(&variation.at, sound, &varied);
        place.patch(&mut varied, &variation.patch);
    }
    spell_out(&mut varied);
    varied
}

/// The code of this name.
pub(crate) fn code(name: &str) -> Code {
    let found = common::rules::codes()
        .into_iter()
        .find(|code| code.as_str() == name);
    found.unwrap_or_else(|| panic!("no code is called {name}"))
}

/// Gives each of the jobs to one of as many threads as there are processors, and collects what they
/// give back in the order of the jobs.
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
