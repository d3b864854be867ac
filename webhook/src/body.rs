//! Reads the bodies of requests, within limits of size, time and memory.
//!
//! Reason: the budget keeps the process within 512 MiB under a flood of large reviews
//! (`tests/overload.rs`, `tests/server.rs`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::peer_shares::{PeerShare, PeerShares};

/// Most bytes of one body: object and old object of 3 MiB each (etcd stores 1.5 MiB at most, API
/// servers read up to 3 MiB), and the rest of the review.
pub const BODY_MAX: usize = 7 * 1024 * 1024;

/// Most bytes of all bodies at a time. [`BodyBudget::large_body_permit`] limits the decoded objects.
pub const IN_FLIGHT_MAX: usize = 48 * 1024 * 1024;

/// Bodies of at least this many bytes are decoded one at a time. Decoded, a list of numbers takes thirty
/// times the memory of its text: two such bodies would exceed 512 MiB. A Machine that a person wrote
/// has some kilobytes.
pub const LARGE_BODY: usize = 256 * 1024;

/// Part of [`IN_FLIGHT_MAX`] that only the first [`LARGE_BODY`] bytes of a body may use, in bytes:
/// however many large bodies arrive, there is memory for hundreds of ordinary ones.
const RESERVE: usize = 4 * 1024 * 1024;

/// Time limit for receiving one body; longer than any review may take.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Initial capacity of a body in bytes; nearly every review fits.
const INITIAL_CAPACITY: usize = 64 * 1024;

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body has more than [`BODY_MAX`] bytes.
    #[error("the body is larger than 7 MiB")]
    TooLarge,
    /// Other bodies use [`IN_FLIGHT_MAX`] at this moment.
    #[error("too many reviews at once, try again")]
    Overloaded,
    /// The body did not arrive within the time limit.
    #[error("the body did not arrive in time")]
    Timeout,
    /// The client closed the connection or sent invalid HTTP.
    #[error("the body was truncated")]
    Broken,
}

impl BodyError {
    /// The HTTP status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
        }
    }
}

/// The memory that all bodies share. Clones share it, too.
#[derive(Debug, Clone)]
pub struct BodyBudget {
    /// One permit for each free byte.
    free: Arc<Semaphore>,
    /// One permit: large bodies are decoded one at a time.
    large: Arc<Semaphore>,
    peers: PeerShares,
    read_timeout: Duration,
}

/// A complete body. Its share of the budget is released when this is dropped.
#[derive(Debug)]
pub struct BufferedBody {
    /// The content.
    pub bytes: Bytes,
    _share: OwnedSemaphorePermit,
    /// What the body uses of the share of its client's address, if it is large.
    _of_peer: Option<OwnedSemaphorePermit>,
    peer: Arc<PeerShare>,
}

impl BodyBudget {
    /// A budget of `bytes`; each body must arrive within `read_timeout`.
    pub fn new(bytes: usize, read_timeout: Duration) -> Self {
        Self {
            free: Arc::new(Semaphore::new(bytes)),
            large: Arc::new(Semaphore::new(1)),
            peers: PeerShares::default(),
            read_timeout,
        }
    }

    /// Waits until a body of [`LARGE_BODY`] bytes may be decoded. Hold the permits while decoding.
    /// Of each address one body at a time waits for the permit that all share, so that no address delays the others.
    /// `None`: the deadline is over.
    pub async fn large_body_permits(
        &self,
        body: &BufferedBody,
        deadline: Instant,
    ) -> Option<[OwnedSemaphorePermit; 2]> {
        let permits = async {
            let own = body.peer.queue.clone().acquire_owned().await.ok()?;
            Some([own, self.large.clone().acquire_owned().await.ok()?])
        };
        timeout_at(deadline, permits).await.ok()?
    }

    /// Reads `body`, which a client at the address `peer` sends. After an error the rest is read and discarded,
    /// within the same limits: a client that still sends would not read the response.
    pub async fn read(&self, peer: IpAddr, mut body: Body) -> Result<BufferedBody, BodyError> {
        let peer = self.peers.of(peer);
        let read = async {
            let result = self.collect(peer, &mut body).await;
            if result.is_err() {
                discard(&mut body).await;
            }
            result
        };
        timeout(self.read_timeout, read)
            .await
            .unwrap_or(Err(BodyError::Timeout))
    }

    /// Uses the budget as bytes arrive: a declared length alone uses nothing.
    async fn collect(
        &self,
        peer: Arc<PeerShare>,
        body: &mut Body,
    ) -> Result<BufferedBody, BodyError> {
        let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if declared > BODY_MAX {
            return Err(BodyError::TooLarge);
        }
        let mut share = take(&self.free, 0)?;
        let mut of_peer: Option<OwnedSemaphorePermit> = None;
        let mut bytes = BytesMut::with_capacity(declared.min(INITIAL_CAPACITY));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| BodyError::Broken)?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > BODY_MAX {
                return Err(BodyError::TooLarge);
            }
            if bytes.len() + data.len() > LARGE_BODY {
                if self.free.available_permits() < data.len() + RESERVE {
                    return Err(BodyError::Overloaded);
                }
                match &mut of_peer {
                    Some(used) => used.merge(take(&peer.bytes, data.len())?),
                    None => of_peer = Some(take(&peer.bytes, bytes.len() + data.len())?),
                }
            }
            share.merge(take(&self.free, data.len())?);
            bytes.extend_from_slice(&data);
        }
        Ok(BufferedBody {
            bytes: bytes.freeze(),
            _share: share,
            _of_peer: of_peer,
            peer,
        })
    }
}

fn take(free: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, BodyError> {
    let bytes = u32::try_from(bytes).map_err(|_| BodyError::TooLarge)?;
    let taken = free.clone().try_acquire_many_owned(bytes);
    taken.map_err(|_| BodyError::Overloaded)
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self::new(IN_FLIGHT_MAX, READ_TIMEOUT)
    }
}

/// Reads and discards up to another [`BODY_MAX`] bytes.
async fn discard(body: &mut Body) {
    let mut read = 0;
    while read <= BODY_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, Bytes::len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[tokio::test]
    async fn one_address_cannot_use_the_memory_of_all_large_bodies() {
        let budget = BodyBudget::default();
        let largest = async |peer| budget.read(peer, Body::from(vec![b' '; BODY_MAX])).await;
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.push(largest(ONE).await.unwrap());
        }
        assert_eq!(largest(ONE).await.unwrap_err(), BodyError::Overloaded);
        // Ordinary bodies of the address, and large ones of another one.
        let ordinary = budget.read(ONE, Body::from(vec![b' '; LARGE_BODY])).await;
        kept.push(ordinary.unwrap());
        for _ in 0..3 {
            kept.push(largest(OTHER).await.unwrap());
        }
        kept.clear();
        assert!(largest(ONE).await.is_ok(), "the share was released");
    }

    #[tokio::test]
    async fn addresses_take_turns_with_large_bodies() {
        let budget = BodyBudget::default();
        let deadline = Instant::now() + READ_TIMEOUT;
        let large = async |peer| {
            let body = Body::from(vec![b' '; LARGE_BODY]);
            budget.read(peer, body).await.unwrap()
        };
        let (first, second, third) = (large(ONE).await, large(ONE).await, large(OTHER).await);
        let decoding = budget.large_body_permits(&first, deadline).await.unwrap();
        let mut waiting = Box::pin(budget.large_body_permits(&second, deadline));
        let mut other = Box::pin(budget.large_body_permits(&third, deadline));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(other.as_mut().now_or_never().is_none());
        drop(decoding);
        assert!(waiting.as_mut().now_or_never().is_none());
        let permits = other.as_mut().now_or_never().flatten();
        assert!(permits.is_some(), "the other address is next");
        drop(permits);
        assert!(waiting.await.is_some());
    }
}
