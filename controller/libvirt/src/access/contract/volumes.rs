//! Contracts about volumes, and about the domains that use them.

use controller_core::preconditions::Effect;

use std::collections::BTreeSet;

use super::*;
use crate::access::{DomainDisks, State};
use crate::environment;
use crate::volume_effects::{Removal, remove_volume};

pub(super) fn volumes(on: &mut TestHost) {
    let (name, other) = (on.name("disk"), on.name("other"));
    let (host, pool) = (&mut on.host, &on.pool);
    let made = host.create_volume(pool, &volume(&name, 1 << 20)).unwrap();
    assert_eq!(
        (&made.name, made.capacity, &made.backing),
        (&name, 1 << 20, &None)
    );
    assert!(made.path.ends_with(&name), "{made:?}");
    assert!(!made.key.is_empty(), "{made:?}");
    assert_eq!(
        kind(host.create_volume(pool, &volume(&name, 1 << 20))),
        "Refused"
    );
    host.create_volume(pool, &volume(&other, 1 << 20)).unwrap();
    assert_eq!(host.volume(pool, &name).unwrap().unwrap().path, made.path);
    let all = host.volumes(pool).unwrap();
    assert_eq!(
        all.iter()
            .filter(|it| it.name == name || it.name == other)
            .count(),
        2
    );

    if on.driver != Driver::Test {
        host.resize_volume(pool, &name, 2 << 20).unwrap();
        assert_eq!(host.volume(pool, &name).unwrap().unwrap().capacity, 2 << 20);
        assert_eq!(kind(host.resize_volume(pool, &name, 1 << 20)), "Refused");
    }
    host.delete_volume(pool, &name).unwrap();
    assert_eq!(host.volume(pool, &name).unwrap(), None);
    host.delete_volume(pool, &name).unwrap();
    assert!(host.volume(pool, &other).unwrap().is_some());
}

pub(super) fn overlays(on: &mut TestHost) {
    let (base, _) = on.disk("base", "vda");
    let (overlay, copy) = (on.name("overlay"), on.name("copy"));
    let (host, pool) = (&mut on.host, &on.pool);
    host.upload(pool, &base, &mut &b"image"[..], 5).unwrap();
    let path = host.volume(pool, &base).unwrap().unwrap().path;
    let text = format!(
        "<volume><name>{overlay}</name><capacity>4194304</capacity><target><format type='qcow2'/></target>
           <backingStore><path>{path}</path><format type='raw'/></backingStore></volume>"
    );
    let made = host.create_volume(pool, &text).unwrap();
    assert_eq!((made.capacity, made.backing), (4 << 20, Some(path.clone())));
    let listed = host.volumes(pool).unwrap();
    let listed = listed.iter().find(|it| it.name == overlay).unwrap();
    assert_eq!(listed.backing.as_ref(), Some(&path));

    let made = host
        .copy_volume(pool, &volume(&copy, 1 << 20), (pool, &base))
        .unwrap();
    assert_eq!((made.capacity, made.backing), (1 << 20, None));
    assert_eq!(host.head(pool, &copy, 5).unwrap(), b"image");
    // A copy replaces no volume: the names that are used only once depend on it.
    let again = host.copy_volume(pool, &volume(&copy, 1 << 20), (pool, &base));
    assert_eq!(kind(again), "Refused");
    // libvirt deletes a base that an overlay uses.
    host.delete_volume(pool, &base).unwrap();
}

/// Our deletion keeps a base whose overlay was made without libvirt, in the pool of the base or in another one.
pub(super) fn overlay_from_outside(on: &mut TestHost) {
    let (base, _) = on.disk("base", "vda");
    let (host, pool) = (&mut on.host, &on.pool);
    let found = host.volume(pool, &base).unwrap().unwrap();
    let create = |overlay: &std::path::Path| {
        let made = std::process::Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
            .arg(&found.path)
            .arg(overlay)
            .status();
        assert!(made.unwrap().success());
    };
    create(format!("{}-overlay", found.path).as_ref());
    let removal = Removal {
        pool: pool.clone(),
        name: base.clone(),
        key: Some(found.key.clone()),
        is_owned: true,
        is_deletable: true,
    };
    let guard = environment::guard_with(&[pool]);
    let kept = remove_volume(&mut **host, &guard, Effect::DeleteVolume, &removal).unwrap_err();
    assert!(kept.to_string().contains("is an overlay of it"), "{kept}");
    assert!(host.volume(pool, &base).unwrap().is_some());
    host.delete_volume(pool, &format!("{base}-overlay"))
        .unwrap();

    #[cfg(feature = "native")]
    {
        let system = virt::connect::Connect::open(Some("qemu:///system")).unwrap();
        let name = format!("{base}-pool");
        let other = real::Pool::new(&system, &name);
        create(&other.folder.path().join("overlay"));
        let guard = environment::guard_with(&[pool, &name]);
        let remove = |host: &mut Box<dyn Connection>| {
            remove_volume(&mut **host, &guard, Effect::DeleteVolume, &removal).unwrap_err()
        };
        let kept = remove(host).to_string();
        assert!(kept.contains("/overlay is an overlay of it"), "{kept}");
        // It was never defined: stopped, it is in no list.
        drop(other);
        let kept = remove(host).to_string();
        assert!(kept.contains("does not exist"), "{kept}");
        assert!(host.volume(pool, &base).unwrap().is_some());
    }
    remove_volume(&mut **host, &guard, Effect::DeleteVolume, &removal).unwrap();
    assert_eq!(host.volume(pool, &base).unwrap(), None);
}

pub(super) fn missing_parts(on: &mut TestHost) {
    let (pool, network) = (on.name("no-pool"), on.name("no-network"));
    assert_eq!(kind(on.host.volumes(&pool)), "Absent");
    assert_eq!(kind(on.host.volume(&pool, "disk")), "Absent");
    assert_eq!(kind(on.host.refresh(&pool)), "Absent");
    let leases = kind(on.host.leases(&network));
    assert!(["Absent", "Unsupported"].contains(&leases), "{leases}");
}

pub(super) fn content(on: &mut TestHost) {
    let (name, _) = on.disk("disk", "vda");
    let (host, pool) = (&mut on.host, &on.pool);
    let length = 1 << 20;
    let bytes: Vec<u8> = (0..length).map(|it: u32| (it % 251) as u8).collect();
    host.upload(pool, &name, &mut bytes.as_slice(), length.into())
        .unwrap();
    assert!(host.head(pool, &name, length.into()).unwrap() == bytes);
    // A volume may be shorter or longer than what is asked for.
    assert!(host.head(pool, &name, u64::from(length) + 1).unwrap() == bytes);
    assert!(host.head(pool, &name, 1000).unwrap() == bytes[..1000]);
    let longer = bytes.repeat(2);
    host.upload(pool, &name, &mut longer.as_slice(), 5).unwrap();

    let short = host
        .upload(pool, &name, &mut &bytes[..1000], length.into())
        .unwrap_err();
    assert_eq!(
        short.to_string(),
        "the source ended after 1000 of 1048576 bytes"
    );
    // The volume does not show it: this is why each image has a marker volume.
    let volume = host.volume(pool, &name).unwrap().unwrap();
    assert_eq!(
        (volume.capacity, volume.allocation),
        (length.into(), length.into())
    );
    // The connection can still be used.
    host.upload(pool, &name, &mut bytes.as_slice(), length.into())
        .unwrap();
    assert!(host.head(pool, &name, length.into()).unwrap() == bytes);
}

pub(super) fn references(on: &mut TestHost) {
    let (volume, disk) = on.disk("disk", "vda");
    let path = on.host.volume(&on.pool, &volume).unwrap().unwrap().path;
    let with = on.defined("with", &disk);
    let without = on.defined("without", "");
    let of = |on: &mut TestHost, uuid| {
        let all = on.host.disks_of_all().unwrap();
        all.into_iter().find(|it| it.uuid == uuid).unwrap()
    };
    let of_disk = DomainDisks {
        uuid: with,
        paths: [path.clone()].into(),
        written: [path].into(),
        missing_pools: BTreeSet::new(),
    };
    assert_eq!(of(on, with), of_disk);
    let none = DomainDisks {
        uuid: without,
        ..DomainDisks::default()
    };
    assert_eq!(of(on, without), none);
    // The definition is read, even if the volume that it names is gone.
    on.host.delete_volume(&on.pool, &volume).unwrap();
    assert_eq!(of(on, with), of_disk);
    // A pool that was undefined hides which file the volume is.
    let pool = on.name("no-pool");
    let disk = disk.replace(&format!("pool='{}'", on.pool), &format!("pool='{pool}'"));
    let uuid = on.defined("lost", &disk);
    let lost = DomainDisks {
        uuid,
        missing_pools: [pool].into(),
        ..DomainDisks::default()
    };
    assert_eq!(of(on, uuid), lost);
}

pub(super) fn deleted_under(on: &mut TestHost) {
    let (volume, disk) = on.disk("disk", "vda");
    let uuid = on.defined("web", &disk);
    on.host.start(uuid, false).unwrap();
    on.host.delete_volume(&on.pool, &volume).unwrap();
    assert_eq!(on.host.volume(&on.pool, &volume).unwrap(), None);
    assert_eq!(on.state(uuid).unwrap().state, State::Running);
}
