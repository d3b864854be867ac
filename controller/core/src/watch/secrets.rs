//! Metadata watch on Secrets: reports creation and change, never reads content.
//!
//! A Machine that waits for a Secret gets a pass when the Secret appears, and every Machine that refers to a Secret
//! gets one when the Secret changes or is deleted.

use std::convert::Infallible;

use common::names;
use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use runtime::metadata::{Identity, kept};
use runtime::outage::{Outage, RetryDelay};
use serde::Deserialize;

use super::follow::{log_failure, watch_config};
use crate::caches::{Caches, machines_where};
use crate::machine::CachedMachine;
use crate::objects::Meta as _;
use crate::resource;
use crate::secrets::{VersionMap, entry};
use crate::triggers::Triggers;

/// Name of the task, and of the watch in the log.
pub(super) const NAME: &str = "watch of users' secrets";

/// Name and version of a Secret. The API server sends the metadata only.
#[derive(Clone, Debug, Deserialize)]
struct SecretIdentity {
    #[serde(deserialize_with = "kept::<_, Identity>")]
    metadata: ObjectMeta,
}
resource!(
    SecretIdentity,
    "Secret",
    "",
    "v1",
    "secrets",
    NamespaceResourceScope,
    true
);

/// Fills `caches.secret_versions` with every Secret that the controller did not create.
pub(super) async fn watch(
    client: Client,
    triggers: Triggers,
    caches: Caches,
) -> Result<(), Infallible> {
    let api = Api::<SecretIdentity>::all(client);
    let not_ours = format!("{}!={}", names::LABEL_MANAGED_BY, names::MANAGED_BY);
    let config = watch_config().labels(&not_ours);
    let (machines, versions) = (&caches.machines, &caches.secret_versions);
    let mut stream = std::pin::pin!(watcher::watcher(api, config).backoff(RetryDelay::default()));
    let mut outage = Outage::default();
    let mut listing = VersionMap::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Apply(secret)) => {
                versions.change(|known| known.extend([entry(&secret)]));
                triggers.send(machines_where(machines, |machine| {
                    machine.refers_to(secret.namespace(), secret.name())
                }));
            }
            // Any listed Secret may have been created or changed while the watch was interrupted.
            Ok(Event::InitDone) => {
                outage.succeeded();
                versions.change(|known| *known = std::mem::take(&mut listing));
                triggers.send(machines_where(machines, CachedMachine::refers_to_secrets));
            }
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(secret)) => listing.extend([entry(&secret)]),
            Ok(Event::Delete(secret)) => {
                let (key, _) = entry(&secret);
                versions.change(|known| drop(known.remove(&key)));
                triggers.send(machines_where(machines, |machine| {
                    machine.refers_to(secret.namespace(), secret.name())
                }));
            }
            Err(error) => log_failure(&mut outage, NAME, &error),
        }
    }
    Ok(())
}
