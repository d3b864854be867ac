//! What became of the CA, told where an operator looks: in the log, and as an event of its Secret.

use std::convert::Infallible;
use std::time::Duration;

use certs::{Change, State};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use super::FIELD_MANAGER;

/// Events that wait to be sent: a whole rotation has four.
const WAITING_MAX: usize = 64;
/// An event that takes longer is dropped.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Where events are handed in. Clones hand in at the same place.
#[derive(Debug, Clone)]
pub struct Events(Sender<(Event, ObjectReference)>);

/// Events, and the task that sends them.
pub fn events(client: Client) -> (Events, impl Future<Output = Result<(), Infallible>> + Send) {
    let (sender, waiting) = channel(WAITING_MAX);
    (Events(sender), publish(client, waiting))
}

async fn publish(
    client: Client,
    mut waiting: Receiver<(Event, ObjectReference)>,
) -> Result<(), Infallible> {
    let reporter = Reporter {
        controller: FIELD_MANAGER.to_owned(),
        instance: std::env::var("HOSTNAME").ok(),
    };
    while let Some((event, about)) = waiting.recv().await {
        // Of its own each time: one recorder would count events of a reason, and keep the first note.
        let recorder = Recorder::new(client.clone(), reporter.clone());
        match timeout(CALL_LIMIT, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an event was not taken"),
            Err(_) => tracing::debug!("an event was not taken in time"),
        }
    }
    std::future::pending().await
}

impl Events {
    /// Tells of a change of the stored state.
    pub(super) fn tell(
        &self,
        change: Change,
        state: &State,
        lost: Option<&str>,
        about: ObjectReference,
    ) {
        let (reason, what) = words(change);
        let note = match lost {
            Some(lost) if change != Change::Create => format!("{what}; found: {lost}"),
            _ => what.to_owned(),
        };
        let recovery = matches!(
            change,
            Change::Restore | Change::Salvage | Change::Replace | Change::Reclaim | Change::Adopt
        );
        let phase = state.phase().as_str();
        let until = state.current.validity().not_after;
        let type_ = if recovery {
            tracing::warn!(reason, phase, not_after = %until, "{note}");
            EventType::Warning
        } else {
            tracing::info!(reason, phase, not_after = %until, "{note}");
            EventType::Normal
        };
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "RotateCertificates".to_owned(),
            secondary: None,
        };
        if change != Change::Stamp && self.0.try_send((event, about)).is_err() {
            tracing::debug!("too many events wait, one is dropped");
        }
    }
}

/// The reason of an event, and what happened.
fn words(change: Change) -> (&'static str, &'static str) {
    match change {
        Change::Create => ("CaCreated", "made a CA"),
        Change::Restore => (
            "CaRestored",
            "the CA Secret was lost or damaged; wrote back what this replica knew",
        ),
        Change::Salvage => (
            "CaSalvaged",
            "the CA Secret was damaged; what was left of it goes on",
        ),
        Change::Replace => (
            "CaReplaced",
            "the CA Secret was lost or damaged and no replica knew its key; made a new CA",
        ),
        Change::Reclaim => (
            "CaReclaimed",
            "somebody put another CA into the CA Secret; it becomes the next one, once all API \
             servers trust it",
        ),
        Change::Adopt => (
            "CaAdopted",
            "API servers trust a CA that the CA Secret does not have; it stays trusted for an \
             overlap",
        ),
        Change::Begin => ("CaNextStored", "stored the next CA; publishing it"),
        Change::Switch => ("CaSwitched", "the next CA signs from now on"),
        Change::Stamp => ("CaOverlap", "the former CA signs nothing any more"),
        Change::Drop => ("CaDropped", "the former CA is not trusted any more"),
    }
}
