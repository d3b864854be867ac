//! Records of what deleted Machines left on a host: `status.tombstones` and `status.keptVolumes`.

use common::api::left_volumes::{KeptVolume, Tombstone, TombstoneVolume};
use common::api::libvirt_host::LibvirtHostStatus;
use common::bounds::{KEPT_VOLUMES_MAX, KEPT_VOLUMES_OF_NAMESPACE_MAX};
use common::names;
use controller_core::client::{ApiError, GuardedClient};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::libvirt_host::LibvirtHost;

/// Records that something of a Machine may be left on a host; the poller removes it once the host can be read.
pub(crate) async fn record(
    api: &GuardedClient,
    host: &LibvirtHost,
    machine: &Machine,
    volumes: Option<Vec<TombstoneVolume>>,
    now: Now,
) -> Result<(), ApiError> {
    let mut status = host.status.clone();
    let mut recorded = status.tombstones.iter();
    if recorded.any(|known| known.uid == machine.uid()) {
        return Ok(());
    }
    status.tombstones.push(Tombstone {
        machine: format!("{}/{}", machine.namespace(), machine.name()),
        uid: machine.uid().to_owned(),
        since: now.text(),
        volumes,
    });
    put_status(api, host, &status).await
}

/// Why a host lists no more kept volumes of the namespace of these; `None`: it lists them, or does already.
pub(crate) fn full_list(host: &LibvirtHost, volumes: &[KeptVolume]) -> Option<String> {
    let listed = &host.status.kept_volumes;
    let mut new = volumes.iter().filter(|volume| !is_listed(listed, volume));
    let namespace = namespace_of(new.next()?);
    let of_namespace = listed.iter().filter(|kept| namespace_of(kept) == namespace);
    let count = of_namespace.count();
    // The first one was taken above.
    (count + 1 + new.count() > KEPT_VOLUMES_OF_NAMESPACE_MAX).then(|| {
        format!(
            "LibvirtHost '{}' lists {count} kept volumes of namespace '{namespace}' and at most {KEPT_VOLUMES_OF_NAMESPACE_MAX} of one namespace: delete some of them (annotation {} of a Machine of the same name); the deletion of this Machine waits until then",
            host.name(),
            names::ANNOTATION_RELEASE_VOLUME
        )
    })
}

/// The namespace of the Machine that a volume was kept of.
fn namespace_of(kept: &KeptVolume) -> &str {
    let machine = kept.machine.split_once('/');
    machine.map_or(kept.machine.as_str(), |(namespace, _)| namespace)
}

/// Records volumes that are kept of a Machine that is about to be deleted.
pub(crate) async fn record_kept(
    api: &GuardedClient,
    host: &LibvirtHost,
    volumes: &[KeptVolume],
) -> Result<(), ApiError> {
    let mut status = host.status.clone();
    let new = volumes
        .iter()
        .filter(|new| !is_listed(&host.status.kept_volumes, new));
    status.kept_volumes.extend(new.cloned());
    if status.kept_volumes.len() > KEPT_VOLUMES_MAX {
        // The poller counts and names them in the status.
        let left_out = status.kept_volumes.split_off(KEPT_VOLUMES_MAX);
        tracing::warn!(
            host = host.name(),
            ?left_out,
            "the status of the host lists no more kept volumes: delete some of them"
        );
    }
    if status.kept_volumes == host.status.kept_volumes {
        return Ok(());
    }
    put_status(api, host, &status).await
}

/// Removes the record of a kept volume that was deleted.
pub(crate) async fn remove_kept(
    api: &GuardedClient,
    host: &LibvirtHost,
    volume: &KeptVolume,
) -> Result<(), ApiError> {
    let mut status = host.status.clone();
    status.kept_volumes.retain(|kept| kept != volume);
    put_status(api, host, &status).await
}

/// Whether a list of kept volumes has this one. The API server refuses a list that has a volume twice.
pub(crate) fn is_listed(kept_volumes: &[KeptVolume], volume: &KeptVolume) -> bool {
    let mut known = kept_volumes.iter();
    known.any(|known| (&known.pool, &known.volume) == (&volume.pool, &volume.volume))
}

/// Writes the status of a host. Refused if another writer changed the host since it was read, so that no
/// tombstone of another writer is lost.
pub(super) async fn put_status(
    api: &GuardedClient,
    host: &LibvirtHost,
    status: &LibvirtHostStatus,
) -> Result<(), ApiError> {
    let hosts: Api<LibvirtHost> = Api::all(api.client());
    let mut body = json!({
        "metadata": {"uid": host.uid(), "resourceVersion": host.metadata.resource_version},
        "status": status,
    });
    // An empty list is left out of the status, and a merge patch keeps what it does not name.
    body["status"]["tombstones"] = json!(status.tombstones);
    body["status"]["keptVolumes"] = json!(status.kept_volumes);
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let body = Patch::Merge(&body);
    api.write(hosts.patch_status(host.name(), &params, &body))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::host_object;

    fn kept(machine: &str, volume: usize) -> KeptVolume {
        KeptVolume {
            machine: machine.into(),
            uid: "uid".into(),
            disk: "data".into(),
            pool: "vms".into(),
            volume: format!("{machine}-{volume}"),
            size: None,
        }
    }

    #[test]
    fn no_namespace_takes_the_place_of_all_others_in_the_list_of_a_host() {
        let mut host = host_object("alpha");
        let all = (0..KEPT_VOLUMES_OF_NAMESPACE_MAX).map(|volume| kept("blue/web", volume));
        host.status.kept_volumes = all.collect();
        let listed = [kept("blue/web", 0)];
        assert_eq!(full_list(&host, &listed), None);
        assert_eq!(
            full_list(&host, &[kept("red/web", 1), kept("red/web", 2)]),
            None
        );
        let why = full_list(&host, &[kept("blue/db", 1)]).unwrap();
        assert!(
            why.contains("256 kept volumes of namespace 'blue'"),
            "{why}"
        );
        host.status.kept_volumes.pop();
        assert_eq!(full_list(&host, &[kept("blue/db", 1)]), None);
        assert!(full_list(&host, &[kept("blue/db", 1), kept("blue/db", 2)]).is_some());
    }
}
