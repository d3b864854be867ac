//! The contracts.

use common::render::libvirt::{METADATA_KEY, METADATA_URI};

use super::*;
use crate::libvirt::access::types::shutoff;
use crate::libvirt::access::{Shutdown, State};

pub(super) const CONTRACTS: &[Contract] = &[
    Contract {
        name: "facts",
        binds: ALL,
        test: facts,
    },
    Contract {
        name: "pools, networks, interfaces",
        binds: ALL,
        test: surroundings,
    },
    Contract {
        name: "a definition's life",
        binds: ALL,
        test: definition,
    },
    Contract {
        name: "names and uuids belong together",
        binds: ALL,
        test: clashes,
    },
    Contract {
        name: "nonsense is refused",
        binds: ALL,
        test: nonsense,
    },
    Contract {
        name: "what is not there is absent",
        binds: ALL,
        test: absent,
    },
    Contract {
        name: "our mark",
        binds: ALL,
        test: mark,
    },
    Contract {
        name: "on and off",
        binds: ALL,
        test: power,
    },
    Contract {
        name: "only what is off is undefined",
        binds: ALL,
        test: undefine_running,
    },
    Contract {
        name: "a volume's life",
        binds: ALL,
        test: volumes,
    },
    Contract {
        name: "overlays and copies",
        binds: RUNNING,
        test: overlays,
    },
    Contract {
        name: "content",
        binds: RUNNING,
        test: content,
    },
    Contract {
        name: "who refers to what",
        binds: ALL,
        test: references,
    },
    Contract {
        name: "a running guest's volume is deleted all the same",
        binds: RUNNING,
        test: deleted_under,
    },
    Contract {
        name: "devices of one that is off",
        binds: RUNNING,
        test: devices,
    },
    Contract {
        name: "devices, processors and memory of a guest",
        binds: RUNNING,
        test: live,
    },
    Contract {
        name: "what is missing shows at the start",
        binds: RUNNING,
        test: start_fails,
    },
    Contract {
        name: "a guest that does not listen",
        binds: RUNNING,
        test: deaf,
    },
    Contract {
        name: "NVRAM goes with the definition, and not before",
        binds: &[Driver::Qemu],
        test: nvram,
    },
];

fn facts(place: &mut Place) {
    let facts = place.host.facts().unwrap();
    let parts: Vec<u32> = facts
        .libvirt_version
        .split('.')
        .map(|it| it.parse().unwrap())
        .collect();
    assert!(parts.len() == 3 && parts[0] >= 6, "{facts:?}");
    assert!(facts.cpus > 0 && facts.memory > 1 << 30, "{facts:?}");
    if place.driver != Driver::Test {
        let has = |wanted: &dyn Fn(&str) -> bool| facts.machine_types.iter().any(|it| wanted(it));
        assert!(
            has(&|it| it == "q35") && has(&|it| it.starts_with("pc-q35-")),
            "{facts:?}"
        );
    }
}

fn surroundings(place: &mut Place) {
    let pools = place.host.pools().unwrap();
    let pool = pools.iter().find(|it| it.name == place.pool).unwrap();
    assert!(
        pool.active && pool.capacity >= pool.available && pool.available > 0,
        "{pool:?}"
    );
    place.host.refresh(&place.pool).unwrap();
    if place.driver != Driver::Qemu {
        let networks = place.host.networks().unwrap();
        let network = networks.iter().find(|it| it.name == "default").unwrap();
        assert!(network.active && network.bridge.is_some(), "{network:?}");
    }
    for network in place.host.networks().unwrap() {
        let leases = place.host.leases(&network.name);
        // The test driver gives no addresses.
        assert_eq!(
            kind(leases),
            if place.driver == Driver::Test {
                "Unsupported"
            } else {
                "done"
            }
        );
    }
    place.host.bridges().unwrap();
}

fn definition(place: &mut Place) {
    let (uuid, text) = place.domain("web", "");
    assert_eq!(place.host.domain(uuid).unwrap(), None);
    place.host.define(&text).unwrap();
    let state = place.state(uuid).unwrap();
    assert_eq!(state.name, place.name("web"));
    assert_eq!((state.state, state.persistent), (State::ShutOff, true));
    assert_eq!((state.memory, state.mark.as_deref()), (128 << 20, None));
    let detail = place.host.domain(uuid).unwrap().unwrap();
    assert_eq!((&detail.state, detail.live.as_deref()), (&state, None));
    assert!(
        detail.inactive.contains(&uuid.to_string()),
        "{}",
        detail.inactive
    );

    place
        .host
        .define(&text.replace("131072", "262144"))
        .unwrap();
    assert_eq!(place.state(uuid).unwrap().memory, 256 << 20);
    place.host.undefine(uuid).unwrap();
    assert_eq!(
        (place.state(uuid), place.host.domain(uuid).unwrap()),
        (None, None)
    );
}

fn clashes(place: &mut Place) {
    let uuid = place.defined("web", "");
    let (_, text) = place.domain("web", "");
    let other = text.replace(&uuid.to_string(), "5bd6f4f1-8ee4-4b1c-9a1f-2f1d0a2f5a11");
    assert_eq!(kind(place.host.define(&other)), "Refused");
    let renamed = text.replace(&place.name("web"), &place.name("mail"));
    assert_eq!(kind(place.host.define(&renamed)), "Refused");
    assert_eq!(place.state(uuid).unwrap().name, place.name("web"));
}

fn nonsense(place: &mut Place) {
    for text in [
        "",
        "<domain",
        "<domain type='qemu'><memory>1</memory></domain>",
    ] {
        assert_eq!(kind(place.host.define(text)), "Refused", "{text}");
    }
    let uuid = place.defined("web", "");
    assert_eq!(kind(place.host.set_vcpus(uuid, 3)), "Refused");
    assert_eq!(kind(place.host.set_memory(uuid, 1 << 30)), "Refused");
    assert_eq!(
        kind(place.host.create_volume(&place.pool, "<volume/>")),
        "Refused"
    );
}

fn absent(place: &mut Place) {
    let nobody = Uuid::new_v5(&Uuid::NAMESPACE_OID, place.name("nobody").as_bytes());
    let nothing = place.name("nothing");
    let (host, pool) = (&mut place.host, &place.pool);
    assert_eq!(host.domain(nobody).unwrap(), None);
    assert_eq!(kind(host.undefine(nobody)), "Absent");
    assert_eq!(kind(host.set_mark(nobody, None)), "Absent");
    assert_eq!(kind(host.start(nobody, false)), "Absent");
    assert_eq!(kind(host.shutdown(nobody, Shutdown::Acpi)), "Absent");
    assert_eq!(kind(host.destroy(nobody)), "Absent");
    assert_eq!(kind(host.attach(nobody, "<disk/>")), "Absent");
    assert_eq!(kind(host.set_vcpus(nobody, 1)), "Absent");
    assert_eq!(kind(host.resize_disk(nobody, "vda", 1)), "Absent");
    assert_eq!(kind(host.agent_interfaces(nobody)), "Absent");
    assert_eq!(host.volume(pool, &nothing).unwrap(), None);
    assert_eq!(kind(host.volume(&nothing, &nothing)), "Absent");
    assert_eq!(kind(host.volumes(&nothing)), "Absent");
    assert_eq!(kind(host.refresh(&nothing)), "Absent");
    assert_eq!(
        kind(host.create_volume(&nothing, &volume(&nothing, 1))),
        "Absent"
    );
    assert_eq!(
        kind(host.copy_volume(pool, &volume(&nothing, 1), (pool, &nothing))),
        "Absent"
    );
    assert_eq!(kind(host.resize_volume(pool, &nothing, 1)), "Absent");
    assert_eq!(
        kind(host.upload(pool, &nothing, &mut &b"x"[..], 1)),
        "Absent"
    );
    assert_eq!(kind(host.download(pool, &nothing, 1)), "Absent");
    assert_eq!(kind(host.leases(&nothing)), "Absent");
    host.delete_volume(pool, &nothing).unwrap();
    // There may be a volume in a pool that libvirt does not know at the moment.
    assert_eq!(kind(host.delete_volume(&nothing, &nothing)), "Absent");
}

fn mark(place: &mut Place) {
    let uuid = place.defined("web", "");
    assert_eq!(place.state(uuid).unwrap().mark, None);
    for (running, texts) in [(false, ["one", "two"]), (true, ["three", "four"])] {
        if running {
            place.host.start(uuid, false).unwrap();
        }
        for text in texts {
            let element = format!("<machine>{text}</machine>");
            place.host.set_mark(uuid, Some(&element)).unwrap();
            let mark = place.state(uuid).unwrap().mark.unwrap();
            assert!(mark.contains(&format!(">{text}</machine>")), "{mark}");
        }
    }
    // A definition's mark is the one that counts, even before the guest is started with it.
    let (_, text) = place.domain("web", "");
    let metadata = format!(
        "<metadata><{METADATA_KEY}:machine xmlns:{METADATA_KEY}='{METADATA_URI}'>five</{METADATA_KEY}:machine></metadata>"
    );
    place
        .host
        .define(&text.replace("<memory", &(metadata + "<memory")))
        .unwrap();
    let mark = place.state(uuid).unwrap().mark.unwrap();
    assert!(mark.contains("five"), "{mark}");
    place
        .host
        .set_mark(uuid, Some("<machine>four</machine>"))
        .unwrap();
    // What is written of a guest that runs outlives it.
    place.host.destroy(uuid).unwrap();
    let mark = place.state(uuid).unwrap().mark.unwrap();
    assert!(mark.contains("four"), "{mark}");
    place.host.set_mark(uuid, None).unwrap();
    assert_eq!(place.state(uuid).unwrap().mark, None);
}

fn power(place: &mut Place) {
    let uuid = place.defined("web", "");
    place.host.start(uuid, false).unwrap();
    assert_eq!(place.state(uuid).unwrap().state, State::Running);
    let detail = place.host.domain(uuid).unwrap().unwrap();
    assert!(detail.live.unwrap().contains(&uuid.to_string()));
    assert_eq!(kind(place.host.start(uuid, false)), "Refused");
    place.host.destroy(uuid).unwrap();
    let state = place.state(uuid).unwrap();
    assert_eq!(
        (state.state, state.reason),
        (State::ShutOff, shutoff::DESTROYED)
    );
    assert_eq!(kind(place.host.destroy(uuid)), "Refused");
    assert_eq!(kind(place.host.shutdown(uuid, Shutdown::Acpi)), "Refused");
}

fn undefine_running(place: &mut Place) {
    let uuid = place.defined("web", "");
    place.host.start(uuid, false).unwrap();
    let refused = place.host.undefine(uuid).unwrap_err();
    let expected = format!("domain '{}' is not shut off", place.name("web"));
    assert_eq!(refused, AccessError::Refused(expected));
    assert!(place.state(uuid).unwrap().persistent);
    place.host.destroy(uuid).unwrap();
    place.host.undefine(uuid).unwrap();
    assert_eq!(place.state(uuid), None);
}

fn volumes(place: &mut Place) {
    let (name, other) = (place.name("disk"), place.name("other"));
    let (host, pool) = (&mut place.host, &place.pool);
    let made = host.create_volume(pool, &volume(&name, 1 << 20)).unwrap();
    assert_eq!(
        (&made.name, made.capacity, &made.backing),
        (&name, 1 << 20, &None)
    );
    assert!(made.path.ends_with(&name), "{made:?}");
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

    if place.driver != Driver::Test {
        host.resize_volume(pool, &name, 2 << 20).unwrap();
        assert_eq!(host.volume(pool, &name).unwrap().unwrap().capacity, 2 << 20);
        assert_eq!(kind(host.resize_volume(pool, &name, 1 << 20)), "Refused");
    }
    host.delete_volume(pool, &name).unwrap();
    assert_eq!(host.volume(pool, &name).unwrap(), None);
    host.delete_volume(pool, &name).unwrap();
    assert!(host.volume(pool, &other).unwrap().is_some());
}

fn overlays(place: &mut Place) {
    let (base, _) = place.disk("base", "vda");
    let (overlay, copy) = (place.name("overlay"), place.name("copy"));
    let (host, pool) = (&mut place.host, &place.pool);
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
    assert!(
        host.download(pool, &copy, 2 << 20)
            .unwrap()
            .starts_with(b"image")
    );
    // Nobody asks whether something is on top of it.
    host.delete_volume(pool, &base).unwrap();
}

fn content(place: &mut Place) {
    let (name, _) = place.disk("disk", "vda");
    let (host, pool) = (&mut place.host, &place.pool);
    let length = 1 << 20;
    let bytes: Vec<u8> = (0..length).map(|it: u32| (it % 251) as u8).collect();
    host.upload(pool, &name, &mut bytes.as_slice(), length.into())
        .unwrap();
    assert!(host.download(pool, &name, length.into()).unwrap() == bytes);
    let over = host
        .download(pool, &name, u64::from(length) - 1)
        .unwrap_err();
    assert_eq!(over.to_string(), "the volume has more than 1048575 bytes");
    let longer = bytes.repeat(2);
    host.upload(pool, &name, &mut longer.as_slice(), 5).unwrap();

    let short = host
        .upload(pool, &name, &mut &bytes[..1000], length.into())
        .unwrap_err();
    assert_eq!(
        short.to_string(),
        "the source ended after 1000 of 1048576 bytes"
    );
    // It cannot be seen of the volume: this is why images have a marker beside them.
    let volume = host.volume(pool, &name).unwrap().unwrap();
    assert_eq!(
        (volume.capacity, volume.allocation),
        (length.into(), length.into())
    );
    // The connection is as good as before.
    host.upload(pool, &name, &mut bytes.as_slice(), length.into())
        .unwrap();
    assert!(host.download(pool, &name, length.into()).unwrap() == bytes);
}

fn references(place: &mut Place) {
    let (volume, disk) = place.disk("disk", "vda");
    let path = place
        .host
        .volume(&place.pool, &volume)
        .unwrap()
        .unwrap()
        .path;
    let with = place.defined("with", &disk);
    let without = place.defined("without", "");
    let of = |place: &mut Place, uuid| {
        let all = place.host.disks_of_all().unwrap();
        all.into_iter().find(|it| it.0 == uuid).unwrap().1
    };
    assert_eq!(of(place, with), [path.as_str()]);
    assert_eq!(of(place, without), Vec::<String>::new());
    // The definition counts, even if what it names is gone.
    place.host.delete_volume(&place.pool, &volume).unwrap();
    assert_eq!(of(place, with), [path.as_str()]);
}

fn deleted_under(place: &mut Place) {
    let (volume, disk) = place.disk("disk", "vda");
    let uuid = place.defined("web", &disk);
    place.host.start(uuid, false).unwrap();
    place.host.delete_volume(&place.pool, &volume).unwrap();
    assert_eq!(place.host.volume(&place.pool, &volume).unwrap(), None);
    assert_eq!(place.state(uuid).unwrap().state, State::Running);
}

fn devices(place: &mut Place) {
    let (first, disk) = place.disk("first", "vda");
    let uuid = place.defined("web", "");
    let inactive = |place: &mut Place| place.host.domain(uuid).unwrap().unwrap().inactive;
    place.host.attach(uuid, &disk).unwrap();
    assert!(inactive(place).contains(&first));
    assert_eq!(kind(place.host.attach(uuid, &disk)), "Refused");
    place.host.set_vcpus(uuid, 2).unwrap();
    assert_eq!(place.state(uuid).unwrap().vcpus, 2);
    place.host.set_memory(uuid, 98_304).unwrap();
    assert!(inactive(place).contains(">98304</currentMemory>"));
    place.host.detach(uuid, &disk).unwrap();
    assert!(!inactive(place).contains(&first));
    assert_ne!(kind(place.host.detach(uuid, &disk)), "done");
}

fn live(place: &mut Place) {
    let (root, disk) = place.disk("root", "vda");
    let (data, more) = place.disk("data", "vdb");
    let uuid = place.defined("web", &disk);
    place.host.start(uuid, false).unwrap();
    place.host.attach(uuid, &more).unwrap();
    place.host.set_vcpus(uuid, 2).unwrap();
    place.host.set_memory(uuid, 98_304).unwrap();
    let detail = place.host.domain(uuid).unwrap().unwrap();
    assert!(!detail.inactive.contains(&data));
    assert!(detail.live.unwrap().contains(&data));
    assert_eq!(detail.state.vcpus, 2);
    place.host.resize_disk(uuid, "vda", 3 << 20).unwrap();
    assert_eq!(
        place
            .host
            .volume(&place.pool, &root)
            .unwrap()
            .unwrap()
            .capacity,
        3 << 20
    );
    assert_eq!(
        kind(place.host.resize_disk(uuid, "vdz", 3 << 20)),
        "Refused"
    );
    place.host.destroy(uuid).unwrap();
    assert_eq!(
        kind(place.host.resize_disk(uuid, "vda", 4 << 20)),
        "Refused"
    );
}

fn start_fails(place: &mut Place) {
    let nic = |source: &str, model: &str| {
        format!(
            "<interface type='{source}'><source {source}='nowhere-0'/><model type='{model}'/></interface>"
        )
    };
    let gone = disk(&place.pool, &place.name("gone"), "vda");
    for (what, device) in [
        ("bridge", nic("bridge", "virtio")),
        ("network", nic("network", "virtio")),
        ("volume", gone),
    ] {
        let uuid = place.defined(what, &device);
        let error = place.host.start(uuid, false).unwrap_err();
        assert_eq!(error.kind(), "Refused", "{what}: {error}");
        assert_eq!(place.state(uuid).unwrap().state, State::ShutOff, "{what}");
    }
}

fn deaf(place: &mut Place) {
    let channel =
        "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>";
    let uuid = place.defined("web", channel);
    place.host.start(uuid, false).unwrap();
    assert_eq!(kind(place.host.shutdown(uuid, Shutdown::Agent)), "Agent");
    assert_eq!(kind(place.host.agent_interfaces(uuid)), "Agent");
    place.host.shutdown(uuid, Shutdown::Acpi).unwrap();
    assert_eq!(place.state(uuid).unwrap().state, State::Running);
}

fn nvram(place: &mut Place) {
    let (uuid, text) = place.domain("web", "");
    place
        .host
        .define(&text.replace("<os>", "<os firmware='efi'>"))
        .unwrap();
    place.host.start(uuid, false).unwrap();
    let live = place.host.domain(uuid).unwrap().unwrap().live.unwrap();
    let path = live
        .split_once("</nvram>")
        .unwrap()
        .0
        .rsplit_once('>')
        .unwrap()
        .1;
    let path = std::path::Path::new(path);
    assert!(path.exists());
    assert_eq!(kind(place.host.undefine(uuid)), "Refused");
    assert!(path.exists());
    place.host.destroy(uuid).unwrap();
    place.host.start(uuid, true).unwrap();
    place.host.destroy(uuid).unwrap();
    place.host.undefine(uuid).unwrap();
    assert!(!path.exists());
}
