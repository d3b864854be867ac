//! Whether anybody else uses a claim that the guest would get and that was not made for this Machine.
//!
//! | claim | checked before |
//! |---|---|
//! | an existing one, which `claimName` names | each action that lets the guest run |
//! | one that was kept of a former Machine or of a removed disk | its adoption |
//! | one that is older than the Machine, so that it was adopted | each action that lets the guest run |
//! | one that the VirtualMachine has and the block has not: its disk has left the spec while the template waits, or another client has added it | each action that lets the guest run with it |
//!
//! A claim that was made for the Machine is not checked: lists of the whole namespace before each start would be too many.

use std::collections::BTreeSet;

use common::api::normalized::ExistingDisk;
use common::render::kubevirt::types::Volume;
use common::render::kubevirt::{HALTED, volumes};
use controller_core::backend::Failed;
use controller_core::client::{ApiError, GuardedClient, Remedy};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use k8s_openapi::api::core::v1::Pod;

use super::claim_user::{ClaimUser, UserKind};
use super::live;
use crate::objects::{Claim, Instance, VirtualMachine};
use crate::plan::{Action, in_use};

/// Fails if anything but this Machine uses an existing or an adopted claim that its guest would get with the action.
pub(super) async fn existing_disks_free(
    api: &GuardedClient,
    machine: &Machine,
    action: &Action,
) -> Result<(), Failed> {
    if !lets_run(action) {
        return Ok(());
    }
    let disks = machine.desired().into_iter();
    for disk in disks.flat_map(|block| &block.existing_disks) {
        let claim = disk.source();
        if disk.shareable && live::is_shared(api, machine.namespace(), claim).await? {
            continue;
        }
        claim_free(api, machine, claim, &disk.name).await?;
    }
    let claims = live::claims(api, machine).await?;
    let adopted = claims.iter().filter(|claim| !claim.was_made_for(machine));
    for claim in adopted {
        adopted_claim_free(api, machine, claim.name()).await?;
    }
    let name = machine.name();
    let Some(vm) = live::find::<VirtualMachine>(api, machine.namespace(), name).await? else {
        return Ok(());
    };
    let block = machine.desired().into_iter();
    let checked = block.flat_map(|block| &block.existing_disks);
    let own = claims.iter().filter(|claim| claim.was_made_for(machine));
    let checked = checked.map(ExistingDisk::source);
    let passed: BTreeSet<_> = checked.chain(own.map(Claim::name)).collect();
    // An update replaces all volumes but those that other clients have added.
    let stays =
        |volume: &&Volume| !matches!(action, Action::UpdateVm(_)) || volume.is_foreign(name);
    let template = &vm.spec.template.spec;
    for volume in template.volumes.iter().filter(stays) {
        let Some(claim) = volume.claim().filter(|claim| !passed.contains(claim)) else {
            continue;
        };
        let mut disks = template.domain.devices.disks.iter();
        let is_shareable = disks.any(|it| it.name == volume.name && it.shareable == Some(true));
        if !(is_shareable && live::is_shared(api, machine.namespace(), claim).await?) {
            claim_free(api, machine, claim, &volume.name).await?;
        }
    }
    Ok(())
}

/// Fails if anything but this Machine uses the claim of one of its own disks.
pub(super) async fn adopted_claim_free(
    api: &GuardedClient,
    machine: &Machine,
    claim: &str,
) -> Result<(), Failed> {
    let block = machine.desired().into_iter();
    let mut volumes = block.flat_map(|block| volumes(machine.name(), block));
    match volumes.find(|volume| volume.claim == claim) {
        Some(volume) => claim_free(api, machine, claim, &volume.disk.name).await,
        // No disk of the block is on it, so the guest does not get it.
        None => Ok(()),
    }
}

/// Fails if anything but this Machine uses the claim of a disk. A guest that runs with the claim keeps it.
async fn claim_free(
    api: &GuardedClient,
    machine: &Machine,
    claim: &str,
    disk: &str,
) -> Result<(), Failed> {
    let has_it = |user: &ClaimUser| {
        let kind = UserKind::Instance;
        user.is_of(kind, machine) && user.is_on(kind) && user.uses(kind, claim)
    };
    let own = live::first::<Instance, _>(api, machine.namespace(), has_it).await?;
    if own.is_some() {
        return Ok(());
    }
    let Some(user) = other_user(api, machine, claim).await? else {
        return Ok(());
    };
    let fault = in_use(claim, disk, &user);
    Err(Failed {
        reason: Some(fault.reason()),
        ..Failed::new(Remedy::Reobserve, fault.message().to_owned())
    })
}

/// Whether a guest may start because of the action.
fn lets_run(action: &Action) -> bool {
    let strategy = match action {
        Action::CreateVm(desired) | Action::UpdateVm(desired) => &desired.spec.run_strategy,
        Action::SetRunStrategy { strategy, .. } => strategy,
        _ => return false,
    };
    strategy != HALTED
}

/// Who else uses a claim now: a pod, or a guest or VirtualMachine that is not off; of any owner but this Machine.
pub(crate) async fn other_user(
    api: &GuardedClient,
    machine: &Machine,
    claim: &str,
) -> Result<Option<String>, ApiError> {
    let namespace = machine.namespace();
    let is_user = |kind: UserKind| {
        move |object: &ClaimUser| {
            object.uses(kind, claim) && object.is_on(kind) && !object.is_of(kind, machine)
        }
    };
    let kind = UserKind::VirtualMachine;
    let vm = live::first::<VirtualMachine, _>(api, namespace, is_user(kind)).await?;
    if let Some(vm) = vm {
        return Ok(Some(vm.title(kind)));
    }
    let kind = UserKind::Instance;
    let instance = live::first::<Instance, _>(api, namespace, is_user(kind)).await?;
    if let Some(instance) = instance {
        return Ok(Some(instance.title(kind)));
    }
    let kind = UserKind::Pod;
    let pod = live::first::<Pod, _>(api, namespace, is_user(kind)).await?;
    Ok(pod.map(|pod| pod.title(kind)))
}
