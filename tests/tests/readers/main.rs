//! The rules about user data and network data against the programs that read them in a guest. Some thousand documents
//! go through both; every difference is named in `accepted`, with its reason.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod accepted;
mod documents;
mod generate;

use std::collections::BTreeMap;
use std::fmt;

use common::admission::{ObjectKind, Request, Settings, Stage, review};
use common::catalog::StaticCatalog;
use common::code::Code;
use lab::readers::{Document, Readers, Reading};
use serde_json::json;

use accepted::{ACCEPTED, Accepted};

/// Fewest documents of a run.
const DOCUMENTS_MIN: usize = 3000;

/// Who is stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// The rules refuse what the readers take.
    Rules,
    /// The readers fail at what the rules accept.
    Readers,
    /// cloud-init's JSON Schema objects to what the rules accept in silence.
    Schema,
}

/// Differences of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    side: Side,
    /// Why the stricter side objects, without what differs from document to document.
    reason: String,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.side, self.reason)
    }
}

/// What the rules say about a document.
struct Verdict {
    refusals: Vec<String>,
    warnings: Vec<String>,
}

fn validated(document: &Document) -> Verdict {
    let object = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": "web"},
        "spec": {"cloudInit": {document.field: document.text}},
    });
    let request = Request {
        kind: ObjectKind::Machine,
        stage: Stage::Mutate,
        namespace: "default",
        object: &object.to_string(),
        old: None,
    };
    let findings = review(&request, &StaticCatalog::default(), &Settings::default()).findings;
    let is_about = |code: Code| code.family() == "cloud-init";
    let refusals = findings.violations.iter().filter(|it| is_about(it.code));
    let warnings = findings
        .warnings
        .iter()
        .filter(|it| it.code.is_some_and(is_about));
    Verdict {
        refusals: refusals.map(|it| it.detail.clone()).collect(),
        warnings: warnings.map(|it| it.text.clone()).collect(),
    }
}

/// The first line of a reason with its quoted parts, numbers and positions left out.
fn in_general(reason: &str) -> String {
    let lines: Vec<_> = reason.lines().collect();
    let line = match lines.as_slice() {
        // PyYAML says in its last sentence what is wrong.
        [first, ..] if first.starts_with("yaml: ") => {
            let is_sentence = |line: &&&str| !line.starts_with(' ');
            let last = lines.iter().rfind(is_sentence);
            format!(
                "yaml: {}",
                last.map_or(*first, |last| last.trim_start_matches("yaml: "))
            )
        }
        [first, ..] => (*first).to_owned(),
        [] => String::new(),
    };
    let mut general = String::new();
    let mut quote = None;
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '\'' | '"') => {
                quote = Some(c);
                general.push('…');
            }
            None if c.is_ascii_digit() => {
                if !general.ends_with('0') {
                    general.push('0');
                }
            }
            None => general.push(c),
        }
    }
    general
}

fn difference(verdict: &Verdict, reading: &Reading) -> Option<Kind> {
    let refusal = verdict.refusals.first();
    let (side, reason) = match (refusal, reading.fails.first(), reading.complains.first()) {
        (None, Some(failure), _) => (Side::Readers, in_general(failure)),
        (Some(refusal), None, None) => {
            // The position is before the first ": ".
            let (_, text) = refusal.split_once(": ").unwrap_or(("", refusal));
            (Side::Rules, in_general(text))
        }
        (None, None, Some(complaint)) if verdict.warnings.is_empty() => {
            (Side::Schema, in_general(complaint))
        }
        _ => return None,
    };
    Some(Kind { side, reason })
}

#[tokio::test]
async fn the_rules_and_the_readers_of_a_guest_agree_on_every_document() {
    let readers = match Readers::new().await.unwrap() {
        Ok(readers) => readers,
        Err(missing) => {
            lab::skip(missing);
            return;
        }
    };
    let documents = documents::all(&readers.examples());
    assert!(
        documents.len() > DOCUMENTS_MIN,
        "{} documents",
        documents.len()
    );
    let readings = readers.read(&documents).await.unwrap();

    let mut kinds: BTreeMap<Kind, Vec<&Document>> = BTreeMap::new();
    for (document, reading) in documents.iter().zip(&readings) {
        if let Some(kind) = difference(&validated(document), reading) {
            kinds.entry(kind).or_default().push(document);
        }
    }
    let count: usize = kinds.values().map(Vec::len).sum();
    eprintln!(
        "{} documents, {count} differences of {} kinds",
        documents.len(),
        kinds.len()
    );
    let mut accepted = [0; ACCEPTED.len()];
    let mut unnamed = Vec::new();
    for (kind, examples) in &kinds {
        let is_named = |it: &Accepted| it.side == kind.side && kind.reason.contains(it.reason);
        match ACCEPTED.iter().position(is_named) {
            Some(index) => accepted[index] += examples.len(),
            None => unnamed.push(format!(
                "{} × {kind}\n{}\n",
                examples.len(),
                examples[0].text
            )),
        }
    }
    for (Accepted { reason, why, .. }, count) in ACCEPTED.iter().zip(accepted) {
        eprintln!("  {count} × {reason}: {why}");
        assert!(count > 0, "no document differs so any more");
    }
    assert!(unnamed.is_empty(), "{}", unnamed.join("\n"));
}
