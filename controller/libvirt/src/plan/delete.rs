//! Deletion of a Machine, in an order that loses no disk: guest off → definition gone → volumes by policy → seed
//! → finalizer.
//!
//! ```text
//! host cannot be reached ─▶ waits, or with the annotation force-delete ─▶ tombstone ─▶ finalizer
//! no LibvirtHost any more ▶ waits: there is no status for a tombstone
//! a pool cannot be read ──▶ guest off ─▶ tombstone, the definition stays ──────────▶ finalizer
//! a pool shows nothing ───▶ the same: its file system may not be mounted
//! other hosts show it, too ▶ guest off, then waits until one definition is left
//! no domain is shown ─────▶ beside the above, a tombstone on each host that may have something of the Machine
//! ```
//! Reads no block where there is a domain: its metadata lists the Machine's volumes. A pool that cannot be read may
//! hold volumes of the Machine, and overlays of volumes in other pools: then no volume is deleted. The tombstone says
//! which volumes to delete once the pool can be read; the domain stays defined until then.

use std::time::Duration;

use common::names;
use common::render::libvirt::{DomainMetadata, Intent, IntentKind, console_log_name};
use controller_core::deletion::{Stage, Teardown};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;

use super::action::Action;
use super::disks::{is_to_go, kept, recorded, removals, to_delete};
use super::other_hosts::conflict;
use super::power::{POWER_RETRY, shutdown_limit, shutdown_step};
use super::unseen::unseen;
use crate::access::{FirmwareState, VolumeKey};
use crate::existing_disks::has_existing;
use crate::firmware_state::firmware_state;
use crate::observed::{Binding, Guest, HostView, Observed};
use crate::volume_effects::Removal;

/// How far the deletion of a Machine is.
pub(crate) fn teardown(machine: &Machine, observed: &Observed, now: Now) -> Teardown<Action> {
    let stage = match stage(machine, observed, now) {
        Stage::Release(actions) => {
            let elsewhere = observed.elsewhere.iter().map(|host| tombstone(host));
            Stage::Release(elsewhere.chain(actions).collect())
        }
        waiting @ Stage::Waiting { .. } => waiting,
    };
    Teardown {
        status: machine.status.clone(),
        stage,
    }
}

/// The record that something of the Machine may be on a host that cannot be asked which volumes it has.
fn tombstone(host: &str) -> Action {
    Action::RecordOrphan {
        host: host.to_owned(),
        volumes: None,
    }
}

fn waiting(message: String, actions: Vec<Action>) -> Stage<Action> {
    Stage::Waiting {
        message,
        actions,
        requeue_after: Some(POWER_RETRY),
    }
}

fn stage(machine: &Machine, observed: &Observed, now: Now) -> Stage<Action> {
    let view = match &observed.binding {
        // Nothing of it is on a host that was asked.
        Binding::Unbound(_) => return Stage::Release(vec![]),
        Binding::Unreachable { host, .. }
            if machine.annotation(names::ANNOTATION_FORCE_DELETE) == Some("true") =>
        {
            return Stage::Release(vec![tombstone(host)]);
        }
        Binding::Unregistered { host } => {
            let message = format!(
                "{}; if the host itself is gone for good, also set the annotation {}: \"true\"",
                waits_for_object(host),
                names::ANNOTATION_FORCE_DELETE
            );
            return waiting(message, vec![]);
        }
        Binding::Unreachable { host, why } => {
            let message = format!(
                "deletion waits for LibvirtHost '{host}', which cannot be reached ({why}); if it never comes back, set the annotation {}: \"true\"; what is left there is removed if it does",
                names::ANNOTATION_FORCE_DELETE
            );
            return waiting(message, vec![]);
        }
        Binding::Bound(view) => view,
    };
    if view.spec.maintenance == Some(true) {
        let message = format!(
            "deletion waits because LibvirtHost '{}' is in maintenance: set spec.maintenance of the host to false",
            view.host
        );
        return waiting(message, vec![]);
    }
    let guest = view
        .guest
        .as_ref()
        .filter(|guest| guest.belongs_to(machine));
    if let Some(guest) = guest.filter(|guest| guest.state.active()) {
        return shut_down(guest, shutdown_limit(machine.desired()), now);
    }
    // The guest may run there on the same disks.
    if let Some(fault) = conflict(machine, observed, view) {
        return waiting(format!("deletion waits: {}", fault.message()), vec![]);
    }
    if view.is_copying {
        let message = format!(
            "deletion waits until LibvirtHost '{}' has copied the image of a disk, which cannot be stopped; the copy is deleted then",
            view.host
        );
        return waiting(message, vec![]);
    }
    let volumes = removals(machine, view, guest);
    if !view.unreadable_pools.is_empty() && may_leave_volumes(machine, view, guest, &volumes) {
        let metadata = guest.and_then(|guest| guest.metadata.as_ref());
        return Stage::Release(vec![Action::RecordOrphan {
            host: view.host.clone(),
            volumes: to_delete(machine, &view.spec, metadata),
        }]);
    }
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let kept = kept(machine, view, metadata);
    let record = (!kept.is_empty()).then(|| Action::RecordKept {
        host: view.host.clone(),
        volumes: kept,
    });
    if unseen(machine, view, metadata).iter().any(is_to_go) {
        let tombstone = Action::RecordOrphan {
            host: view.host.clone(),
            volumes: to_delete(machine, &view.spec, metadata),
        };
        return Stage::Release(record.into_iter().chain([tombstone]).collect());
    }
    let undefine = guest.map(|guest| {
        let known = guest.defined.as_ref().zip(guest.metadata.as_ref());
        // A volume that existed before the Machine is a disk that is kept.
        let own = known.filter(|(domain, metadata)| !has_existing(domain, metadata));
        let state =
            own.map(|(_, metadata)| firmware_state(&recorded(machine, metadata, &view.spec)));
        Action::Undefine(state.unwrap_or(FirmwareState::Keep))
    });
    let volumes = volumes.into_iter().map(Action::DeleteVolume);
    let log = console_log(machine, view, guest);
    let log = log.map(|(pool, name)| Action::DeleteConsoleLog { pool, name });
    // The definition names the log: it goes first.
    let actions = record.into_iter().chain(log).chain(undefine);
    let actions = actions.chain(volumes);
    Stage::Release(actions.collect())
}

/// Pool and name of the log of the console, if the host has a pool for logs. The domain may have had one before.
pub(super) fn console_log(
    machine: &Machine,
    view: &HostView,
    guest: Option<&Guest>,
) -> Option<VolumeKey> {
    guest?;
    let name = console_log_name(machine.namespace(), machine.name(), machine.uid());
    Some((view.spec.console_log_pool.clone()?, name))
}

/// Why a deletion waits for a LibvirtHost that does not exist.
pub(crate) fn waits_for_object(host: &str) -> String {
    format!(
        "deletion waits because LibvirtHost '{host}' was deleted, and only its status can record what is left on the host: create it again"
    )
}

/// Requests a shutdown of the guest, and destroys the domain if the guest did not shut down in time.
fn shut_down(guest: &Guest, limit: Duration, now: Now) -> Stage<Action> {
    let metadata = guest.metadata.clone().unwrap_or_default();
    let since = metadata
        .intent
        .as_ref()
        .filter(|intent| intent.kind == IntentKind::Stop);
    let since = since.map(|intent| intent.since.clone());
    let begin = Intent {
        kind: IntentKind::Stop,
        since: now.text(),
        request: None,
    };
    let record = since.is_none().then(|| {
        Action::SetMetadata(Box::new(DomainMetadata {
            intent: Some(begin),
            ..metadata
        }))
    });
    let step = shutdown_step(guest, since.as_deref(), limit, now);
    waiting(
        "the guest is shutting down".to_owned(),
        record.into_iter().chain(step).collect(),
    )
}

/// Whether volumes of a Machine would be left after a removal now: some cannot be deleted while a pool is unreadable,
/// or may be in that pool.
fn may_leave_volumes(
    machine: &Machine,
    view: &HostView,
    guest: Option<&Guest>,
    volumes: &[Removal],
) -> bool {
    let Some(metadata) = guest.and_then(|guest| guest.metadata.as_ref()) else {
        return !volumes.is_empty() || machine.desired().is_some();
    };
    let seed = metadata.seed.as_ref().map(|seed| &seed.pool);
    let disks = recorded(machine, metadata, &view.spec);
    let disks = disks.iter().filter(|kept| is_to_go(kept));
    let mut pools = disks.map(|kept| &kept.pool).chain(seed);
    !volumes.is_empty() || pools.any(|pool| view.unreadable_pools.contains_key(pool))
}
