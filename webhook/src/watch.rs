//! Watches that run for ever and pass what they receive to a sink.
//!
//! ```text
//! list ─ object by object ─▶ Listing ─ complete ─▶ WatchSink ◀─ change by change ─ watch
//! ```
//! A sink can reduce each object at once: no list of whole objects is kept in memory. It gets a list only once the list
//! is complete (`an_interrupted_list_is_not_taken_for_a_complete_one`).

use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, Result as WatchResult};
use kube::{Api, Resource};
use runtime::checks::Check;
use runtime::checks::Checks;
use runtime::outage::{Outage, RetryDelay};
use runtime::tasks::{Tasks, chain};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, interval};

/// Time between two reports of the age; shorter than the usual scrape interval of 15 to 60 s.
const AGE_INTERVAL: Duration = Duration::from_secs(5);

/// Receives what a watch reports.
pub trait WatchSink<K>: Send + Sync {
    /// A list that is not complete yet.
    type Listing: Default + Send;
    /// Adds an object to an incomplete list.
    fn list(listing: &mut Self::Listing, object: K);
    /// Replaces everything by a complete list. Objects deleted during an interruption are not in it.
    fn reset(&self, listing: Self::Listing);
    /// Adds or replaces an object.
    fn apply(&self, object: K);
    /// Removes an object.
    fn delete(&self, object: K);
    /// Called every few seconds with the time since the content was last known to be current; zero
    /// while the watch works.
    fn report_age(&self, age: Duration) {
        let _ = age;
    }
}

/// Passes a stream of events to `sink`. `synced` is met after the first complete list.
pub async fn follow<K: Send, S: WatchSink<K>>(
    events: impl Stream<Item = WatchResult<Event<K>>> + Send,
    sink: Arc<S>,
    what: &'static str,
    synced: Check,
) -> Result<(), Infallible> {
    let mut events = pin!(events.backoff(RetryDelay::default()));
    let mut ticks = interval(AGE_INTERVAL);
    let start = Instant::now();
    let mut listing = S::Listing::default();
    let mut outage = Outage::default();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = ticks.tick() => {
                let listed = synced.is_met();
                sink.report_age(if listed { outage.duration() } else { start.elapsed() });
                continue;
            }
        };
        match event {
            None => return Ok(()),
            Some(Ok(event)) => {
                // Init only means that a list was requested: the request may still fail.
                if !matches!(event, Event::Init) {
                    outage.succeeded();
                }
                match event {
                    Event::Init => listing = S::Listing::default(),
                    Event::InitApply(object) => S::list(&mut listing, object),
                    Event::InitDone => {
                        sink.reset(std::mem::take(&mut listing));
                        synced.met();
                    }
                    Event::Apply(object) => sink.apply(object),
                    Event::Delete(object) => sink.delete(object),
                }
            }
            // The sink keeps its content. A failure is logged once, not at every attempt.
            Some(Err(error)) if outage.failed(&error) => {
                tracing::warn!(what, error = chain(&error), "cannot watch, trying again");
                if !synced.is_met() {
                    synced.missing(chain(&error));
                }
            }
            Some(Err(error)) => tracing::debug!(what, error = chain(&error), "cannot watch"),
        }
    }
}

/// The same event with its object converted.
pub fn map_event<K, I>(event: Event<K>, convert: impl FnOnce(K) -> I) -> Event<I> {
    match event {
        Event::Apply(object) => Event::Apply(convert(object)),
        Event::Delete(object) => Event::Delete(convert(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(convert(object)),
        Event::InitDone => Event::InitDone,
    }
}

/// What a watch on a single object has reported.
#[derive(Debug, Clone)]
pub enum Observed<K> {
    /// Nothing has been reported yet.
    Unknown,
    /// The object does not exist.
    Absent,
    /// The object exists.
    Present(Arc<K>),
}

/// Sink of a watch on one object, of which it keeps what `reduce` makes of it.
#[derive(Debug)]
struct Single<K, R> {
    observed: watch::Sender<Observed<R>>,
    reduce: fn(K) -> R,
}

impl<K, R> Single<K, R> {
    fn present(&self, object: K) -> Observed<R> {
        Observed::Present(Arc::new((self.reduce)(object)))
    }
}

impl<K: Send + Sync, R: Send + Sync> WatchSink<K> for Single<K, R> {
    type Listing = Option<K>;

    fn list(listing: &mut Option<K>, object: K) {
        *listing = Some(object);
    }

    fn reset(&self, only: Option<K>) {
        let observed = only.map_or(Observed::Absent, |object| self.present(object));
        self.observed.send_replace(observed);
    }

    fn apply(&self, object: K) {
        self.observed.send_replace(self.present(object));
    }

    fn delete(&self, _object: K) {
        self.observed.send_replace(Observed::Absent);
    }
}

/// Starts a watch on the object `name` as the task `what`, which is also the name of its readiness
/// condition. Returns what `reduce` makes of what it reports; nothing else of the object is kept.
pub fn spawn_object_watch<K, R>(
    tasks: &mut Tasks,
    api: Api<K>,
    name: &str,
    what: &'static str,
    ready: &Checks,
    reduce: fn(K) -> R,
) -> watch::Receiver<Observed<R>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    R: Send + Sync + 'static,
{
    let (sender, receiver) = watch::channel(Observed::Unknown);
    // With this selector, a role that is limited to the object's name is sufficient.
    let config = Config::default().fields(&format!("metadata.name={name}"));
    let events = kube::runtime::watcher(api, config);
    let sink = Arc::new(Single {
        observed: sender,
        reduce,
    });
    tasks.spawn(what, follow(events, sink, what, ready.register(what)));
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use kube::runtime::watcher::Error;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Log {
        fn push(&self, line: String) {
            self.0.lock().unwrap().push(line);
        }

        fn lines(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    impl WatchSink<u8> for Log {
        type Listing = Vec<u8>;

        fn list(listing: &mut Vec<u8>, object: u8) {
            listing.push(object);
        }
        fn reset(&self, listing: Vec<u8>) {
            self.push(format!("reset {listing:?}"));
        }
        fn apply(&self, object: u8) {
            self.push(format!("apply {object}"));
        }
        fn delete(&self, object: u8) {
            self.push(format!("delete {object}"));
        }
        fn report_age(&self, age: Duration) {
            self.push(format!("{} s old", age.as_secs()));
        }
    }

    #[tokio::test]
    async fn an_interrupted_list_is_not_taken_for_a_complete_one() {
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
        let mut lines = log.lines();
        lines.retain(|line| !line.ends_with("old"));
        assert_eq!(lines, ["reset [2]", "apply 3", "delete 2"]);
        assert_eq!(checks.verdict(), Ok(()));
    }

    /// From the start to the first list, and from the first failure to the next success.
    #[tokio::test(start_paused = true)]
    async fn the_content_ages_until_the_first_list_and_while_the_watch_fails() {
        let (log, checks) = (Arc::new(Log::default()), Checks::default());
        let (sender, events) = futures::channel::mpsc::unbounded();
        let task = follow(events, log.clone(), "bytes", checks.register("bytes"));
        let task = tokio::spawn(task);
        let after = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            log.lines().pop()
        };
        let send = |event| sender.unbounded_send(event).unwrap();
        assert_eq!(after(6).await.unwrap(), "5 s old");
        send(Ok(Event::Init));
        assert_eq!(after(5).await.unwrap(), "10 s old");
        send(Ok(Event::InitDone));
        assert_eq!(after(100).await.unwrap(), "0 s old");
        send(Err(Error::NoResourceVersion));
        assert_eq!(after(5).await.unwrap(), "4 s old");
        send(Ok(Event::Init));
        send(Err(Error::NoResourceVersion));
        assert_eq!(after(5).await.unwrap(), "9 s old");
        send(Ok(Event::Apply(1)));
        assert_eq!(after(5).await.unwrap(), "0 s old");
        drop(sender);
        task.await.unwrap().unwrap();
    }
}
