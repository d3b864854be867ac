//! Annotations of the Machine that its guest has, too.

use serde_json::{Value, json};

use super::fixtures;
use super::schema;
use crate::api::normalized::Normalized;
use crate::names;

fn annotations(block: &Normalized) -> Value {
    let vm = schema::accepted(block);
    vm["spec"]["template"]["metadata"]["annotations"].clone()
}

#[test]
fn annotations_are_those_of_the_instance_with_a_digest_of_all_of_them() {
    let with = |value: &str| Normalized {
        annotations: [("example.com/team".to_owned(), value.to_owned())].into(),
        ..fixtures::block()
    };
    let (a, b) = (annotations(&with("a")), annotations(&with("b")));
    assert_eq!([&a, &b].map(|it| &it["example.com/team"]), ["a", "b"]);
    let digest = names::ANNOTATION_ANNOTATIONS;
    assert_ne!(a[digest], b[digest]);
    assert_eq!(a[digest].as_str().unwrap().len(), 16);
    let none = annotations(&fixtures::block());
    assert_eq!(
        (&none["example.com/team"], &none[digest]),
        (&json!(null), &json!(null))
    );
}
