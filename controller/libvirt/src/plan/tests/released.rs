//! Volumes of disks that left the spec.

use super::*;
use crate::access::fake::FakeVolume;
use common::api::choice::VolumeFormat;
use common::api::left_volumes::KeptVolume;
use common::api::libvirt_host::HostStorage;
use common::api::normalized::Normalized;
use common::render::libvirt::{VolumeFormat as ImageFormat, volume_name};

/// A Machine with the disk `data` of this policy beside its root disk.
fn with_data(policy: ReclaimPolicy) -> Environment {
    let mut block = block();
    block.disks.push(disk("data", policy));
    block.disks[1].storage_class = "local".into();
    let mut env = Environment::new(block);
    env.settle();
    env
}

fn has(env: &Environment, disk: &str) -> bool {
    let part = format!(".{disk}.");
    volumes(env).iter().any(|name| name.contains(&part))
}

/// The disks that the domain's metadata records, with their policies.
fn records(env: &Environment) -> Vec<(String, ReclaimPolicy)> {
    let mut host = env.connection().unwrap();
    let found = host.domain(domain_uuid(UID)).unwrap().unwrap();
    let metadata = DomainMetadata::parse(&found.state.metadata.unwrap()).unwrap();
    let all = metadata.volumes.into_iter();
    all.map(|it| (it.disk, it.reclaim_policy)).collect()
}

#[test]
fn a_disk_that_leaves_the_spec_is_kept_whatever_its_policy_and_survives_the_machine() {
    for policy in [ReclaimPolicy::Delete, ReclaimPolicy::Retain] {
        for power in [PowerState::Running, PowerState::Stopped] {
            let mut env = with_data(policy);
            env.power(power);
            env.settle();
            // Renamed, by hand or by another template.
            env.edit(|block| block.disks[1].name = "data2".into());
            env.settle();
            assert!(has(&env, "data") && has(&env, "data2"), "{policy} {power}");
            let kept = ("data".to_owned(), ReclaimPolicy::Retain);
            assert!(records(&env).contains(&kept), "{policy} {power}");
            env.delete();
            env.settle();
            assert!(env.machine.is_none());
            let is_kept = policy == ReclaimPolicy::Retain;
            assert!(has(&env, "data"), "{policy} {power}");
            assert_eq!(has(&env, "data2"), is_kept, "{policy} {power}");
        }
    }
}

#[test]
fn a_disk_that_was_removed_or_set_to_retain_right_before_the_deletion_of_the_machine_is_kept() {
    type Edit = fn(&mut Normalized);
    let edits: [(&str, Edit); 2] = [
        ("removed", |block| block.disks.truncate(1)),
        ("set to retain", |block| {
            block.disks[1].reclaim_policy = ReclaimPolicy::Retain;
        }),
    ];
    for (case, edit) in edits {
        let mut env = with_data(ReclaimPolicy::Delete);
        env.edit(edit);
        // No pass in between: the domain's metadata still says Delete.
        env.delete();
        env.settle();
        assert!(env.machine.is_none(), "{case}");
        assert!(has(&env, "data") && !has(&env, "root"), "{case}");
    }
}

#[test]
fn a_kept_volume_is_not_used_in_another_format() {
    let mut env = with_data(ReclaimPolicy::Delete);
    let before = volumes(&env);
    let mut data = env.machine().desired().unwrap().disks[1].clone();
    env.edit(|block| block.disks.truncate(1));
    env.settle();
    let offers = env.object.spec.storage.as_mut().unwrap();
    let raw = HostStorage {
        storage_class: "raw".into(),
        format: Some(VolumeFormat::Raw),
        ..offers[0].clone()
    };
    offers.push(raw);
    data.storage_class = "raw".into();
    env.edit(|block| block.disks.push(data.clone()));
    env.settle();
    assert_eq!(volumes(&env), before);
    assert_eq!(reported(&env, "StorageReady"), ("False", "VolumeFailed"));
    // Another name is another disk.
    env.edit(|block| block.disks[1].name = "data2".into());
    env.settle();
    assert!(has(&env, "data") && has(&env, "data2"));
}

#[test]
fn a_kept_volume_is_used_again_by_a_disk_of_its_name() {
    let mut env = with_data(ReclaimPolicy::Delete);
    let before = volumes(&env);
    let data = env.machine().desired().unwrap().disks[1].clone();
    env.edit(|block| block.disks.truncate(1));
    env.settle();
    env.edit(|block| block.disks.push(data));
    env.settle();
    assert_eq!(volumes(&env), before);
    env.delete();
    env.settle();
    assert!(!has(&env, "data"), "its policy holds again");
}

#[test]
fn the_annotation_deletes_the_kept_volumes_that_it_names_and_is_removed() {
    let mut env = with_data(ReclaimPolicy::Retain);
    env.edit(|block| block.disks.truncate(1));
    env.settle();
    assert!(has(&env, "data"));
    let key = names::ANNOTATION_RELEASE_VOLUME;
    annotate(env.machine_mut(), key, "other, data");
    let done = env.settle();
    assert!(!has(&env, "data"), "{done:#?}");
    let removed = "removed the annotation machine.vitistack.io/release-volume".to_owned();
    assert!(done.contains(&removed), "{done:#?}");
    assert_eq!(records(&env), [("root".to_owned(), ReclaimPolicy::Delete)]);
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

#[test]
fn an_annotation_that_names_a_disk_of_the_spec_is_removed_before_it_can_act() {
    let mut env = with_data(ReclaimPolicy::Delete);
    annotate(
        env.machine_mut(),
        names::ANNOTATION_RELEASE_VOLUME,
        "data,root",
    );
    env.settle();
    env.edit(|block| block.disks.truncate(1));
    env.settle();
    assert!(has(&env, "data") && has(&env, "root"));
}

#[test]
fn a_kept_volume_with_an_overlay_is_not_deleted() {
    use crate::access::fake::{FakePool, FakeVolume, HostState};
    let mut env = with_data(ReclaimPolicy::Retain);
    env.edit(|block| block.disks.truncate(1));
    env.settle();
    let all = volumes(&env).into_iter();
    let data = all.filter(|it| it.contains(".data.")).collect::<Vec<_>>();
    let overlay = FakeVolume {
        backing: Some(HostState::path(POOL, &data[0])),
        ..FakeVolume::default()
    };
    let mut other = FakePool::of(1 << 30);
    other.volumes.insert("clone.qcow2".into(), overlay);
    env.host.state().pools.insert("other".into(), other);
    annotate(env.machine_mut(), names::ANNOTATION_RELEASE_VOLUME, "data");
    for _ in 0..3 {
        env.pass();
    }
    assert!(has(&env, "data"));
}

#[test]
fn a_volume_kept_of_a_former_machine_is_deleted_by_the_annotation_on_the_next_one_of_the_name() {
    let mut env = with_data(ReclaimPolicy::Retain);
    let block = env.machine().desired().unwrap().clone();
    env.delete();
    let done = env.settle();
    let recorded = "recorded 1 kept volumes on LibvirtHost alpha".to_owned();
    assert!(done.contains(&recorded), "{done:#?}");
    let kept = env.object.status.kept_volumes.clone();
    let fields: Vec<_> = kept
        .iter()
        .map(|it| (&*it.machine, &*it.uid, &*it.disk))
        .collect();
    assert_eq!(fields, [("default/web", UID, "data")]);

    let mut next = controller_core::fixtures::machine(block);
    next.metadata.uid = Some("uid-of-the-next".into());
    env.machine = Some(next);
    env.settle();
    let is_former = |name: &String| *name == kept[0].volume;
    assert!(volumes(&env).iter().any(is_former));
    annotate(env.machine_mut(), names::ANNOTATION_RELEASE_VOLUME, "data");
    env.settle();
    assert!(!volumes(&env).iter().any(is_former));
    assert!(has(&env, "data"), "the disk of the spec stays");
    assert_eq!(env.object.status.kept_volumes, []);
    let annotations = env.machine().metadata.annotations.clone();
    assert_eq!(annotations.unwrap_or_default().len(), 0);
}

/// Disks and capacities of the kept volumes in the status.
fn reported_as_kept(env: &Environment) -> Vec<(String, String)> {
    let kept = env.machine().status.kept_volumes.iter();
    kept.map(|it| (it.name.clone(), it.capacity.clone().unwrap_or_default()))
        .collect()
}

#[test]
fn the_status_lists_kept_volumes_until_they_are_released_and_while_their_pool_cannot_be_read() {
    let mut env = with_data(ReclaimPolicy::Delete);
    assert_eq!(reported_as_kept(&env), []);
    env.edit(|block| block.disks.truncate(1));
    env.settle();
    let data = [("data".to_owned(), "20Gi".to_owned())];
    assert_eq!(reported_as_kept(&env), data);
    let pool = env.host.state().pools.remove(POOL).unwrap();
    for _ in 0..3 {
        env.pass();
    }
    assert_eq!(reported_as_kept(&env), data);
    env.host.state().pools.insert(POOL.into(), pool);
    annotate(env.machine_mut(), names::ANNOTATION_RELEASE_VOLUME, "data");
    env.settle();
    assert_eq!(reported_as_kept(&env), []);
}

#[test]
fn the_record_of_a_kept_volume_has_its_size() {
    let mut env = with_data(ReclaimPolicy::Retain);
    env.delete();
    env.settle();
    let kept = &env.object.status.kept_volumes;
    let sizes: Vec<_> = kept.iter().map(|it| it.size.unwrap().to_string()).collect();
    assert_eq!(sizes, ["20Gi"]);
}

/// A Machine whose annotation releases the kept disk of a former Machine of the name.
pub(super) fn releasing() -> Environment {
    const FORMER: &str = "uid-of-former";
    let mut env = Environment::new(block());
    let volume = volume_name("default", "web", FORMER, "data", ImageFormat::Qcow2);
    let mut host = env.host.state();
    let volumes = &mut host.pools.get_mut(POOL).unwrap().volumes;
    volumes.insert(volume.clone(), FakeVolume::default());
    drop(host);
    env.object.status.kept_volumes.push(KeptVolume {
        machine: "default/web".into(),
        uid: FORMER.into(),
        disk: "data".into(),
        pool: POOL.into(),
        volume,
        size: None,
    });
    let annotation = names::ANNOTATION_RELEASE_VOLUME;
    annotate(env.machine_mut(), annotation, "data");
    env
}

/// Somebody has come to need the volume since the plan was made.
#[test]
fn a_kept_volume_of_a_former_machine_is_not_deleted_while_something_needs_it() {
    type Need = fn(&mut Environment, &KeptVolume);
    let needs: [(&str, Need); 3] = [
        ("a foreign domain", |env, kept| {
            define_foreign_domain(env, &kept.volume);
        }),
        ("an overlay", |env, kept| {
            laws::add_overlay(env, &kept.volume);
        }),
        ("its domain on another host", |env, kept| {
            laws::define_on_another_host(env, &kept.uid);
        }),
    ];
    for (what, need) in needs {
        let mut env = releasing();
        let kept = env.object.status.kept_volumes[0].clone();
        need(&mut env, &kept);
        for _ in 0..5 {
            env.pass();
        }
        assert!(volumes(&env).contains(&kept.volume), "{what}");
        assert_eq!(env.object.status.kept_volumes, [kept], "{what}");
    }
    let mut env = releasing();
    env.settle();
    assert_eq!(env.object.status.kept_volumes, []);
    assert!(!has(&env, "data"));
}
