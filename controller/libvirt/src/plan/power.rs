//! Power: when a domain is started, shut down and destroyed.
//!
//! ```text
//! desired Stopped, running ─▶ record the intent ─▶ shutdown by agent, then ACPI ─▶ repeat … ─▶ after the grace period: destroy
//! restart ──────────────────▶ the same, then start; the status has the request before the intent is removed. While the guest
//!                             could not be started again, it is not shut down for a restart: the request waits
//! desired Running, shut off ▶ start, unless the guest shut itself down and guestShutdownStops is set, or another client
//!                             has switched it off and it is to be kept off; a restart request starts it then
//! ```
//! A guest that is off without a recorded intent has shut itself down, or another client has switched it off. So the
//! intent is written to the domain before the shutdown is requested, and is still there after a restart of this program or
//! of libvirt's daemon.

use std::time::Duration;

use common::api::choice::{Phase, PowerState};
use common::api::normalized::Normalized;
use common::api::status::LastRestart;
use common::render::libvirt::{DomainMetadata, Intent, IntentKind};

use super::action::Action;
use crate::access::{State, shutoff};
use crate::observed::Guest;
use controller_core::conditions::Fault;
use controller_core::foreign_stop::OnForeignStop;
use controller_core::machine::Machine;
use controller_core::plan::Now;
use controller_core::reset::PowerPlan;
use controller_core::restart::{self, answered};

/// How long a guest may take to shut down before it is switched off, if its block does not say so, as blocks of
/// earlier releases.
const SHUTDOWN_LIMIT: Duration = Duration::from_mins(1);
/// Pause between two shutdown requests, as a guest that is still booting ignores the first one, and until the state is
/// read again after a start.
pub(super) const POWER_RETRY: Duration = Duration::from_secs(5);

/// Pause until a guest whose QEMU crashed or did not start is started again: without it, one that crashes at once
/// would keep its host busy.
const CRASH_BACKOFF: Duration = Duration::from_secs(30);

/// What a step of power depends on beside the Machine and its guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) on_foreign_stop: OnForeignStop,
    pub(super) now: Now,
    /// Whether a guest that is shut down for a restart could be started again.
    pub(super) may_restart: bool,
}

/// How far a restart is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Restarting {
    /// There is none.
    #[default]
    No,
    /// The guest goes down, or is started again.
    UnderWay,
    /// The guest is not shut down for it, because it could not be started again.
    Waits,
}

/// What to do about power.
#[derive(Debug, Default)]
pub(super) struct Power {
    pub(super) actions: Vec<Action>,
    /// The last restart, for the status.
    pub(super) last: Option<LastRestart>,
    /// When to read the state again.
    pub(super) requeue_after: Option<Duration>,
    /// Whether the guest shut itself down and is not started again.
    pub(super) stays_off: bool,
    pub(super) restarting: Restarting,
    /// Whether QEMU crashed or did not start, and [`CRASH_BACKOFF`] has not passed.
    pub(super) failed: bool,
    /// What is reported of a guest that another client has switched off.
    pub(super) foreign_stop: Option<Fault>,
}

impl Power {
    /// What it means for a requested reset. A restart that waits leaves the guest running.
    pub(super) fn plan(&self, block: &Normalized, guest: &Guest) -> PowerPlan {
        if self.restarting == Restarting::UnderWay {
            PowerPlan::Restarts
        } else if !guest.state.active() {
            PowerPlan::IsOff
        } else if block.power_state == PowerState::Stopped {
            PowerPlan::Stops
        } else {
            PowerPlan::KeepsRunning
        }
    }
}

pub(super) fn power(
    machine: &Machine,
    block: &Normalized,
    guest: &Guest,
    metadata: &DomainMetadata,
    context: Context,
) -> Power {
    let Context {
        on_foreign_stop,
        now,
        may_restart,
    } = context;
    let last = machine.status.last_restart.clone();
    let switch = Switch {
        on: block.power_state == PowerState::Running,
        new_request: restart::new_request(machine),
        guest,
        metadata,
        keeps_efi: block.firmware.persistent != Some(false),
        limit: shutdown_limit(Some(block)),
        now,
        may_restart,
    };
    let power = Power {
        last,
        ..Power::default()
    };
    if guest.state.active() {
        return switch.running(power);
    }
    let guest_shut_down = match guest.reason {
        shutoff::SHUTDOWN => true,
        // The daemon was restarted since then and has lost the reason.
        shutoff::UNKNOWN => machine.status.phase == Some(Phase::Stopped),
        _ => false,
    };
    let failed = matches!(guest.reason, shutoff::CRASHED | shutoff::FAILED);
    if switch.on && failed && metadata.intent.is_none() {
        let wait = match failed_at(machine) {
            Some(since) => now.until(Some(since), CRASH_BACKOFF),
            None => Some(CRASH_BACKOFF),
        };
        if let Some(wait) = wait {
            return Power {
                requeue_after: Some(wait),
                failed: true,
                ..power
            };
        }
    }
    // The controller records what it is about to do before it switches a guest off.
    let was_switched_off = match guest.reason {
        shutoff::DESTROYED => true,
        shutoff::UNKNOWN => metadata.kept_off,
        _ => false,
    };
    let is_foreign = switch.on && metadata.intent.is_none() && was_switched_off;
    let what = "another client has switched the guest off, as virsh destroy does";
    let foreign_stop = is_foreign.then(|| on_foreign_stop.fault(machine, what));
    let is_kept = is_foreign && on_foreign_stop == OnForeignStop::Keep;
    let stays_off = block.guest_shutdown_stops && metadata.intent.is_none() && guest_shut_down;
    let mut power = Power {
        foreign_stop,
        ..power
    };
    if is_kept && !metadata.kept_off {
        let metadata = DomainMetadata {
            kept_off: true,
            ..metadata.clone()
        };
        power.actions.push(Action::SetMetadata(Box::new(metadata)));
    }
    switch.stopped(power, stays_off || is_kept)
}

/// Whether the next step starts the guest.
pub(super) fn starts(
    machine: &Machine,
    block: &Normalized,
    guest: &Guest,
    (on_foreign_stop, now): (OnForeignStop, Now),
) -> bool {
    let context = Context {
        on_foreign_stop,
        now,
        // Only a guest that is off is started.
        may_restart: false,
    };
    let metadata = guest.metadata.clone().unwrap_or_default();
    let power = power(machine, block, guest, &metadata, context);
    let mut steps = power.actions.iter();
    steps.any(|step| matches!(step, Action::Start { .. }))
}

/// Input of the next step.
struct Switch<'a> {
    /// Whether the desired power state is Running.
    on: bool,
    /// The restart request of the Machine, if it was not handled yet.
    new_request: Option<String>,
    guest: &'a Guest,
    metadata: &'a DomainMetadata,
    now: Now,
    may_restart: bool,
    /// Whether the firmware's variables outlast the guest.
    keeps_efi: bool,
    /// How long the guest may take to shut down.
    limit: Duration,
}

impl Switch<'_> {
    fn intent(&self) -> Option<&Intent> {
        self.metadata.intent.as_ref()
    }

    fn record(&self, intent: Option<Intent>) -> Action {
        let mut metadata = self.metadata.clone();
        metadata.intent = intent;
        Action::SetMetadata(Box::new(metadata))
    }

    fn begin(&self, kind: IntentKind, request: Option<String>) -> Action {
        let since = self.now.text();
        self.record(Some(Intent {
            kind,
            since,
            request,
        }))
    }

    fn running(self, mut power: Power) -> Power {
        let kind = self.intent().map(|intent| intent.kind);
        let begins = match (self.on, kind) {
            (false, Some(IntentKind::Stop)) | (true, Some(IntentKind::Restart)) => None,
            (false, _) => Some(self.begin(IntentKind::Stop, None)),
            (true, None) => match &self.new_request {
                Some(_) if !self.may_restart => {
                    power.restarting = Restarting::Waits;
                    return power;
                }
                Some(text) => Some(self.begin(IntentKind::Restart, Some(text.clone()))),
                None => return power,
            },
            // The stop request was withdrawn, but the guest may already be shutting down. Record a restart, so that
            // it is powered on again whether or not it reacted.
            (true, Some(IntentKind::Stop)) => {
                let kind = IntentKind::Restart;
                Some(
                    self.record(
                        self.intent()
                            .cloned()
                            .map(|intent| Intent { kind, ..intent }),
                    ),
                )
            }
            (true, Some(IntentKind::Start)) => return self.started(power),
        };
        let since = self.intent().filter(|_| kind != Some(IntentKind::Start));
        let since = since.map(|intent| intent.since.as_str());
        power.actions.extend(begins);
        // The guest may still run, as one does that ignores the first request.
        if self.on && !self.may_restart {
            // The request begins anew afterwards: its grace period does not pass while nobody asks the guest.
            let is_begun = kind == Some(IntentKind::Restart) && self.new_request.is_some();
            power.actions.extend(is_begun.then(|| self.record(None)));
            power.restarting = Restarting::Waits;
            return power;
        }
        if self.on {
            power.restarting = Restarting::UnderWay;
        }
        power
            .actions
            .extend(shutdown_step(self.guest, since, self.limit, self.now));
        power.requeue_after = Some(POWER_RETRY);
        power
    }

    /// The guest was started again. The status has the request before the intent with it is removed from the domain.
    fn started(self, mut power: Power) -> Power {
        let request = self.intent().and_then(|intent| intent.request.clone());
        let last = power.last.as_ref().map(|last| &last.request);
        if request.is_none() || last == request.as_ref() {
            power.actions.push(self.record(None));
        } else {
            power.last = request.map(answered);
            power.requeue_after = Some(Duration::ZERO);
        }
        power
    }

    /// `stays_off`: it shut itself down, or another client has switched it off for good. It is started again only by a
    /// restart request.
    fn stopped(self, mut power: Power, stays_off: bool) -> Power {
        let intent = self.intent();
        let kind = intent.map(|intent| intent.kind);
        let request = self.new_request.clone().filter(|_| self.on && stays_off);
        if !self.on || (stays_off && request.is_none()) {
            // Record that the guest is off as desired, and did not shut itself down.
            if !self.on && kind != Some(IntentKind::Stop) {
                power.actions.push(self.begin(IntentKind::Stop, None));
            }
            power.stays_off = stays_off;
            power.last = self.new_request.map(answered).or(power.last);
            return power;
        }
        match kind {
            Some(IntentKind::Restart) => {
                let request = intent.and_then(|intent| intent.request.clone());
                power.actions.push(self.begin(IntentKind::Start, request));
                power.restarting = Restarting::UnderWay;
            }
            Some(IntentKind::Start) => power.restarting = Restarting::UnderWay,
            Some(IntentKind::Stop) => {
                power.actions.push(self.begin(IntentKind::Start, None));
            }
            // The request is recorded before the start, so that it starts the guest once.
            None if request.is_some() => {
                power.actions.push(self.begin(IntentKind::Start, request));
                power.restarting = Restarting::UnderWay;
            }
            None => {}
        }
        if power.restarting == Restarting::No {
            // A request that came meanwhile is met by this start.
            power.last = self.new_request.map(answered).or(power.last);
        }
        power.actions.push(Action::Start {
            reset_nvram: self.metadata.reset_nvram || !self.keeps_efi,
        });
        power.requeue_after = Some(POWER_RETRY);
        power
    }
}

/// When the failure of QEMU was first reported in the Machine's conditions.
fn failed_at(machine: &Machine) -> Option<&str> {
    let mut conditions = machine.status.conditions.iter();
    let reported = conditions.find(|it| it.kind == "VirtualMachineReady")?;
    (reported.reason == "VMFailed").then_some(reported.last_transition_time.as_str())
}

/// How long the guest of a block may take to shut down before it is switched off.
pub(super) fn shutdown_limit(block: Option<&Normalized>) -> Duration {
    let seconds = block.and_then(|block| block.termination_grace_period_seconds);
    seconds.map_or(SHUTDOWN_LIMIT, |seconds| {
        Duration::from_secs(seconds.into())
    })
}

/// The next step to shut a guest down: `since` is the time of the first request, `None` before it. `limit`: see
/// [`shutdown_limit`].
pub(super) fn shutdown_step(
    guest: &Guest,
    since: Option<&str>,
    limit: Duration,
    now: Now,
) -> Option<Action> {
    if since.is_none() {
        return Some(Action::AskToStop {
            agent: guest.has_agent,
        });
    }
    if now.until(since, limit).is_none() {
        return Some(Action::Destroy);
    }
    let is_shutting_down = guest.state == State::ShuttingDown;
    (!is_shutting_down).then_some(Action::AskToStop { agent: false })
}
