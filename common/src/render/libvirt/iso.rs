//! Writes an ISO 9660 image with a few small files in its root directory.
//!
//! ```text
//! sector 0    zeros                    16  volume descriptor: ISO 9660
//!       17    the same for Joliet      18  end of descriptors
//!       19    path tables: ISO 9660, little and big endian; Joliet, little and big endian
//!       23    root directory           24  the same for Joliet
//!       25    files
//! ```
//! Joliet (Microsoft, 1995) stores names unchanged. Names in ISO 9660 are upper case with a version; Linux
//! shows them in lower case and without the version, so it finds the files through both trees. No time is
//! written: the same files give the same bytes.
//!
//! It is our own writer, because hadris-iso 2.0, the only crate that writes ISO 9660 with Joliet, stamps images
//! with the current time and brings 44 packages, and Linux refuses FAT with the usual 512-byte sectors on
//! a CD-ROM drive (`the_same_data_give_the_same_image_in_every_release` in `tests/seed.rs`).

use std::iter::repeat_n;

/// Size of a sector and of a logical block, in bytes.
const SECTOR: usize = 2048;
/// First sector of the path tables.
const PATH_TABLES: u32 = 19;
/// Sectors of the root directories: ISO 9660 and Joliet.
const ROOTS: [u32; 2] = [23, 24];
/// First sector of the files.
const FILES: u32 = 25;
/// Escape sequence of a Joliet descriptor: UCS-2 level 3.
const JOLIET: &[u8] = b"%/E";
/// File flag of a directory.
const DIRECTORY: u8 = 2;
/// Length in bytes of a path table, which has a single record: the root.
const PATH_TABLE_LEN: u32 = 10;

/// One of the two directory trees of an image; they differ in how names are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tree {
    Iso,
    Joliet,
}

impl Tree {
    fn name(self, name: &str) -> Vec<u8> {
        match self {
            Self::Iso => format!("{}.;1", name.to_ascii_uppercase()).into_bytes(),
            Self::Joliet => ucs2(&format!("{name};1")),
        }
    }

    /// A text padded to the length of its field.
    fn field(self, text: &str, length: usize) -> Vec<u8> {
        let (mut bytes, padding) = match self {
            Self::Iso => (text.as_bytes().to_vec(), &b" "[..]),
            Self::Joliet => (ucs2(text), &b"\0 "[..]),
        };
        bytes.extend(
            padding
                .iter()
                .cycle()
                .take(length.saturating_sub(bytes.len())),
        );
        bytes
    }

    const fn root(self) -> u32 {
        ROOTS[self as usize]
    }

    /// Sectors of the tree's path tables: little and big endian.
    const fn path_tables(self) -> [u32; 2] {
        let first = PATH_TABLES + 2 * self as u32;
        [first, first + 1]
    }
}

fn ucs2(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_be_bytes).collect()
}

/// A file and its first sector.
#[derive(Clone, Copy, Debug)]
struct File<'a> {
    name: &'a str,
    content: &'a [u8],
    sector: u32,
}

/// The image with this volume label and these files, which must be sorted by name.
pub(super) fn image(volume: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut end = FILES;
    let mut located = Vec::new();
    for &(name, content) in files {
        let sector = end;
        end += sectors(content.len());
        located.push(File {
            name,
            content,
            sector,
        });
    }
    let files = located;
    let mut image = vec![0; 16 * SECTOR];
    for tree in [Tree::Iso, Tree::Joliet] {
        push(&mut image, &descriptor(tree, volume, end));
    }
    push(&mut image, &[&[255][..], b"CD001", &[1]].concat());
    for tree in [Tree::Iso, Tree::Joliet] {
        let root = tree.root();
        push(
            &mut image,
            &path_table(root.to_le_bytes(), 1u16.to_le_bytes()),
        );
        push(
            &mut image,
            &path_table(root.to_be_bytes(), 1u16.to_be_bytes()),
        );
    }
    for tree in [Tree::Iso, Tree::Joliet] {
        push(&mut image, &directory(tree, &files));
    }
    for file in &files {
        push(&mut image, file.content);
    }
    image
}

/// Appends bytes, padded with zeros to whole sectors.
fn push(image: &mut Vec<u8>, bytes: &[u8]) {
    image.extend_from_slice(bytes);
    let padding = bytes.len().next_multiple_of(SECTOR) - bytes.len();
    image.extend(repeat_n(0, padding));
}

fn sectors(length: usize) -> u32 {
    size(length.div_ceil(SECTOR))
}

/// A number as the format stores it. It cannot overflow: a seed is limited to a few MiB by the sizes of a
/// Machine and of Secrets.
fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A number in both byte orders (ECMA-119, 7.3.3).
fn both(number: u32) -> Vec<u8> {
    [number.to_le_bytes(), number.to_be_bytes()].concat()
}

/// A 16-bit number in both byte orders (ECMA-119, 7.2.3).
fn both16(number: u16) -> Vec<u8> {
    [number.to_le_bytes(), number.to_be_bytes()].concat()
}

/// A volume descriptor (ECMA-119, 8.4 and 8.5).
fn descriptor(tree: Tree, volume: &str, sectors: u32) -> Vec<u8> {
    let [little, big] = tree.path_tables();
    let text = |text: &str, length| tree.field(text, length);
    let escape = match tree {
        Tree::Iso => &[][..],
        Tree::Joliet => JOLIET,
    };
    let escapes: Vec<_> = escape
        .iter()
        .copied()
        .chain(repeat_n(0, 32 - escape.len()))
        .collect();
    let no_time = [b"0".repeat(16), vec![0]].concat();
    [
        vec![match tree {
            Tree::Iso => 1,
            Tree::Joliet => 2,
        }],
        b"CD001\x01\0".to_vec(),
        text("", 32),
        text(volume, 32),
        vec![0; 8],
        both(sectors),
        escapes,
        both16(1),
        both16(1),
        both16(2048),
        both(PATH_TABLE_LEN),
        little.to_le_bytes().to_vec(),
        vec![0; 4],
        big.to_be_bytes().to_vec(),
        vec![0; 4],
        record(&[0], tree.root(), size(SECTOR), DIRECTORY),
        // Volume set, publisher, preparer, application, and the names of three optional files: all empty.
        text("", 128),
        text("", 128),
        text("", 128),
        text("", 128),
        text("", 37),
        text("", 37),
        text("", 37),
        // Times of creation, modification, expiration and effect: not specified.
        no_time.repeat(4),
        vec![1],
    ]
    .concat()
}

/// A path table (ECMA-119, 9.4) with the root alone, which is its own parent.
fn path_table(root: [u8; 4], parent: [u8; 2]) -> Vec<u8> {
    [&[1, 0][..], &root, &parent, &[0, 0]].concat()
}

/// The root directory: an entry for itself, an entry for its parent (itself again), and the files.
fn directory(tree: Tree, files: &[File<'_>]) -> Vec<u8> {
    let root = tree.root();
    let own = [0, 1].map(|name| record(&[name], root, size(SECTOR), DIRECTORY));
    let files = files.iter().map(|file| {
        let length = size(file.content.len());
        record(&tree.name(file.name), file.sector, length, 0)
    });
    own.into_iter().chain(files).collect::<Vec<_>>().concat()
}

/// A directory record (ECMA-119, 9.1), padded to an even length.
fn record(name: &[u8], sector: u32, length: u32, flags: u8) -> Vec<u8> {
    let name_len = u8::try_from(name.len()).unwrap_or(u8::MAX);
    let padding = usize::from(name_len % 2 == 0);
    let total = u8::try_from(33 + name.len() + padding).unwrap_or(u8::MAX);
    [
        vec![total, 0],
        both(sector),
        both(length),
        // Recording time: not specified.
        vec![0; 7],
        vec![flags, 0, 0],
        both16(1),
        vec![name_len],
        name.to_vec(),
        vec![0; padding],
    ]
    .concat()
}
