//! Log lines on the error stream: flat JSON for machines, text for people.
//!
//! A line carries `timestamp`, `level`, then `controller`, `machine`, `namespace`, `phase` where a
//! span or the event names them, then `message`, then everything else. Fields of spans are lifted
//! into the line, so that code deep in a reconcile need not repeat whose it is; the inner value
//! wins.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::panic;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::ser::{SerializeMap as _, Serializer as _};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry, Scope};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::tasks::chain;

/// Who reads the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

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
const OURS: [&str; 6] = [
    "common",
    "certs",
    "webhook",
    "machine_webhook",
    "controller",
    "machine_controller",
];

/// What these tell at every attempt, our own tasks tell with what it is about. And what they cannot
/// read, they print whole: a Secret, what a user wrote.
const TOLD_BY_OURS: [&str; 2] = ["kube_client", "kube_runtime"];

/// The fields that come first, in this order.
const LEADING: [&str; 5] = ["controller", "machine", "namespace", "phase", "message"];

/// Sends every event of the process to the error stream from now on, and of a panic its place. Its
/// words may quote what it was about: a Secret, what a user wrote.
///
/// A second call changes nothing: tests in one process may all ask.
pub fn init(format: LogFormat, level: LogLevel) -> LogControl {
    let (changeable, control) = LogControl::of(&LogFilter::from(level));
    let registry = tracing_subscriber::registry().with(changeable);
    let result = match format {
        LogFormat::Json => registry.with(JsonLines { writer: io::stderr }).try_init(),
        LogFormat::Text => registry
            .with(
                tracing_subscriber::fmt::layer()
                    .with_writer(io::stderr)
                    .with_ansi(io::stderr().is_terminal()),
            )
            .try_init(),
    };
    if result.is_err() {
        tracing::debug!("the log was initialised before");
    }
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place, "panicked");
    }));
    control
}

/// How much is logged, and of what: a level, and targets with levels of their own, such as `debug` or
/// `info,webhook::server=trace`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogFilter {
    text: String,
    targets: Targets,
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
            targets: filter(level),
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
        let targets = filter(everything.unwrap_or(LevelFilter::INFO)).with_targets(own);
        let text = text.to_owned();
        Ok(Self { text, targets })
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The log is not this program's to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log is not this program's to change")]
pub struct NotOurs;

/// Changes how much is logged while the program runs. Clones change the same log.
#[derive(Debug, Clone)]
pub struct LogControl {
    handle: reload::Handle<Targets, Registry>,
    now: Arc<Mutex<String>>,
}

impl LogControl {
    fn of(filter: &LogFilter) -> (reload::Layer<Targets, Registry>, Self) {
        let (layer, handle) = reload::Layer::new(filter.targets.clone());
        let now = Arc::new(Mutex::new(filter.to_string()));
        (layer, Self { handle, now })
    }

    /// Of no log.
    #[cfg(test)]
    pub(super) fn detached() -> Self {
        Self::of(&LogLevel::Info.into()).1
    }

    /// How much is logged now.
    pub fn filter(&self) -> String {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.clone()
    }

    /// From now on, so much is logged. That it was changed is told at every level.
    pub fn change(&self, filter: LogFilter) -> Result<(), NotOurs> {
        let LogFilter { text, targets } = filter;
        self.handle.reload(targets).map_err(|_| NotOurs)?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *now, text.clone());
        tracing::info!(target: CHANGES, before, now = text, "another log level");
        Ok(())
    }
}

/// Told whatever the level is.
const CHANGES: &str = "log_level";

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn filter(level: LevelFilter) -> Targets {
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

/// The fields of a span, kept with it until an event needs them.
#[derive(Debug, Default, Clone)]
struct Fields(Map<String, Value>);

/// Writes an event as one line, in one write.
#[derive(Debug)]
struct JsonLines<W> {
    writer: W,
}

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(Scope::from_root)
        {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.0.extend(outer.0.clone());
            }
        }
        event.record(&mut fields);
        let metadata = event.metadata();
        // There is nobody left to tell that the log cannot be written.
        if let Ok(mut line) = line(*metadata.level(), metadata.target(), fields.0) {
            line.push(b'\n');
            let _ = self.writer.make_writer().write_all(&line);
        }
    }
}

fn line(level: Level, target: &str, mut fields: Map<String, Value>) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(256);
    let mut serializer = serde_json::Serializer::new(&mut out);
    let mut map = serializer.serialize_map(None)?;
    let now = OffsetDateTime::now_utc();
    map.serialize_entry("timestamp", &now.format(&Rfc3339).unwrap_or_default())?;
    map.serialize_entry("level", &level.as_str().to_ascii_lowercase())?;
    for name in LEADING {
        if let Some(value) = fields.remove(name) {
            map.serialize_entry(name, &value)?;
        }
    }
    for (name, value) in &fields {
        map.serialize_entry(name, value)?;
    }
    map.serialize_entry("target", target)?;
    map.end()?;
    Ok(out)
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(events: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::registry()
            .with(filter(LevelFilter::INFO))
            .with(JsonLines {
                writer: move || writer.clone(),
            });
        tracing::subscriber::with_default(subscriber, events);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_is_flat_and_the_spans_fields_are_in_it() {
        let text = logged(|| {
            let outer = tracing::info_span!("reconcile", controller = "Machine", phase = "Pending");
            let _outer = outer.enter();
            let inner = tracing::info_span!("machine", machine = "web", namespace = "a\"b");
            let _inner = inner.enter();
            tracing::info!(
                phase = "Creating",
                attempt = 2,
                "Creating VirtualMachine resource"
            );
        });
        let (line, rest) = text.split_once('\n').unwrap();
        assert_eq!(rest, "");
        let (timestamp, rest) = line
            .strip_prefix("{\"timestamp\":\"")
            .unwrap()
            .split_once("\",")
            .unwrap();
        assert!(OffsetDateTime::parse(timestamp, &Rfc3339).unwrap() <= OffsetDateTime::now_utc());
        assert_eq!(
            rest,
            "\"level\":\"info\",\"controller\":\"Machine\",\"machine\":\"web\",\
             \"namespace\":\"a\\\"b\",\"phase\":\"Creating\",\
             \"message\":\"Creating VirtualMachine resource\",\"attempt\":2,\
             \"target\":\"common::runtime::logging::tests\"}"
        );
    }

    #[test]
    fn an_error_is_told_with_its_sources_and_details_are_left_out() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot start")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::other("no disk"));
        let text = logged(|| {
            tracing::debug!("not at this level");
            tracing::error!(error = &error as &dyn std::error::Error, "stopped");
        });
        assert_eq!(text.lines().count(), 1);
        assert!(
            text.contains("\"error\":\"cannot start: no disk\""),
            "{text}"
        );
    }

    #[test]
    fn libraries_stay_quiet_at_debug() {
        let filter = filter(LevelFilter::DEBUG);
        assert!(filter.would_enable("webhook::server", &Level::DEBUG));
        assert!(!filter.would_enable("hyper::proto", &Level::DEBUG));
        assert!(filter.would_enable("hyper::proto", &Level::INFO));
        assert!(!filter.would_enable("kube_client::client::builder", &Level::ERROR));
    }

    #[test]
    fn no_level_lets_objects_be_printed() {
        let filter = filter(LevelFilter::TRACE);
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
