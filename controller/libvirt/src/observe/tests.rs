//! What the observation of a Machine reserves for it on its host, and where the Machine is.

mod agent;

use std::time::Duration;

use common::api::status::LastMigration;
use common::quantity::Bytes;
use common::render::libvirt::DomainMetadata;
use controller_core::conditions::Fault;
use controller_core::foreign_stop::OnForeignStop;
use controller_core::machine::CachedMachine;
use controller_core::triggers::Triggers;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::Event;

use super::*;
use crate::access::FirmwareState;
use crate::access::State;
use crate::access::fake::FakeLibvirt;
use crate::api_server::api_server;
use crate::environment::{Environment, block, host_object};
use crate::observed::ShownDomain;
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
    let observer = observer(store, &env);
    let event = Event::Apply(CachedMachine::from(env.machine().clone()));
    observer.caches.apply(&event, &mut writer, "cluster");
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
        on_foreign_stop: OnForeignStop::default(),
        probing: Probing::new(Triggers::default()),
    };
    let object = env.object.clone();
    observer.objects.apply(Event::Apply(object), |_| ());
    observer
}

/// An observer of a host that was polled, and the writer of its cache of Machines.
fn connected(env: &Environment) -> (Observer, Writer<CachedMachine>) {
    let (store, writer) = store();
    let observer = observer(store, env);
    let snapshot = polled(env);
    observer
        .hosts
        .connect("alpha", env.host.clone(), Ok(snapshot));
    (observer, writer)
}

/// What is observed of the host of the Machine.
async fn view(observer: &Observer, env: &Environment) -> Box<HostView> {
    let observation = observer.observe(env.machine(), Growth::Permitted);
    match observation.await.unwrap().observed.binding {
        Binding::Bound(view) => view,
        other => panic!("{other:?}"),
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
    let (observer, _writer) = connected(&env);
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

/// What a poll of the host shows now, with the domain in this state; `None`: without it.
fn polled_with(env: &Environment, state: Option<State>) -> Snapshot {
    let mut snapshot = polled(env);
    let shown = snapshot.domains.iter().cloned();
    let shown = shown.filter_map(|mut it| {
        it.domain.state = state?;
        Some(it)
    });
    snapshot.domains = shown.collect();
    snapshot
}

/// A Machine whose guest is off on alpha, where its definition was restored, with the host beta in its status.
fn moved_and_restored() -> (Environment, Observer, Writer<CachedMachine>) {
    let mut env = Environment::new(block());
    env.settle();
    env.connection()
        .unwrap()
        .destroy(domain_uuid(env.machine().uid()))
        .unwrap();
    env.machine_mut().status.host = Some("beta".into());
    let (observer, writer) = connected(&env);
    let beta = host_object("beta");
    observer.objects.apply(Event::Apply(beta), |_| ());
    (env, observer, writer)
}

async fn observed(observer: &Observer, env: &Environment) -> Observed {
    let observation = observer.observe(env.machine(), Growth::Permitted);
    observation.await.unwrap().observed
}

/// The host of the status was not polled yet, or does not answer: the guest may run there.
#[tokio::test]
async fn a_definition_that_is_off_is_not_started_while_the_host_of_the_status_is_not_known() {
    let (mut env, observer, _writer) = moved_and_restored();
    for deleted in [false, true] {
        let polls = [
            None,
            Some(Err("no route".to_owned())),
            // It showed no domain before it was away.
            Some(Ok(polled_with(&env, None))),
        ];
        for polled in polls {
            if let Some(polled) = polled {
                let host = observer.hosts.connect("beta", env.host.clone(), polled);
                host.set_snapshot(Err("no route".to_owned()));
            }
            let found = observed(&observer, &env).await.binding;
            assert!(
                matches!(&found, Binding::Unreachable { host, why } if host == "beta" && why.contains("is off and is not started")),
                "{found:?}"
            );
        }
        assert!(!deleted || env.machine().is_deleting());
        env.delete();
    }
}

#[tokio::test]
async fn a_machine_is_on_the_host_that_shows_its_guest_and_other_definitions_are_reported() {
    let (env, observer, _writer) = moved_and_restored();
    let connect = |state: Option<State>| {
        let polled = polled_with(&env, state);
        observer.hosts.connect("beta", env.host.clone(), Ok(polled));
    };
    // Beta answers and does not have it: the status was lost or forged.
    connect(None);
    let found = observed(&observer, &env).await;
    assert!(matches!(&found.binding, Binding::Bound(view) if view.host == "alpha"));
    assert_eq!(found.other_domains, []);

    for state in [State::Running, State::ShutOff] {
        connect(Some(state));
        let found = observed(&observer, &env).await;
        assert!(matches!(&found.binding, Binding::Bound(view) if view.host == "beta"));
        let alpha = ShownDomain {
            host: "alpha".into(),
            is_active: false,
            answers: true,
        };
        assert_eq!(found.other_domains, [alpha]);
    }
}

#[tokio::test]
async fn a_guest_that_runs_is_left_alone_while_the_host_of_the_status_is_not_known() {
    let (env, observer, _writer) = moved_and_restored();
    env.connection()
        .unwrap()
        .start(domain_uuid(env.machine().uid()), false)
        .unwrap();
    let found = observed(&observer, &env).await.binding;
    assert!(matches!(&found, Binding::Bound(view) if view.host == "alpha"));
}

/// Its definition was removed from alpha, and the polls of alpha do not show that yet.
#[tokio::test]
async fn a_machine_that_is_moved_is_on_its_new_host_once_no_host_shows_its_definition() {
    for grows in [false, true] {
        let (mut env, observer, _writer) = moved_and_restored();
        env.machine_mut().status.last_migration = Some(LastMigration {
            request: "now".into(),
            node: Some("beta".into()),
            from: Some("alpha".into()),
            ..LastMigration::default()
        });
        if grows {
            let larger = Bytes::mib(8 * 1024);
            env.edit(|block| (block.memory.size, block.memory.max_size) = (larger, larger));
        }
        let (hosts, machine) = (&observer.hosts, env.machine());
        let beta = FakeLibvirt::new();
        hosts.connect("beta", beta, Ok(Snapshot::default()));
        let reserved = requested_resources(machine.desired().unwrap());
        hosts.reserve(machine.uid(), "beta", reserved);
        // Of a guest that grows the domain is still there, and the pass before `Leave` looks for room.
        if !grows {
            env.connection()
                .unwrap()
                .undefine(domain_uuid(machine.uid()), FirmwareState::Keep)
                .unwrap();
        }
        let view = observed(&observer, &env).await.binding;
        assert!(matches!(&view, Binding::Bound(view) if view.host == "alpha"));
        hosts.connect("alpha", env.host.clone(), Ok(polled_with(&env, None)));
        let host = hosts.host_of_machine(machine);
        assert_eq!(host.as_deref(), Some("beta"), "grows: {grows}");
    }
}

/// While volumes are looked for on its new host, which may take minutes, other Machines are placed.
#[tokio::test]
async fn the_observation_of_a_machine_that_is_moved_keeps_no_other_from_being_placed() {
    let mut env = Environment::new(block());
    env.settle();
    let (observer, _writer) = connected(&env);
    let request = names::ANNOTATION_MIGRATE_REQUESTED;
    controller_core::fixtures::annotate(env.machine_mut(), request, "now");
    assert!(env.machine().new_migration_request().is_some());
    let observation = observer.observe(env.machine(), Growth::Permitted);
    let observation = observation.await.unwrap();
    assert_eq!(observation.observed.targets.len(), 1);
    let candidates = observer
        .hosts
        .candidates(&observer.caches, &observer.objects);
    let placed = tokio::time::timeout(Duration::from_secs(20), candidates).await;
    assert!(placed.is_ok());
    drop(observation);
}

/// `virsh migrate --undefinesource`: the polls of the other host do not show the guest yet.
#[tokio::test]
async fn a_machine_whose_domain_is_on_another_host_by_now_is_not_defined_again() {
    let mut env = Environment::new(block());
    env.settle();
    let (observer, _writer) = connected(&env);
    let uuid = domain_uuid(env.machine().uid());
    let beta = FakeLibvirt::new();
    let domain = env.host.state().domains.remove(&uuid).unwrap();
    beta.state().domains.insert(uuid, domain);
    let hosts = &observer.hosts;
    hosts.connect("alpha", env.host.clone(), Ok(polled(&env)));
    let connected = hosts.connect("beta", beta.clone(), Ok(Snapshot::default()));
    for deleted in [false, true] {
        let refused = observer.observe(env.machine(), Growth::Permitted).await;
        let message = refused.unwrap_err().message;
        assert!(message.contains("is on LibvirtHost 'beta'"), "{message}");
        assert!(!deleted || env.machine().is_deleting());
        env.delete();
    }
    // A host that does not answer prevents nothing.
    beta.set_reachable(false);
    connected.set_snapshot(Err("no route".to_owned()));
    observed(&observer, &env).await;
}

#[tokio::test]
async fn a_machine_on_a_host_whose_spec_cannot_be_read_says_why_nothing_is_known() {
    let mut env = Environment::new(block());
    env.settle();
    env.object.unreadable = Some("upgrade machine-controller".into());
    let (observer, _writer) = connected(&env);
    let observation = observer.observe(env.machine(), Growth::Permitted).await;
    let Binding::Unreachable { host, why } = observation.unwrap().observed.binding else {
        unreachable!("it was observed")
    };
    assert_eq!(
        (host.as_str(), why.as_str()),
        ("alpha", "upgrade machine-controller")
    );
}
