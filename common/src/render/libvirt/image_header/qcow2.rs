//! The header of qcow2, versions 2 and 3.
//!
//! ```text
//! 0 magic │ 4 version │ 8 backing: offset, 16 length │ 20 cluster bits │ 24 size │ 32 encryption │ 36 L1: entries,
//! 40 offset │ 48 refcount table: offset, 56 clusters │ 60 snapshots │ v3: 72 incompatible bits … 100 header length
//! extensions: type, length, data, up to a multiple of 8
//! ```

use super::{Backing, HeaderError, ImageHeader};
use crate::api::choice::VolumeFormat;

/// How every version begins; version 1 is another format.
pub(super) const MAGIC: [u8; 4] = *b"QFI\xfb";

const LENGTH_V2: u64 = 72;
const LENGTH_V3: u64 = 104;
/// Cluster sizes that QEMU takes: 512 bytes to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Largest L1 table that QEMU reads, in bytes.
const L1_MAX: u64 = 32 << 20;
/// Longest name of a backing file that QEMU reads, in bytes.
const NAME_MAX: u32 = 1023;
/// Largest order of refcounts: 64 bits each.
const REFCOUNT_ORDER_MAX: u32 = 6;

/// Incompatible bits. The image was not closed properly; QEMU corrects its refcounts when it writes.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
/// Compressed clusters are zstd.
const COMPRESSION: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xE279_2ACA;
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;
const EXTENSION_ENCRYPTION: u32 = 0x0537_BE77;

/// Reads numbers, which are big-endian.
struct Reader<'a> {
    head: &'a [u8],
    length: u64,
}

impl Reader<'_> {
    fn bytes<const N: usize>(&self, offset: u64) -> Result<[u8; N], HeaderError> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self.head.get(start..).and_then(<[u8]>::first_chunk);
        found.copied().ok_or(HeaderError::Truncated(self.length))
    }

    fn u32(&self, offset: u64) -> Result<u32, HeaderError> {
        self.bytes(offset).map(u32::from_be_bytes)
    }

    fn u64(&self, offset: u64) -> Result<u64, HeaderError> {
        self.bytes(offset).map(u64::from_be_bytes)
    }

    /// A text within the head.
    fn text(&self, offset: u64, length: u32) -> Option<String> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        Some(String::from_utf8_lossy(self.head.get(start..end)?).into_owned())
    }
}

pub(super) fn parse(head: &[u8], length: u64) -> Result<ImageHeader, HeaderError> {
    let from = Reader { head, length };
    let version = from.u32(4)?;
    if !(2..=3).contains(&version) {
        return Err(HeaderError::Version(version));
    }
    let minimum = if version == 2 { LENGTH_V2 } else { LENGTH_V3 };
    if length < minimum {
        return Err(HeaderError::Truncated(length));
    }
    let cluster_bits = from.u32(20)?;
    if !CLUSTER_BITS.contains(&cluster_bits) {
        return Err(HeaderError::Invalid("cluster size"));
    }
    let cluster = 1_u64 << cluster_bits;
    let mut header_length = LENGTH_V2;
    if version == 3 {
        features(from.u64(72)?)?;
        header_length = u64::from(from.u32(100)?);
        if header_length < LENGTH_V3 || !header_length.is_multiple_of(8) || header_length > cluster
        {
            return Err(HeaderError::Invalid("header length"));
        }
        if from.u32(96)? > REFCOUNT_ORDER_MAX {
            return Err(HeaderError::Invalid("width of refcounts"));
        }
    }
    if from.u32(32)? != 0 {
        return Err(HeaderError::Encrypted);
    }
    let backing = backing(&from, header_length, cluster)?;
    let virtual_size = from.u64(24)?;
    if i64::try_from(virtual_size).is_err() {
        return Err(HeaderError::TooLarge(virtual_size));
    }
    tables(&from, cluster_bits, virtual_size)?;
    Ok(ImageHeader {
        format: VolumeFormat::Qcow2,
        virtual_size,
        backing,
    })
}

fn features(incompatible: u64) -> Result<(), HeaderError> {
    let unknown = incompatible & !(DIRTY | CORRUPT | DATA_FILE | COMPRESSION | EXTENDED_L2);
    if incompatible & DATA_FILE != 0 {
        Err(HeaderError::DataFile)
    } else if unknown != 0 {
        Err(HeaderError::UnknownFeatures(unknown))
    } else if incompatible & CORRUPT != 0 {
        Err(HeaderError::Corrupt)
    } else {
        Ok(())
    }
}

/// The backing file, and a check of the extensions, which have its format.
fn backing(
    from: &Reader<'_>,
    header_length: u64,
    cluster: u64,
) -> Result<Option<Backing>, HeaderError> {
    let (offset, length) = (from.u64(8)?, from.u32(16)?);
    let format = extensions(
        from,
        header_length,
        if offset == 0 { cluster } else { offset },
    )?;
    if offset == 0 {
        return Ok(None);
    }
    if length > NAME_MAX {
        return Err(HeaderError::Invalid("length of its backing file's name"));
    }
    let name = from.text(offset, length);
    let name = name.ok_or(HeaderError::BackingFileName)?;
    Ok(Some(Backing { name, format }))
}

/// Walks the extensions up to `end`; returns the format of the backing file.
fn extensions(from: &Reader<'_>, start: u64, end: u64) -> Result<Option<String>, HeaderError> {
    let invalid = HeaderError::Invalid("header extension");
    let mut format = None;
    let mut at = start;
    // Each step is at least 8 bytes and stays within the head, which has a fixed size.
    while at.saturating_add(8) <= end.min(from.length) {
        let Ok((kind, length)) = from.u32(at).and_then(|kind| Ok((kind, from.u32(at + 4)?))) else {
            return Err(invalid);
        };
        match kind {
            EXTENSION_END => break,
            EXTENSION_DATA_FILE => return Err(HeaderError::DataFile),
            EXTENSION_ENCRYPTION => return Err(HeaderError::Encrypted),
            _ => {}
        }
        let data = at + 8;
        let next = data + u64::from(length).next_multiple_of(8);
        if next > end {
            return Err(invalid);
        }
        if kind == EXTENSION_BACKING_FORMAT {
            format = from.text(data, length);
        }
        at = next;
    }
    Ok(format)
}

/// Both tables that QEMU reads when it opens the file have to be in it, and have to be large enough for the disk.
fn tables(from: &Reader<'_>, cluster_bits: u32, virtual_size: u64) -> Result<(), HeaderError> {
    let (entries, offset) = (u64::from(from.u32(36)?), from.u64(40)?);
    // An entry of the L1 table is for one cluster of L2 entries of 8 bytes, each of which is for one cluster. Extended
    // entries have 16 bytes, and need a larger table.
    let per_entry = 1_u64 << (cluster_bits + cluster_bits - 3);
    if entries < virtual_size.div_ceil(per_entry) || entries * 8 > L1_MAX {
        return Err(HeaderError::Invalid("size of its L1 table"));
    }
    within(from, "L1 table", offset, entries * 8, cluster_bits)?;
    let (offset, clusters) = (from.u64(48)?, u64::from(from.u32(56)?));
    within(
        from,
        "refcount table",
        offset,
        clusters << cluster_bits,
        cluster_bits,
    )
}

fn within(
    from: &Reader<'_>,
    table: &'static str,
    offset: u64,
    length: u64,
    cluster_bits: u32,
) -> Result<(), HeaderError> {
    if offset & ((1 << cluster_bits) - 1) != 0 {
        return Err(HeaderError::Invalid(table));
    }
    let end = offset.checked_add(length);
    if end.is_none_or(|end| end > from.length) {
        return Err(HeaderError::BeyondEnd(table));
    }
    Ok(())
}
