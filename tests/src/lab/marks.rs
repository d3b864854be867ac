//! What was asked of the API server, from a moment on.

use anyhow::Result;

use super::Lab;
use crate::{
    audit::{self, Event, Mark},
    control_plane::get,
    wait,
};

impl Lab {
    /// This moment in the audit log: everything answered before is before it.
    pub async fn mark(&self) -> Result<Mark> {
        let here = std::fs::metadata(self.plane.audit_log())?.len();
        Ok(Mark(self.settled(Mark(here)).await?.1))
    }

    /// What was asked of the API server since a moment, except by itself: it
    /// goes on with its own upkeep some seconds after it is ready.
    pub async fn asked_since(&self, mark: Mark) -> Result<Vec<Event>> {
        let (text, _) = self.settled(mark).await?;
        let own = format!("\"{PROBE}");
        let others: Vec<&str> = text.lines().filter(|line| !line.contains(&own)).collect();
        let mut events = audit::parse(&others.join("\n"));
        events.retain(|event| event.user != "system:apiserver");
        Ok(events)
    }

    /// Looks at everything that was asked of the API server since a moment, one after the other.
    pub async fn each_asked(&self, mark: Mark, look: impl FnMut(Event)) -> Result<()> {
        // So that all that was answered before is in the log.
        self.mark().await?;
        audit::each_since(self.plane.audit_log(), mark, look)
    }

    /// The log since a mark, read after a request of ours made now shows up in
    /// it: what was answered before this call is in it, too.
    async fn settled(&self, mark: Mark) -> Result<(String, u64)> {
        let name = format!("{PROBE}{}", next_probe());
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        // Not found, and meant to be.
        let _ = self.client().request_text(get(&path)?).await;
        let log = self.plane.audit_log();
        wait::until("the audit log", async || {
            let text = audit::text_since(log, mark)?;
            let end = mark.0 + text.len() as u64;
            Ok(if text.contains(&name) {
                Ok((text, end))
            } else {
                Err(end)
            })
        })
        .await
    }
}

/// What the probes of the audit log ask for; no such object exists.
const PROBE: &str = "audit-log-probe-";

/// A name that no earlier probe of this process had.
fn next_probe() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
