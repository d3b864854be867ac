//! Watches that feed rows, for ever.

use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::runtime::checks::Check;
use common::runtime::tasks::chain;
use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{Config, Event, Result as WatchResult};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// First pause after a failed watch.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause: readiness shall follow an API server that comes back within a second or two, and
/// a handful of watches is no load even then.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Takes what a watch tells.
pub trait Rows<K>: Send + Sync {
    /// These objects exist and no others: what was deleted unseen is gone, too.
    fn reset(&self, all: Vec<K>);
    /// This object is new or changed.
    fn apply(&self, object: K);
    /// This object is gone.
    fn delete(&self, object: K);
}

/// Feeds `rows` from a stream of events. `synced` is met after the first complete list.
pub async fn follow<K: Send>(
    events: impl Stream<Item = WatchResult<Event<K>>> + Send,
    rows: Arc<impl Rows<K>>,
    what: &'static str,
    synced: Check,
) -> Result<(), Infallible> {
    let mut events = pin!(events.backoff(Pauses::default()));
    let mut listed = Vec::new();
    let mut failing = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                // That a list begins does not say that it can be had.
                failing &= matches!(event, Event::Init);
                match event {
                    Event::Init => listed.clear(),
                    Event::InitApply(object) => listed.push(object),
                    Event::InitDone => {
                        rows.reset(std::mem::take(&mut listed));
                        synced.met();
                    }
                    Event::Apply(object) => rows.apply(object),
                    Event::Delete(object) => rows.delete(object),
                }
            }
            // The rows stay as they are. One line per trouble, not per attempt.
            Err(error) if failing => tracing::debug!(what, error = chain(&error), "cannot watch"),
            Err(error) => {
                failing = true;
                tracing::warn!(what, error = chain(&error), "cannot watch, trying again");
                if !synced.is_met() {
                    synced.missing(chain(&error));
                }
            }
        }
    }
    Ok(())
}

/// What is known of a single object.
#[derive(Debug, Clone)]
pub enum Observed<K> {
    /// Nothing yet.
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    Present(Arc<K>),
}

/// Rows of a watch on one object.
#[derive(Debug)]
struct Single<K>(watch::Sender<Observed<K>>);

impl<K: Send + Sync> Rows<K> for Single<K> {
    fn reset(&self, all: Vec<K>) {
        let only = all.into_iter().next();
        self.0.send_replace(only.map_or(Observed::Absent, |object| {
            Observed::Present(Arc::new(object))
        }));
    }

    fn apply(&self, object: K) {
        self.0.send_replace(Observed::Present(Arc::new(object)));
    }

    fn delete(&self, _object: K) {
        self.0.send_replace(Observed::Absent);
    }
}

/// Follows the object `name`: what is known of it, and the task that keeps that up to date.
pub fn observe<K>(
    api: Api<K>,
    name: &str,
    what: &'static str,
    synced: Check,
) -> (
    watch::Receiver<Observed<K>>,
    impl Future<Output = Result<(), Infallible>> + Send + use<K>,
)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (sender, receiver) = watch::channel(Observed::Unknown);
    // Only with this selector a role that names the object is enough.
    let config = Config::default().fields(&format!("metadata.name={name}"));
    let events = kube::runtime::watcher(api, config);
    (
        receiver,
        follow(events, Arc::new(Single(sender)), what, synced),
    )
}

/// Pauses that double up to [`PAUSE_MAX`] and begin anew after a success.
#[derive(Debug, Default)]
struct Pauses {
    failures: u32,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let factor = 2_u32.saturating_pow(self.failures);
        self.failures = self.failures.saturating_add(1);
        Some(PAUSE_MIN.saturating_mul(factor).min(PAUSE_MAX))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::runtime::checks::Checks;
    use futures::stream;
    use kube::runtime::watcher::Error;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Log {
        fn push(&self, line: String) {
            self.0.lock().unwrap().push(line);
        }
    }

    impl Rows<u8> for Log {
        fn reset(&self, all: Vec<u8>) {
            self.push(format!("reset {all:?}"));
        }
        fn apply(&self, object: u8) {
            self.push(format!("apply {object}"));
        }
        fn delete(&self, object: u8) {
            self.push(format!("delete {object}"));
        }
    }

    #[tokio::test]
    async fn a_list_that_broke_off_is_not_taken_for_a_whole_one() {
        let (log, checks) = (Arc::new(Log::default()), Checks::default());
        let events = stream::iter([
            Ok(Event::Init),
            Ok(Event::InitApply(1)),
            Err(Error::NoResourceVersion),
            Ok(Event::Init),
            Ok(Event::InitApply(2)),
            Ok(Event::InitDone),
            Ok(Event::Apply(3)),
            Ok(Event::Delete(2)),
        ]);
        follow(events, log.clone(), "bytes", checks.register("bytes"))
            .await
            .unwrap();
        assert_eq!(*log.0.lock().unwrap(), ["reset [2]", "apply 3", "delete 2"]);
        assert_eq!(checks.verdict(), Ok(()));
    }

    #[test]
    fn pauses_grow_to_their_limit_and_begin_anew() {
        let mut pauses = Pauses::default();
        let millis = |pauses: &mut Pauses| pauses.next().unwrap().as_millis();
        let grown: Vec<_> = (0..5).map(|_| millis(&mut pauses)).collect();
        assert_eq!(grown, [200, 400, 800, 1_000, 1_000]);
        pauses.reset();
        assert_eq!(millis(&mut pauses), 200);
    }
}
