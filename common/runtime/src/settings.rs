//! Settings in the notation of Go programs, parsed once at the start.
//!
//! `30s`, `1m30s` and `1.5h` are durations; `:8080`, `127.0.0.1:0`, `[::1]:443` and `localhost:80` are
//! addresses. After an invalid value the program prints one line and exits with [`EXIT_USAGE`].

use std::fmt;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use tokio::net::TcpListener;

/// Exit code after invalid settings.
pub const EXIT_USAGE: u8 = 2;

/// A duration in Go's notation: a sum of decimal numbers, each with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// Why a text is not a [`GoDuration`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is empty, or a number is missing.
    #[error("not a duration: write a number with a unit, as in 30s, 1m30s or 500ms")]
    NoNumber,
    /// A number without a unit: `30`.
    #[error("a number has no unit: one of ns, us, ms, s, m, h must follow, as in {0}s")]
    NoUnit(String),
    /// A unit that Go does not have: `1d`.
    #[error("unknown unit {0:?}: one of ns, us, ms, s, m, h")]
    UnknownUnit(String),
    /// The duration is negative; no setting allows that.
    #[error("a duration cannot be negative")]
    Negative,
    /// The duration exceeds Go's limit of 2^63 nanoseconds, about 292 years.
    #[error("the duration is too long")]
    TooLong,
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        if text.starts_with('-') {
            return Err(DurationError::Negative);
        }
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        if rest == "0" {
            return Ok(Self(Duration::ZERO));
        }
        if rest.is_empty() {
            return Err(DurationError::NoNumber);
        }
        let mut total: u128 = 0;
        while !rest.is_empty() {
            let (number, after) = split_at_first(rest, |c| c != '.' && !c.is_ascii_digit());
            let (unit, after) = split_at_first(after, |c| c == '.' || c.is_ascii_digit());
            total = nanoseconds(number, unit)?
                .checked_add(total)
                .filter(|sum| *sum <= i64::MAX.unsigned_abs().into())
                .ok_or(DurationError::TooLong)?;
            rest = after;
        }
        let total = u64::try_from(total).map_err(|_| DurationError::TooLong)?;
        Ok(Self(Duration::from_nanos(total)))
    }
}

/// Splits `text` before the first character that fulfils `stops`.
fn split_at_first(text: &str, stops: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(stops).unwrap_or(text.len()))
}

/// `number` × `unit` in integers: calculated with a float, `1.1s` would be a nanosecond off.
fn nanoseconds(number: &str, unit: &str) -> Result<u128, DurationError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(DurationError::NoNumber);
    }
    let unit: u128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        "" => return Err(DurationError::NoUnit(number.to_owned())),
        other => return Err(DurationError::UnknownUnit(other.to_owned())),
    };
    let whole = match whole {
        "" => 0,
        digits => digits
            .parse::<u64>()
            .map_err(|_| DurationError::TooLong)?
            .into(),
    };
    let mut nanos = unit.checked_mul(whole).ok_or(DurationError::TooLong)?;
    let mut scale = unit;
    for digit in fraction.bytes() {
        // Digits below a nanosecond are ignored, as in Go.
        scale /= 10;
        nanos += scale * u128::from(digit - b'0');
    }
    Ok(nanos)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        match (seconds, nanos) {
            (0, 0) if self.0.is_zero() => f.write_str("0s"),
            (0, 0) => Ok(()),
            (_, 0) => write!(f, "{seconds}s"),
            _ => {
                let fraction = format!("{nanos:09}");
                write!(f, "{seconds}.{}s", fraction.trim_end_matches('0'))
            }
        }
    }
}

/// An address to listen at, in Go's notation: `host:port`, or `:port` for every interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindAddress {
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Every,
    Ip(IpAddr),
    Localhost,
}

/// Why a text is not a [`BindAddress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is no colon: `8080` instead of `:8080`.
    #[error("no port: write host:port, or :port for every interface")]
    NoPort,
    /// The port is not a number from 0 to 65535.
    #[error("the port {0:?} is not a number from 0 to 65535")]
    Port(String),
    /// The host is neither an IP address nor `localhost`.
    #[error("the host {0:?} is not an IP address (IPv6 in brackets) nor localhost")]
    Host(String),
}

impl FromStr for BindAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
        let bad_host = || AddressError::Host(host.to_owned());
        let host = match host {
            "" => Host::Every,
            "localhost" => Host::Localhost,
            _ => match host.strip_prefix('[') {
                Some(open) => {
                    let inner = open.strip_suffix(']').ok_or_else(bad_host)?;
                    Host::Ip(inner.parse::<Ipv6Addr>().map_err(|_| bad_host())?.into())
                }
                None => Host::Ip(host.parse::<Ipv4Addr>().map_err(|_| bad_host())?.into()),
            },
        };
        if !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(AddressError::Port(port.to_owned()));
        }
        let port = port
            .parse()
            .map_err(|_| AddressError::Port(port.to_owned()))?;
        Ok(Self { host, port })
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Every => {}
            Host::Localhost => f.write_str("localhost")?,
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}")?,
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]")?,
        }
        write!(f, ":{}", self.port)
    }
}

impl BindAddress {
    /// Binds. `:port` listens on both IP families, or on IPv4 alone if the kernel has no IPv6.
    pub async fn bind(&self) -> io::Result<TcpListener> {
        match self.host {
            Host::Ip(ip) => TcpListener::bind((ip, self.port)).await,
            Host::Localhost => TcpListener::bind(("localhost", self.port)).await,
            Host::Every => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port)).await {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)).await
                }
                bound => bound,
            },
        }
    }
}

/// Parses flags and environment variables.
///
/// After an invalid value it prints one line to stderr and exits with [`EXIT_USAGE`]. `--help` and
/// `--version` print their text and exit with success.
pub fn parse_or_exit<Args: clap::Parser>() -> Args {
    match Args::try_parse() {
        Ok(args) => args,
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            // Exit with the same code if stderr is closed.
            let _ = writeln!(io::stderr(), "{}", one_line(&error.to_string()));
            std::process::exit(EXIT_USAGE.into())
        }
    }
}

/// The first paragraph of clap's message as one line. The rest is the usage and a hint at `--help`.
fn one_line(message: &str) -> String {
    let paragraph = message.lines().take_while(|line| !line.trim().is_empty());
    paragraph.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn duration(text: &str) -> Result<Duration, DurationError> {
        text.parse::<GoDuration>().map(|parsed| parsed.0)
    }

    #[test]
    fn durations_are_parsed_as_in_go() {
        for (text, millis) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("+2s", 2_000),
            ("0", 0),
            ("0s", 0),
            ("1h0m1s", 3_601_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(duration("3µs"), Ok(Duration::from_micros(3)));
        assert_eq!(duration("1.1s"), Ok(Duration::from_millis(1_100)));
        assert_eq!(duration("1.9ns"), Ok(Duration::from_nanos(1)));
    }

    #[test]
    fn invalid_durations_are_rejected_with_a_reason() {
        for (text, error) in [
            ("", DurationError::NoNumber),
            ("s", DurationError::NoNumber),
            (".s", DurationError::NoNumber),
            ("1..2s", DurationError::NoNumber),
            ("30", DurationError::NoUnit("30".into())),
            ("1d", DurationError::UnknownUnit("d".into())),
            ("1 s", DurationError::UnknownUnit(" s".into())),
            ("-1s", DurationError::Negative),
            ("9999999h", DurationError::TooLong),
            ("99999999999999999999s", DurationError::TooLong),
        ] {
            assert_eq!(duration(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn durations_round_trip(nanos in 0..=i64::MAX.unsigned_abs()) {
            let value = GoDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(value.to_string().parse(), Ok(value));
        }

        #[test]
        fn parsing_never_panics(text in ".{0,24}") {
            let _ = text.parse::<GoDuration>();
            let _ = text.parse::<BindAddress>();
        }
    }

    #[test]
    fn addresses_round_trip() {
        for text in [
            ":8080",
            "127.0.0.1:0",
            "[::1]:443",
            "localhost:80",
            "0.0.0.0:65535",
        ] {
            assert_eq!(text.parse::<BindAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_addresses_are_rejected_with_a_reason() {
        for (text, error) in [
            ("8080", AddressError::NoPort),
            (":", AddressError::Port(String::new())),
            (":+1", AddressError::Port("+1".into())),
            (":65536", AddressError::Port("65536".into())),
            ("example:80", AddressError::Host("example".into())),
            ("::1:80", AddressError::Host("::1".into())),
            ("[::1:80", AddressError::Host("[::1".into())),
        ] {
            assert_eq!(text.parse::<BindAddress>(), Err(error), "{text}");
        }
    }

    #[tokio::test]
    async fn port_zero_binds_a_free_port() {
        let address: BindAddress = "127.0.0.1:0".parse().unwrap();
        assert_ne!(
            address.bind().await.unwrap().local_addr().unwrap().port(),
            0
        );
    }

    #[test]
    fn an_invalid_value_is_reported_in_one_line() {
        #[derive(Debug, clap::Parser)]
        struct Args {
            #[arg(long)]
            interval: GoDuration,
        }
        let error = <Args as clap::Parser>::try_parse_from(["x", "--interval", "30"]).unwrap_err();
        assert_eq!(
            one_line(&error.to_string()),
            "error: invalid value '30' for '--interval <INTERVAL>': a number has no unit: \
             one of ns, us, ms, s, m, h must follow, as in 30s"
        );
    }
}
