//! Kubernetes quantities as exact amounts of bytes.
//!
//! No floating point, and no rounding before the last step. A fraction of a byte is rounded up, as in
//! Kubernetes' `resource.Quantity.Value()`: `0.1Gi` is 107374183 bytes. CPUs are read in the same way, in
//! thousandths.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most digits of a quantity, including leading zeros: `u128::MAX` has 39.
const DIGITS_MAX: usize = 39;

const KI: u128 = 1 << 10;
const MI: u128 = 1 << 20;
const GI: u128 = 1 << 30;
const TI: u128 = 1 << 40;
const PI: u128 = 1 << 50;
const EI: u128 = 1 << 60;

/// Suffixes of the powers of 1024, from the zeroth.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Suffixes of the powers of 1000, from the zeroth.
const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// An exact, non-negative amount of bytes.
///
/// `Display` gives the shortest exact quantity, and parsing that gives the same amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u128);

impl Bytes {
    /// An amount of `n` bytes.
    pub const fn new(n: u128) -> Self {
        Self(n)
    }

    /// An amount of `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n as u128 * MI)
    }

    /// The amount in bytes.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// Whether the amount is a whole multiple of `unit`.
    pub const fn is_multiple_of(self, unit: Self) -> bool {
        self.0.is_multiple_of(unit.0)
    }

    /// The smallest multiple of `unit` that is not below this amount.
    #[must_use]
    pub const fn round_up_to(self, unit: Self) -> Self {
        Self(self.0.div_ceil(unit.0) * unit.0)
    }
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is empty.
    #[error("is empty")]
    Empty,
    /// The amount is negative.
    #[error("is negative")]
    Negative,
    /// There is no number before the unit.
    #[error("does not start with a number")]
    NotANumber,
    /// Kubernetes does not support the unit.
    #[error("has the unknown unit {0:?}")]
    UnknownUnit(String),
    /// The amount, of this, has more digits or a larger exponent than `u128` holds.
    #[error("is too large to be an amount of {0}")]
    TooLarge(&'static str),
}

impl FromStr for Bytes {
    type Err = QuantityError;

    /// Reads what Kubernetes reads: a decimal number and one of `n u m k M G T P E`,
    /// `Ki Mi Gi Ti Pi Ei`, a decimal exponent, or nothing. Fractions of a byte round up.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        scaled(text, 0, "bytes").map(Self)
    }
}

/// An exact, non-negative amount of thousandths, such as of CPUs.
///
/// `Display` gives a quantity, and parsing that gives the same amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Milli(u128);

impl Milli {
    /// The amount in thousandths.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl FromStr for Milli {
    type Err = QuantityError;

    /// Reads what [`Bytes`] reads. Fractions of a thousandth round up.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        scaled(text, 3, "CPUs").map(Self)
    }
}

impl fmt::Display for Milli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) {
            write!(f, "{}", self.0 / 1000)
        } else {
            write!(f, "{}m", self.0)
        }
    }
}

/// The amount of a quantity, multiplied by this power of ten and rounded up. `what`: what it is
/// an amount of.
fn scaled(text: &str, power: i32, what: &'static str) -> Result<u128, QuantityError> {
    let too_large = || QuantityError::TooLarge(what);
    if text.is_empty() {
        return Err(QuantityError::Empty);
    }
    let unsigned = match text.strip_prefix('-') {
        Some(_) => return Err(QuantityError::Negative),
        None => text.strip_prefix('+').unwrap_or(text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(QuantityError::NotANumber);
    }
    if whole.len() + fraction.len() > DIGITS_MAX {
        return Err(too_large());
    }
    // The digits without their point, and the power of ten that puts it back.
    let digits: u128 = match fraction {
        "" => whole.parse(),
        _ => [whole, fraction].concat().parse(),
    }
    .map_err(|_| too_large())?;
    let point = i32::try_from(fraction.len()).map_err(|_| too_large())?;
    let (binary, exponent) = match unit {
        "Ki" => (KI, 0),
        "Mi" => (MI, 0),
        "Gi" => (GI, 0),
        "Ti" => (TI, 0),
        "Pi" => (PI, 0),
        "Ei" => (EI, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        _ => (1, decimal_exponent(unit, what)?),
    };
    let scaled = digits.checked_mul(binary).ok_or_else(too_large)?;
    let power = power + exponent - point;
    let factor = 10u128.checked_pow(power.unsigned_abs());
    match (power >= 0, factor) {
        (true, Some(factor)) => scaled.checked_mul(factor).ok_or_else(too_large),
        (true, None) if scaled > 0 => Err(too_large()),
        (true, None) => Ok(0),
        (false, Some(factor)) => Ok(scaled.div_ceil(factor)),
        (false, None) => Ok(u128::from(scaled > 0)),
    }
}

/// The exponent of `e3`, `E+3` or `e-3`.
fn decimal_exponent(unit: &str, what: &'static str) -> Result<i32, QuantityError> {
    let unknown = || QuantityError::UnknownUnit(unit.to_owned());
    let digits = unit.strip_prefix(['e', 'E']).ok_or_else(unknown)?;
    let bare = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    if bare.is_empty() || !bare.bytes().all(|b| b.is_ascii_digit()) {
        return Err(unknown());
    }
    if bare.len() > 2 {
        return Err(QuantityError::TooLarge(what));
    }
    digits.parse().map_err(|_| unknown())
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        let power = (self.0.trailing_zeros() as usize / 10).min(BINARY.len() - 1);
        let binary = (self.0 >> (10 * power), BINARY[power]);
        let (mut number, mut power) = (self.0, 0);
        while power < DECIMAL.len() - 1 && number.is_multiple_of(1000) {
            (number, power) = (number / 1000, power + 1);
        }
        let decimal = (number, DECIMAL[power]);
        let length = |(number, suffix): (u128, &str)| number.ilog10() as usize + suffix.len();
        // Among equally long texts the binary one.
        let (number, suffix) = if length(decimal) < length(binary) {
            decimal
        } else {
            binary
        };
        write!(f, "{number}{suffix}")
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|error| serde::de::Error::custom(format!("quantity '{text}' {error}")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_that_kubernetes_reads_give_the_same_amount() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("+1", 1),
            ("2Gi", 2 << 30),
            ("1.5Gi", 3 << 29),
            (".5Gi", 1 << 29),
            ("1.Gi", 1 << 30),
            ("2G", 2_000_000_000),
            ("500M", 500_000_000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("12E", 12_000_000_000_000_000_000),
            ("1e-3", 1),
            ("1500m", 2),
            ("1n", 1),
            ("0.1Gi", 107_374_183),
            ("007Ki", 7168),
            ("0e99", 0),
            ("340282366920938463463374607431768211455", u128::MAX),
            (".000000000000000000000000000000000000001", 1),
        ] {
            assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_exact_amount_are_refused_with_the_reason() {
        use QuantityError::{Empty, Negative, NotANumber, TooLarge, UnknownUnit};
        for (text, error) in [
            ("", Empty),
            ("-1Gi", Negative),
            ("Gi", NotANumber),
            (".", NotANumber),
            ("1.2.3", NotANumber),
            ("two", NotANumber),
            (" 2Gi", NotANumber),
            ("2 Gi", UnknownUnit(" Gi".into())),
            ("2gi", UnknownUnit("gi".into())),
            ("2GB", UnknownUnit("GB".into())),
            ("2e", UnknownUnit("e".into())),
            ("2e+", UnknownUnit("e+".into())),
            ("2e999", TooLarge("bytes")),
            ("9e39", TooLarge("bytes")),
            (
                "1000000000000000000000000000000000000000",
                TooLarge("bytes"),
            ),
            ("340282366920938463463374607431768211456", TooLarge("bytes")),
            ("332306998946228968225951765070086144Ki", TooLarge("bytes")),
        ] {
            assert_eq!(text.parse::<Bytes>(), Err(error), "{text}");
        }
        let cpus = "1e37".parse::<Milli>();
        assert_eq!(cpus, Err(TooLarge("CPUs")));
    }

    #[test]
    fn an_amount_is_displayed_as_its_shortest_exact_text() {
        for (text, shown) in [
            ("2048Mi", "2Gi"),
            ("1.5Gi", "1536Mi"),
            ("2000M", "2G"),
            ("0Gi", "0"),
            ("1000", "1k"),
            ("1024", "1Ki"),
            ("1001", "1001"),
            ("1000Ki", "1024k"),
            ("1000Mi", "1000Mi"),
            ("10112k", "9875Ki"),
            ("2048Ei", "2048Ei"),
            ("1e21", "1000E"),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn cpus_are_read_and_displayed_in_thousandths() {
        for (text, milli, shown) in [
            ("4", 4000, "4"),
            ("1.5", 1500, "1500m"),
            ("500m", 500, "500m"),
            ("1000m", 1000, "1"),
            ("0.0001", 1, "1m"),
            ("0", 0, "0"),
        ] {
            let amount: Milli = text.parse().unwrap();
            assert_eq!((amount.get(), amount.to_string().as_str()), (milli, shown));
            assert_eq!(shown.parse(), Ok(amount));
        }
    }

    proptest! {
        #[test]
        fn a_displayed_amount_is_parsed_to_the_same_amount(n in any::<u128>(), shift in 0u32..128) {
            let bytes = Bytes::new(n >> shift << (shift / 2));
            prop_assert_eq!(bytes.to_string().parse::<Bytes>(), Ok(bytes));
        }

        #[test]
        fn no_suffix_gives_a_shorter_text_than_display(number in 0u128..128, power in 0u32..7, thousands in 0u32..7) {
            let bytes = Bytes::new(number * 1024u128.pow(power) * 1000u128.pow(thousands));
            let shown = bytes.to_string();
            for suffix in BINARY.into_iter().chain(DECIMAL) {
                let unit = format!("1{suffix}").parse::<Bytes>().unwrap().get();
                let exact = bytes.get().is_multiple_of(unit);
                let other = format!("{}{suffix}", bytes.get() / unit);
                prop_assert!(!exact || shown.len() <= other.len(), "{shown} {other}");
            }
        }

        #[test]
        fn parsing_any_text_never_panics(text in "[-+0-9.eEKMGTPikmnu ]{0,40}|.{0,20}") {
            let _ = text.parse::<Bytes>();
        }
    }
}
