//! Checks the preconditions of an action right before its effect.
//!
//! | precondition | how it is checked |
//! |---|---|
//! | `LeaseHeld` | here, and again by the guarded client for each write |
//! | `Owned`, `Deletable`, `Incomplete` | read from the observed object when the action was made; see [`DeletableClaim`] and [`UnfinishedImport`] |
//! | `Unchanged` | by the API server: the request names the uid and version of the observed object |
//! | `Unused` | here: live lists of the namespace's VirtualMachines, instances and pods |
//! | `ExistingDisksFree` | in [`existing_disks`](super::existing_disks): live lists as above |
//! | `Owned` of a reset | here: the uid of the instance, read live, because the request can name only its name |
//! | `Owned` of a creation | here: the VirtualMachine of the name, read live, because an apply takes over one that this controller made for a former Machine |
//! | `NeverRan` | here: the phase of the instance, read live |
//! | `Movable` | here: the instance, read live |
//! | `StateKept` | here: a live list of the claims that KubeVirt made for the state of the VirtualMachine |
//! | `NotABackingFile`, `NotBoundElsewhere`, `OnlyDefinition` | always hold: no claim is a file below another one, and KubeVirt places guests |
//! | `HardwareFree` | by KubeVirt, which gives a device or a CPU of a node to one guest |
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
use super::existing_disks::{adopted_claim_free, existing_disks_free};
use super::live;
use crate::objects::{Instance, VirtualMachine};
use crate::plan::Action;
use crate::plan::state::goes_with;

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
    if let Action::PatchClaim(patch) = action
        && patch.adopts()
    {
        adopted_claim_free(api, machine, &patch.name).await?;
    }
    for precondition in effect.iter().flat_map(|effect| effect.preconditions()) {
        match precondition {
            Precondition::Unused => unused(api, machine, action).await?,
            Precondition::ExistingDisksFree => existing_disks_free(api, machine, action).await?,
            Precondition::NeverRan => never_ran(api, machine).await?,
            Precondition::StateKept => state_kept(api, machine, action).await?,
            Precondition::Movable => movable(api, machine, action).await?,
            Precondition::Owned => {
                same_guest(api, machine, action).await?;
                name_free(api, machine, action).await?;
            }
            // Each of them is checked elsewhere: `LeaseHeld` above, and by the guarded client at each request;
            // `Deletable` and `Incomplete` by the types `DeletableClaim` and `UnfinishedImport`, which are made of the
            // object in the version that the request names; `Unchanged` by the API server, because the request names
            // that version; `HardwareFree` by KubeVirt, which gives a device or a CPU of a node to one guest. The others
            // always hold: no claim is a file below another one, and KubeVirt runs a VirtualMachine once.
            Precondition::LeaseHeld
            | Precondition::Deletable
            | Precondition::Incomplete
            | Precondition::Unchanged
            | Precondition::HardwareFree
            | Precondition::NotABackingFile
            | Precondition::NotBoundElsewhere
            | Precondition::OnlyDefinition => {}
        }
    }
    Ok(())
}

/// Fails if the guest that was to be reset does not run any more: the request would reset the next one.
async fn same_guest(api: &GuardedClient, machine: &Machine, action: &Action) -> Result<(), Failed> {
    let Action::ResetGuest { uid } = action else {
        return Ok(());
    };
    guest(api, machine, uid, Instance::runs, "does not run any more").await
}

/// Fails if the VirtualMachine that was to be created exists and is not the Machine's.
async fn name_free(api: &GuardedClient, machine: &Machine, action: &Action) -> Result<(), Failed> {
    let Action::CreateVm(_) = action else {
        return Ok(());
    };
    let name = machine.name();
    let found = live::find::<VirtualMachine>(api, machine.namespace(), name).await?;
    if found.is_none_or(|vm| vm.belongs_to(name, machine.uid())) {
        return Ok(());
    }
    let message = format!("VirtualMachine {name} exists and is not of this Machine");
    Err(ApiError::StaleCache(message).into())
}

/// Fails if the guest that was to be moved does not run any more, or cannot be moved.
async fn movable(api: &GuardedClient, machine: &Machine, action: &Action) -> Result<(), Failed> {
    let Action::CreateMigration { instance: uid, .. } = action else {
        return Ok(());
    };
    let lost = "cannot be moved any more";
    guest(api, machine, uid, Instance::is_movable, lost).await
}

/// Fails unless the instance of this uid is there and `holds`; `lost`: what the message says of its guest otherwise.
async fn guest(
    api: &GuardedClient,
    machine: &Machine,
    uid: &str,
    holds: fn(&Instance) -> bool,
    lost: &str,
) -> Result<(), Failed> {
    let name = machine.name();
    let instance = live::find::<Instance>(api, machine.namespace(), name).await?;
    if instance.is_some_and(|it| it.uid() == uid && holds(&it)) {
        return Ok(());
    }
    let message = format!("the guest of VirtualMachineInstance {name} {lost}");
    Err(ApiError::StaleCache(message).into())
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
    match claims.iter().find(|claim| goes_with(claim, machine, uid)) {
        None => Ok(()),
        Some(claim) => Err(ApiError::StaleCache(format!(
            "PersistentVolumeClaim {} would be deleted with the VirtualMachine or the Machine",
            claim.name()
        ))
        .into()),
    }
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
fn claim_at_risk(action: &Action) -> Option<(&str, &'static [UserKind])> {
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
