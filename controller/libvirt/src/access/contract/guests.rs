//! Contracts about guests that run.

use super::*;
use crate::access::types::shutoff;
use crate::access::{Shutdown, State};

pub(super) fn power(place: &mut Place) {
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

pub(super) fn undefine_running(place: &mut Place) {
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

pub(super) fn devices(place: &mut Place) {
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

pub(super) fn live(place: &mut Place) {
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

pub(super) fn start_fails(place: &mut Place) {
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

pub(super) fn deaf(place: &mut Place) {
    let channel =
        "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>";
    let uuid = place.defined("web", channel);
    place.host.start(uuid, false).unwrap();
    assert_eq!(kind(place.host.shutdown(uuid, Shutdown::Agent)), "Agent");
    assert_eq!(kind(place.host.agent_interfaces(uuid)), "Agent");
    place.host.shutdown(uuid, Shutdown::Acpi).unwrap();
    assert_eq!(place.state(uuid).unwrap().state, State::Running);
}

pub(super) fn nvram(place: &mut Place) {
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
