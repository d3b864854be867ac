//! Which cluster this is.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
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

/// The uid of the cluster, as soon as the API server tells it; `reached` is met then.
pub async fn uid(client: &Client, reached: &Check) -> String {
    let (mut trouble, mut pause) = (Trouble::default(), Pause::default());
    loop {
        match read(client).await {
            Ok(namespace) => {
                reached.met();
                return namespace.metadata.uid.unwrap_or_default();
            }
            Err(error) => {
                if trouble.is_news(&error) {
                    tracing::warn!(
                        error = chain(&error),
                        "which cluster this is is not known yet"
                    );
                }
                reached.missing(chain(&error));
            }
        }
        sleep(pause.grow()).await;
    }
}

async fn read(client: &Client) -> Result<Namespace, ReadError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let answer = timeout(READ_LIMIT, namespaces.get(NAMESPACE)).await;
    answer
        .map_err(|_| ReadError::Late)?
        .map_err(ReadError::Read)
}
