//! A value at rest, as its JSON text, compressed: a fifth of the memory that its fields take.
//!
//! A controller keeps every Machine and all that was made of it, and looks at each of them twice a
//! minute when nothing happens. What a pass needs is opened for the pass, in some microseconds each.

use std::fmt;
use std::marker::PhantomData;

use lz4_flex::block::{compress_prepend_size, decompress_size_prepended};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A `T` at rest.
pub struct Compressed<T> {
    compressed: Box<[u8]>,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Compressed<T> {
    fn clone(&self) -> Self {
        Self {
            compressed: self.compressed.clone(),
            value: PhantomData,
        }
    }
}

/// Whatever is equal decodes to equal values.
impl<T> PartialEq for Compressed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.compressed == other.compressed
    }
}

/// Without the content, which may be a user's.
impl<T> fmt::Debug for Compressed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compressed({} bytes)", self.compressed.len())
    }
}

impl<T: Serialize + DeserializeOwned> Compressed<T> {
    /// Compresses a value.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "derived, with texts as keys: what is kept here always encodes"
    )]
    pub fn of(value: &T) -> Self {
        let text = serde_json::to_vec(value).expect("a value that encodes");
        let compressed = compress_prepend_size(&text);
        Self {
            // A copy, so that nothing is left over behind it.
            compressed: compressed.as_slice().into(),
            value: PhantomData,
        }
    }

    /// The value.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "the text is that of a value, and a test decodes one of every kind"
    )]
    pub fn open(&self) -> T {
        let text = decompress_size_prepended(&self.compressed).expect("what was compressed");
        serde_json::from_slice(&text).expect("the text of a value")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;
    use crate::machine::{CachedMachine, Machine};
    use crate::objects::{Network, Secret, StorageClass, Template};

    fn comes_back<T: Serialize + DeserializeOwned + fmt::Debug>(value: &T) {
        let back = Compressed::of(value).open();
        assert_eq!(format!("{back:?}"), format!("{value:?}"));
    }

    fn decoded<T: DeserializeOwned>(object: &Value) -> T {
        let metadata = json!({
            "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7",
            "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"vitistack.io/machine": "web"}, "annotations": {"vitistack.io/x": "\"ü\n"},
            "finalizers": ["a"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "b", "uid": "c"}],
        });
        let mut object = object.clone();
        object["metadata"] = metadata;
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn every_kind_comes_back_as_it_was() {
        comes_back(&decoded::<Secret>(&json!({})));
        comes_back(&decoded::<StorageClass>(
            &json!({"allowVolumeExpansion": true}),
        ));
        comes_back(&decoded::<Network>(
            &json!({"spec": {"vlan": 100, "bridge": "br0"}}),
        ));
        comes_back(&decoded::<Template>(
            &json!({"spec": {"cpu": {"cores": 2}}}),
        ));
    }

    #[test]
    fn a_machine_comes_back_as_it_was() {
        let mut machine = fixtures::machine(fixtures::block());
        machine.status = fixtures::ready("False", "PVCPending");
        machine.cloud_init = serde_json::from_value(json!({
            "user": {"Inline": "#cloud-config\n"}, "network": {"Secret": {"name": "a", "key": "b"}},
            "meta": {"instance-id": "x"},
        }))
        .unwrap();
        comes_back::<Machine>(&machine);
        let stored = CachedMachine::from(machine.clone());
        assert_eq!(format!("{:?}", stored.open()), format!("{machine:?}"));
        for block in [
            crate::machine::Block::Missing,
            crate::machine::Block::Stale,
            crate::machine::Block::Unreadable("why".into()),
        ] {
            machine.block = block;
            comes_back::<Machine>(&machine);
        }
    }

    #[test]
    fn nothing_of_the_content_is_printed() {
        let packed = Compressed::of(&"secret".repeat(10));
        assert!(!format!("{packed:?}").contains("secret"));
    }
}
