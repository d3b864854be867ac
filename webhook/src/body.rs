//! Bodies of requests: read whole, within limits of size, time and memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// Most bytes of one body: object and old object of 3 MiB each (etcd takes no more than 1.5 MiB, API
/// servers read up to 3), and the envelope around them.
pub const BODY_MAX: usize = 7 * 1024 * 1024;

/// Most bytes of bodies at a time; what they are decoded to is bounded by [`Budget::turn`].
pub const IN_FLIGHT_MAX: usize = 48 * 1024 * 1024;

/// Bodies from this size on are decoded one at a time. A list of numbers takes thirty times its
/// text in memory, so two of them at once would be the end of a process with 512 MiB; a Machine
/// that somebody wrote takes some kilobytes.
pub const LARGE: usize = 256 * 1024;

/// Of [`IN_FLIGHT_MAX`], what bodies may not take beyond their first [`LARGE`] bytes: however many large
/// ones come, there is room for hundreds of those that people write.
const RESERVE: usize = 4 * 1024 * 1024;

/// For a whole body: more than the API server's own deadline for the review it belongs to.
pub const BODY_LIMIT: Duration = Duration::from_secs(5);

/// Memory a body gets before its first byte; nearly every review fits.
const CAPACITY_AT_FIRST: usize = 64 * 1024;

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// More than [`BODY_MAX`].
    #[error("the body is larger than 7 MiB")]
    TooLarge,
    /// Others fill [`IN_FLIGHT_MAX`] at this moment.
    #[error("too many reviews at once, try again")]
    Overloaded,
    /// It did not arrive within the limit.
    #[error("the body did not arrive in time")]
    Late,
    /// The client broke it off or sent no valid HTTP.
    #[error("the body broke off")]
    Broken,
}

impl BodyError {
    /// The HTTP status that says so.
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
        }
    }
}

/// The memory all bodies share. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    free: Arc<Semaphore>,
    large: Arc<Semaphore>,
    limit: Duration,
}

/// A body that was read, and its share of the memory until this is dropped.
#[derive(Debug)]
pub struct Whole {
    /// The bytes.
    pub bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

impl Budget {
    /// `bytes` at a time, each body within `limit`.
    pub fn new(bytes: usize, limit: Duration) -> Self {
        Self {
            free: Arc::new(Semaphore::new(bytes)),
            large: Arc::new(Semaphore::new(1)),
            limit,
        }
    }

    /// Waits until a [`LARGE`] body may be decoded, at the latest until `deadline`. Decode it while
    /// holding what this returns, if the deadline is not over.
    pub async fn turn(&self, deadline: Instant) -> Option<OwnedSemaphorePermit> {
        let turn = self.large.clone().acquire_owned();
        timeout_at(deadline, turn).await.ok()?.ok()
    }

    /// Reads `body`. What comes after a refusal is read and forgotten, within the same limits, so
    /// that its sender gets to read the answer.
    pub async fn read(&self, mut body: Body) -> Result<Whole, BodyError> {
        let read = async {
            let result = self.collect(&mut body).await;
            if result.is_err() {
                discard(&mut body).await;
            }
            result
        };
        timeout(self.limit, read)
            .await
            .unwrap_or(Err(BodyError::Late))
    }

    /// Takes memory as bytes arrive: a length that is only declared takes nothing from others.
    async fn collect(&self, body: &mut Body) -> Result<Whole, BodyError> {
        let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if declared > BODY_MAX {
            return Err(BodyError::TooLarge);
        }
        let mut share = self.take(0)?;
        let mut bytes = BytesMut::with_capacity(declared.min(CAPACITY_AT_FIRST));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| BodyError::Broken)?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > BODY_MAX {
                return Err(BodyError::TooLarge);
            }
            let is_large = bytes.len() + data.len() > LARGE;
            if is_large && self.free.available_permits() < data.len() + RESERVE {
                return Err(BodyError::Overloaded);
            }
            share.merge(self.take(data.len())?);
            bytes.extend_from_slice(&data);
        }
        Ok(Whole {
            bytes: bytes.freeze(),
            _share: share,
        })
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, BodyError> {
        let bytes = u32::try_from(bytes).map_err(|_| BodyError::TooLarge)?;
        self.free
            .clone()
            .try_acquire_many_owned(bytes)
            .map_err(|_| BodyError::Overloaded)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(IN_FLIGHT_MAX, BODY_LIMIT)
    }
}

/// Reads up to another [`BODY_MAX`] and keeps nothing of it.
async fn discard(body: &mut Body) {
    let mut read = 0;
    while read <= BODY_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, Bytes::len);
    }
}
