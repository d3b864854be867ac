//! Records of what deleted Machines left on a host: `status.tombstones` and `status.keptVolumes`.

use common::api::left_volumes::{KeptVolume, Tombstone, TombstoneVolume};
use common::api::libvirt_host::LibvirtHostStatus;
use common::bounds::{
    KEPT_VOLUMES_MAX, KEPT_VOLUMES_OF_NAMESPACE_MAX, TOMBSTONE_VOLUMES_MAX,
    TOMBSTONE_VOLUMES_OF_NAMESPACE_MAX, TOMBSTONES_MAX, TOMBSTONES_OF_NAMESPACE_MAX,
};
use common::names;
use common::quantity::Bytes;
use controller_core::backend::Failed;
use controller_core::client::{ApiError, GuardedClient, Remedy};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::images::names::{base_of, disk_of};
use crate::libvirt_host::LibvirtHost;

/// Records that something of a Machine may be left on a host; the poller removes it once the host can be read.
pub(crate) async fn record(
    api: &GuardedClient,
    host: &LibvirtHost,
    machine: &Machine,
    volumes: Option<Vec<TombstoneVolume>>,
    now: Now,
) -> Result<(), Failed> {
    let mut status = host.status.clone();
    let mut recorded = status.tombstones.iter();
    if recorded.any(|known| known.uid == machine.uid()) {
        return Ok(());
    }
    let count = volumes.iter().flatten().count();
    check_room(&status.tombstones, machine.namespace(), count).map_err(|why| waits(host, &why))?;
    status.tombstones.push(Tombstone {
        machine: format!("{}/{}", machine.namespace(), machine.name()),
        uid: machine.uid().to_owned(),
        since: now.text(),
        volumes,
    });
    Ok(put_status(api, host, &status).await?)
}

/// Fails with the reason if the host lists too many tombstones, or volumes in them, for another one of this namespace with
/// this many volumes.
fn check_room(tombstones: &[Tombstone], namespace: &str, volumes: usize) -> Result<(), String> {
    let of_namespace = tombstones
        .iter()
        .filter(|it| namespace_of(&it.machine) == namespace);
    let (own, own_volumes) = count(of_namespace);
    let (all, all_volumes) = count(tombstones.iter());
    let listed = if own >= TOMBSTONES_OF_NAMESPACE_MAX
        || own_volumes + volumes > TOMBSTONE_VOLUMES_OF_NAMESPACE_MAX
    {
        format!(
            "lists {own} tombstones of namespace '{namespace}' with {own_volumes} volumes, and at most {TOMBSTONES_OF_NAMESPACE_MAX} with {TOMBSTONE_VOLUMES_OF_NAMESPACE_MAX} of one namespace"
        )
    } else if all >= TOMBSTONES_MAX || all_volumes + volumes > TOMBSTONE_VOLUMES_MAX {
        format!(
            "lists {all} tombstones with {all_volumes} volumes, and at most {TOMBSTONES_MAX} with {TOMBSTONE_VOLUMES_MAX}"
        )
    } else {
        return Ok(());
    };
    Err(format!(
        "{listed}: make the host reachable and its pools readable, so that what is left of those Machines is deleted"
    ))
}

/// The number of tombstones, and of the volumes in them.
fn count<'t>(tombstones: impl Iterator<Item = &'t Tombstone>) -> (usize, usize) {
    tombstones.fold((0, 0), |(tombstones, volumes), it| {
        (
            tombstones + 1,
            volumes + it.volumes.iter().flatten().count(),
        )
    })
}

/// The volumes with their sizes, if the Machine is on this host: what other hosts may have of it is not known. A volume that
/// the status does not report may be there with the size that its disk requests.
pub(crate) fn with_sizes(
    machine: &Machine,
    host: &str,
    mut volumes: Vec<TombstoneVolume>,
) -> Vec<TombstoneVolume> {
    if machine.status.host.as_deref() == Some(host) {
        for volume in &mut volumes {
            let name = &volume.volume;
            volume.size = reported_size(machine, name).or_else(|| requested_size(machine, name));
        }
    }
    volumes
}

/// The capacity of a volume in the status of its Machine.
fn reported_size(machine: &Machine, volume: &str) -> Option<Bytes> {
    let mut volumes = machine.status.volumes.iter();
    let reported = volumes.find(|it| base_of(&it.claim_name) == volume)?;
    reported.capacity.as_deref()?.parse().ok()
}

/// The size of the disk that a volume is of, in the block of its Machine.
fn requested_size(machine: &Machine, volume: &str) -> Option<Bytes> {
    let disk = disk_of(volume)?;
    let mut disks = machine.desired()?.disks.iter();
    Some(disks.find(|it| it.name == disk)?.size)
}

/// The failure of an action of a deletion for which the status of the host has no room.
fn waits(host: &LibvirtHost, why: &str) -> Failed {
    let message = format!(
        "LibvirtHost '{}' {why}; the deletion of this Machine waits until then",
        host.name()
    );
    Failed::new(Remedy::UserAction, message)
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
    if let Some(added) = all.get(listed.len()) {
        let namespace = namespace_of(&added.machine);
        let count = |all: &[KeptVolume]| {
            let of_namespace = all
                .iter()
                .filter(|kept| namespace_of(&kept.machine) == namespace);
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

/// The namespace of a Machine that is recorded with it.
fn namespace_of(machine: &str) -> &str {
    let parts = machine.split_once('/');
    parts.map_or(machine, |(namespace, _)| namespace)
}

/// Records volumes that are kept of a Machine that is about to be deleted.
pub(crate) async fn record_kept(
    api: &GuardedClient,
    host: &LibvirtHost,
    volumes: &[KeptVolume],
) -> Result<(), Failed> {
    let added = add_kept(&host.status.kept_volumes, volumes).map_err(|why| waits(host, &why))?;
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

    fn tombstone(machine: String) -> Tombstone {
        Tombstone {
            uid: format!("uid-of-{machine}"),
            machine,
            since: "2026-11-28T09:00:00Z".into(),
            volumes: None,
        }
    }

    #[test]
    fn no_namespace_takes_the_place_of_all_others_among_the_tombstones_of_a_host() {
        let machines = 0..TOMBSTONES_OF_NAMESPACE_MAX;
        let mut listed: Vec<_> = machines.map(|it| tombstone(format!("blue/{it}"))).collect();
        let why = check_room(&listed, "blue", 1).unwrap_err();
        assert!(why.contains("256 tombstones of namespace 'blue'"), "{why}");
        assert_eq!(check_room(&listed, "red", 1), Ok(()));
        assert_eq!(check_room(&listed[1..], "blue", 1), Ok(()));

        let others = TOMBSTONES_OF_NAMESPACE_MAX..TOMBSTONES_MAX;
        listed.extend(others.map(|it| tombstone(format!("of-{it}/web"))));
        let why = check_room(&listed, "red", 1).unwrap_err();
        assert!(why.contains("lists 1024 tombstones"), "{why}");
        assert_eq!(check_room(&listed[1..], "red", 1), Ok(()));
    }

    /// A few Machines with many disks would fill the object as well.
    #[test]
    fn the_volumes_of_tombstones_have_a_limit_for_each_namespace_too() {
        let volumes = |count| {
            let volume = |it| TombstoneVolume {
                pool: "vms".into(),
                volume: format!("v{it}"),
                size: None,
            };
            Some((0..count).map(volume).collect())
        };
        let mut blue = tombstone("blue/web".into());
        blue.volumes = volumes(TOMBSTONE_VOLUMES_OF_NAMESPACE_MAX - 2);
        let mut listed = vec![blue];
        assert_eq!(check_room(&listed, "blue", 2), Ok(()));
        let why = check_room(&listed, "blue", 3).unwrap_err();
        assert!(
            why.contains("of namespace 'blue' with 510 volumes"),
            "{why}"
        );
        let mut others = tombstone("others/web".into());
        others.volumes = volumes(TOMBSTONE_VOLUMES_MAX - 512);
        listed.push(others);
        assert_eq!(check_room(&listed, "red", 2), Ok(()));
        let why = check_room(&listed, "red", 3).unwrap_err();
        assert!(
            why.contains("lists 2 tombstones with 2046 volumes"),
            "{why}"
        );
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
