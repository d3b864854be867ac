//! A YAML document as cloud-init reads it: its value, and the position of each part in the text.
//!
//! ```text
//! text ──granit-parser──▶ events ──Composer──▶ Document { value, positions }
//!           └── error ──syntax──▶ its cause
//! ```
//! The parser reads YAML 1.2 and most of what YAML 1.1 allows. What PyYAML refuses beyond that (tabs
//! between values, control characters, unknown tags, keys that are collections, an anchor set twice,
//! a second document) is refused here; the few forms that only PyYAML accepts are not validated.

use std::fmt;

use granit_parser::Marker;
use serde_json::Value;

use super::compose::{Composer, Fault};
use super::diagnostics::Diagnostic;
use super::quotes::{Indented, Outcome};
use super::syntax;
use crate::code::Code;

/// Most quoted texts that are indented.
const ATTEMPTS_MAX: usize = 32;

/// A position in the text: line and column, both counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: u32,
    pub(super) column: u32,
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

    pub(super) fn of_byte(text: &str, offset: usize) -> Self {
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
        let mut indented = Indented::new(text);
        let result = Self::read_indented(&mut indented);
        let mut document = result.map_err(|mut diagnostic| {
            diagnostic.position = indented.original(diagnostic.position);
            diagnostic
        })?;
        indented.restore(&mut document.positions);
        for diagnostic in &mut document.diagnostics {
            diagnostic.position = indented.original(diagnostic.position);
        }
        Ok(document)
    }

    /// Indents each quoted text that the parser fails at, and starts again.
    fn read_indented(indented: &mut Indented<'_>) -> Result<Self, Diagnostic> {
        for attempt in 0.. {
            let text = &*indented.text;
            let mut composer = Composer::new(text);
            let root = composer.compose();
            let error = match root {
                Ok((value, positions)) => {
                    syntax::tabs(text, &composer.quoted)?;
                    return Ok(Self {
                        value,
                        positions,
                        diagnostics: composer.diagnostics,
                    });
                }
                Err(Fault::Composer(diagnostic)) => {
                    // Only the part that was read.
                    syntax::tabs(&text[..composer.read.min(text.len())], &composer.quoted)?;
                    return Err(diagnostic);
                }
                Err(Fault::Parser(error)) => error,
            };
            let position = Position::from(error.marker());
            if syntax::is_continuation(&error) {
                match indented.indent(composer.read, position.line) {
                    Outcome::Indented if attempt < ATTEMPTS_MAX => continue,
                    Outcome::Unclosed(opening) => return Err(syntax::unclosed(opening)),
                    Outcome::Indented | Outcome::Unchanged => {
                        return Err(syntax::unchecked(position));
                    }
                }
            }
            if syntax::is_behind_quotes(&error)
                && let Some(opening) = indented.opening_of(position.line)
            {
                return Err(syntax::unclosed(opening));
            }
            return Err(syntax::diagnostic(text, &error, &composer.quoted));
        }
        Err(syntax::unchecked(Position::START))
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
