//! Volumes of deleted Machines that no list in the status of their host names.
//!
//! `status.keptVolumes` has room for so many volumes only. What is left out takes room in its pool all the same, and no
//! status would show it. So it is counted in the pools
//! (`volumes_that_no_list_names_are_counted_and_named_until_they_are_gone` in `status/tests.rs`).

use std::collections::BTreeSet;

use common::api::left_volumes::KeptVolume;
use common::api::libvirt_host::LibvirtHostStatus;
use common::bounds::KEPT_VOLUMES_MAX;
use common::render::libvirt::{disk_owner, short_id};
use controller_core::machine_index::MachineIndex;
use controller_core::objects::Meta as _;

use crate::access::{Volume, VolumeKey};
use crate::libvirt_host::LibvirtHost;

/// Most volumes that a message names.
const SHOWN_MAX: usize = 5;

/// The digits in the names of the volumes of all Machines.
pub(super) fn owners(machines: &MachineIndex) -> BTreeSet<String> {
    machines.uids().iter().map(|uid| short_id(uid)).collect()
}

/// The disks in a pool that none of these owners has. The owners were read before the volumes: a Machine that was there
/// then and is deleted meanwhile is an owner.
pub(super) fn unowned<'v>(
    pool: &'v str,
    volumes: &'v [Volume],
    owners: &BTreeSet<String>,
) -> impl Iterator<Item = VolumeKey> {
    let is_unowned = |volume: &&Volume| {
        let owner = disk_owner(&volume.name);
        owner.is_some_and(|owner| !owners.contains(owner))
    };
    let found = volumes.iter().filter(is_unowned);
    found.map(|volume| (pool.to_owned(), volume.name.clone()))
}

/// The status of a host with what other hosts list in pools that share the storage of a pool of this one. The pools of this
/// host show those volumes, too. A host whose spec cannot be read may share any of them.
pub(super) fn listed_by_all(
    host: &LibvirtHost,
    all: impl FnOnce() -> Vec<LibvirtHost>,
) -> LibvirtHostStatus {
    let mut listed = host.status.clone();
    let shared = |host: &LibvirtHost| -> Vec<(String, String)> {
        let offers = host.spec.storage.clone().unwrap_or_default().into_iter();
        let shared = offers.filter_map(|offer| Some((offer.shared_as?, offer.pool)));
        shared.collect()
    };
    let here = shared(host);
    if here.is_empty() {
        return listed;
    }
    let all = all();
    let others = all.iter().filter(|other| other.name() != host.name());
    for other in others {
        let there = shared(other);
        let is_unknown = other.unreadable.is_some();
        let has_storage =
            |name: &String| is_unknown || there.iter().any(|(known, _)| known == name);
        let has = |name: &String, pool: &String| {
            let mut there = there.iter();
            is_unknown || there.any(|(known, it)| (known, it) == (name, pool))
        };
        for kept in &other.status.kept_volumes {
            let pools = here.iter().filter(|(name, _)| has(name, &kept.pool));
            listed
                .kept_volumes
                .extend(pools.map(|(_, pool)| KeptVolume {
                    pool: pool.clone(),
                    ..kept.clone()
                }));
        }
        if here.iter().any(|(name, _)| has_storage(name)) {
            listed.tombstones.extend(other.status.tombstones.clone());
        }
    }
    listed
}

/// The volumes of these that neither a list of the status names nor a Machine has, which may have been created after the
/// owners were read. `machines`: all Machines.
pub(super) fn unlisted<'v>(
    unowned: &'v BTreeSet<VolumeKey>,
    status: &LibvirtHostStatus,
    machines: &MachineIndex,
) -> Vec<&'v VolumeKey> {
    let kept = status.kept_volumes.iter();
    let kept: BTreeSet<_> = kept.map(|kept| (&*kept.pool, &*kept.volume)).collect();
    let unlisted = unowned
        .iter()
        .filter(|(pool, volume)| !kept.contains(&(&**pool, &**volume)));
    let mut unlisted: Vec<_> = unlisted.collect();
    if !unlisted.is_empty() {
        let tombstones = status.tombstones.iter();
        let deleted = tombstones.map(|tombstone| short_id(&tombstone.uid));
        let owners: BTreeSet<_> = deleted.chain(owners(machines)).collect();
        unlisted.retain(|(_, volume)| disk_owner(volume).is_none_or(|it| !owners.contains(it)));
    }
    unlisted
}

/// What to do about volumes that no list names.
pub(super) fn advice(unlisted: &[&VolumeKey]) -> String {
    let shown = unlisted.iter().take(SHOWN_MAX);
    let shown: Vec<_> = shown
        .map(|(pool, volume)| format!("{pool}/{volume}"))
        .collect();
    let more = match unlisted.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "status.keptVolumes, which lists {KEPT_VOLUMES_MAX} volumes at most, does not name all that Machines left: {}{more}. Delete those that nobody needs on the host (virsh vol-delete --pool <pool> <volume>)",
        shown.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use common::api::left_volumes::Tombstone;
    use controller_core::fixtures;

    use super::*;
    use crate::environment::host_object;

    fn disk(uid: &str, disk: &str) -> String {
        format!("default-web-{}.{disk}.qcow2", short_id(uid))
    }

    fn key(uid: &str) -> VolumeKey {
        ("vms".to_owned(), disk(uid, "root"))
    }

    fn volume(name: String) -> Volume {
        Volume {
            name,
            key: String::new(),
            path: String::new(),
            capacity: 1,
            allocation: 0,
            backing: None,
            format: "qcow2".into(),
            is_misread: false,
        }
    }

    #[test]
    fn a_volume_that_another_host_lists_in_the_same_storage_is_listed() {
        let host = |name: &str, pool: &str, shared_as: &str| {
            let mut host = host_object(name);
            for offer in host.spec.storage.iter_mut().flatten() {
                (offer.pool, offer.shared_as) = (pool.into(), Some(shared_as.into()));
            }
            host
        };
        let (mut beta, mut gamma) = (host("beta", "nfs", "a"), host("gamma", "nfs", "b"));
        let kept = |volume: &str| KeptVolume {
            machine: "default/web".into(),
            uid: "gone".into(),
            disk: "root".into(),
            pool: "nfs".into(),
            volume: volume.into(),
            size: None,
        };
        beta.status.kept_volumes = vec![kept("of-beta")];
        gamma.status.kept_volumes = vec![kept("of-gamma")];
        let alpha = host("alpha", "vms", "a");
        let listed = listed_by_all(&alpha, || vec![alpha.clone(), beta, gamma]);
        let keys = listed
            .kept_volumes
            .iter()
            .map(|it| (&*it.pool, &*it.volume));
        let keys: BTreeSet<_> = keys.collect();
        assert_eq!(keys, [("vms", "of-beta")].into());
    }

    #[test]
    fn what_a_host_lists_whose_spec_cannot_be_read_is_listed_in_each_shared_pool() {
        let mut alpha = host_object("alpha");
        alpha.spec.storage.as_mut().unwrap()[0].shared_as = Some("a".into());
        let pool = alpha.spec.storage.as_ref().unwrap()[0].pool.clone();
        let mut beta = host_object("beta");
        beta.spec.storage = None;
        beta.unreadable = Some("later".into());
        beta.status.kept_volumes = vec![KeptVolume {
            machine: "default/web".into(),
            uid: "gone".into(),
            disk: "root".into(),
            pool: "elsewhere".into(),
            volume: disk("gone", "root"),
            size: None,
        }];
        let unowned = [(pool, disk("gone", "root"))].into();
        let all = || vec![alpha.clone(), beta];
        let machines = fixtures::machine_index(&[]);
        assert!(unlisted(&unowned, &listed_by_all(&alpha, all), &machines).is_empty());
        let alone = listed_by_all(&alpha, || vec![alpha.clone()]);
        assert_eq!(unlisted(&unowned, &alone, &machines).len(), 1);
    }

    #[test]
    fn only_disks_of_machines_that_do_not_exist_are_unowned() {
        let names = [
            disk("living", "root"),
            disk("gone", "root"),
            disk("gone", "copy") + ".attempt-66f0c0de",
            disk("gone", "copy") + ".attempt-66f0c0de.complete",
            format!(
                "default-web-{}.seed-0123456789ab-66f0c0de.iso",
                short_id("gone")
            ),
            "vitistack-image-0123456789abcdef01234567".into(),
            "debian-12.qcow2".into(),
        ];
        let volumes = names.clone().map(volume);
        let owners = BTreeSet::from([short_id("living")]);
        let found: Vec<_> = unowned("vms", &volumes, &owners).collect();
        let expected = [&names[1], &names[2]].map(|name| ("vms".to_owned(), name.clone()));
        assert_eq!(found, expected);
    }

    #[test]
    fn what_a_list_names_and_what_a_new_machine_has_is_not_left_out() {
        let unowned = ["kept", "left out", "new", "force-deleted"].map(key).into();
        let status = LibvirtHostStatus {
            kept_volumes: vec![KeptVolume {
                machine: "default/web".into(),
                uid: "kept".into(),
                disk: "root".into(),
                pool: "vms".into(),
                volume: disk("kept", "root"),
                size: None,
            }],
            tombstones: vec![Tombstone {
                machine: "default/web".into(),
                uid: "force-deleted".into(),
                since: String::new(),
                volumes: None,
            }],
            ..LibvirtHostStatus::default()
        };
        let found = unlisted(&unowned, &status, &fixtures::machine_index(&["new"]));
        assert_eq!(found, [&key("left out")]);
        let text = advice(&found);
        assert!(text.starts_with("status.keptVolumes"), "{text}");
        assert!(
            text.contains(&format!("vms/{}. Delete", disk("left out", "root"))),
            "{text}"
        );
        let many: BTreeSet<_> = (0..7).map(|number| key(&format!("{number}"))).collect();
        let many = advice(&many.iter().collect::<Vec<_>>());
        assert!(many.contains(" and 2 more. "), "{many}");
    }
}
