//! Events: one per transition that a user would act on.
//!
//! They are sent by a task of their own, in their order: an event that fails, or an API server that
//! is slow to take it, never holds up a Machine.

use std::collections::HashMap;
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
use crate::objects::Network;
use crate::status::verdict;

/// Events that wait to be sent. More come only from a fleet that changes at once; then the oldest
/// tell enough.
const WAITING_MAX: usize = 4096;
/// An event that takes longer is dropped.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// The API server takes no longer note.
pub const NOTE_MAX: usize = 1024;

/// Where events are handed in.
#[derive(Clone, Debug)]
pub struct Events(Sender<(Event, ObjectReference)>);

/// So many objects' events are counted on. Of more, an event that comes again begins anew.
const SERIES_MAX: usize = 1024;

/// Sends what is handed in.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct Publisher {
    client: Client,
    reporter: Reporter,
    recorders: Latest<Recorder>,
    waiting: Receiver<(Event, ObjectReference)>,
}

/// What counts the events of a reason about an object, as long as they say the same.
///
/// A recorder takes events of one reason about one object for the same and keeps the first note, and the
/// API server lets nobody change the note of an event. So another note has another recorder, and with it
/// an event of its own.
#[derive(Debug)]
struct Latest<R>(HashMap<(String, String), (String, R)>);

impl<R: Clone> Latest<R> {
    fn of(&mut self, object: &str, reason: &str, note: &str, new: impl FnOnce() -> R) -> R {
        let key = (object.to_owned(), reason.to_owned());
        if let Some((_, counts)) = self.0.get(&key).filter(|(last, _)| last == note) {
            return counts.clone();
        }
        if self.0.len() >= SERIES_MAX && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let new = new();
        self.0.insert(key, (note.to_owned(), new.clone()));
        new
    }
}

pub fn events(client: Client) -> (Events, Publisher) {
    let (sender, waiting) = channel(WAITING_MAX);
    let reporter = Reporter {
        controller: names::FIELD_MANAGER.to_owned(),
        instance: std::env::var("HOSTNAME").ok(),
    };
    let publisher = Publisher {
        recorders: Latest(HashMap::new()),
        client,
        reporter,
        waiting,
    };
    (Events(sender), publisher)
}

impl Events {
    /// Tells of the transition between two statuses, as far as there is one.
    pub fn transition(&self, machine: &Machine, new: &MachineStatus) {
        for event in of(&machine.status, new) {
            self.send(event, machine.object_ref(&()));
        }
    }

    /// Tells of a network that was deleted and is in use.
    pub fn deletion_waits(&self, network: &Network, message: &str) {
        let event = told(EventType::Warning, "InUse", message);
        self.send(event, network.object_ref(&()));
    }

    fn send(&self, event: Event, about: ObjectReference) {
        if self.0.try_send((event, about)).is_err() {
            tracing::debug!("too many events wait, one is dropped");
        }
    }
}

impl Publisher {
    pub async fn run(mut self) -> Result<(), Infallible> {
        while let Some((event, about)) = self.waiting.recv().await {
            let object = about.uid.as_deref().unwrap_or_default();
            let note = event.note.as_deref().unwrap_or_default();
            let new = || Recorder::new(self.client.clone(), self.reporter.clone());
            let recorder = self.recorders.of(object, &event.reason, note, new);
            match timeout(CALL_LIMIT, recorder.publish(&event, &about)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an event was not taken"),
                Err(_) => tracing::debug!("an event was not taken in time"),
            }
        }
        std::future::pending().await
    }
}

/// What is worth no warning although `Ready` is not true.
const PROGRESS: [&str; 4] = ["Creating", "Deleting", "Stopping", "Restarting"];

/// The events that tell of the transition between two statuses.
pub fn of(old: &MachineStatus, new: &MachineStatus) -> impl Iterator<Item = Event> {
    [restarted(old, new), event(old, new)].into_iter().flatten()
}

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
    let kind = if calm {
        EventType::Normal
    } else {
        EventType::Warning
    };
    Some(told(kind, reason, &ready.message))
}

/// Another guest runs in the place of the one that was to be restarted.
fn restarted(old: &MachineStatus, new: &MachineStatus) -> Option<Event> {
    let was = old.last_restart.as_ref()?.replaces.is_some();
    let now = new.last_restart.as_ref()?;
    let done = was && now.replaces.is_none() && new.vmi_name.is_some();
    done.then(|| {
        let note = format!("the guest was restarted, as was asked: {}", now.request);
        told(EventType::Normal, "Restarted", &note)
    })
}

fn told(kind: EventType, reason: &str, note: &str) -> Event {
    Event {
        type_: kind,
        reason: reason.to_owned(),
        note: Some(note[..note.floor_char_boundary(NOTE_MAX)].to_owned()),
        action: "Reconcile".to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use common::api::status::LastRestart;

    use super::*;
    use crate::fixtures::ready;

    #[test]
    fn a_restart_is_told_when_another_guest_runs() {
        let asked = |replaces: Option<&str>, runs: bool| MachineStatus {
            last_restart: Some(LastRestart {
                request: "kernel update".into(),
                replaces: replaces.map(Into::into),
            }),
            vmi_name: runs.then(|| "web".into()),
            ..MachineStatus::default()
        };
        for (old, new, told) in [
            (MachineStatus::default(), asked(Some("old"), true), false),
            (MachineStatus::default(), asked(None, true), false),
            (asked(Some("old"), true), asked(Some("old"), true), false),
            (asked(Some("old"), true), asked(None, true), true),
            (asked(Some("old"), true), asked(None, false), false),
            (asked(None, true), asked(None, true), false),
        ] {
            let notes: Vec<_> = of(&old, &new).filter_map(|event| event.note).collect();
            let note = "the guest was restarted, as was asked: kernel update";
            let expected: &[&str] = if told { &[note] } else { &[] };
            assert_eq!(notes, expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn what_is_said_again_is_counted_and_another_note_is_another_event() {
        let (mut latest, mut made) = (Latest(HashMap::new()), 0);
        let mut of = |object: &str, reason: &str, note: &str| {
            latest.of(object, reason, note, || {
                made += 1;
                made
            })
        };
        let first = of("web", "VMFailed", "crashed");
        assert_eq!(of("web", "VMFailed", "crashed"), first);
        assert_ne!(of("web", "Running", "crashed"), first);
        assert_ne!(of("db", "VMFailed", "crashed"), first);
        let second = of("web", "VMFailed", "no image");
        assert_ne!(second, first);
        assert_eq!(of("web", "VMFailed", "no image"), second);
        assert_ne!(of("web", "VMFailed", "crashed"), first, "it was ended");
        for object in 0..2 * SERIES_MAX {
            of(&object.to_string(), "Running", "runs");
        }
        assert!(latest.0.len() <= SERIES_MAX);
    }

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
