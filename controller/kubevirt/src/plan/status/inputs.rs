//! What the plan found out that the status reports.

use common::api::normalized::Normalized;
use common::api::status::LastRestart;
use common::render::kubevirt::types::Template;
use controller_core::status::{Fault, Outcome};

/// What the plan found out.
#[derive(Debug, Default)]
pub(crate) struct Facts<'a> {
    pub(crate) block: Option<&'a Normalized>,
    /// Why there is no block to act on.
    pub(crate) unfit: Option<Fault>,
    pub(crate) network: Outcome,
    pub(crate) storage: Outcome,
    pub(crate) guest: Outcome,
    /// The guest that is wished, where the VirtualMachine is made of it.
    pub(crate) wish: Option<Template>,
    /// What is told of an image that is not there yet.
    pub(crate) import: Option<Fault>,
    /// What is to be remembered of a restart, when that was looked at.
    pub(crate) restart: Option<LastRestart>,
    /// Claims that are not bound yet.
    pub(crate) pending: Vec<String>,
    /// Volumes that do not have their size yet.
    pub(crate) sizes: Sizes,
    /// Whether this plan makes the VirtualMachine.
    pub(crate) makes_vm: bool,
    pub(crate) paused: bool,
}

/// Volumes that are smaller than they are to be. Nothing waits for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    /// One that cannot grow.
    pub(crate) fixed: Option<Fault>,
    /// Those that grow, and how far they are.
    pub(crate) growing: Vec<String>,
}
