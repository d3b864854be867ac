//! One connection with its thread: one call at a time, each with a limit.
//!
//! ```text
//! call ─▶ permit ─▶ job ─▶ [thread: open if need be ─▶ work] ─▶ answer
//!            │                                        │
//!            └─ the call before is overdue:           └─ over the limit:
//!               TimedOut at once                         TimedOut, the thread continues
//! ```
//! A call that hangs cannot be cancelled. It keeps its thread until libvirt returns, and until then other calls fail
//! at once. Keepalive ends it within seconds, except while a connection is being opened or when only the host's
//! storage hangs: then the worker gets another thread.
//!
//! Reason: without limits, a host whose storage hangs would stop the passes over all of its Machines
//! (`a_call_over_its_limit_is_unknown_and_the_next_does_not_wait_for_it`, `a_worker_that_hangs_for_too_long_gets_another_thread`
//! in `tests.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant as Moment, sleep_until, timeout};

use super::{AccessError, Connection, Connector, Result, Target};

/// The first pause after a connection could not be opened, and the longest. A host that is restarted is
/// back in seconds; one that is off is tried twice a minute.
const PAUSE: Pause = Pause {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};

/// How long a call may be overdue until its worker gets another thread; doubled for each further one. So a host
/// that hangs for a week costs a dozen threads, and is reached again after at most as long as it was away.
const OVERDUE_LIMIT: Duration = Duration::from_mins(5);

/// A host's two connections. Dropped, their threads end as soon as the calls under way return.
pub(crate) struct Host {
    /// For calls that return in milliseconds.
    pub fast: Worker,
    /// For calls that may take long: agents, volumes, uploads, starts and stops.
    pub slow: Worker,
}

impl Host {
    /// Opens no connection yet.
    pub(crate) fn new(connector: Arc<dyn Connector>, target: Target) -> Self {
        let target = Arc::new(target);
        Self {
            fast: Worker::new(
                "libvirt-fast",
                connector.clone(),
                target.clone(),
                PAUSE,
                OVERDUE_LIMIT,
            ),
            slow: Worker::new("libvirt-slow", connector, target, PAUSE, OVERDUE_LIMIT),
        }
    }

    /// Another connection, for what takes minutes: a fetch, a copy, the removal of what nothing needs any more.
    pub(crate) fn background_worker(&self) -> Worker {
        self.another("libvirt-background")
    }

    /// Another connection, for probes: one that waits for an agent delays other probes only.
    pub(crate) fn agents(&self) -> Worker {
        self.another("libvirt-agents")
    }

    fn another(&self, name: &'static str) -> Worker {
        let Worker {
            connector,
            target,
            pause,
            ..
        } = &self.slow;
        let (connector, target) = (connector.clone(), target.clone());
        Worker::new(name, connector, target, *pause, OVERDUE_LIMIT)
    }

    /// Cancels every call that has not begun, and every later one: the host is not to be reached this way any more.
    pub(crate) fn close(&self) {
        self.fast.close();
        self.slow.close();
    }

    /// Fails once [`close`](Self::close) was called. Long work checks it between its steps.
    pub(crate) fn check_open(&self) -> Result<()> {
        check_open(&self.fast.closed)
    }
}

type Job = Box<dyn FnOnce(&mut Session) + Send>;

/// One connection with its thread.
pub(crate) struct Worker {
    name: &'static str,
    connector: Arc<dyn Connector>,
    target: Arc<Target>,
    pause: Pause,
    thread: Mutex<Arc<WorkerThread>>,
    closed: Arc<AtomicBool>,
}

/// A thread, and the permit to give it work.
struct WorkerThread {
    jobs: mpsc::Sender<Job>,
    /// One permit: a call at a time.
    permits: Arc<Semaphore>,
    /// When the call under way should have returned.
    due: Arc<watch::Sender<Option<Moment>>>,
    /// How long it may be overdue.
    overdue_limit: Duration,
}

impl Worker {
    fn new(
        name: &'static str,
        connector: Arc<dyn Connector>,
        target: Arc<Target>,
        pause: Pause,
        overdue_limit: Duration,
    ) -> Self {
        let session = Session::new(connector.clone(), target.clone(), pause);
        Self {
            name,
            connector,
            target,
            pause,
            thread: Mutex::new(Arc::new(WorkerThread::new(name, session, overdue_limit))),
            closed: Arc::default(),
        }
    }

    /// Cancels every call that has not begun, and every later one.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The thread that works, or another one if it hangs for too long.
    fn thread(&self) -> Arc<WorkerThread> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.hangs() {
            tracing::warn!(
                uri = self.target.uri,
                "a call to a libvirt host hangs; opening another connection"
            );
            let session = Session::new(self.connector.clone(), self.target.clone(), self.pause);
            *thread = Arc::new(WorkerThread::new(
                self.name,
                session,
                thread.overdue_limit * 2,
            ));
        }
        thread.clone()
    }

    /// Does `work` on the connection once the calls before it have returned. `limit` holds for the wait, and again
    /// for the work. Work whose caller was dropped, or whose host was closed, before it began is not done.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&mut dyn Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let thread = self.thread();
        let permit = thread.permit(limit).await?;
        check_open(&self.closed)?;
        let closed = self.closed.clone();
        thread.due.send_replace(Some(Moment::now() + limit));
        let due = thread.due.clone();
        let (answer, answered) = oneshot::channel();
        let job = move |session: &mut Session| {
            let outcome = session.run(|host| {
                // Opening the connection took longer than the caller waited: its next pass may have another plan.
                if answer.is_closed() {
                    return Err(AccessError::TimedOut(
                        "the caller stopped waiting before the call began; nothing was done".into(),
                    ));
                }
                check_open(&closed)?;
                work(host)
            });
            // Release the permit before the answer is sent: the caller may call again at once.
            due.send_replace(None);
            drop(permit);
            // Fails if the caller gave up at its limit.
            let _ = answer.send(outcome);
        };
        if thread.jobs.send(Box::new(job)).is_err() {
            return Err(ended());
        }
        match timeout(limit, answered).await {
            Ok(outcome) => outcome.unwrap_or_else(|_| Err(ended())),
            Err(_) => Err(AccessError::TimedOut(format!(
                "the host did not answer within {limit:?}; it is not known yet whether the call took effect"
            ))),
        }
    }
}

impl WorkerThread {
    fn new(name: &str, mut session: Session, overdue_limit: Duration) -> Self {
        let (jobs, received) = mpsc::channel::<Job>();
        let run = move || received.iter().for_each(|job| job(&mut session));
        // Without its thread each call is answered with an error.
        if let Err(error) = thread::Builder::new().name(name.into()).spawn(run) {
            tracing::error!(%error, "no thread for a libvirt host");
        }
        Self {
            jobs,
            permits: Arc::new(Semaphore::new(1)),
            due: Arc::default(),
            overdue_limit,
        }
    }

    fn hangs(&self) -> bool {
        let due = *self.due.borrow();
        due.is_some_and(|due| due + self.overdue_limit < Moment::now())
    }

    /// Waits for the calls before this one, but not for one that is overdue.
    async fn permit(&self, limit: Duration) -> Result<OwnedSemaphorePermit> {
        let until_busy = Moment::now() + limit;
        let mut permit = pin!(self.permits.clone().acquire_owned());
        let mut due = self.due.subscribe();
        loop {
            let overdue = *due.borrow_and_update();
            let until = overdue.map_or(until_busy, |it| it.min(until_busy));
            tokio::select! {
                biased;
                permit = &mut permit => return permit.map_err(|_| ended()),
                _ = due.changed() => {}
                () = sleep_until(until) => {
                    return Err(if overdue == Some(until) {
                        AccessError::TimedOut("the host has not answered an earlier call; the new call was not sent".into())
                    } else {
                        AccessError::Busy(format!("the host was busy with other calls for {limit:?}; the call was not sent"))
                    });
                }
            }
        }
    }
}

fn check_open(closed: &AtomicBool) -> Result<()> {
    if closed.load(Ordering::Acquire) {
        return Err(AccessError::Cancelled(
            "the host is no longer reached over this connection; nothing was done".into(),
        ));
    }
    Ok(())
}

fn ended() -> AccessError {
    AccessError::Disconnected("the thread of this host has ended".into())
}

/// State of the thread.
struct Session {
    connector: Arc<dyn Connector>,
    target: Arc<Target>,
    connection: Option<Box<dyn Connection>>,
    closed: Option<Closed>,
    pause: Pause,
}

/// Why there is no connection, and until when no attempt is made to open one.
struct Closed {
    error: AccessError,
    until: Instant,
    pause: Duration,
}

/// Pause between two attempts to open a connection.
#[derive(Clone, Copy)]
struct Pause {
    first: Duration,
    longest: Duration,
}

impl Session {
    fn new(connector: Arc<dyn Connector>, target: Arc<Target>, pause: Pause) -> Self {
        Self {
            connector,
            target,
            connection: None,
            closed: None,
            pause,
        }
    }

    fn run<T>(&mut self, work: impl FnOnce(&mut dyn Connection) -> Result<T>) -> Result<T> {
        let connection = self.connection()?;
        let outcome = catch_unwind(AssertUnwindSafe(|| work(connection))).unwrap_or_else(|_| {
            let message = "the call ended in a fault of this program, which its log shows";
            Err(AccessError::Disconnected(message.into()))
        });
        // libvirt does not reconnect a connection.
        if let Err(AccessError::Disconnected(_)) = outcome {
            self.connection = None;
        }
        outcome
    }

    /// The connection, opened again if it ended or there was none.
    fn connection(&mut self) -> Result<&mut dyn Connection> {
        // No call was sent yet, so a connection that ended meanwhile is replaced without an error.
        if self.connection.as_mut().is_some_and(|it| !it.alive()) {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.open()?;
        }
        match &mut self.connection {
            Some(connection) => Ok(connection.as_mut()),
            None => Err(ended()),
        }
    }

    fn open(&mut self) -> Result<()> {
        let now = Instant::now();
        if let Some(closed) = self.closed.as_ref().filter(|it| now < it.until) {
            return Err(closed.error.clone());
        }
        match self.connector.open(&self.target) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.closed = None;
                Ok(())
            }
            Err(error) => {
                let pause = self.closed.as_ref().map_or(self.pause.first, |it| {
                    (it.pause * 2).min(self.pause.longest)
                });
                self.closed = Some(Closed {
                    error: error.clone(),
                    until: Instant::now() + pause,
                    pause,
                });
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
