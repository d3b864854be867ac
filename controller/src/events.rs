//! Events: one per transition that a user would act on.
//!
//! They are sent by a task of their own, in their order: an event that fails, or an API server that
//! is slow to take it, never holds up a Machine.

use std::convert::Infallible;
use std::time::Duration;

use common::api::status::MachineStatus;
use common::names;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::machine::Machine;
use crate::plan::verdict;

/// Events that wait to be sent. More come only from a fleet that changes at once; then the oldest
/// tell enough.
const WAITING_MAX: usize = 4096;
/// An event that takes longer is dropped.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// The API server takes no longer note.
const NOTE_MAX: usize = 1024;

/// Where events are handed in.
#[derive(Clone, Debug)]
pub(crate) struct Events(Sender<(Event, ObjectReference)>);

/// Sends what is handed in.
pub(crate) struct Publisher {
    recorder: Recorder,
    waiting: Receiver<(Event, ObjectReference)>,
}

pub(crate) fn events(client: Client) -> (Events, Publisher) {
    let (sender, waiting) = channel(WAITING_MAX);
    let reporter = Reporter {
        controller: names::FIELD_MANAGER.to_owned(),
        instance: std::env::var("HOSTNAME").ok(),
    };
    let recorder = Recorder::new(client, reporter);
    (Events(sender), Publisher { recorder, waiting })
}

impl Events {
    /// Tells of the transition between two statuses, if it is one.
    pub(crate) fn transition(&self, machine: &Machine, new: &MachineStatus) {
        if let Some(event) = event(&machine.status, new)
            && self.0.try_send((event, machine.object_ref(&()))).is_err()
        {
            tracing::debug!("too many events wait, one is dropped");
        }
    }
}

impl Publisher {
    pub(crate) async fn run(mut self) -> Result<(), Infallible> {
        while let Some((event, about)) = self.waiting.recv().await {
            match timeout(CALL_LIMIT, self.recorder.publish(&event, &about)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an event was not taken"),
                Err(_) => tracing::debug!("an event was not taken in time"),
            }
        }
        std::future::pending().await
    }
}

/// What is worth no warning although `Ready` is not true.
const PROGRESS: [&str; 3] = ["Creating", "Deleting", "Stopping"];

fn event(old: &MachineStatus, new: &MachineStatus) -> Option<Event> {
    let (status, reason) = verdict(new)?;
    if verdict(old) == Some((status, reason)) {
        return None;
    }
    let ready = new
        .conditions
        .iter()
        .find(|condition| condition.kind == "Ready")?;
    let calm = status == "True" || PROGRESS.contains(&reason);
    Some(Event {
        type_: if calm {
            EventType::Normal
        } else {
            EventType::Warning
        },
        reason: reason.to_owned(),
        note: Some(ready.message.chars().take(NOTE_MAX / 4).collect()),
        action: "Reconcile".to_owned(),
        secondary: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::ready;

    #[test]
    fn only_a_transition_is_an_event() {
        let none = MachineStatus::default();
        let creating = ready("False", "Creating");
        let lacking = ready("False", "StorageClassNotFound");
        let running = ready("True", "Running");
        for (old, new, expected) in [
            (&none, &creating, Some(EventType::Normal)),
            (&creating, &creating, None),
            (&creating, &lacking, Some(EventType::Warning)),
            (&lacking, &running, Some(EventType::Normal)),
            (&running, &running, None),
        ] {
            assert_eq!(event(old, new).map(|event| event.type_), expected);
        }
        assert_eq!(
            event(&creating, &lacking).unwrap().reason,
            "StorageClassNotFound"
        );
    }
}
