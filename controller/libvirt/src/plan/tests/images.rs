//! Images that are none: what other Machines write, and what names files of the host.

use common::api::machine::Image;
use common::api::normalized::NormalizedCdrom;

use super::{reported, times, volumes};
use crate::access::fake::FakeVolume;
use crate::environment::{Environment, POOL, block};

const DISK: &str = "other-web-1a2b3c4d.root.qcow2";

fn named(volume: &str) -> Image {
    Image {
        volume: Some(volume.into()),
        ..Image::default()
    }
}

fn put(env: &Environment, name: &str, content: &[u8]) {
    let volume = FakeVolume {
        capacity: 1 << 20,
        raw: true,
        content: content.to_vec(),
        ..FakeVolume::default()
    };
    let mut state = env.host.state();
    let pool = state.pools.get_mut(POOL).unwrap();
    pool.volumes.insert(name.into(), volume);
}

fn message<'a>(env: &'a Environment, kind: &str) -> &'a str {
    let mut conditions = env.machine().status.conditions.iter();
    &conditions.find(|it| it.kind == kind).unwrap().message
}

/// A block that a release before this rule accepted.
#[test]
fn the_disk_of_another_machine_is_neither_copied_nor_put_into_a_drive() {
    for class in ["local", "copied"] {
        let mut block = block();
        block.disks[0].storage_class = class.into();
        block.disks[0].image = Some(named(DISK));
        let mut env = Environment::new(block);
        put(&env, DISK, b"secret");
        env.settle();
        assert_eq!(reported(&env, "StorageReady"), ("False", "ImageNotAllowed"));
        let why = message(&env, "StorageReady");
        assert!(why.contains("qemu-img convert -f raw"), "{why}");
        assert_eq!(volumes(&env), [DISK]);
    }
    let mut block = block();
    block.cdroms.push(NormalizedCdrom {
        hotpluggable: false,
        image_pin: None,
        boot_order: None,
        name: "iso".into(),
        image: Some(named(DISK)),
        size: None,
        storage_class: None,
    });
    let mut env = Environment::new(block);
    put(&env, DISK, b"secret");
    env.settle();
    assert_eq!(reported(&env, "StorageReady"), ("False", "ImageNotAllowed"));
    assert_eq!(times(&env, "define"), 0);
}

#[test]
fn nothing_is_made_of_an_image_whose_header_is_refused() {
    for class in ["local", "copied"] {
        let mut block = block();
        block.disks[0].storage_class = class.into();
        block.disks[0].image = Some(named("golden.img"));
        let mut env = Environment::new(block);
        put(&env, "golden.img", b"KDMV");
        env.pass();
        env.pass();
        assert_eq!(volumes(&env), ["golden.img"], "{class}");
        // It is replaced by one that is an image.
        put(&env, "golden.img", b"MBR");
        env.settle();
        assert_eq!(reported(&env, "Ready"), ("True", "Running"), "{class}");
    }
}
