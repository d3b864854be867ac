//! A YAML document as cloud-init reads it: its value, and the position of each part in the text.
//!
//! ```text
//! text ──granit-parser──▶ events ──Composer──▶ Document { value, positions }
//! ```
//! The parser reads YAML 1.2 and most of what YAML 1.1 allows. What PyYAML refuses beyond that (tabs
//! between values, control characters, unknown tags, keys that are collections, an anchor set twice,
//! a second document) is refused here; the few forms that only PyYAML accepts are not validated.

use std::ops::Range;
use std::{fmt, iter};

use granit_parser::{ErrorKind, Marker, ScanError};
use serde_json::Value;

use super::compose::Composer;
use super::diagnostics::Diagnostic;
use crate::code::Code;

/// A position in the text: line and column, both counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    line: u32,
    column: u32,
}

impl Position {
    /// The first position of a text.
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

impl From<&Marker> for Position {
    fn from(marker: &Marker) -> Self {
        Self::new(marker.line(), marker.col() + 1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Positions of a value and of everything in it.
#[derive(Clone, Debug)]
pub(super) struct PositionTree {
    /// Position of its first character.
    pub(super) at: Position,
    pub(super) children: Children,
}

#[derive(Clone, Debug)]
pub(super) enum Children {
    Nothing,
    Items(Vec<PositionTree>),
    /// Sorted by name; of two of one name the last one is used.
    Fields(Vec<Field>),
}

/// Positions of a key and its value.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: Box<str>,
    pub(super) key: Position,
    pub(super) value: PositionTree,
}

impl PositionTree {
    /// Positions of a value without items or keys.
    pub(super) fn leaf(at: Position) -> Self {
        let children = Children::Nothing;
        Self { at, children }
    }

    /// Positions of an item of a list.
    pub(super) fn item(&self, index: usize) -> Option<&Self> {
        match &self.children {
            Children::Items(items) => items.get(index),
            Children::Nothing | Children::Fields(_) => None,
        }
    }

    /// Positions of a key of a mapping and its value.
    pub(super) fn field(&self, key: &str) -> Option<&Field> {
        match &self.children {
            Children::Fields(fields) => {
                let end = fields.partition_point(|field| *field.name <= *key);
                fields[..end].last().filter(|field| *field.name == *key)
            }
            Children::Nothing | Children::Items(_) => None,
        }
    }
}

/// A document that was read.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) value: Value,
    pub(super) positions: PositionTree,
    /// Values that their author may not have meant.
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl Document {
    /// Rules [`Code::InvalidYaml`], [`Code::DuplicateYamlKey`]. A document that cannot be read gives one diagnostic.
    pub(super) fn read(text: &str) -> Result<Self, Diagnostic> {
        if let Some((offset, _)) = text.char_indices().find(|(_, c)| !is_printable(*c)) {
            let position = Position::of_byte(text, offset);
            return Err(invalid_yaml(position, "a control character; YAML has none"));
        }
        let mut composer = Composer::new(text);
        let root = composer.compose();
        // Of a text that was not read to its end, only the part that was read is validated.
        let end = composer.quoted.last().map_or(0, |range| range.end);
        let read = if root.is_ok() { text } else { &text[..end] };
        let tab = read
            .contains('\t')
            .then(|| stray_tab(read, &composer.quoted));
        if let Some(offset) = tab.flatten() {
            let position = Position::of_byte(text, offset);
            return Err(invalid_yaml(position, "a tab between values; use spaces"));
        }
        let (value, positions) = root?;
        Ok(Self {
            value,
            positions,
            diagnostics: composer.diagnostics,
        })
    }
}

/// A fault of the text itself.
pub(super) fn invalid_yaml(position: Position, what: impl fmt::Display) -> Diagnostic {
    Diagnostic::new(position, Code::InvalidYaml, format!("is not YAML: {what}"))
}

/// Characters that PyYAML's reader accepts.
fn is_printable(c: char) -> bool {
    let is_break = matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    is_break || !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// The first tab that is neither in one of these texts nor in a comment: PyYAML fails there.
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

/// The parser's error as a message for an author of user data, without a character of the text.
pub(super) fn syntax(error: &ScanError) -> Diagnostic {
    let position = Position::from(error.marker());
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
            "a quote that is not closed, or whose text continues without indentation"
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
        // PyYAML accepts these two.
        ErrorKind::PlainScalarStartsWithDashFlowIndicator => {
            return unchecked(position, "a '-' alone in brackets needs quotes");
        }
        ErrorKind::CommentNotSeparated => {
            return unchecked(position, "a comment needs a space before it");
        }
        other => return invalid_yaml(position, other),
    };
    invalid_yaml(position, what)
}

fn unchecked(position: Position, why: &str) -> Diagnostic {
    let text = format!("the document was not checked: {why}");
    Diagnostic::new(position, Code::DoubtfulCloudInit, text)
}

/// Why nesting ends.
pub(super) const TOO_DEEP: &str = "nested too deeply";
