//! The VirtualMachine and the cloud-init Secret it refers to.

use std::collections::BTreeMap;
use std::time::Duration;

use common::api::choice::PowerState;
use common::api::normalized::Normalized;
use common::names;
use common::render::kubevirt::types::{self, Secret, Template};
use common::render::kubevirt::{HALTED, VirtualMachineInput, virtual_machine};
use serde::Serialize;
use serde_json::Value;

use super::action::Action;
use super::network::Networks;
use super::observed::Observed;
use super::others::{self, Stop};
use super::restart::Restart;
use super::storage::Storage;
use crate::objects::VirtualMachine;
use controller_core::backend::{Act as _, Growth};
use controller_core::conditions::{Fault, Outcome, missing_secret};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::{Refusal, Subject};

/// Pause before Secrets that could not be read are read again. No event reports that they can be read now.
pub(super) const SECRETS_RETRY: Duration = Duration::from_secs(10);

/// Outcome of planning the VirtualMachine and its Secret.
#[derive(Debug, Default)]
pub(super) struct Plans {
    pub(super) actions: Vec<Action>,
    pub(super) outcome: Outcome,
    /// Template of the VirtualMachine; `None` while it cannot be rendered. While the growth of the Machine is held, the
    /// present one.
    pub(super) desired: Option<Template>,
    /// Whether a requested restart waits: see [`Restart::is_held`].
    pub(super) restart_waits: bool,
    /// Whether the actions change the template of an existing VirtualMachine.
    pub(super) changes_template: bool,
    /// Set while another client has stopped the guest, and it stays off for now.
    pub(super) foreign_stop: Option<Fault>,
}

/// What the plan of the VirtualMachine depends on beside the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct VmContext<'a> {
    pub(super) networks: &'a Networks,
    pub(super) storage: &'a Storage,
    pub(super) restart: &'a Restart,
    /// An action of this plan that was refused.
    pub(super) refusal: Option<&'a Refusal>,
    pub(super) growth: Growth<'a>,
}

/// The VirtualMachine of the Machine as its block describes it.
fn rendered(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    networks: &Networks,
) -> types::VirtualMachine {
    virtual_machine(&VirtualMachineInput {
        machine: machine.identity(&observed.cluster),
        block,
        cloud_init: &machine.cloud_init,
        labels: &machine.labels,
        annotations: &machine.annotations,
        attachments: &networks.attachments,
        secret_revisions: &revisions(machine, observed),
    })
}

pub(super) fn guest(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    context: &VmContext<'_>,
) -> Plans {
    let VmContext {
        networks,
        storage,
        restart,
        refusal,
        growth,
    } = *context;
    let mut plans = Plans::default();
    if !observed.kubevirt {
        plans.outcome.record_first(Fault::new(
            "KubeVirtApiError",
            "KubeVirt is not installed: the API server does not serve VirtualMachines; install KubeVirt, the Machine continues automatically then",
        ));
        return plans;
    }
    match secret(machine, observed) {
        Ok(action) => plans.actions.extend(action),
        Err(fault) => plans.outcome.record_first(fault),
    }
    let outcomes = [&plans.outcome, &networks.outcome, &storage.outcome];
    let is_complete = outcomes.iter().all(|it| it.fault.is_none()) && storage.import.is_none();
    // Nothing of the VirtualMachine depends on these.
    let refusal = refusal.filter(|it| !matches!(it.subject, Subject::Migration | Subject::Reset));
    let is_blocked = !is_complete || refusal.is_some();
    let mut desired = rendered(machine, block, observed, networks);
    let is_refused = refusal.is_some_and(|it| refuses_start(it, storage));
    plans.restart_waits = restart.is_held(machine, observed, is_complete && !is_refused);
    // The guest runs on as if nothing had been requested.
    let restarts = restart.is_open() && !plans.restart_waits;
    if restarts && block.power_state == PowerState::Running {
        "Always".clone_into(&mut desired.spec.run_strategy);
    }
    desired.metadata.annotations.insert(
        names::ANNOTATION_RUN_STRATEGY.to_owned(),
        desired.spec.run_strategy.clone(),
    );
    let Some(live) = observed.vm.as_deref() else {
        if let Growth::Held(fault) = growth {
            plans.outcome.record_first(fault.clone());
        } else if !is_blocked {
            plans.actions.push(Action::CreateVm(Box::new(desired)));
        }
        return plans;
    };
    if !live.belongs_to(machine.name(), machine.uid()) {
        plans.actions.clear();
        plans.outcome = Outcome::from(Fault::new(
            "NameConflict",
            format!(
                "VirtualMachine '{}' exists and was not made for this Machine: create the Machine under another name, or delete that VirtualMachine; it is left untouched",
                machine.name()
            ),
        ));
        return plans;
    }
    if live.is_deleting() {
        return plans;
    }
    let is_held = growth != Growth::Permitted;
    let template = if is_held {
        &live.spec.template
    } else {
        &desired.spec.template
    };
    plans.desired = (!is_blocked).then(|| others::without_plugged_in(machine.name(), template));
    others::keep_plugged_in(machine.name(), &mut desired.spec.template, live);
    if !restarts && others::was_stopped_by_another_client(machine, &desired, live) {
        plans.foreign_stop = others::foreign_stop(machine, observed, Stop::Halt);
        if plans.foreign_stop.is_some() {
            desired
                .spec
                .run_strategy
                .clone_from(&live.spec.run_strategy);
        }
    } else if restart.undoes_stop(observed)
        || (!restarts && others::has_deleted_instance(machine, block, observed))
    {
        plans.foreign_stop = others::foreign_stop(machine, observed, Stop::Deletion);
    }
    let uid = live.uid().to_owned();
    if is_blocked || is_held {
        // The template cannot be updated now, but the power state can.
        let strategy = desired.spec.run_strategy;
        let may_switch = strategy == HALTED || !storage.holds_start;
        // A stop of the user's after one of another client changes only the record.
        let is_ours = plans.foreign_stop.is_none();
        let differs = strategy != live.spec.run_strategy
            || (is_ours && others::records_another(live, &strategy));
        let is_off = live.spec.run_strategy == HALTED;
        let stays_off = is_off && strategy != HALTED && machine.addresses.keeps_off();
        if differs && may_switch && !stays_off {
            plans.actions.push(Action::SetRunStrategy { uid, strategy });
        }
    } else if !is_current(&desired, live) {
        desired.metadata.uid = Some(uid);
        plans.changes_template = !is_within(&desired.spec.template, &live.spec.template);
        plans.actions.push(Action::UpdateVm(Box::new(desired)));
    }
    plans
}

/// Whether an action was refused on which the start after a restart depends. The former guest is deleted after it.
fn refuses_start(refusal: &Refusal, storage: &Storage) -> bool {
    match refusal.subject {
        // The growth of a volume comes after it.
        Subject::Storage => {
            let mut before = storage.actions.iter();
            before.any(|action| action.subject() == Subject::Storage)
        }
        Subject::Machine | Subject::Network | Subject::Guest => true,
        Subject::Display | Subject::Migration | Subject::Reset => false,
    }
}

/// Whether the existing VirtualMachine was rendered from this desired state and no field of ours was changed since.
fn is_current(desired: &types::VirtualMachine, live: &VirtualMachine) -> bool {
    let rendered = desired.metadata.annotations.get(names::ANNOTATION_RENDERED);
    live.annotation(names::ANNOTATION_RENDERED) == rendered.map(String::as_str)
        && (desired.spec == live.spec || is_within(&desired.spec, &live.spec))
}

/// Whether every desired field has its value. The object may have more: KubeVirt and others add fields.
fn is_within(desired: &impl Serialize, live: &impl Serialize) -> bool {
    match (serde_json::to_value(desired), serde_json::to_value(live)) {
        (Ok(desired), Ok(live)) => covers(&live, &desired),
        _ => false,
    }
}

pub(crate) fn covers(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired
            .iter()
            .all(|(key, desired)| live.get(key).is_some_and(|live| covers(live, desired))),
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len()
                && live
                    .iter()
                    .zip(desired)
                    .all(|(live, desired)| covers(live, desired))
        }
        (live, desired) => live == desired,
    }
}

/// Revisions of the user's Secrets. A Secret that was not read has not changed, so its known revision is kept.
fn revisions(machine: &Machine, observed: &Observed) -> BTreeMap<String, String> {
    let nothing = BTreeMap::new();
    let vm = observed.vm.as_ref();
    let known = vm.map_or(&nothing, |vm| &vm.spec.template.metadata.annotations);
    let read = |secret: &_| Some(observed.contents.get(secret)?.as_ref()?.revision.clone());
    machine.cloud_init.secret_revisions(known, read)
}

fn unreadable_secrets(machine: &Machine, error: &str) -> Fault {
    Fault::new(
        "KubeVirtApiError",
        format!(
            "the Secrets for cloud-init in namespace {namespace} cannot be read: {error}; running guests keep running and can be stopped and started, everything else of the VirtualMachine waits; the controller tries again every {} s; if it is forbidden, check with: kubectl auth can-i get secrets --namespace {namespace} --as <the controller's ServiceAccount>",
            SECRETS_RETRY.as_secs(),
            namespace = machine.namespace(),
        ),
    )
}

/// The action for the Machine's own Secret, if it needs one. Fails if a Secret of the user is missing.
fn secret(machine: &Machine, observed: &Observed) -> Result<Option<Action>, Fault> {
    if let Some(error) = &observed.secrets_error {
        return Err(unreadable_secrets(machine, error));
    }
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
                "Secret '{}' exists and was not made for this Machine: delete it; it is left untouched",
                live.name()
            ),
        ));
    }
    let has = |key: &str, value: &String| live.annotation(key) == Some(value);
    let revisions = revisions(machine, observed);
    if has(names::ANNOTATION_RENDERED, &plan.digest())
        && revisions.iter().all(|(key, value)| has(key, value))
    {
        return Ok(None);
    }
    Ok(render().map(|mut desired| {
        desired.metadata.uid = Some(live.uid().to_owned());
        Action::UpdateSecret(desired)
    }))
}
