//! What cloud-init reads: the image, by the rules of ISO 9660 and Joliet, and what is in it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Seed, seed_iso, seed_of};
use super::fixtures::WEB;
use crate::api::machine::{CloudInit, SecretKeyRef};
use crate::render::{CloudInitPlan, Identity, Reading, SecretKey};

const SECTOR: usize = 2048;

/// A reader of its own: what a system finds on the volume by this descriptor.
fn read(image: &[u8], descriptor: usize) -> (String, BTreeMap<String, Vec<u8>>) {
    let joliet = descriptor == 17;
    let head = &image[descriptor * SECTOR..][..SECTOR];
    assert_eq!(head[0], if joliet { 2 } else { 1 });
    assert_eq!(&head[1..7], b"CD001\x01");
    assert_eq!(&head[88..91], if joliet { b"%/E" } else { b"\0\0\0" });
    let both = |bytes: &[u8]| {
        let little = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let big = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        assert_eq!(little, big);
        little as usize
    };
    assert_eq!(
        both(&head[80..88]) * SECTOR,
        image.len(),
        "the volume is all"
    );
    assert_eq!(head[128..132], [0, 8, 8, 0], "sectors of 2048 bytes");
    assert_eq!(head[881], 1);
    let text = |bytes: &[u8]| {
        if joliet {
            let units = bytes
                .chunks(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            String::from_utf16(&units.collect::<Vec<_>>()).unwrap()
        } else {
            String::from_utf8(bytes.to_vec()).unwrap()
        }
    };
    let root = &head[156..190];
    let (at, length) = (both(&root[2..10]), both(&root[10..18]));
    for (table, order) in [(140, true), (148, false)] {
        let number: [u8; 4] = head[table..table + 4].try_into().unwrap();
        let sector = if order {
            u32::from_le_bytes(number)
        } else {
            u32::from_be_bytes(number)
        };
        let entry = &image[sector as usize * SECTOR..][..both(&head[132..140])];
        let number: [u8; 4] = entry[2..6].try_into().unwrap();
        let found = if order {
            u32::from_le_bytes(number)
        } else {
            u32::from_be_bytes(number)
        };
        assert_eq!((entry[0], found as usize), (1, at), "the root");
    }
    let mut directory = &image[at * SECTOR..][..length];
    let mut files = BTreeMap::new();
    let mut names = Vec::new();
    while directory[0] != 0 {
        let (record, rest) = directory.split_at(directory[0].into());
        directory = rest;
        let name = &record[33..33 + usize::from(record[32])];
        let (at, length) = (both(&record[2..10]), both(&record[10..18]));
        if record[25] & 2 != 0 {
            assert!(
                name == [0] || name == [1],
                "no directories but the root and its parent"
            );
            continue;
        }
        names.push(name.to_vec());
        files.insert(text(name), image[at * SECTOR..][..length].to_vec());
    }
    assert!(names.is_sorted());
    (text(&head[40..72]).trim_end().to_owned(), files)
}

/// By both descriptors, which must agree; with names as Linux shows them.
fn files(image: &[u8]) -> BTreeMap<String, Vec<u8>> {
    assert_eq!(&image[18 * SECTOR..][..7], b"\xffCD001\x01");
    let [iso, joliet] = [16, 17].map(|descriptor| {
        let (label, files) = read(image, descriptor);
        assert_eq!(label, "cidata");
        let shown = |(name, content): (String, Vec<u8>)| {
            let name = name
                .strip_suffix(";1")
                .unwrap()
                .trim_end_matches('.')
                .to_lowercase();
            (name, content)
        };
        files.into_iter().map(shown).collect::<BTreeMap<_, _>>()
    });
    assert_eq!(iso, joliet);
    joliet
}

fn seed<'a>(
    user: Option<&'a [u8]>,
    network: Option<&'a [u8]>,
    meta: &'a BTreeMap<String, String>,
) -> Seed<'a> {
    Seed {
        user_data: user,
        network_data: network,
        meta_data: meta,
        instance: "i-1",
        hostname: "web",
    }
}

#[test]
fn a_seed_has_the_files_of_nocloud() {
    let meta = BTreeMap::new();
    let image = seed_iso(&seed(
        Some(b"#cloud-config\n"),
        Some(b"version: 2\n"),
        &meta,
    ));
    let files = files(&image);
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["meta-data", "network-config", "user-data"]);
    assert_eq!(files["user-data"], b"#cloud-config\n");
    assert_eq!(files["network-config"], b"version: 2\n");
    let meta: Value = serde_json::from_slice(&files["meta-data"]).unwrap();
    assert_eq!(
        meta,
        json!({ "instance-id": "i-1", "local-hostname": "web" })
    );
}

#[test]
fn what_is_not_given_is_empty_or_not_there() {
    let files = files(&seed_iso(&seed(None, None, &BTreeMap::new())));
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["meta-data", "user-data"]);
    assert_eq!(files["user-data"], b"");
}

#[test]
fn the_same_seed_is_the_same_bytes() {
    let plan = plan(|_| ());
    let iso = || seed_of(&plan, &WEB, |_| None).unwrap();
    assert_eq!(iso(), iso());
    // A release that writes another image gives every guest another seed at its next restart.
    let name = super::super::seed_name("prod", "web", WEB.uid, &iso());
    assert_eq!(name, "prod-web-8d49d164.seed-876a67c30ca5.iso");
}

fn plan(change: impl FnOnce(&mut CloudInit)) -> CloudInitPlan {
    let mut cloud = CloudInit {
        user_data: Some("#cloud-config\n".into()),
        ..CloudInit::default()
    };
    change(&mut cloud);
    CloudInitPlan::from(&cloud)
}

fn instance(plan: &CloudInitPlan, machine: &Identity<'_>) -> String {
    let files = files(&seed_of(plan, machine, |_| None).unwrap());
    let meta: Value = serde_json::from_slice(&files["meta-data"]).unwrap();
    assert_eq!(meta["local-hostname"], "web");
    meta["instance-id"].as_str().unwrap().to_owned()
}

#[test]
fn another_content_is_another_instance_and_nothing_else_is() {
    let first = instance(&plan(|_| ()), &WEB);
    assert_eq!(first, instance(&plan(|_| ()), &WEB));
    let meta = || Some([("role".to_owned(), "db".to_owned())].into());
    let other = Identity {
        uid: "another",
        ..WEB
    };
    let all = [
        first,
        instance(
            &plan(|cloud| cloud.user_data = Some("#!/bin/sh\n".into())),
            &WEB,
        ),
        instance(
            &plan(|cloud| cloud.network_data = Some("version: 2\n".into())),
            &WEB,
        ),
        instance(&plan(|cloud| cloud.meta_data = meta()), &WEB),
        instance(&plan(|_| ()), &other),
    ];
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "{all:?}");

    let own = [("instance-id".to_owned(), "mine".to_owned())];
    let own = plan(|cloud| cloud.meta_data = Some(own.into()));
    assert_eq!(instance(&own, &WEB), "mine");
}

#[test]
fn contents_of_secrets_are_in_the_seed_or_there_is_none() {
    let plan = plan(|cloud| {
        cloud.user_data = None;
        cloud.secret_ref = Some(SecretKeyRef {
            name: Some("user".into()),
            key: None,
        });
    });
    assert!(seed_of(&plan, &WEB, |_| None).is_none());
    let reading = |version: &str, text: &str| Reading::new("uid", version, text.into());
    let iso = |reading: &Reading| {
        let read = |secret: &SecretKey| (secret.name == "user").then_some(reading);
        seed_of(&plan, &WEB, read).unwrap()
    };
    let first = iso(&reading("1", "#!/bin/sh\n"));
    assert_eq!(files(&first)["user-data"], b"#!/bin/sh\n");
    let rewritten = iso(&reading("2", "#!/bin/sh\n"));
    assert_eq!(first, rewritten, "the same content");
    assert_ne!(first, iso(&reading("2", "#!/bin/bash\n")));
}

#[test]
fn who_gives_nothing_has_no_seed() {
    let plan = CloudInitPlan::default();
    assert!(seed_of(&plan, &WEB, |_| None).is_none());
}

proptest! {
    #[test]
    fn whatever_is_given_is_read_back(
        user in proptest::collection::vec(any::<u8>(), 0..9000),
        network in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..5000)),
        key in "\\PC{0,20}",
    ) {
        let meta = BTreeMap::from([(key.clone(), "é".to_owned())]);
        let image = seed_iso(&seed(Some(&user), network.as_deref(), &meta));
        let files = files(&image);
        prop_assert_eq!(&files["user-data"], &user);
        prop_assert_eq!(files.get("network-config"), network.as_ref());
        let read: Value = serde_json::from_slice(&files["meta-data"]).unwrap();
        prop_assert_eq!(&read[&key], "é");
    }
}
