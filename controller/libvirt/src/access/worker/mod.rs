//! One connection with its thread: one call at a time, each with a limit.
//!
//! ```text
//! call ─▶ turn ─▶ job ─▶ [thread: open if need be ─▶ work] ─▶ answer
//!           │                                        │
//!           └─ the call before is overdue:           └─ over the limit:
//!              TimedOut at once                         TimedOut, the thread goes on
//! ```
//! A call that hangs cannot be taken back. It keeps its lane until libvirt gives it up, and until then nobody
//! else waits on it. Keepalive sees to that in seconds, but not while a connection is opened, nor when only the
//! host's storage hangs: in the end the lane is given another thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant as Moment, sleep_until, timeout};

use super::{AccessError, Connection, Connector, Result, Target};

/// The first pause after a connection could not be opened, and the longest. A host that is restarted is
/// back in seconds; one that is off is asked twice a minute.
const PAUSE: Pause = Pause {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};

/// How long a call may be overdue until its lane is given another thread; the next one gets twice as long. So a
/// host that is stuck for a week costs a dozen threads, and is found again after as long as it was away at most.
const PATIENCE: Duration = Duration::from_mins(5);

/// A host's two connections. Dropped, their threads end as soon as the calls under way return.
pub(crate) struct Host {
    /// For what answers in milliseconds.
    pub fast: Worker,
    /// For what may take long: agents, volumes, uploads, starts and stops.
    pub slow: Worker,
}

impl Host {
    /// Opens nothing yet.
    pub(crate) fn new(connector: Arc<dyn Connector>, target: Target) -> Self {
        let target = Arc::new(target);
        Self {
            fast: Worker::new(
                "libvirt-fast",
                connector.clone(),
                target.clone(),
                PAUSE,
                PATIENCE,
            ),
            slow: Worker::new("libvirt-slow", connector, target, PAUSE, PATIENCE),
        }
    }
}

type Job = Box<dyn FnOnce(&mut Session) + Send>;

/// One connection with its thread.
pub(crate) struct Worker {
    name: &'static str,
    connector: Arc<dyn Connector>,
    target: Arc<Target>,
    pause: Pause,
    line: Mutex<Arc<Line>>,
}

/// A thread, and who may give it work.
struct Line {
    jobs: mpsc::Sender<Job>,
    turns: Arc<Semaphore>,
    /// When the call under way should have returned.
    due: Arc<watch::Sender<Option<Moment>>>,
    /// How long it may be overdue.
    patience: Duration,
}

impl Worker {
    fn new(
        name: &'static str,
        connector: Arc<dyn Connector>,
        target: Arc<Target>,
        pause: Pause,
        patience: Duration,
    ) -> Self {
        let session = Session::new(connector.clone(), target.clone(), pause);
        Self {
            name,
            connector,
            target,
            pause,
            line: Mutex::new(Arc::new(Line::new(name, session, patience))),
        }
    }

    /// The thread that works, another one if it hangs for too long.
    fn line(&self) -> Arc<Line> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.hangs() {
            tracing::warn!(
                uri = self.target.uri,
                "a call to a libvirt host hangs; opening another connection"
            );
            let session = Session::new(self.connector.clone(), self.target.clone(), self.pause);
            *line = Arc::new(Line::new(self.name, session, line.patience * 2));
        }
        line.clone()
    }

    /// Does `work` on the connection, as soon as it is this call's turn. `limit` is for the wait, and again
    /// for the work. Work whose caller has gone away before it could begin is left undone.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&mut dyn Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let line = self.line();
        let turn = line.turn(limit).await?;
        line.due.send_replace(Some(Moment::now() + limit));
        let due = line.due.clone();
        let (answer, answered) = oneshot::channel();
        let job = move |session: &mut Session| {
            let outcome = session.run(|host| {
                // Opening took longer than the caller waited: by now it may want something else.
                if answer.is_closed() {
                    return Err(AccessError::TimedOut(
                        "nobody waits for it any longer".into(),
                    ));
                }
                work(host)
            });
            // The lane is free before anybody knows: whoever hears of it may call again.
            due.send_replace(None);
            drop(turn);
            // Nobody waits for it if the call was over its limit.
            let _ = answer.send(outcome);
        };
        if line.jobs.send(Box::new(job)).is_err() {
            return Err(ended());
        }
        match timeout(limit, answered).await {
            Ok(outcome) => outcome.unwrap_or_else(|_| Err(ended())),
            Err(_) => Err(AccessError::TimedOut(format!(
                "the host did not answer within {limit:?}; whether it did what it was asked is not known yet"
            ))),
        }
    }
}

impl Line {
    fn new(name: &str, mut session: Session, patience: Duration) -> Self {
        let (jobs, received) = mpsc::channel::<Job>();
        let run = move || received.iter().for_each(|job| job(&mut session));
        // Without its thread each call is answered with an error.
        if let Err(error) = thread::Builder::new().name(name.into()).spawn(run) {
            tracing::error!(%error, "no thread for a libvirt host");
        }
        Self {
            jobs,
            turns: Arc::new(Semaphore::new(1)),
            due: Arc::default(),
            patience,
        }
    }

    fn hangs(&self) -> bool {
        let due = *self.due.borrow();
        due.is_some_and(|due| due + self.patience < Moment::now())
    }

    /// Waits for the calls before this one, but not for one that hangs.
    async fn turn(&self, limit: Duration) -> Result<OwnedSemaphorePermit> {
        let patience = Moment::now() + limit;
        let mut turn = pin!(self.turns.clone().acquire_owned());
        let mut due = self.due.subscribe();
        loop {
            let overdue = *due.borrow_and_update();
            let until = overdue.map_or(patience, |it| it.min(patience));
            tokio::select! {
                biased;
                turn = &mut turn => return turn.map_err(|_| ended()),
                _ = due.changed() => {}
                () = sleep_until(until) => {
                    return Err(if overdue == Some(until) {
                        AccessError::TimedOut("the host has not answered an earlier call; nothing was asked of it".into())
                    } else {
                        AccessError::Busy(format!("the host was busy with other calls for {limit:?}; nothing was asked of it"))
                    });
                }
            }
        }
    }
}

fn ended() -> AccessError {
    AccessError::Disconnected("the thread of this host has ended".into())
}

/// What the thread has.
struct Session {
    connector: Arc<dyn Connector>,
    target: Arc<Target>,
    connection: Option<Box<dyn Connection>>,
    closed: Option<Closed>,
    pause: Pause,
}

/// Why there is no connection, and until when none is tried.
struct Closed {
    error: AccessError,
    until: Instant,
    pause: Duration,
}

/// Between two tries to open a connection.
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
        // A dead connection never heals.
        if let Err(AccessError::Disconnected(_)) = outcome {
            self.connection = None;
        }
        outcome
    }

    /// The connection, opened anew if it died or there was none.
    fn connection(&mut self) -> Result<&mut dyn Connection> {
        // Nothing was asked yet: if it died meanwhile, nobody has to know.
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
