//! Positions of a value and of its parts in the text that it was read from.

use std::fmt;

use granit_parser::Marker;

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
