//! How much is logged, and of what.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogLevel {
    /// Only what needs somebody.
    Error,
    /// And what may soon.
    Warn,
    /// And what changed.
    Info,
    /// And why.
    Debug,
    /// And what the libraries tell.
    Trace,
}

/// Only these crates speak below `info`, unless everything was asked for.
const OURS: [&str; 10] = [
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

/// What these tell at every attempt, our own tasks tell with what it is about. And what they cannot
/// read, they print whole: a Secret, what a user wrote.
const TOLD_BY_OURS: [&str; 2] = ["kube_client", "kube_runtime"];

/// How much is logged, and of what: a level, and targets with levels of their own, such as `debug` or
/// `info,webhook::server=trace`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogFilter {
    pub(super) text: String,
    pub(super) targets: Targets,
}

/// Why a text is no [`LogFilter`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogFilterError {
    /// Neither a level nor a target with one.
    #[error(
        "{0:?} is neither a level (error, warn, info, debug, trace) nor a target with one, as in \
         info,webhook::server=trace"
    )]
    Directive(String),
    /// More than one level without a target.
    #[error("there are two levels for everything: {0:?} and another one")]
    Twice(String),
    /// A library that prints what users wrote.
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
            if TOLD_BY_OURS.iter().any(|secret| target.starts_with(secret)) {
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

/// Told whatever the level is.
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

/// What is logged at a level.
pub(super) fn targets(level: LevelFilter) -> Targets {
    let libraries = match level {
        LevelFilter::TRACE => level,
        _ => level.min(LevelFilter::INFO),
    };
    Targets::new()
        .with_default(libraries)
        .with_targets(OURS.map(|name| (name, level)))
        .with_target(CHANGES, LevelFilter::INFO)
        .with_targets(TOLD_BY_OURS.map(|name| (name, LevelFilter::OFF)))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_stay_quiet_at_debug() {
        let filter = targets(LevelFilter::DEBUG);
        assert!(filter.would_enable("webhook::server", &Level::DEBUG));
        assert!(!filter.would_enable("hyper::proto", &Level::DEBUG));
        assert!(filter.would_enable("hyper::proto", &Level::INFO));
        assert!(!filter.would_enable("kube_client::client::builder", &Level::ERROR));
    }

    #[test]
    fn no_level_lets_objects_be_printed() {
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
    fn filters_are_levels_and_targets_with_levels() {
        let filter: LogFilter = "warn, webhook::server=trace,hyper=debug".parse().unwrap();
        assert_eq!(
            filter.to_string(),
            "warn, webhook::server=trace,hyper=debug"
        );
        for (target, level, told) in [
            ("webhook::server", Level::TRACE, true),
            ("webhook::run", Level::INFO, false),
            ("hyper::proto", Level::DEBUG, true),
            ("rustls::server", Level::INFO, false),
            (CHANGES, Level::INFO, true),
        ] {
            assert_eq!(
                filter.targets.would_enable(target, &level),
                told,
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
