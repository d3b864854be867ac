//! Findings of the plan that the status reports.

use common::api::normalized::Normalized;
use common::api::status::{LastMigration, LastReset, LastRestart};
use common::render::kubevirt::types::Template;
use controller_core::conditions::{Fault, Outcome};

/// Findings of the plan that the status reports.
#[derive(Debug, Default)]
pub(crate) struct StatusInputs<'a> {
    pub(crate) block: Option<&'a Normalized>,
    /// Why the block cannot be used.
    pub(crate) unfit: Option<Fault>,
    pub(crate) network: Outcome,
    pub(crate) storage: Outcome,
    pub(crate) guest: Outcome,
    /// Template of the VirtualMachine; `None` while it cannot be rendered.
    pub(crate) desired: Option<Template>,
    /// Why an image is not imported yet.
    pub(crate) import: Option<Fault>,
    /// State of the last restart, if the plan looked at it.
    pub(crate) restart: Option<LastRestart>,
    /// Whether a requested restart waits, because the guest could not be started again.
    pub(crate) restart_waits: bool,
    /// Whether a quota holds the growth of the Machine.
    pub(crate) holds_growth: bool,
    /// State of the last requested migration, if the plan looked at it.
    pub(crate) migration: Option<LastMigration>,
    /// The last requested reset; `None`: as in the status.
    pub(crate) reset: Option<LastReset>,
    /// Claims that are not bound yet.
    pub(crate) pending: Vec<String>,
    /// Volumes that do not have their size yet.
    pub(crate) sizes: Sizes,
    /// Set while another client has stopped the guest.
    pub(crate) foreign_stop: Option<Fault>,
}

/// Volumes that are smaller than desired. Nothing waits for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    /// Why one of them cannot grow.
    pub(crate) cannot_grow: Option<Fault>,
    /// Messages about volumes that grow.
    pub(crate) growing: Vec<String>,
}
