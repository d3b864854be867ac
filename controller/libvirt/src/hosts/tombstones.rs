//! Records of what deleted Machines left on a host: `status.tombstones` and `status.keptVolumes`.

use common::api::left_volumes::{KeptVolume, Tombstone, TombstoneVolume};
use common::api::libvirt_host::LibvirtHostStatus;
use common::bounds::{KEPT_VOLUMES_MAX, KEPT_VOLUMES_OF_NAMESPACE_MAX};
use common::names;
use controller_core::backend::Failed;
use controller_core::client::{ApiError, GuardedClient, Remedy};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

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

/// The kept volumes of a host after some of one Machine were added.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Added {
    /// All that the host lists now.
    pub(crate) listed: Vec<KeptVolume>,
    /// Those of the Machine that the list has no room for, because it is full of those of all namespaces.
    pub(crate) left_out: Vec<KeptVolume>,
}

/// Adds volumes of one Machine to the kept ones of a host, without those that it lists already. Fails with the reason if
/// the host would list too many of the namespace.
pub(crate) fn add_kept(listed: &[KeptVolume], volumes: &[KeptVolume]) -> Result<Added, String> {
    let mut all = listed.to_vec();
    for volume in volumes {
        if !is_listed(&all, volume) {
            all.push(volume.clone());
        }
    }
    if let Some(namespace) = all[listed.len()..].first().map(namespace_of) {
        let count = |all: &[KeptVolume]| {
            let of_namespace = all.iter().filter(|kept| namespace_of(kept) == namespace);
            of_namespace.count()
        };
        if count(&all) > KEPT_VOLUMES_OF_NAMESPACE_MAX {
            return Err(format!(
                "lists {} kept volumes of namespace '{namespace}' and at most {KEPT_VOLUMES_OF_NAMESPACE_MAX} of one namespace: delete some of them (annotation {} of a Machine of the same name)",
                count(listed),
                names::ANNOTATION_RELEASE_VOLUME
            ));
        }
    }
    let left_out = all.split_off(all.len().min(KEPT_VOLUMES_MAX));
    Ok(Added {
        listed: all,
        left_out,
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
) -> Result<(), Failed> {
    let added = add_kept(&host.status.kept_volumes, volumes).map_err(|why| {
        let message = format!(
            "LibvirtHost '{}' {why}; the deletion of this Machine waits until then",
            host.name()
        );
        Failed::new(Remedy::UserAction, message)
    })?;
    if !added.left_out.is_empty() {
        // Other namespaces have filled the list, so the deletion goes on. The poller counts and names them in the status.
        tracing::warn!(
            host = host.name(),
            left_out = ?added.left_out,
            "the status of the host lists no more kept volumes: delete some of them"
        );
    }
    if added.listed == host.status.kept_volumes {
        return Ok(());
    }
    let status = LibvirtHostStatus {
        kept_volumes: added.listed,
        ..host.status.clone()
    };
    Ok(put_status(api, host, &status).await?)
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
fn is_listed(kept_volumes: &[KeptVolume], volume: &KeptVolume) -> bool {
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
    let body = json!({
        "metadata": {"uid": host.uid(), "resourceVersion": host.metadata.resource_version},
        "status": merge_patch(&host.status, status),
    });
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let body = Patch::Merge(&body);
    api.write(hosts.patch_status(host.name(), &params, &body))
        .await?;
    Ok(())
}

/// The merge patch of a status. It keeps what it does not name, so a field that the status has no more is named as null.
fn merge_patch(old: &LibvirtHostStatus, new: &LibvirtHostStatus) -> Value {
    let (old, mut new) = (json!(old), json!(new));
    for (field, _) in old.as_object().into_iter().flatten() {
        if new.get(field).is_none() {
            new[field] = Value::Null;
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_a_status_has_no_more_is_removed_and_no_other() {
        let old = LibvirtHostStatus {
            host_uuid: Some("1".into()),
            cpu_models: vec!["Nehalem".into()],
            kept_volumes: vec![kept("blue/web", 0)],
            tpm: Some(true),
            ..LibvirtHostStatus::default()
        };
        let new = LibvirtHostStatus {
            tpm: Some(false),
            libvirt_version: Some("9.0.0".into()),
            ..LibvirtHostStatus::default()
        };
        let expected = json!({
            "hostUUID": null, "cpuModels": null, "keptVolumes": null, "tpm": false, "libvirtVersion": "9.0.0",
        });
        assert_eq!(merge_patch(&old, &new), expected);
    }

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
        let all = (0..KEPT_VOLUMES_OF_NAMESPACE_MAX).map(|volume| kept("blue/web", volume));
        let mut listed: Vec<_> = all.collect();
        let add = |listed: &[KeptVolume], new: &[KeptVolume]| {
            add_kept(listed, new).map(|added| added.listed.len() - listed.len())
        };
        assert_eq!(add(&listed, &[kept("blue/web", 0)]), Ok(0));
        let red = [kept("red/web", 1), kept("red/web", 2)];
        assert_eq!(add(&listed, &red), Ok(2));
        let why = add(&listed, &[kept("blue/db", 1)]).unwrap_err();
        assert!(
            why.contains("256 kept volumes of namespace 'blue'"),
            "{why}"
        );
        listed.pop();
        assert_eq!(add(&listed, &[kept("blue/db", 1)]), Ok(1));
        add(&listed, &[kept("blue/db", 1), kept("blue/db", 2)]).unwrap_err();
    }

    #[test]
    fn what_the_list_of_a_host_has_no_room_for_is_left_out() {
        let listed: Vec<_> = (1..KEPT_VOLUMES_MAX)
            .map(|volume| kept(&format!("of-{volume}/web"), volume))
            .collect();
        let new = [kept("red/web", 1), kept("red/web", 2)];
        let added = add_kept(&listed, &new).unwrap();
        assert_eq!(added.listed.len(), KEPT_VOLUMES_MAX);
        assert_eq!(added.listed.last(), Some(&new[0]));
        assert_eq!(added.left_out, new[1..]);
    }
}
