//! The end of a Machine, in an order that loses no disk: guest off → definition gone → volumes by policy →
//! seed → finalizer.
//!
//! Reads no block where there is a domain: what the Machine has is told by the mark of its domain. A host that
//! cannot be asked is waited for, because a guest that runs there has the disks; or the user says that it is
//! gone, and what may be left there is written on the host's tombstones.

use common::api::choice::Choice as _;
use common::names;
use common::render::libvirt::{
    DomainMetadata, Intent, IntentKind, VolumeRecord, is_seed, is_volume_of,
};

use super::power::{ASK_AGAIN, ask};
use super::volumes::disks;
use super::{Action, Observed, Place, Site};
use crate::images::{is_marker, marker};
use controller_core::deletion::{Stage, Teardown, deletes};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;

pub(crate) fn teardown(machine: &Machine, observed: &Observed, now: Now) -> Teardown<Action> {
    Teardown {
        status: machine.status.clone(),
        stage: stage(machine, observed, now),
    }
}

fn stage(machine: &Machine, observed: &Observed, now: Now) -> Stage<Action> {
    let waits = |message: String, actions| Stage::Waiting {
        message,
        actions,
        requeue_after: Some(ASK_AGAIN),
    };
    let site = match &observed.place {
        // Nothing was ever made.
        Place::Nowhere(_) => return Stage::Release(vec![]),
        Place::Unreachable { host, .. }
            if machine.annotation(names::ANNOTATION_FORCE_DELETE) == Some("true") =>
        {
            return Stage::Release(vec![Action::Bury { host: host.clone() }]);
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
        return Stage::Release(left(machine, site));
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
            Action::SetMark(Box::new(DomainMetadata {
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
    Stage::Release(actions)
}

fn delete(pool: &str, name: &str) -> Action {
    Action::DeleteVolume {
        pool: pool.to_owned(),
        name: name.to_owned(),
    }
}

/// Whether a volume is deleted with its Machine.
pub(super) fn is_to_go(kept: &VolumeRecord) -> bool {
    deletes(Some(kept.reclaim_policy.as_str()))
}

/// What is left of a Machine whose domain is gone or was never made: what its block says is to go with it, its
/// seeds, and markers. Without a block no disk goes.
fn left(machine: &Machine, site: &Site) -> Vec<Action> {
    let doomed = machine
        .desired()
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
