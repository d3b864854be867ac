//! A guest writes the header of a qcow2 image into its raw disk: nothing changes for anybody.

use super::*;
use crate::access::fake::{FakePool, FakeVolume, HostState};
use common::api::choice::VolumeFormat;
use common::api::libvirt_host::HostStorage;
use common::quantity::Bytes;

/// A running Machine whose disk `scratch` is raw and begins with a header: of a disk of 4 EiB on top of its root disk.
fn forged() -> Environment {
    let mut block = block();
    block.disks.push(disk("scratch", ReclaimPolicy::Delete));
    block.disks[1].storage_class = "raw".into();
    let mut env = Environment::new(block);
    let offers = env.object.spec.storage.as_mut().unwrap();
    let raw = HostStorage {
        storage_class: "raw".into(),
        format: Some(VolumeFormat::Raw),
        ..offers[0].clone()
    };
    offers.push(raw);
    env.settle();
    let root = HostState::path(POOL, &volume(&env, ".root."));
    let mut header = vec![0; 4096];
    header[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    header[8..16].copy_from_slice(&512_u64.to_be_bytes());
    header[16..20].copy_from_slice(&u32::try_from(root.len()).unwrap().to_be_bytes());
    header[24..32].copy_from_slice(&(1_u64 << 62).to_be_bytes());
    header[512..512 + root.len()].copy_from_slice(root.as_bytes());
    let name = volume(&env, ".scratch.raw");
    let mut host = env.host.state();
    let pool = host.pools.get_mut(POOL).unwrap();
    pool.volumes.get_mut(&name).unwrap().content = header;
    drop(host);
    env
}

fn volume(env: &Environment, part: &str) -> String {
    let mut all = volumes(env).into_iter();
    all.find(|name| name.contains(part)).unwrap()
}

fn message<'a>(env: &'a Environment, kind: &str) -> &'a str {
    let mut conditions = env.machine().status.conditions.iter();
    let found = conditions.find(|condition| condition.kind == kind);
    &found.unwrap().message
}

fn grow(env: &mut Environment, disk: usize, gib: u64) {
    env.edit(|block| block.disks[disk].size = Bytes::mib(gib * 1024));
    env.settle();
}

#[test]
fn a_header_in_a_raw_disk_changes_nothing_of_its_machine() {
    let mut env = forged();
    let (before, calls) = (env.machine().status.clone(), env.host.calls());
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.machine().status, before);
    assert_eq!(env.host.calls(), calls);
    assert_eq!(before.pending_changes, []);
    assert_eq!(before.volumes[1].capacity.as_deref(), Some("20Gi"));
}

#[test]
fn a_raw_disk_with_a_header_grows_while_its_guest_runs_and_takes_no_room_from_others() {
    let mut env = forged();
    grow(&mut env, 1, 30);
    assert_eq!(times(&env, "resize_disk"), 1);
    let capacity = env.machine().status.volumes[1].capacity.clone();
    assert_eq!(capacity.as_deref(), Some("30Gi"));
    grow(&mut env, 0, 30);
    assert_eq!(times(&env, "resize_disk"), 2, "{:?}", env.machine().status);
}

#[test]
fn a_raw_disk_with_a_header_whose_guest_is_off_grows_with_the_next_start() {
    let mut env = forged();
    env.power(PowerState::Stopped);
    env.settle();
    grow(&mut env, 1, 30);
    assert_eq!(
        times(&env, "resize_volume"),
        0,
        "qemu-img would open what it names"
    );
    assert_eq!(reported(&env, "StorageReady"), ("True", "VolumesResizing"));
    let text = message(&env, "StorageReady");
    assert!(
        text.contains("'scratch' grows from 20Gi to 30Gi when the guest runs"),
        "{text}"
    );
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(
        (times(&env, "resize_disk"), times(&env, "resize_volume")),
        (1, 0)
    );
    assert_eq!(reported(&env, "StorageReady"), ("True", "VolumesReady"));
}

#[test]
fn a_header_in_a_raw_disk_keeps_neither_that_disk_nor_the_volume_that_it_names() {
    let mut env = forged();
    // The root disk, which the header names, is deleted first.
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    assert_eq!(volumes(&env), [""; 0]);
}

#[test]
fn an_overlay_of_a_raw_disk_with_a_header_keeps_it() {
    let mut env = forged();
    let scratch = volume(&env, ".scratch.raw");
    let overlay = FakeVolume {
        backing: Some(HostState::path(POOL, &scratch)),
        ..FakeVolume::default()
    };
    let mut other = FakePool::of(1 << 30);
    other.volumes.insert("clone.raw".into(), overlay);
    env.host.state().pools.insert("other".into(), other);
    env.delete();
    for _ in 0..10 {
        env.pass();
    }
    assert!(env.machine.is_some(), "deletion waits");
    assert!(volumes(&env).contains(&scratch));
}
