//! What the observation of a Machine promises it on its host.

use common::api::status::{GuestOs, LastMigration};
use common::quantity::Bytes;
use common::render::libvirt::DomainMetadata;
use controller_core::conditions::Fault;
use controller_core::machine::CachedMachine;
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::Event;

use super::*;
use crate::access::FirmwareState;
use crate::access::fake::{Agent, FakeLibvirt};
use crate::api_server::api_server;
use crate::environment::{Environment, block};
use crate::snapshot::DomainSummary;

/// What a poll of the host shows now.
fn polled(env: &Environment) -> Snapshot {
    let mut host = env.connection().unwrap();
    let domains = host.domains().unwrap().into_iter();
    let domains = domains.map(|domain| DomainSummary {
        metadata: domain.metadata.as_deref().and_then(DomainMetadata::parse),
        domain,
    });
    Snapshot {
        info: host.info().unwrap(),
        domains: domains.collect(),
        ..Snapshot::default()
    }
}

#[tokio::test]
async fn a_growth_that_is_held_takes_no_room_from_others() {
    let mut env = Environment::new(block());
    env.settle();
    let larger = Bytes::mib(8 * 1024);
    env.edit(|block| (block.memory.size, block.memory.max_size) = (larger, larger));
    let (store, mut writer) = store();
    let cached = CachedMachine::from(env.machine().clone());
    writer.apply_watcher_event(&Event::Apply(cached));
    let observer = observer(store, &env);
    let snapshot = polled(&env);
    let (hosts, fake) = (&observer.hosts, env.host.clone());
    hosts.connect("alpha", fake, Ok(snapshot.clone()));
    let allocated = || {
        let all = hosts.allocated(&env.object, &snapshot, &observer.caches, None);
        all.memory
    };

    let why = Fault::new("QuotaExceeded", "the quota is used up");
    for (growth, expected) in [
        (Growth::Held(&why), Bytes::mib(2 * 1024)),
        (Growth::Permitted, larger),
        (Growth::Held(&why), Bytes::mib(2 * 1024)),
    ] {
        let seen = observer.observe(env.machine(), growth).await.unwrap();
        assert_eq!(allocated(), expected, "{growth:?}");
        assert_eq!(seen.observed.hold.is_some(), growth != Growth::Permitted);
    }
}

/// An observer of these Machines that knows the LibvirtHost.
fn observer(machines: Store<CachedMachine>, env: &Environment) -> Observer {
    let observer = Observer {
        caches: Caches::new(machines),
        hosts: Hosts::new(Arc::new(FakeLibvirt::new())),
        objects: Cache::default(),
        api: api_server().0,
        cluster_uid: "cluster".into(),
    };
    let object = env.object.clone();
    observer.objects.apply(Event::Apply(object), |_| ());
    observer
}

/// Polls a host with a running guest, and returns what is observed of its Machine.
async fn observed_of(env: &Environment) -> Box<HostView> {
    let (store, _writer) = store();
    let observer = observer(store, env);
    let snapshot = polled(env);
    observer
        .hosts
        .connect("alpha", env.host.clone(), Ok(snapshot));
    let observation = observer.observe(env.machine(), Growth::Permitted);
    match observation.await.unwrap().observed.binding {
        Binding::Bound(view) => view,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_operating_system_is_what_the_agent_reports_and_an_agent_that_does_not_know_it_is_connected()
 {
    let mut env = Environment::new(block());
    env.settle();
    let fedora = GuestOs {
        name: Some("Fedora Linux".into()),
        version: Some("40 (Cloud Edition)".into()),
        kernel: Some("6.8.5".into()),
    };
    for domain in env.host.state().domains.values_mut() {
        let live = domain.live.as_mut().unwrap();
        let channel = "name='org.qemu.guest_agent.0'";
        assert!(live.contains(channel), "{live}");
        *live = live.replace(channel, &format!("{channel} state='connected'"));
    }
    for (agent, os, is_connected) in [
        (Agent::Answers, Some(fedora), true),
        (Agent::Answers, None, true),
        (Agent::Silent, None, false),
    ] {
        for domain in env.host.state().domains.values_mut() {
            (domain.guest.agent, domain.guest.os) = (agent, os.clone());
        }
        let view = observed_of(&env).await;
        assert_eq!(view.guest.as_ref().unwrap().has_agent, is_connected);
        assert_eq!(view.guest_os, os.unwrap_or_default());
    }
}

/// The LibvirtHost that a Machine leaves was deleted: whether the definition is gone there cannot be known.
#[tokio::test]
async fn a_machine_is_not_defined_elsewhere_while_the_host_that_it_leaves_is_not_registered() {
    let mut env = Environment::new(block());
    env.settle();
    let mut host = env.connection().unwrap();
    let uuid = domain_uuid(env.machine().uid());
    host.destroy(uuid).unwrap();
    host.undefine(uuid, FirmwareState::Remove).unwrap();
    let (store, _writer) = store();
    let observer = observer(store, &env);
    let snapshot = polled(&env);
    observer
        .hosts
        .connect("alpha", env.host.clone(), Ok(snapshot));
    let machine = env.machine_mut();
    machine.status.last_migration = Some(LastMigration {
        from: Some("gone".into()),
        node: Some("alpha".into()),
        ..LastMigration::default()
    });
    let observation = observer.observe(env.machine(), Growth::Permitted);
    let binding = observation.await.unwrap().observed.binding;
    assert!(
        matches!(&binding, Binding::Unregistered { host } if host == "gone"),
        "{binding:?}"
    );
}
