//! Every threat in `docs/security.md` has an answer and existing tests.

use std::{collections::BTreeSet, fs, path::Path};

use lab::{
    pages::{code_spans, page, rows, section},
    paths,
};

/// Collects the names of all test functions below a folder.
fn tests(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                tests(&path, found);
            }
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut lines = text.lines().map(str::trim);
            while let Some(line) = lines.next() {
                if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                    let function = lines.find_map(|line| line.split_once("fn "));
                    let (_, rest) = function.unwrap();
                    found.insert(rest.split('(').next().unwrap().to_owned());
                }
            }
        }
    }
}

#[test]
fn every_threat_has_an_answer_and_tests_that_exist() {
    let mut found = BTreeSet::new();
    for folder in ["common", "certs", "webhook", "controller", "tests"] {
        tests(&paths::repository().join(folder), &mut found);
    }
    let page = page("security").unwrap();
    let rows = rows(section(&page, "Threats").unwrap());
    assert!(rows.len() > 20, "{} rows", rows.len());
    let mut missing = Vec::new();
    // The first row is the header.
    for row in &rows[1..] {
        let [threat, answer, names] = row[..] else {
            panic!("not three cells: {row:?}");
        };
        assert!(!threat.is_empty() && !answer.is_empty(), "{row:?}");
        let names: Vec<_> = code_spans(names).collect();
        assert!(!names.is_empty(), "no test: {row:?}");
        missing.extend(names.into_iter().filter(|name| !found.contains(*name)));
    }
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}
