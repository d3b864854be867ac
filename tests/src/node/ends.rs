//! [`Ends`]: whether a program has ended that a test needs. Without it the test would wait for its limit.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

use crate::process::{Process, Watched};

/// Time between two looks.
const POLL: Duration = Duration::from_millis(500);

/// The programs that are watched, by the ids of their processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends(Arc<Mutex<BTreeMap<u32, Watched>>>);

impl Ends {
    fn programs(&self) -> MutexGuard<'_, BTreeMap<u32, Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a program from now on.
    pub(super) fn watch(&self, process: &Process) {
        self.programs().insert(process.id(), process.watched());
    }

    /// Watches it no more, because it is ended on purpose.
    pub(super) fn forget(&self, process: &Process) {
        self.programs().remove(&process.id());
    }

    /// Waits until one of them has ended, and returns a text with the end of its log.
    pub(super) async fn first(self) -> String {
        loop {
            let ended = self.programs().values().find_map(Watched::ended);
            if let Some(text) = ended {
                return text;
            }
            sleep(POLL).await;
        }
    }
}
