//! Reports each change of the stored CAs in the log and as an event of the Secret.

use std::convert::Infallible;
use std::time::Duration;

use certs::{Change, State};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use super::api::FIELD_MANAGER;

/// Events that wait to be sent; a rotation has three.
const QUEUE_MAX: usize = 64;
/// Deadline for sending one event; then it is dropped.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Queues events for the task that sends them. Clones share the queue.
#[derive(Debug, Clone)]
pub(super) struct EventSender(Sender<(Event, ObjectReference)>);

/// An event queue and the task that sends its events.
pub(super) fn event_sender(
    client: Client,
) -> (
    EventSender,
    impl Future<Output = Result<(), Infallible>> + Send,
) {
    let (sender, queue) = channel(QUEUE_MAX);
    (EventSender(sender), send(client, queue))
}

async fn send(
    client: Client,
    mut queue: Receiver<(Event, ObjectReference)>,
) -> Result<(), Infallible> {
    let reporter = Reporter {
        controller: FIELD_MANAGER.to_owned(),
        instance: std::env::var("HOSTNAME").ok(),
    };
    while let Some((event, about)) = queue.recv().await {
        // A new recorder for each event: a recorder combines events of one reason and keeps the note of
        // the first.
        let recorder = Recorder::new(client.clone(), reporter.clone());
        match timeout(CALL_TIMEOUT, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "cannot send an event"),
            Err(_) => tracing::debug!("cannot send an event: no answer in time"),
        }
    }
    std::future::pending().await
}

impl EventSender {
    /// Reports a change of the stored state; `lost` is the fault of the state before.
    pub(super) fn report(
        &self,
        change: Change,
        state: &State,
        lost: Option<&str>,
        about: ObjectReference,
    ) {
        let (reason, what) = reason_and_note(change);
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
        if change != Change::StartOverlap && self.0.try_send((event, about)).is_err() {
            tracing::debug!("the event queue is full, an event is dropped");
        }
    }
}

/// The reason of the event and a sentence about what happened.
fn reason_and_note(change: Change) -> (&'static str, &'static str) {
    match change {
        Change::Create => ("CaCreated", "generated a CA"),
        Change::Restore => (
            "CaRestored",
            "the CA Secret was lost or damaged; wrote the copy of this replica back",
        ),
        Change::Salvage => (
            "CaSalvaged",
            "the CA Secret was damaged; kept its readable part",
        ),
        Change::Replace => (
            "CaReplaced",
            "the CA Secret was lost or damaged and no replica had its key; generated a new CA",
        ),
        Change::Reclaim => (
            "CaReclaimed",
            "another CA was stored in the CA Secret; it will sign once all API servers trust \
             it",
        ),
        Change::Adopt => (
            "CaAdopted",
            "API servers trust a CA that is not in the CA Secret; it stays trusted until none of its \
             certificates can be valid",
        ),
        Change::StoreNext => (
            "CaNextStored",
            "stored the next CA; adding it to every caBundle",
        ),
        Change::Switch => ("CaSwitched", "the next CA signs from now on"),
        Change::StartOverlap => ("CaOverlap", "the former CA no longer signs"),
        Change::Drop => ("CaDropped", "removed the former CA from every caBundle"),
    }
}
