//! Every call to the API server goes through here: under a timeout, and a write only while this
//! replica may write.

use std::future::Future;
use std::time::Duration;

use kube::Client;
use tokio::time::timeout;

use crate::lease::LeaseGuard;

/// A call takes milliseconds. The client itself tries a busy API server again for minutes, which
/// would hold one of few workers for that long.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
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
pub enum Remedy {
    /// Observe again: the caches were behind.
    Reobserve,
    /// Retry later: the API server or the host was busy or away.
    Retry,
    /// A person has to change something.
    UserAction,
}

impl ApiError {
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Behind(_) => Remedy::Reobserve,
            Self::Refused(kube::Error::Api(status)) => match status.code {
                409 => Remedy::Reobserve,
                400 | 401 | 403 | 404 | 405 | 406 | 413 | 415 | 422 => Remedy::UserAction,
                _ => Remedy::Retry,
            },
            Self::NotLeading | Self::Timeout | Self::Refused(_) => Remedy::Retry,
        }
    }

    /// Whether the API server says that the object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == 404)
    }

    /// The text for a person: what the API server said, without Rust's view of it.
    pub fn message(&self) -> String {
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
pub struct GuardedClient {
    client: Client,
    guard: LeaseGuard,
}

impl std::fmt::Debug for GuardedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardedClient")
            .field("permit", &self.guard)
            .finish_non_exhaustive()
    }
}

impl GuardedClient {
    pub fn new(client: Client, guard: LeaseGuard) -> Self {
        Self { client, guard }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether this replica may write now.
    pub fn may_write(&self) -> bool {
        self.guard.left().is_some()
    }

    /// Waits for a reading call.
    pub async fn read<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        match timeout(CALL_LIMIT, call).await {
            Ok(answer) => answer.map_err(ApiError::Refused),
            Err(_) => Err(ApiError::Timeout),
        }
    }

    /// Waits for a writing call, if this replica may write; not longer than it may.
    pub async fn write<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let left = self.guard.left().ok_or(ApiError::NotLeading)?;
        match timeout(left.min(CALL_LIMIT), call).await {
            Ok(answer) => answer.map_err(ApiError::Refused),
            Err(_) => Err(ApiError::Timeout),
        }
    }
}
