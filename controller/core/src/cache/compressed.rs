//! A value as LZ4-compressed JSON.
//!
//! The controller caches every Machine and the objects made for it, and reads one of them at a time. Kept because of
//! the memory budget: the controller takes 124 MiB for 10,000 Machines (`docs/performance.md`), and a compressed
//! object takes about a fifth of the memory of its decoded fields. Decompressing takes microseconds; a settled
//! Machine is not decompressed at all.

use std::fmt;
use std::marker::PhantomData;

use lz4_flex::block::{compress_prepend_size, decompress_size_prepended};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A compressed `T`.
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

/// Compares the compressed bytes: equal bytes decompress to equal values, and encoding is deterministic.
impl<T> PartialEq for Compressed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.compressed == other.compressed
    }
}

/// Shows the size only: the content may be a secret of a user.
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
        reason = "derived Serialize, maps with string keys: encoding cannot fail"
    )]
    pub fn new(value: &T) -> Self {
        let text = serde_json::to_vec(value).expect("a value that encodes");
        let compressed = compress_prepend_size(&text);
        Self {
            // Copied into a box of the exact size: the vector has spare capacity.
            compressed: compressed.as_slice().into(),
            value: PhantomData,
        }
    }

    /// Decompresses the value.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "the JSON was written by `new`, and a test decodes a value of every kind"
    )]
    pub fn decompress(&self) -> T {
        let text = decompress_size_prepended(&self.compressed).expect("what was compressed");
        serde_json::from_slice(&text).expect("the JSON of a value")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, assert_survives_compression, with_full_metadata};
    use crate::machine::{CachedMachine, Machine};
    use crate::objects::{Network, Secret, StorageClass, Template};

    #[test]
    fn every_kind_survives_compression_unchanged() {
        assert_survives_compression(&with_full_metadata::<Secret>(&json!({})));
        assert_survives_compression(&with_full_metadata::<StorageClass>(
            &json!({"allowVolumeExpansion": true}),
        ));
        assert_survives_compression(&with_full_metadata::<Network>(
            &json!({"spec": {"vlan": 100, "bridge": "br0"}}),
        ));
        assert_survives_compression(&with_full_metadata::<Template>(
            &json!({"spec": {"cpu": {"cores": 2}}}),
        ));
    }

    #[test]
    fn a_machine_survives_compression_unchanged() {
        let mut machine = fixtures::machine(fixtures::block());
        machine.status = fixtures::ready("False", "PVCPending");
        machine.cloud_init = serde_json::from_value(json!({
            "user": {"Inline": "#cloud-config\n"}, "network": {"Secret": {"name": "a", "key": "b"}},
            "meta": {"instance-id": "x"},
        }))
        .unwrap();
        assert_survives_compression::<Machine>(&machine);
        let cached = CachedMachine::from(machine.clone());
        assert_eq!(format!("{:?}", cached.decompress()), format!("{machine:?}"));
        for block in [
            crate::machine::Block::Missing,
            crate::machine::Block::Stale,
            crate::machine::Block::Unreadable("why".into()),
        ] {
            machine.block = block;
            assert_survives_compression::<Machine>(&machine);
        }
    }

    #[test]
    fn debug_output_does_not_contain_the_content() {
        let compressed = Compressed::new(&"secret".repeat(10));
        assert!(!format!("{compressed:?}").contains("secret"));
    }
}
