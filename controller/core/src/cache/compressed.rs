//! A value as LZ4-compressed JSON.
//!
//! The controller caches every Machine and the objects made for it, and reads one of them at a time. Kept because of
//! the memory budget: the controller takes 127 MiB for 10,000 Machines (`docs/performance.md`), and a compressed
//! object takes about a fifth of the memory of its decoded fields. Decompressing takes microseconds, and happens once in
//! each pass: a settled Machine on KubeVirt has one every ten minutes.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
    uncompressed_size,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What compressing and decompressing need besides the value. Each thread keeps its own: allocated and freed for each
/// object, buffers of some 10 KiB between the compressed objects that stay would fragment the heap, and every
/// allocation would cost more with every cached object.
#[derive(Default)]
struct Buffers {
    text: Vec<u8>,
    compressed: Vec<u8>,
    table: CompressTable,
}

/// Buffers that an unusually large object made larger than this are not kept, bytes.
const KEPT: usize = 256 << 10;

thread_local! {
    static BUFFERS: Cell<Buffers> = Cell::default();
}

/// Lends the buffers of this thread. A use within a use gets new ones.
fn with_buffers<R>(use_them: impl FnOnce(&mut Buffers) -> R) -> R {
    let mut buffers = BUFFERS.take();
    let result = use_them(&mut buffers);
    if buffers.text.capacity() + buffers.compressed.capacity() <= KEPT {
        BUFFERS.set(buffers);
    }
    result
}

/// A compressed `T`: four bytes with the size of the JSON, little-endian, and the LZ4 block.
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
        with_buffers(|buffers| {
            let Buffers {
                text,
                compressed,
                table,
            } = buffers;
            text.clear();
            serde_json::to_writer(&mut *text, value).expect("a value that encodes");
            compressed.resize(get_maximum_output_size(text.len()), 0);
            // A table for large objects stays one, and its output differs: equal values must have equal bytes.
            let mut large = (text.len() >= usize::from(u16::MAX)).then(CompressTable::large);
            let table = large.as_mut().unwrap_or(table);
            let size = compress_into_with_table(text, compressed, table).expect("room for all");
            let mut exact = Vec::with_capacity(size_of::<u32>() + size);
            let length = u32::try_from(text.len()).expect("an object of less than 4 GiB");
            exact.extend_from_slice(&length.to_le_bytes());
            exact.extend_from_slice(&compressed[..size]);
            Self {
                compressed: exact.into_boxed_slice(),
                value: PhantomData,
            }
        })
    }

    /// Decompresses the value.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "the JSON was written by `new`, and a test decodes a value of every kind"
    )]
    pub fn decompress(&self) -> T {
        with_buffers(|buffers| {
            let (length, block) = uncompressed_size(&self.compressed).expect("the size");
            buffers.text.resize(length, 0);
            decompress_into(block, &mut buffers.text).expect("what was compressed");
            serde_json::from_slice(&buffers.text).expect("the JSON of a value")
        })
    }
}

#[cfg(test)]
impl<T> Compressed<T> {
    /// A value that panics when it is decompressed.
    pub(crate) fn unreadable() -> Self {
        Self {
            compressed: Box::default(),
            value: PhantomData,
        }
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

    /// Caches are compared by their bytes.
    #[test]
    fn equal_values_have_equal_bytes_whatever_the_thread_compressed_before() {
        let small = json!({"a": "b".repeat(100), "c": "d".repeat(1000)});
        let before = Compressed::new(&small);
        let large = json!({"a": (0..100_000).collect::<Vec<u32>>()});
        let compressed = Compressed::new(&large);
        assert_eq!(compressed.decompress(), large);
        assert!(Compressed::new(&small) == before);
        assert!(Compressed::new(&large) == compressed);
        assert_eq!(before.decompress(), small);
    }

    #[test]
    fn debug_output_does_not_contain_the_content() {
        let compressed = Compressed::new(&"secret".repeat(10));
        assert!(!format!("{compressed:?}").contains("secret"));
    }
}
