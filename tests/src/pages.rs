//! Pages of the documentation: tests hold what they say against what happens.

use std::{fs, io};

use crate::paths;

/// The text of `docs/<name>.md`.
pub fn page(name: &str) -> io::Result<String> {
    fs::read_to_string(paths::repository().join(format!("docs/{name}.md")))
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
