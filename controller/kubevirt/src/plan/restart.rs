//! A requested restart deletes the instance that runs at the time of the request, and no other one.
//!
//! ```text
//! new request ─▶ status: `replaces` this uid ─▶ instance of this uid deleted ─▶ another one has come up: done
//!          ├──▶ done, if no guest runs or the Machine is off
//!          └──▶ `replaces` the guest that shut itself down and stays off ─▶ another one has come up: done
//! ```
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

use super::action::Action;
use super::observed::Observed;
use crate::objects::Instance;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// The state of the last restart and the action that continues it.
#[derive(Debug, Default)]
pub(super) struct Restart {
    pub(super) last: Option<LastRestart>,
    pub(super) action: Option<Action>,
}

impl Restart {
    /// Whether the guest that replaces the former one has not come up yet.
    pub(super) fn is_open(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|last| last.replaces.is_some())
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
    if let Some(request) = machine.new_restart_request() {
        let replaces = match instance {
            Some(instance) => {
                let stays_off = block.guest_shutdown_stops && has_succeeded(instance);
                (on && (stays_off || !has_ended(instance))).then(|| instance.uid().to_owned())
            }
            // The instance of an earlier request may be deleted already and not yet replaced.
            None => last
                .and_then(|last| last.replaces)
                .or_else(|| stays_off(machine, block, observed).then(String::new))
                .filter(|_| on),
        };
        let last = Some(LastRestart { request, replaces });
        return Restart { last, action: None };
    }
    let Some(LastRestart {
        request,
        replaces: Some(uid),
    }) = last
    else {
        return Restart { last, action: None };
    };
    let replaces = match instance {
        Some(instance) if instance.uid() != uid => (on && is_starting(instance)).then_some(uid),
        Some(_) => Some(uid),
        None => on.then_some(uid),
    };
    let replaced = instance.filter(|it| Some(it.uid()) == replaces.as_deref());
    let exists = observed.vm.as_ref().is_some_and(|vm| !vm.is_deleting());
    let action = replaced
        .filter(|instance| on && exists && !instance.is_deleting())
        .map(|instance| Action::DeleteInstance {
            uid: instance.uid().to_owned(),
        });
    let last = Some(LastRestart { request, replaces });
    Restart { last, action }
}

/// The Machine's own instance.
fn instance<'a>(machine: &Machine, observed: &'a Observed) -> Option<&'a Instance> {
    let vm = observed.vm.as_ref();
    let ours = vm.is_none_or(|vm| vm.belongs_to(machine.name(), machine.uid()));
    let instance = observed.instance.as_deref();
    instance.filter(|instance| ours && instance.machine() == Some(machine.name()))
}

/// Whether the guest shut itself down and its instance is gone: KubeVirt starts none without a change of the strategy.
fn stays_off(machine: &Machine, block: &Normalized, observed: &Observed) -> bool {
    let vm = observed.vm.as_ref();
    block.guest_shutdown_stops
        && machine.status.phase == Some(Phase::Stopped)
        && vm.is_some_and(|vm| vm.spec.run_strategy == "RerunOnFailure")
}

/// Whether the guest has neither come up nor ended yet.
fn is_starting(instance: &Instance) -> bool {
    instance.status.phase != "Running" && !has_ended(instance)
}

/// Whether the guest shut itself down.
fn has_succeeded(instance: &Instance) -> bool {
    instance.status.phase == "Succeeded"
}

/// Whether the guest has ended. KubeVirt starts it again, or it stays off because it shut itself down.
fn has_ended(instance: &Instance) -> bool {
    has_succeeded(instance) || instance.status.phase == "Failed"
}
