//! The plan of a Machine whose growth is held.

use std::time::Duration;

use common::names;
use controller_core::backend::Act as _;

use super::action::{Action, Draft};

/// Shortest time until the next pass. A plan with further actions asks for one at once, and without them that would be the
/// same plan again: as long as between two steps of power, which are carried out.
const RECHECK_PAUSE: Duration = Duration::from_secs(5);

/// The actions that need no more vCPUs, memory or storage: those that start, stop or reset the guest as it is defined, set
/// the password of its screen, fetch an image, or delete a kept disk.
pub(crate) fn without_growth(draft: Draft) -> Draft {
    let mut actions = draft.actions;
    let planned = actions.len();
    actions.retain(is_free);
    // The next look that was planned after actions which are not carried out would find nothing new. Whatever makes room
    // triggers a pass.
    let is_whole = actions.len() == planned;
    let requeue_after = draft
        .requeue_after
        .filter(|_| is_whole || !actions.is_empty())
        .map(|pause| pause.max(RECHECK_PAUSE));
    Draft {
        actions,
        requeue_after,
        ..draft
    }
}

fn is_free(action: &Action) -> bool {
    // The guest starts as it is defined.
    let is_start = matches!(action, Action::Start { .. });
    let makes_room = matches!(action, Action::DeleteVolume(_) | Action::ReleaseKept(_));
    // An image counts in no quota, and the guest is not started before the medium of a drive is there.
    let is_fetch = matches!(action, Action::FetchImage { .. });
    // State is discarded by a definition, which is not written.
    let is_answer = matches!(action, Action::RemoveAnnotation(name)
        if *name != names::ANNOTATION_DISCARD_STATE);
    // A password that was taken back is to be out of effect at once.
    let is_password = matches!(action, Action::SetDisplayPassword { .. });
    action.stops_or_resets() || is_start || is_password || makes_room || is_fetch || is_answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::action::GrownVolume;

    #[test]
    fn a_machine_whose_growth_is_held_can_be_started_and_stopped_and_releases_volumes() {
        let start = Action::Start { reset_nvram: false };
        let (stop, reset) = (Action::Destroy, Action::Reset);
        let grow = Action::GrowDisk {
            target: "vda".into(),
            volume: GrownVolume {
                pool: "default".into(),
                name: "web".into(),
                bytes: 1,
                is_overlay: false,
            },
        };
        let release = Action::RemoveAnnotation(names::ANNOTATION_RELEASE_VOLUME);
        let is_free = [start, stop, reset, release, grow].map(|action| is_free(&action));
        assert_eq!(is_free, [true, true, true, true, false]);
    }
}
