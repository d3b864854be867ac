//! Watches that feed rows, for ever.
//!
//! ```text
//! list ─ object by object ─▶ Listing ─ complete ─▶ the rows ◀─ change by change ─ watch
//! ```
//! No object is kept: each becomes a row as it comes.

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
use runtime::tasks::chain;
use runtime::trouble::{Pause, Trouble};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, interval};

/// How often the age of the rows is told: more often than anybody scrapes.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// Takes what a watch tells.
pub trait Rows<K>: Send + Sync {
    /// The rows of a list that is not complete yet.
    type Listing: Default + Send;
    /// One more object of a list.
    fn list(listing: &mut Self::Listing, object: K);
    /// These rows are all there are: what was deleted unseen is gone, too.
    fn reset(&self, listing: Self::Listing);
    /// This object is new or changed.
    fn apply(&self, object: K);
    /// This object is gone.
    fn delete(&self, object: K);
    /// Told every few seconds: the rows were right so long ago, and may be since.
    fn aged(&self, age: Duration) {
        let _ = age;
    }
}

/// Feeds `rows` from a stream of events. `synced` is met after the first complete list.
pub async fn follow<K: Send, R: Rows<K>>(
    events: impl Stream<Item = WatchResult<Event<K>>> + Send,
    rows: Arc<R>,
    what: &'static str,
    synced: Check,
) -> Result<(), Infallible> {
    let mut events = pin!(events.backoff(Pause::default()));
    let mut ticks = interval(TELL_INTERVAL);
    let start = Instant::now();
    let mut listing = R::Listing::default();
    let mut trouble = Trouble::default();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = ticks.tick() => {
                let listed = synced.is_met();
                rows.aged(if listed { trouble.lasts() } else { start.elapsed() });
                continue;
            }
        };
        match event {
            None => return Ok(()),
            Some(Ok(event)) => {
                // That a list begins does not say that it can be had.
                if !matches!(event, Event::Init) {
                    trouble.is_over();
                }
                match event {
                    Event::Init => listing = R::Listing::default(),
                    Event::InitApply(object) => R::list(&mut listing, object),
                    Event::InitDone => {
                        rows.reset(std::mem::take(&mut listing));
                        synced.met();
                    }
                    Event::Apply(object) => rows.apply(object),
                    Event::Delete(object) => rows.delete(object),
                }
            }
            // The rows stay as they are. One line per trouble, not per attempt.
            Some(Err(error)) if trouble.is_news(&error) => {
                tracing::warn!(what, error = chain(&error), "cannot watch, trying again");
                if !synced.is_met() {
                    synced.missing(chain(&error));
                }
            }
            Some(Err(error)) => tracing::debug!(what, error = chain(&error), "cannot watch"),
        }
    }
}

/// The same event about what `parse` makes of its object.
pub fn parsed<K, I>(event: Event<K>, parse: impl FnOnce(K) -> I) -> Event<I> {
    match event {
        Event::Apply(object) => Event::Apply(parse(object)),
        Event::Delete(object) => Event::Delete(parse(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(parse(object)),
        Event::InitDone => Event::InitDone,
    }
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
    type Listing = Option<K>;

    fn list(listing: &mut Option<K>, object: K) {
        *listing = Some(object);
    }

    fn reset(&self, only: Option<K>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use kube::runtime::watcher::Error;
    use runtime::checks::Checks;
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

    impl Rows<u8> for Log {
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
        fn aged(&self, age: Duration) {
            self.push(format!("{} s old", age.as_secs()));
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
        let mut lines = log.lines();
        lines.retain(|line| !line.ends_with("old"));
        assert_eq!(lines, ["reset [2]", "apply 3", "delete 2"]);
        assert_eq!(checks.verdict(), Ok(()));
    }

    /// Rows age while there is no list yet, and from the first failure to the next success.
    #[tokio::test(start_paused = true)]
    async fn rows_age_while_nothing_is_heard() {
        let (log, checks) = (Arc::new(Log::default()), Checks::default());
        let (sender, events) = futures::channel::mpsc::unbounded();
        let task = follow(events, log.clone(), "bytes", checks.register("bytes"));
        let task = tokio::spawn(task);
        let after = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            log.lines().pop()
        };
        let tell = |event| sender.unbounded_send(event).unwrap();
        assert_eq!(after(6).await.unwrap(), "5 s old");
        tell(Ok(Event::Init));
        assert_eq!(after(5).await.unwrap(), "10 s old");
        tell(Ok(Event::InitDone));
        assert_eq!(after(100).await.unwrap(), "0 s old");
        tell(Err(Error::NoResourceVersion));
        assert_eq!(after(5).await.unwrap(), "4 s old");
        tell(Ok(Event::Init));
        tell(Err(Error::NoResourceVersion));
        assert_eq!(after(5).await.unwrap(), "9 s old");
        tell(Ok(Event::Apply(1)));
        assert_eq!(after(5).await.unwrap(), "0 s old");
        drop(sender);
        task.await.unwrap().unwrap();
    }
}
