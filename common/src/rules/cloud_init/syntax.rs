//! Why a text is not YAML: the cause of the parser's error, as far as the lines around it show one, without a
//! character of the text.

use std::iter;
use std::ops::Range;

use granit_parser::{ErrorKind, ScanError};

use super::diagnostics::{Diagnostic, invalid_yaml};
use super::position::Position;
use crate::code::Code;

/// Why nesting ends.
pub(super) const TOO_DEEP: &str = "nested too deeply";

const COLON: &str = "a ':' where no key can be; put text that holds ': ' in quotes";
const INDENTATION: &str = "the indentation does not fit the lines before";
const NO_COLON: &str = "a line without ':' where a key belongs; write 'key: value'";
const NO_BLANK: &str = "a ':' without a blank behind it; write 'key: value'";
const LIST: &str = "a list that begins behind its key; put each '- ' on a line of its own";
const NO_ITEM: &str = "a ',' without a value before it";

/// Whether a quoted text continues in a way that only PyYAML reads.
pub(super) fn is_continuation(error: &ScanError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidQuotedScalarIndent | ErrorKind::TabInIndentation
    )
}

/// Whether something follows a quoted text that cannot: an earlier quote may not be closed.
pub(super) fn is_behind_quotes(error: &ScanError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidTrailingSingleQuotedScalar | ErrorKind::InvalidTrailingDoubleQuotedScalar
    )
}

/// A quote that is not closed, at its position.
pub(super) fn unclosed(opening: Position) -> Diagnostic {
    invalid_yaml(opening, "a quote that is not closed")
}

/// A quoted text that PyYAML may read and the parser does not.
pub(super) fn unchecked(position: Position) -> Diagnostic {
    not_checked(position, "a quoted text continues without indentation")
}

fn not_checked(position: Position, why: &str) -> Diagnostic {
    let text = format!("the document was not checked: {why}");
    Diagnostic::new(position, Code::DoubtfulCloudInit, text)
}

/// The first tab that is neither in one of these texts nor in a comment: PyYAML fails there.
pub(super) fn tabs(text: &str, quoted: &[Range<usize>]) -> Result<(), Diagnostic> {
    let tab = text
        .contains('\t')
        .then(|| stray_tab(text, quoted))
        .flatten();
    tab.map_or(Ok(()), |offset| Err(tab_at(text, offset)))
}

fn tab_at(text: &str, offset: usize) -> Diagnostic {
    let line_start = text[..offset].rfind('\n').map_or(0, |end| end + 1);
    let is_indentation = text[line_start..offset].trim().is_empty();
    let what = if is_indentation {
        "a tab; indent with spaces"
    } else {
        "a tab between values; use spaces"
    };
    invalid_yaml(Position::of_byte(text, offset), what)
}

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

/// The parser's error as a message for an author of user data.
pub(super) fn diagnostic(text: &str, error: &ScanError, quoted: &[Range<usize>]) -> Diagnostic {
    let position = Position::from(error.marker());
    let line = Line::of(text, position.line);
    let what = match error.kind() {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => {
            // The parser stops at the end of the text before the tab.
            let tab = text[line.start..].find('\t').map(|tab| line.start + tab);
            return match tab {
                Some(offset) => tab_at(text, offset),
                None => invalid_yaml(position, "a tab; indent with spaces"),
            };
        }
        ErrorKind::UnclosedQuotedScalar | ErrorKind::DocumentIndicatorInQuotedScalar => {
            "a quote that is not closed"
        }
        ErrorKind::UnknownQuotedScalarEscape => {
            "a backslash that escapes nothing; use single quotes"
        }
        // PyYAML accepts these two.
        ErrorKind::PlainScalarStartsWithDashFlowIndicator => {
            return not_checked(position, "a '-' alone in brackets needs quotes");
        }
        ErrorKind::CommentNotSeparated => {
            return not_checked(position, "a comment needs a space before it");
        }
        ErrorKind::UnknownAnchor => "an alias without an anchor before it",
        ErrorKind::RecursionLimitExceeded => TOO_DEEP,
        kind => {
            let read = &text[..line.start + line.text.len()];
            return tabs(read, quoted)
                .err()
                .or_else(|| cause(text, kind, position))
                .unwrap_or_else(|| structure(kind, position));
        }
    };
    invalid_yaml(position, what)
}

/// What the error itself says about keys, items and brackets.
fn structure(kind: &ErrorKind, position: Position) -> Diagnostic {
    let what = match kind {
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
        | ErrorKind::InvalidSimpleKey => COLON,
        ErrorKind::InvalidIndentation
        | ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::ExpectedBlockSequenceEntry
        | ErrorKind::BlockSequenceEntryNotAllowed
        | ErrorKind::UnexpectedEofBlockMapping
        | ErrorKind::UnexpectedEofBlockSequence => INDENTATION,
        ErrorKind::ExpectedNodeContent => NO_ITEM,
        ErrorKind::UnexpectedCharacter { .. } => {
            "a character that no value begins with; put the text in quotes"
        }
        other => return invalid_yaml(position, other),
    };
    invalid_yaml(position, what)
}

/// A mistake on the line of an error, or on the one before it, that explains the error.
fn cause(text: &str, kind: &ErrorKind, position: Position) -> Option<Diagnostic> {
    let line = Line::of(text, position.line);
    let (before, after) = line.text.split_at(line.offset(position.column));
    if after.starts_with(',') && before.trim_end().ends_with([',', '[', '{']) {
        return Some(invalid_yaml(position, NO_ITEM));
    }
    match kind {
        ErrorKind::BlockSequenceEntryNotAllowed => {
            let before = line.text.get(..line.text.find("- ")?)?;
            let key_ends = before.trim_end().ends_with(':');
            key_ends.then(|| line.fault(before.len(), LIST))
        }
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => line.without_key(),
        ErrorKind::MappingValueNotAllowed | ErrorKind::InvalidColonPlacement => {
            let is_first_key = line.text.find(": ").is_none_or(|first| {
                first + 1 >= position.column as usize || first + 1 == line.text.trim_end().len()
            });
            // The line before was read as the first part of this one.
            let before = Line::before(text, line.start)?;
            is_first_key.then(|| before.without_key()).flatten()
        }
        _ => {
            let colon = line.tight_colon()?;
            let is_in_block = !line.text.contains(['[', '{']);
            let is_behind_quote = line.text[..colon].ends_with(['\'', '"']);
            (is_in_block && is_behind_quote).then(|| line.fault(colon, NO_BLANK))
        }
    }
}

/// A line of a text, with its number and where it begins.
struct Line<'t> {
    number: u32,
    start: usize,
    text: &'t str,
}

impl<'t> Line<'t> {
    fn of(text: &'t str, number: u32) -> Self {
        let mut start = 0;
        for (index, line) in (1..).zip(text.split_inclusive('\n')) {
            if index == number {
                let text = line.trim_end_matches(['\n', '\r']);
                return Self {
                    number,
                    start,
                    text,
                };
            }
            start += line.len();
        }
        Self {
            number,
            start,
            text: "",
        }
    }

    /// The last line before an offset that is neither blank nor a comment.
    fn before(text: &'t str, offset: usize) -> Option<Self> {
        let mut last = None;
        let mut start = 0;
        for (number, line) in (1..).zip(text[..offset].split_inclusive('\n')) {
            let content = line.trim_start();
            if !content.is_empty() && !content.starts_with('#') {
                let text = line.trim_end_matches(['\n', '\r']);
                last = Some(Self {
                    number,
                    start,
                    text,
                });
            }
            start += line.len();
        }
        last
    }

    /// The offset of a column, at most the end of the line.
    fn offset(&self, column: u32) -> usize {
        let mut offsets = self.text.char_indices().map(|(offset, _)| offset);
        let offset = offsets.nth(column.saturating_sub(1) as usize);
        offset.unwrap_or(self.text.len())
    }

    fn fault(&self, offset: usize, what: &str) -> Diagnostic {
        let column = self.text[..offset].chars().count() + 1;
        let column = u32::try_from(column).unwrap_or(u32::MAX);
        let position = Position {
            line: self.number,
            column,
        };
        invalid_yaml(position, what)
    }

    /// The first ':' with a character behind it.
    fn tight_colon(&self) -> Option<usize> {
        let is_tight = |offset: &usize| {
            let next = self.text[offset + 1..].chars().next();
            next.is_some_and(|next| !next.is_whitespace())
        };
        let mut colons = self.text.match_indices(':').map(|(offset, _)| offset);
        colons.find(is_tight)
    }

    /// A line that should have a key and has none: without ':', or without a blank behind it.
    fn without_key(&self) -> Option<Diagnostic> {
        let start = self.text.len() - self.text.trim_start().len();
        let content = self.text.trim();
        let has_key = content.contains(": ") || content.ends_with(':');
        let is_other = content
            .starts_with(['[', '{', '\'', '"', '|', '>', '#', '&', '*', '!', '-'])
            || content.ends_with([',', '[', '{']);
        if has_key || is_other || content.is_empty() {
            return None;
        }
        // An address such as https://example.com is no key.
        match self.tight_colon() {
            Some(colon) if !self.text[colon..].starts_with("://") => {
                Some(self.fault(colon, NO_BLANK))
            }
            _ => Some(self.fault(start, NO_COLON)),
        }
    }
}
