//! Names of domains and volumes, and names that only look like them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::{
    VolumeFormat, domain_name, domain_uuid, is_volume_of, seed_name, short_id, volume_name,
};
use super::fixtures::WEB;
use crate::render::identity::machine_uuid;

const OTHER: &str = "00000000-3f1a-4b7b-8d3e-6f1d2c3b4a59";

#[test]
fn names_never_change_between_releases() {
    // Hosts have these names: with another name, a Machine would get another domain and another disk.
    assert_eq!(domain_uuid(WEB.uid), machine_uuid(WEB.uid));
    assert_eq!(short_id(WEB.uid), "8d49d164");
    let name = domain_name(WEB.namespace, WEB.name, WEB.uid);
    assert_eq!(name, "prod-web-8d49d164");
    let volume = volume_name("prod", "web", WEB.uid, "root", VolumeFormat::Qcow2);
    assert_eq!(volume, "prod-web-8d49d164.root.qcow2");
    let seed = seed_name("prod", "web", WEB.uid, b"abc");
    assert_eq!(seed, "prod-web-8d49d164.seed-ba7816bf8f01.iso");
}

#[test]
fn a_volume_with_the_digits_elsewhere_in_its_name_does_not_belong_to_the_machine() {
    let id = short_id(WEB.uid);
    let root = volume_name("prod", "web", WEB.uid, "root", VolumeFormat::Raw);
    let domain = domain_name("prod", "web", WEB.uid);
    assert!(is_volume_of(&root, &domain));
    assert!(!is_volume_of(&root, &domain_name("prod", "web", OTHER)));
    let seed = seed_name("prod", "web", WEB.uid, b"");
    assert!(is_volume_of(&seed, &domain));
    for name in [
        "",
        ".",
        "root.qcow2",
        &format!("{id}.qcow2"),
        &format!("backup-of-prod-web-{id}-root.qcow2"),
        &format!("prod-web-{id}0.root.qcow2"),
        &format!("prod-web-0{id}.root.qcow2"),
        &format!("prod-web-{}.root.qcow2", id.to_uppercase()),
        &format!("prod-web.{id}.qcow2"),
        &format!("prod-web-{id}"),
        // Somebody has created Machines until one had the same digits.
        &volume_name("prod", "db", WEB.uid, "root", VolumeFormat::Raw),
        &volume_name("test", "web", WEB.uid, "root", VolumeFormat::Raw),
        // The digits are the name of another Machine, of its namespace or of its disk.
        &volume_name("prod", &id, OTHER, "root", VolumeFormat::Raw),
        &volume_name(&id, "web", OTHER, "root", VolumeFormat::Raw),
        &volume_name("prod", "web", OTHER, &id, VolumeFormat::Raw),
        &volume_name("prod", "web", OTHER, &format!("a-{id}"), VolumeFormat::Raw),
    ] {
        assert!(!is_volume_of(name, &domain), "{name}");
    }
}

fn label() -> impl Strategy<Value = String> {
    "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
}

proptest! {
    #[test]
    fn names_are_short_enough_and_unique_per_machine_and_disk(
        (namespace, name, disk, other) in (label(), label(), label(), label()),
    ) {
        let domain = domain_name(&namespace, &name, WEB.uid);
        prop_assert!(domain.len() <= 64, "{domain}");
        prop_assert!(!domain.contains('.'));
        // A Machine that is deleted and created again gets another domain.
        prop_assert_ne!(&domain, &domain_name(&namespace, &name, OTHER));

        let volume = |disk: &str| volume_name(&namespace, &name, WEB.uid, disk, VolumeFormat::Qcow2);
        prop_assert!(volume(&disk).len() <= 128, "{}", volume(&disk));
        prop_assert!(is_volume_of(&volume(&disk), &domain));
        prop_assert!(!is_volume_of(&volume(&disk), &domain_name(&namespace, &name, OTHER)));
        let seed = seed_name(&namespace, &name, WEB.uid, b"");
        prop_assert!(seed.len() <= 128);
        let names = BTreeSet::from([volume(&disk), volume(&other), seed]);
        prop_assert_eq!(names.len(), if disk == other { 2 } else { 3 });
    }
}
