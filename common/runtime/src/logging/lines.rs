//! Events as lines of flat JSON.

use std::fmt;
use std::io::Write as _;

use serde::ser::{SerializeMap as _, Serializer as _};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, Scope};

use crate::tasks::chain;

/// Fields that precede the others, in this order.
const LEADING: [&str; 5] = ["controller", "machine", "namespace", "phase", "message"];

/// The fields of a span or event.
#[derive(Debug, Default, Clone)]
struct Fields(Map<String, Value>);

/// Writes each event as one line, in one write.
#[derive(Debug)]
pub(super) struct JsonLines<W> {
    pub(super) writer: W,
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
        // If the log cannot be written, there is no place to report that.
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
