//! Revisions of the user's Secrets, and the Secret that the controller creates from them.

use std::collections::BTreeMap;

use super::fixtures::{self, LONGEST};
use crate::render::{CloudInitPlan, SecretRevision, SecretValue};

#[test]
fn a_revision_changes_with_content_and_secret_and_discloses_neither() {
    let revision = |uid: &str, version: &str, content: &str| {
        let value = SecretValue::new(uid, version, content.into());
        assert!(!format!("{value:?}").contains(content));
        let text = value.revision.to_string();
        assert_eq!(SecretRevision::parse(&text), Some(value.revision.clone()));
        value.revision
    };
    let first = revision("uid", "17", "secret");
    assert_eq!(first.version, "17");
    assert_eq!(first.digest, revision("uid", "18", "secret").digest);
    assert_ne!(first.digest, revision("uid", "17", "other").digest);
    assert_ne!(first.digest, revision("another", "17", "secret").digest);
    assert_eq!(SecretRevision::parse("17"), None);
}

#[test]
fn a_recorded_revision_is_kept_until_its_secret_is_written_again() {
    let plan = CloudInitPlan::from(&fixtures::cloud_inits()[5]);
    let nothing = BTreeMap::new();
    let read = |version: &str| {
        let revision = SecretValue::new("uid", version, b"text".to_vec()).revision;
        plan.secret_revisions(&nothing, |_| Some(revision.clone()))
    };
    let recorded = read("7");
    let keys: Vec<_> = recorded.keys().map(String::as_str).collect();
    let expected = ["network-data", "user-data"];
    assert_eq!(
        keys,
        expected.map(|key| format!("machine.vitistack.io/{key}"))
    );
    assert_eq!(plan.secret_revisions(&recorded, |_| None), recorded);
    let version = |version: &'static str| move |_: &str| Some(version.to_owned());
    assert!(!plan.is_outdated(&recorded, version("7")));
    assert!(plan.is_outdated(&recorded, version("8")));
    assert!(plan.is_outdated(&nothing, version("7")));
    assert!(
        !plan.is_outdated(&nothing, |_| None),
        "the Secret is not cached"
    );

    let inline = CloudInitPlan::from(&fixtures::cloud_inits()[1]);
    assert!(inline.secret_revisions(&recorded, |_| None).is_empty());
    assert!(!inline.is_outdated(&nothing, version("7")));
}

#[test]
fn no_secret_is_created_while_a_secret_of_the_user_is_missing() {
    let cloud = &fixtures::cloud_inits()[5];
    let plan = CloudInitPlan::from(cloud);
    assert!(plan.secret(&LONGEST, |_| None).is_none());
    let names: Vec<_> = plan
        .references()
        .map(|secret| secret.name.as_str())
        .collect();
    assert_eq!(names, ["user", "net"]);
}
