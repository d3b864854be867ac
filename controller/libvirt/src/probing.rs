//! Readiness probes: a task for each probed guest asks its agent at the period of the probe, beside the passes.
//!
//! ```text
//! pass ─▶ readiness: watch, or remove ─▶ task ─ asks ─▶ agent
//!   ▲                                      │
//!   └────────── trigger ◀── verdict or result changes
//! ```
//! The agents of a host are asked over a connection of their own, one after the other.
//!
//! Reason: an agent that does not answer takes up to two timeouts of its probe, in which neither of the host's other two
//! connections may be occupied (`one_call_at_a_time_and_the_other_worker_continues` in `access/worker/tests.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller_core::conditions::ready;
use controller_core::machine::{CachedMachine, Machine};
use controller_core::objects::Meta as _;
use controller_core::readiness::{Attempts, Timing};
use controller_core::triggers::Triggers;
use kube::runtime::reflector::ObjectRef;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::access::AccessError;
use crate::hosts::connected::ConnectedHost;

/// A guest whose Machine had no pass for so long is not probed any more: passes follow each other within minutes as long as
/// there is a Machine.
const RENEWAL: Duration = Duration::from_hours(1);

/// What a call may take beyond the timeout of the probe, which libvirt applies twice: to reach the agent, and to its answer.
const CALL_MARGIN: Duration = Duration::from_secs(1);

/// What a readiness probe shows of a running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// Whether the guest is ready.
    pub(crate) is_ready: bool,
    /// Why it is not, and what to do.
    pub(crate) why: String,
}

/// The guests that are probed, by uid of the Machine. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Probing {
    guests: Arc<Mutex<BTreeMap<String, Probed>>>,
    triggers: Triggers,
}

/// A guest that is probed.
#[derive(Debug)]
struct Probed {
    source: Source,
    attempts: Attempts,
    /// When the guest was first seen: the origin of the times of `attempts`.
    seen: Instant,
    /// The last pass over the Machine.
    renewed: Instant,
    task: AbortHandle,
}

/// Which guest is probed, and how. For another one the attempts begin again.
#[derive(Clone, Debug)]
struct Source {
    host: Arc<ConnectedHost>,
    domain: Uuid,
    timing: Timing,
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        let (one, two) = (self, other);
        Arc::ptr_eq(&one.host, &two.host) && one.domain == two.domain && one.timing == two.timing
    }
}

impl Probing {
    /// Probes nothing yet. A change of what is known of a guest triggers a pass.
    pub(crate) fn new(triggers: Triggers) -> Self {
        Self {
            guests: Arc::default(),
            triggers,
        }
    }

    fn guests(&self) -> MutexGuard<'_, BTreeMap<String, Probed>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the probe of a Machine shows; `None`: it has none, or its guest does not run, and is not probed any more.
    pub(crate) fn readiness(
        &self,
        machine: &Machine,
        runs: bool,
        host: &Arc<ConnectedHost>,
        domain: Uuid,
    ) -> Option<Readiness> {
        let block = machine.desired().filter(|_| !machine.is_deleting());
        let probe = block.and_then(|block| block.readiness_probe());
        let Some(probe) = probe.filter(|_| runs) else {
            self.remove(machine.uid());
            return None;
        };
        let source = Source {
            host: host.clone(),
            domain,
            timing: Timing::of(probe),
        };
        let mut guests = self.guests();
        let now = Instant::now();
        if let Some(probed) = guests.get_mut(machine.uid())
            && probed.source == source
            && !probed.task.is_finished()
        {
            probed.renewed = now;
            return Some(probed.report());
        }
        let attempts = if was_ready(machine) {
            Attempts::of_ready(source.timing)
        } else {
            Attempts::of_started(source.timing)
        };
        let reference = ObjectRef::new(machine.name()).within(machine.namespace());
        let task = probe_guest(
            self.clone(),
            machine.uid().to_owned(),
            reference,
            source.clone(),
        );
        let probed = Probed {
            source,
            attempts,
            seen: now,
            renewed: now,
            // It looks for this entry, which is there once the lock is released.
            task: tokio::spawn(task).abort_handle(),
        };
        let report = probed.report();
        if let Some(former) = guests.insert(machine.uid().to_owned(), probed) {
            former.task.abort();
        }
        Some(report)
    }

    /// Ends the probes of a Machine.
    fn remove(&self, uid: &str) {
        if let Some(probed) = self.guests().remove(uid) {
            probed.task.abort();
        }
    }

    /// When the next attempt of a guest is due; `None`: none of this source any more.
    fn due(&self, uid: &str, source: &Source) -> Option<Instant> {
        let guests = self.guests();
        let probed = guests.get(uid).filter(|it| it.source == *source)?;
        let is_renewed = probed.renewed.elapsed() < RENEWAL;
        let due = probed.seen.checked_add(probed.attempts.due());
        due.filter(|_| is_renewed)
    }

    /// Adds an attempt. Returns whether what is known of the guest differs now; `None`: it is not probed any more.
    fn record(
        &self,
        uid: &str,
        source: &Source,
        began: Instant,
        result: &Result<(), AccessError>,
    ) -> Option<bool> {
        let mut guests = self.guests();
        let probed = guests.get_mut(uid).filter(|it| it.source == *source)?;
        let before = probed.report();
        let at = began.saturating_duration_since(probed.seen);
        match result {
            Ok(()) => probed.attempts.record(true, at, began.elapsed()),
            Err(error) if error.shows_nothing_of_guest() => probed.attempts.skip(at),
            Err(_) => probed.attempts.record(false, at, began.elapsed()),
        }
        Some(probed.report() != before)
    }
}

impl Probed {
    fn report(&self) -> Readiness {
        let timing = &self.source.timing;
        let seconds = timing.timeout.as_secs();
        let why = match self.attempts.last_succeeded() {
            None => "the guest agent was not asked yet".to_owned(),
            Some(true) => format!(
                "the guest agent answers, but not yet {} times in a row (spec.probes.readiness.successThreshold)",
                timing.success_threshold
            ),
            Some(false) => format!(
                "the guest agent does not answer within {seconds} s; see that qemu-guest-agent is installed and runs in the guest"
            ),
        };
        Readiness {
            is_ready: self.attempts.is_ready(),
            why,
        }
    }
}

/// Whether the guest was ready by the status that was written for this very spec, which another process may have done.
fn was_ready(machine: &Machine) -> bool {
    let mut conditions = machine.status.conditions.iter();
    let is_current =
        conditions.any(|it| it.kind == "Ready" && it.observed_generation == machine.generation());
    is_current && ready(&machine.status) == Some(("True", "Running"))
}

/// Asks the agent of a guest again and again, until the guest is not probed any more.
async fn probe_guest(
    probing: Probing,
    uid: String,
    machine: ObjectRef<CachedMachine>,
    source: Source,
) {
    let domain = source.domain;
    let timeout = source.timing.timeout;
    let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX);
    while let Some(due) = probing.due(&uid, &source) {
        sleep_until(due).await;
        let began = Instant::now();
        let limit = timeout.saturating_mul(2).saturating_add(CALL_MARGIN);
        let asked = source
            .host
            .agents
            .call(limit, move |host| host.ask_agent(domain, seconds));
        let result = asked.await;
        if let Err(error) = &result {
            tracing::debug!(%error, %machine, "a probed guest agent does not answer");
        }
        match probing.record(&uid, &source, began, &result) {
            Some(true) => probing.triggers.send([machine.clone()]),
            Some(false) => {}
            None => return,
        }
    }
}
