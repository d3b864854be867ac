//! The VirtualMachine and the cloud-init Secret it refers to.

use std::collections::BTreeMap;

use common::api::choice::PowerState;
use common::api::normalized::Normalized;
use common::names;
use common::render::kubevirt::types::{Secret, Template, VirtualMachineSpec};
use common::render::kubevirt::{VirtualMachineInput, virtual_machine};
use serde_json::Value;

use super::network::Networks;
use super::restart::Restart;
use super::storage::Storage;
use super::{Action, Observed};
use crate::objects::VirtualMachine;
use controller_core::conditions::{Fault, Outcome, missing_secret};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// What is to be done about the guest.
#[derive(Debug, Default)]
pub(super) struct Plans {
    pub(super) actions: Vec<Action>,
    pub(super) outcome: Outcome,
    /// The guest that the VirtualMachine is made of.
    pub(super) wish: Option<Template>,
}

pub(super) fn guest(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    is_refused: bool,
    networks: &Networks,
    storage: &Storage,
    restart: &Restart,
) -> Plans {
    let mut plans = Plans::default();
    if !observed.kubevirt {
        plans.outcome.worsen(Fault::new(
            "KubeVirtApiError",
            "KubeVirt is not installed: the API server does not serve VirtualMachines; install KubeVirt, the Machine goes on by itself then",
        ));
        return plans;
    }
    match secret(machine, observed) {
        Ok(action) => plans.actions.extend(action),
        Err(fault) => plans.outcome.worsen(fault),
    }
    let held = [&plans.outcome, &networks.outcome, &storage.outcome]
        .iter()
        .any(|outcome| outcome.fault.is_some())
        || storage.import.is_some()
        || is_refused;
    let mut wish = virtual_machine(&VirtualMachineInput {
        machine: machine.identity(&observed.cluster),
        block,
        cloud_init: &machine.cloud_init,
        attachments: &networks.attachments,
        secret_revisions: &marks(machine, observed),
    });
    if restart.is_open() && block.power_state == PowerState::Running {
        "Always".clone_into(&mut wish.spec.run_strategy);
    }
    let Some(live) = observed.vm.as_deref() else {
        if !held {
            plans.actions.push(Action::CreateVm(Box::new(wish)));
        }
        return plans;
    };
    if !live.belongs_to(machine.name(), machine.uid()) {
        plans.actions.clear();
        plans.outcome = Outcome::from(Fault::new(
            "NameConflict",
            format!(
                "VirtualMachine '{}' exists and was not made for this Machine: rename the Machine, or delete or rename that VirtualMachine; it is left untouched",
                machine.name()
            ),
        ));
        return plans;
    }
    if live.is_deleting() {
        return plans;
    }
    plans.wish = (!held).then(|| wish.spec.template.clone());
    let uid = live.uid().to_owned();
    if held {
        // What the guest is made of has to wait, but it can still be switched on and off.
        let strategy = wish.spec.run_strategy;
        if strategy != live.spec.run_strategy {
            plans.actions.push(Action::SetRunStrategy { uid, strategy });
        }
    } else if !is_current(&wish, live) {
        wish.metadata.uid = Some(uid);
        plans.actions.push(Action::UpdateVm(Box::new(wish)));
    }
    plans
}

/// Whether the live object was made of this wish, and nobody has changed what we wrote since.
fn is_current(
    wish: &common::render::kubevirt::types::VirtualMachine,
    live: &VirtualMachine,
) -> bool {
    let rendered = wish.metadata.annotations.get(names::ANNOTATION_RENDERED);
    live.annotation(names::ANNOTATION_RENDERED) == rendered.map(String::as_str)
        && (wish.spec == live.spec || is_within(&wish.spec, &live.spec))
}

/// Whether everything that is wished is there. More may be there: KubeVirt and others add to it.
fn is_within(wish: &VirtualMachineSpec, live: &VirtualMachineSpec) -> bool {
    match (serde_json::to_value(wish), serde_json::to_value(live)) {
        (Ok(wish), Ok(live)) => covers(&live, &wish),
        _ => false,
    }
}

fn covers(live: &Value, wish: &Value) -> bool {
    match (live, wish) {
        (Value::Object(live), Value::Object(wish)) => wish
            .iter()
            .all(|(key, wish)| live.get(key).is_some_and(|live| covers(live, wish))),
        (Value::Array(live), Value::Array(wish)) => {
            live.len() == wish.len() && live.iter().zip(wish).all(|(live, wish)| covers(live, wish))
        }
        (live, wish) => live == wish,
    }
}

/// What the user's Secrets hold; where they were not read, nobody has written them since.
fn marks(machine: &Machine, observed: &Observed) -> BTreeMap<String, String> {
    let nothing = BTreeMap::new();
    let vm = observed.vm.as_ref();
    let known = vm.map_or(&nothing, |vm| &vm.spec.template.metadata.annotations);
    let read = |secret: &_| Some(observed.contents.get(secret)?.as_ref()?.revision.clone());
    machine.cloud_init.secret_revisions(known, read)
}

/// The Secret of ours, when one is needed; and whether the user's Secrets are there.
fn secret(machine: &Machine, observed: &Observed) -> Result<Option<Action>, Fault> {
    if let Some(fault) = missing_secret(machine, &observed.contents) {
        return Err(fault);
    }
    let plan = &machine.cloud_init;
    if !plan.needs_secret() {
        return Ok(None);
    }
    let render = || -> Option<Secret> {
        let read = |key: &_| observed.contents.get(key)?.as_ref();
        plan.secret(&machine.identity(&observed.cluster), read)
    };
    let Some(live) = &observed.secret else {
        return Ok(render().map(Action::CreateSecret));
    };
    if !live.belongs_to(machine.name(), machine.uid()) {
        return Err(Fault::new(
            "NameConflict",
            format!(
                "Secret '{}' exists and was not made for this Machine: delete or rename it; it is left untouched",
                live.name()
            ),
        ));
    }
    let has = |key: &str, value: &String| live.annotation(key) == Some(value);
    let marks = marks(machine, observed);
    if has(names::ANNOTATION_RENDERED, &plan.digest())
        && marks.iter().all(|(key, mark)| has(key, mark))
    {
        return Ok(None);
    }
    Ok(render().map(|mut wish| {
        wish.metadata.uid = Some(live.uid().to_owned());
        Action::UpdateSecret(wish)
    }))
}
