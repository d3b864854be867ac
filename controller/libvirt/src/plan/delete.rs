//! The end of a Machine, in an order that loses no disk: guest off → definition gone → volumes by policy →
//! seed → finalizer.
//!
//! Reads no block where there is a domain: what the Machine has is told by the mark of its domain. A host that
//! cannot be asked is waited for, because a guest that running there has the disks; or the user says that it is
//! gone, and what may be left there is written on the host's tombstones.

use common::names;
use common::render::libvirt::{Intent, IntentKind, Mark, is_seed, is_volume_of};

use super::action::Action;
use super::power::{ASK_AGAIN, ask};
use super::volumes::{disks, is_to_go};
use crate::images::names::{is_marker, marker};
use crate::observed::{Binding, HostView, Observed};
use controller_core::deletion::{Stage, Teardown};
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
        again: Some(ASK_AGAIN),
    };
    let view = match &observed.binding {
        // Nothing was ever made.
        Binding::Unbound(_) => return Stage::Release(vec![]),
        Binding::Unreachable { host, .. }
            if machine.annotation(names::ANNOTATION_FORCE_DELETE) == Some("true") =>
        {
            return Stage::Release(vec![Action::RecordOrphan { host: host.clone() }]);
        }
        Binding::Unreachable { host, why } => {
            let message = format!(
                "deletion waits for LibvirtHost '{host}', which cannot be asked ({why}); if it never comes back, set the annotation {}: \"true\"; what is left there is removed if it does",
                names::ANNOTATION_FORCE_DELETE
            );
            return waits(message, vec![]);
        }
        Binding::Bound(view) => view,
    };
    if view.spec.maintenance == Some(true) {
        let message = format!(
            "deletion waits because LibvirtHost '{}' is in maintenance: set spec.maintenance of the host to false",
            view.host
        );
        return waits(message, vec![]);
    }
    let guest = view
        .guest
        .as_ref()
        .filter(|guest| guest.belongs_to(machine));
    let Some(guest) = guest else {
        return Stage::Release(left(machine, view));
    };
    let mark = guest.metadata.clone().unwrap_or_default();
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
            Action::SetMetadata(Box::new(Mark {
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
        let beside = view
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

/// What is left of a Machine whose domain is gone or was never made: what its block says is to go with it, its
/// seeds, and markers. Without a block no disk goes.
fn left(machine: &Machine, view: &HostView) -> Vec<Action> {
    let doomed = machine
        .desired()
        .into_iter()
        .flat_map(|block| disks(machine, block, &view.spec));
    let doomed: Vec<_> = doomed.filter(is_to_go).map(|kept| kept.volume).collect();
    let ours = view
        .volumes
        .keys()
        .filter(|(_, name)| is_volume_of(name, machine.uid()));
    let goes = |name: &String| doomed.contains(name) || is_seed(name) || is_marker(name);
    ours.filter(|(_, name)| goes(name))
        .map(|(pool, name)| delete(pool, name))
        .collect()
}
