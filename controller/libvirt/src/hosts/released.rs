//! Deletes kept volumes of deleted Machines that an administrator releases, on the host itself: an annotation of the
//! LibvirtHost names them. A user does the same with an annotation of a Machine of the former name.
//!
//! ```text
//! annotation names pool/volume ─ status.keptVolumes has it ─▶ volume deleted ─▶ record removed
//! ```
//! The annotation stays: the name of a volume has the uid of its Machine, so no later one has the name.

use std::sync::Arc;
use std::time::Duration;

use common::api::left_volumes::KeptVolume;
use common::names;
use controller_core::objects::Meta as _;
use controller_core::preconditions::Effect;
use tokio::task::JoinHandle;

use super::connected::ConnectedHost;
use super::guards::{may_begin, of_remains};
use super::poller::PollerContext;
use super::tombstones::remove_kept;
use crate::libvirt_host::LibvirtHost;
use crate::volume_effects::{Removal, remove_volume};

/// Limit of one deletion: every pool is refreshed before.
const DELETION_LIMIT: Duration = Duration::from_mins(5);

/// Begins to delete the volumes that are released on this host, as far as the host permits. `None`: there is none, or
/// none may be deleted now.
pub(super) fn begin(
    context: &PollerContext,
    connected: &Arc<ConnectedHost>,
    host: &LibvirtHost,
) -> Option<JoinHandle<()>> {
    let released: Vec<_> = released(host).cloned().collect();
    if released.is_empty() || !may_begin(&context.api, connected, host) {
        return None;
    }
    let (context, connected) = (context.clone(), connected.clone());
    Some(tokio::spawn(async move {
        for volume in released {
            // The deletion of the one before may have taken minutes.
            let host = context.objects.get("", &connected.name);
            if host.is_some_and(|host| is_released(&host, &volume)) {
                delete(&context, &connected, &volume).await;
            }
        }
    }))
}

/// Whether the host permits now that the volume is deleted.
fn is_released(host: &LibvirtHost, volume: &KeptVolume) -> bool {
    host.spec.maintenance != Some(true) && released(host).any(|it| it == volume)
}

/// The kept volumes that the annotation names.
fn released(host: &LibvirtHost) -> impl Iterator<Item = &KeptVolume> {
    let kept = host.status.kept_volumes.iter();
    kept.filter(|kept| {
        let named = host.named_in(names::ANNOTATION_RELEASE_VOLUME);
        let mut named = named.filter_map(|it| it.split_once('/'));
        named.any(|(pool, volume)| kept.pool == pool && kept.volume == volume)
    })
}

/// Deletes a volume and then its record.
async fn delete(context: &PollerContext, connected: &Arc<ConnectedHost>, volume: &KeptVolume) {
    // Another host with the same storage may have the domain, and run its guest on the volume.
    let (api, objects, hosts) = (&context.api, &context.objects, &context.hosts);
    let guard = of_remains(api, objects, hosts, connected, &volume.uid);
    let (pool, name) = (&volume.pool, &volume.volume);
    let removal = Removal::of_kept(volume);
    let deleted = connected.background.call(DELETION_LIMIT, move |host| {
        // What was deleted before its record could be removed is found nowhere, also not after a refresh.
        if host.volume(&removal.pool, &removal.name)?.is_none() {
            host.refresh(&removal.pool)?;
        }
        remove_volume(host, &guard, Effect::DeleteVolume, &removal)
    });
    if let Err(error) = deleted.await {
        tracing::warn!(host = connected.name, pool, name, %error, "a released volume was not deleted");
        return;
    }
    tracing::info!(
        host = connected.name,
        pool,
        name,
        "deleted a released volume"
    );
    // Others have written the status since.
    let Some(host) = context.objects.get("", &connected.name) else {
        return;
    };
    if let Err(error) = remove_kept(&context.api, &host, volume).await {
        let error = error.message();
        tracing::warn!(
            host = connected.name,
            pool,
            name,
            error,
            "the record of a volume was not removed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::host_object;

    #[test]
    fn an_annotation_releases_exactly_the_kept_volumes_that_it_names() {
        let kept = |pool: &str, volume: &str| KeptVolume {
            machine: "default/web".into(),
            uid: "uid-of-web".into(),
            disk: "data".into(),
            pool: pool.into(),
            volume: volume.into(),
            size: None,
        };
        let mut host = host_object("alpha");
        host.status.kept_volumes = vec![kept("vms", "a"), kept("vms", "b"), kept("fast", "a")];
        let found = |host: &LibvirtHost| {
            let found = released(host).map(|it| format!("{}/{}", it.pool, it.volume));
            found.collect::<Vec<_>>()
        };
        assert_eq!(found(&host), [""; 0]);
        let key = names::ANNOTATION_RELEASE_VOLUME.to_owned();
        let mut annotate = |value: &str| {
            host.metadata.annotations = Some([(key.clone(), value.to_owned())].into());
            found(&host)
        };
        assert_eq!(annotate("vms/a, fast/a,vms/unknown"), ["vms/a", "fast/a"]);
        assert_eq!(annotate("data,vms,/,"), [""; 0]);
    }
}
