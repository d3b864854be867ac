//! Edits JSON as JSON, with keys and values that the rules read. The result is still a review, which a
//! change of single bytes would rarely give.

use std::sync::LazyLock;

use fastrand::Rng;
use serde_json::{Map, Value};

/// Most edits of one mutation.
const EDITS_MAX: usize = 4;

/// Fields, each with values near the limit between valid and invalid.
static VOCABULARY: LazyLock<Map<String, Value>> =
    LazyLock::new(|| serde_json::from_str(include_str!("vocabulary.json")).unwrap());

/// A mutator for libFuzzer: edits JSON as JSON. Other input, and one in eight JSON documents, is passed to
/// `bytes`. Returns the new size.
pub fn json(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    bytes: impl FnOnce(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut rng = Rng::with_seed(seed.into());
    let edited = data.get(..size).and_then(|text| edited(text, &mut rng));
    match edited.filter(|text| text.len() <= max_size && rng.u8(..) > 32) {
        Some(text) => {
            data[..text.len()].copy_from_slice(&text);
            text.len()
        }
        None => bytes(data, size, max_size),
    }
}

/// A document with some of its values changed; `None` if it is not JSON.
pub fn edited(text: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut document: Value = serde_json::from_slice(text).ok()?;
    for _ in 0..rng.usize(1..=EDITS_MAX) {
        edit(&mut document, rng);
    }
    serde_json::to_vec(&document).ok()
}

fn edit(document: &mut Value, rng: &mut Rng) {
    let mut paths = Vec::new();
    pointers(document, "", &mut paths);
    let Some(path) = rng.choice(&paths).cloned() else {
        return;
    };
    let key = path.rsplit('/').next().unwrap_or_default().to_owned();
    let copied = rng.choice(&paths).and_then(|from| document.pointer(from));
    let copied = copied.cloned().unwrap_or_default();
    let Some(value) = document.pointer_mut(&path) else {
        return;
    };
    match rng.u8(..8) {
        0 => *value = copied,
        1 => remove(document, &path),
        2 | 3 => *value = vocabulary_value(&key, rng),
        4 => vary(value, rng),
        _ => match value {
            Value::Object(fields) => {
                let keys: Vec<_> = VOCABULARY.keys().collect();
                if let Some(key) = rng.choice(keys) {
                    fields.insert(key.clone(), vocabulary_value(key, rng));
                }
            }
            Value::Array(items) => {
                let item = rng.choice(&*items).cloned();
                let item = item.unwrap_or_else(|| vocabulary_value(&key, rng));
                items.insert(rng.usize(..=items.len()), item);
            }
            _ => *value = vocabulary_value(&key, rng),
        },
    }
}

/// A value of the vocabulary, mostly one of the field's own.
fn vocabulary_value(key: &str, rng: &mut Rng) -> Value {
    let own = VOCABULARY.get(key).filter(|_| rng.u8(..8) > 0);
    let any = || rng.choice(VOCABULARY.values());
    let values = own.or_else(any).and_then(Value::as_array);
    let chosen = values.and_then(|values| rng.choice(values));
    chosen.cloned().unwrap_or_default()
}

/// Replaces a value by a similar one.
fn vary(value: &mut Value, rng: &mut Rng) {
    match value {
        Value::Null => *value = Value::Object(Map::new()),
        Value::Bool(is) => *is = !*is,
        Value::Number(number) => {
            let number = number.as_i64().unwrap_or_default();
            let near = [
                number.wrapping_add(1),
                number.wrapping_neg(),
                number.wrapping_mul(256),
            ];
            *value = rng.choice(near).unwrap_or_default().into();
        }
        Value::String(text) => {
            let end = text.char_indices().nth(rng.usize(..=text.len()));
            let end = end.map_or(text.len(), |(end, _)| end);
            match rng.u8(..4) {
                0 => text.truncate(end),
                1 => text.insert(end, rng.char(..)),
                2 => text.insert(
                    end,
                    rng.choice(['0', '.', '-', '/', ':', '\n'])
                        .unwrap_or_default(),
                ),
                _ => *text = text.to_uppercase(),
            }
        }
        Value::Array(items) => rng.shuffle(items),
        Value::Object(fields) => {
            let keys: Vec<_> = fields.keys().cloned().collect();
            let taken = rng.choice(keys).and_then(|key| fields.remove(&key));
            let keys: Vec<_> = VOCABULARY.keys().collect();
            if let Some((key, taken)) = rng.choice(keys).zip(taken) {
                fields.insert(key.clone(), taken);
            }
        }
    }
}

fn remove(document: &mut Value, path: &str) {
    let Some((parent, key)) = path.rsplit_once('/') else {
        return;
    };
    match document.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.remove(&key.replace("~1", "/").replace("~0", "~"));
        }
        Some(Value::Array(items)) => {
            let index = key.parse().ok().filter(|index| *index < items.len());
            index.map(|index: usize| items.remove(index));
        }
        _ => {}
    }
}

/// The JSON pointers of all values below `at`.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    let mut below = |key: &str, value: &Value| {
        let at = format!("{at}/{key}");
        pointers(value, &at, all);
        all.push(at);
    };
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                below(&key.replace('~', "~0").replace('/', "~1"), value);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                below(&index.to_string(), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
