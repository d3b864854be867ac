//! Quantities: how a size is read, and what a misspelled one probably means.

use std::str::FromStr;

use super::rule::{Check, rules};
use crate::bounds::QUANTITY_MAX;
use crate::code::Code;
use crate::normalize::Leaf;
use crate::quantity::{Bytes, QuantityError};
use crate::violation::{Findings, Kind, Violation};

rules! {
    "sizing" Check::Value, on EVERY_KIND, Always {
        Refuse InvalidQuantity = "A size is not a Kubernetes quantity."
            because "The backends would refuse it later, each with another message."
            fix "Write a number and a unit, such as `2Gi`."
            crd All,
        Refuse UnitMissing = "A size is a bare number of bytes, too small to be meant."
            because "`4` is four bytes. It is most likely a mistake, and the machine would not start."
            fix "Add the unit: `4Gi`."
            crd All,
    }
}

/// Bounds of a size in bytes, with the codes of their violations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) min: Bytes,
    pub(crate) max: Bytes,
    pub(crate) too_small: Code,
    pub(crate) too_large: Code,
    pub(crate) example: &'static str,
    /// Largest size in bytes that is proposed for a number without a unit.
    pub(crate) likely_max: Bytes,
}

/// A quantity: rule [`Code::InvalidQuantity`]. `corrected` returns the probable intended
/// spelling.
pub(crate) fn quantity<Q: FromStr<Err = QuantityError>>(
    leaf: Leaf<&str>,
    example: &str,
    corrected: impl FnOnce(&str) -> Option<String>,
    findings: &mut Findings,
) -> Option<Q> {
    let text = leaf.value?;
    let detail = if text.len() > QUANTITY_MAX {
        format!("must be at most {QUANTITY_MAX} characters, such as '{example}'")
    } else {
        match text.parse() {
            Ok(quantity) => return Some(quantity),
            Err(error) => {
                let fix = corrected(text).unwrap_or_else(|| example.to_owned());
                format!("{error}; use a number and a unit such as '{fix}'")
            }
        }
    };
    let code = Code::InvalidQuantity;
    findings.deny(Violation::new(leaf.path, code, Kind::Invalid, detail).text(text));
    None
}

/// A quantity within bounds: rules [`Code::InvalidQuantity`], [`Code::UnitMissing`] and the two
/// codes of `range`.
pub(crate) fn bytes(leaf: Leaf<&str>, range: &Range, findings: &mut Findings) -> Option<Bytes> {
    let text = leaf.value?;
    let invalid =
        |code, detail: String| Violation::new(leaf.path, code, Kind::Invalid, detail).text(text);
    let bytes: Bytes = quantity(leaf, range.example, corrected, findings)?;
    let Range {
        min,
        max,
        too_small,
        too_large,
        ..
    } = *range;
    if bytes < min {
        let fault = match with_likely_unit(text, range) {
            Some((Unit::Missing, meant)) => invalid(
                Code::UnitMissing,
                format!(
                    "is {} bytes, because it has no unit; did you mean '{meant}'?",
                    bytes.get()
                ),
            ),
            Some((Unit::Milli, meant)) => invalid(
                too_small,
                format!("must be at least {min}; 'm' means thousandths, did you mean '{meant}'?"),
            ),
            None => invalid(too_small, format!("must be at least {min}")),
        };
        findings.deny(fault);
        return None;
    }
    if bytes > max {
        findings.deny(invalid(too_large, format!("must be at most {max}")));
        return None;
    }
    Some(bytes)
}

/// What is wrong with the unit of a size that is far too small.
enum Unit {
    Missing,
    Milli,
}

/// The size that was probably meant by a number without a unit, or with the suffix `m`.
fn with_likely_unit(text: &str, range: &Range) -> Option<(Unit, String)> {
    let (fault, number) = match text.strip_suffix('m') {
        Some(number) => (Unit::Milli, number),
        None => (Unit::Missing, text),
    };
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let units = match fault {
        Unit::Missing => ["Gi", "Mi"].as_slice(),
        Unit::Milli => ["M"].as_slice(),
    };
    let meant = units
        .iter()
        .map(|unit| format!("{number}{unit}"))
        .find(|meant| {
            let meant: Option<Bytes> = meant.parse().ok();
            meant.is_some_and(|meant| (range.min..=range.likely_max).contains(&meant))
        })?;
    Some((fault, meant))
}

/// The quantity that a misspelled one most likely means.
pub(crate) fn corrected(text: &str) -> Option<String> {
    let bare = text.trim().replace(' ', "").replace(',', ".");
    let split = bare.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = bare.split_at(split);
    let unit = match unit.to_ascii_lowercase().trim_end_matches(['b', 's']) {
        "k" => "k",
        "ki" => "Ki",
        "m" => "M",
        "mi" => "Mi",
        "g" => "G",
        "gi" => "Gi",
        "t" => "T",
        "ti" => "Ti",
        _ => return None,
    };
    let fixed = format!("{number}{unit}");
    fixed.parse::<Bytes>().is_ok().then_some(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_quantity_is_corrected() {
        for (text, fix) in [
            ("2GB", Some("2G")),
            ("2GiB", Some("2Gi")),
            ("2gi", Some("2Gi")),
            ("2 Gi", Some("2Gi")),
            ("1,5Gi", Some("1.5Gi")),
            ("512mb", Some("512M")),
            ("two", None),
            ("2Q", None),
        ] {
            assert_eq!(corrected(text).as_deref(), fix, "{text}");
        }
    }
}
