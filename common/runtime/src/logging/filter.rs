//! Which events are logged.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// The least severe level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogLevel {
    /// What needs action.
    Error,
    /// What may need action soon.
    Warn,
    /// What changed.
    Info,
    /// Why it changed.
    Debug,
    /// Details, also of the libraries.
    Trace,
}

/// Crates of this workspace. Libraries are logged at `info` at most, except at `trace`.
const OWN_CRATES: [&str; 10] = [
    "common",
    "runtime",
    "certs",
    "webhook",
    "machine_webhook",
    "controller",
    "controller_core",
    "controller_kubevirt",
    "controller_libvirt",
    "machine_controller",
];

/// Libraries that are never logged. They log every failed attempt, which this workspace logs with its
/// context, and they print objects that they cannot decode: Secrets, and what users wrote.
const NEVER_LOGGED: [&str; 2] = ["kube_client", "kube_runtime"];

/// A level, and targets with levels of their own: `debug`, or `info,webhook::server=trace`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogFilter {
    pub(super) text: String,
    pub(super) targets: Targets,
}

/// Why a text is not a [`LogFilter`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogFilterError {
    /// A part is neither a level nor a target with a level.
    #[error(
        "{0:?} is neither a level (error, warn, info, debug, trace) nor a target with one, as in \
         info,webhook::server=trace"
    )]
    Directive(String),
    /// There is more than one level without a target.
    #[error("there are two levels for everything: {0:?} and another one")]
    Twice(String),
    /// The target is a library that prints Secrets and what users wrote.
    #[error("{0:?} is never logged: it prints Secrets and what users wrote")]
    Secret(String),
}

impl From<LogLevel> for LogFilter {
    fn from(level: LogLevel) -> Self {
        let level = level_filter(level);
        Self {
            text: level.to_string(),
            targets: targets(level),
        }
    }
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let level_of = |word: &str| {
            let level = <LogLevel as clap::ValueEnum>::from_str(word, false);
            level.map(level_filter)
        };
        let (mut everything, mut own) = (None, Vec::new());
        for part in text.split(',').map(str::trim) {
            let wrong = |_| LogFilterError::Directive(part.to_owned());
            let Some((target, level)) = part.split_once('=') else {
                if everything.replace(level_of(part).map_err(wrong)?).is_some() {
                    return Err(LogFilterError::Twice(part.to_owned()));
                }
                continue;
            };
            let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
            if target.is_empty() || !target.bytes().all(named) {
                return Err(wrong(String::new()));
            }
            if NEVER_LOGGED.iter().any(|secret| target.starts_with(secret)) {
                return Err(LogFilterError::Secret(target.to_owned()));
            }
            own.push((target.to_owned(), level_of(level).map_err(wrong)?));
        }
        let targets = targets(everything.unwrap_or(LevelFilter::INFO)).with_targets(own);
        let text = text.to_owned();
        Ok(Self { text, targets })
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Target of the event that reports a changed filter; logged at every level.
pub(super) const CHANGES: &str = "log_level";

pub(super) fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// The targets that are logged at a level.
pub(super) fn targets(level: LevelFilter) -> Targets {
    let libraries = match level {
        LevelFilter::TRACE => level,
        _ => level.min(LevelFilter::INFO),
    };
    Targets::new()
        .with_default(libraries)
        .with_targets(OWN_CRATES.map(|name| (name, level)))
        .with_target(CHANGES, LevelFilter::INFO)
        .with_targets(NEVER_LOGGED.map(|name| (name, LevelFilter::OFF)))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_are_not_logged_at_debug() {
        let filter = targets(LevelFilter::DEBUG);
        assert!(filter.would_enable("webhook::server", &Level::DEBUG));
        assert!(!filter.would_enable("hyper::proto", &Level::DEBUG));
        assert!(filter.would_enable("hyper::proto", &Level::INFO));
        assert!(!filter.would_enable("kube_client::client::builder", &Level::ERROR));
    }

    #[test]
    fn libraries_that_print_objects_are_not_logged_at_any_level() {
        let filter = targets(LevelFilter::TRACE);
        assert!(filter.would_enable("hyper::proto", &Level::TRACE));
        assert!(!filter.would_enable("kube_client::client", &Level::WARN));
        let filter: LogFilter = "kube=trace,trace".parse().unwrap();
        assert!(
            !filter
                .targets
                .would_enable("kube_client::client", &Level::ERROR)
        );
        for target in [
            "kube_client",
            "kube_client::client",
            "kube_runtime::watcher",
        ] {
            let error = format!("{target}=debug").parse::<LogFilter>().unwrap_err();
            assert_eq!(error, LogFilterError::Secret(target.to_owned()));
        }
    }

    #[test]
    fn a_filter_consists_of_a_level_and_of_targets_with_levels() {
        let filter: LogFilter = "warn, webhook::server=trace,hyper=debug".parse().unwrap();
        assert_eq!(
            filter.to_string(),
            "warn, webhook::server=trace,hyper=debug"
        );
        for (target, level, is_logged) in [
            ("webhook::server", Level::TRACE, true),
            ("webhook::run", Level::INFO, false),
            ("hyper::proto", Level::DEBUG, true),
            ("rustls::server", Level::INFO, false),
            (CHANGES, Level::INFO, true),
        ] {
            assert_eq!(
                filter.targets.would_enable(target, &level),
                is_logged,
                "{target}"
            );
        }
        for wrong in [
            "",
            "loud",
            "info,",
            "webhook",
            "webhook=loud",
            "=info",
            "web hook=info",
            "a[b]=info",
        ] {
            let error = wrong.parse::<LogFilter>().unwrap_err();
            assert!(
                matches!(error, LogFilterError::Directive(_)),
                "{wrong}: {error}"
            );
        }
        assert!(matches!(
            "info,debug".parse::<LogFilter>(),
            Err(LogFilterError::Twice(_))
        ));
    }
}
