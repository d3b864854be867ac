//! Live reads of what the catalog does not have yet.
//!
//! A network that the same `kubectl apply -f dir` made a moment earlier may not have reached the
//! watch. One read each, only on a miss; a list of the hosts of libvirt alone, which are few.

use std::sync::Arc;
use std::time::Duration;

use common::api::{MachineTemplate, NetworkConfiguration};
use common::violation::Reference;
use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::{Instant, timeout_at};

use crate::catalog::{Found, Host, class_row, network_row, template_row};
use crate::metrics;

/// For one read. An API server that takes longer is in trouble, and the cache is the better witness.
const READ_LIMIT: Duration = Duration::from_millis(500);

/// Most reads of one review: nobody needs more new names at once, and a file full of wrong ones
/// must not become a load on the API server.
const READS_MAX: usize = 16;

/// Looks one reference up.
pub trait Lookup: Send + Sync {
    /// What is there. Trouble of any kind counts as nothing: the cache has spoken already.
    fn find<'a>(
        &'a self,
        namespace: &'a str,
        reference: &'a Reference,
    ) -> BoxFuture<'a, Option<Found>>;
}

/// Looks all of `references` up at once, at the latest until `deadline`.
pub async fn find_all(
    lookup: &dyn Lookup,
    namespace: &str,
    references: &[Reference],
    deadline: Instant,
) -> Vec<Found> {
    let deadline = deadline.min(Instant::now() + READ_LIMIT);
    let readable = references
        .iter()
        .filter(|reference| name(reference).is_none_or(is_object_name));
    let reads = readable.take(READS_MAX).map(async |reference| {
        let found = timeout_at(deadline, lookup.find(namespace, reference)).await;
        let outcome = match &found {
            Ok(Some(_)) => "found",
            Ok(None) => "absent",
            Err(_) => "late",
        };
        metrics::lookup(kind(reference), outcome);
        found.ok().flatten()
    });
    join_all(reads).await.into_iter().flatten().collect()
}

fn name(reference: &Reference) -> Option<&str> {
    match reference {
        Reference::Template(name) | Reference::StorageClass(name) | Reference::Network(name) => {
            Some(name)
        }
        Reference::Hosts => None,
    }
}

/// Whether an object may have this name. Others are part of no URL.
fn is_object_name(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    (1..=253).contains(&name.len())
        && name.bytes().all(legal)
        && name.split('.').all(|part| !part.is_empty())
}

fn kind(reference: &Reference) -> &'static str {
    match reference {
        Reference::Template(_) => "template",
        Reference::StorageClass(_) => "storageclass",
        Reference::Network(_) => "network",
        Reference::Hosts => "hosts",
    }
}

/// The API server itself.
#[derive(Clone)]
pub struct Live {
    client: Client,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

impl Live {
    /// Reads through `client`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn read(&self, namespace: &str, reference: &Reference) -> kube::Result<Option<Found>> {
        let client = self.client.clone();
        Ok(match reference {
            Reference::Template(name) => {
                let template = Api::<MachineTemplate>::all(client).get_opt(name).await?;
                template.map(|it| Found::Template(name.clone(), Arc::new(template_row(it))))
            }
            Reference::StorageClass(name) => {
                let class = Api::<StorageClass>::all(client).get_opt(name).await?;
                class.map(|it| Found::StorageClass(name.clone(), class_row(&it)))
            }
            Reference::Network(name) => {
                let network = Api::<NetworkConfiguration>::namespaced(client, namespace)
                    .get_opt(name)
                    .await?;
                network.map(|it| Found::Network(name.clone(), network_row(it)))
            }
            Reference::Hosts => {
                let hosts = Api::<Host>::all(client)
                    .list(&ListParams::default())
                    .await?;
                let rows = hosts.items.into_iter().filter_map(Host::row);
                Some(Found::Hosts(rows.collect()))
            }
        })
    }
}

impl Lookup for Live {
    fn find<'a>(
        &'a self,
        namespace: &'a str,
        reference: &'a Reference,
    ) -> BoxFuture<'a, Option<Found>> {
        Box::pin(async move {
            match self.read(namespace, reference).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%error, what = kind(reference), "cannot look up");
                    None
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_objects_are_read() {
        for name in ["standard", "a.b-c", "1"] {
            assert!(is_object_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "../secrets/x",
            "a?b",
            "a%2fb",
            "A",
            "a..b",
            "ä",
            "a b",
        ] {
            assert!(!is_object_name(name), "{name}");
        }
    }
}
