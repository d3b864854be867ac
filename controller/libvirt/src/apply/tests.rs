//! Copies of images to disks, which run in the background, and what becomes of the errors of a host.

use std::time::Duration;

use common::api::left_volumes::KeptVolume;
use common::api::machine::Image;
use common::render::libvirt::{PoolVolume, VolumeFormat, VolumeSpec, short_id, volume_xml};
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::fixtures;
use controller_core::triggers::Triggers;
use kube::runtime::reflector::store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use tokio::time::{sleep, timeout};

use super::*;
use crate::access::fake::{FakeLibvirt, FakeVolume, When};
use crate::access::{AccessError, State, VolumeKey};
use crate::api_server::api_server;
use crate::environment::{Environment, POOL, block, host_object, running_domain};
use crate::hosts::registry::Hosts;
use crate::images::fetches::ImageState;
use crate::images::names::{attempt, copy_name, marker};
use crate::plan::disks::copies;
use crate::snapshot::Snapshot;

const IMAGE: &str = "golden.img";
/// Limit of what takes milliseconds.
const SOON: Duration = Duration::from_secs(20);

struct Fixture {
    applier: Applier,
    host: Arc<ConnectedHost>,
    fake: FakeLibvirt,
    machines: Writer<CachedMachine>,
}

impl Fixture {
    fn new() -> Self {
        Self::on(FakeLibvirt::new())
    }

    fn on(fake: FakeLibvirt) -> Self {
        let image = FakeVolume {
            capacity: 1 << 20,
            raw: true,
            content: b"MBR".to_vec(),
            ..FakeVolume::default()
        };
        let mut state = fake.state();
        let pool = state.pools.get_mut(POOL).unwrap();
        pool.volumes.insert(IMAGE.into(), image);
        drop(state);
        let hosts = Hosts::new(Arc::new(fake.clone()));
        let host = hosts.connect("alpha", fake.clone(), Ok(Snapshot::default()));
        let objects = Cache::default();
        objects.apply(Event::Apply(host_object("alpha")), |_| ());
        let (store, machines) = store();
        let applier = Applier {
            hosts,
            objects,
            caches: Caches::new(store),
            api: api_server().0,
            triggers: Triggers::default(),
        };
        Self {
            applier,
            host,
            fake,
            machines,
        }
    }

    /// An event of the watch of Machines.
    fn apply_event(&mut self, event: &Event<CachedMachine>) {
        let caches = &self.applier.caches;
        caches.apply(event, &mut self.machines, "cluster");
    }

    /// A Machine with a disk that is copied from the image.
    fn machine(&mut self, namespace: &str, name: &str) -> Machine {
        let mut block = block();
        block.disks[0].storage_class = "copied".into();
        block.disks[0].image = Some(Image {
            volume: Some(IMAGE.into()),
            ..Image::default()
        });
        let mut machine = fixtures::machine(block);
        machine.metadata.namespace = Some(namespace.into());
        machine.metadata.name = Some(name.into());
        machine.metadata.uid = Some(format!("uid-of-{namespace}-{name}"));
        machine.status.host = Some("alpha".into());
        let cached = CachedMachine::from(machine.clone());
        self.apply_event(&Event::Apply(cached));
        machine
    }

    /// Applies the copy that the plan of a Machine has; returns the name of the volume.
    async fn copy(&self, machine: &Machine) -> String {
        let (pool, base) = volume(machine);
        let name = attempt(&base, 7);
        let size = machine.desired().unwrap().disks[0].size;
        let action = Action::CopyVolume {
            pool,
            xml: volume_xml(&VolumeSpec {
                name: &name,
                format: VolumeFormat::Qcow2,
                capacity: size,
                backing: None,
            }),
            name: name.clone(),
            size,
            image: PoolVolume {
                pool: POOL.into(),
                volume: IMAGE.into(),
                format: VolumeFormat::Raw,
            },
        };
        let applied = timeout(SOON, self.applier.apply(machine, &action)).await;
        applied.expect("the pass does not wait for a copy").unwrap();
        name
    }

    fn state(&self, machine: &Machine) -> Option<ImageState> {
        let name = copy_name(&volume(machine));
        let (namespace, machine) = (machine.namespace(), machine.name());
        self.host.copies.state(&name, namespace, machine)
    }

    fn is_underway(&self, machine: &Machine) -> bool {
        let (namespace, name) = (machine.namespace(), machine.name());
        self.host.copies.works_for(namespace, name)
    }

    fn has(&self, volume: &str) -> bool {
        self.fake.state().pools[POOL].volumes.contains_key(volume)
    }
}

/// Pool and volume of the disk, without the attempt.
fn volume(machine: &Machine) -> VolumeKey {
    let volumes = copies(machine, &host_object("alpha").spec);
    volumes.into_values().next().unwrap()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, wait).await.expect(what);
}

#[tokio::test]
async fn passes_do_not_wait_for_copies_and_a_namespace_has_one_at_a_time() {
    let mut fixture = Fixture::new();
    let blue = ["one", "two"].map(|name| fixture.machine("blue", name));
    let red = fixture.machine("red", "one");
    let hang = fixture.fake.hang("copy_volume");
    let first = fixture.copy(&blue[0]).await;
    let second = fixture.copy(&blue[1]).await;
    let other = fixture.copy(&red).await;
    let copying = || {
        let calls = fixture.fake.calls().into_iter();
        calls.filter(|call| call.starts_with("copy_volume")).count()
    };
    until("a copy for each namespace", || copying() == 2).await;
    assert!(fixture.is_underway(&blue[0]) && fixture.is_underway(&red));
    assert_eq!(fixture.state(&blue[1]), Some(ImageState::Waiting));
    fixture.copy(&blue[0]).await;

    let (machines, triggers) = (&fixture.applier.caches.machines, &fixture.applier.triggers);
    triggers.activate(&Caches::new(machines.clone()));
    for _ in 0..3 {
        let queued = triggers.queue.next().await;
        triggers.queue.started(&queued);
        triggers.queue.finished(&queued);
    }
    drop(hang);
    until("the end of the copies", || {
        !fixture.is_underway(&blue[0]) && !fixture.is_underway(&red)
    })
    .await;
    for volume in [first, other] {
        assert!(fixture.has(&volume) && fixture.has(&marker(&volume)));
    }
    assert_eq!(copying(), 2, "a copy that is under way is not begun again");
    // Both get a pass at once.
    for _ in 0..2 {
        timeout(SOON, triggers.queue.next()).await.unwrap();
    }
    fixture.copy(&blue[1]).await;
    until("the next copy", || fixture.has(&marker(&second))).await;
}

#[tokio::test]
async fn a_copy_for_a_machine_that_is_deleted_before_it_begins_leaves_no_volume() {
    let mut fixture = Fixture::new();
    let machine = fixture.machine("blue", "one");
    let hang = fixture.fake.hang("open");
    fixture.copy(&machine).await;
    let cached = CachedMachine::from(machine.clone());
    fixture.apply_event(&Event::Delete(cached));
    drop(hang);
    until("the end of the copy", || !fixture.is_underway(&machine)).await;
    assert_eq!(fixture.fake.calls(), [""; 0]);
    let state = fixture.state(&machine);
    assert!(
        matches!(&state, Some(ImageState::Failed(why)) if why.contains("does not need the disk")),
        "{state:?}"
    );
}

#[tokio::test]
async fn a_copy_of_a_host_that_is_no_longer_reached_this_way_has_no_effect() {
    let mut fixture = Fixture::new();
    let machine = fixture.machine("blue", "one");
    let hang = fixture.fake.hang("copy_volume");
    let volume = fixture.copy(&machine).await;
    until("the copy", || !fixture.fake.calls().is_empty()).await;
    let polled = Ok(Snapshot::default());
    let hosts = &fixture.applier.hosts;
    hosts.connect("alpha", FakeLibvirt::new(), polled);
    drop(hang);
    until("the end of the copy", || !fixture.is_underway(&machine)).await;
    assert!(!fixture.has(&marker(&volume)), "it is not complete");
}

/// The hosts are asked again inside the job: another one shows the domain since the plan was made, or the status was
/// written meanwhile.
#[tokio::test]
async fn the_guard_of_a_job_asks_again_where_the_machine_is() {
    let mut fixture = Fixture::new();
    let mut machine = fixture.machine("blue", "one");
    let guard = fixture.applier.guard(&fixture.host, &machine);
    let (hosts, objects) = (fixture.applier.hosts.clone(), &fixture.applier.objects);
    objects.apply(Event::Apply(host_object("beta")), |_| ());
    guard.check_only_definition().unwrap();
    let mut shown = running_domain(Some(machine.uid()), 1 << 30);
    shown.domain.state = State::ShutOff;
    let polled = Snapshot {
        domains: [shown].into_iter().collect(),
        ..Snapshot::default()
    };
    let beta = hosts.connect("beta", FakeLibvirt::new(), Ok(polled));
    let refused = guard.check_only_definition().unwrap_err().to_string();
    assert!(
        refused.contains("'beta' has a definition of the Machine's domain"),
        "{refused}"
    );
    beta.set_snapshot(Ok(Arc::new(Snapshot::default())));
    guard.check_only_definition().unwrap();

    beta.set_snapshot(Err("no route".to_owned()));
    guard.check_only_definition().unwrap();
    machine.status.host = Some("beta".into());
    fixture.apply_event(&Event::Apply(CachedMachine::from(machine)));
    let refused = guard.check_only_definition().unwrap_err().to_string();
    assert!(
        refused.contains("may run on LibvirtHost 'beta'"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_reset_that_the_host_refuses_is_final_and_one_that_may_succeed_later_is_not() {
    let mut environment = Environment::new(block());
    environment.settle();
    let machine = environment.machine().clone();
    let mut fixture = Fixture::on(environment.host.clone());
    fixture.apply_event(&Event::Apply(CachedMachine::from(machine.clone())));
    for (error, reason) in [
        (AccessError::Refused("not supported".into()), Some(REFUSED)),
        (AccessError::Unsupported("never".into()), Some(REFUSED)),
        (AccessError::Busy("another job".into()), None),
    ] {
        fixture.fake.fail("reset", When::Before, error);
        let applied = fixture.applier.apply(&machine, &Action::Reset).await;
        assert_eq!(applied.unwrap_err().reason, reason);
    }
    let applied = fixture.applier.apply(&machine, &Action::Reset).await;
    applied.unwrap();
}

/// The volume is of a former Machine, whose domain is nowhere.
#[tokio::test]
async fn a_kept_volume_is_deleted_while_the_present_machine_is_on_another_host() {
    let mut fixture = Fixture::new();
    let machine = fixture.machine("blue", "one");
    let on_beta = Snapshot {
        domains: [running_domain(Some(machine.uid()), 1 << 30)]
            .into_iter()
            .collect(),
        ..Snapshot::default()
    };
    let hosts = &fixture.applier.hosts;
    hosts.connect("beta", FakeLibvirt::new(), Ok(on_beta));
    let former = "uid-of-the-former-machine";
    let volume = format!("blue-one-{}.data.qcow2", short_id(former));
    {
        let mut state = fixture.fake.state();
        let pool = state.pools.get_mut(POOL).unwrap();
        pool.volumes.insert(volume.clone(), FakeVolume::default());
    }
    let kept = KeptOnHost {
        host: "alpha".into(),
        volume: KeptVolume {
            machine: "blue/one".into(),
            uid: former.into(),
            disk: "data".into(),
            pool: POOL.into(),
            volume: volume.clone(),
            size: None,
        },
    };
    let action = Action::ReleaseKept(kept);
    fixture.applier.apply(&machine, &action).await.unwrap();
    assert!(!fixture.has(&volume));
}

#[test]
fn a_host_whose_spec_cannot_be_read_gets_a_tombstone_without_a_list() {
    let machine = fixtures::machine(block());
    let mut host = host_object("alpha");
    let named = named_volumes(&machine, &host).unwrap();
    assert!(!named.is_empty());
    host.spec.storage = None;
    host.unreadable = Some("later".into());
    assert_eq!(named_volumes(&machine, &host), None);
}
