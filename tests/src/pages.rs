//! Pages of the documentation, and the comparison of what they quote with what programs print.

use std::{fs, io};

use anyhow::{Result, ensure};

use crate::paths;

/// In a quote: any text, possibly empty.
const ELLIPSIS: char = '…';

/// The text of `docs/<name>.md`.
pub fn page(name: &str) -> io::Result<String> {
    fs::read_to_string(paths::repository().join(format!("docs/{name}.md")))
}

/// The part of a page below a heading of the second level, without the heading.
pub fn section<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n"))?;
    Some(rest.split_once("\n## ").map_or(rest, |(part, _)| part))
}

/// The fenced blocks of a text in a language, each with the end of its last line.
pub fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == fence {
            let within = lines.by_ref().take_while(|line| line.trim() != "```");
            let mut block = within.collect::<Vec<_>>().join("\n");
            block.push('\n');
            blocks.push(block);
        }
    }
    blocks
}

/// The cells of every row of the tables in a text, headers and separators included.
pub fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    rows.map(|row| {
        let row = row.strip_suffix(" |").unwrap_or(row);
        row.split(" | ").map(str::trim).collect()
    })
    .collect()
}

/// The texts between backticks.
pub fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The quotes of a text: its blocks in the language `text`. A test produces each of them.
///
/// `…` at the beginning or end of a quote means any omitted text.
#[derive(Debug)]
pub struct Quotes {
    missing: Vec<String>,
}

impl Quotes {
    /// The quotes of a text, none of them produced.
    pub fn of(text: &str) -> Self {
        Self {
            missing: blocks(text, "text"),
        }
    }

    /// Whether this output equals a quote that was not produced yet.
    pub fn contain(&self, output: &str) -> bool {
        self.missing.iter().any(|quote| is_quoted(quote, output))
    }

    /// Records that a program has printed this; fails if no missing quote is equal to it.
    pub fn produced(&mut self, output: &str) -> Result<()> {
        let before = self.missing.len();
        self.missing.retain(|quote| !is_quoted(quote, output));
        ensure!(
            self.missing.len() < before,
            "the page does not quote:\n{output}\nquotes that were not produced: {:#?}",
            self.missing
        );
        Ok(())
    }

    /// Fails if a quote was not produced.
    pub fn finish(self) -> Result<()> {
        ensure!(
            self.missing.is_empty(),
            "no program printed: {:#?}",
            self.missing
        );
        Ok(())
    }
}

/// Whether the quote is the output. The whitespace at the end of both does not count.
fn is_quoted(quote: &str, output: &str) -> bool {
    let (quote, output) = (quote.trim_end(), output.trim_end());
    match (quote.strip_prefix(ELLIPSIS), quote.strip_suffix(ELLIPSIS)) {
        (None, None) => output == quote,
        (Some(end), None) => output.ends_with(end),
        (None, Some(start)) => output.starts_with(start),
        (Some(_), Some(_)) => output.contains(quote.trim_matches(ELLIPSIS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# Page\n\n## One\n\n```text\na: 1\nb: 2\n```\n\n## Two\n\n```text\n…denied…\n```\n";

    #[test]
    fn a_section_ends_before_the_next_heading() {
        assert_eq!(section(PAGE, "One"), Some("\n```text\na: 1\nb: 2\n```\n"));
        assert_eq!(section(PAGE, "Three"), None);
    }

    #[test]
    fn an_output_that_differs_from_the_quote_fails() {
        let mut quotes = Quotes::of(PAGE);
        assert!(quotes.produced("a: 1\nb: 3\n").is_err());
        assert!(quotes.produced("a: 1\n").is_err());
        quotes.produced("a: 1\nb: 2\n\n").unwrap();
        assert!(quotes.produced("a: 1\nb: 2\n").is_err(), "produced twice");
    }

    #[test]
    fn an_ellipsis_matches_any_text() {
        let mut quotes = Quotes::of(PAGE);
        assert!(quotes.contain("Error: denied by the webhook"));
        quotes.produced("Error: denied by the webhook").unwrap();
        assert!(quotes.finish().is_err(), "the first quote is missing");
        for (quote, output, quoted) in [
            ("…end", "an end", true),
            ("…end", "an end of it", false),
            ("start…", "start of it", true),
            ("start…", "a start", false),
        ] {
            assert_eq!(is_quoted(quote, output), quoted, "{quote} {output}");
        }
    }
}
