//! The table of threats names tests that there are.

use std::{fs, path::Path};

use lab::paths;

/// Every test of the repository, by its function's name.
fn tests(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut lines = text.lines().map(str::trim);
            while let Some(line) = lines.next() {
                if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                    let function = lines.find_map(|line| line.split_once("fn "));
                    let (_, rest) = function.unwrap();
                    found.push(rest.split('(').next().unwrap().to_owned());
                }
            }
        }
    }
}

#[test]
fn every_threat_is_answered_and_every_answer_tested() {
    let root = paths::repository();
    let mut found = Vec::new();
    for folder in ["common", "certs", "webhook", "controller", "tests"] {
        for part in ["src", "tests"] {
            let folder = root.join(folder).join(part);
            if folder.is_dir() {
                tests(&folder, &mut found);
            }
        }
    }
    assert!(found.len() > 300, "{}", found.len());
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let table = page
        .lines()
        .skip_while(|line| *line != "| threat | answer | test |");
    let rows: Vec<_> = table
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(rows.len() > 20, "{}", rows.len());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [threat, answer, tests] = cells[..] else {
            panic!("not three cells: {row}");
        };
        assert!(!threat.is_empty() && !answer.is_empty(), "{row}");
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test: {row}");
        for name in named {
            assert!(
                found.iter().any(|test| test == name),
                "there is no test {name}"
            );
        }
    }
}
