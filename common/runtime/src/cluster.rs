//! Which cluster this is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use super::checks::Check;
use super::tasks::chain;
use super::trouble::{Pause, Trouble};

/// The namespace whose uid stands for the cluster's identity, as it does for others.
const NAMESPACE: &str = "kube-system";
/// For one answer; an API server that takes longer is asked again.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Why it is not known yet.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("cannot read the namespace {NAMESPACE}")]
    Read(#[source] kube::Error),
    #[error("the API server does not answer within {READ_LIMIT:?}")]
    Late,
}

/// The cluster. Whoever needs its uid first asks for it, once; clones share the answer.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    reached: Check,
    uid: Arc<OnceCell<Arc<str>>>,
}

impl Cluster {
    /// Asks with `client`, and tells `reached` how that goes.
    pub fn new(client: Client, reached: Check) -> Self {
        let uid = Arc::default();
        Self {
            client,
            reached,
            uid,
        }
    }

    /// The uid of the cluster, as soon as the API server tells it.
    pub async fn uid(&self) -> Arc<str> {
        self.uid.get_or_init(|| self.ask()).await.clone()
    }

    async fn ask(&self) -> Arc<str> {
        let (mut trouble, mut pause) = (Trouble::default(), Pause::default());
        loop {
            match read(&self.client).await {
                Ok(namespace) => {
                    self.reached.met();
                    return namespace.metadata.uid.unwrap_or_default().into();
                }
                Err(error) => {
                    let text = chain(&error);
                    if trouble.is_news(&error) {
                        tracing::warn!(error = text, "the cluster does not tell its uid yet");
                    }
                    self.reached.missing(text);
                }
            }
            sleep(pause.grow()).await;
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
    let answer = timeout(READ_LIMIT, namespaces.get(NAMESPACE)).await;
    answer
        .map_err(|_| ReadError::Late)?
        .map_err(ReadError::Read)
}
