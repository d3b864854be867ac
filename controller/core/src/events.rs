//! Kubernetes Events: one per transition of a Machine that a user would act on.
//!
//! A task of its own publishes them in order, so neither a failure nor a slow API server delays a pass.
//!
//! Reason: an event of every pass would hide the one that matters (`only_a_change_of_ready_is_an_event` here).

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use common::api::choice::{MigrationResult, Phase, ResetResult};
use common::api::status::{LastMigration, LastReset, MachineStatus};
use common::names;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::conditions::ready;
use crate::machine::Machine;
use crate::objects::Network;

/// Events that wait to be published. Only a fleet that changes at once makes more; those are dropped.
const QUEUE_MAX: usize = 4096;
/// An event that takes longer to publish is dropped.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Longest note that the API server accepts, in bytes.
pub const NOTE_MAX: usize = 1024;
/// Recorders that are cached. When there are more, all are dropped: a repeated event is then a new Event object
/// instead of a higher count. Each of them takes 5 KiB, because kube's recorder has a table of its own for the one event.
const RECORDERS_MAX: usize = 64;
/// Reasons of a `Ready` that is not true which are no warning.
const PROGRESS: [&str; 6] = [
    "Creating",
    "Deleting",
    "ImageImporting",
    "Paused",
    "Restarting",
    "Stopping",
];

/// Queues events for the [`Publisher`]. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Events(Sender<(Event, ObjectReference)>);

/// Publishes queued events.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct Publisher {
    client: Client,
    reporter: Reporter,
    recorders: RecorderCache<Recorder>,
    queue: Receiver<(Event, ObjectReference)>,
}

/// The recorder of the last note for each object and reason.
///
/// A recorder of kube counts events with the same object and reason as one series and keeps the note of the first;
/// the API server refuses a change of the note. So each new note gets a new recorder, and with it an Event of its own.
/// With one recorder for all, `kubectl describe` would show the first message for as long as the reason stays.
#[derive(Debug)]
struct RecorderCache<R>(HashMap<(String, String), (String, R)>);

impl<R: Clone> RecorderCache<R> {
    fn get(&mut self, object: &str, reason: &str, note: &str, new: impl FnOnce() -> R) -> R {
        let key = (object.to_owned(), reason.to_owned());
        if let Some((_, recorder)) = self.0.get(&key).filter(|(last, _)| last == note) {
            return recorder.clone();
        }
        if self.0.len() >= RECORDERS_MAX && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let new = new();
        self.0.insert(key, (note.to_owned(), new.clone()));
        new
    }
}

/// The two ends of a new queue of events.
pub fn events(client: Client) -> (Events, Publisher) {
    let (sender, queue) = channel(QUEUE_MAX);
    let reporter = Reporter {
        controller: names::FIELD_MANAGER.to_owned(),
        instance: std::env::var("HOSTNAME").ok(),
    };
    let publisher = Publisher {
        recorders: RecorderCache(HashMap::new()),
        client,
        reporter,
        queue,
    };
    (Events(sender), publisher)
}

impl Events {
    /// Queues the events of the transition from the Machine's status to a new one.
    pub fn transition(&self, machine: &Machine, new: &MachineStatus) {
        for event in transitions(&machine.status, new) {
            self.send(event, machine.object_ref(&()));
        }
    }

    /// Queues the event of a network that was deleted while Machines use it.
    pub fn network_in_use(&self, network: &Network, message: &str) {
        let event = new_event(EventType::Warning, "InUse", message);
        self.send(event, network.object_ref(&()));
    }

    /// Queues the event of a change of another client that was undone.
    pub fn restored(&self, machine: &Machine, message: &str) {
        let event = new_event(EventType::Warning, "Restored", message);
        self.send(event, machine.object_ref(&()));
    }

    fn send(&self, event: Event, regarding: ObjectReference) {
        if self.0.try_send((event, regarding)).is_err() {
            tracing::debug!("the queue of events is full, one is dropped");
        }
    }
}

impl Publisher {
    /// Publishes events for as long as the process runs.
    pub async fn run(mut self) -> Result<(), Infallible> {
        while let Some((event, regarding)) = self.queue.recv().await {
            let object = regarding.uid.as_deref().unwrap_or_default();
            let note = event.note.as_deref().unwrap_or_default();
            let new = || Recorder::new(self.client.clone(), self.reporter.clone());
            let recorder = self.recorders.get(object, &event.reason, note, new);
            match timeout(CALL_LIMIT, recorder.publish(&event, &regarding)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an event was not published"),
                Err(_) => tracing::debug!("an event was not published in time"),
            }
        }
        std::future::pending().await
    }
}

/// The events of the transition between two statuses.
pub fn transitions(old: &MachineStatus, new: &MachineStatus) -> impl Iterator<Item = Event> {
    [
        restarted(old, new),
        migration_ended(old, new),
        reset_ended(old, new),
        ready_changed(old, new),
    ]
    .into_iter()
    .flatten()
}

/// Status or reason of `Ready` changed.
fn ready_changed(old: &MachineStatus, new: &MachineStatus) -> Option<Event> {
    let (status, reason) = ready(new)?;
    if ready(old) == Some((status, reason)) {
        return None;
    }
    let condition = new
        .conditions
        .iter()
        .find(|condition| condition.kind == "Ready")?;
    // With another phase the API server has refused the claim.
    let waits_for_volume = reason == "PVCPending" && new.phase == Some(Phase::Creating);
    let is_normal = status == "True" || PROGRESS.contains(&reason) || waits_for_volume;
    let kind = if is_normal {
        EventType::Normal
    } else {
        EventType::Warning
    };
    Some(new_event(kind, reason, &condition.message))
}

/// A requested restart is complete: the guest that replaces the former one has come up.
fn restarted(old: &MachineStatus, new: &MachineStatus) -> Option<Event> {
    let pending = old.last_restart.as_ref()?;
    let restart = new.last_restart.as_ref()?;
    let is_done = pending.replaces.is_some()
        && restart.replaces.is_none()
        && new.phase == Some(Phase::Running);
    is_done.then(|| {
        let note = pending.cause.as_ref().map_or_else(
            || format!("the guest was restarted, as requested: {}", restart.request),
            |cause| format!("the guest was started again: {cause}"),
        );
        new_event(EventType::Normal, "Restarted", &note)
    })
}

/// A requested reset was carried out, or refused.
fn reset_ended(old: &MachineStatus, new: &MachineStatus) -> Option<Event> {
    let reset = new.last_reset.as_ref()?;
    let is_known = |old: &LastReset| old.request == reset.request;
    if old.last_reset.as_ref().is_some_and(is_known) {
        return None;
    }
    let note = match &reset.message {
        Some(message) => message.clone(),
        None => format!(
            "the hardware of the guest was reset, as requested: {}",
            reset.request
        ),
    };
    Some(match reset.result? {
        ResetResult::Done => new_event(EventType::Normal, "Reset", &note),
        ResetResult::Refused => new_event(EventType::Warning, "ResetRefused", &note),
    })
}

/// A requested migration has ended, or was refused.
fn migration_ended(old: &MachineStatus, new: &MachineStatus) -> Option<Event> {
    let migration = new.last_migration.as_ref()?;
    let result = migration.result?;
    let is_known = |old: &LastMigration| old.request == migration.request && old.result.is_some();
    if old.last_migration.as_ref().is_some_and(is_known) {
        return None;
    }
    let (kind, reason) = match result {
        MigrationResult::Succeeded => (EventType::Normal, "Migrated"),
        MigrationResult::Failed => (EventType::Warning, "MigrationFailed"),
        MigrationResult::Refused => (EventType::Warning, "MigrationRefused"),
    };
    let message = migration.message.as_deref().unwrap_or_default();
    Some(new_event(kind, reason, message))
}

fn new_event(kind: EventType, reason: &str, note: &str) -> Event {
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
    use crate::fixtures;

    #[test]
    fn a_restart_is_reported_once_when_the_new_guest_runs() {
        let requested = |replaces: Option<&str>, runs: bool| MachineStatus {
            last_restart: Some(LastRestart {
                request: "kernel update".into(),
                replaces: replaces.map(Into::into),
                cause: None,
            }),
            vmi_name: Some("web".into()),
            phase: Some(if runs {
                Phase::Running
            } else {
                Phase::Creating
            }),
            ..MachineStatus::default()
        };
        for (old, new, reported) in [
            (
                MachineStatus::default(),
                requested(Some("old"), true),
                false,
            ),
            (MachineStatus::default(), requested(None, true), false),
            (
                requested(Some("old"), true),
                requested(Some("old"), true),
                false,
            ),
            (requested(Some("old"), true), requested(None, true), true),
            (requested(Some("old"), true), requested(None, false), false),
            (requested(None, true), requested(None, true), false),
        ] {
            let notes: Vec<_> = transitions(&old, &new)
                .filter_map(|event| event.note)
                .collect();
            let note = "the guest was restarted, as requested: kernel update";
            let expected: &[&str] = if reported { &[note] } else { &[] };
            assert_eq!(notes, expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn a_requested_migration_is_reported_once_when_it_has_ended() {
        let status = |request: &str, result: Option<MigrationResult>| MachineStatus {
            last_migration: Some(LastMigration {
                request: request.into(),
                result,
                message: Some("why".into()),
                ..LastMigration::default()
            }),
            ..MachineStatus::default()
        };
        let refused = Some(MigrationResult::Refused);
        let (open, done) = (status("a", None), status("a", refused));
        for (old, new, expected) in [
            (&MachineStatus::default(), &open, None),
            (&open, &done, Some("MigrationRefused")),
            (&done, &done, None),
            (&done, &status("b", refused), Some("MigrationRefused")),
            (
                &open,
                &status("a", Some(MigrationResult::Succeeded)),
                Some("Migrated"),
            ),
        ] {
            let reason = transitions(old, new).next().map(|event| event.reason);
            assert_eq!(reason.as_deref(), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn a_repeated_note_keeps_its_recorder_and_a_new_note_gets_another() {
        let (mut recorders, mut created) = (RecorderCache(HashMap::new()), 0);
        let mut get = |object: &str, reason: &str, note: &str| {
            recorders.get(object, reason, note, || {
                created += 1;
                created
            })
        };
        let first = get("web", "VMFailed", "crashed");
        assert_eq!(get("web", "VMFailed", "crashed"), first);
        assert_ne!(get("web", "Running", "crashed"), first);
        assert_ne!(get("db", "VMFailed", "crashed"), first);
        let second = get("web", "VMFailed", "no image");
        assert_ne!(second, first);
        assert_eq!(get("web", "VMFailed", "no image"), second);
        assert_ne!(
            get("web", "VMFailed", "crashed"),
            first,
            "the first series has ended"
        );
        for object in 0..2 * RECORDERS_MAX {
            get(&object.to_string(), "Running", "runs");
        }
        assert!(recorders.0.len() <= RECORDERS_MAX);
    }

    #[test]
    fn only_a_change_of_ready_is_an_event() {
        let none = MachineStatus::default();
        let creating = fixtures::ready("False", "Creating");
        let missing = fixtures::ready("False", "StorageClassNotFound");
        let importing = fixtures::ready("False", "ImageImporting");
        let running = fixtures::ready("True", "Running");
        for (old, new, expected) in [
            (&none, &creating, Some(EventType::Normal)),
            (&creating, &creating, None),
            (&creating, &missing, Some(EventType::Warning)),
            (&missing, &importing, Some(EventType::Normal)),
            (&missing, &running, Some(EventType::Normal)),
            (&running, &running, None),
        ] {
            assert_eq!(ready_changed(old, new).map(|event| event.type_), expected);
        }
        assert_eq!(
            ready_changed(&creating, &missing).unwrap().reason,
            "StorageClassNotFound"
        );
        // A claim that has no volume yet is progress, one that the API server refused is not.
        for (phase, expected) in [
            (Phase::Creating, EventType::Normal),
            (Phase::Failed, EventType::Warning),
        ] {
            let pending = MachineStatus {
                phase: Some(phase),
                ..fixtures::ready("False", "PVCPending")
            };
            let event = ready_changed(&creating, &pending).unwrap();
            assert_eq!(event.type_, expected, "{phase}");
        }
    }
}
