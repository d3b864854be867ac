//! Places of connections: who gets one, and who has to give it up.
//!
//! ```text
//!  full?  never answered, oldest first ─▶ idle, longest first ─▶ nobody: the new one is refused
//! ```
//!
//! Whoever opens connections and asks nothing loses them to those who come later, so strangers lock
//! nobody out, however many connections they hold. Who has asked before, as API servers have, keeps its
//! place until all those are gone; a request that is being answered on such a connection is never cut.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::timed::Phase;

/// So many connections at a time.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    by_number: BTreeMap<u64, (Phase, CancellationToken)>,
}

/// The place of a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    number: u64,
    places: Arc<Places>,
    given_up: CancellationToken,
}

impl Places {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::default(),
        })
    }

    /// A place for the connection of this phase, and whether another one had to give up its own.
    pub(crate) fn take(self: &Arc<Self>, phase: &Phase) -> Option<(Place, bool)> {
        let mut taken = self.lock();
        let full = taken.by_number.len() >= self.most;
        if full {
            let number = taken.most_useless()?;
            if let Some((_, given_up)) = taken.by_number.remove(&number) {
                given_up.cancel();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let given_up = CancellationToken::new();
        let holder = (phase.clone(), given_up.clone());
        taken.by_number.insert(number, holder);
        let place = Place {
            number,
            places: self.clone(),
            given_up,
        };
        Some((place, full))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Each change of the map is whole even when a thread died while holding the lock.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn most_useless(&self) -> Option<u64> {
        let candidates = self
            .by_number
            .iter()
            .filter(|(_, (phase, _))| !(phase.was_answered() && phase.is_busy()));
        let chosen = candidates
            .min_by_key(|(_, (phase, _))| (phase.was_answered(), phase.unanswered_since()));
        chosen.map(|(number, _)| *number)
    }
}

impl Place {
    /// Waits until somebody else needs the place more.
    pub(crate) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::advance;

    fn answered(phase: &Phase) {
        phase.busy();
        phase.idle();
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_without_use_goes_first_and_a_request_under_way_never() {
        let places = Places::new(3);
        let phases: [Phase; 3] = Default::default();
        let mut held = Vec::new();
        for phase in &phases {
            let (place, displaced) = places.take(phase).unwrap();
            assert!(!displaced);
            held.push(place);
            advance(Duration::from_secs(1)).await;
        }
        let [early, late, silent] = &phases;
        answered(late);
        advance(Duration::from_secs(1)).await;
        answered(early);
        let gone = |held: &[Place]| -> Vec<bool> {
            held.iter().map(|it| it.given_up.is_cancelled()).collect()
        };

        // Nothing was ever asked on the youngest of the three.
        assert!(!silent.was_answered());
        let asker = Phase::default();
        let (place, displaced) = places.take(&asker).unwrap();
        assert!(displaced);
        held.push(place);
        assert_eq!(gone(&held), [false, false, true, false]);

        // Then the one whose last answer is the oldest, not the oldest connection.
        answered(&asker);
        let (place, _) = places.take(&asker).unwrap();
        held.push(place);
        assert_eq!(gone(&held), [false, true, true, false, false]);

        for phase in [early, &asker] {
            phase.busy();
        }
        assert!(places.take(&Phase::default()).is_none());
        drop(held.remove(0));
        assert!(
            places
                .take(&Phase::default())
                .is_some_and(|(_, full)| !full)
        );
    }
}
