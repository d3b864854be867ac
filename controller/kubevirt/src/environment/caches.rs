//! The caches of a controller that watches this cluster and is up to date, for the observer of the program.

use std::collections::BTreeMap;
use std::iter::once;

use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::client::GuardedClient;
use controller_core::fixtures;
use controller_core::machine::CachedMachine;
use controller_core::objects::{Cacheable, Meta as _, Secret, StorageClass};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1 as core;
use kube::runtime::reflector::store;
use kube::runtime::watcher::Event;
use serde_json::json;

use super::{FakeCluster, api, decode};
use crate::caches::KubeVirtCaches;
use crate::observe::Observer;

/// Uid of the cluster.
const CLUSTER: &str = "cluster";

impl FakeCluster {
    /// The observer of the program, with caches of what is in the cluster now.
    pub(super) fn observer(&self, api: GuardedClient) -> Observer {
        Observer {
            caches: self.caches(),
            cluster: self.kubevirt_caches(),
            api,
            cluster_uid: CLUSTER.into(),
            on_foreign_stop: self.on_foreign_stop,
            image_namespace: api::IMAGES.into(),
        }
    }

    fn caches(&self) -> Caches {
        let (machines, mut writer) = store();
        let caches = Caches::new(machines);
        for machine in self.machine.iter().chain(&self.others) {
            let known = CachedMachine::from(machine.clone());
            caches.apply(&Event::Apply(known), &mut writer, CLUSTER);
        }
        for uid in &self.existing_uids {
            let other = fixtures::cached(uid, uid, fixtures::block(), None);
            caches.machine_index.apply(&Event::Apply(other));
        }
        for (name, secret) in self.users_secrets() {
            let version = secret.metadata.resource_version.unwrap_or_default();
            fixtures::set_secret_version(&caches, "default", &name, &version);
        }
        fill(&caches.networks, self.networks.values().cloned());
        let classes = self.classes.iter().map(|(name, grows)| {
            let class = json!({"metadata": {"name": name}, "allowVolumeExpansion": grows});
            decode::<StorageClass>(class)
        });
        fill_global(&caches.classes, classes);
        let template = self.template.clone().into_iter().map(|mut template| {
            let block = self.machine.as_ref().and_then(|it| it.desired());
            let pin = block.and_then(|block| block.template.as_ref());
            template.metadata.name = pin.map(|pin| pin.name.clone());
            template
        });
        fill_global(&caches.templates, template);
        caches
    }

    fn kubevirt_caches(&self) -> KubeVirtCaches {
        let caches = KubeVirtCaches::default();
        if self.kubevirt {
            fill(&caches.vms, []);
            fill(&caches.instances, []);
        }
        // What was cached stays while a kind cannot be listed.
        add(&caches.vms, self.vm.clone());
        add(&caches.instances, self.instance.clone());
        if self.multus {
            fill(&caches.attachments, []);
        }
        add(&caches.attachments, self.attachments.values().cloned());
        if self.cdi {
            fill(&caches.data_volumes, []);
        }
        add(&caches.data_volumes, self.data_volumes.values().cloned());
        add(&caches.data_volumes, self.imports.values().cloned());
        fill(&caches.claims, self.claims.values().cloned());
        fill(&caches.migrations, self.migration.clone());
        // Only Secrets with this label are watched.
        let is_watched = |secret: &Secret| secret.machine_uid().is_some();
        fill(&caches.secrets, self.secret.clone().filter(is_watched));
        let profiles = self.unprofiled.iter();
        let profiles = profiles.map(|class| decode(json!({"metadata": {"name": class}})));
        fill_global(&caches.profiles, profiles);
        caches
    }

    /// Secrets of the user, by name.
    pub(super) fn users_secrets(&self) -> BTreeMap<String, core::Secret> {
        let mut secrets: BTreeMap<String, core::Secret> = BTreeMap::new();
        for (key, value) in &self.contents {
            let secret = secrets.entry(key.name.clone()).or_default();
            secret.metadata.name = Some(key.name.clone());
            secret.metadata.namespace = Some("default".into());
            secret.metadata.uid = Some(format!("uid-of-{}", key.name));
            let version = &mut secret.metadata.resource_version;
            // Versions are numbers: the longer one is larger.
            let newer = once(value.revision.version.clone()).chain(version.take());
            *version = newer.max_by_key(|version| (version.len(), version.clone()));
            let data = secret.data.get_or_insert_default();
            data.insert(key.key.clone(), ByteString(value.content.clone()));
        }
        secrets
    }
}

/// A list of objects of a namespace.
fn fill<K: Cacheable>(cache: &Cache<K>, objects: impl IntoIterator<Item = K>) {
    fill_global(cache, objects.into_iter().map(in_default));
}

/// A list of objects, as the watch caches them.
fn fill_global<K: Cacheable>(cache: &Cache<K>, objects: impl IntoIterator<Item = K>) {
    cache.apply(Event::Init, |_| ());
    for mut object in objects {
        object.prune();
        cache.apply(Event::InitApply(object), |_| ());
    }
    cache.apply(Event::InitDone, |_| ());
}

/// Objects of a namespace, whether or not their kind has been listed.
fn add<K: Cacheable>(cache: &Cache<K>, objects: impl IntoIterator<Item = K>) {
    for mut object in objects.into_iter().map(in_default) {
        object.prune();
        cache.apply(Event::Apply(object), |_| ());
    }
}

/// Tests write some objects without their namespace.
fn in_default<K: Cacheable>(mut object: K) -> K {
    let namespace = &mut object.meta_mut().namespace;
    namespace.get_or_insert_with(|| "default".to_owned());
    object
}
