//! One volume of a Machine: what there is of it, and who has it.

use common::api::normalized::NormalizedDisk;
use common::names;
use controller_core::machine::Machine;
use controller_core::objects::Meta;
use controller_core::status::Fault;

use super::action::{Action, ClaimPatch};
use super::observed::Observed;

/// What there is of a volume, and what is to be done about it.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) actions: Vec<Action>,
    pub(super) size: Size,
    pub(super) bound: bool,
    /// What is told of an image that is not there yet.
    pub(super) import: Option<Fault>,
}

/// How the size of a volume compares with that of its disk.
#[derive(Debug, Default)]
pub(super) enum Size {
    #[default]
    Right,
    /// It is asked to grow where it was not yet, and told of until it has.
    Grows(Option<ClaimPatch>, Option<String>),
    /// It is too small for good.
    Fixed(Fault),
}

/// Whether something was made for a Machine and a disk of these names, and no living Machine has it.
pub(super) fn is_left_over(
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
        .is_none_or(|uid| !observed.living.contains(uid));
    named && free
}

pub(super) fn in_use(claim: &str, observed: &Observed) -> bool {
    let (vm, instance) = (&observed.vm, &observed.instance);
    vm.as_ref().is_some_and(|vm| vm.uses(claim))
        || instance
            .as_ref()
            .is_some_and(|instance| instance.uses(claim))
}
