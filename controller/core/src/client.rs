//! The API server behind limits: every call has a timeout, and a write needs the Lease.

use std::future::Future;
use std::time::Duration;

use kube::Client;
use tokio::time::timeout;

use crate::lease::LeaseGuard;

/// A call takes milliseconds. Without a limit, a call to a hanging API server would occupy one of few workers.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// This replica does not hold the Lease; nothing was sent.
    #[error("this replica may not write: it does not hold the Lease")]
    NotLeading,
    /// No response in time. The call may have taken effect.
    #[error("the API server did not answer within {} s", CALL_LIMIT.as_secs())]
    Timeout,
    /// The API server answered with an error, or the connection failed.
    #[error("{0}")]
    Refused(#[source] kube::Error),
    /// An object is not what the plan assumed: the caches are behind.
    #[error("{0}")]
    StaleCache(String),
}

/// What resolves a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A new observation, at once: the caches were behind.
    Reobserve,
    /// Time: the API server or the host was busy or unreachable.
    Retry,
    /// A change by a person.
    UserAction,
}

impl ApiError {
    /// What resolves the error.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::StaleCache(_) => Remedy::Reobserve,
            Self::Refused(kube::Error::Api(status)) => match status.code {
                409 => Remedy::Reobserve,
                400 | 401 | 403 | 404 | 405 | 406 | 413 | 415 | 422 => Remedy::UserAction,
                _ => Remedy::Retry,
            },
            Self::NotLeading | Self::Timeout | Self::Refused(_) => Remedy::Retry,
        }
    }

    /// Whether the API server answered 404.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == 404)
    }

    /// The text for a person: the message of the API server, without the Debug text that kube puts around it.
    pub fn message(&self) -> String {
        match self {
            Self::Refused(kube::Error::Api(status)) if !status.message.is_empty() => {
                status.message.clone()
            }
            other => other.to_string(),
        }
    }
}

/// A client that writes only while this replica holds the Lease. Clones share the guard.
#[derive(Clone)]
pub struct GuardedClient {
    client: Client,
    guard: LeaseGuard,
}

impl std::fmt::Debug for GuardedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardedClient")
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}

impl GuardedClient {
    /// A client whose writes need `guard`.
    pub fn new(client: Client, guard: LeaseGuard) -> Self {
        Self { client, guard }
    }

    /// The client, to make a call for [`read`](Self::read) or [`write`](Self::write).
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether this replica may write now.
    pub fn may_write(&self) -> bool {
        self.guard.remaining().is_some()
    }

    /// Awaits a call that changes nothing, for at most 5 s.
    pub async fn read<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        match timeout(CALL_LIMIT, call).await {
            Ok(answer) => answer.map_err(ApiError::Refused),
            Err(_) => Err(ApiError::Timeout),
        }
    }

    /// Awaits a call that changes something, if this replica holds the Lease: for at most 5 s, and not past the moment
    /// at which the Lease may pass to another replica.
    pub async fn write<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let left = self.guard.remaining().ok_or(ApiError::NotLeading)?;
        match timeout(left.min(CALL_LIMIT), call).await {
            Ok(answer) => answer.map_err(ApiError::Refused),
            Err(_) => Err(ApiError::Timeout),
        }
    }
}
