//! A YAML document as cloud-init reads it: its value, and the position of each part in the text.
//!
//! ```text
//! text ──granit-parser──▶ events ──Composer──▶ Document { value, positions }
//!           └── error ──syntax──▶ its cause
//! ```
//! The parser reads YAML 1.2 and most of what YAML 1.1 allows. What PyYAML refuses beyond that (tabs
//! between values, control characters, unknown tags, keys that are collections, an anchor set twice,
//! a second document) is refused here; the few forms that only PyYAML accepts are not validated.

use serde_json::Value;

use super::compose::{Composer, Fault};
use super::diagnostics::{Diagnostic, invalid_yaml};
use super::position::{Position, PositionTree};
use super::quotes::{Indented, Outcome};
use super::syntax;

/// Most quoted texts that are indented.
const ATTEMPTS_MAX: usize = 32;

/// A document that was read.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) value: Value,
    pub(super) positions: PositionTree,
    /// Values that their author may not have meant.
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl Document {
    /// Rules [`InvalidYaml`](crate::code::Code::InvalidYaml), [`DuplicateYamlKey`](crate::code::Code::DuplicateYamlKey). A document that cannot be read gives one diagnostic.
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

/// Characters that PyYAML's reader accepts.
fn is_printable(c: char) -> bool {
    let is_break = matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    is_break || !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}')
}
