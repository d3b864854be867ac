//! How much memory the process takes while it decodes a page of objects that a tenant has filled with metadata.
//!
//! Alone in its process: the kernel reports the most memory that the whole process has had.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::fmt::Write as _;

use controller_core::objects::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ObjectList;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// More than a page has.
const OBJECTS: usize = 20;

/// Keys in each of labels, annotations and managed fields of an object: together they are 1.5 MiB, the most that etcd
/// stores.
const KEYS: usize = 44_000;

const MIB: u64 = 1 << 20;

/// An object as if nothing of its metadata were skipped.
#[derive(Clone, Debug, Deserialize)]
struct Whole {
    #[expect(dead_code, reason = "it only takes memory")]
    metadata: ObjectMeta,
}

/// The text of a list, written into a buffer of its final size, so that writing it is not what takes the most memory.
fn page() -> String {
    let mut text = String::with_capacity(OBJECTS * (3 << 19) + (1 << 20));
    text +=
        r#"{"apiVersion":"v1","kind":"SecretList","metadata":{"resourceVersion":"1"},"items":["#;
    for object in 0..OBJECTS {
        let comma = if object == 0 { "" } else { "," };
        write!(text, r#"{comma}{{"metadata":{{"name":"s{object}""#).unwrap();
        text += r#","labels":{"vitistack.io/machine":"web""#;
        (0..KEYS).for_each(|key| write!(text, r#","{key}":"""#).unwrap());
        text += r#"},"annotations":{"machine.vitistack.io/paused":"true""#;
        (0..KEYS).for_each(|key| write!(text, r#","{key}":"""#).unwrap());
        text += r#"},"managedFields":[{"fieldsV1":{"f:a":{}"#;
        (0..KEYS).for_each(|key| write!(text, r#","f:{key}":{{}}"#).unwrap());
        text += "}}]}}";
    }
    text += "]}";
    text
}

/// The most memory that the process has had so far, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<u64>().unwrap() << 10
}

fn decode<K: Clone + DeserializeOwned>(page: &str) -> (Vec<K>, u64) {
    let before = peak();
    let list: ObjectList<K> = serde_json::from_str(page).unwrap();
    assert_eq!(list.items.len(), OBJECTS);
    (list.items, peak() - before)
}

#[test]
fn a_page_of_objects_full_of_metadata_takes_no_memory_beside_its_text() {
    let page = page();
    let largest = page.len() / OBJECTS;
    assert!((5 << 18..3 << 19).contains(&largest), "{largest} bytes");

    let (secrets, memory) = decode::<Secret>(&page);
    assert!(memory < 4 * MIB, "{memory} bytes more");
    for secret in secrets {
        let metadata = secret.metadata;
        assert_eq!(metadata.labels.unwrap().len(), 1);
        assert_eq!(metadata.annotations.unwrap().len(), 1);
        assert_eq!(metadata.managed_fields, None);
    }

    // The measurement notices what the library decodes: ten times the text of each object.
    let (_whole, memory) = decode::<Whole>(&page);
    assert!(memory > 100 * MIB, "only {memory} bytes more");
}
