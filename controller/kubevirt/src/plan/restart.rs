//! A requested restart deletes the instance that runs at the time of the request, and no other one.
//!
//! ```text
//! new request ─▶ status: `replaces` this uid ─▶ instance of this uid deleted ─▶ another one has come up: done
//!          ├──▶ done, if no guest runs or the Machine is off
//!          └──▶ `replaces` the guest that shut itself down and stays off ─▶ another one has come up: done
//! ```
//! Other causes have the same sequence, with their text in `cause`. The guest
//! - was evicted, or stopped by another client, and KubeVirt would leave it off,
//! - was shutting down when it was to run again, or
//! - never ran, and its VirtualMachine has changed since it was created.
//!
//! The status is written before the deletion, and the deletion names the uid. So one request deletes one instance,
//! however often the sequence is interrupted and repeated.
//!
//! KubeVirt's subresource `restart` is not used for two reasons. It names no instance, so repeating it after a lost
//! answer would restart the guest that has just been started. And it needs KubeVirt's aggregated API, which may be
//! down while the rest works. It would delete the instance, too.
//!
//! With `Always`, KubeVirt creates a new instance from the current VirtualMachine. With `RerunOnFailure` it does so
//! only after a failure or a change of the strategy (`syncRunStrategy` of virt-controller, since KubeVirt 1.0). So the
//! strategy is `Always` until the new instance has come up.

use common::api::choice::{Phase, PowerState};
use common::api::normalized::Normalized;
use common::api::status::LastRestart;
use common::names;
use common::render::kubevirt::HALTED;

use super::action::Action;
use super::observed::Observed;
use super::others::has_deleted_instance;
use crate::objects::Instance;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::restart::{self, may_stop_for_restart};

/// Cause of the replacement of an instance that waits for a node.
const NEVER_RAN: &str = "it had not started yet, and the spec has changed";

/// Cause of the start of a guest whose instance another client has deleted.
const STOPPED: &str = "another client had stopped it";

/// Cause of the start of a guest that was shutting down when it was to run again. With `RerunOnFailure` KubeVirt takes
/// the end of such a guest for its own shutdown.
const TAKEN_BACK: &str = "it was shutting down when spec.powerState became Running again";

/// The state of the last restart and the action that continues it.
#[derive(Debug, Default)]
pub(super) struct Restart {
    pub(super) last: Option<LastRestart>,
    pub(super) action: Option<Action>,
}

impl Restart {
    /// Whether a guest that a user's request is to replace runs on, because it could not be started again. The request stays
    /// open. `is_complete`: see [`may_stop_for_restart`].
    pub(super) fn is_held(
        &self,
        machine: &Machine,
        observed: &Observed,
        is_complete: bool,
    ) -> bool {
        let requested = self.last.as_ref().filter(|last| last.cause.is_none());
        let former = requested.and_then(|last| last.replaces.as_deref());
        let guest = instance(machine, observed).filter(|instance| instance.runs());
        let is_former = guest.is_some_and(|guest| former == Some(guest.uid()));
        is_former && !may_stop_for_restart(machine, is_complete)
    }

    /// Whether the guest that replaces the former one has not come up yet.
    pub(super) fn is_open(&self) -> bool {
        restart::is_open(self.last.as_ref())
    }

    /// Whether a guest that another client has stopped is still going down, and is started again then.
    pub(super) fn undoes_stop(&self, observed: &Observed) -> bool {
        let former = observed.instance.as_deref().map(Instance::uid);
        self.last.as_ref().is_some_and(|last| {
            last.cause.as_deref() == Some(STOPPED)
                && former.is_some()
                && last.replaces.as_deref() == former
        })
    }

    /// Replaces an instance that waits for a node because its VirtualMachine has just changed: KubeVirt would go on
    /// with the instance as it is, for which there is no room or no node.
    pub(super) fn replace_what_never_ran(
        &mut self,
        machine: &Machine,
        block: &Normalized,
        observed: &Observed,
    ) {
        let waiting = instance(machine, observed)
            .filter(|instance| observed.waits_for_node(instance) && !instance.is_deleting());
        if let Some(waiting) = waiting.filter(|_| block.power_state == PowerState::Running)
            && self.last.as_ref().and_then(|last| last.replaces.as_deref()) != Some(waiting.uid())
        {
            let open = restart::open_for(self.last.as_ref(), waiting.uid(), NEVER_RAN);
            self.last = Some(open);
        }
    }
}

pub(super) fn restart(machine: &Machine, block: &Normalized, observed: &Observed) -> Restart {
    let last = machine.status.last_restart.clone();
    if !observed.kubevirt {
        // Without KubeVirt's kinds, no instance can be observed.
        return Restart { last, action: None };
    }
    let instance = instance(machine, observed);
    let on = block.power_state == PowerState::Running;
    if let Some(request) = restart::new_request(machine) {
        let replaces = match instance {
            Some(instance) => {
                let stays_off = block.guest_shutdown_stops && instance.has_succeeded();
                (on && (stays_off || !instance.has_ended())).then(|| instance.uid().to_owned())
            }
            // The instance of an earlier request may be deleted already and not yet replaced.
            None => last
                .and_then(|last| last.replaces)
                .or_else(|| stays_off(machine, block, observed).then(String::new))
                .filter(|_| on),
        };
        return begun(restart::open(request, replaces));
    }
    let is_open = restart::is_open(last.as_ref());
    if let Some(eviction) = observed.eviction.as_ref().filter(|_| on && !is_open) {
        let (uid, cause) = (&eviction.instance, &eviction.cause);
        return begun(restart::open_for(last.as_ref(), uid, cause));
    }
    if let Some((instance, cause)) = stopped(machine, block, observed).filter(|_| !is_open) {
        let uid = instance.map_or("", Instance::uid);
        return begun(restart::open_for(last.as_ref(), uid, cause));
    }
    let Some(LastRestart {
        request,
        replaces: Some(uid),
        cause,
    }) = last
    else {
        return Restart { last, action: None };
    };
    // One that got a node after all stays: what it lacks is a pending change.
    let is_of_waiting = cause.as_deref() == Some(NEVER_RAN);
    let has_started = |instance: &Instance| is_of_waiting && !observed.waits_for_node(instance);
    let replaces = match instance {
        Some(instance) if has_started(instance) && !instance.is_deleting() => None,
        Some(instance) if instance.uid() != uid => {
            (on && is_starting(instance, observed)).then_some(uid)
        }
        Some(_) => Some(uid),
        None => on.then_some(uid),
    };
    let former = instance.filter(|it| Some(it.uid()) == replaces.as_deref());
    let exists = observed.vm.as_ref().is_some_and(|vm| !vm.is_deleting());
    let action = former
        .filter(|instance| on && exists && !instance.is_deleting())
        .map(|instance| Action::DeleteInstance {
            uid: instance.uid().to_owned(),
            waits: is_of_waiting,
        });
    let cause = cause.filter(|_| replaces.is_some());
    let last = Some(LastRestart {
        request,
        replaces,
        cause,
    });
    Restart { last, action }
}

/// The status is written first.
fn begun(open: LastRestart) -> Restart {
    Restart {
        last: Some(open),
        action: None,
    }
}

/// The Machine's own instance.
pub(super) fn instance<'a>(machine: &Machine, observed: &'a Observed) -> Option<&'a Instance> {
    let vm = observed.vm.as_ref();
    let ours = vm.is_none_or(|vm| vm.belongs_to(machine.name(), machine.uid()));
    let instance = observed.instance.as_deref();
    instance.filter(|instance| ours && instance.machine() == Some(machine.name()))
}

/// The instance of a guest that was stopped and that KubeVirt would leave off although it is to run, with the cause of
/// its new start; `None`: there is none, or it stays off.
fn stopped<'a>(
    machine: &Machine,
    block: &Normalized,
    observed: &'a Observed,
) -> Option<(Option<&'a Instance>, &'static str)> {
    let instance = instance(machine, observed);
    if has_deleted_instance(machine, block, observed) && observed.on_foreign_stop.restores(machine)
    {
        return Some((instance, STOPPED));
    }
    // This controller has stopped it, and its VirtualMachine is still halted.
    let vm = observed.vm.as_deref().filter(|vm| !vm.is_deleting())?;
    let is_ours = vm.spec.run_strategy == HALTED
        && vm.annotation(names::ANNOTATION_RUN_STRATEGY) == Some(HALTED);
    let on = block.power_state == PowerState::Running && block.guest_shutdown_stops;
    let going = instance.filter(|it| it.is_deleting() && !it.has_ended())?;
    (on && is_ours).then_some((Some(going), TAKEN_BACK))
}

/// Whether the guest is off and its instance gone, because it shut itself down or another client stopped it: KubeVirt
/// starts none without a change of the strategy.
fn stays_off(machine: &Machine, block: &Normalized, observed: &Observed) -> bool {
    let strategy = observed.vm.as_ref().map(|vm| vm.spec.run_strategy.as_str());
    let is_off = match strategy {
        Some("RerunOnFailure") => block.guest_shutdown_stops,
        Some(HALTED) => true,
        _ => false,
    };
    is_off && machine.status.phase == Some(Phase::Stopped)
}

/// Whether the guest has neither come up nor ended yet. KubeVirt says of the VirtualMachine that it runs a moment after it
/// says so of the instance.
fn is_starting(instance: &Instance, observed: &Observed) -> bool {
    let vm = observed.vm.as_deref();
    let starts = vm.is_some_and(|vm| vm.status.printable_status == "Starting");
    (instance.status.phase != "Running" || starts) && !instance.has_ended()
}
