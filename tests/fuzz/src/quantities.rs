//! Quantities, compared with rational numbers of any size.

use std::cmp::Ordering;

use common::quantity::{Bytes, QuantityError};
use num_bigint::{BigInt, BigUint};
use num_rational::BigRational;

/// Most digits that the product reads.
const DIGITS_MAX: usize = 39;
/// Most digits of an exponent.
const EXPONENT_MAX: usize = 2;

/// Two texts, one per line: both are parsed to the amount that a second parser finds, and their amounts
/// have the same order as their exact values.
pub fn pair(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let text = text.strip_suffix('\n').unwrap_or(text);
    let (one, other) = text.split_once('\n').unwrap_or((text, "1Gi"));
    let (Some(one), Some(other)) = (checked(one), checked(other)) else {
        return;
    };
    match one.exact.cmp(&other.exact) {
        // Values that differ by less than a byte may give the same amount.
        Ordering::Less => assert!(one.parsed <= other.parsed, "{text:?}"),
        Ordering::Equal => assert_eq!(one.parsed, other.parsed, "{text:?}"),
        Ordering::Greater => assert!(one.parsed >= other.parsed, "{text:?}"),
    }
}

/// A parsed amount and the exact value of its text.
struct Amount {
    parsed: Bytes,
    exact: BigRational,
}

/// Parses a text and compares the result with its exact value.
fn checked(text: &str) -> Option<Amount> {
    let exact = exact_value(text);
    let parsed = text.parse::<Bytes>();
    match (parsed, exact) {
        (Ok(parsed), Some(exact)) => {
            let bytes = BigRational::from(BigInt::from(parsed.get()));
            assert_eq!(exact.ceil(), bytes, "{text:?}");
            let written = parsed.to_string();
            assert_eq!(
                written.parse(),
                Ok(parsed),
                "{text:?} was written as {written}"
            );
            assert!(!written.contains(['.', 'e', '+']), "{text:?}: {written}");
            Some(Amount { parsed, exact })
        }
        (Err(QuantityError::TooLarge(_)), Some(exact)) => {
            assert!(is_too_large(text, &exact), "{text:?}");
            None
        }
        (Err(QuantityError::Negative), _) => {
            assert!(text.starts_with('-'), "{text:?}");
            None
        }
        (Err(_), None) => None,
        (parsed, exact) => panic!("{text:?} was read as {parsed:?} and is {exact:?}"),
    }
}

/// Whether a text may be refused as too large: it has too many digits, or without its point the amount
/// exceeds 128 bits.
fn is_too_large(text: &str, exact: &BigRational) -> bool {
    let number = text.trim_start_matches('+');
    let number_end = number.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = number.split_at(number_end.unwrap_or(number.len()));
    let digits = number.bytes().filter(u8::is_ascii_digit).count();
    let exponent = unit.bytes().filter(u8::is_ascii_digit).count();
    let fraction = number.split_once('.').map_or(0, |(_, digits)| digits.len());
    let fraction = BigInt::from(BigUint::from(10_u8).pow(u32::try_from(fraction).unwrap()));
    let unscaled = exact * BigRational::from(fraction);
    let largest = BigRational::from(BigInt::from(u128::MAX));
    digits > DIGITS_MAX || exponent > EXPONENT_MAX || unscaled > largest
}

/// The exact value of a text by Kubernetes' grammar: `[+-] digits [. digits] [suffix or exponent]`.
fn exact_value(text: &str) -> Option<BigRational> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let whole: String = unsigned.chars().take_while(char::is_ascii_digit).collect();
    let rest = &unsigned[whole.len()..];
    let (fraction, unit) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            let unit = &rest[digits.len()..];
            (digits, unit)
        }
        None => (String::new(), rest),
    };
    let digits = [whole, fraction.clone()].concat();
    // Texts with more digits than any seed would only take time.
    if digits.is_empty() || digits.len() > 4 * DIGITS_MAX {
        return None;
    }
    let number = digits.parse::<BigInt>().ok()?;
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let place = |units: &[&str]| units.iter().position(|known| *known == unit);
    let fraction = -i32::try_from(fraction.len()).ok()?;
    Some(match (place(&binary), place(&decimal)) {
        (Some(power), _) => {
            let factor = BigInt::from(1024).pow(u32::try_from(power + 1).ok()?);
            BigRational::from(number * factor) * ten_to(fraction)
        }
        (_, Some(power)) => {
            let power = 3 * i32::try_from(power).ok()? - 9;
            BigRational::from(number) * ten_to(fraction + power)
        }
        _ => {
            let exponent = unit.strip_prefix(['e', 'E'])?;
            let bare = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let is_number = !bare.is_empty() && bare.bytes().all(|b| b.is_ascii_digit());
            // A longer exponent than the product reads is too large, whatever its value.
            let bounded = is_number.then(|| &exponent[..exponent.len().min(EXPONENT_MAX + 2)])?;
            BigRational::from(number) * ten_to(fraction + bounded.parse::<i32>().ok()?)
        }
    })
}

fn ten_to(power: i32) -> BigRational {
    BigRational::from(BigInt::from(10)).pow(power)
}
