//! Everything that the pages name exists: files, headings, verbs, settings, conditions, codes. Quotes that need no API
//! server are compared with the answers of the core.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::CommandFactory as _;
use common::{
    admission::{ObjectKind, Request, Settings, Stage, review},
    catalog::{StaticCatalog, StorageClassRow},
};
use lab::{
    pages::{Quotes, blocks, code_spans, page, rows, section},
    paths,
};
use serde_json::{Value, json};

/// Folders of pages; the first one is the repository's root.
const FOLDERS: [&str; 4] = ["", "docs", "manifests/crds", "manifests/monitoring"];

/// Every page with its path.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(paths::repository().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "md") {
                let text = fs::read_to_string(&path).unwrap();
                pages.push((path, text));
            }
        }
    }
    assert!(pages.len() > 10, "{} pages", pages.len());
    pages
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
            kept.map(|it| if it == ' ' { '-' } else { it }).collect()
        })
        .collect()
}

/// Fails if a link of a page, relative to its folder, leads nowhere.
fn check_link(page: &Path, text: &str, link: &str) -> Result<(), String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() {
        page.to_owned()
    } else {
        page.parent().unwrap().join(file)
    };
    if !target.exists() {
        return Err(format!("{}: no file {link}", page.display()));
    }
    if anchor.is_empty() {
        return Ok(());
    }
    let read = fs::read_to_string(&target).unwrap();
    let text = if file.is_empty() { text } else { &read };
    if anchors(text).contains(anchor) {
        Ok(())
    } else {
        Err(format!("{}: no heading {link}", page.display()))
    }
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut faults = Vec::new();
    for (path, text) in pages() {
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if !link.contains("://") {
                faults.extend(check_link(&path, &text, link).err());
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_verbs_of_the_pages_are_the_verbs_of_the_lab() {
    let help = Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let names = commands.lines().take_while(|line| !line.is_empty());
    // The description of a command may continue in the next line, which is indented further.
    let names = names.filter(|line| !line.starts_with("   "));
    let mut verbs: BTreeSet<_> = names
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    verbs.remove("help");
    assert!(verbs.contains("demo"), "{help}");

    let verb = |text: &str| {
        let text = text.strip_prefix("tests/lab ")?;
        text.split_whitespace().next().map(str::to_owned)
    };
    let development = page("development").unwrap();
    let documented: BTreeSet<_> = rows(section(&development, "Commands").unwrap())
        .iter()
        .filter_map(|row| verb(code_spans(row[0]).next()?))
        .collect();
    assert!(
        documented
            .iter()
            .map(String::as_str)
            .eq(verbs.iter().copied())
    );
    for (path, text) in pages() {
        let lines = blocks(&text, "console").concat();
        let used = code_spans(&text).chain(lines.lines()).filter_map(verb);
        for used in used {
            assert!(verbs.contains(&*used), "{}: {used}", path.display());
        }
    }
}

#[test]
fn the_settings_of_certificates_are_flags_and_variables_of_the_webhook() {
    let command = webhook::args::Args::command();
    let page = page("certificates").unwrap();
    let mut checked = 0;
    for row in rows(&page) {
        let mut spans = code_spans(row[0]);
        let Some(flag) = spans.next().and_then(|span| span.strip_prefix("--")) else {
            continue;
        };
        let Some(variable) = spans.next() else {
            continue;
        };
        let argument = command
            .get_arguments()
            .find(|argument| argument.get_long() == Some(flag));
        let argument = argument.unwrap_or_else(|| panic!("there is no flag --{flag}"));
        assert_eq!(argument.get_env().unwrap(), variable);
        if let [_, default, _] = row[..] {
            let defaults = argument.get_default_values();
            assert_eq!(defaults, [default.trim_matches('`')], "--{flag}");
        }
        checked += 1;
    }
    assert!(checked >= 7, "{checked} settings");
}

/// Files and folders with code that only tests use, beside the modules of tests in other files.
const OF_TESTS: [&str; 5] = ["tests", "environment", "fake", "fixtures", "laws"];

/// The source files of the controller, in which every reason is a literal.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if OF_TESTS.contains(&name) {
            continue;
        }
        if path.is_dir() && name != "target" {
            sources(&path, text);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let (code, _) = source
                .split_once("#[cfg(test)]\nmod tests {")
                .unwrap_or((&source, ""));
            text.push_str(code);
        }
    }
}

#[test]
fn every_documented_condition_and_reason_is_one_of_the_controller() {
    let mut controller = String::new();
    sources(&paths::repository().join("controller"), &mut controller);
    let page = page("operate").unwrap();
    let documented = |heading: &str| {
        let text = section(&page, heading).unwrap();
        rows(text.split_once("\n### ").map_or(text, |(table, _)| table))
    };
    let machines = documented("Conditions of a Machine");
    let hosts = documented("Conditions of a LibvirtHost");
    let images = documented("Conditions of a MachineImage");
    let networks = documented("Conditions of a NetworkConfiguration");
    assert!(machines.len() > 30, "{} rows", machines.len());
    assert!(hosts.len() > 10, "{} rows", hosts.len());
    assert!(images.len() > 5, "{} rows", images.len());
    assert!(networks.len() > 4, "{} rows", networks.len());
    let others = [hosts, images, networks].concat();
    for row in machines.into_iter().chain(others) {
        for name in code_spans(row[0]).chain(code_spans(row[1])) {
            assert!(controller.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}

#[test]
fn every_code_in_a_quote_has_a_rule() {
    let rules = page("rules").unwrap();
    let headings: BTreeSet<_> = rules
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    let mut checked = 0;
    for (path, text) in pages() {
        for line in blocks(&text, "text").concat().lines() {
            let Some((_, code)) = line
                .strip_suffix(']')
                .and_then(|line| line.rsplit_once('['))
            else {
                continue;
            };
            let is_code = !code.is_empty() && code.chars().all(char::is_alphanumeric);
            if is_code {
                assert!(headings.contains(code), "{}: {code}", path.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked} codes");
}

/// The Machine of a file below `manifests/examples`.
fn example(file: &str) -> Value {
    let path = paths::repository().join("manifests/examples").join(file);
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A Machine `web` of a built-in template, as stored with its block.
fn machine(template: &str) -> Value {
    let mut object = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"template": template},
    });
    let (_, block) = reviewed(&object, None);
    object["spec"]["normalized"] = serde_json::from_str(&block.unwrap()).unwrap();
    object
}

/// The lines that kubectl shows for a review, and the block of an accepted object.
fn reviewed(object: &Value, old: Option<&Value>) -> (String, Option<String>) {
    let catalog = StaticCatalog {
        storage_classes: ["standard", "fast-ssd"]
            .map(|name| (name.to_owned(), StorageClassRow::default()))
            .into(),
        default_storage_class: Some("standard".to_owned()),
        ..StaticCatalog::default()
    };
    let old = old.map(ToString::to_string);
    let request = Request {
        kind: ObjectKind::Machine,
        stage: Stage::Mutate,
        namespace: "default",
        object: &object.to_string(),
        old: old.as_deref(),
    };
    let verdict = review(&request, &catalog, &Settings::default());
    let findings = &verdict.findings;
    let lines: Vec<_> = if findings.violations.is_empty() {
        let warnings = findings.warnings.iter();
        warnings.map(|it| format!("Warning: {}", it.text)).collect()
    } else {
        let faults = findings.violations.iter();
        faults.map(|it| format!("* {it}")).collect()
    };
    (lines.join("\n"), verdict.block)
}

#[test]
fn the_page_on_machines_quotes_answers_of_the_core() {
    let text = page("machines").unwrap();
    // The quotes of this section are what kubectl prints: the suite `deletion_protection` compares them.
    let deletion = section(&text, "Deletion").unwrap();
    let mut quotes = Quotes::of(&text.replace(deletion, ""));
    let command = "$ kubectl apply -f manifests/examples/custom-vm.yaml\n\
                   machine.vitistack.io/custom-vm created\n";
    let (lines, _) = reviewed(&example("custom-vm.yaml"), None);
    quotes.produced(&format!("{command}{lines}")).unwrap();
    let (lines, _) = reviewed(
        &json!({
            "apiVersion": "vitistack.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"template": "small"},
        }),
        Some(&machine("medium")),
    );
    quotes.produced(&lines).unwrap();
    let mut old = machine("small");
    old["spec"]["powerState"] = json!("Stopped");
    old["spec"]["disks"] = json!([{"name": "data", "size": "10Gi"}]);
    let new = json!({"template": "small", "powerState": "Stopped"});
    let new = json!({"apiVersion": old["apiVersion"], "kind": "Machine", "metadata": old["metadata"], "spec": new});
    old["spec"].as_object_mut().unwrap().remove("normalized");
    let (_, block) = reviewed(&old, None);
    old["spec"]["normalized"] = serde_json::from_str(&block.unwrap()).unwrap();
    let (lines, _) = reviewed(&new, Some(&old));
    quotes.produced(&lines).unwrap();
    quotes.finish().unwrap();
}
