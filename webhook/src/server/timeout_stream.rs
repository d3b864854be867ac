//! A stream that fails when its peer is too slow.
//!
//! The stream sees the first byte of a request; the service reports when a head is complete and when
//! the response is made. Together they decide which limit applies.
//!
//! Reason: hyper's own limit for heads also closes idle connections, so an API server's next request
//! could meet a closed connection (`tests/server.rs`: a slow head ends, an idle connection does not).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::Limits;
use super::activity::Activity;

/// Wraps a stream. A read or write that waits longer than the limit that applies fails with `TimedOut`.
#[derive(Debug)]
pub(super) struct TimeoutStream<S> {
    stream: S,
    activity: Activity,
    /// `activity`'s count when it was last looked at.
    seen: u32,
    /// Whether a part of a head has been received.
    in_head: bool,
    /// From the first byte of a request to the end of its head.
    head_limit: Duration,
    /// Between two requests.
    idle_limit: Duration,
    /// How long a write waits for the peer to read.
    write_limit: Duration,
    /// Whether a write waits for the peer to read.
    in_write: bool,
    timer: Pin<Box<Sleep>>,
}

impl<S> TimeoutStream<S> {
    pub(super) fn new(
        stream: S,
        activity: Activity,
        Limits {
            head: head_limit,
            idle: idle_limit,
            write: write_limit,
            ..
        }: Limits,
    ) -> Self {
        let seen = activity.count();
        Self {
            stream,
            activity,
            seen,
            in_head: false,
            head_limit,
            idle_limit,
            write_limit,
            in_write: false,
            timer: Box::pin(sleep(idle_limit)),
        }
    }

    /// Restarts the idle limit if there was a request since the last call. Returns whether a request
    /// is being answered now.
    fn update(&mut self) -> bool {
        let now = self.activity.count();
        if now != self.seen {
            self.seen = now;
            self.in_head = false;
            self.in_write = false;
            self.timer.as_mut().reset(Instant::now() + self.idle_limit);
        }
        now & 1 == 1
    }

    /// The result of an operation that is pending: an error once the limit is over.
    fn poll_timeout<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let is_busy = self.update();
        if is_busy {
            return Poll::Pending;
        }
        ready!(self.timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// The result of a write. Writes that wait have a limit of their own; the idle limit starts when they are done.
    fn poll_written<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let is_busy = self.update();
        if result.is_ready() == self.in_write && !is_busy {
            self.in_write = !self.in_write;
            let limit = if self.in_write {
                self.write_limit
            } else {
                self.idle_limit
            };
            self.timer.as_mut().reset(Instant::now() + limit);
        }
        match result {
            Poll::Pending => self.poll_timeout(context),
            done @ Poll::Ready(_) => done,
        }
    }

    /// The first byte of a request starts the limit of its head.
    fn received(&mut self) {
        let is_busy = self.update();
        if !is_busy && !self.in_head {
            self.in_head = true;
            self.timer.as_mut().reset(Instant::now() + self.head_limit);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.poll_timeout(context),
            done @ Poll::Ready(_) => {
                if buffer.filled().len() > before {
                    self.received();
                }
                done
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.poll_written(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.poll_written(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.poll_written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.poll_written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    const LIMITS: Limits = Limits {
        connections: 1,
        connections_of_peer: 1,
        handshake: Duration::ZERO,
        head: Duration::from_secs(5),
        idle: Duration::from_secs(150),
        write: Duration::from_secs(10),
        closing: Duration::ZERO,
        announced: Duration::ZERO,
        drain: Duration::ZERO,
    };

    #[tokio::test(start_paused = true)]
    async fn a_write_that_the_peer_does_not_read_ends_at_its_limit() {
        let (near, _far) = duplex(8);
        let activity = Activity::default();
        let mut stream = TimeoutStream::new(near, activity.clone(), LIMITS);
        activity.request_started();
        activity.response_ready();
        let start = Instant::now();
        let error = stream.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), LIMITS.write);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_write_that_waited_the_connection_may_idle_for_the_whole_idle_limit() {
        let (near, mut far) = duplex(8);
        let activity = Activity::default();
        let mut stream = TimeoutStream::new(near, activity.clone(), LIMITS);
        activity.request_started();
        activity.response_ready();
        let reader = async {
            tokio::time::advance(LIMITS.head).await;
            far.read_exact(&mut [0; 100]).await.unwrap();
        };
        let (written, ()) = tokio::join!(stream.write_all(&[0; 100]), reader);
        written.unwrap();
        let start = Instant::now();
        let error = stream.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), LIMITS.idle);
    }
}
