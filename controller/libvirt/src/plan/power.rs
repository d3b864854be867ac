//! Power: when the guest is started, asked to shut down, and ended.
//!
//! ```text
//! to be off, is on ─▶ record the intent ─▶ ask the agent, ACPI ─▶ ask again … ─▶ after a minute: off by force
//! restart ──────────▶ the same, then on; the text that asked is in the status before it is forgotten
//! off, to be on ────▶ unless the guest shut itself down and that is to stay; a restart request starts it then
//! ```
//! A guest that is off without a recorded intent has shut itself down. So the intent is written to the domain
//! before the guest is asked, and outlives this program and libvirt's daemon.

use std::time::Duration;

use common::api::choice::{Phase, PowerState};
use common::api::normalized::Normalized;
use common::api::status::LastRestart;
use common::render::libvirt::{DomainMetadata, Intent, IntentKind};

use super::action::Action;
use crate::access::{State, shutoff};
use crate::observed::Guest;
use controller_core::machine::Machine;
use controller_core::plan::Now;

/// How long a guest may take to shut down before it is switched off. Windows with updates takes longer and
/// should be stopped from inside; kubelet gives a pod 30 s.
pub(super) const SHUTDOWN_LIMIT: Duration = Duration::from_mins(1);
/// Pause between two requests: a guest that is still booting ignores the first one.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(5);

/// A guest whose QEMU died is started again after this: one that dies at once would keep its host busy.
const REST: Duration = Duration::from_secs(30);

/// What to do about power.
#[derive(Debug, Default)]
pub(super) struct Power {
    pub(super) actions: Vec<Action>,
    /// What is to be remembered of a restart.
    pub(super) last: Option<LastRestart>,
    /// When to look again.
    pub(super) requeue_after: Option<Duration>,
    /// Whether the guest is off because it shut itself down, and stays so.
    pub(super) stays_off: bool,
    /// Whether a restart is under way.
    pub(super) restarts: bool,
    /// Whether its QEMU died, and it rests before it is started again.
    pub(super) died: bool,
}

pub(super) fn power(
    machine: &Machine,
    block: &Normalized,
    guest: &Guest,
    mark: &DomainMetadata,
    now: Now,
) -> Power {
    let last = machine.status.last_restart.clone();
    let switch = Switch {
        on: block.power_state == PowerState::Running,
        asked: machine.new_restart_request(),
        guest,
        mark,
        now,
    };
    let power = Power {
        last,
        ..Power::default()
    };
    if guest.state.active() {
        return switch.of_guest_that_runs(power);
    }
    let itself = match guest.reason {
        shutoff::SHUTDOWN => true,
        // The daemon was started since, and does not know.
        UNKNOWN => machine.status.phase == Some(Phase::Stopped),
        _ => false,
    };
    let died = matches!(guest.reason, shutoff::CRASHED | shutoff::FAILED);
    if switch.on && died && mark.intent.is_none() {
        let since = died_at(machine);
        let wait = since.map_or(Some(REST), |since| now.until(Some(since), REST));
        if let Some(wait) = wait {
            return Power {
                requeue_after: Some(wait),
                died: true,
                ..power
            };
        }
    }
    let stays = block.guest_shutdown_stops && mark.intent.is_none() && itself;
    switch.of_guest_that_is_off(power, stays)
}

/// libvirt's reason of a state that it has not seen come about.
const UNKNOWN: i32 = 0;

/// What the next step depends on.
struct Switch<'a> {
    /// Whether the guest is to run.
    on: bool,
    /// The text that asks for a restart, when it is new.
    asked: Option<String>,
    guest: &'a Guest,
    mark: &'a DomainMetadata,
    now: Now,
}

impl Switch<'_> {
    fn intent(&self) -> Option<&Intent> {
        self.mark.intent.as_ref()
    }

    fn record(&self, intent: Option<Intent>) -> Action {
        let mark = self.mark.clone();
        Action::SetMetadata(Box::new(DomainMetadata { intent, ..mark }))
    }

    fn begin(&self, kind: IntentKind, request: Option<String>) -> Action {
        let since = self.now.text();
        self.record(Some(Intent {
            kind,
            since,
            request,
        }))
    }

    fn of_guest_that_runs(self, mut power: Power) -> Power {
        let kind = self.intent().map(|intent| intent.kind);
        let begins = match (self.on, kind) {
            (false, Some(IntentKind::Stop)) | (true, Some(IntentKind::Restart)) => None,
            (false, _) => Some(self.begin(IntentKind::Stop, None)),
            (true, None) => match &self.asked {
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
        power.restarts = self.on;
        let since = self.intent().filter(|_| kind != Some(IntentKind::Start));
        let since = since.map(|intent| intent.since.as_str());
        power.actions.extend(begins);
        power.actions.extend(ask(self.guest, since, self.now));
        power.requeue_after = Some(ASK_AGAIN);
        power
    }

    /// It has been started again. What asked for that is in the status before it is forgotten here.
    fn started(self, mut power: Power) -> Power {
        let request = self.intent().and_then(|intent| intent.request.clone());
        let last = power.last.as_ref().map(|last| &last.request);
        if request.is_none() || last == request.as_ref() {
            power.actions.push(self.record(None));
        } else {
            power.last = request.map(done);
            power.requeue_after = Some(Duration::ZERO);
        }
        power
    }

    /// `stays`: it shut itself down, and is started again only by a restart request.
    fn of_guest_that_is_off(self, mut power: Power, stays: bool) -> Power {
        let intent = self.intent();
        let kind = intent.map(|intent| intent.kind);
        let request = self.asked.clone().filter(|_| self.on && stays);
        if !self.on || (stays && request.is_none()) {
            // Record that the guest is off as desired, and did not shut itself down.
            if !self.on && kind != Some(IntentKind::Stop) {
                power.actions.push(self.begin(IntentKind::Stop, None));
            }
            power.stays_off = stays;
            power.last = self.asked.map(done).or(power.last);
            return power;
        }
        match kind {
            Some(IntentKind::Restart) => {
                let request = intent.and_then(|intent| intent.request.clone());
                power.actions.push(self.begin(IntentKind::Start, request));
                power.restarts = true;
            }
            Some(IntentKind::Start) => power.restarts = true,
            Some(IntentKind::Stop) => {
                power.actions.push(self.begin(IntentKind::Start, None));
            }
            // The request is recorded before the start, so that it starts the guest once.
            None if request.is_some() => {
                power.actions.push(self.begin(IntentKind::Start, request));
                power.restarts = true;
            }
            None => {}
        }
        if !power.restarts {
            // A text that came meanwhile asks for what happens anyway.
            power.last = self.asked.map(done).or(power.last);
        }
        power.actions.push(Action::Start {
            reset_nvram: self.mark.reset_nvram,
        });
        power.requeue_after = Some(ASK_AGAIN);
        power
    }
}

/// Since when the Machine says that its QEMU died.
fn died_at(machine: &Machine) -> Option<&str> {
    let mut conditions = machine.status.conditions.iter();
    let reported = conditions.find(|it| it.kind == "VirtualMachineReady")?;
    (reported.reason == "VMFailed").then_some(reported.last_transition_time.as_str())
}

fn done(request: String) -> LastRestart {
    LastRestart {
        request,
        replaces: None,
    }
}

/// The next step towards off of a guest that was first asked then, or was not asked yet.
pub(super) fn ask(guest: &Guest, since: Option<&str>, now: Now) -> Option<Action> {
    if since.is_none() {
        return Some(Action::AskToStop {
            agent: guest.has_agent,
        });
    }
    if now.until(since, SHUTDOWN_LIMIT).is_none() {
        return Some(Action::Destroy);
    }
    let is_asked = guest.state == State::ShuttingDown;
    (!is_asked).then_some(Action::AskToStop { agent: false })
}
