//! The deletion of a Machine, the same for every backend.
//!
//! ```text
//! no finalizer ─▶ nothing to do: the API server removes the object
//! protected ────▶ waits: nothing is stopped or destroyed
//! paused ───────▶ waits
//! refused ──────▶ waits, and reports what was refused
//! the guest, its definition or its host may still use a volume ─▶ waits, after the backend's actions that end that
//! nothing can use a volume any more ─▶ release each volume by its reclaim policy ─▶ remove the finalizer
//! ```
//! A deletion that waits reports in the condition `Ready` what it waits for.

use std::time::Duration;

use common::api::choice::{Choice as _, ReclaimPolicy};
use common::api::status::MachineStatus;
use common::names;

use crate::conditions::{Conditions, Fault, TYPES};
use crate::machine::Machine;
use crate::objects::Meta as _;
use crate::plan::{FinalizerChange, Now, Plan, Refusal};
use crate::status::plan_with_status;

/// What a backend observed of a Machine under deletion.
#[derive(Clone, Debug)]
pub struct Teardown<A> {
    /// The status to report; the conditions are replaced by [`plan`].
    pub status: MachineStatus,
    /// How far the deletion is.
    pub stage: Stage<A>,
}

/// How far the deletion of a Machine is.
#[derive(Clone, Debug)]
pub enum Stage<A> {
    /// Something may still use the Machine's volumes.
    Waiting {
        /// What the deletion waits for, and what to do if that does not end without intervention.
        message: String,
        /// Actions that end it; empty if they were already taken.
        actions: Vec<A>,
        /// Time until the next pass, if shorter than the reconcile interval.
        requeue_after: Option<Duration>,
    },
    /// Nothing can use the volumes: these actions release each of them by its reclaim policy. The finalizer is
    /// removed after the last action, and only if none failed.
    Release(Vec<A>),
}

/// The plan for a Machine under deletion. `teardown` is called only if the Machine has the finalizer.
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
    let (fault, actions, requeue_after) = match (stage, refusal) {
        // The policy of the API server refuses such a deletion. It may not be installed, or the field was set later.
        _ if machine.is_protected => (protected(), vec![], None),
        _ if machine.is_paused() => {
            let message = format!(
                "deletion waits because the Machine is paused: remove the annotation {}",
                names::ANNOTATION_PAUSED
            );
            (Fault::new(REASON, message), vec![], None)
        }
        (_, Some(refusal)) => (Fault::new(REASON, refusal.message.clone()), vec![], None),
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
                requeue_after,
            },
            None,
        ) => (Fault::new(REASON, message), actions, requeue_after),
    };
    let mut conditions = Conditions::new(machine, now);
    for kind in TYPES.into_iter().filter(|kind| *kind != "Ready") {
        conditions.keep(kind);
    }
    conditions.set("Ready", "False", &fault);
    let status = MachineStatus {
        conditions: conditions.list,
        observed_generation: machine.generation(),
        ..status
    };
    let plan = plan_with_status(machine, now, status, actions);
    Plan {
        requeue_after: plan.requeue_after.or(requeue_after),
        ..plan
    }
}

/// Reason of a deletion that waits for nothing from the user.
const REASON: &str = "Deleting";

fn protected() -> Fault {
    let message = "the Machine was deleted although its deletionProtection is true, so nothing of it is stopped or destroyed: set spec.deletionProtection to false to let the deletion continue";
    Fault::new("DeletionProtected", message)
}

/// Whether a volume of this reclaim policy is deleted with its Machine: only `Delete` deletes. A volume whose policy is
/// missing or unknown is kept.
pub fn deletes(policy: Option<&str>) -> bool {
    policy == Some(ReclaimPolicy::Delete.as_str())
}

#[cfg(test)]
mod tests {
    use common::api::choice::Phase;

    use super::*;
    use crate::fixtures::{self, pause};
    use crate::plan::Subject;

    const NOW: Now = Now(time::OffsetDateTime::UNIX_EPOCH);
    const SOON: Option<Duration> = Some(Duration::from_secs(3));

    fn deleted(finalizer: bool, paused: bool) -> Machine {
        let mut machine = fixtures::machine(fixtures::block());
        machine.metadata.finalizers = finalizer.then(|| vec![names::FINALIZER.to_owned()]);
        if paused {
            pause(&mut machine);
        }
        machine
    }

    fn waiting() -> Stage<&'static str> {
        Stage::Waiting {
            message: "waits for the guest".into(),
            actions: vec!["stop the guest"],
            requeue_after: SOON,
        }
    }

    fn release() -> Stage<&'static str> {
        Stage::Release(vec!["delete the volume"])
    }

    fn plan_of(
        machine: &Machine,
        refused: Option<&str>,
        stage: Stage<&'static str>,
    ) -> Plan<&'static str> {
        let refusal = refused.map(|message| Refusal {
            subject: Subject::Storage,
            reason: None,
            message: message.to_owned(),
        });
        let status = machine.status.clone();
        plan(machine, refusal.as_ref(), NOW, || Teardown {
            status,
            stage,
        })
    }

    fn ready_message(plan: &Plan<&'static str>) -> Option<String> {
        let conditions = &plan.status.as_ref()?.conditions;
        let ready = conditions.iter().find(|it| it.kind == "Ready")?;
        assert_eq!((&*ready.status, &*ready.reason), ("False", "Deleting"));
        Some(ready.message.clone())
    }

    #[test]
    fn a_deletion_acts_and_reports_by_finalizer_pause_refusal_and_stage() {
        let paused = "deletion waits because the Machine is paused: remove the annotation machine.vitistack.io/paused";
        let none: &[&str] = &[];
        // finalizer, paused, refusal, stage; actions, finalizer change, message of Ready, next pass
        let cases = [
            ((false, false, None, waiting()), (none, None, None, None)),
            ((false, true, None, release()), (none, None, None, None)),
            (
                (true, true, None, waiting()),
                (none, None, Some(paused), None),
            ),
            (
                (true, true, None, release()),
                (none, None, Some(paused), None),
            ),
            (
                (true, true, Some("no"), release()),
                (none, None, Some(paused), None),
            ),
            (
                (true, false, Some("no"), waiting()),
                (none, None, Some("no"), None),
            ),
            (
                (true, false, Some("no"), release()),
                (none, None, Some("no"), None),
            ),
            (
                (true, false, None, waiting()),
                (
                    &["stop the guest"][..],
                    None,
                    Some("waits for the guest"),
                    SOON,
                ),
            ),
            (
                (true, false, None, release()),
                (
                    &["delete the volume"][..],
                    Some(FinalizerChange::Remove),
                    None,
                    None,
                ),
            ),
        ];
        for ((finalizer, is_paused, refused, stage), expected) in cases {
            let case = format!("{finalizer} {is_paused} {refused:?} {stage:?}");
            let plan = plan_of(&deleted(finalizer, is_paused), refused, stage);
            let message = ready_message(&plan);
            let found = (
                &*plan.actions,
                plan.finalizer,
                message.as_deref(),
                plan.requeue_after,
            );
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn a_protected_machine_is_held_until_its_protection_is_false() {
        for stage in [waiting(), release()] {
            let mut machine = deleted(true, false);
            machine.is_protected = true;
            let plan = plan_of(&machine, None, stage.clone());
            assert_eq!((&*plan.actions, plan.finalizer), (&[][..], None));
            let conditions = plan.status.unwrap().conditions;
            let ready = conditions.iter().find(|it| it.kind == "Ready").unwrap();
            assert_eq!(
                (&*ready.status, &*ready.reason),
                ("False", "DeletionProtected")
            );
            assert!(
                ready
                    .message
                    .contains("set spec.deletionProtection to false")
            );
            machine.is_protected = false;
            assert!(!plan_of(&machine, None, stage).actions.is_empty());
        }
    }

    #[test]
    fn the_backend_is_not_called_for_a_machine_without_the_finalizer() {
        let machine = deleted(false, false);
        let plan = plan::<&str>(&machine, None, NOW, || panic!("nothing is ours to remove"));
        assert!(plan.only_reports() && plan.status.is_none());
    }

    #[test]
    fn a_status_that_was_written_is_not_written_again_and_other_conditions_stay() {
        let mut machine = deleted(true, false);
        machine.status = fixtures::ready("True", "Running");
        machine.status.phase = Some(Phase::Running);
        let mut storage = machine.status.conditions[0].clone();
        storage.kind = "StorageReady".into();
        machine.status.conditions.push(storage.clone());
        let status = plan_of(&machine, None, waiting()).status.unwrap();
        assert_eq!(status.conditions[0], storage);
        assert_eq!(status.phase, Some(Phase::Running));
        machine.status = status;
        let second = plan_of(&machine, None, waiting());
        assert_eq!((second.status, second.requeue_after), (None, SOON));
    }

    #[test]
    fn only_the_policy_delete_deletes_a_volume() {
        for (policy, expected) in [
            (Some("Delete"), true),
            (Some("Retain"), false),
            (Some("delete"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(deletes(policy), expected, "{policy:?}");
        }
    }
}
