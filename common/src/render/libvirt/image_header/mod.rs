//! Headers of disk images: what a file is before anything reads it as a disk.
//!
//! ```text
//! first bytes, length ─▶ parse ─┬─▶ ImageHeader: qcow2 or raw, size of the guest's disk, backing file if it names one
//!                               └─▶ HeaderError: why no disk is made of it
//! ```
//! QEMU opens whatever file a header names: a backing file or an external data file may be any file or URL that the
//! host can read. So an image is parsed before anything is made of it, and its format is never left to be probed
//! (`a_qcow2_that_qemu_could_not_open_or_that_names_another_file_is_refused` in `tests.rs`).
//! Offsets and bits are those of QEMU's specification of qcow2 (docs/interop/qcow2.rst).

mod qcow2;

use std::fmt;

use crate::api::choice::VolumeFormat;

/// How many bytes of a file are enough for [`parse`]. QEMU writes the name of a backing file right behind the header.
pub const HEAD_BYTES: usize = 64 << 10;

/// What the header of an image says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// The format of the file.
    pub format: VolumeFormat,
    /// Size of the disk that a guest sees, in bytes.
    pub virtual_size: u64,
    /// The file that the image takes the rest of its content from; `None`: it has all of it.
    pub backing: Option<Backing>,
}

/// The file that an image takes the rest of its content from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// A path, an URL or a `json:` description, as the header has it.
    pub name: String,
    /// Its format; `None`: QEMU would probe it.
    pub format: Option<String>,
}

impl ImageHeader {
    /// The header of an image that needs no other file.
    pub fn standalone(self) -> Result<Self, HeaderError> {
        match self.backing {
            Some(backing) => Err(HeaderError::BackingFile(Quoted(backing.name))),
            None => Ok(self),
        }
    }
}

/// A text of an untrusted file in a message: cut, and without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted(pub String);

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Enough for a path; the rest says no more about what to do.
        const SHOWN_MAX: usize = 128;
        let shown = self.0.chars().take(SHOWN_MAX);
        let shown: String = shown
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        let more = if self.0.chars().nth(SHOWN_MAX).is_some() {
            "…"
        } else {
            ""
        };
        write!(f, "'{shown}{more}'")
    }
}

/// Why no disk is made of a file. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The file has no bytes.
    #[error("is empty: put the image there again")]
    Empty,
    /// It ends within its header.
    #[error("is cut off after {0} bytes, within its qcow2 header: put the whole image there again")]
    Truncated(u64),
    /// Another format than qcow2 or raw.
    #[error("is {0}, and images are qcow2 or raw: {1}")]
    OtherFormat(&'static str, Conversion),
    /// A version of qcow2 that QEMU does not read.
    #[error("has qcow2 version {0}, and versions 2 and 3 are read: {CONVERT}")]
    Version(u32),
    /// It is an overlay of another file.
    #[error("has the backing file {0}, which the host would open: {CONVERT}")]
    BackingFile(Quoted),
    /// The name of its backing file is not where QEMU writes it.
    #[error("has a backing file whose name is not within the first {} KiB: {CONVERT}", HEAD_BYTES >> 10)]
    BackingFileName,
    /// Its content is in another file.
    #[error("has its content in an external data file, which the host would open: {CONVERT}")]
    DataFile,
    /// Its content is encrypted.
    #[error("is encrypted, and no key is known: decrypt it with 'qemu-img convert'")]
    Encrypted,
    /// QEMU marked it as corrupt.
    #[error("is marked as corrupt: repair it with 'qemu-img check -r all', or put it there again")]
    Corrupt,
    /// It needs a feature that this program does not know.
    #[error("needs unknown features (incompatible bits {0:#x}): {CONVERT}")]
    UnknownFeatures(u64),
    /// A field has a value that no program writes.
    #[error(
        "has an invalid {0}: put the whole image there again, or write it again with 'qemu-img convert'"
    )]
    Invalid(&'static str),
    /// A table is outside of the file.
    #[error("is cut off: its {0} is beyond its end; put the whole image there again")]
    BeyondEnd(&'static str),
    /// The disk is larger than any host has.
    #[error(
        "is for a disk of {0} bytes, and a disk has less than 2^63: write it again with 'qemu-img convert'"
    )]
    TooLarge(u64),
}

const CONVERT: &str = "write it as one file with 'qemu-img convert -O qcow2'";

/// How a file of another format becomes an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// QEMU reads it.
    Convert,
    /// It contains the image.
    Unpack,
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Convert => CONVERT,
            Self::Unpack => "unpack it, and offer the file that is in it",
        })
    }
}

/// Parses the header of a file. `head`: its first [`HEAD_BYTES`], or all if it is shorter. `length`: of the whole
/// file, in bytes.
pub fn parse(head: &[u8], length: u64) -> Result<ImageHeader, HeaderError> {
    if head.is_empty() || length == 0 {
        return Err(HeaderError::Empty);
    }
    if head.starts_with(&qcow2::MAGIC) {
        return qcow2::parse(head, length);
    }
    let known = OTHER_FORMATS.iter().find(|known| {
        let at = head.get(known.offset..).unwrap_or_default();
        at.starts_with(known.magic)
    });
    match known {
        Some(known) => Err(HeaderError::OtherFormat(known.name, known.conversion)),
        None if i64::try_from(length).is_err() => Err(HeaderError::TooLarge(length)),
        None => Ok(ImageHeader {
            format: VolumeFormat::Raw,
            virtual_size: length,
            backing: None,
        }),
    }
}

/// A format that no disk is made of, and how its files begin.
struct OtherFormat {
    name: &'static str,
    offset: usize,
    magic: &'static [u8],
    conversion: Conversion,
}

const fn disk(name: &'static str, offset: usize, magic: &'static [u8]) -> OtherFormat {
    OtherFormat {
        name,
        offset,
        magic,
        conversion: Conversion::Convert,
    }
}

const fn archive(name: &'static str, offset: usize, magic: &'static [u8]) -> OtherFormat {
    OtherFormat {
        name,
        offset,
        magic,
        conversion: Conversion::Unpack,
    }
}

/// Formats that QEMU or libvirt would probe, and archives that images are distributed in.
const OTHER_FORMATS: [OtherFormat; 20] = [
    disk("a VMDK image", 0, b"KDMV"),
    disk("a VMDK image", 0, b"COWD"),
    disk("a VMDK descriptor", 0, b"# Disk DescriptorFile"),
    disk("a VHDX image", 0, b"vhdxfile"),
    disk("a VHD image", 0, b"conectix"),
    disk("a VDI image", 0x40, b"\x7f\x10\xda\xbe"),
    disk("a LUKS volume", 0, b"LUKS\xba\xbe"),
    disk("a QED image", 0, b"QED\0"),
    disk("a Parallels image", 0, b"WithoutFreeSpace"),
    disk("a Parallels image", 0, b"WithouFreSpacExt"),
    disk("a COW image", 0, b"OOOM"),
    disk("a Bochs image", 0, b"Bochs Virtual HD Image"),
    disk("a cloop image", 0, b"#!/bin/sh\n#V2.0 Format\n"),
    archive("a gzip file", 0, b"\x1f\x8b\x08"),
    archive("an xz file", 0, b"\xfd7zXZ\0"),
    archive("a zstd file", 0, b"\x28\xb5\x2f\xfd"),
    archive("a bzip2 file", 0, b"BZh"),
    archive("a zip archive", 0, b"PK\x03\x04"),
    archive("a 7z archive", 0, b"7z\xbc\xaf\x27\x1c"),
    archive("a tar archive (an OVA is one)", 257, b"ustar"),
];

#[cfg(test)]
mod tests;
