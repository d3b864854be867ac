//! The list of changes that a running guest does not have yet.

use std::fmt::Display;

use common::api::choice::{Backend, Choice as _};
use common::api::status::PendingChange;
use common::rules::update::pending_action;

/// Changes, as they are found.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) list: Vec<PendingChange>,
}

impl Changes {
    /// Adds a field that a restart brings into effect, if it differs.
    pub(super) fn field(&mut self, field: &str, current: impl Display, desired: impl Display) {
        let (current, desired) = (current.to_string(), desired.to_string());
        if current != desired {
            let action = pending_action(Backend::Kubevirt, field, false);
            self.list.push(PendingChange {
                field: field.to_owned(),
                current,
                desired,
                action: action.as_str().to_owned(),
            });
        }
    }

    /// Compares lists of named items: added, removed and changed ones.
    pub(super) fn items<T>(
        &mut self,
        list: &str,
        (runs, desired): (&[T], &[T]),
        name: impl Fn(&T) -> &str,
        compare: impl Fn(&mut Self, &str, &T, &T),
    ) {
        for item in runs {
            if !desired.iter().any(|wanted| name(wanted) == name(item)) {
                self.field(&format!("{list}[{}]", name(item)), "present", "absent");
            }
        }
        for item in desired {
            let path = format!("{list}[{}]", name(item));
            match runs.iter().find(|running| name(running) == name(item)) {
                Some(running) => compare(self, &path, running, item),
                None => self.field(&path, "absent", "present"),
            }
        }
    }
}
