//! Metadata of an object, decoded without what the program does not keep of it.
//!
//! ```text
//! JSON ─ what is kept ─────────────────▶ ObjectMeta
//!      ─ other keys, and managedFields ▶ skipped while they are read: they take no memory
//! ```
//! Labels of an object are limited only by its size, and so are `managedFields`: each takes some 10 bytes of JSON and some
//! 100 bytes decoded. A page of such objects, which anybody who may write Secrets or claims can make, would take ten times
//! the memory of its JSON before the first of them could be pruned
//! (`an_object_full_of_metadata_is_decoded_without_it`, `controller/core/tests/page_memory.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

/// What is kept of the metadata of a kind. Of owner references and finalizers nothing is, unless it says so.
pub trait Kept {
    /// Whether a label of this key is kept.
    fn keeps_label(key: &str) -> bool;

    /// Whether an annotation of this key is kept.
    fn keeps_annotation(key: &str) -> bool;

    /// Adds an owner reference to those that were read before, if it is kept.
    fn add_owner(_owners: &mut Vec<OwnerReference>, _owner: OwnerReference) {}

    /// Adds a finalizer to those that were read before, if it is kept.
    fn add_finalizer(_finalizers: &mut Vec<String>, _finalizer: String) {}
}

/// Nothing but the identity of the object, its times and its generation.
#[derive(Debug)]
pub enum Identity {}

impl Kept for Identity {
    fn keeps_label(_: &str) -> bool {
        false
    }

    fn keeps_annotation(_: &str) -> bool {
        false
    }
}

/// Decodes metadata of which `K` says what is kept: for `#[serde(deserialize_with = "..")]`.
pub fn kept<'de, D, K>(deserializer: D) -> Result<ObjectMeta, D::Error>
where
    D: Deserializer<'de>,
    K: Kept,
{
    let read = Read::<K>::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        generation: read.generation,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        labels: read.labels,
        annotations: read.annotations,
        finalizers: read.finalizers,
        owner_references: read.owner_references,
        ..ObjectMeta::default()
    })
}

/// Every field of the metadata that can be kept; the others are skipped.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "K: Kept")]
struct Read<K> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    #[serde(default, deserialize_with = "labels::<_, K>")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "annotations::<_, K>")]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "finalizers::<_, K>")]
    finalizers: Option<Vec<String>>,
    #[serde(default, deserialize_with = "owners::<_, K>")]
    owner_references: Option<Vec<OwnerReference>>,
    #[serde(skip)]
    kept: PhantomData<K>,
}

fn labels<'de, D, K>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error>
where
    D: Deserializer<'de>,
    K: Kept,
{
    deserializer.deserialize_option(Texts(K::keeps_label))
}

fn annotations<'de, D, K>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error>
where
    D: Deserializer<'de>,
    K: Kept,
{
    deserializer.deserialize_option(Texts(K::keeps_annotation))
}

fn finalizers<'de, D, K>(deserializer: D) -> Result<Option<Vec<String>>, D::Error>
where
    D: Deserializer<'de>,
    K: Kept,
{
    deserializer.deserialize_option(Items(K::add_finalizer))
}

fn owners<'de, D, K>(deserializer: D) -> Result<Option<Vec<OwnerReference>>, D::Error>
where
    D: Deserializer<'de>,
    K: Kept,
{
    deserializer.deserialize_option(Items(K::add_owner))
}

/// Reads a map of texts, without the keys that are not kept.
#[derive(Clone, Copy)]
struct Texts(fn(&str) -> bool);

impl<'de> Visitor<'de> for Texts {
    type Value = Option<BTreeMap<String, String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of texts")
    }

    fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut texts = BTreeMap::new();
        while let Some(key) = map.next_key_seed(Key(self.0))? {
            match key {
                Some(key) => drop(texts.insert(key, map.next_value()?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Some(texts))
    }
}

/// Reads a key; `None`: it is not kept, and nothing was allocated for it.
struct Key(fn(&str) -> bool);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok((self.0)(key).then(|| key.to_owned()))
    }
}

/// Reads a list, one item at a time; the function adds those that are kept.
struct Items<T>(fn(&mut Vec<T>, T));

impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(item) = items.next_element()? {
            (self.0)(&mut kept, item);
        }
        Ok(Some(kept))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    enum Own {}

    impl Kept for Own {
        fn keeps_label(key: &str) -> bool {
            key == "own/label"
        }

        fn keeps_annotation(key: &str) -> bool {
            key == "own/annotation"
        }

        fn add_owner(owners: &mut Vec<OwnerReference>, owner: OwnerReference) {
            owners.extend((owner.kind == "Machine").then_some(owner));
        }

        fn add_finalizer(finalizers: &mut Vec<String>, finalizer: String) {
            finalizers.push(finalizer);
            finalizers.truncate(2);
        }
    }

    fn decoded<K: Kept>(metadata: &Value) -> Value {
        json!(kept::<_, K>(metadata).unwrap())
    }

    #[test]
    fn an_object_full_of_metadata_is_decoded_without_it() {
        let many = || (0..50_000).map(|it| (format!("x/{it}"), json!("")));
        let owner =
            |kind: &str| json!({"apiVersion": "v1", "kind": kind, "name": "web", "uid": "u"});
        let with = |key: &str| many().chain([(key.to_owned(), json!("text"))]);
        let metadata = json!({
            "name": "web", "namespace": "prod", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T03:04:05Z",
            "deletionGracePeriodSeconds": 30,
            "labels": with("own/label").collect::<Value>(),
            "annotations": with("own/annotation").collect::<Value>(),
            "finalizers": ["a", "b", "c"],
            "ownerReferences": [owner("Job"), owner("Machine")],
            "managedFields": [{"manager": "kubectl", "fieldsV1": many().collect::<Value>()}],
            "selfLink": "x", "generateName": "x", "unknown": {"a": [1]},
        });
        let identity = json!({
            "name": "web", "namespace": "prod", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T03:04:05Z",
            "deletionGracePeriodSeconds": 30,
            "labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": [],
        });
        assert_eq!(decoded::<Identity>(&metadata), identity);
        let mut own = identity;
        own["labels"] = json!({"own/label": "text"});
        own["annotations"] = json!({"own/annotation": "text"});
        own["finalizers"] = json!(["a", "b"]);
        own["ownerReferences"] = json!([owner("Machine")]);
        assert_eq!(decoded::<Own>(&metadata), own);
    }

    #[test]
    fn what_is_absent_or_null_is_absent() {
        assert_eq!(decoded::<Own>(&json!({})), json!({}));
        let null = json!({
            "name": null, "labels": null, "annotations": null, "finalizers": null, "ownerReferences": null,
        });
        assert_eq!(decoded::<Own>(&null), json!({}));
    }
}
