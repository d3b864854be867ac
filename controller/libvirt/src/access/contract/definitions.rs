//! Contracts about a host, and about what is defined there.

use common::render::libvirt::{METADATA_KEY, METADATA_URI};

use super::*;
use crate::access::{Shutdown, State};

pub(super) fn facts(place: &mut Place) {
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

pub(super) fn surroundings(place: &mut Place) {
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

pub(super) fn definition(place: &mut Place) {
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

pub(super) fn clashes(place: &mut Place) {
    let uuid = place.defined("web", "");
    let (_, text) = place.domain("web", "");
    let other = text.replace(&uuid.to_string(), "5bd6f4f1-8ee4-4b1c-9a1f-2f1d0a2f5a11");
    assert_eq!(kind(place.host.define(&other)), "Refused");
    let renamed = text.replace(&place.name("web"), &place.name("mail"));
    assert_eq!(kind(place.host.define(&renamed)), "Refused");
    assert_eq!(place.state(uuid).unwrap().name, place.name("web"));
}

pub(super) fn nonsense(place: &mut Place) {
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

pub(super) fn absent(place: &mut Place) {
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

pub(super) fn mark(place: &mut Place) {
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
