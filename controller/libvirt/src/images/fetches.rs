//! The fetches of one host: which are under way, which namespaces are queued, and which failed and wait for their next attempt.
//!
//! ```text
//! begin ─┬─ failed a short while ago ──────▶ waits for the end of its pause
//!        ├─ namespace has one, or 4 run ───▶ queued: the namespace that has waited longest is next
//!        └─ otherwise ─────────────────────▶ under way, for as long as a Machine needs it
//! ```
//! Reason: otherwise one namespace that names slow servers delays the images of all others
//! (`a_namespace_has_one_fetch_at_a_time_and_others_are_served_before_its_next` here).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::render::libvirt::VolumeFormat;

/// Pause after a fetch that failed; each further failure doubles it. A fetch with a wrong checksum costs gigabytes
/// each time.
const PAUSE_MIN: Duration = Duration::from_secs(30);
/// Longest pause: after a server was repaired, the next attempt comes no later than this.
const PAUSE_MAX: Duration = Duration::from_mins(15);
/// Most fetches of a host at a time. Each has a connection and a thread.
pub(crate) const FETCHES_MAX: usize = 4;
/// Most failures that are remembered for a host, so that a user who names thousands of URLs does not fill the memory.
const FAILURES_MAX: usize = 256;
/// How long nothing is begun at first for what waits until nothing is under way. In this time what waits asks at least once:
/// two minutes are the longest pause between two passes of a Machine.
const HOLD: Duration = Duration::from_mins(3);
/// Longest hold. Each one that follows on another is twice as long, so that copies of some minutes come to an end in one of
/// them, however they overlap; a copy that takes longer than this keeps volumes from being deleted.
const HOLD_MAX: Duration = Duration::from_hours(1);
/// After this time a namespace that no longer asks leaves the queue: its Machines ask every few seconds while they wait.
const QUEUE_LIMIT: Duration = Duration::from_secs(30);

/// How far an image is on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageState {
    /// It does not exist, and is not being fetched.
    Absent,
    /// Other images are being fetched first.
    Waiting,
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
pub(crate) struct Fetches(Arc<Mutex<Inner>>);

/// A time in which no copy is begun, and after which copies are begun for as long.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Instant,
    length: Duration,
}

#[derive(Debug, Default)]
struct Inner {
    images: HashMap<FetchKey, Image>,
    /// Namespaces that wait for a fetch, the longest first, with the time when they last asked.
    queue: VecDeque<(String, Instant)>,
    /// The last time in which nothing was begun, or is.
    hold: Option<Hold>,
    /// When a fetch ended last.
    ended: Option<Instant>,
}

/// What a fetch is identified by. Machines that name the same private image with different Secrets do not wait for each
/// other's failures.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FetchKey {
    /// Name of the image's volume without the attempt.
    pub(crate) image: String,
    /// Name of the Secret with the credentials; `None`: it is fetched without.
    pub(crate) secret: Option<String>,
}

/// One image.
#[derive(Debug, Default)]
struct Image {
    underway: Option<Underway>,
    /// The last failure, which the status reports until an attempt succeeds.
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Underway {
    progress: Arc<Progress>,
    namespace: String,
    secret_version: Option<String>,
    made: ImageUse,
    /// Machines that need it: namespace and name.
    needed_by: BTreeSet<(String, String)>,
}

#[derive(Clone, Debug)]
struct Failure {
    why: String,
    since: Instant,
    /// Until the next attempt.
    pause: Duration,
    /// `resourceVersion` of the Secret before the fetch. Another version may have the right credentials.
    secret_version: Option<String>,
    /// What it was fetched for. A larger disk may take an image that this one could not.
    made: ImageUse,
}

impl Failure {
    /// Whether the next attempt has to wait.
    fn must_wait(&self, request: &Request<'_>, now: Instant) -> bool {
        let is_larger = request.made > self.made;
        let is_corrected = request.secret_version != self.secret_version.as_deref();
        !is_larger && !is_corrected && now.saturating_duration_since(self.since) < self.pause
    }
}

/// What is made of an image, which bounds it. A medium may be larger than what is made a disk, so that it is the larger use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ImageUse {
    /// A disk of this size, in bytes.
    Disk(u64),
    /// A medium of this size at most, in bytes.
    Medium(u128),
}

/// Who asks for an image.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) key: FetchKey,
    /// `resourceVersion` of the Secret; `None`: there is none.
    pub(crate) secret_version: Option<&'a str>,
    /// Namespace of the Machine.
    pub(crate) namespace: &'a str,
    /// Name of the Machine.
    pub(crate) machine: &'a str,
    /// What is made of it.
    pub(crate) made: ImageUse,
}

/// Bytes so far, and of how many.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(super) done: AtomicU64,
    pub(super) all: AtomicU64,
}

impl Progress {
    fn left(&self) -> u64 {
        let done = self.done.load(Ordering::Relaxed);
        self.all.load(Ordering::Relaxed).saturating_sub(done)
    }

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

/// The permission to fetch an image now.
#[derive(Debug, Default)]
pub(crate) struct FetchPermit {
    progress: Arc<Progress>,
    fetches: Fetches,
}

impl FetchPermit {
    /// How far the fetch is.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Records how many bytes this fetch will write. Returns how many the other fetches of the host have announced and
    /// not written yet: their files will take this room. Of two fetches at least the later one counts the other.
    pub(super) fn announce(&self, length: u64) -> u64 {
        let inner = self.fetches.lock();
        self.progress.all.store(length, Ordering::Relaxed);
        let underway = inner
            .images
            .values()
            .filter_map(|image| image.underway.as_ref());
        let others = underway.filter(|other| !Arc::ptr_eq(&other.progress, &self.progress));
        others
            .map(|other| other.progress.left())
            .fold(0, u64::saturating_add)
    }
}

impl Fetches {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The maps are whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far a fetch is, for a Machine that needs the image; `None` when there is none.
    pub(crate) fn state(
        &self,
        key: &FetchKey,
        namespace: &str,
        machine: &str,
    ) -> Option<ImageState> {
        let mut inner = self.lock();
        let is_waiting = inner.queue.iter().any(|(waiting, _)| waiting == namespace);
        let Some(found) = inner.images.get_mut(key) else {
            return is_waiting.then_some(ImageState::Waiting);
        };
        if let Some(underway) = &mut found.underway {
            let machine = (namespace.to_owned(), machine.to_owned());
            underway.needed_by.insert(machine);
        }
        match (&found.failure, &found.underway) {
            (Some(failure), _) => Some(ImageState::Failed(failure.why.clone())),
            (None, Some(underway)) => Some(ImageState::Underway {
                progress: underway.progress.percent(),
            }),
            (None, None) => None,
        }
    }

    /// Whether something is under way for a Machine.
    pub(crate) fn works_for(&self, namespace: &str, machine: &str) -> bool {
        let machine = (namespace.to_owned(), machine.to_owned());
        let inner = self.lock();
        let mut underway = inner.images.values().filter_map(|it| it.underway.as_ref());
        underway.any(|underway| underway.needed_by.contains(&machine))
    }

    /// Begins a fetch; `None` when one is under way, the last one failed a short while ago, or other
    /// namespaces are before it in the queue.
    pub(crate) fn begin(&self, request: &Request<'_>, now: Instant) -> Option<FetchPermit> {
        let mut inner = self.lock();
        let found = inner.images.get(&request.key);
        if found.is_some_and(|found| {
            let failure = found.failure.as_ref();
            found.underway.is_some()
                || failure.is_some_and(|failure| failure.must_wait(request, now))
        }) {
            return None;
        }
        if !inner.may_begin(request.namespace, now) {
            return None;
        }
        let progress = Arc::new(Progress::default());
        let image = inner.images.entry(request.key.clone()).or_default();
        image.underway = Some(Underway {
            progress: progress.clone(),
            namespace: request.namespace.to_owned(),
            secret_version: request.secret_version.map(str::to_owned),
            made: request.made,
            needed_by: [(request.namespace.to_owned(), request.machine.to_owned())].into(),
        });
        Some(FetchPermit {
            progress,
            fetches: self.clone(),
        })
    }

    /// Begins nothing for a while, so that what is under way comes to an end. Otherwise the copies of many namespaces, one after
    /// the other, would leave no moment in which a pool can be read, and no volume could be deleted. A hold is not
    /// extended, and the next one begins only after the images that waited had as much time: a copy of hours and one deletion
    /// would stop the images of all namespaces for as long.
    pub(crate) fn hold(&self, now: Instant) {
        let hold = &mut self.lock().hold;
        let length = match *hold {
            // A hold is under way, or images are begun for as long as the last hold took.
            Some(last) if now < last.until + last.length => return,
            // This hold follows on the last one, which was too short for what waits.
            Some(last) if now < last.until + last.length + HOLD => (last.length * 2).min(HOLD_MAX),
            _ => HOLD,
        };
        *hold = Some(Hold {
            until: now + length,
            length,
        });
    }

    /// The Machines that asked for an image while it was fetched: namespace and name.
    pub(crate) fn needed_by(&self, key: &FetchKey) -> BTreeSet<(String, String)> {
        let inner = self.lock();
        let underway = inner.images.get(key);
        underway
            .and_then(|found| found.underway.as_ref())
            .map(|underway| underway.needed_by.clone())
            .unwrap_or_default()
    }

    pub(crate) fn end(&self, key: &FetchKey, outcome: Result<(), String>, now: Instant) {
        let mut inner = self.lock();
        let Some(mut found) = inner.images.remove(key) else {
            return;
        };
        inner.ended = Some(now);
        let Err(why) = outcome else { return };
        let before = found.failure.take();
        let pause = before.map_or(PAUSE_MIN, |before| (before.pause * 2).min(PAUSE_MAX));
        let Some(underway) = found.underway else {
            return;
        };
        let failure = Failure {
            why,
            since: now,
            pause,
            secret_version: underway.secret_version,
            made: underway.made,
        };
        inner.remove_oldest();
        let image = inner.images.entry(key.clone()).or_default();
        image.failure = Some(failure);
    }
}

impl Inner {
    /// Whether a namespace may begin a fetch; otherwise it is queued.
    fn may_begin(&mut self, namespace: &str, now: Instant) -> bool {
        let running: Vec<&str> = self
            .images
            .values()
            .filter_map(|image| Some(image.underway.as_ref()?.namespace.as_str()))
            .collect();
        let is_free = |of: &str| running.len() < FETCHES_MAX && !running.contains(&of);
        self.queue.retain(|(waiting, asked)| {
            waiting == namespace || now.saturating_duration_since(*asked) < QUEUE_LIMIT
        });
        let first = self.queue.iter().find(|(waiting, _)| is_free(waiting));
        let is_first = first.is_none_or(|(waiting, _)| waiting == namespace);
        // Once nothing is under way, what waits has one more chance to ask.
        let is_needed = |hold: Hold| {
            let since = self.ended.max(hold.until.checked_sub(hold.length));
            !running.is_empty() || since.is_some_and(|since| now < since + HOLD)
        };
        let is_held = self
            .hold
            .is_some_and(|hold| now < hold.until && is_needed(hold));
        if is_free(namespace) && is_first && !is_held {
            self.queue.retain(|(waiting, _)| waiting != namespace);
            return true;
        }
        match self
            .queue
            .iter_mut()
            .find(|(waiting, _)| waiting == namespace)
        {
            Some((_, asked)) => *asked = now,
            None => self.queue.push_back((namespace.to_owned(), now)),
        }
        false
    }

    /// Makes room for one more failure.
    fn remove_oldest(&mut self) {
        let failed = self
            .images
            .iter()
            .filter(|(_, image)| image.underway.is_none());
        if failed.clone().count() < FAILURES_MAX {
            return;
        }
        let since = |image: &Image| image.failure.as_ref().map(|failure| failure.since);
        let oldest = failed.min_by_key(|(_, image)| since(image));
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.images.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
