//! Polls of a host in memory, and what follows from them.

use std::time::Duration;

use base64::Engine as _;
use common::api::left_volumes::{KeptVolume, Tombstone};
use common::api::libvirt_host::CredentialsSecretRef;
use common::names;
use common::render::libvirt::{VolumeFormat, volume_name};
use controller_core::fixtures;
use kube::runtime::reflector::store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use tokio::time::timeout;

use super::*;
use crate::access::Connector as _;
use crate::access::fake::{FakeLibvirt, FakePool, FakeVolume};
use crate::api_server::{Written, api_server};
use crate::environment::{POOL, block, host_object, running_domain};
use crate::images::names::{image_volume, marker};

const UID: &str = "uid-of-web";
/// Limit of what takes milliseconds.
const SOON: Duration = Duration::from_secs(20);

/// A LibvirtHost and its poller.
struct Polled {
    context: PollerContext,
    poller: Poller,
    object: LibvirtHost,
    fake: FakeLibvirt,
    machines: Writer<CachedMachine>,
    written: Written,
}

impl Polled {
    fn new() -> Self {
        let fake = FakeLibvirt::new();
        let (api, written) = api_server();
        let (store, machines) = store();
        let mut object = host_object("alpha");
        object.metadata.uid = Some("uid-of-alpha".into());
        let context = PollerContext {
            hosts: Hosts::new(Arc::new(fake.clone())),
            caches: Caches::new(store),
            objects: Cache::default(),
            triggers: Triggers::default(),
            api,
            image_retention: Duration::from_secs(1),
        };
        Self {
            context,
            poller: Poller::default(),
            object,
            fake,
            machines,
            written,
        }
    }

    fn put(&self, volume: &str) {
        let mut state = self.fake.state();
        let pool = state.pools.get_mut(POOL).unwrap();
        pool.volumes.insert(volume.into(), FakeVolume::default());
    }

    fn volumes(&self) -> Vec<String> {
        let state = self.fake.state();
        state.pools[POOL].volumes.keys().cloned().collect()
    }

    fn add_tombstone(&mut self, uid: &str) {
        self.object.status.tombstones.push(Tombstone {
            machine: "default/web".into(),
            uid: uid.into(),
            since: "2026-01-01T00:00:00Z".into(),
            volumes: Some(vec![]),
        });
    }

    /// The watch of Machines lists these.
    fn list(&mut self, all: Vec<controller_core::machine::Machine>) {
        let listed = all.into_iter().map(CachedMachine::from);
        let events = listed.map(Event::InitApply);
        let events = [Event::Init].into_iter().chain(events);
        for event in events.chain([Event::InitDone]) {
            let caches = &self.context.caches;
            caches.apply(&event, &mut self.machines, "cluster");
        }
        self.context.caches.machines_listed.send_replace(true);
    }

    /// One poll; returns the statuses that were written.
    async fn poll_once(&mut self) -> Vec<serde_json::Value> {
        let objects = &self.context.objects;
        objects.apply(Event::Apply(self.object.clone()), |_| ());
        let poll = self.poller.poll_once(&self.context, &self.object);
        timeout(SOON, poll).await.expect("a poll waits for nothing");
        self.written.take()
    }
}

#[tokio::test]
async fn until_the_machines_are_listed_nothing_on_a_host_belongs_to_nobody() {
    let mut machine = fixtures::machine(block());
    let mut block = block();
    block.disks[0].image = Some(common::api::machine::Image {
        url: Some("https://images.example.com/debian.qcow2".into()),
        ..Default::default()
    });
    let image = image_volume(
        block.disks[0].image.as_ref().unwrap(),
        &machine.namespace_uid,
    );
    machine.block = controller_core::machine::Block::Matching(Box::new(block));
    machine.status.host = Some("alpha".into());

    let mut polled = Polled::new();
    let disk = volume_name("default", "web", UID, "root", VolumeFormat::Qcow2);
    let all = [disk, image.clone(), marker(&image)];
    for name in &all {
        polled.put(name);
    }
    polled.add_tombstone(UID);

    assert_eq!(polled.poll_once().await, [serde_json::Value::Null; 0]);
    let host = polled.context.hosts.get("alpha").unwrap();
    let snapshot = host.snapshot().expect("the host is polled all the same");
    assert!(snapshot.space_left.contains_key(POOL));
    assert!(snapshot.unowned_volumes.is_empty());
    assert!(polled.poller.removal.is_none() && polled.poller.swept.is_none());

    // The next poll is a full one, however short ago the last one was.
    polled.list(vec![machine]);
    let status = &polled.poll_once().await[0]["status"];
    assert_eq!(status["unlistedVolumes"], 0, "{status}");
    assert_eq!(status["tombstones"][0]["uid"], UID);
    assert!(polled.poller.swept.is_some());
    let removal = polled.poller.removal.take().unwrap();
    timeout(SOON, removal).await.unwrap().unwrap();
    let mut all = all.to_vec();
    all.sort();
    assert_eq!(polled.volumes(), all);
    assert_eq!(polled.fake.calls(), [""; 0]);
}

#[tokio::test]
async fn a_volume_whose_machine_is_in_no_list_is_reported_once_the_list_is_there() {
    let mut polled = Polled::new();
    let disk = volume_name("default", "web", UID, "root", VolumeFormat::Qcow2);
    polled.put(&disk);
    polled.poll_once().await;
    polled.list(vec![]);
    let status = &polled.poll_once().await[0]["status"];
    assert_eq!(status["unlistedVolumes"], 1, "{status}");
}

#[tokio::test]
async fn new_credentials_cancel_what_waits_for_connections_with_the_old_ones() {
    let mut polled = Polled::new();
    polled.object.spec.credentials_secret_ref = Some(CredentialsSecretRef {
        namespace: "system".into(),
        name: "alpha".into(),
    });
    let set = |polled: &Polled, key: &str| {
        let key = base64::engine::general_purpose::STANDARD.encode(key);
        polled.written.set_secret(serde_json::json!({
            "metadata": {"namespace": "system", "name": "alpha"},
            "data": {"ssh-privatekey": key, "known_hosts": ""},
        }));
    };
    set(&polled, "old");
    polled.poll_once().await;
    let old = polled.context.hosts.get("alpha").unwrap();
    polled.poller.surveyed = None;
    polled.poll_once().await;
    assert!(old.check_open().is_ok(), "nothing has changed");

    set(&polled, "new");
    polled.poll_once().await;
    assert!(old.check_open().is_ok(), "not with every list of domains");
    polled.poller.surveyed = None;
    polled.poll_once().await;
    let queued = old.host.slow.call(SOON, |host| host.pools()).await;
    assert_eq!(queued.unwrap_err().kind(), "Cancelled");
    let new = polled.context.hosts.get("alpha").unwrap();
    assert!(new.check_open().is_ok() && new.snapshot().is_ok());

    // A Secret that is edited in two steps closes nothing.
    polled
        .written
        .set_secret(serde_json::json!({"metadata": {"name": "alpha"}}));
    polled.poller.surveyed = None;
    polled.poll_once().await;
    assert!(new.check_open().is_ok() && new.snapshot().is_ok());
}

#[tokio::test]
async fn a_kept_volume_that_was_deleted_on_the_host_is_listed_no_more() {
    let mut polled = Polled::new();
    polled.list(vec![]);
    let record = |pool: &str, volume: &str| KeptVolume {
        machine: "default/web".into(),
        uid: UID.into(),
        disk: "data".into(),
        pool: pool.into(),
        volume: volume.into(),
        size: None,
    };
    let other = FakePool {
        active: false,
        ..FakePool::of(1 << 30)
    };
    polled.fake.state().pools.insert("other".into(), other);
    let kept = &mut polled.object.status.kept_volumes;
    kept.extend([
        record(POOL, "there"),
        record(POOL, "deleted"),
        record("other", "hidden"),
        record("no-pool", "hidden"),
    ]);
    let listed = |status: &serde_json::Value| -> Vec<String> {
        let kept = status["status"]["keptVolumes"].as_array().unwrap().iter();
        kept.map(|it| it["volume"].as_str().unwrap().to_owned())
            .collect()
    };
    // The file system below the pool may not be mounted.
    let written = polled.poll_once().await;
    assert_eq!(listed(&written[0]).len(), 4, "an empty pool");
    polled.put("there");
    polled.poller.surveyed = None;
    let written = polled.poll_once().await;
    assert_eq!(listed(&written[0]), ["there", "hidden", "hidden"]);
}

/// The file system of the pool is not mounted, and a volume was made in the folder below it.
#[tokio::test]
async fn a_kept_volume_stays_listed_until_its_pool_shows_what_was_beside_it() {
    let mut polled = Polled::new();
    polled.list(vec![]);
    polled.object.status.kept_volumes.push(KeptVolume {
        machine: "default/web".into(),
        uid: UID.into(),
        disk: "data".into(),
        pool: POOL.into(),
        volume: "kept".into(),
        size: None,
    });
    let count = |written: &[serde_json::Value]| {
        let status = written
            .first()
            .map(|it| it["status"]["keptVolumes"].clone());
        status.map(|kept| kept.as_array().map_or(0, Vec::len))
    };
    let empty = polled.fake.state().pools[POOL].clone();
    polled.put("kept");
    polled.put("beside");
    assert_eq!(count(&polled.poll_once().await), Some(1));
    let mounted = polled.fake.state().pools[POOL].clone();
    let mount = |polled: &mut Polled, pool: &FakePool| {
        let mut state = polled.fake.state();
        state.pools.insert(POOL.into(), pool.clone());
        drop(state);
        polled.poller.surveyed = None;
    };
    mount(&mut polled, &empty);
    polled.put("new");
    let written = polled.poll_once().await;
    assert_ne!(count(&written), Some(0), "another folder");

    let mut without = mounted;
    without.volumes.remove("kept").unwrap();
    mount(&mut polled, &without);
    assert_eq!(count(&polled.poll_once().await), Some(0), "it was deleted");
}

/// Both hosts have the same storage, and the definition was restored on the other one.
#[tokio::test]
async fn a_released_volume_stays_while_another_host_shows_the_domain_of_its_machine() {
    let mut polled = Polled::new();
    polled.list(vec![]);
    let volume = volume_name("default", "web", UID, "data", VolumeFormat::Qcow2);
    polled.put(&volume);
    let annotation = (
        names::ANNOTATION_RELEASE_VOLUME.to_owned(),
        format!("{POOL}/{volume}"),
    );
    polled.object.metadata.annotations = Some([annotation].into());
    polled.object.status.kept_volumes.push(KeptVolume {
        machine: "default/web".into(),
        uid: UID.into(),
        disk: "data".into(),
        pool: POOL.into(),
        volume: volume.clone(),
        size: None,
    });
    let shown = Snapshot {
        domains: [running_domain(Some(UID), 1)].into_iter().collect(),
        ..Snapshot::default()
    };
    for (polled_of_beta, left) in [(shown, vec![volume]), (Snapshot::default(), vec![])] {
        let hosts = &polled.context.hosts;
        hosts.connect("beta", FakeLibvirt::new(), Ok(polled_of_beta));
        polled.poller.surveyed = None;
        polled.poll_once().await;
        let release = polled.poller.release.take().unwrap();
        timeout(SOON, release).await.unwrap().unwrap();
        assert_eq!(polled.volumes(), left);
    }
}

#[tokio::test]
async fn a_host_is_polled_while_what_a_deleted_machine_left_is_removed() {
    let mut polled = Polled::new();
    polled.list(vec![]);
    polled.add_tombstone(UID);
    let hang = polled.fake.hang("refresh");
    let status = &polled.poll_once().await[0]["status"];
    assert_eq!(status["tombstones"][0]["uid"], UID);
    let removal = |polled: &Polled| polled.poller.removal.as_ref().unwrap().id();
    let first = removal(&polled);
    polled.poller.surveyed = None;
    polled.poll_once().await;
    assert_eq!(removal(&polled), first, "one at a time");

    drop(hang);
    let removal = polled.poller.removal.take().unwrap();
    timeout(SOON, removal).await.unwrap().unwrap();
    let status = &polled.written.take()[0]["status"];
    assert_eq!(status.get("tombstones"), Some(&serde_json::Value::Null));
}

/// Its status names another host, which shows that it is off.
#[tokio::test]
async fn the_first_poll_of_a_host_triggers_a_pass_of_each_machine_that_it_shows() {
    let mut polled = Polled::new();
    let mut machine = fixtures::machine(block());
    machine.status.host = Some("beta".into());
    machine.status.phase = Some(Phase::Stopped);
    polled.list(vec![machine]);
    let metadata = DomainMetadata {
        namespace: "default".into(),
        name: "web".into(),
        uid: UID.into(),
        ..DomainMetadata::default()
    };
    let uuid = common::render::libvirt::domain_uuid(UID);
    let target = Target {
        uri: String::new(),
        credentials: None,
    };
    let mut host = polled.fake.open(&target).unwrap();
    let xml = format!("<domain><name>web</name><uuid>{uuid}</uuid><devices/></domain>");
    host.define(&xml).unwrap();
    host.set_metadata(uuid, Some(&metadata.xml())).unwrap();
    let queue = polled.context.triggers.queue.clone();
    let (store, _writer) = store();
    polled.context.triggers.activate(&Caches::new(store));
    polled.poll_once().await;
    let queued = timeout(SOON, queue.next()).await.unwrap();
    assert_eq!(queued.name, "web");
}

#[tokio::test]
async fn a_host_whose_spec_cannot_be_read_is_reported_and_not_connected_to() {
    let mut polled = Polled::new();
    polled.list(vec![]);
    polled.object.unreadable = Some("upgrade machine-controller".into());
    let written = polled.poll_once().await;
    let conditions = written[0]["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|it| it["type"] == "Ready").unwrap();
    assert_eq!(
        (&ready["status"], &ready["message"]),
        (
            &"False".into(),
            &"the host cannot be reached: upgrade machine-controller".into()
        )
    );
    assert_eq!(polled.fake.opened(), 0);
    // What the conditions of its Machines say.
    let host = polled.context.hosts.get("alpha").unwrap();
    assert_eq!(host.snapshot().unwrap_err(), "upgrade machine-controller");
    let call = host.host.fast.call(SOON, |host| host.pools()).await;
    assert!(call.is_err());
    let names = BTreeSet::from(["alpha".to_owned()]);
    let waiting = polled.context.hosts.wait_until_polled(&names);
    timeout(SOON, waiting).await.unwrap();
}

#[tokio::test]
async fn the_first_passes_wait_until_each_host_was_polled_or_cannot_be() {
    for fault in ["", "unreachable", "no credentials"] {
        let mut polled = Polled::new();
        polled.fake.set_reachable(fault != "unreachable");
        if fault == "no credentials" {
            let name = "alpha".to_owned();
            let namespace = "system".to_owned();
            let secret = CredentialsSecretRef { namespace, name };
            polled.object.spec.credentials_secret_ref = Some(secret);
            let empty = serde_json::json!({"metadata": {"name": "alpha"}});
            polled.written.set_secret(empty);
        }
        let hosts = polled.context.hosts.clone();
        let names = BTreeSet::from(["alpha".to_owned()]);
        let waiting = timeout(Duration::from_millis(20), hosts.wait_until_polled(&names));
        waiting.await.expect_err("it was not polled");
        polled.poll_once().await;
        let is_connected = hosts.get("alpha").is_some();
        assert_eq!(is_connected, fault != "no credentials");
        timeout(SOON, hosts.wait_until_polled(&names))
            .await
            .unwrap();
    }
}
