//! Properties of the review of any user data and network data: it takes bounded time, its answer has a
//! bounded length, and the answer repeats no value of the data.

use std::time::{Duration, Instant};

use common::admission::{ObjectKind, Stage, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::cases;
use crate::harness::{ReviewContext, fields_and_codes, machine};

/// Longest time for a document. Far more than any document takes without optimization on a busy computer;
/// far less than the longest one would take if the cost grew with the square of the length.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Most lines about one document: sixteen, and one with the number of the others.
const LINES_MAX: usize = 17;
/// A value in place of a secret. It resembles no key that the rules suggest.
const CANARY: &str = "Xq7Zk9-Vw3";

fn ask(cloud_init: &Value) -> Verdict {
    let spec = json!({"template": "small", "cloudInit": cloud_init});
    let context = ReviewContext::of(ObjectKind::Machine, None);
    context.review(Stage::Mutate, &machine(&spec))
}

/// The documents of the tables, by their field.
fn documents() -> Vec<(&'static str, String)> {
    let specs = cases::specs("cloud-init");
    let documents = specs.iter().flat_map(|spec| {
        ["userData", "networkData"].map(|field| {
            // `(x 5 times)` means a long text in the tables; it is not a document.
            let text = spec["cloudInit"][field].as_str();
            let text = text.filter(|text| !text.starts_with('('));
            text.map(|text| (field, text.to_owned()))
        })
    });
    documents.flatten().collect()
}

/// Every message about a document.
fn messages(verdict: &Verdict) -> Vec<String> {
    let violations = verdict.findings.violations.iter().map(ToString::to_string);
    let warnings = verdict.findings.warnings.iter();
    violations
        .chain(warnings.map(|warning| warning.text.clone()))
        .collect()
}

/// Replaces each value, and each part of a value, by the canary.
#[test]
fn no_value_of_a_document_is_repeated() {
    let plants = [
        CANARY.to_owned(),
        format!("{{a: {CANARY}}}"),
        format!("@{CANARY}"),
        format!("[{CANARY}]"),
        format!("!{CANARY} x"),
    ];
    let mut reported = 0;
    for (field, text) in documents() {
        let is_edge = |c: char| c.is_whitespace() || ",[]{}'\"".contains(c);
        let mut offset = 0;
        for (word, planted) in text.split_inclusive(is_edge).zip(plants.iter().cycle()) {
            let start = offset;
            offset += word.len();
            // A key is not a value, and the first line decides the format of the document.
            let kept = word.trim_end_matches(is_edge);
            if start == 0 || kept.len() < 3 || kept.contains(':') {
                continue;
            }
            let changed = format!("{}{planted}{}", &text[..start], &text[start + kept.len()..]);
            let lines = messages(&ask(&json!({ field: changed })));
            reported += lines.len();
            for line in lines {
                assert!(!line.contains(&CANARY[..4]), "{line}\nof\n{changed}");
            }
        }
    }
    assert!(reported > 500, "only {reported} lines were reported");
}

fn validated(field: &str, text: &str) -> Result<Verdict, TestCaseError> {
    let start = Instant::now();
    let verdict = ask(&json!({ field: text }));
    let took = start.elapsed();
    prop_assert!(took < TIME_MAX, "{took:?} for {} bytes", text.len());
    prop_assert!(verdict.findings.violations.len() <= LINES_MAX);
    prop_assert!(verdict.findings.warnings.len() <= 2 * LINES_MAX);
    Ok(verdict)
}

/// Parts of YAML documents.
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
            validated("userData", &text)?;
            validated("userData", &format!("#cloud-config\n{text}"))?;
            validated("networkData", &text)?;
            validated("networkData", &format!("version: 2\n{text}"))?;
        }
    }

    /// A piece of a document of the tables is removed or repeated.
    #[test]
    fn any_damaged_document_gets_a_verdict(
        which in any::<Index>(),
        from in any::<Index>(),
        to in any::<Index>(),
        with in vec(select(TOKENS), 0..3),
    ) {
        let documents = documents();
        let (field, text) = which.get(&documents);
        let cut = |index: Index| text.floor_char_boundary(index.index(text.len() + 1));
        let torn = format!("{}{}{}", &text[..cut(from)], with.concat(), &text[cut(to)..]);
        validated(field, &torn)?;
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The time does not grow with the square of the length.
    #[test]
    fn a_long_text_is_validated_in_bounded_time(tokens in vec(select(TOKENS), 1..4)) {
        let unit = tokens.concat();
        let text = unit.repeat(200_000 / unit.len());
        validated("userData", &format!("#cloud-config\n{text}"))?;
    }
}

#[test]
fn each_of_several_faults_of_one_document_is_reported_once() {
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
        let reported: Vec<_> = verdict
            .findings
            .violations
            .iter()
            .map(|one| &one.detail)
            .collect();
        let expected: Vec<_> = (2..)
            .zip(&faults)
            .map(|(line, (_, (_, what)))| (line, what))
            .collect();
        assert_eq!(reported.len(), expected.len(), "{reported:?}");
        for (reported, (line, what)) in reported.iter().zip(expected) {
            assert!(
                reported.starts_with(&format!("line {line}, ")) && reported.contains(what),
                "{reported}"
            );
        }
        assert!(
            fields_and_codes(&verdict)
                .iter()
                .all(|(field, _)| field == "spec.cloudInit.userData")
        );
    }
}
