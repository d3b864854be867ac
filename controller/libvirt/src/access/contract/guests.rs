//! Contracts about running guests.

use super::*;
use crate::access::types::shutoff;
use crate::access::{FirmwareState, Shutdown, State};

pub(super) fn power(on: &mut TestHost) {
    let uuid = on.defined("web", "");
    on.host.start(uuid, false).unwrap();
    assert_eq!(on.state(uuid).unwrap().state, State::Running);
    let detail = on.host.domain(uuid).unwrap().unwrap();
    assert!(detail.live.unwrap().contains(&uuid.to_string()));
    assert_eq!(kind(on.host.start(uuid, false)), "Refused");
    on.host.reset(uuid).unwrap();
    assert_eq!(on.state(uuid).unwrap().state, State::Running);
    on.host.destroy(uuid).unwrap();
    let state = on.state(uuid).unwrap();
    assert_eq!(
        (state.state, state.reason),
        (State::ShutOff, shutoff::DESTROYED)
    );
    assert_eq!(kind(on.host.destroy(uuid)), "Refused");
    assert_eq!(kind(on.host.reset(uuid)), "Refused");
    assert_eq!(kind(on.host.shutdown(uuid, Shutdown::Acpi)), "Refused");
}

pub(super) fn undefine_running(on: &mut TestHost) {
    let uuid = on.defined("web", "");
    on.host.start(uuid, false).unwrap();
    let refused = on.host.undefine(uuid, FirmwareState::Remove).unwrap_err();
    let expected = format!("domain '{}' is not shut off", on.name("web"));
    assert_eq!(refused, AccessError::Refused(expected));
    assert!(on.state(uuid).unwrap().persistent);
    on.host.destroy(uuid).unwrap();
    on.host.undefine(uuid, FirmwareState::Remove).unwrap();
    assert_eq!(on.state(uuid), None);
}

pub(super) fn devices(on: &mut TestHost) {
    let (first, disk) = on.disk("first", "vda");
    let uuid = on.defined("web", "");
    let inactive = |on: &mut TestHost| on.host.domain(uuid).unwrap().unwrap().inactive;
    on.host.attach(uuid, &disk).unwrap();
    assert!(inactive(on).contains(&first));
    assert_eq!(kind(on.host.attach(uuid, &disk)), "Refused");
    on.host.set_vcpus(uuid, 2).unwrap();
    assert_eq!(on.state(uuid).unwrap().vcpus, 2);
    on.host.set_memory(uuid, 98_304).unwrap();
    assert!(inactive(on).contains(">98304</currentMemory>"));
    on.host.detach(uuid, &disk).unwrap();
    assert!(!inactive(on).contains(&first));
    assert_ne!(kind(on.host.detach(uuid, &disk)), "done");
}

pub(super) fn live(on: &mut TestHost) {
    let (root, disk) = on.disk("root", "vda");
    let (data, more) = on.disk("data", "vdb");
    let uuid = on.defined("web", &disk);
    on.host.start(uuid, false).unwrap();
    on.host.attach(uuid, &more).unwrap();
    on.host.set_vcpus(uuid, 2).unwrap();
    on.host.set_memory(uuid, 98_304).unwrap();
    let detail = on.host.domain(uuid).unwrap().unwrap();
    assert!(!detail.inactive.contains(&data));
    assert!(detail.live.unwrap().contains(&data));
    assert_eq!(detail.state.vcpus, 2);
    on.host.resize_disk(uuid, "vda", 3 << 20).unwrap();
    assert_eq!(
        on.host.volume(&on.pool, &root).unwrap().unwrap().capacity,
        3 << 20
    );
    assert_eq!(kind(on.host.resize_disk(uuid, "vdz", 3 << 20)), "Refused");
    on.host.destroy(uuid).unwrap();
    assert_eq!(kind(on.host.resize_disk(uuid, "vda", 4 << 20)), "Refused");
}

pub(super) fn start_fails(on: &mut TestHost) {
    let nic = |source: &str, model: &str| {
        format!(
            "<interface type='{source}'><source {source}='nowhere-0'/><model type='{model}'/></interface>"
        )
    };
    let gone = disk(&on.pool, &on.name("gone"), "vda");
    for (what, device) in [
        ("bridge", nic("bridge", "virtio")),
        ("network", nic("network", "virtio")),
        ("volume", gone),
    ] {
        let uuid = on.defined(what, &device);
        let error = on.host.start(uuid, false).unwrap_err();
        assert_eq!(error.kind(), "Refused", "{what}: {error}");
        assert_eq!(on.state(uuid).unwrap().state, State::ShutOff, "{what}");
    }
}

pub(super) fn no_agent(on: &mut TestHost) {
    let channel =
        "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>";
    let uuid = on.defined("web", channel);
    on.host.start(uuid, false).unwrap();
    assert_eq!(kind(on.host.shutdown(uuid, Shutdown::Agent)), "Agent");
    let known = &mut CardAddresses::default();
    assert_eq!(kind(on.host.agent_addresses(uuid, known)), "Agent");
    assert_eq!(kind(on.host.guest_os(uuid)), "Agent");
    assert_eq!(kind(on.host.ask_agent(uuid, 1)), "Agent");
    on.host.shutdown(uuid, Shutdown::Acpi).unwrap();
    assert_eq!(on.state(uuid).unwrap().state, State::Running);
}

pub(super) fn nvram(on: &mut TestHost) {
    let (uuid, text) = on.domain("web", "");
    on.host
        .define(&text.replace("<os>", "<os firmware='efi'>"))
        .unwrap();
    on.host.start(uuid, false).unwrap();
    let live = on.host.domain(uuid).unwrap().unwrap().live.unwrap();
    let path = live
        .split_once("</nvram>")
        .unwrap()
        .0
        .rsplit_once('>')
        .unwrap()
        .1;
    let path = std::path::Path::new(path);
    assert!(path.exists());
    assert_eq!(
        kind(on.host.undefine(uuid, FirmwareState::Remove)),
        "Refused"
    );
    assert!(path.exists());
    on.host.destroy(uuid).unwrap();
    on.host.start(uuid, true).unwrap();
    on.host.destroy(uuid).unwrap();
    on.host.undefine(uuid, FirmwareState::Remove).unwrap();
    assert!(!path.exists());

    // The file of a domain whose state is kept stays.
    on.host
        .define(&text.replace("<os>", "<os firmware='efi'>"))
        .unwrap();
    on.host.start(uuid, false).unwrap();
    on.host.destroy(uuid).unwrap();
    on.host.undefine(uuid, FirmwareState::Keep).unwrap();
    assert!(path.exists());
    std::fs::remove_file(path).unwrap();
}
