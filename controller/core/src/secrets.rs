//! Users' Secrets: that one came or changed, and nothing of what is in it.
//!
//! A Machine that waits for a Secret goes on when that appears, and one whose Secret was written again
//! is looked at. Only metadata is asked for and only the version is kept: what a Machine needs of a
//! Secret is read when something is made of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};

use common::names;
use common::render::{CloudInitPlan, SecretKey, SecretValue};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1 as core;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::Store;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use runtime::tasks::Tasks;
use runtime::trouble::{Pause, Trouble};

use crate::client::{ApiError, GuardedClient};
use crate::machine::CachedMachine;
use crate::objects::{Meta as _, Secret};
use crate::watch::{Triggers, every, failed, in_pages};

const NAME: &str = "watch of users' secrets";

/// The resourceVersion of every user's Secret: a cluster may have many, so nothing else is kept.
/// Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Versions(Arc<RwLock<Known>>);

type Known = HashMap<Box<str>, Box<str>>;

impl Versions {
    pub fn get(&self, namespace: &str, name: &str) -> Option<String> {
        // Every change of the map is one call.
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let version = known.get(key(namespace, name).as_ref())?;
        Some(version.to_string())
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

fn key(namespace: &str, name: &str) -> Box<str> {
    [namespace, "/", name].concat().into()
}

fn entry(secret: &PartialObjectMeta<Secret>) -> (Box<str>, Box<str>) {
    let version = secret.metadata.resource_version.as_deref();
    let key = key(secret.namespace(), secret.name());
    (key, version.unwrap_or_default().into())
}

/// What the user's Secrets hold that cloud-init is to be given; `None`: the Secret or the key is not there.
pub async fn read(
    api: &GuardedClient,
    namespace: &str,
    plan: &CloudInitPlan,
) -> Result<BTreeMap<SecretKey, Option<SecretValue>>, ApiError> {
    let secrets: Api<core::Secret> = Api::namespaced(api.client(), namespace);
    let mut contents = BTreeMap::new();
    let references: BTreeSet<&SecretKey> = plan.references().collect();
    for reference in references {
        let secret = api.read(secrets.get_opt(&reference.name)).await?;
        contents.insert(reference.clone(), reading(secret, &reference.key));
    }
    Ok(contents)
}

/// What a key of a Secret holds; `None`: the Secret or the key is not there.
fn reading(secret: Option<core::Secret>, key: &str) -> Option<SecretValue> {
    let secret = secret?;
    let metadata = secret.metadata;
    let content = secret.data?.remove(key)?.0;
    Some(SecretValue::new(
        &metadata.uid.unwrap_or_default(),
        &metadata.resource_version.unwrap_or_default(),
        content,
    ))
}

pub fn watch(
    client: &Client,
    tasks: &mut Tasks,
    triggers: Triggers,
    machines: Store<CachedMachine>,
    versions: Versions,
) {
    let api = Api::<PartialObjectMeta<Secret>>::all(client.clone());
    let theirs = format!("{}!={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
    let config = in_pages().labels(&theirs);
    tasks.spawn(NAME, async move {
        let mut stream = std::pin::pin!(watcher::watcher(api, config).backoff(Pause::default()));
        let mut trouble = Trouble::default();
        let mut listing = Known::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(secret)) => {
                    versions.change(|known| known.extend([entry(&secret)]));
                    triggers.send(every(&machines, |machine| {
                        machine.refers_to(secret.namespace(), secret.name())
                    }));
                }
                // Whatever is in the list may have come while nobody watched.
                Ok(Event::InitDone) => {
                    trouble.is_over();
                    versions.change(|known| *known = std::mem::take(&mut listing));
                    triggers.send(every(&machines, CachedMachine::refers_to_secrets));
                }
                Ok(Event::Init) => listing.clear(),
                Ok(Event::InitApply(secret)) => listing.extend([entry(&secret)]),
                Ok(Event::Delete(secret)) => {
                    let (key, _) = entry(&secret);
                    versions.change(|known| drop(known.remove(&key)));
                }
                Err(error) => failed(&mut trouble, NAME, &error),
            }
        }
        Ok::<_, Infallible>(())
    });
}
