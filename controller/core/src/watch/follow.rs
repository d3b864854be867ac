//! Follows the watch of one kind, which the API server may serve only later or no longer (its CRD).

use std::convert::Infallible;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use runtime::outage::{Outage, RetryDelay};
use runtime::tasks::chain;

use crate::cache::{Cache, Change, State};
use crate::objects::Cacheable;

/// Objects in one response of a list. etcd stores up to 1.5 MiB of one, and a tenant can fill as many as it may create; a
/// page is in memory twice, as the body of the response and as its text: 24 MiB. Eleven lists of kinds that tenants create
/// run at the same time when the controller starts: Machines, networks, Secrets of users and of the controller, claims,
/// launcher pods, NetworkAttachmentDefinitions, DataVolumes, and KubeVirt's VirtualMachines, instances and migrations. That
/// is 264 MiB at most, beside 130 MiB for 10,000 Machines, of the 512 MiB that the controller has as installed. What is
/// decoded of the metadata is small: see [`metadata`](crate::objects::metadata). A list of 10,000 objects takes 1,250
/// requests of 2 to 5 ms, once in each start.
const PAGE_SIZE: u32 = 8;

/// The configuration of every watch: lists come in pages.
pub fn watch_config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE_SIZE)
}

/// Fills `cache` from a watch, for as long as the process runs. `changed` is called for each object that changed,
/// `availability_changed` when the API server begins or ends to serve the kind.
pub(super) async fn follow<K>(
    name: &'static str,
    api: Api<K>,
    config: watcher::Config,
    cache: Cache<K>,
    changed: impl Fn(&Change<K>),
    availability_changed: impl Fn(),
) -> Result<(), Infallible>
where
    K: Cacheable + Clone + std::fmt::Debug + Send + Sync + 'static,
{
    let stream = watcher::watcher(api, config)
        .map_ok(|event| event.modify(Cacheable::prune))
        .backoff(RetryDelay::default());
    let mut stream = std::pin::pin!(stream);
    let mut outage = Outage::default();
    while let Some(event) = stream.next().await {
        match &event {
            Err(error) if is_not_served(error) => outage.succeeded(),
            Err(error) => log_failure(&mut outage, name, error),
            // Sent before the list is requested: it does not show that the request succeeds.
            Ok(Event::Init) => {}
            Ok(_) => outage.succeeded(),
        }
        apply(event, &cache, &changed, &availability_changed);
    }
    Ok(())
}

/// Applies one event of a watch to the cache.
fn apply<K: Cacheable>(
    event: watcher::Result<Event<K>>,
    cache: &Cache<K>,
    changed: impl Fn(&Change<K>),
    availability_changed: impl Fn(),
) {
    match event {
        Ok(event) => {
            let before = cache.state();
            cache.apply(event, changed);
            if before == State::Absent && cache.state() == State::Listed {
                tracing::info!(kind = %K::kind(&()), "the API server serves the kind now");
                availability_changed();
            }
        }
        Err(error) if is_not_served(&error) => {
            if cache.set_absent() {
                tracing::warn!(
                    kind = %K::kind(&()), group = %K::group(&()),
                    "the API server does not serve the kind; the watch is retried until it does"
                );
                availability_changed();
            }
        }
        // A failed watch is no information about the objects: the cache is kept.
        Err(_) => {}
    }
}

/// Whether the API server does not serve the kind.
fn is_not_served(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

/// Logs the failure of a watch, once for each new cause.
pub(super) fn log_failure(outage: &mut Outage, watch: &str, error: &watcher::Error) {
    if outage.failed(error) {
        tracing::warn!(error = chain(error), "the {watch} failed, trying again");
    }
}
