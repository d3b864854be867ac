//! Quoted texts that continue at the left margin, or behind a tab. PyYAML joins the lines of a quoted text however
//! they are indented; the parser follows YAML 1.2 and fails. So the text is indented for the parser, and
//! positions are corrected afterwards.
//!
//! Reason: otherwise user data that boots would be refused. The suite `tests/tests/readers` compares both.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::position::{Children, Position, PositionTree};

/// Widest indentation that is added. A text that begins further to the right is rare.
const WIDTH_MAX: usize = 64;
/// Most bytes that are added.
const ADDED_MAX: usize = 1024 * 1024;

/// A text with the indentation that the parser needs.
pub(super) struct Indented<'t> {
    pub(super) text: Cow<'t, str>,
    /// Columns that were added to a line.
    added: BTreeMap<u32, u32>,
    /// Where each indented text begins, by the line of its end.
    openings: BTreeMap<u32, Position>,
}

/// What became of a quoted text.
pub(super) enum Outcome {
    /// Its further lines are indented now.
    Indented,
    /// It is never closed; the position is that of its quote.
    Unclosed(Position),
    /// It was not found, or is too long.
    Unchanged,
}

impl<'t> Indented<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text: text.into(),
            added: BTreeMap::new(),
            openings: BTreeMap::new(),
        }
    }

    /// Indents the further lines of the quoted text that a line is part of. It begins behind an offset.
    pub(super) fn indent(&mut self, mut from: usize, line: u32) -> Outcome {
        while let Some(open) = opening_quote(&self.text, from) {
            let begins = Position::of_byte(&self.text, open);
            let Some(close) = closing_quote(&self.text, open) else {
                return Outcome::Unclosed(self.original(begins));
            };
            let ends = Position::of_byte(&self.text, close);
            if ends.line < line {
                from = close + 1;
                continue;
            }
            return self.indent_lines(begins, ends.line);
        }
        Outcome::Unchanged
    }

    fn indent_lines(&mut self, begins: Position, last: u32) -> Outcome {
        let width = begins.column as usize;
        let lines = (last - begins.line) as usize;
        let is_repeated = self.openings.contains_key(&last);
        if lines == 0 || width > WIDTH_MAX || lines * width > ADDED_MAX || is_repeated {
            return Outcome::Unchanged;
        }
        self.openings.insert(last, self.original(begins));
        let mut text = String::with_capacity(self.text.len() + lines * width);
        for (number, line) in (1..).zip(self.text.split_inclusive('\n')) {
            if number > begins.line && number <= last && !line.trim().is_empty() {
                text.extend(std::iter::repeat_n(' ', width));
                *self.added.entry(number).or_default() += begins.column;
            }
            text.push_str(line);
        }
        self.text = text.into();
        Outcome::Indented
    }

    /// Where the indented text begins that ends on a line.
    pub(super) fn opening_of(&self, line: u32) -> Option<Position> {
        self.openings.get(&line).copied()
    }

    /// The position in the text as it was given.
    pub(super) fn original(&self, position: Position) -> Position {
        let added = self.added.get(&position.line).copied().unwrap_or(0);
        Position {
            line: position.line,
            column: position.column.saturating_sub(added).max(1),
        }
    }

    /// Corrects all positions of a document.
    pub(super) fn restore(&self, tree: &mut PositionTree) {
        if self.added.is_empty() {
            return;
        }
        tree.at = self.original(tree.at);
        match &mut tree.children {
            Children::Nothing => {}
            Children::Items(items) => items.iter_mut().for_each(|item| self.restore(item)),
            Children::Fields(fields) => {
                for field in fields {
                    field.key = self.original(field.key);
                    self.restore(&mut field.value);
                }
            }
        }
    }
}

/// The first quote behind an offset that begins a text.
fn opening_quote(text: &str, from: usize) -> Option<usize> {
    let mut before = text[..from].chars().next_back();
    let mut is_comment = false;
    for (offset, c) in text[from..].char_indices() {
        let is_after =
            |others: &str| before.is_none_or(|c| c.is_whitespace() || others.contains(c));
        match c {
            '\n' => is_comment = false,
            _ if is_comment => {}
            '#' if is_after("") => is_comment = true,
            '\'' | '"' if is_after(",[{:-?") => return Some(from + offset),
            _ => {}
        }
        before = Some(c);
    }
    None
}

/// The quote that ends the text. A line that separates documents ends every text.
fn closing_quote(text: &str, open: usize) -> Option<usize> {
    let quote = text[open..].chars().next()?;
    let mut chars = text[open..].char_indices().skip(1).peekable();
    while let Some((offset, c)) = chars.next() {
        let following = &text[open + offset + c.len_utf8()..];
        match c {
            '\\' if quote == '"' => drop(chars.next()),
            '\n' if is_separator(following) => return None,
            _ if c != quote => {}
            // In single quotes, two of them are one of the text.
            '\'' if following.starts_with('\'') => drop(chars.next()),
            _ => return Some(open + offset),
        }
    }
    None
}

fn is_separator(line: &str) -> bool {
    let rest = line
        .strip_prefix("---")
        .or_else(|| line.strip_prefix("..."));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quotes_of_a_text_are_found() {
        for (text, open, close) in [
            ("a: 'b\nc'\n", Some(3), Some(7)),
            ("a: \"b\\\"\nc\"\n", Some(3), Some(9)),
            ("a: 'it''s\nc'", Some(3), Some(11)),
            ("# it's 'one\na: 'b\nc'", Some(15), Some(19)),
            ("it's: 'b'", Some(6), Some(8)),
            ("[\"b\nc\"]", Some(1), Some(5)),
            ("a: 'b\n---\nc'", Some(3), None),
            ("a: 'b\n--- c'", Some(3), None),
            ("a: 'b\n---c'", Some(3), Some(10)),
            ("a: \"b\n", Some(3), None),
            ("a: b\n", None, None),
        ] {
            assert_eq!(opening_quote(text, 0), open, "{text:?}");
            assert_eq!(
                open.and_then(|open| closing_quote(text, open)),
                close,
                "{text:?}"
            );
        }
    }

    #[test]
    fn positions_are_those_of_the_given_text() {
        let mut indented = Indented::new("a: \"b\nc\", d\ne: f\n");
        assert!(matches!(indented.indent(0, 2), Outcome::Indented));
        assert_eq!(indented.text, "a: \"b\n    c\", d\ne: f\n");
        let original = |line, column| indented.original(Position { line, column });
        assert_eq!(original(2, 8), Position { line: 2, column: 4 });
        assert_eq!(original(3, 4), Position { line: 3, column: 4 });
        assert_eq!(
            indented.opening_of(2),
            Some(Position { line: 1, column: 4 })
        );
    }
}
