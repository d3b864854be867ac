//! Status, reason and message of each condition.

use common::api::choice::{Backend, Choice as _, PendingAction, Phase, PowerState};
use common::api::status::PendingChange;
use common::bounds::TEXT_MAX;
use common::catalog::KubevirtRow;
use common::names::ANNOTATION_MIGRATE_REQUESTED;
use common::rules::update::{Effect, pending_action, pending_effect};

use super::cause;
use super::inputs::StatusInputs;
use super::live::{EXISTS, LiveGuest};
use crate::objects::{ForeignCondition, VirtualMachine};
use crate::plan::others::list_of_plugged_in;
use controller_core::conditions::{self, Fault, Verdict, paused};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::ready::{ReadyInputs, readiness_probe_fails, restarting};
use controller_core::restart::waiting;

pub(super) fn storage(inputs: &StatusInputs<'_>) -> Verdict {
    if let Some(fault) = &inputs.storage.fault {
        return ("False", fault.clone());
    }
    if let Some(fault) = &inputs.import {
        return ("False", fault.clone());
    }
    if !inputs.pending.is_empty() {
        return ("False", unbound(inputs));
    }
    if let Some(fault) = &inputs.sizes.cannot_grow {
        return ("False", fault.clone());
    }
    let growing = &inputs.sizes.growing;
    if growing.is_empty() {
        return ("True", Fault::new("PVCBound", "every disk has its volume"));
    }
    ("True", Fault::new("PVCResizing", growing.join("; ")))
}

/// Claims that have no volume yet.
fn unbound(inputs: &StatusInputs<'_>) -> Fault {
    let message = format!(
        "waiting for PersistentVolumeClaim {} to be bound; its events have the cause",
        inputs.pending.join(", ")
    );
    Fault::new("PVCPending", message)
}

pub(super) fn virtual_machine(
    machine: &Machine,
    inputs: &StatusInputs<'_>,
    live: &LiveGuest<'_>,
) -> Verdict {
    if let Some(fault) = &inputs.guest.fault {
        return ("False", fault.clone());
    }
    let Some(vm) = live.vm else {
        return live.missing(inputs).verdict(machine);
    };
    match cause::fault(vm, inputs, live) {
        Some(fault) => ("False", fault),
        None => ("True", exists(vm)),
    }
}

/// The fields of the changes with this action.
fn fields_with(changes: &[PendingChange], action: PendingAction) -> Vec<&str> {
    let changes = changes.iter();
    let with = changes.filter(|change| change.action == action.as_str());
    with.map(|change| change.field.as_str()).collect()
}

/// `RestartRequired`: why a requested restart waits, or the changed fields, and why KubeVirt cannot apply them by a
/// migration. A guest that is to stop has the changes at its next start.
pub(super) fn restart_required(
    machine: &Machine,
    inputs: &StatusInputs<'_>,
    changes: &[PendingChange],
    live: &LiveGuest<'_>,
) -> Option<Fault> {
    let block = inputs.block?;
    if block.power_state == PowerState::Stopped {
        return None;
    }
    if inputs.restart_waits {
        return Some(waiting(&[
            inputs.storage.fault.as_ref(),
            inputs.network.fault.as_ref(),
            inputs.import.as_ref(),
            inputs.guest.fault.as_ref(),
        ]));
    }
    let fields = fields_with(changes, PendingAction::Restart);
    let might_migrate = |field: &str| {
        pending_action(Backend::Kubevirt, field, true) == PendingAction::LiveMigration
    };
    let obstacle = live.migration_obstacle();
    let obstacle = obstacle.filter(|_| fields.iter().copied().any(might_migrate));
    let obstacle = obstacle.map_or_else(String::new, |obstacle| {
        let ForeignCondition {
            reason, message, ..
        } = obstacle;
        format!("; KubeVirt cannot apply it by a live migration ({reason}: {message})")
    });
    conditions::restart_required(machine, &fields, &obstacle)
}

/// `MigrationRequired`: names the fields that a migration of the guest brings into effect, and who migrates it on this
/// cluster. `settings`: how KubeVirt is configured, if that is known.
pub(super) fn migration_required(
    changes: &[PendingChange],
    settings: Option<&KubevirtRow>,
) -> Option<Fault> {
    let fields = fields_with(changes, PendingAction::LiveMigration);
    // They matter when the guest is placed on a node, and KubeVirt does not migrate it for them.
    let waits = |field: &&str| {
        pending_effect(Backend::Kubevirt, field) == Some(Effect::NextMigrationOrRestart)
    };
    let waiting: Vec<_> = fields.iter().copied().filter(waits).collect();
    let names = waiting.join(" or ");
    let except = if waiting.is_empty() {
        String::new()
    } else {
        format!(", but never for a change of {names}")
    };
    let now = format!(
        "to migrate it now, set the annotation {ANNOTATION_MIGRATE_REQUESTED} to a new text"
    );
    let who = match settings.map(|settings| settings.migrates) {
        None => format!(
            "KubeVirt migrates it by itself if its workloadUpdateMethods contain LiveMigrate{except}: {now}"
        ),
        Some(true) if waiting.len() == fields.len() => {
            format!("KubeVirt never migrates it by itself for a change of {names}: {now}")
        }
        Some(true) => format!(
            "KubeVirt migrates it by itself, as its workloadUpdateMethods contain LiveMigrate{except}"
        ),
        Some(false) => format!(
            "KubeVirt does not migrate it by itself on this cluster, because its workloadUpdateMethods do not contain LiveMigrate: {now}"
        ),
    };
    (!fields.is_empty()).then(|| {
        Fault::new(
            "MigrationRequired",
            format!(
                "a change takes effect when the guest is migrated to another node or restarted: {}; {who}",
                fields.join(", ")
            ),
        )
    })
}

/// The VirtualMachine exists. Lists the volumes that others have plugged in: they are no disks of the Machine.
fn exists(vm: &VirtualMachine) -> Fault {
    let Some(volumes) = list_of_plugged_in(vm.name(), &vm.spec.template.spec) else {
        return Fault::new("VMCreated", EXISTS);
    };
    let message = format!(
        "the VirtualMachine exists; other clients have plugged in volumes that the Machine does not have: {volumes}"
    );
    Fault::new("VMCreated", message)
}

pub(super) fn ready(
    machine: &Machine,
    inputs: &StatusInputs<'_>,
    live: &LiveGuest<'_>,
    phase: Phase,
    virtual_machine: &Verdict,
) -> Verdict {
    let has_guest = inputs.guest.fault.is_none() && live.vm.is_some_and(VirtualMachine::has_guest);
    let is_to_run = inputs
        .block
        .is_some_and(|block| block.power_state == PowerState::Running);
    // On storage that binds to the first consumer, the VirtualMachine exists before its images are imported.
    let awaits_import = live.vm.is_none() || (is_to_run && !has_guest);
    let vm_fails = virtual_machine.0 == "False" && !has_guest;
    let restart = inputs.restart.as_ref();
    let is_under_way = is_to_run && !inputs.restart_waits;
    let restart = restart.filter(|restart| is_under_way && restart.replaces.is_some());
    let status = live.vm.map_or("", |vm| vm.status.printable_status.as_str());
    let has_no_guest_yet = matches!(phase, Phase::Pending | Phase::Creating | Phase::Failed);
    let ready = ReadyInputs {
        unfit: inputs.unfit.as_ref(),
        foreign_stop: inputs.foreign_stop.as_ref(),
        storage: inputs.storage.fault.as_ref(),
        network: inputs.network.fault.as_ref(),
        import: inputs.import.as_ref().filter(|_| awaits_import),
        guest: vm_fails.then_some(&virtual_machine.1),
        growth: inputs.sizes.cannot_grow.as_ref(),
        restart: restart.map(|restart| restarting(restart.cause.as_deref())),
        unknown: unknown(status, is_to_run && live.is_unclear()),
        guest_paused: (phase == Phase::Running && status == "Paused").then(|| {
            let message = "the guest is paused in KubeVirt: unpause it with virtctl";
            Fault::new("GuestPaused", message)
        }),
        left_alone: (machine.is_paused() && live.differs_from(is_to_run)).then(paused),
        is_to_run,
        // KubeVirt reports `Terminating` while somebody deletes the VirtualMachine.
        is_stopping: matches!(status, "Stopping" | "Terminating"),
        probe: live.fails_readiness().then(|| {
            readiness_probe_fails("the Services of the guest send nothing to it; see what spec.probes.readiness asks, in the guest")
        }),
        is_starting: is_to_run && live.strategy == "Always",
        waits_for: (has_no_guest_yet && !inputs.pending.is_empty()).then(|| unbound(inputs)),
    };
    ready.verdict(machine, phase)
}

/// Why the state of the guest is unknown. `status`: KubeVirt's printable status; `is_unclear`: this release does not know it.
fn unknown(status: &str, is_unclear: bool) -> Option<Fault> {
    if status == "Unknown" {
        return Some(Fault::new(
            "Unknown",
            "KubeVirt cannot reach the guest's node",
        ));
    }
    let word = &status[..status.floor_char_boundary(TEXT_MAX)];
    let message = format!(
        "KubeVirt reports '{word}', which this release does not know, and no running guest"
    );
    is_unclear.then(|| Fault::new("Unknown", message))
}

#[cfg(test)]
mod tests {
    use common::catalog::KubevirtRow;

    use super::*;

    #[test]
    fn the_fields_for_which_kubevirt_migrates_no_guest_are_those_that_changed() {
        let change = |field: &&str| PendingChange {
            field: (*field).to_owned(),
            current: "1".to_owned(),
            desired: "2".to_owned(),
            action: PendingAction::LiveMigration.as_str().to_owned(),
        };
        let migrates = KubevirtRow {
            migrates: true,
            ..KubevirtRow::default()
        };
        for (fields, known, unknown) in [
            (
                &["placement.tolerations"][..],
                "never migrates it by itself for a change of placement.tolerations: to migrate it now, set the annotation machine.vitistack.io/migrate-requested to a new text",
                "contain LiveMigrate, but never for a change of placement.tolerations: to migrate it now, set the annotation machine.vitistack.io/migrate-requested to a new text",
            ),
            (
                &["nodeSelector", "placement.tolerations"],
                "for a change of nodeSelector or placement.tolerations: to migrate it now, set the annotation machine.vitistack.io/migrate-requested to a new text",
                "for a change of nodeSelector or placement.tolerations: to migrate it now, set the annotation machine.vitistack.io/migrate-requested to a new text",
            ),
            (
                &["cpu.sockets", "nodeSelector"],
                "as its workloadUpdateMethods contain LiveMigrate, but never for a change of nodeSelector",
                "contain LiveMigrate, but never for a change of nodeSelector: to migrate it now, set the annotation machine.vitistack.io/migrate-requested to a new text",
            ),
            (
                &["cpu.sockets"],
                "as its workloadUpdateMethods contain LiveMigrate",
                "contain LiveMigrate: to migrate it now, set the annotation machine.vitistack.io/migrate-requested to a new text",
            ),
        ] {
            let changes: Vec<_> = fields.iter().map(change).collect();
            for (settings, end) in [(Some(&migrates), known), (None, unknown)] {
                let fault = migration_required(&changes, settings).unwrap();
                assert!(fault.message().ends_with(end), "{}", fault.message());
            }
        }
        assert!(migration_required(&[], None).is_none());
    }
}
