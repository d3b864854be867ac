//! One volume of a Machine: the state of its claim and who uses it.

use common::api::normalized::NormalizedDisk;
use common::names;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta;

use super::action::{Action, ClaimPatch};
use super::observed::Observed;

/// Outcome of planning one volume.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) actions: Vec<Action>,
    pub(super) size: Size,
    pub(super) bound: bool,
    /// Why its image is not imported yet.
    pub(super) import: Option<Fault>,
}

/// How the size of a volume compares with that of its disk.
#[derive(Debug, Default)]
pub(super) enum Size {
    #[default]
    Right,
    /// It grows: the patch that requests the size, if none has yet, and the message while it is smaller.
    Grows(Option<ClaimPatch>, Option<String>),
    /// It is too small and cannot grow.
    Fixed(Fault),
}

/// Whether an object was made for a Machine and a disk of these names, and no existing Machine owns it.
pub(super) fn is_left_by_former_machine(
    object: &impl Meta,
    machine: &Machine,
    disk: &NormalizedDisk,
    observed: &Observed,
) -> bool {
    let named = object.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
        && object.machine() == Some(machine.name())
        && object.label(names::LABEL_DISK) == Some(disk.name.as_str());
    let free = object
        .machine_uid()
        .is_none_or(|uid| !observed.existing_uids.contains(uid));
    named && free
}

pub(super) fn in_use(claim: &str, observed: &Observed) -> bool {
    let (vm, instance) = (&observed.vm, &observed.instance);
    vm.as_ref().is_some_and(|vm| vm.uses(claim))
        || instance
            .as_ref()
            .is_some_and(|instance| instance.uses(claim))
}
