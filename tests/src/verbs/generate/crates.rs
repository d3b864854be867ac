//! The graph of the crates in `docs/development.md`.

use std::fs;

use anyhow::{Context as _, Result};
use lab::{layers, paths};

/// The page, from the root of the repository. Only the graph in it is generated.
pub(super) const PAGE: &str = "docs/development.md";

/// The lines of the page that the graph is written between.
const BEGIN: &str = "<!-- crates:begin -->\n";
const END: &str = "<!-- crates:end -->";

/// The page with the graph of the crates as they are now.
pub(super) async fn page() -> Result<String> {
    let page = fs::read_to_string(paths::repository().join(PAGE)).context(PAGE)?;
    let graph = layers::graph(&layers::crates().await?);
    let markers = || format!("{PAGE} lacks the line {} or {END} after it", BEGIN.trim());
    with_graph(&page, &graph).with_context(markers)
}

fn with_graph(page: &str, graph: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!(
        "{before}{BEGIN}```mermaid\n{graph}```\n{END}{after}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_graph_is_replaced_and_the_rest_of_the_page_is_kept() {
        let page = "# Development\n<!-- crates:begin -->\nold\n<!-- crates:end -->\nmore\n";
        let graph = "flowchart TD\n";
        let expected = "# Development\n<!-- crates:begin -->\n```mermaid\nflowchart TD\n```\n<!-- crates:end -->\nmore\n";
        assert_eq!(with_graph(page, graph).as_deref(), Some(expected));
        assert_eq!(with_graph(expected, graph).as_deref(), Some(expected));
    }

    #[test]
    fn a_page_without_markers_is_an_error() {
        assert_eq!(with_graph("# Development\n", "flowchart TD\n"), None);
    }
}
