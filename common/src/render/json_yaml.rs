//! JSON that PyYAML reads as the same values: YAML is nearly, and PyYAML less nearly, a superset of JSON
//! (`the_text_is_json_of_the_same_object_and_avoids_what_pyyaml_reads_differently`).

use std::io;

use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

/// An object as JSON on one line. The same object gives the same text.
pub(super) fn text(fields: &serde_json::Map<String, Value>) -> String {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, ForYaml);
    // Writing to a vector cannot fail.
    let _ = fields.serialize(&mut serializer);
    String::from_utf8(out).unwrap_or_default()
}

/// Differs from serde_json's compact form where PyYAML would read another value or refuse the text.
struct ForYaml;

impl Formatter for ForYaml {
    /// PyYAML refuses control characters beyond ASCII and reads the separators U+0085, U+2028 and U+2029 as line breaks.
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((start, special)) = rest.char_indices().find(|(_, c)| is_special(*c)) {
            writer.write_all(&rest.as_bytes()[..start])?;
            write!(writer, "\\u{:04x}", u32::from(special))?;
            rest = &rest[start + special.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }

    /// In YAML 1.1 a number with an exponent has a point and a signed exponent: `1e30` would be a text.
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let plain = Value::from(value).to_string();
        let Some((digits, exponent)) = plain.split_once('e') else {
            return writer.write_all(plain.as_bytes());
        };
        let point = if digits.contains('.') { "" } else { ".0" };
        let sign = if exponent.starts_with('-') { "" } else { "+" };
        let exponent = exponent.trim_start_matches('+');
        write!(writer, "{digits}{point}e{sign}{exponent}")
    }
}

fn is_special(c: char) -> bool {
    matches!(
        c,
        '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_is_json_of_the_same_object_and_avoids_what_pyyaml_reads_differently() {
        let object = json!({
            "text": "a\tb\u{85}\u{2028}é😀\u{7f}\u{feff}\n",
            "numbers": [1, 1.5, 1e30, 2.5e-9, 420, -7, 18_446_744_073_709_551_615_u64],
            "nothing": null,
        });
        let fields = object.as_object().unwrap();
        let text = text(fields);
        assert_eq!(
            text,
            r#"{"nothing":null,"numbers":[1,1.5,1.0e+30,2.5e-9,420,-7,18446744073709551615],"text":"a\tb\u0085\u2028é😀\u007f\ufeff\n"}"#
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), object);
    }
}
