//! Quantities against rational numbers of any size.

use std::cmp::Ordering;

use common::quantity::{Bytes, QuantityError};
use num_bigint::{BigInt, BigUint};
use num_rational::BigRational;

/// Most digits that are read, as the product promises.
const DIGITS_MAX: usize = 39;
/// Most digits of an exponent.
const EXPONENT_MAX: usize = 2;

/// Two texts, a line each: both are what they are by the other way of reading them, and the order of
/// what they say is the order of what was read.
pub fn pair(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let text = text.strip_suffix('\n').unwrap_or(text);
    let (one, other) = text.split_once('\n').unwrap_or((text, "1Gi"));
    let (Some(one), Some(other)) = (read(one), read(other)) else {
        return;
    };
    match one.said.cmp(&other.said) {
        // What differs by less than a byte may be the same amount.
        Ordering::Less => assert!(one.read <= other.read, "{text:?}"),
        Ordering::Equal => assert_eq!(one.read, other.read, "{text:?}"),
        Ordering::Greater => assert!(one.read >= other.read, "{text:?}"),
    }
}

/// An amount, and what its text says exactly.
struct Amount {
    read: Bytes,
    said: BigRational,
}

fn read(text: &str) -> Option<Amount> {
    let said = exactly(text);
    let read = text.parse::<Bytes>();
    match (read, said) {
        (Ok(read), Some(said)) => {
            let bytes = BigRational::from(BigInt::from(read.get()));
            assert_eq!(said.ceil(), bytes, "{text:?}");
            let written = read.to_string();
            assert_eq!(
                written.parse(),
                Ok(read),
                "{text:?} was written as {written}"
            );
            assert!(!written.contains(['.', 'e', '+']), "{text:?}: {written}");
            Some(Amount { read, said })
        }
        (Err(QuantityError::TooLarge), Some(said)) => {
            assert!(is_beyond(text, &said), "{text:?}");
            None
        }
        (Err(QuantityError::Negative), _) => {
            assert!(text.starts_with('-'), "{text:?}");
            None
        }
        (Err(_), None) => None,
        (read, said) => panic!("{text:?} was read as {read:?} and is {said:?}"),
    }
}

/// Whether refusing it as too large is right: too many digits, or an amount that 128 bits do not hold
/// before its fraction is taken off.
fn is_beyond(text: &str, said: &BigRational) -> bool {
    let number = text.trim_start_matches('+');
    let number_end = number.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = number.split_at(number_end.unwrap_or(number.len()));
    let digits = number.bytes().filter(u8::is_ascii_digit).count();
    let exponent = unit.bytes().filter(u8::is_ascii_digit).count();
    let fraction = number.split_once('.').map_or(0, |(_, digits)| digits.len());
    let fraction = BigInt::from(BigUint::from(10_u8).pow(u32::try_from(fraction).unwrap()));
    let unscaled = said * BigRational::from(fraction);
    let held = BigRational::from(BigInt::from(u128::MAX));
    digits > DIGITS_MAX || exponent > EXPONENT_MAX || unscaled > held
}

/// What a text says by Kubernetes' grammar: `[+-] digits [. digits] [suffix or exponent]`.
fn exactly(text: &str) -> Option<BigRational> {
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
    // More digits than any seed has would only cost time.
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
            // One that is longer than the product reads is beyond it, however large.
            let bounded = is_number.then(|| &exponent[..exponent.len().min(EXPONENT_MAX + 2)])?;
            BigRational::from(number) * ten_to(fraction + bounded.parse::<i32>().ok()?)
        }
    })
}

fn ten_to(power: i32) -> BigRational {
    BigRational::from(BigInt::from(10)).pow(power)
}
