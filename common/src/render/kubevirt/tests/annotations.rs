//! Annotations of the Machine that its guest has, too.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fixtures;
use super::schema;
use crate::names;

fn annotations(of_machine: &BTreeMap<String, String>) -> Value {
    let vm = schema::accepted_with(&fixtures::block(), of_machine);
    vm["spec"]["template"]["metadata"]["annotations"].clone()
}

#[test]
fn annotations_are_those_of_the_instance_with_a_digest_of_all_of_them() {
    let with = |value: &str| [("example.com/team".to_owned(), value.to_owned())].into();
    let (a, b) = (annotations(&with("a")), annotations(&with("b")));
    assert_eq!([&a, &b].map(|it| &it["example.com/team"]), ["a", "b"]);
    let digest = names::ANNOTATION_ANNOTATIONS;
    assert_ne!(a[digest], b[digest]);
    assert_eq!(a[digest].as_str().unwrap().len(), 16);
    let none = annotations(&BTreeMap::new());
    assert_eq!(
        (&none["example.com/team"], &none[digest]),
        (&json!(null), &json!(null))
    );
}
