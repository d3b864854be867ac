//! A stream that ends when its peer is too slow.
//!
//! The stream sees the first byte of a request, the service tells when a head is complete and when
//! its answer is made; between them they know which limit applies.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Where a connection is in its exchange of requests and answers. Clones are the same connection.
///
/// A counter: odd while a request is being answered. Comparing it with an earlier value tells that
/// something happened in between, even when the connection is idle again.
#[derive(Debug, Clone)]
pub(crate) struct Phase(Arc<Exchange>);

#[derive(Debug)]
struct Exchange {
    count: AtomicU32,
    began: Instant,
    /// The last answer, in milliseconds after the beginning.
    answered: AtomicU64,
}

impl Default for Phase {
    fn default() -> Self {
        Self(Arc::new(Exchange {
            count: AtomicU32::default(),
            began: Instant::now(),
            answered: AtomicU64::default(),
        }))
    }
}

impl Phase {
    /// The head of a request is complete, its answer is being made.
    pub(crate) fn busy(&self) {
        self.0.count.fetch_or(1, Ordering::Relaxed);
    }

    /// The answer is made.
    pub(crate) fn idle(&self) {
        let after = self.0.began.elapsed().as_millis();
        let after = u64::try_from(after).unwrap_or(u64::MAX);
        self.0.answered.store(after, Ordering::Relaxed);
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there has never been a request.
    pub(crate) fn is_unused(&self) -> bool {
        self.now() == 0
    }

    /// Whether a request is being answered.
    pub(crate) fn is_busy(&self) -> bool {
        self.now() & 1 == 1
    }

    /// Whether there has been an answer.
    pub(crate) fn was_answered(&self) -> bool {
        self.now() >= 2
    }

    /// Since when there has been no answer.
    pub(crate) fn unanswered_since(&self) -> Instant {
        let answered = self.0.answered.load(Ordering::Relaxed);
        self.0.began + Duration::from_millis(answered)
    }

    fn now(&self) -> u32 {
        self.0.count.load(Ordering::Relaxed)
    }
}

/// Wraps a stream; reads and writes that wait past the limit of the phase fail with `TimedOut`.
#[derive(Debug)]
pub(crate) struct Timed<S> {
    stream: S,
    phase: Phase,
    seen: u32,
    in_head: bool,
    head: Duration,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<S> Timed<S> {
    pub(crate) fn new(stream: S, phase: Phase, head: Duration, idle: Duration) -> Self {
        let seen = phase.now();
        Self {
            stream,
            phase,
            seen,
            in_head: false,
            head,
            idle,
            timer: Box::pin(sleep(idle)),
        }
    }

    /// Follows the phase; a connection that became idle has all of its time again.
    fn follow(&mut self) -> bool {
        let now = self.phase.now();
        if now != self.seen {
            self.seen = now;
            self.in_head = false;
            self.timer.as_mut().reset(Instant::now() + self.idle);
        }
        now & 1 == 1
    }

    /// The outcome of an operation that waits: an error once the peer's time is over.
    fn waiting<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let busy = self.follow();
        if busy {
            return Poll::Pending;
        }
        ready!(self.timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// The first byte of a request starts the time of its head.
    fn received(&mut self) {
        let busy = self.follow();
        if !busy && !self.in_head {
            self.in_head = true;
            self.timer.as_mut().reset(Instant::now() + self.head);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.waiting(context),
            done @ Poll::Ready(_) => {
                if buffer.filled().len() > before {
                    self.received();
                }
                done
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Pending => self.waiting(context),
            done @ Poll::Ready(_) => done,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Pending => self.waiting(context),
            done @ Poll::Ready(_) => done,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Pending => self.waiting(context),
            done @ Poll::Ready(_) => done,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, parts) {
            Poll::Pending => self.waiting(context),
            done @ Poll::Ready(_) => done,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
