//! The end of a Machine, in an order that loses no disk: guest off → definition gone → volumes by policy →
//! seed → finalizer.
//!
//! Reads no block where there is a domain: what the Machine has is told by the mark of its domain. A host that
//! cannot be asked is waited for, because a guest that runs there has the disks; or the user says that it is
//! gone, and what may be left there is written on the host's tombstones.

use common::api::choice::ReclaimPolicy;
use common::names;
use common::render::libvirt::{Intent, IntentKind, Kept, Mark, is_seed, is_volume_of};

use super::power::{ASK_AGAIN, ask};
use super::volumes::disks;
use super::{Action, Observed, Place, Plan, Site, status};
use crate::libvirt::images::{is_marker, marker};
use crate::machine::Machine;
use crate::objects::Meta as _;
use crate::plan::Now;

pub(super) fn plan(machine: &Machine, observed: &Observed, now: Now) -> Plan {
    if !machine.has_finalizer(names::FINALIZER) {
        return Plan::default();
    }
    let waits = |message: String, actions| Plan {
        actions,
        again: Some(ASK_AGAIN),
        ..status::deleting(machine, now, message)
    };
    if machine.is_paused() {
        let message = format!(
            "deletion waits because the Machine is paused: remove the annotation {}",
            names::ANNOTATION_PAUSED
        );
        return waits(message, vec![]);
    }
    if let Some(refusal) = &observed.refusal {
        return waits(refusal.message.clone(), vec![]);
    }
    let site = match &observed.place {
        // Nothing was ever made.
        Place::Nowhere(_) => return over(vec![]),
        Place::Unreachable { host, .. }
            if machine.annotation(names::ANNOTATION_FORCE_DELETE) == Some("true") =>
        {
            return over(vec![Action::Bury { host: host.clone() }]);
        }
        Place::Unreachable { host, why } => {
            let message = format!(
                "deletion waits for LibvirtHost '{host}', which cannot be asked ({why}); if it never comes back, set the annotation {}: \"true\"; what is left there is removed if it does",
                names::ANNOTATION_FORCE_DELETE
            );
            return waits(message, vec![]);
        }
        Place::On(site) => site,
    };
    if site.spec.maintenance == Some(true) {
        let message = format!(
            "deletion waits because LibvirtHost '{}' is in maintenance: set spec.maintenance of the host to false",
            site.host
        );
        return waits(message, vec![]);
    }
    let guest = site
        .guest
        .as_ref()
        .filter(|guest| guest.belongs_to(machine));
    let Some(guest) = guest else {
        let gone = left(machine, site);
        return over(gone);
    };
    let mark = guest.mark.clone().unwrap_or_default();
    if guest.state.active() {
        let since = mark
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
            Action::SetMark(Box::new(Mark {
                intent: Some(begin),
                ..mark
            }))
        });
        let step = ask(guest, since.as_deref(), now);
        let message = "the guest is shutting down".to_owned();
        return waits(message, record.into_iter().chain(step).collect());
    }
    let mut actions = vec![Action::Undefine];
    let doomed = mark.volumes.iter().filter(|kept| is_to_go(kept));
    actions.extend(doomed.flat_map(|kept| {
        let beside = (kept.pool.clone(), marker(&kept.volume));
        let beside = site
            .volumes
            .contains_key(&beside)
            .then(|| delete(&kept.pool, &beside.1));
        [delete(&kept.pool, &kept.volume)].into_iter().chain(beside)
    }));
    actions.extend(
        mark.seed
            .iter()
            .map(|seed| delete(&seed.pool, &seed.volume)),
    );
    over(actions)
}

fn over(mut actions: Vec<Action>) -> Plan {
    actions.push(Action::RemoveFinalizer);
    Plan {
        actions,
        ..Plan::default()
    }
}

fn delete(pool: &str, name: &str) -> Action {
    Action::DeleteVolume {
        pool: pool.to_owned(),
        name: name.to_owned(),
    }
}

/// Only the word `Delete` deletes.
pub(super) fn is_to_go(kept: &Kept) -> bool {
    kept.reclaim_policy == ReclaimPolicy::Delete
}

/// What is left of a Machine whose domain is gone or was never made: what its block says is to go with it, its
/// seeds, and markers. Without a block no disk goes.
fn left(machine: &Machine, site: &Site) -> Vec<Action> {
    let doomed = machine
        .wish()
        .into_iter()
        .flat_map(|block| disks(machine, block, &site.spec));
    let doomed: Vec<_> = doomed.filter(is_to_go).map(|kept| kept.volume).collect();
    let ours = site
        .volumes
        .keys()
        .filter(|(_, name)| is_volume_of(name, machine.uid()));
    let goes = |name: &String| doomed.contains(name) || is_seed(name) || is_marker(name);
    ours.filter(|(_, name)| goes(name))
        .map(|(pool, name)| delete(pool, name))
        .collect()
}
