//! The API server behind limits: every call has a timeout, and a write needs the Lease.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use kube::Client;
use tokio::time::{Instant, timeout};

use crate::lease::LeaseGuard;

/// A read takes milliseconds. Without a limit, a call to a hanging API server would occupy one of few workers.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// A write waits for the admission webhooks of others, too. KubeVirt's may take 10 s; then the API server answers
/// itself. A shorter limit would hide that answer.
pub const WRITE_LIMIT: Duration = Duration::from_secs(12);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// This replica does not hold the Lease; nothing was sent.
    #[error("this replica may not write: it does not hold the Lease")]
    NotLeading,
    /// No response in time. The call may have taken effect.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// No response before the Lease may pass to another replica. The call may have taken effect.
    #[error("the Lease of this replica ended before the API server answered")]
    LeaseEnded,
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
            Self::NotLeading | Self::LeaseEnded | Self::Timeout(_) | Self::Refused(_) => {
                Remedy::Retry
            }
        }
    }

    /// Whether the API server answered 404.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == 404)
    }

    /// Whether the API server answered 409: the object exists, or has changed.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == 409)
    }

    /// Whether an object of the name exists already.
    pub fn is_already_there(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists")
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
        match timeout(READ_LIMIT, call).await {
            Ok(answer) => answer.map_err(ApiError::Refused),
            Err(_) => Err(ApiError::Timeout(READ_LIMIT)),
        }
    }

    /// Awaits a call that changes something, if this replica holds the Lease: for at most 12 s, and not past the moment
    /// at which the Lease may pass to another replica. That moment moves while the Lease is renewed.
    pub async fn write<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        if !self.may_write() {
            return Err(ApiError::NotLeading);
        }
        let mut call = pin!(call);
        let start = Instant::now();
        loop {
            let elapsed = start.elapsed();
            let left = WRITE_LIMIT.saturating_sub(elapsed);
            if left.is_zero() {
                return Err(ApiError::Timeout(elapsed));
            }
            let held = self.guard.remaining().unwrap_or_default();
            // A process that was suspended continues with what it had prepared, and timers are looked at last: the Lease
            // is checked first.
            let call = poll_fn(|context| match self.guard.remaining() {
                Some(_) => call.as_mut().poll(context).map_err(ApiError::Refused),
                None => Poll::Ready(Err(ApiError::LeaseEnded)),
            });
            if let Ok(answer) = timeout(left.min(held), call).await {
                return answer;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use hyper::{Request, Response};
    use kube::client::Body;
    use tokio::sync::watch;
    use tokio::time::{advance, sleep};

    use super::*;

    fn client(guard: LeaseGuard) -> GuardedClient {
        let service = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, kube::Error>(Response::new(Body::empty()))
        });
        GuardedClient::new(Client::new(service, "default"), guard)
    }

    /// A call that the API server answers after this time.
    async fn slow(seconds: u64) -> Result<(), kube::Error> {
        sleep(Duration::from_secs(seconds)).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_outlasts_a_webhook_that_takes_ten_seconds_and_a_read_does_not() {
        let client = client(LeaseGuard::Always);
        client.write(slow(11)).await.unwrap();
        let error = client.write(slow(13)).await.unwrap_err().to_string();
        assert_eq!(error, "the API server did not answer within 12 s");
        let error = client.read(slow(11)).await.unwrap_err().to_string();
        assert_eq!(error, "the API server did not answer within 5 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_was_prepared_is_not_sent_by_a_process_that_continues_after_its_lease() {
        let held = Duration::from_secs(7);
        let (_lease, deadline) = watch::channel(Some(Instant::now() + held));
        let client = client(LeaseGuard::Leased(deadline));
        let sent = AtomicBool::new(false);
        let written = client.write(async {
            // Time passes in which nothing else runs.
            advance(held * 2).await;
            sent.store(true, Ordering::Relaxed);
            Ok::<_, kube::Error>(())
        });
        let error = written.await.unwrap_err();
        assert!(matches!(error, ApiError::LeaseEnded), "{error}");
        assert!(!sent.into_inner());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_awaited_past_a_renewal_of_the_lease_but_not_past_its_end() {
        let held = Duration::from_secs(7);
        let (lease, deadline) = watch::channel(Some(Instant::now() + held));
        let client = client(LeaseGuard::Leased(deadline));
        let start = Instant::now();
        let error = client.write(slow(11)).await.unwrap_err();
        assert!(matches!(error, ApiError::LeaseEnded), "{error}");
        assert_eq!(start.elapsed(), held);
        lease.send_replace(Some(Instant::now() + held));
        let renewals = async {
            for _ in 0..5 {
                sleep(Duration::from_secs(2)).await;
                lease.send_replace(Some(Instant::now() + held));
            }
        };
        let (written, ()) = tokio::join!(client.write(slow(11)), renewals);
        written.unwrap();
    }
}
