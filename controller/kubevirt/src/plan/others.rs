//! What other clients have changed in the VirtualMachine of a Machine, and what is done about it.
//!
//! | change | what is done |
//! |---|---|
//! | `runStrategy: Halted`, as `virtctl stop` writes it | reported; undone once the guest is down, or kept: [`OnForeignStop`] |
//! | volumes plugged into the running guest, as `virtctl addvolume` writes them | tolerated and listed |
//! | any other field of ours | restored at once, with an event: see `apply::update` |

use common::names;
use common::render::kubevirt::types::{InstanceSpec, Template, Volume};
use controller_core::conditions::{Fault, ready};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::observed::Observed;
use crate::objects::VirtualMachine;

/// Reason of `Ready` while another client has stopped the guest.
const FOREIGN_STOP: &str = "ForeignStop";

/// What is done about a guest that another client stops although its Machine is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnForeignStop {
    /// It is started again once it is down.
    #[default]
    Restore,
    /// It stays off until `spec.powerState` or the annotation `restart-requested` changes.
    Keep,
}

/// Whether another client has stopped the guest: the VirtualMachine is halted, and this controller wrote it to run.
pub(crate) fn has_stopped(
    machine: &Machine,
    desired: &common::render::kubevirt::types::VirtualMachine,
    live: &VirtualMachine,
) -> bool {
    let rendered = desired.metadata.annotations.get(names::ANNOTATION_RENDERED);
    let is_rendered = live.annotation(names::ANNOTATION_RENDERED) == rendered.map(String::as_str);
    // A change of the spec meanwhile makes another digest.
    let is_known = ready(&machine.status).is_some_and(|(_, reason)| reason == FOREIGN_STOP);
    let halted = "Halted";
    desired.spec.run_strategy != halted
        && live.spec.run_strategy == halted
        && (is_rendered || is_known)
}

/// What is reported while the guest that another client has stopped stays off; `None`: it is started again now.
pub(crate) fn foreign_stop(machine: &Machine, observed: &Observed) -> Option<Fault> {
    let instance = observed.instance.as_deref();
    let is_down = instance.is_none_or(|instance| instance.machine() != Some(machine.name()));
    let next = match observed.on_foreign_stop {
        _ if machine.is_paused() => {
            "nothing is done about it while the Machine is paused".to_owned()
        }
        OnForeignStop::Restore if is_down => return None,
        OnForeignStop::Restore => "the guest is started again once it is down".to_owned(),
        OnForeignStop::Keep => format!(
            "it is kept until the annotation {} has a new text",
            names::ANNOTATION_RESTART_REQUESTED
        ),
    };
    let message = format!(
        "another client has set spec.runStrategy of the VirtualMachine to Halted, as virtctl stop does; {next}; to stop the guest, set spec.powerState of the Machine to Stopped instead"
    );
    Some(Fault::new(FOREIGN_STOP, message))
}

/// The volumes of a guest that others have plugged in: hot-plugged, and not of the Machine.
pub(crate) fn plugged_in<'a>(
    desired: &'a InstanceSpec,
    live: &'a InstanceSpec,
) -> impl Iterator<Item = &'a Volume> {
    let is_ours = |volume: &Volume| {
        let mut ours = desired.volumes.iter();
        ours.any(|ours| ours.name == volume.name && !ours.is_plugged_in())
    };
    let volumes = live.volumes.iter();
    volumes.filter(move |volume| volume.is_plugged_in() && !is_ours(volume))
}

/// Adds the volumes that others have plugged in, with their disks, to the desired guest, so that they are no difference.
pub(crate) fn tolerate_plugged_in(desired: &mut InstanceSpec, live: &InstanceSpec) {
    let volumes: Vec<Volume> = plugged_in(desired, live).cloned().collect();
    let disks = live.domain.devices.disks.iter();
    let disks = disks.filter(|disk| volumes.iter().any(|volume| volume.name == disk.name));
    desired.domain.devices.disks.extend(disks.cloned());
    desired.volumes.extend(volumes);
}

/// The template without the volumes that others have plugged in: what the Machine has.
pub(crate) fn without_plugged_in(template: &Template) -> Template {
    let mut template = template.clone();
    let spec = &mut template.spec;
    let volumes = std::mem::take(&mut spec.volumes).into_iter();
    let (others, ours): (Vec<_>, _) = volumes.partition(Volume::is_plugged_in);
    let is_ours = |name: &str| others.iter().all(|volume| volume.name != name);
    spec.domain.devices.disks.retain(|disk| is_ours(&disk.name));
    spec.volumes = ours;
    template
}

/// Names the volumes that others have plugged in; `None`: there are none.
pub(crate) fn list_of_plugged_in(desired: &InstanceSpec) -> Option<String> {
    let volumes = desired.volumes.iter().filter(|it| it.is_plugged_in());
    let names: Vec<_> = volumes
        .map(|volume| match volume.claim() {
            Some(claim) if claim != volume.name => format!("{} (claim {claim})", volume.name),
            _ => volume.name.clone(),
        })
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}
