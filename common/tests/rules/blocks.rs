//! Blocks of accepted Machines: `cases/blocks` contains the block of every accepted case of each table and
//! of every variation of the valid Machine. `INSTA_UPDATE=always` writes the files again.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use common::admission::ObjectKind;
use common::api::normalized::Normalized;
use common::rules::FAMILIES;
use serde_json::{Value, json};

use crate::cases;
use crate::corpus::{self, KINDS, in_parallel, varied};
use crate::harness::{ReviewContext, merge_patch, path};

/// A block with one line for each of its fields.
fn written(name: &str, block: &Value) -> String {
    let mut text = format!("{name}\n");
    for (field, value) in block.as_object().into_iter().flatten() {
        writeln!(text, "  {field}: {value}").unwrap();
    }
    text
}

fn assert_blocks(file: &str, blocks: &[(String, Value)]) {
    for (name, block) in blocks {
        let block: Normalized = serde_json::from_value(block.clone()).unwrap();
        assert_eq!(block.check_bounds(), Ok(()), "{name}");
    }
    let text: Vec<_> = blocks
        .iter()
        .map(|(name, block)| written(name, block))
        .collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../cases/blocks");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(file, text.join("\n")));
}

#[test]
fn every_accepted_case_has_the_block_of_its_snapshot() {
    let mut written = BTreeSet::new();
    let mut count = 0;
    for family in FAMILIES {
        let blocks: Vec<_> = cases::accepted_of(family)
            .into_iter()
            .filter(|case| case.kind == ObjectKind::Machine)
            .map(|case| (case.name, case.stored["spec"]["normalized"].clone()))
            .collect();
        if !blocks.is_empty() {
            assert_blocks(family, &blocks);
            count += blocks.len();
            written.insert(format!("{family}.snap"));
        }
    }
    assert_blocks("variations", &varied_machines());
    written.insert("variations.snap".to_owned());
    let files = fs::read_dir(path("tests/cases/blocks")).unwrap();
    let files: BTreeSet<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        // Beside a snapshot that differs, insta writes the new one.
        .filter(|name| !name.ends_with(".snap.new"))
        .collect();
    assert_eq!(files, written, "files without a family");
    println!("{count} blocks of tables");
}

/// The valid Machine and every variation of it, each with its block.
fn varied_machines() -> Vec<(String, Value)> {
    let valid = corpus::valid(ObjectKind::Machine);
    let context = ReviewContext::of(ObjectKind::Machine, None);
    let block =
        |object: &Value| context.admit(object).unwrap().stored["spec"]["normalized"].clone();
    let variations = corpus::variations(ObjectKind::Machine).iter();
    let varied = variations.map(|it| (it.name(), block(&varied(&valid, &[it]))));
    let base = ("as it is".to_owned(), block(&valid));
    [base].into_iter().chain(varied).collect()
}

/// Values that the schema of the CRD accepts in a block, and that no spec resolves to.
#[test]
fn a_block_with_a_value_that_admission_never_writes_is_out_of_bounds() {
    let context = ReviewContext::of(ObjectKind::Machine, None);
    let valid = corpus::valid(ObjectKind::Machine);
    let block = context.admit(&valid).unwrap().stored["spec"]["normalized"].clone();
    let disk = block["disks"][0].clone();
    let name = disk["name"].as_str().unwrap().to_owned();
    let card = block["networks"][0].clone();
    for (patch, expected) in [
        (
            json!({"memory": {"size": "1Ei"}}),
            "memory.size is 1Ei, and it must be from 32Mi to 12Ti".to_owned(),
        ),
        (
            json!({"memory": {"size": "4Gi", "maxSize": "2Gi"}}),
            "memory.maxSize is 2Gi, and it must be from 4Gi to 12Ti".to_owned(),
        ),
        (
            json!({"cpu": {"sockets": 255, "maxSockets": 255, "cores": 255, "threads": 255}}),
            "cpu is 16581375, and it must be from 1 to 255".to_owned(),
        ),
        (
            json!({"cpu": {"sockets": 2, "maxSockets": 1}}),
            "cpu.maxSockets is 1, and it must be from 2 to 255".to_owned(),
        ),
        (
            json!({"disks": [with(&disk, "size", "1Ei")]}),
            format!("disks[{name}].size is 1Ei, and it must be from 1Mi to 64Ti"),
        ),
        (
            json!({"cdroms": [{"name": "iso", "size": "1"}]}),
            "cdroms[iso].size is 1, and it must be from 1Mi to 64Ti".to_owned(),
        ),
        (
            json!({"disks": [disk], "cdroms": [{"name": name}]}),
            format!("cdroms[].name is {name}, and it must occur only once"),
        ),
        (
            json!({"networks": [card, card]}),
            format!(
                "networks[].name is {}, and it must occur only once",
                card["name"].as_str().unwrap()
            ),
        ),
    ] {
        let mut forged = block.clone();
        merge_patch(&mut forged, &patch);
        let forged: Normalized = serde_json::from_value(forged).unwrap();
        assert_eq!(forged.check_bounds().unwrap_err().to_string(), expected);
    }
}

fn with(object: &Value, field: &str, value: &str) -> Value {
    let mut object = object.clone();
    object[field] = value.into();
    object
}

/// Two variations together get the warnings of both.
#[test]
fn every_variation_is_accepted_alone_and_with_others() {
    let mut count = 0;
    for kind in KINDS {
        let valid = corpus::valid(kind);
        let variations = corpus::variations(kind);
        let mut chosen: Vec<_> = variations.iter().map(|one| vec![one]).collect();
        for (index, first) in variations.iter().enumerate() {
            let later = variations[index + 1..].iter();
            let later = later.filter(|second| second.is_independent_of(first));
            chosen.extend(later.map(|second| vec![first, second]));
        }
        let context = ReviewContext::of(kind, None);
        let own = codes(&context.admit(&valid).unwrap().warnings);
        let failures = in_parallel(&chosen, |chosen| {
            let expected = chosen.iter().flat_map(|one| one.warns.iter().cloned());
            let expected: BTreeSet<_> = expected.chain(own.iter().cloned()).collect();
            let found = match context.admit(&varied(&valid, chosen)) {
                Ok(admitted) => codes(&admitted.warnings),
                Err(verdict) => return Some(format!("{chosen:?}\n  {:?}", verdict.findings)),
            };
            (found != expected)
                .then(|| format!("{chosen:?}\n  warns of {found:?}\n  instead of {expected:?}"))
        });
        let failures: Vec<_> = failures.into_iter().flatten().collect();
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
        println!("{kind:?}: {} variations and pairs of them", chosen.len());
        count += chosen.len();
    }
    println!("{count} cases");
}

fn codes(warnings: &[String]) -> BTreeSet<String> {
    let codes = warnings.iter().map(|line| cases::code_of(line).to_owned());
    codes.collect()
}
