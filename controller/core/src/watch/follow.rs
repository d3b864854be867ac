//! One watch: its kind may not be served, and may be later.

use std::convert::Infallible;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use runtime::outage::{Outage, RetryDelay};
use runtime::tasks::chain;

use super::{Watches, every};
use crate::cache::{Cache, Change, Kept, State};
use crate::machine::CachedMachine;

impl Watches<'_> {
    /// Starts the watch of one kind, which fills `cache`. `concerned` says which Machines get a pass for a change.
    pub fn kind<K>(
        &mut self,
        name: &'static str,
        config: watcher::Config,
        cache: &Cache<K>,
        concerned: impl Fn(&Change<K>, &Store<CachedMachine>) -> Vec<ObjectRef<CachedMachine>>
        + Send
        + 'static,
    ) where
        K: Kept + Clone + std::fmt::Debug + Send + Sync + 'static,
    {
        let api = Api::<K>::all(self.client.clone());
        let (cache, triggers, machines) = (
            cache.clone(),
            self.triggers.clone(),
            self.caches.machines.clone(),
        );
        self.tasks.spawn(name, async move {
            let stream = watcher::watcher(api, config)
                .map_ok(|event| event.modify(Kept::prune))
                .backoff(RetryDelay::default());
            let mut stream = std::pin::pin!(stream);
            let mut outage = Outage::default();
            while let Some(event) = stream.next().await {
                match &event {
                    Err(error) if is_absence(error) => outage.succeeded(),
                    Err(error) => failed(&mut outage, name, error),
                    // That a list begins does not say that it can be had.
                    Ok(Event::Init) => {}
                    Ok(_) => outage.succeeded(),
                }
                follow(
                    event,
                    &cache,
                    |change| {
                        triggers.send(concerned(change, &machines));
                    },
                    || triggers.send(every(&machines, |_| true)),
                );
            }
            Ok::<_, Infallible>(())
        });
    }
}

/// Takes over one event of a watch; `appeared` is called when a kind that was absent is there.
fn follow<K: Kept>(
    event: watcher::Result<Event<K>>,
    cache: &Cache<K>,
    changed: impl Fn(&Change<K>),
    appeared: impl Fn(),
) {
    match event {
        Ok(event) => {
            let before = cache.state();
            cache.take(event, changed);
            if before == State::Absent && cache.state() == State::Listed {
                tracing::info!(kind = %K::kind(&()), "the kind is served now");
                appeared();
            }
        }
        Err(error) if is_absence(&error) => {
            if cache.is_absent_now() {
                tracing::warn!(
                    kind = %K::kind(&()), group = %K::group(&()),
                    "the API server does not serve the kind; going on when it does"
                );
                appeared();
            }
        }
        // The content stays as it was.
        Err(_) => {}
    }
}

/// Whether the API server says that it does not serve the kind.
fn is_absence(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

pub fn failed(outage: &mut Outage, what: &str, error: &watcher::Error) {
    if outage.failed(error) {
        tracing::warn!(error = chain(error), "the {what} failed, trying again");
    }
}
