//! The deletion of a Machine, whatever runs it.
//!
//! ```text
//! no finalizer ─▶ nothing is ours to remove
//! paused ───────▶ waits
//! refused ──────▶ waits, and says what was refused
//! guest, definition or host in the way ─▶ waits, after the backend's actions that bring it on
//! nothing can use a volume any more ────▶ volumes by reclaim policy ─▶ finalizer
//! ```
//! Whatever waits says in the condition `Ready` what it waits for.

use std::time::Duration;

use common::api::choice::{Choice as _, ReclaimPolicy};
use common::api::status::MachineStatus;
use common::names;

use crate::machine::Machine;
use crate::objects::Meta as _;
use crate::plan::{FinalizerChange, Now, Plan, Refusal};
use crate::status::{Conditions, Fault, OURS, finish};

/// What a backend observed of a Machine under deletion.
#[derive(Clone, Debug)]
pub struct Teardown<A> {
    /// The status as far as the backend knows better than the last one written.
    pub status: MachineStatus,
    /// How far the deletion is.
    pub stage: Stage<A>,
}

/// How far the deletion of a Machine is.
#[derive(Clone, Debug)]
pub enum Stage<A> {
    /// Something may still use the Machine's volumes.
    Waiting {
        /// What is waited for, and what to do if it does not end by itself.
        message: String,
        /// What brings it on; empty if it is under way.
        actions: Vec<A>,
        /// When to look again, if sooner than usual.
        again: Option<Duration>,
    },
    /// Nothing can use them: these actions release each volume by its reclaim policy. The finalizer is removed
    /// after the last of them, and only if none failed.
    Release(Vec<A>),
}

/// What to do about a Machine under deletion.
pub fn plan<A>(
    machine: &Machine,
    refusal: Option<&Refusal>,
    now: Now,
    teardown: impl FnOnce() -> Teardown<A>,
) -> Plan<A> {
    if !machine.has_finalizer(names::FINALIZER) {
        return Plan::default();
    }
    let Teardown { status, stage } = teardown();
    let (message, actions, again) = match (stage, refusal) {
        _ if machine.is_paused() => {
            let message = format!(
                "deletion waits because the Machine is paused: remove the annotation {}",
                names::ANNOTATION_PAUSED
            );
            (message, vec![], None)
        }
        (_, Some(refusal)) => (refusal.message.clone(), vec![], None),
        (Stage::Release(actions), None) => {
            return Plan {
                actions,
                finalizer: Some(FinalizerChange::Remove),
                ..Plan::default()
            };
        }
        (
            Stage::Waiting {
                message,
                actions,
                again,
            },
            None,
        ) => (message, actions, again),
    };
    let mut conditions = Conditions::new(machine, now);
    for kind in OURS.into_iter().filter(|kind| *kind != "Ready") {
        conditions.keep(kind);
    }
    conditions.set("Ready", "False", &Fault::new("Deleting", message));
    let status = MachineStatus {
        conditions: conditions.list,
        observed_generation: machine.generation(),
        ..status
    };
    let plan = finish(machine, now, status, actions);
    Plan {
        again: plan.again.or(again),
        ..plan
    }
}

/// Whether a volume of this reclaim policy is deleted with its Machine. Only the word `Delete` deletes: a volume
/// whose policy is missing or unknown is kept.
pub fn deletes(policy: Option<&str>) -> bool {
    policy == Some(ReclaimPolicy::Delete.as_str())
}
