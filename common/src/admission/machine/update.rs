//! Compares a Machine with the stored one.

use super::object::{Object, Old};
use crate::api::choice::{Backend, Choice as _, PowerState};
use crate::api::normalized::Normalized;
use crate::catalog::{Catalog, MachineName};
use crate::code::Code;
use crate::normalize::{Merged, Pins};
use crate::rules;
use crate::rules::rule::{Lookup, MigrationRequest, Update};
use crate::violation::{Findings, Warning};

/// What the annotations of a Machine request that those of the stored one do not.
pub(super) fn migration_request<'a>(
    namespace: &'a str,
    object: &'a Object<'_>,
    old: Option<&'a Old<'_>>,
    backend: Backend,
    catalog: &'a dyn Catalog,
) -> MigrationRequest<'a> {
    let before = old.map(|old| &old.object);
    let (text, target) = (
        object.metadata.requested_migration(),
        object.metadata.migration_target(),
    );
    let is_known = before.is_none_or(|before| {
        before.metadata.requested_migration() == text || before.status.last_migration() == text
    });
    let old_target = before.and_then(|before| before.metadata.migration_target());
    let power_state = object.spec.power_state.as_deref();
    MigrationRequest {
        is_new: text.is_some() && !is_known,
        new_target: target.filter(|_| target != old_target),
        target,
        backend,
        power_state: power_state.and_then(PowerState::parse),
        node: before.and_then(|before| before.status.node_name.as_deref()),
        obstacle: before.and_then(|before| before.status.obstacle_to_migration()),
        namespace,
        block: old.and_then(|old| old.block.as_ref()),
        host: before.and_then(|before| before.status.host.as_deref()),
        kept_disks: before
            .map(|before| before.status.kept_disks())
            .unwrap_or_default(),
        catalog,
    }
}

/// Refuses changes of a stored Machine. Returns warnings of an accepted Machine: of the effects of a change, or of what a
/// new one lacks.
pub(super) fn notes(
    reviewed: &Reviewed<'_, '_>,
    lookup: &Lookup<'_>,
    old: Option<&Old<'_>>,
    block: Option<&Normalized>,
    findings: &mut Findings,
) -> Vec<Warning> {
    if let Some((old, stored)) = old.zip(lookup.stored) {
        return check_update(reviewed, old, stored, block, lookup.catalog, findings);
    }
    // The disks of the guest are still those of an outdated block. Other fields may have got another default since: it is
    // not known which of them the user changed.
    if let Some((old, outdated)) = old.and_then(|old| Some((old, old.outdated_block.as_ref()?))) {
        let mut faults = Findings::default();
        check_update(reviewed, old, outdated, None, lookup.catalog, &mut faults);
        for fault in faults.violations {
            if [Code::DiskShrunk, Code::StateDiscarded].contains(&fault.code) {
                findings.deny(fault);
            }
        }
    }
    warnings_of_new(lookup, block)
}

/// Warnings of what a Machine lacks that is new and has a block.
fn warnings_of_new(lookup: &Lookup<'_>, block: Option<&Normalized>) -> Vec<Warning> {
    let mut notes = Findings::default();
    if block.is_some() && lookup.is_new {
        rules::warn_of_creation(lookup, &mut notes);
    }
    notes.warnings
}

/// A Machine under review, merged, with everything that its block depends on.
pub(super) struct Reviewed<'r, 'a> {
    pub(super) object: &'r Object<'a>,
    pub(super) backend: Backend,
    pub(super) merged: &'r Merged<'r>,
    pub(super) pins: &'r Pins,
    pub(super) machine: MachineName<'r>,
}

/// Compares a Machine with the stored one. Returns warnings of the effects of what is accepted.
fn check_update(
    reviewed: &Reviewed<'_, '_>,
    old: &Old<'_>,
    old_block: &Normalized,
    block: Option<&Normalized>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> Vec<Warning> {
    let incomplete_imports = old.object.status.incomplete_imports();
    let made_volumes = old.object.status.made_volumes();
    let is_on_kubevirt = reviewed.backend == Backend::Kubevirt;
    let kubevirt = is_on_kubevirt.then(|| catalog.kubevirt()).flatten();
    let update = Update {
        machine: reviewed.machine,
        old: old_block,
        old_spec: &old.object.spec,
        merged: reviewed.merged,
        pins: reviewed.pins,
        backend: reviewed.backend,
        incomplete_imports: &incomplete_imports,
        made_volumes: &made_volumes,
        discarded_state: reviewed.object.metadata.discarded_state(),
        runs: rules::machine::keeps_running(old_block, reviewed.merged),
        is_bound: old.object.status.host.is_some(),
        kubevirt: kubevirt.as_deref(),
        guest: old.object.status.guest_report(),
    };
    rules::check_update(&update, catalog, findings);
    let mut notes = Findings::default();
    if let Some(block) = block {
        rules::warn_of_effects(&update, block, &mut notes);
    }
    notes.warnings
}
