//! The digest by which a block is matched to its intent.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::json::Json;

/// Digest of an intent: the spec as sent, without its block, and the template label.
///
/// The spec is raw JSON, so that a release that has fewer fields than the writer computes the same
/// digest. Keys are sorted. A field that is null counts as absent, and so does an empty label.
pub fn intent_hash(spec: &Value, template_label: Option<&str>) -> String {
    hash(&Json::from(spec), template_label)
}

/// [`intent_hash`] of a decoded spec.
pub(crate) fn hash(spec: &Json<'_>, template_label: Option<&str>) -> String {
    let mut canonical = Vec::with_capacity(512);
    match spec {
        Json::Object(fields) => {
            let intent = fields.iter().filter(|(key, _)| *key != "normalized");
            write_object(&mut canonical, intent);
        }
        other => write(&mut canonical, other),
    }
    if let Some(label) = template_label.filter(|label| !label.is_empty()) {
        canonical.push(b'\n');
        canonical.extend_from_slice(label.as_bytes());
    }
    let digest = Sha256::digest(&canonical);
    let mut text = String::with_capacity(7 + 64);
    text.push_str("sha256:");
    for byte in digest {
        for nibble in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(nibble.into(), 16));
        }
    }
    text
}

fn write(out: &mut Vec<u8>, value: &Json<'_>) {
    match value {
        Json::Object(fields) => write_object(out, fields.iter()),
        Json::List(items) => {
            out.push(b'[');
            for item in items {
                write(out, item);
                out.push(b',');
            }
            out.push(b']');
        }
        // serde_json writes each scalar in one form only.
        Json::Text(text) => scalar(out, text),
        Json::Number(number) => scalar(out, number),
        Json::Bool(value) => scalar(out, value),
        Json::Null => out.extend_from_slice(b"null"),
    }
}

fn scalar<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Serializing a scalar into a vector cannot fail.
    let _ = serde_json::to_writer(out, value);
}

fn write_object<'j>(out: &mut Vec<u8>, fields: impl Iterator<Item = (&'j str, &'j Json<'j>)>) {
    out.push(b'{');
    for (key, value) in fields.filter(|(_, value)| !value.is_null()) {
        scalar(out, key);
        out.push(b':');
        write(out, value);
        out.push(b',');
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_digest_depends_on_the_intent_alone() {
        let base = intent_hash(
            &json!({"template": "small", "disks": [{"name": "a"}]}),
            None,
        );
        for same in [
            json!({"disks": [{"name": "a"}], "template": "small"}),
            json!({"template": "small", "disks": [{"name": "a", "size": null}], "backend": null}),
            json!({"template": "small", "disks": [{"name": "a"}], "normalized": {"version": 1}}),
        ] {
            assert_eq!(intent_hash(&same, None), base, "{same}");
            assert_eq!(intent_hash(&same, Some("")), base, "{same}");
        }
        for other in [
            json!({"template": "small"}),
            json!({"template": "small", "disks": [{"name": "b"}]}),
            json!({"template": "small", "disks": [{"name": "a"}, {"name": "a"}]}),
            json!({"template": "small", "disks": [{"name": "a", "normalized": 1}]}),
        ] {
            assert_ne!(intent_hash(&other, None), base, "{other}");
        }
        assert_ne!(
            intent_hash(
                &json!({"template": "small", "disks": [{"name": "a"}]}),
                Some("x")
            ),
            base
        );
    }

    #[test]
    fn the_digest_is_the_same_in_every_release() {
        // Every stored block contains a digest: if this value changed, all of them would be outdated.
        assert_eq!(
            intent_hash(
                &json!({"template": "small", "resources": {"cpu": {"cores": 4}}, "networks": [{"name": "é\n"}]}),
                Some("small")
            ),
            "sha256:b0d72d21fe49b19e29cc608f3daf4f7933cbfb613bc1294594095ce43fa23e1c"
        );
    }
}
