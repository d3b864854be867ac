//! Calls each target with every seed of its format and with some mutations of each.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use fuzz::{TARGETS, mutate};

/// Mutations of each seed: few enough for every test run.
const MUTATIONS: u64 = 8;

fn folder(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn names(folder: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

/// Checks a property; a failure names the input.
fn check(target: &fuzz::Target, data: &[u8], what: &str) {
    let outcome = std::panic::catch_unwind(|| (target.check)(data));
    let text = String::from_utf8_lossy(data);
    assert!(
        outcome.is_ok(),
        "{} does not hold for {what}:\n{text}",
        target.name
    );
}

fn run(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let folder = folder("seeds").join(target.format);
    let names = names(&folder);
    assert!(!names.is_empty(), "{} has no seeds", target.format);
    for (seed, name) in (0..).zip(names) {
        let name = name.to_str().unwrap();
        let data = fs::read(folder.join(name)).unwrap();
        check(target, &data, name);
        let mut rng = Rng::with_seed(seed);
        for round in 0..MUTATIONS {
            if let Some(edited) = mutate::edited(&data, &mut rng) {
                check(target, &edited, &format!("mutation {round} of {name}"));
            }
        }
    }
}

#[test]
fn body() {
    run("body");
}

#[test]
fn twice() {
    run("twice");
}

#[test]
fn patch() {
    run("patch");
}

#[test]
fn update() {
    run("update");
}

#[test]
fn cloud_init() {
    run("cloud_init");
}

#[test]
fn quantity() {
    run("quantity");
}

#[test]
fn mac() {
    run("mac");
}

#[test]
fn policy() {
    run("policy");
}

#[test]
fn image_header() {
    run("image_header");
}

#[test]
fn image_source() {
    run("image_source");
}

#[test]
fn guest_report() {
    run("guest_report");
}

#[test]
fn every_target_has_a_program_and_every_seed_format_a_target() {
    let programs = TARGETS.map(|target| format!("{}.rs", target.name).into());
    assert_eq!(names(&folder("libfuzzer/fuzz_targets")), programs.into());
    let formats = TARGETS.map(|target| target.format.into());
    assert_eq!(names(&folder("seeds")), formats.into());
}

/// Input that is not JSON is left to libFuzzer, and a result that is too long is not written.
#[test]
fn a_mutation_stays_within_its_buffer_and_is_still_json() {
    let text = br#"{"spec": {"template": "small", "disks": []}}"#;
    let mut edits = 0;
    for seed in 0..200 {
        let mut data = [0; 64];
        data[..text.len()].copy_from_slice(text);
        let size = mutate::json(&mut data, text.len(), 64, seed, |_, size, _| size);
        assert!(size <= 64);
        assert!(serde_json::from_slice::<serde_json::Value>(&data[..size]).is_ok());
        edits += u32::from(data[..size] != text[..]);
        let size = mutate::json(&mut data, 1, 64, seed, |_, _, _| 7);
        assert_eq!(size, 7, "no JSON");
    }
    assert!(edits > 80, "{edits}");
}
