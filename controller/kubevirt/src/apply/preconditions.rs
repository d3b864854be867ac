//! Checks the preconditions of an action right before its effect.
//!
//! | precondition | how it is checked |
//! |---|---|
//! | `LeaseHeld` | here, and again by the guarded client for each write |
//! | `Owned`, `Deletable`, `Incomplete` | read from the observed object when the action was made; see [`DeletableClaim`] and [`UnfinishedImport`] |
//! | `Unchanged` | by the API server: the request names the uid and version of the observed object |
//! | `Unused` | here: live lists of the namespace's VirtualMachines, instances and pods |
//! | `StateKept` | here: a live list of the claims that KubeVirt made for the state of the VirtualMachine |
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
use crate::plan::state::is_owned_by;

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
            Precondition::StateKept => state_kept(api, machine, action).await?,
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

/// Fails if a claim with state that is to be kept would be deleted with the VirtualMachine.
async fn state_kept(api: &GuardedClient, machine: &Machine, action: &Action) -> Result<(), Failed> {
    let Action::DeleteVm {
        uid,
        keeps_state: true,
    } = action
    else {
        return Ok(());
    };
    let claims = live::state_claims(api, machine).await?;
    match claims.iter().find(|claim| is_owned_by(claim, uid)) {
        None => Ok(()),
        Some(claim) => Err(ApiError::StaleCache(format!(
            "PersistentVolumeClaim {} would be deleted with the VirtualMachine",
            claim.name()
        ))
        .into()),
    }
}

/// Fails if anything in the namespace uses the claim that would go with the action.
async fn unused(api: &GuardedClient, machine: &Machine, action: &Action) -> Result<(), Failed> {
    let Some((claim, kinds)) = claim_at_risk(action) else {
        return Ok(());
    };
    for kind in kinds {
        let namespace = machine.namespace();
        let is_user = |object: &ClaimUser| object.uses(*kind, claim);
        let user = match kind {
            UserKind::VirtualMachine => {
                live::first::<VirtualMachine, _>(api, namespace, is_user).await?
            }
            UserKind::Instance => live::first::<Instance, _>(api, namespace, is_user).await?,
            UserKind::Pod => live::first::<Pod, _>(api, namespace, is_user).await?,
        };
        if let Some(user) = user {
            let is_import = matches!(action, Action::DeleteDataVolume(_));
            return Err(user.refusal(*kind, machine, claim, is_import));
        }
    }
    Ok(())
}

/// The claim that would go with an action, and the kinds of objects that may use it.
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
