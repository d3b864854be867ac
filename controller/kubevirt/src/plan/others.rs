//! What other clients have changed in the VirtualMachine of a Machine, and what is done about it.
//!
//! | change | what is done |
//! |---|---|
//! | `runStrategy: Halted`, as `virtctl stop` writes it | reported; undone once the guest is down, or kept: [`OnForeignStop`] |
//! | deletion of the instance of a guest with `guestShutdownStops`, which KubeVirt takes for a shutdown from inside; `virtctl stop` has it deleted | reported; the guest is started again, or stays off: [`OnForeignStop`] |
//! | volumes plugged into the running guest, as `virtctl addvolume` writes them | tolerated and listed |
//! | any other field of ours | restored at once, with an event: see `apply::update` |

use common::api::choice::PowerState;
use common::api::normalized::Normalized;
use common::names;
use common::render::kubevirt::HALTED;
use common::render::kubevirt::types::{Disk, InstanceSpec, Template, Volume};
use controller_core::conditions::Fault;
use controller_core::foreign_stop::is_reported;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::observed::Observed;
use crate::objects::VirtualMachine;

/// Whether another client has stopped the guest: the VirtualMachine is halted, and this controller wrote it to run.
pub(crate) fn was_stopped_by_another_client(
    machine: &Machine,
    desired: &common::render::kubevirt::types::VirtualMachine,
    live: &VirtualMachine,
) -> bool {
    if desired.spec.run_strategy == HALTED || live.spec.run_strategy != HALTED {
        return false;
    }
    if let Some(written) = live.annotation(names::ANNOTATION_RUN_STRATEGY) {
        return written != HALTED;
    }
    // Written by a release that recorded no strategy: it is ours if the VirtualMachine is as rendered otherwise. A
    // change of the spec meanwhile makes another digest.
    let rendered = desired.metadata.annotations.get(names::ANNOTATION_RENDERED);
    let is_rendered = live.annotation(names::ANNOTATION_RENDERED) == rendered.map(String::as_str);
    is_rendered || is_reported(machine)
}

/// Whether another client has stopped the guest by the deletion of its instance, and KubeVirt leaves it off. This
/// controller deletes instances only for a restart, which the status has recorded then.
pub(crate) fn has_deleted_instance(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
) -> bool {
    let vm = observed.vm.as_deref();
    let vm = vm.filter(|vm| vm.belongs_to(machine.name(), machine.uid()) && !vm.is_deleting());
    let stays_off = block.guest_shutdown_stops
        && block.power_state == PowerState::Running
        && vm.is_some_and(|vm| vm.spec.run_strategy == "RerunOnFailure" && !vm.has_start_request());
    if !stays_off || observed.eviction.is_some() {
        return false;
    }
    match observed.instance.as_deref() {
        Some(instance) if instance.machine() != Some(machine.name()) => false,
        Some(instance) if instance.is_deleting() => {
            instance.was_deleted_running() || is_reported(machine)
        }
        Some(_) => false,
        None => is_reported(machine),
    }
}

/// Whether the VirtualMachine records another strategy than this one. Records of an earlier release, which made none,
/// agree with every strategy: nothing is written for the record alone.
pub(crate) fn records_another(live: &VirtualMachine, strategy: &str) -> bool {
    let recorded = live.annotation(names::ANNOTATION_RUN_STRATEGY);
    recorded.is_some_and(|recorded| recorded != strategy)
}

/// How another client has stopped a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has halted the VirtualMachine.
    Halt,
    /// It has had the instance deleted.
    Deletion,
}

/// What is reported while the guest that another client has stopped stays off; `None`: it is started again now.
pub(crate) fn foreign_stop(machine: &Machine, observed: &Observed, stop: Stop) -> Option<Fault> {
    let instance = observed.instance.as_deref();
    let is_down = instance.is_none_or(|instance| instance.machine() != Some(machine.name()));
    if is_down && observed.on_foreign_stop.restores(machine) {
        return None;
    }
    let what = match stop {
        Stop::Halt => {
            "another client has set spec.runStrategy of the VirtualMachine to Halted, as virtctl stop does"
        }
        Stop::Deletion => {
            "another client has stopped the guest with virtctl stop or by deleting its VirtualMachineInstance"
        }
    };
    Some(observed.on_foreign_stop.fault(machine, what))
}

/// The volumes of a guest that others have plugged in, and that are not of the Machine.
pub(crate) fn plugged_in<'a>(
    machine: &'a str,
    desired: &'a InstanceSpec,
    live: &'a InstanceSpec,
) -> impl Iterator<Item = &'a Volume> {
    let is_ours = |volume: &Volume| {
        let mut ours = desired.volumes.iter();
        ours.any(|ours| ours.name == volume.name && !ours.is_foreign(machine))
    };
    let volumes = live.volumes.iter();
    volumes.filter(move |volume| volume.is_foreign(machine) && !is_ours(volume))
}

/// Adds the volumes that others have plugged in, with their disks, to the desired guest, so that they are no difference.
pub(crate) fn keep_plugged_in(machine: &str, desired: &mut Template, live: &VirtualMachine) {
    let (desired, live) = (&mut desired.spec, &live.spec.template.spec);
    let volumes: Vec<Volume> = plugged_in(machine, desired, live).cloned().collect();
    let named = |disks: &[Disk], name: &str| disks.iter().any(|disk| disk.name == name);
    let ours = &mut desired.domain.devices.disks;
    let disks = live.domain.devices.disks.iter();
    // A drive of the Machine in which others have put a medium is there already.
    let more = disks.filter(|disk| !named(ours, &disk.name));
    let more = more.filter(|disk| volumes.iter().any(|volume| volume.name == disk.name));
    let more: Vec<_> = more.cloned().collect();
    ours.extend(more);
    desired.volumes.extend(volumes);
}

/// The template without the volumes that others have plugged in: what the Machine has.
pub(crate) fn without_plugged_in(machine: &str, template: &Template) -> Template {
    let mut template = template.clone();
    let spec = &mut template.spec;
    let volumes = std::mem::take(&mut spec.volumes).into_iter();
    let (others, ours): (Vec<_>, _) = volumes.partition(|volume| volume.is_foreign(machine));
    let is_ours = |name: &str| others.iter().all(|volume| volume.name != name);
    let disks = &mut spec.domain.devices.disks;
    // Others plug in no drives.
    disks.retain(|disk| disk.cdrom.is_some() || is_ours(&disk.name));
    spec.volumes = ours;
    template
}

/// Names the volumes that others have plugged in; `None`: there are none.
pub(crate) fn list_of_plugged_in(machine: &str, desired: &InstanceSpec) -> Option<String> {
    let volumes = desired.volumes.iter();
    let volumes = volumes.filter(|volume| volume.is_foreign(machine));
    let names: Vec<_> = volumes
        .map(|volume| match volume.claim() {
            Some(claim) if claim != volume.name => format!("{} (claim {claim})", volume.name),
            _ => volume.name.clone(),
        })
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}
