//! The fetches of one host: which are under way, and which failed and wait for their next attempt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::render::libvirt::VolumeFormat;

/// Pause after a fetch that failed; each further failure doubles it. A fetch with a wrong checksum costs gigabytes
/// each time.
const PAUSE_MIN: Duration = Duration::from_secs(30);
/// Longest pause: after a server was repaired, the next attempt comes no later than this.
const PAUSE_MAX: Duration = Duration::from_mins(15);

/// How far an image is on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageState {
    /// It is not there, and is not being fetched.
    Absent,
    /// It is being fetched.
    Underway {
        /// Per cent of its bytes, as `35%`.
        progress: String,
    },
    /// The last fetch failed, for this reason.
    Failed(String),
    /// All of it is in the image pool.
    Complete {
        /// Name of the volume: the attempt that succeeded.
        volume: String,
        /// Format of its content.
        format: VolumeFormat,
    },
}

/// The images that are being fetched for one host, and those that could not be. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fetches(Arc<Mutex<HashMap<String, Fetch>>>);

#[derive(Clone, Debug)]
enum Fetch {
    /// In progress; with the last failure if there was one, which the status reports until this attempt succeeds.
    Underway(Arc<Progress>, Option<Failure>),
    Failed(Failure),
}

#[derive(Clone, Debug)]
struct Failure {
    why: String,
    since: Instant,
    /// Until the next attempt.
    pause: Duration,
}

/// Bytes so far, and of how many.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(super) done: AtomicU64,
    pub(super) all: AtomicU64,
}

impl Progress {
    /// In steps of five per cent: a status is not written more often.
    fn percent(&self) -> String {
        let (done, all) = (
            self.done.load(Ordering::Relaxed),
            self.all.load(Ordering::Relaxed),
        );
        let percent = done
            .saturating_mul(100)
            .checked_div(all)
            .unwrap_or_default();
        format!("{}%", percent / 5 * 5)
    }
}

impl Fetches {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Fetch>> {
        // The map is whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far a fetch is; `None` when there is none.
    pub(crate) fn state(&self, volume: &str) -> Option<ImageState> {
        Some(match self.lock().get(volume)? {
            Fetch::Underway(progress, None) => ImageState::Underway {
                progress: progress.percent(),
            },
            Fetch::Underway(_, Some(failure)) | Fetch::Failed(failure) => {
                ImageState::Failed(failure.why.clone())
            }
        })
    }

    /// Begins a fetch; `None` when one is under way, or the last one failed a short while ago.
    pub(crate) fn begin(&self, volume: &str) -> Option<Arc<Progress>> {
        let mut fetches = self.lock();
        let failure = match fetches.get(volume) {
            Some(Fetch::Underway(..)) => return None,
            Some(Fetch::Failed(failure)) if failure.since.elapsed() < failure.pause => return None,
            Some(Fetch::Failed(failure)) => Some(failure.clone()),
            None => None,
        };
        let progress = Arc::new(Progress::default());
        fetches.insert(
            volume.to_owned(),
            Fetch::Underway(progress.clone(), failure),
        );
        Some(progress)
    }

    pub(crate) fn end(&self, volume: &str, outcome: Result<(), String>) {
        let mut fetches = self.lock();
        let before = match fetches.remove(volume) {
            Some(Fetch::Underway(_, failure)) => failure,
            Some(Fetch::Failed(failure)) => Some(failure),
            None => None,
        };
        if let Err(why) = outcome {
            let pause = before.map_or(PAUSE_MIN, |before| (before.pause * 2).min(PAUSE_MAX));
            let since = Instant::now();
            let failure = Failure { why, since, pause };
            fetches.insert(volume.to_owned(), Fetch::Failed(failure));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_that_failed_is_tried_again_after_a_while_and_is_reported_meanwhile() {
        let fetches = Fetches::default();
        let pause = |fetches: &Fetches| match &fetches.lock()["image"] {
            Fetch::Failed(failure) => failure.pause,
            Fetch::Underway(..) => Duration::ZERO,
        };
        assert!(fetches.begin("image").is_some());
        assert!(fetches.begin("image").is_none(), "one at a time");
        let failed = ImageState::Failed("no route".into());
        for expected in [PAUSE_MIN, PAUSE_MIN * 2, PAUSE_MIN * 4] {
            fetches.end("image", Err("no route".into()));
            assert_eq!(pause(&fetches), expected);
            assert_eq!(fetches.state("image"), Some(failed.clone()));
            assert!(fetches.begin("image").is_none(), "it waits");
            if let Some(Fetch::Failed(failure)) = fetches.lock().get_mut("image") {
                failure.since = Instant::now().checked_sub(expected).unwrap();
            }
            assert!(fetches.begin("image").is_some());
            assert_eq!(fetches.state("image"), Some(failed.clone()), "still why");
        }
        fetches.end("image", Ok(()));
        assert_eq!(fetches.state("image"), None);
    }
}
