//! Checks the preconditions of an action right before its effect.
//!
//! | precondition | how it is checked |
//! |---|---|
//! | `LeaseHeld` | here, and again by the guarded client for each write |
//! | `Owned`, `Deletable`, `Incomplete` | read from the observed object when the action was made; see [`DeletableClaim`] and [`UnfinishedImport`] |
//! | `Unchanged` | by the API server: the request names the uid and version of the observed object |
//! | `Unused` | here: live lists of the namespace's VirtualMachines, instances and pods |
//! | `NeverRan` | here: the phase of the instance, read live |
//! | `NotABackingFile`, `NotBoundElsewhere` | hold always: no claim is a file below another one, and KubeVirt places guests |
//!
//! [`DeletableClaim`]: crate::plan::action::DeletableClaim
//! [`UnfinishedImport`]: crate::plan::action::UnfinishedImport

use controller_core::backend::{Act as _, Failed};
use controller_core::client::{ApiError, GuardedClient};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::preconditions::Precondition;
use k8s_openapi::api::core::v1::Pod;

use super::claim_user::{ClaimUser, UserKind};
use super::live;
use crate::objects::{Instance, VirtualMachine};
use crate::plan::Action;

/// Fails if a precondition of the action does not hold now.
pub(super) async fn check(
    api: &GuardedClient,
    machine: &Machine,
    action: &Action,
) -> Result<(), Failed> {
    // Also before an action without an effect of its own: what it finds out is of no use without the Lease.
    if !api.may_write() {
        return Err(ApiError::NotLeading.into());
    }
    let effect = action.effect();
    for precondition in effect.iter().flat_map(|effect| effect.preconditions()) {
        match precondition {
            Precondition::Unused => unused(api, machine, action).await?,
            Precondition::NeverRan => never_ran(api, machine).await?,
            Precondition::LeaseHeld
            | Precondition::Owned
            | Precondition::Deletable
            | Precondition::Incomplete
            | Precondition::Unchanged
            | Precondition::NotABackingFile
            | Precondition::NotBoundElsewhere => {}
        }
    }
    Ok(())
}

/// Fails if anything in the namespace uses the claim that the action would delete.
async fn unused(api: &GuardedClient, machine: &Machine, action: &Action) -> Result<(), Failed> {
    let Some((claim, kinds)) = claim_at_risk(action) else {
        return Ok(());
    };
    for kind in kinds {
        let namespace = machine.namespace();
        let is_import = matches!(action, Action::DeleteDataVolume(_));
        let is_user = |object: &ClaimUser| object.prevents(*kind, machine, claim, is_import);
        let user = match kind {
            UserKind::VirtualMachine => {
                live::first::<VirtualMachine, _>(api, namespace, is_user).await?
            }
            UserKind::Instance => live::first::<Instance, _>(api, namespace, is_user).await?,
            UserKind::Pod => live::first::<Pod, _>(api, namespace, is_user).await?,
        };
        if let Some(user) = user {
            return Err(user.refusal(*kind, machine, claim, is_import));
        }
    }
    Ok(())
}

/// Fails if the guest of the Machine's instance has got a node: it is not replaced any more. Without the instance there
/// is nothing to delete.
async fn never_ran(api: &GuardedClient, machine: &Machine) -> Result<(), Failed> {
    let is_own = |user: &ClaimUser| user.is_named(machine.name());
    let namespace = machine.namespace();
    let instance = live::first::<Instance, ClaimUser>(api, namespace, is_own).await?;
    if instance.is_none_or(|instance| instance.never_ran()) {
        return Ok(());
    }
    let message = format!("VirtualMachineInstance {} runs by now", machine.name());
    Err(ApiError::StaleCache(message).into())
}

/// The claim that an action would delete, and the kinds of objects that may use it.
pub(crate) fn claim_at_risk(action: &Action) -> Option<(&str, &'static [UserKind])> {
    use UserKind::{Instance, Pod, VirtualMachine};
    match action {
        Action::DeleteClaim(claim) => {
            Some((claim.exact().name(), &[VirtualMachine, Instance, Pod]))
        }
        // CDI's own pods use the claim of an import until it is over.
        Action::DeleteDataVolume(import) => {
            Some((import.exact().name(), &[VirtualMachine, Instance]))
        }
        _ => None,
    }
}
