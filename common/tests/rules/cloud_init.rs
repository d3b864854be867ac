//! What holds for any user data and network data: a verdict in bounded time, a list of bounded
//! length, and not a word of the content.

use std::time::{Duration, Instant};

use common::admission::{ObjectKind, Stage, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Question, machine, places};

/// Far beyond what any document takes, even unoptimised on a busy machine, and far below what one
/// takes whose cost grows with the square of its length.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Lines about one document: sixteen, and how many there are beyond.
const LINES_MAX: usize = 17;
/// Looks like no word of the vocabulary, and like a secret.
const CANARY: &str = "Xq7Zk9-Vw3";

fn ask(cloud_init: &Value) -> Verdict {
    let spec = json!({"template": "small", "cloudInit": cloud_init});
    let question = Question::of(ObjectKind::Machine, None);
    question.ask(Stage::Mutate, &machine(&spec))
}

/// The documents of the tables, by the field they stand in.
fn documents() -> Vec<(&'static str, String)> {
    let specs = cases::specs("cloud-init");
    let documents = specs.iter().flat_map(|spec| {
        ["userData", "networkData"].map(|field| {
            // `(x 5 times)` is the tables' way to write a long text, and no document.
            let text = spec["cloudInit"][field].as_str();
            let text = text.filter(|text| !text.starts_with('('));
            text.map(|text| (field, text.to_owned()))
        })
    });
    documents.flatten().collect()
}

/// Every text that is said about a document.
fn said(verdict: &Verdict) -> Vec<String> {
    let violations = verdict.findings.violations.iter().map(ToString::to_string);
    let warnings = verdict.findings.warnings.iter();
    violations
        .chain(warnings.map(|warning| warning.text.clone()))
        .collect()
}

/// Puts the canary in the place of each value in turn, and of each part of one.
#[test]
fn no_value_of_a_document_is_repeated() {
    let plants = [
        CANARY.to_owned(),
        format!("{{a: {CANARY}}}"),
        format!("@{CANARY}"),
        format!("[{CANARY}]"),
        format!("!{CANARY} x"),
    ];
    let mut told = 0;
    for (field, text) in documents() {
        let is_edge = |c: char| c.is_whitespace() || ",[]{}'\"".contains(c);
        let mut offset = 0;
        for (word, planted) in text.split_inclusive(is_edge).zip(plants.iter().cycle()) {
            let start = offset;
            offset += word.len();
            // A key is not a value, and the first line decides whether there are any.
            let kept = word.trim_end_matches(is_edge);
            if start == 0 || kept.len() < 3 || kept.contains(':') {
                continue;
            }
            let changed = format!("{}{planted}{}", &text[..start], &text[start + kept.len()..]);
            let said = said(&ask(&json!({ field: changed })));
            told += said.len();
            for line in said {
                assert!(!line.contains(&CANARY[..4]), "{line}\nof\n{changed}");
            }
        }
    }
    assert!(told > 500, "only {told} lines were told");
}

fn judged(field: &str, text: &str) -> Result<Verdict, TestCaseError> {
    let start = Instant::now();
    let verdict = ask(&json!({ field: text }));
    let took = start.elapsed();
    prop_assert!(took < TIME_MAX, "{took:?} for {} bytes", text.len());
    prop_assert!(verdict.findings.violations.len() <= LINES_MAX);
    prop_assert!(verdict.findings.warnings.len() <= 2 * LINES_MAX);
    Ok(verdict)
}

/// What YAML is made of.
const TOKENS: &[&str] = &[
    "a",
    "- ",
    "\n",
    "\n  ",
    "\n    ",
    ": ",
    ":",
    ", ",
    "[",
    "]",
    "{",
    "}",
    "'",
    "\"",
    "|\n",
    ">-\n",
    "&a ",
    "*a",
    "<<: ",
    "!!str ",
    "!x ",
    "#",
    "? ",
    "---\n",
    "...\n",
    "\t",
    "%",
    "@",
    "1",
    "0x_",
    "1:30",
    "2024-02-30",
    "yes",
    "~",
    "=",
    "runcmd",
    "users",
    "ethernets",
    "version: 2\n",
    "é",
    "\u{7}",
    "\r\n",
];

proptest! {
    #[test]
    fn any_text_gets_a_verdict(text in any::<String>(), tokens in vec(select(TOKENS), 0..40)) {
        for text in [text, tokens.concat()] {
            judged("userData", &text)?;
            judged("userData", &format!("#cloud-config\n{text}"))?;
            judged("networkData", &text)?;
            judged("networkData", &format!("version: 2\n{text}"))?;
        }
    }

    /// So does any document of the tables with a piece of it lost or repeated.
    #[test]
    fn any_torn_document_gets_a_verdict(
        which in any::<Index>(),
        from in any::<Index>(),
        to in any::<Index>(),
        with in vec(select(TOKENS), 0..3),
    ) {
        let documents = documents();
        let (field, text) = which.get(&documents);
        let cut = |index: Index| text.floor_char_boundary(index.index(text.len() + 1));
        let torn = format!("{}{}{}", &text[..cut(from)], with.concat(), &text[cut(to)..]);
        judged(field, &torn)?;
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The time a text takes does not grow with the square of its length.
    #[test]
    fn a_long_text_takes_no_longer_than_it_may(tokens in vec(select(TOKENS), 1..4)) {
        let unit = tokens.concat();
        let text = unit.repeat(200_000 / unit.len());
        judged("userData", &format!("#cloud-config\n{text}"))?;
    }
}

/// Faults of different values of one document, each told once however many there are.
#[test]
fn faults_of_one_document_add_up() {
    let faults = [
        ("runcmd: ls", "runcmd must be"),
        ("hostname: [a]", "hostname must be"),
        ("timezone: 1", "timezone must be"),
        ("write_files: [{content: x}]", "write_files[0] lacks 'path'"),
        ("power_state: {mode: sleep}", "power_state.mode must be"),
        ("users: [{sudo: {a: b}}]", "users[0].sudo must be"),
    ];
    for chosen in 1_u32..1 << faults.len() {
        let faults: Vec<_> = (0..)
            .zip(faults)
            .filter(|(bit, _)| chosen & 1 << bit != 0)
            .collect();
        let lines: Vec<_> = faults.iter().map(|(_, (line, _))| *line).collect();
        let verdict = ask(&json!({"userData": format!("#cloud-config\n{}\n", lines.join("\n"))}));
        let told: Vec<_> = verdict
            .findings
            .violations
            .iter()
            .map(|one| &one.detail)
            .collect();
        let expected: Vec<_> = (2..)
            .zip(&faults)
            .map(|(line, (_, (_, what)))| (line, what))
            .collect();
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (told, (line, what)) in told.iter().zip(expected) {
            assert!(
                told.starts_with(&format!("line {line}, ")) && told.contains(what),
                "{told}"
            );
        }
        assert!(
            places(&verdict)
                .iter()
                .all(|(field, _)| field == "spec.cloudInit.userData")
        );
    }
}
