//! The actions of a pass over a Machine that is not under deletion, in their order.

use std::time::Duration;

use common::api::normalized::Normalized;
use common::names;
use common::render::libvirt::{Difference, Domain, LiveUpdate};
use controller_core::backend::Act as _;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::plan::{Now, Refusal, Subject};

use super::action::{Action, Draft};
use super::power::{Power, Restarting};
use super::status::{Findings, report};
use crate::observed::{Guest, Observed};

/// Pause before the next pass after a change that needs the guest's cooperation, while an image is fetched,
/// or while a part of the host cannot be read. libvirt has no event for most of it, and a person who looks on sees the
/// progress; a third of the time between two passes otherwise.
pub(super) const SOON: Duration = Duration::from_secs(10);

/// Which of the actions are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All of them.
    All,
    /// A stop that is desired: the guest may run on another host.
    Stop,
    /// None: the host is in maintenance.
    Nothing,
}

impl Scope {
    /// `has_conflict`: whether the guest may run on another host.
    pub(super) fn of(findings: &Findings<'_>, has_conflict: bool) -> Self {
        if findings.maintenance {
            Self::Nothing
        } else if has_conflict {
            Self::Stop
        } else {
            Self::All
        }
    }
}

/// The draft of those steps that the scope permits.
pub(super) fn finish(
    machine: &Machine,
    (block, guest): (&Normalized, Option<&Guest>),
    observed: &Observed,
    now: Now,
    mut findings: Findings<'_>,
    (mut steps, scope): (Steps, Scope),
) -> Draft {
    let may_all = scope == Scope::All && !machine.is_paused();
    let planned = if may_all {
        vec![]
    } else {
        steps.actions.clone()
    };
    if scope != Scope::All {
        findings.leaves_changes = findings.restarting != Restarting::No;
        (findings.restart, findings.reset) = (None, None);
        findings.restarting = Restarting::No;
    }
    match scope {
        Scope::All => {}
        Scope::Nothing => steps = Steps::default(),
        Scope::Stop => {
            findings.foreign_stop = None;
            steps.keep_permitted(block, guest);
        }
    }
    steps.keep_off(machine);
    let left = planned.into_iter();
    let left = left.filter(|it| machine.is_paused() || !steps.actions.contains(it));
    findings.add_left(&left.collect::<Vec<_>>());
    Draft {
        actions: steps.actions,
        status: Some(report(machine, observed, now, &findings)),
        requeue_after: steps.requeue_after,
    }
}

impl Findings<'_> {
    /// Adds what the planned actions that are not carried out would have made.
    fn add_left(&mut self, left: &[Action]) {
        // A record of ours is no change of the Machine.
        let is_change = |action: &Action| !matches!(action, Action::SetMetadata(_));
        self.leaves_changes |= left.iter().any(is_change);
        if left.iter().any(Action::makes_volume) {
            let message = "the disks get their volumes when the controller may change the Machine again: the conditions Paused, Ready and VirtualMachineReady show why it may not now";
            self.withheld
                .get_or_insert_with(|| Fault::new("VolumesPending", message));
        }
    }
}

/// The actions, and when to observe their result.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) actions: Vec<Action>,
    pub(super) requeue_after: Option<Duration>,
}

impl Steps {
    /// Takes out the start of a guest whose address another Machine has.
    pub(super) fn keep_off(&mut self, machine: &Machine) {
        let starts = |action: &Action| matches!(action, Action::Start { .. });
        let keeps_off = machine.addresses.keeps_off();
        self.actions.retain(|action| !(keeps_off && starts(action)));
    }

    /// The definition first: a device that is plugged in then has the address that it has after a restart.
    pub(super) fn define_or_hot_plug(
        &mut self,
        desired: &Domain,
        guest: Option<&Guest>,
        changes: &[Difference],
    ) {
        let defined = guest.and_then(|guest| guest.defined.as_ref());
        if !defined.is_some_and(|defined| desired.is_defined_by(defined)) {
            self.actions.push(Action::Define(Box::new(desired.clone())));
            self.requeue_after = Some(Duration::ZERO);
            return;
        }
        for live in changes.iter().filter_map(|change| change.live.as_ref()) {
            // A balloon reaches its size at the guest's own pace, and a guest may have none.
            if !matches!(live, LiveUpdate::SetMemory(_)) {
                self.requeue_after = Some(SOON);
            }
            self.actions.push(Action::HotPlug(Box::new(live.clone())));
        }
    }

    /// Removes the confirmation that state is discarded. `defined`: the definition that these steps replace. With another
    /// firmware the removal comes first, because no later pass would know of the change.
    pub(super) fn answer_discarded_state(&mut self, machine: &Machine, defined: Option<&Domain>) {
        let new_firmware = self.actions.iter().position(|action| {
            let Action::Define(desired) = action else {
                return false;
            };
            defined.is_some_and(|defined| defined.firmware != desired.firmware)
        });
        if machine.has_discarded_state(new_firmware.is_some()) {
            let removal = Action::RemoveAnnotation(names::ANNOTATION_DISCARD_STATE);
            let at = new_firmware.unwrap_or(self.actions.len());
            self.actions.insert(at, removal);
        }
    }

    /// Deletes kept volumes, and observes the result at once: then the request is answered.
    pub(super) fn add_deletions(&mut self, deletions: Vec<Action>) {
        if !deletions.is_empty() {
            self.requeue_after = Some(Duration::ZERO);
        }
        self.actions.extend(deletions);
    }

    /// Grows volumes. One of a guest that these steps start is not grown below it: it grows through the guest, in a later pass.
    pub(super) fn add_growth(&mut self, mut growth: Vec<Action>) {
        let mut actions = self.actions.iter();
        if actions.any(|action| matches!(action, Action::Start { .. })) {
            growth.retain(|action| !matches!(action, Action::GrowVolume(_)));
        }
        self.actions.extend(growth);
    }

    /// Sets the password of the screen, and observes it at once.
    pub(super) fn add_screen(&mut self, screen: Option<Action>) {
        if let Some(screen) = screen {
            self.actions.push(screen);
            self.requeue_after = Some(Duration::ZERO);
        }
    }

    /// Whether a start after these steps waits for what was refused: for one of them, or for the definition, which is not among
    /// them then. A device that the running guest refused is no obstacle: its next start has it.
    pub(super) fn wait_for(
        &self,
        refusal: Option<&Refusal>,
        guest: &Guest,
        desired: &Domain,
    ) -> bool {
        refusal.is_some_and(|refusal| {
            let mut actions = self.actions.iter();
            let defined = guest.defined.as_ref();
            let is_defined = defined.is_some_and(|it| desired.is_defined_by(it));
            actions.any(|action| action.subject() == refusal.subject)
                || (refusal.subject == Subject::Guest && !is_defined)
        })
    }

    /// A guest is not started while an object that it needs is absent. A stop is always carried out.
    pub(super) fn add_power(&mut self, power: Power, may_start: bool) {
        let starts = power
            .actions
            .iter()
            .any(|step| matches!(step, Action::Start { .. }));
        if may_start || !starts {
            self.actions.extend(power.actions);
            self.requeue_after = self.requeue_after.or(power.requeue_after);
        }
    }
}
