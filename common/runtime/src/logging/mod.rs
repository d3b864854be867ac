//! Log lines on stderr: flat JSON, or text.
//!
//! A line has `timestamp` and `level`, then `controller`, `machine`, `namespace` and `phase` if a span or
//! the event sets them, then `message`, then all other fields. The fields of enclosing spans are part of
//! the line, so that code deep in a reconcile does not repeat the name of the object; an inner value
//! replaces an outer one.

mod filter;
mod lines;

use std::io::{self, IsTerminal as _};
use std::panic;
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::filter::CHANGES;
pub use self::filter::{LogFilter, LogFilterError, LogLevel};
use self::lines::JsonLines;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Text for a terminal.
    Text,
}

/// Writes every event of the process to stderr from now on. Of a panic only the location is logged: its
/// message may quote a Secret or what a user wrote.
///
/// A second call changes nothing, so that several tests of one process may call it.
pub fn init(format: LogFormat, level: LogLevel) -> LogControl {
    let (changeable, control) = LogControl::new(&LogFilter::from(level));
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
        let location = panic.location().map(ToString::to_string);
        tracing::error!(location, "panicked");
    }));
    control
}

/// [`init`] did not install the logger of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the logger of this process was installed by another component")]
pub struct NotInstalled;

/// Changes the log filter while the program runs. Clones change the same filter.
#[derive(Debug, Clone)]
pub struct LogControl {
    handle: reload::Handle<Targets, Registry>,
    now: Arc<Mutex<String>>,
}

impl LogControl {
    fn new(filter: &LogFilter) -> (reload::Layer<Targets, Registry>, Self) {
        let (layer, handle) = reload::Layer::new(filter.targets.clone());
        let now = Arc::new(Mutex::new(filter.to_string()));
        (layer, Self { handle, now })
    }

    /// A control of a logger that is not installed.
    #[cfg(test)]
    pub(crate) fn detached() -> Self {
        Self::new(&LogLevel::Info.into()).1
    }

    /// The present filter.
    pub fn filter(&self) -> String {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.clone()
    }

    /// Replaces the filter, and logs the change whatever the level is.
    pub fn change(&self, filter: LogFilter) -> Result<(), NotInstalled> {
        let LogFilter { text, targets } = filter;
        self.handle.reload(targets).map_err(|_| NotInstalled)?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *now, text.clone());
        tracing::info!(target: CHANGES, before, now = text, "changed the log level");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;
    use time::format_description::well_known::Rfc3339;
    use tracing_subscriber::filter::LevelFilter;

    use super::*;

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
            .with(filter::targets(LevelFilter::INFO))
            .with(JsonLines {
                writer: move || writer.clone(),
            });
        tracing::subscriber::with_default(subscriber, events);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_is_flat_json_with_the_fields_of_its_spans() {
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
             \"target\":\"runtime::logging::tests\"}"
        );
    }

    #[test]
    fn an_error_is_logged_with_its_sources_and_debug_events_are_left_out() {
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
}
