//! The identity of the cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use super::checks::Check;
use super::outage::{Outage, RetryDelay};
use super::tasks::chain;

/// The uid of this namespace identifies the cluster. OpenTelemetry uses the same convention.
const NAMESPACE: &str = "kube-system";
/// Deadline of one read; then it is repeated.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the uid could not be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("cannot read the namespace {NAMESPACE}")]
    Read(#[source] kube::Error),
    #[error("the API server does not answer within {READ_TIMEOUT:?}")]
    Timeout,
}

/// The cluster. The uid is read once, when it is first needed; clones share it.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// Met once the uid is known.
    reached: Check,
    uid: Arc<OnceCell<Arc<str>>>,
}

impl Cluster {
    /// Reads through `client`. `reached` is met once the uid is known.
    pub fn new(client: Client, reached: Check) -> Self {
        let uid = Arc::default();
        Self {
            client,
            reached,
            uid,
        }
    }

    /// Waits until the uid of the cluster is known.
    pub async fn uid(&self) -> Arc<str> {
        self.uid
            .get_or_init(|| self.read_until_known())
            .await
            .clone()
    }

    async fn read_until_known(&self) -> Arc<str> {
        let (mut outage, mut delay) = (Outage::default(), RetryDelay::default());
        loop {
            match read(&self.client).await {
                Ok(namespace) => {
                    self.reached.met();
                    return namespace.metadata.uid.unwrap_or_default().into();
                }
                Err(error) => {
                    let text = chain(&error);
                    if outage.failed(&error) {
                        tracing::warn!(
                            error = text,
                            "cannot read the uid of the cluster, trying again"
                        );
                    }
                    self.reached.missing(text);
                }
            }
            sleep(delay.after_failure()).await;
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("uid", &self.uid)
            .finish_non_exhaustive()
    }
}

async fn read(client: &Client) -> Result<Namespace, ReadError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let answer = timeout(READ_TIMEOUT, namespaces.get(NAMESPACE)).await;
    answer
        .map_err(|_| ReadError::Timeout)?
        .map_err(ReadError::Read)
}
