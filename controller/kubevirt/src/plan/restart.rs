//! A restart that was asked for: the instance that runs then goes, and no other.
//!
//! ```text
//! new text ─▶ status: replaces this uid ─▶ instance of this uid deleted ─▶ another is there: done
//!        └──▶ done, when no guest runs or none is to run
//! ```
//! The status is written before the deletion, and the deletion names the uid: however often the way
//! is broken off and begun again, one instance goes.
//!
//! Why not KubeVirt's subresource `restart`: it names no instance, so that a repetition after a lost
//! answer restarts the guest that has just been started; and it takes an aggregated API, which can be
//! away while everything else works. A deleted instance is all that it leads to, too.
//!
//! Under `Always` KubeVirt makes another instance of the VirtualMachine as it is then. Under
//! `RerunOnFailure` it does not: it starts a guest only when that one failed, or when the strategy was
//! another one before (`syncRunStrategy` of virt-controller, since KubeVirt 1.0). So the strategy is
//! `Always` until the other instance is there.

use common::api::choice::PowerState;
use common::api::normalized::Normalized;
use common::api::status::LastRestart;

use super::action::Action;
use super::observed::Observed;
use crate::objects::Instance;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// What is remembered of a restart, and what is to be done for it.
#[derive(Debug, Default)]
pub(super) struct Restart {
    pub(super) last: Option<LastRestart>,
    pub(super) action: Option<Action>,
}

impl Restart {
    /// Whether an instance still has to be replaced.
    pub(super) fn is_open(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|last| last.replaces.is_some())
    }
}

pub(super) fn restart(machine: &Machine, block: &Normalized, observed: &Observed) -> Restart {
    let last = machine.status.last_restart.clone();
    if !observed.kubevirt {
        // Nobody knows what runs.
        return Restart { last, action: None };
    }
    let instance = instance(machine, observed);
    let on = block.power_state == PowerState::Running;
    let asked = machine.restart_request();
    let is_new = |request: &String| last.as_ref().is_none_or(|last| last.request != *request);
    if let Some(request) = asked.filter(is_new) {
        let replaces = match instance {
            Some(instance) => (on && !has_ended(instance)).then(|| instance.uid().to_owned()),
            // One that has just gone for an earlier request may still have to be replaced.
            None => last.and_then(|last| last.replaces).filter(|_| on),
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
        Some(instance) => (instance.uid() == uid).then_some(uid),
        None => on.then_some(uid),
    };
    let going = instance.filter(|instance| !instance.is_deleting());
    let stays = observed.vm.as_ref().is_some_and(|vm| !vm.is_deleting());
    let action = going
        .filter(|_| on && stays && replaces.is_some())
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

/// Such a guest is started again by KubeVirt, or stays off because it shut itself down.
fn has_ended(instance: &Instance) -> bool {
    matches!(instance.status.phase.as_str(), "Succeeded" | "Failed")
}
