//! An ISO 9660 image with a few small files in its root, readable by every system that mounts a CD.
//!
//! ```text
//! sector 0    nothing                  16  volume descriptor: ISO 9660
//!       17    the same for Joliet      18  end of descriptors
//!       19    path tables: ISO 9660, little and big endian; Joliet, little and big endian
//!       23    root directory           24  the same for Joliet
//!       25    files
//! ```
//! Joliet (Microsoft, 1995) has the names as they are. Those of ISO 9660 are upper-case with a version:
//! Linux shows them in lower case and without it, so it finds the files either way. No time is written:
//! the same files give the same bytes.

use std::iter::repeat_n;

/// Size of a sector, and of all that is counted in them.
const SECTOR: usize = 2048;
/// Where the path tables begin.
const PATH_TABLES: u32 = 19;
/// Where the root directories are: ISO 9660 and Joliet.
const ROOTS: [u32; 2] = [23, 24];
/// Where the files begin.
const FILES: u32 = 25;
/// Joliet's mark in a descriptor: UCS-2 level 3.
const JOLIET: &[u8] = b"%/E";
/// Flag of a directory in its record.
const DIRECTORY: u8 = 2;
/// Length of the one record of a path table, which is the root.
const PATH_TABLE_LEN: u32 = 10;

/// How names are written in a tree.
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
        let (mut bytes, blank) = match self {
            Self::Iso => (text.as_bytes().to_vec(), &b" "[..]),
            Self::Joliet => (ucs2(text), &b"\0 "[..]),
        };
        bytes.extend(
            blank
                .iter()
                .cycle()
                .take(length.saturating_sub(bytes.len())),
        );
        bytes
    }

    const fn root(self) -> u32 {
        ROOTS[self as usize]
    }

    /// Where its path tables are: little and big endian.
    const fn path_tables(self) -> [u32; 2] {
        let first = PATH_TABLES + 2 * self as u32;
        [first, first + 1]
    }
}

fn ucs2(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_be_bytes).collect()
}

/// A file and where it is.
#[derive(Clone, Copy, Debug)]
struct File<'a> {
    name: &'a str,
    content: &'a [u8],
    at: u32,
}

/// The image of these files, which are in the order of their names.
pub(super) fn image(volume: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut end = FILES;
    let mut placed = Vec::new();
    for &(name, content) in files {
        let at = end;
        end += sectors(content.len());
        placed.push(File { name, content, at });
    }
    let files = placed;
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

/// Appends in whole sectors.
fn push(image: &mut Vec<u8>, bytes: &[u8]) {
    image.extend_from_slice(bytes);
    let padding = bytes.len().next_multiple_of(SECTOR) - bytes.len();
    image.extend(repeat_n(0, padding));
}

fn sectors(length: usize) -> u32 {
    size(length.div_ceil(SECTOR))
}

/// Nothing here comes near four gigabytes.
fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A number in both orders.
fn both(number: u32) -> Vec<u8> {
    [number.to_le_bytes(), number.to_be_bytes()].concat()
}

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
        // Volume set, publisher, preparer, application, and three files that there are not.
        text("", 128),
        text("", 128),
        text("", 128),
        text("", 128),
        text("", 37),
        text("", 37),
        text("", 37),
        // Created, modified, expires, effective.
        no_time.repeat(4),
        vec![1],
    ]
    .concat()
}

/// A path table (ECMA-119, 9.4) of nothing but the root, which is its own parent.
fn path_table(root: [u8; 4], parent: [u8; 2]) -> Vec<u8> {
    [&[1, 0][..], &root, &parent, &[0, 0]].concat()
}

/// The root directory: itself, its parent, which is itself, and the files.
fn directory(tree: Tree, files: &[File<'_>]) -> Vec<u8> {
    let root = tree.root();
    let own = [0, 1].map(|name| record(&[name], root, size(SECTOR), DIRECTORY));
    let files = files.iter().map(|file| {
        let length = size(file.content.len());
        record(&tree.name(file.name), file.at, length, 0)
    });
    own.into_iter().chain(files).collect::<Vec<_>>().concat()
}

/// A directory record (ECMA-119, 9.1), of an even length.
fn record(name: &[u8], at: u32, length: u32, flags: u8) -> Vec<u8> {
    let name_len = u8::try_from(name.len()).unwrap_or(u8::MAX);
    let padding = usize::from(name_len % 2 == 0);
    let total = u8::try_from(33 + name.len() + padding).unwrap_or(u8::MAX);
    [
        vec![total, 0],
        both(at),
        both(length),
        // Recorded at no time.
        vec![0; 7],
        vec![flags, 0, 0],
        both16(1),
        vec![name_len],
        name.to_vec(),
        vec![0; padding],
    ]
    .concat()
}
