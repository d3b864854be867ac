//! Looks at the fetched images of a host from time to time, and has those removed that nothing uses, and what fetches
//! that were interrupted left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::GuardedClient;
use time::OffsetDateTime;

use super::connected::ConnectedHost;
use super::guards::{may_begin, of_host};
use crate::images::abandoned::remove_abandoned;
use crate::images::names::image_volume;
use crate::images::retention::Sweep;
use crate::libvirt_host::LibvirtHost;
use crate::offers::images;

/// Limit of one look at the images of a host: every pool is refreshed for each image that is removed.
const SWEEP_LIMIT: Duration = Duration::from_mins(5);
/// Longest pause between two looks at the images of a host. Each refreshes every pool of it.
const SWEEP_INTERVAL_MAX: Duration = Duration::from_hours(1);
/// Pause between two looks at the images of a host.
pub(super) fn sweep_interval(retention: Duration) -> Duration {
    if retention.is_zero() {
        return SWEEP_INTERVAL_MAX;
    }
    retention.min(SWEEP_INTERVAL_MAX)
}

/// Removes the images of a host that nothing has used for this time (zero: none), and what abandoned fetches left, in
/// the background. What could not be removed is tried again with the next look.
pub(super) fn sweep_host(
    api: &GuardedClient,
    caches: &Caches,
    objects: &Cache<LibvirtHost>,
    connected: &Arc<ConnectedHost>,
    host: &LibvirtHost,
    retention: Duration,
) {
    let Some(pool) = host.spec.image_pool.clone() else {
        return;
    };
    if !may_begin(api, connected, host) {
        return;
    }
    let guard = of_host(api, objects, connected);
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let (caches, name) = (caches.clone(), connected.name.clone());
    let connected = connected.clone();
    tokio::spawn(async move {
        let swept = connected.background.call(SWEEP_LIMIT, move |host| {
            let mut removed = remove_abandoned(host, &guard, &pool, now)?;
            if !retention.is_zero() {
                let sweep = Sweep {
                    pool,
                    needed: || needed_images(&caches, &name),
                    retention,
                    now,
                };
                removed.extend(sweep.run(host, &guard)?);
            }
            Ok(removed)
        });
        let swept = swept.await;
        let host = &connected.name;
        match swept {
            Ok(removed) => {
                for image in removed {
                    tracing::info!(host, image, "removed an image that nothing uses");
                }
            }
            Err(error) => tracing::debug!(host, %error, "unused images could not be removed"),
        }
    });
}

/// The images that Machines on a host name, and those that have no host yet. A disk may be about to be made of one.
fn needed_images(caches: &Caches, host: &str) -> BTreeSet<String> {
    let machines = caches.machines.state();
    let concerned = machines.iter().filter(|machine| {
        let binding = machine.binding.as_ref();
        binding.is_some_and(|it| it.host.as_deref().is_none_or(|it| it == host))
    });
    let blocks = concerned.map(|machine| caches.for_pass(machine));
    let mut needed = BTreeSet::new();
    for machine in blocks {
        let block = machine.desired().into_iter();
        let volume = |image| image_volume(image, &machine.namespace_uid);
        needed.extend(block.flat_map(images).map(volume));
    }
    needed
}
