//! Live reads of what the cache does not have.
//!
//! A network that the same `kubectl apply -f dir` created a moment earlier may not have reached the
//! watch yet. Each missing object is read once; LibvirtHosts, which are few, are listed.

use std::sync::Arc;
use std::time::Duration;

use common::api::{MachineImage, MachineTemplate, NetworkConfiguration};
use common::violation::Reference;
use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::{Instant, timeout_at};

use super::host::Host;
use super::overlay::LiveRow;
use super::rows::{class_row, image_row, template_row};
use crate::metrics::{self, LookupOutcome};

/// Deadline of one read. The median is some milliseconds; a review that needs an object which takes longer
/// is answered with 504.
const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// Most reads for one review. A manifest full of wrong names must not become load on the API
/// server.
const READS_MAX: usize = 16;

/// Why a read does not show whether an object exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// The API server refused the read, failed, or was not reached.
    Failed,
    /// The API server did not answer in time.
    TimedOut,
}

/// The object; `None`: it does not exist.
pub type Found = Result<Option<LiveRow>, ReadError>;

/// Looks up one reference.
pub trait Lookup: Send + Sync {
    /// Reads the object.
    fn find<'a>(&'a self, namespace: &'a str, reference: &'a Reference) -> BoxFuture<'a, Found>;
}

/// The results of several reads.
#[derive(Debug)]
pub struct LiveReads {
    /// The objects that exist.
    pub found: Vec<LiveRow>,
    /// The first object that could not be read, as a message names it, and why.
    pub failure: Option<(String, ReadError)>,
}

/// Looks up `references` concurrently, until `deadline` at the latest.
pub async fn look_up_all(
    lookup: &dyn Lookup,
    namespace: &str,
    references: &[Reference],
    deadline: Instant,
) -> LiveReads {
    let deadline = deadline.min(Instant::now() + READ_TIMEOUT);
    let readable = references
        .iter()
        .filter(|reference| name(reference).is_none_or(is_object_name));
    let reads = readable.take(READS_MAX).map(async |reference| {
        let found = timeout_at(deadline, lookup.find(namespace, reference)).await;
        let found = found.unwrap_or(Err(ReadError::TimedOut));
        let outcome = match &found {
            Ok(Some(_)) => LookupOutcome::Found,
            Ok(None) => LookupOutcome::Absent,
            Err(ReadError::Failed) => LookupOutcome::Failed,
            Err(ReadError::TimedOut) => LookupOutcome::TimedOut,
        };
        metrics::catalog_lookup(kind(reference), outcome);
        found.map_err(|error| (title(reference), error))
    });
    let mut all = LiveReads {
        found: Vec::new(),
        failure: None,
    };
    for read in join_all(reads).await {
        match read {
            Ok(found) => all.found.extend(found),
            Err(failure) => all.failure = all.failure.or(Some(failure)),
        }
    }
    all
}

fn name(reference: &Reference) -> Option<&str> {
    match reference {
        Reference::Template(name)
        | Reference::Image(name)
        | Reference::StorageClass(name)
        | Reference::PriorityClass(name)
        | Reference::Network(name) => Some(name),
        Reference::Hosts | Reference::Namespace => None,
    }
}

/// Whether an object can have this name. Other texts must not become part of a URL.
fn is_object_name(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    (1..=253).contains(&name.len())
        && name.bytes().all(legal)
        && name.split('.').all(|part| !part.is_empty())
}

fn kind(reference: &Reference) -> &'static str {
    match reference {
        Reference::Template(_) => "template",
        Reference::Image(_) => "image",
        Reference::StorageClass(_) => "storageclass",
        Reference::PriorityClass(_) => "priorityclass",
        Reference::Network(_) => "network",
        Reference::Hosts => "hosts",
        Reference::Namespace => "namespace",
    }
}

/// The object as a message names it.
fn title(reference: &Reference) -> String {
    match reference {
        Reference::Template(name) => format!("MachineTemplate '{name}'"),
        Reference::Image(name) => format!("MachineImage '{name}'"),
        Reference::StorageClass(name) => format!("StorageClass '{name}'"),
        Reference::PriorityClass(name) => format!("PriorityClass '{name}'"),
        Reference::Network(name) => format!("NetworkConfiguration '{name}'"),
        Reference::Hosts => "the list of LibvirtHosts".to_owned(),
        Reference::Namespace => "the labels of the namespace".to_owned(),
    }
}

/// Reads from the API server.
#[derive(Clone)]
pub struct ApiLookup {
    client: Client,
}

impl std::fmt::Debug for ApiLookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiLookup").finish_non_exhaustive()
    }
}

impl ApiLookup {
    /// Reads through `client`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn read(&self, namespace: &str, reference: &Reference) -> kube::Result<Option<LiveRow>> {
        let client = self.client.clone();
        Ok(match reference {
            Reference::Template(name) => {
                let template = Api::<MachineTemplate>::all(client).get_opt(name).await?;
                template.map(|it| LiveRow::Template(name.clone(), Arc::new(template_row(it))))
            }
            Reference::Image(name) => {
                let image = Api::<MachineImage>::all(client).get_opt(name).await?;
                let row = image.as_ref().and_then(image_row);
                row.map(|row| LiveRow::Image(name.clone(), Arc::new(row)))
            }
            Reference::StorageClass(name) => {
                let class = Api::<StorageClass>::all(client).get_opt(name).await?;
                class.map(|it| LiveRow::StorageClass(name.clone(), class_row(&it)))
            }
            Reference::PriorityClass(name) => {
                let classes = Api::<PriorityClass>::all(client);
                let found = classes.get_metadata_opt(name).await?;
                found.map(|_| LiveRow::PriorityClass(name.clone()))
            }
            Reference::Network(name) => {
                let network = Api::<NetworkConfiguration>::namespaced(client, namespace)
                    .get_opt(name)
                    .await?;
                let row = |it: NetworkConfiguration| it.spec.into();
                let namespace = namespace.to_owned();
                network.map(|it| LiveRow::Network(namespace, name.clone(), row(it)))
            }
            Reference::Hosts => {
                let hosts = Api::<Host>::all(client)
                    .list(&ListParams::default())
                    .await?;
                let rows = hosts.items.into_iter().filter_map(Host::row);
                Some(LiveRow::Hosts(rows.collect()))
            }
            Reference::Namespace => {
                let namespaces = Api::<Namespace>::all(client);
                let found = namespaces.get_metadata_opt(namespace).await?;
                found.map(|it| LiveRow::Namespace(it.metadata.labels.unwrap_or_default()))
            }
        })
    }
}

impl Lookup for ApiLookup {
    fn find<'a>(&'a self, namespace: &'a str, reference: &'a Reference) -> BoxFuture<'a, Found> {
        Box::pin(async move {
            self.read(namespace, reference).await.map_err(|error| {
                tracing::warn!(%error, what = kind(reference), "cannot read a referenced object");
                ReadError::Failed
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_not_an_object_name_is_never_read() {
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
