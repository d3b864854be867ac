//! What a plain text of a YAML document means to cloud-init, which reads YAML 1.1 as PyYAML does:
//! `yes` is true, `010` is eight, `1:30` is ninety, `1e3` is a text.
//!
//! The forms are those of <https://yaml.org/type/>, with what PyYAML leaves out. Dates stay texts:
//! JSON has none, and cloud-init writes them out again wherever it uses them.
//!
//! Reason: with the forms of YAML 1.2, the rules would accept what cloud-init reads as another type. The suite
//! `tests/tests/readers` compares both.

use serde_json::{Number, Value};

/// Why a text is not valid for the type of its form or its tag: PyYAML fails at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScalarError {
    /// `0x_`, or `!!int` or `!!float` on a value of another type.
    #[error("a text that looks like a number but is not one; put it in quotes")]
    Number,
    /// `!!bool` on a value of another type.
    #[error("a value tagged !!bool that is neither true nor false")]
    Bool,
    /// `2024-02-30`, or `!!timestamp` on a value of another type.
    #[error("a date that does not exist; put it in quotes")]
    Date,
    /// `=`, which PyYAML resolves to a type that it cannot construct.
    #[error("a lone '='; put it in quotes")]
    Value,
    /// A tag that the safe loader has no type for.
    #[error("a tag that cloud-init does not support")]
    Tag,
}

/// What an untagged plain text means.
pub(super) fn plain(text: &str) -> Result<Value, ScalarError> {
    let Some(first) = text.bytes().next() else {
        return Ok(Value::Null);
    };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => {
            if is_null(text) {
                return Ok(Value::Null);
            }
            Ok(boolean(text).map_or_else(|| text.into(), Value::from))
        }
        b'=' if text == "=" => Err(ScalarError::Value),
        b'0'..=b'9' | b'+' | b'-' | b'.' => number_or_date(text),
        _ => Ok(text.into()),
    }
}

/// What a text means whose tag is `tag:yaml.org,2002:` and this.
pub(super) fn tagged(tag: &str, text: &str) -> Result<Value, ScalarError> {
    match tag {
        "str" | "binary" => Ok(text.into()),
        "null" => Ok(Value::Null),
        "bool" => boolean(&text.to_lowercase())
            .map(Value::from)
            .ok_or(ScalarError::Bool),
        "int" => match integer(text) {
            Some(value) => value,
            None => Err(ScalarError::Number),
        },
        "float" => match (float(text), integer(text)) {
            (Some(value), _) | (None, Some(Ok(value))) => Ok(value),
            (None, _) => Err(ScalarError::Number),
        },
        "timestamp" if is_date(text) == Some(true) => Ok(text.into()),
        "timestamp" => Err(ScalarError::Date),
        _ => Err(ScalarError::Tag),
    }
}

fn number_or_date(text: &str) -> Result<Value, ScalarError> {
    if let Some(value) = integer(text) {
        return value;
    }
    if let Some(value) = float(text) {
        return Ok(value);
    }
    match is_date(text) {
        Some(false) => Err(ScalarError::Date),
        Some(true) | None => Ok(text.into()),
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "~" | "null" | "Null" | "NULL")
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

fn unsigned(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// A whole number; an error if the text has the form of one and no digits.
fn integer(text: &str) -> Option<Result<Value, ScalarError>> {
    let (negative, body) = unsigned(text);
    let is = |digits: &str, allowed: fn(&u8) -> bool| {
        !digits.is_empty() && digits.bytes().all(|b| b == b'_' || allowed(&b))
    };
    let value = if body == "0" {
        Some(0)
    } else if let Some(digits) = body.strip_prefix("0b") {
        is(digits, |b| matches!(b, b'0' | b'1')).then(|| in_base(2, digits))?
    } else if let Some(digits) = body.strip_prefix("0x") {
        is(digits, u8::is_ascii_hexdigit).then(|| in_base(16, digits))?
    } else if let Some(digits) = body.strip_prefix('0') {
        is(digits, |b| matches!(b, b'0'..=b'7')).then(|| in_base(8, &format!("0{digits}")))?
    } else if body.starts_with(|c: char| c.is_ascii_digit()) {
        if is(body, u8::is_ascii_digit) {
            in_base(10, body)
        } else {
            sexagesimal(body)?
        }
    } else {
        return None;
    };
    Some(value.ok_or(ScalarError::Number).map(|value| {
        // Python's integers are unbounded; a number beyond ours exceeds every setting.
        let value = if negative { -value } else { value };
        i64::try_from(value).map_or_else(
            |_| if negative { i64::MIN } else { i64::MAX },
            std::convert::identity,
        )
    }))
    .map(|value| value.map(Value::from))
}

/// Digits with underscores between them; none if there is no digit at all.
fn in_base(base: u32, digits: &str) -> Option<i128> {
    let mut digits = digits.chars().filter_map(|c| c.to_digit(base)).peekable();
    digits.peek()?;
    Some(digits.fold(0_i128, |value, digit| {
        value
            .saturating_mul(base.into())
            .saturating_add(digit.into())
    }))
}

/// `1:30`: minutes and seconds as YAML 1.1 counts them. Some MAC addresses have this form.
#[expect(
    clippy::option_option,
    reason = "the outer one is whether the text has the form, the inner one its value"
)]
fn sexagesimal(body: &str) -> Option<Option<i128>> {
    let (first, rest) = body.split_once(':')?;
    let first_is_number = first.bytes().all(|b| b == b'_' || b.is_ascii_digit());
    if !first_is_number || !rest.split(':').all(is_sixtieth) {
        return None;
    }
    let parts = rest.split(':').filter_map(|part| part.parse::<i128>().ok());
    Some(in_base(10, first).map(|first| {
        parts.fold(first, |value, part| {
            value.saturating_mul(60).saturating_add(part)
        })
    }))
}

fn is_sixtieth(part: &str) -> bool {
    matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9'])
}

/// A number with a point. The rules use only its type.
fn float(text: &str) -> Option<Value> {
    let (_, body) = unsigned(text);
    let has_sign = body.len() < text.len();
    let is_digits = |digits: &str| digits.bytes().all(|b| b == b'_' || b.is_ascii_digit());
    let (whole, rest) = body.split_once('.')?;
    let special = matches!(rest, "inf" | "Inf" | "INF")
        || (!has_sign && matches!(rest, "nan" | "NaN" | "NAN"));
    if whole.is_empty() && special {
        return Some(Value::from(0));
    }
    let (fraction, exponent) = match rest.split_once(['e', 'E']) {
        Some((fraction, exponent)) => (fraction, Some(exponent)),
        None => (rest, None),
    };
    let is_exponent = |text: &str| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let starts_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let fits = if whole.is_empty() {
        // PyYAML accepts a sign only before a digit.
        !has_sign && starts_with_digit(fraction) && is_digits(fraction)
    } else if let Some((first, rest)) = whole.split_once(':') {
        exponent.is_none()
            && starts_with_digit(first)
            && is_digits(first)
            && rest.split(':').all(is_sixtieth)
            && is_digits(fraction)
    } else {
        starts_with_digit(whole) && is_digits(whole) && is_digits(fraction)
    };
    if !fits || !exponent.is_none_or(is_exponent) {
        return None;
    }
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    let value = plain.parse().ok().and_then(Number::from_f64);
    Some(value.map_or_else(|| Value::from(0), Value::Number))
}

/// Whether a text with the form of a date or a time of a day is one that exists.
fn is_date(text: &str) -> Option<bool> {
    let mut rest = text;
    let year = digits(&mut rest, 4, 4)?;
    let month = separated(&mut rest, '-', 1)?;
    let day = separated(&mut rest, '-', 1)?;
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    };
    let exists = year >= 1 && (1..=12).contains(&month) && (1..=days).contains(&day);
    if rest.is_empty() {
        // A bare date is written with all its digits, or is a text.
        return (text.len() == 10).then_some(exists);
    }
    let after = rest.trim_start_matches([' ', '\t']);
    rest = if after.len() < rest.len() {
        after
    } else {
        rest.strip_prefix(['T', 't'])?
    };
    let hour = digits(&mut rest, 1, 2)?;
    let minute = separated(&mut rest, ':', 2)?;
    let second = separated(&mut rest, ':', 2)?;
    if let Some(fraction) = rest.strip_prefix('.') {
        rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    let zone = rest.trim_start_matches([' ', '\t']);
    let is_zone = match zone.strip_prefix(['+', '-']) {
        // White space at the end would be part of a time zone.
        None => zone == "Z" || rest.is_empty(),
        Some(mut offset) => {
            digits(&mut offset, 1, 2)?;
            if !offset.is_empty() {
                separated(&mut offset, ':', 2)?;
            }
            offset.is_empty()
        }
    };
    is_zone.then_some(exists && hour < 24 && minute < 60 && second < 60)
}

/// As many digits as there are, from `min` to `max`.
fn digits(rest: &mut &str, min: usize, max: usize) -> Option<u32> {
    let count = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, after) = rest.split_at(count);
    *rest = after;
    (min..=max).contains(&count).then(|| digits.parse().ok())?
}

fn separated(rest: &mut &str, separator: char, min: usize) -> Option<u32> {
    *rest = rest.strip_prefix(separator)?;
    digits(rest, min, 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_scalars_resolve_as_in_pyyaml() {
        for (text, value) in [
            ("", json!(null)),
            ("~", json!(null)),
            ("null", json!(null)),
            ("nUll", json!("nUll")),
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("yES", json!("yES")),
            ("y", json!("y")),
            ("true story", json!("true story")),
            ("0", json!(0)),
            ("-0", json!(0)),
            ("+1", json!(1)),
            ("1_000", json!(1000)),
            ("0644", json!(420)),
            ("644", json!(644)),
            ("08", json!("08")),
            ("0o17", json!("0o17")),
            ("0b101", json!(5)),
            ("-0xFf", json!(-255)),
            ("12:30", json!(750)),
            ("22:22", json!(1342)),
            ("1:60", json!("1:60")),
            ("52:54:00:12:34:56", json!(41_135_085_296_i64)),
            ("52:54:00:ab:cd:ef", json!("52:54:00:ab:cd:ef")),
            ("01:02", json!("01:02")),
            ("99999999999999999999999999999999999999999", json!(i64::MAX)),
            ("-99999999999999999999", json!(i64::MIN)),
            ("1.5", json!(1.5)),
            ("1.", json!(1.0)),
            (".5", json!(0.5)),
            ("-.5", json!("-.5")),
            ("1.e+3", json!(1000.0)),
            ("1e3", json!("1e3")),
            ("1.0e3", json!("1.0e3")),
            ("1.2.3", json!("1.2.3")),
            ("1:30.5", json!(0)),
            ("-.inf", json!(0)),
            (".nan", json!(0)),
            ("-.nan", json!("-.nan")),
            (".", json!(".")),
            ("-", json!("-")),
            ("2024-02-29", json!("2024-02-29")),
            ("2024-2-1", json!("2024-2-1")),
            ("2024-99-99x", json!("2024-99-99x")),
            (
                "2001-12-14 21:59:43.10 -5",
                json!("2001-12-14 21:59:43.10 -5"),
            ),
            ("20:00", json!(1200)),
            ("192.168.0.1", json!("192.168.0.1")),
            ("ls", json!("ls")),
        ] {
            assert_eq!(plain(text), Ok(value), "{text:?}");
        }
    }

    #[test]
    fn scalars_that_pyyaml_rejects_are_errors() {
        for (text, error) in [
            ("0x_", ScalarError::Number),
            ("0b_", ScalarError::Number),
            ("2023-02-29", ScalarError::Date),
            ("2024-13-01", ScalarError::Date),
            ("2024-01-01T25:00:00Z", ScalarError::Date),
            ("=", ScalarError::Value),
        ] {
            assert_eq!(plain(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn an_explicit_tag_overrides_the_resolved_type() {
        for (tag, text, value) in [
            ("str", "5", Ok(json!("5"))),
            ("int", "5", Ok(json!(5))),
            ("int", "five", Err(ScalarError::Number)),
            ("float", "5", Ok(json!(5))),
            ("float", "x", Err(ScalarError::Number)),
            ("bool", "YeS", Ok(json!(true))),
            ("bool", "1", Err(ScalarError::Bool)),
            ("null", "x", Ok(json!(null))),
            ("binary", "NDI=", Ok(json!("NDI="))),
            ("timestamp", "2024-01-01", Ok(json!("2024-01-01"))),
            ("timestamp", "today", Err(ScalarError::Date)),
            ("python/unicode", "x", Err(ScalarError::Tag)),
        ] {
            assert_eq!(tagged(tag, text), value, "{tag} {text}");
        }
    }
}
