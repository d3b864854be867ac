//! A YAML document as cloud-init reads it: its value, and where in the text each part of it stands.
//!
//! ```text
//! text ──granit-parser──▶ events ──Composer──▶ Document { value, marks }
//! ```
//! The parser reads YAML 1.2 and most of what YAML 1.1 allows. What PyYAML refuses beyond that (tabs
//! between values, control characters, unknown tags, keys that are collections, an anchor set twice,
//! a second document) is refused here; the little that only PyYAML takes is left unjudged.

use std::ops::Range;
use std::{fmt, iter};

use granit_parser::{ErrorKind, Marker, ScanError};
use serde_json::Value;

use super::compose::Composer;
use super::remarks::Remark;
use crate::code::Code;

/// A place in the text, both counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    line: u32,
    column: u32,
}

impl Mark {
    /// The first place of a text.
    pub(super) const START: Self = Self { line: 1, column: 1 };

    fn new(line: usize, column: usize) -> Self {
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            line: narrow(line),
            column: narrow(column),
        }
    }

    fn of_byte(text: &str, offset: usize) -> Self {
        let before = &text[..offset];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        Self::new(
            before.matches('\n').count() + 1,
            before[line_start..].chars().count() + 1,
        )
    }
}

impl From<&Marker> for Mark {
    fn from(marker: &Marker) -> Self {
        Self::new(marker.line(), marker.col() + 1)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Where a value and all that is in it stand.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    /// Where it begins.
    pub(super) at: Mark,
    pub(super) below: Below,
}

#[derive(Clone, Debug)]
pub(super) enum Below {
    Nothing,
    Items(Vec<Marks>),
    /// Sorted by name; of two of one name the last one counts.
    Fields(Vec<Field>),
}

/// Where a key and its value stand.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: Box<str>,
    pub(super) key: Mark,
    pub(super) value: Marks,
}

impl Marks {
    /// Those of a value with nothing in it.
    pub(super) fn leaf(at: Mark) -> Self {
        let below = Below::Nothing;
        Self { at, below }
    }

    /// Those of an item of a list.
    pub(super) fn item(&self, index: usize) -> Option<&Self> {
        match &self.below {
            Below::Items(items) => items.get(index),
            Below::Nothing | Below::Fields(_) => None,
        }
    }

    /// Those of a key of a mapping and its value.
    pub(super) fn field(&self, key: &str) -> Option<&Field> {
        match &self.below {
            Below::Fields(fields) => {
                let end = fields.partition_point(|field| *field.name <= *key);
                fields[..end].last().filter(|field| *field.name == *key)
            }
            Below::Nothing | Below::Items(_) => None,
        }
    }
}

/// A document that was read.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) value: Value,
    pub(super) marks: Marks,
    /// What its author may not have meant.
    pub(super) remarks: Vec<Remark>,
}

impl Document {
    /// Rules [`Code::InvalidYaml`], [`Code::DuplicateYamlKey`]. What cannot be read leaves one remark.
    pub(super) fn read(text: &str) -> Result<Self, Remark> {
        if let Some((offset, _)) = text.char_indices().find(|(_, c)| !is_printable(*c)) {
            let mark = Mark::of_byte(text, offset);
            return Err(broken(mark, "a control character; YAML has none"));
        }
        let mut composer = Composer::new(text);
        let root = composer.compose();
        // Of a text that was not read to its end, only what was read is judged.
        let end = composer.quoted.last().map_or(0, |range| range.end);
        let read = if root.is_ok() { text } else { &text[..end] };
        let tab = read
            .contains('\t')
            .then(|| stray_tab(read, &composer.quoted));
        if let Some(offset) = tab.flatten() {
            let mark = Mark::of_byte(text, offset);
            return Err(broken(mark, "a tab between values; use spaces"));
        }
        let (value, marks) = root?;
        Ok(Self {
            value,
            marks,
            remarks: composer.remarks,
        })
    }
}

/// A fault of the text itself.
pub(super) fn broken(mark: Mark, what: impl fmt::Display) -> Remark {
    Remark::new(mark, Code::InvalidYaml, format!("is not YAML: {what}"))
}

/// What PyYAML's reader lets pass.
fn is_printable(c: char) -> bool {
    let is_break = matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    is_break || !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// The first tab that stands neither in one of these texts nor in a comment; PyYAML stops there.
fn stray_tab(text: &str, quoted: &[Range<usize>]) -> Option<usize> {
    let starts = iter::once(0).chain(quoted.iter().map(|range| range.end));
    let ends = quoted.iter().map(|range| range.start);
    let gaps = starts.zip(ends.chain(iter::once(text.len())));
    gaps.into_iter().find_map(|(start, end)| {
        let mut line_start = start;
        text.get(start..end)?
            .split_inclusive('\n')
            .find_map(|line| {
                let offset = line_start;
                line_start += line.len();
                let first = line.find(['\t', '#'])?;
                line[first..].starts_with('\t').then_some(offset + first)
            })
    })
}

/// The parser's fault in words that help somebody who writes user data, without a character of it.
pub(super) fn syntax(error: &ScanError) -> Remark {
    let mark = Mark::from(error.marker());
    let what = match error.kind() {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => "a tab; indent with spaces",
        ErrorKind::UnclosedQuotedScalar | ErrorKind::DocumentIndicatorInQuotedScalar => {
            "a quote that is not closed"
        }
        // A quote that PyYAML finds closed further down, without indentation, is refused with it:
        // the common fault is not to close it.
        ErrorKind::InvalidQuotedScalarIndent => {
            "a quote that is not closed, or whose text goes on without indentation"
        }
        ErrorKind::UnknownQuotedScalarEscape => {
            "a backslash that escapes nothing; use single quotes"
        }
        ErrorKind::UnclosedFlowCollection { .. }
        | ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofFlowSequence
        | ErrorKind::UnexpectedEofImplicitFlowMapping => "a bracket that is not closed",
        ErrorKind::MisplacedFlowCollectionEnd | ErrorKind::MismatchedFlowCollectionEnd { .. } => {
            "a closing bracket that was not opened"
        }
        ErrorKind::MappingValueNotAllowed
        | ErrorKind::InvalidColonPlacement
        | ErrorKind::SimpleKeyExpected
        | ErrorKind::InvalidSimpleKey => {
            "a ':' where no key can be; put text that holds ': ' in quotes"
        }
        ErrorKind::InvalidIndentation
        | ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::ExpectedBlockSequenceEntry
        | ErrorKind::BlockSequenceEntryNotAllowed
        | ErrorKind::UnexpectedEofBlockMapping
        | ErrorKind::UnexpectedEofBlockSequence => "the indentation does not fit the lines before",
        ErrorKind::UnexpectedCharacter { .. } => {
            "a character that no value begins with; put the text in quotes"
        }
        ErrorKind::UnknownAnchor => "an alias without an anchor before it",
        ErrorKind::RecursionLimitExceeded => TOO_DEEP,
        // PyYAML takes these two.
        ErrorKind::PlainScalarStartsWithDashFlowIndicator => {
            return unchecked(mark, "a '-' alone in brackets needs quotes");
        }
        ErrorKind::CommentNotSeparated => {
            return unchecked(mark, "a comment needs a space before it");
        }
        other => return broken(mark, other),
    };
    broken(mark, what)
}

fn unchecked(mark: Mark, why: &str) -> Remark {
    let text = format!("the document was not checked: {why}");
    Remark::new(mark, Code::DoubtfulCloudInit, text)
}

/// Why nesting ends.
pub(super) const TOO_DEEP: &str = "nested deeper than any setting";
