//! Every call to the API server goes through here: under a timeout, and a write only while this
//! replica may write.

use std::future::Future;
use std::time::Duration;

use kube::Client;
use tokio::time::timeout;

use crate::leader::Permit;

/// A call takes milliseconds. The client itself tries a busy API server again for minutes, which
/// would hold one of few workers for that long.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// This replica does not hold the Lease, or not for long enough.
    #[error("this replica may not write: it does not hold the Lease")]
    NotLeading,
    /// No answer in time; the call may have had its effect.
    #[error("the API server did not answer within {} s", CALL_LIMIT.as_secs())]
    Timeout,
    /// The API server or the connection to it refused.
    #[error("{0}")]
    Refused(#[source] kube::Error),
    /// What a plan relied on turned out to be otherwise; the caches are behind.
    #[error("{0}")]
    Behind(String),
}

/// What can be done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Looking again: the caches were behind.
    LookAgain,
    /// Trying again: the API server was busy or away.
    TryAgain,
    /// Somebody has to change something.
    Mend,
}

impl ApiError {
    pub(crate) fn remedy(&self) -> Remedy {
        match self {
            Self::Behind(_) => Remedy::LookAgain,
            Self::Refused(kube::Error::Api(status)) => match status.code {
                409 => Remedy::LookAgain,
                400 | 401 | 403 | 404 | 405 | 406 | 413 | 415 | 422 => Remedy::Mend,
                _ => Remedy::TryAgain,
            },
            Self::NotLeading | Self::Timeout | Self::Refused(_) => Remedy::TryAgain,
        }
    }

    /// Whether the API server says that the object is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == 404)
    }

    /// The text for a person: what the API server said, without Rust's view of it.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Refused(kube::Error::Api(status)) if !status.message.is_empty() => {
                status.message.clone()
            }
            other => other.to_string(),
        }
    }
}

/// The API server, with limits.
#[derive(Clone)]
pub(crate) struct Guarded {
    client: Client,
    permit: Permit,
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded")
            .field("permit", &self.permit)
            .finish_non_exhaustive()
    }
}

impl Guarded {
    pub(crate) fn new(client: Client, permit: Permit) -> Self {
        Self { client, permit }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether this replica may write now.
    pub(crate) fn may_write(&self) -> bool {
        self.permit.left().is_some()
    }

    /// Waits for a reading call.
    pub(crate) async fn read<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        match timeout(CALL_LIMIT, call).await {
            Ok(answer) => answer.map_err(ApiError::Refused),
            Err(_) => Err(ApiError::Timeout),
        }
    }

    /// Waits for a writing call, if this replica may write; not longer than it may.
    pub(crate) async fn write<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let left = self.permit.left().ok_or(ApiError::NotLeading)?;
        match timeout(left.min(CALL_LIMIT), call).await {
            Ok(answer) => answer.map_err(ApiError::Refused),
            Err(_) => Err(ApiError::Timeout),
        }
    }
}
