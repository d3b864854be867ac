//! The requests that the API server answered after a position in its audit log.

use anyhow::Result;

use super::Lab;
use crate::{
    audit::{self, Event, LogPosition},
    control_plane::get,
    wait,
};

impl Lab {
    /// The current end of the audit log. Requests that were answered before this call are before it.
    pub async fn log_position(&self) -> Result<LogPosition> {
        let here = std::fs::metadata(self.plane.audit_log())?.len();
        Ok(LogPosition(self.settled(LogPosition(here)).await?.1))
    }

    /// The requests since a position, except those of the API server itself, which still initializes for some
    /// seconds after it is ready.
    pub async fn requests_since(&self, since: LogPosition) -> Result<Vec<Event>> {
        let (text, _) = self.settled(since).await?;
        let own = format!("\"{PROBE}");
        let others: Vec<&str> = text.lines().filter(|line| !line.contains(&own)).collect();
        let mut events = audit::parse(&others.join("\n"));
        events.retain(|event| event.user != "system:apiserver");
        Ok(events)
    }

    /// Calls `look` with each request since a position.
    pub async fn for_each_request(
        &self,
        since: LogPosition,
        look: impl FnMut(Event),
    ) -> Result<()> {
        // Waits until all requests that were answered before this call are in the log.
        self.log_position().await?;
        audit::each_since(self.plane.audit_log(), since, look)
    }

    /// The log since a position, and its end. Sends a request and waits until the log has it, because then all requests
    /// that were answered before this call are in the log.
    async fn settled(&self, since: LogPosition) -> Result<(String, u64)> {
        let name = format!("{PROBE}{}", next_probe());
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        // The object does not exist: 404 is expected.
        let _ = self.client().request_text(get(&path)?).await;
        let log = self.plane.audit_log();
        wait::until("the audit log", async || {
            let text = audit::text_since(log, since)?;
            let end = since.0 + text.len() as u64;
            Ok(if text.contains(&name) {
                Ok((text, end))
            } else {
                Err(end)
            })
        })
        .await
    }
}

/// Prefix of the object names that the probes of the audit log request; no such object exists.
const PROBE: &str = "audit-log-probe-";

/// A number that no earlier probe of this process had.
fn next_probe() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
