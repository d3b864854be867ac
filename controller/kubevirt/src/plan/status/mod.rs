//! The status: phase and conditions, from the desired state and what KubeVirt reports.
//!
//! A condition that is not met names its cause and what to do about it. `Ready` takes the reason of the first one that
//! is not met, in the order in which a person would fix them.

mod cause;
mod conditions;
pub(super) mod inputs;
mod live;
mod mirrored;

use common::api::choice::{Phase, PowerState};
use common::api::normalized::is_counted;
use common::api::status::{MachineStatus, PendingChange};
use common::catalog::DECLARATIVE_HOTPLUG;
use common::quantity::Bytes;

use self::conditions::{migration_required, ready, restart_required, storage, virtual_machine};
use self::inputs::StatusInputs;
use self::live::{LiveGuest, phase, volumes};
use self::mirrored::mirrored;
use super::action::Action;
use super::guest_size;
use super::observed::Observed;
use super::pending::{Guest, other_sizes, pending};
use crate::objects::find_condition;
use controller_core::conditions::{Conditions, agent_connected, network, normalized};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;

/// The status of a Machine for which these actions are carried out.
pub(super) fn report(
    machine: &Machine,
    observed: &Observed,
    now: Now,
    inputs: &StatusInputs<'_>,
    actions: &[Action],
) -> MachineStatus {
    let live = LiveGuest::of(machine, observed, actions);
    let phase = phase(machine, inputs, &live);
    let mut conditions = Conditions::new(machine, now);
    let virtual_machine = virtual_machine(machine, inputs, &live);
    if let Some(fault) = &inputs.unfit {
        conditions.set("Normalized", "False", fault);
    } else {
        conditions.set(
            "Normalized",
            "True",
            &normalized(
                inputs.block,
                observed.template.as_deref(),
                &observed.outdated_images,
            ),
        );
    }
    if inputs.block.is_some() {
        let storage = storage(inputs);
        conditions.set("StorageReady", storage.0, &storage.1);
        let network = network(&inputs.network);
        conditions.set("NetworkReady", network.0, &network.1);
        conditions.set("VirtualMachineReady", virtual_machine.0, &virtual_machine.1);
    }
    let mut pending_changes = pending_changes(inputs, &live, observed);
    let required = [
        (
            "RestartRequired",
            restart_required(machine, inputs, &pending_changes, &live),
        ),
        (
            "MigrationRequired",
            migration_required(&pending_changes, observed.settings.as_ref()),
        ),
    ];
    for (kind, fault) in required {
        if let Some(fault) = fault {
            conditions.set(kind, "True", &fault);
        }
    }
    // No restart brings them while the growth is held.
    let mut held = held_back(inputs, &live);
    held.retain(|change| pending_changes.iter().all(|it| it.field != change.field));
    pending_changes.extend(held);
    // What a guest reports while it starts is written together with its being up, which follows within a moment.
    let is_up = phase != Phase::Creating;
    let guest = live.instance.filter(|_| is_up);
    for (kind, verdict) in guest.into_iter().flat_map(mirrored) {
        conditions.set(kind, verdict.0, &verdict.1);
    }
    if is_up && live.has_agent() {
        conditions.set("AgentConnected", "True", &agent_connected());
    }
    conditions.set_paused();
    let ready = ready(machine, inputs, &live, phase, &virtual_machine);
    conditions.set("Ready", ready.0, &ready.1);

    MachineStatus {
        phase: Some(phase),
        conditions: conditions.list,
        observed_generation: machine.generation(),
        vm_name: (live.vm.is_some() || live.is_created).then(|| machine.name().to_owned()),
        // Without a block the disks are not known, and whether a claim was ever filled is known from there alone.
        volumes: inputs.block.map_or_else(
            || machine.status.volumes.clone(),
            |block| volumes(machine, block, observed, actions),
        ),
        pending_changes,
        last_restart: inputs.restart.clone(),
        last_migration: inputs.migration.clone(),
        last_reset: inputs.reset.clone(),
        ..live.addresses(machine, is_up)
    }
}

/// Changes that the running guest does not have yet: none if it is off, because it has them at its next start. Of a guest
/// that is to stop, only the sizes: what it has of the quota counts until it is off.
fn pending_changes(
    inputs: &StatusInputs<'_>,
    live: &LiveGuest<'_>,
    observed: &Observed,
) -> Vec<PendingChange> {
    let (Some(vm), Some(guest), Some(block)) = (live.vm, live.guest(), inputs.block) else {
        return Vec::new();
    };
    let settings = observed.settings.as_ref();
    let guest = Guest {
        instance: guest,
        pod: live.pod,
        refuses: find_condition(&vm.status.conditions, "RestartRequired", "True").is_some(),
        plugs_disks: settings.and_then(|it| it.offers(&DECLARATIVE_HOTPLUG)) == Some(true),
    };
    let is_to_run = block.power_state == PowerState::Running;
    // What the guest has of the quota counts also while the VirtualMachine cannot be changed.
    let Some(desired) = &inputs.desired else {
        return other_sizes(vm.name(), guest.instance, guest.pod, block);
    };
    let mut changes = pending(vm.name(), &guest, desired);
    if !is_to_run {
        changes.retain(|change| is_counted(&change.field));
        return changes;
    }
    changes.extend(guest_size::pending(vm.name(), block, observed));
    changes
}

/// What the guest has more of than the block, while a quota holds another growth of the Machine: the VirtualMachine stays as
/// it is, and so does what counts.
fn held_back(inputs: &StatusInputs<'_>, live: &LiveGuest<'_>) -> Vec<PendingChange> {
    let block = inputs.block.filter(|_| inputs.holds_growth);
    let (Some(vm), Some(instance), Some(block)) = (live.vm, live.guest(), block) else {
        return Vec::new();
    };
    let mut sizes = other_sizes(vm.name(), instance, live.pod, block);
    let amount = |text: &str| text.parse::<Bytes>().ok();
    sizes.retain(|size| amount(&size.current) > amount(&size.desired));
    sizes
}

/// The last status written, updated by what was observed of a Machine under deletion.
pub(super) fn under_deletion(machine: &Machine, observed: &Observed) -> MachineStatus {
    let live = LiveGuest::of(machine, observed, &[]);
    MachineStatus {
        vmi_name: live.instance.map(|_| machine.name().to_owned()),
        ..machine.status.clone()
    }
}
