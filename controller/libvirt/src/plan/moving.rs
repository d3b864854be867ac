//! The move of a stopped Machine to another host that shares its pools.
//!
//! ```text
//! request ─▶ volumes verified on the other host ─▶ status: host, from ─▶ verified again, definition removed here
//!    └─▶ status: Refused                              └─▶ status: Failed, host as before      │
//!                       status: Succeeded ◀─ defined on the other host, as any Machine is ◀─┘
//! ```
//! At most one host has a definition of the Machine at any time: the other one is made once the polls show that the first
//! is gone. Until the definition is removed the move can be given up, and the Machine is where it was. From then on it
//! only goes on, and no disk that the Machine had is recreated. A volume is never copied or deleted.

use std::time::Duration;

use common::api::choice::{MigrationResult, PowerState};
use common::api::normalized::{Normalized, NormalizedDisk};
use common::api::status::LastMigration;
use common::names;
use common::rules::{check_labels_of_policies, check_shared_storage, obstacle_to_move};
use controller_core::machine::Machine;
use controller_core::migration::{Request, ended, is_retried, refused};
use controller_core::objects::Meta as _;
use controller_core::plan::Refusal;

use super::action::{Action, Draft, MovedVolume};
use super::delete::console_log;
use super::disks::{existing, has_disk, name_of};
use super::other_hosts::conflict;
use super::volumes::has_reported;
use crate::access::State;
use crate::observed::{HostView, Observed};
use crate::offers::storage;
use crate::placement::{Candidate, best};

/// Pause until the polls show that a definition is gone.
const RECHECK_PAUSE: Duration = Duration::from_secs(1);

/// What a pass does about a move.
pub(super) enum Move {
    /// The Machine is handled as any other; the last move for the status.
    None(Option<LastMigration>),
    /// Nothing but this: the Machine is between two hosts.
    Only(Box<Draft>),
}

/// What to do about a move that is requested or under way. `view`: the host that shows the domain, else the one that the
/// Machine is moved to.
pub(super) fn moving(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    view: &HostView,
    refusal: Option<&Refusal>,
) -> Move {
    let last = machine.status.last_migration.clone();
    let refused = refused(refusal);
    let open = match Request::of(machine) {
        Request::None => return Move::None(last),
        Request::New(open) => open,
        Request::Open(open) if is_retried(refusal) => return Move::None(Some(open)),
        Request::Open(open) => return under_way(machine, block, observed, view, open, refused),
    };
    // The rest of the plan reports why.
    if is_retried(refusal) {
        return Move::None(last);
    }
    let guest = view.guest.as_ref();
    let goes_down =
        block.power_state == PowerState::Stopped && guest.is_some_and(|guest| guest.state.active());
    if goes_down && refused.is_none() {
        // Requested together with the stop.
        return Move::None(last);
    }
    let target = refused.map_or_else(
        || target(machine, block, observed, view, open.node.as_deref()),
        Err,
    );
    match target {
        Err(why) => Move::None(Some(ended(open, MigrationResult::Refused, &why))),
        // On the other host no disk that the status lists is recreated: it has to list all of them before.
        Ok(_) if !block.disks.iter().all(|disk| has_reported(machine, disk)) => Move::None(last),
        Ok((to, volumes)) => {
            let message = format!("the Machine leaves LibvirtHost {}", view.host);
            let record = LastMigration {
                node: Some(to.name.clone()),
                from: Some(view.host.clone()),
                message: Some(message),
                ..open
            };
            let from = view.host.clone();
            let action = Action::MoveTo {
                from,
                record,
                volumes,
            };
            only(vec![action], Duration::ZERO)
        }
    }
}

/// Nothing but these actions, and the next pass after this time.
fn only(actions: Vec<Action>, requeue_after: Duration) -> Move {
    Move::Only(Box::new(Draft {
        actions,
        requeue_after: Some(requeue_after),
        ..Draft::default()
    }))
}

/// The next step of a move that the status records.
fn under_way(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    view: &HostView,
    open: LastMigration,
    refused: Option<String>,
) -> Move {
    let (from, to) = (open.from.clone(), open.node.clone().unwrap_or_default());
    let here = Some(&view.host) == from.as_ref();
    let guest = view.guest.as_ref();
    let is_defined = guest.is_some_and(|guest| guest.belongs_to(machine));
    match (here, is_defined) {
        (false, true) => {
            let message = format!("the Machine is on LibvirtHost {}", view.host);
            Move::None(Some(ended(open, MigrationResult::Succeeded, &message)))
        }
        // Defined there by the rest of the plan.
        (false, false) => Move::None(Some(open)),
        // The polls do not show yet that the definition is gone.
        (true, false) => only(vec![], RECHECK_PAUSE),
        (true, true) => {
            let target = observed.targets.iter().find(|host| host.name == to);
            let target = target.ok_or_else(|| format!("there is no LibvirtHost '{to}'"));
            let leaves = refused.map_or(Ok(()), Err);
            let leaves = leaves.and_then(|()| movable(machine, block, observed, view));
            let leaves = leaves.and_then(|()| volumes(machine, block, view, target?));
            match leaves {
                Err(why) => {
                    let message = format!("the Machine is where it was: {why}");
                    Move::None(Some(ended(open, MigrationResult::Failed, &message)))
                }
                Ok(volumes) => {
                    let leave = Action::Leave {
                        from: view.host.clone(),
                        to,
                        volumes,
                        log: console_log(machine, view, guest),
                    };
                    only(vec![leave], Duration::ZERO)
                }
            }
        }
    }
}

/// The host that the Machine is moved to, and the volumes that it must have there; or why it cannot be moved.
fn target<'o>(
    machine: &Machine,
    block: &Normalized,
    observed: &'o Observed,
    view: &HostView,
    named: Option<&str>,
) -> Result<(&'o Candidate, Vec<MovedVolume>), String> {
    movable(machine, block, observed, view)?;
    if named == Some(&*view.host) {
        return Err(format!(
            "the Machine is on LibvirtHost '{}' already: name another one in the annotation {}, or drop that",
            view.host,
            names::ANNOTATION_MIGRATE_TO
        ));
    }
    let here = view.spec.shared_storage();
    let others = observed.targets.iter();
    let others = others.filter(|host| host.name != view.host);
    let others = others.filter(|host| named.is_none_or(|named| host.name == named));
    let (mut sharing, mut lacks) = (Vec::new(), Vec::new());
    for host in others {
        let allowed = check_labels_of_policies(&observed.policies, &host.labels);
        let storage = host.spec.shared_storage();
        match allowed.and_then(|()| check_shared_storage(block, &here, &storage)) {
            Ok(()) => sharing.push(host),
            Err(why) => lacks.push(format!("{}: {why}", host.name)),
        }
    }
    let chosen = best(
        machine.namespace(),
        block,
        &observed.networks,
        sharing.iter().copied(),
        false,
    );
    match chosen {
        Ok(name) => {
            let host = sharing.into_iter().find(|host| host.name == name);
            let host = host.ok_or("there is no other LibvirtHost")?;
            Ok((host, volumes(machine, block, view, host)?))
        }
        Err(unfit) => {
            lacks.extend(unfit);
            Err(match named {
                Some(named) if lacks.is_empty() => format!("there is no LibvirtHost '{named}'"),
                None if lacks.is_empty() => "there is no other LibvirtHost".to_owned(),
                _ => format!("no other host can have the Machine: {}", lacks.join("; ")),
            })
        }
    }
}

/// Fails with why the Machine cannot leave its host.
fn movable(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    view: &HostView,
) -> Result<(), String> {
    let guest = view
        .guest
        .as_ref()
        .filter(|guest| guest.belongs_to(machine));
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let (guest, metadata) = guest
        .zip(metadata)
        .ok_or("it has no domain on its host yet: request the move when it has")?;
    if let Some(fault) = conflict(machine, observed, view) {
        return Err(fault.message().to_owned());
    }
    let records = metadata.volumes.iter().map(|record| record.disk.as_str());
    let kept = records.filter(|disk| !has_disk(block, disk));
    if let Some(obstacle) = obstacle_to_move(block, &view.spec.shared_storage(), kept) {
        return Err(obstacle);
    }
    if guest.state != State::ShutOff {
        return Err(format!(
            "its domain on LibvirtHost '{}' is not shut off: request the move when it is",
            view.host
        ));
    }
    if view.spec.maintenance == Some(true) {
        return Err(format!(
            "LibvirtHost '{}' is in maintenance, so nothing is changed there",
            view.host
        ));
    }
    match &observed.hold {
        Some(hold) => Err(format!(
            "the Machine may get nothing more: {}",
            hold.message()
        )),
        None => Ok(()),
    }
}

/// The volumes of the Machine as another host must have them.
fn volumes(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
    to: &Candidate,
) -> Result<Vec<MovedVolume>, String> {
    if let Err(why) = &to.snapshot {
        return Err(format!(
            "LibvirtHost '{}' cannot be reached: {why}",
            to.name
        ));
    }
    let volume = |disk: &NormalizedDisk| {
        let offers =
            storage(&view.spec, &disk.storage_class).zip(storage(&to.spec, &disk.storage_class));
        let found = offers.and_then(|(here, there)| {
            let found = existing(machine, disk, here, view)?;
            Some(MovedVolume {
                pool: there.pool.clone(),
                base: name_of(machine, disk, here),
                name: found.name.clone(),
                capacity: found.capacity,
            })
        });
        found.ok_or_else(|| {
            format!(
                "disk '{}' has no volume on LibvirtHost '{}' that can be read",
                disk.name, view.host
            )
        })
    };
    block.disks.iter().map(volume).collect()
}
