//! What a warning says of a change: when a running guest has it, on this backend and with this KubeVirt.

use std::fmt::Display;

use crate::api::choice::Backend;
use crate::api::normalized::Normalized;
use crate::catalog::{
    DECLARATIVE_HOTPLUG, EXPAND_DISKS, KubevirtRow, LIVE_UPDATE_NETWORK, Lacking,
};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Item, Named};
use crate::rules::growth::{self, Obstacle};
use crate::rules::rule::Update;
use crate::violation::Findings;

use super::effects::{Effect, Field};
use super::running::running;

/// Adds the warnings of [`Code::RestartRequired`].
pub(super) struct Warnings<'f> {
    backend: Backend,
    kubevirt: Option<&'f KubevirtRow>,
    /// Whether the machine is off: its next start brings whatever a restart would.
    is_off: bool,
    /// The stored block with what the guest runs with.
    pub(super) runs: Normalized,
    /// When the running guest has what KubeVirt applies by a live migration.
    migration: When,
    /// Whether it has more vCPUs or memory that it can take at once.
    grows_at_once: bool,
    findings: &'f mut Findings,
}

/// When a running guest has a change that it can take.
#[derive(Clone, Debug)]
enum When {
    AtOnce,
    /// That is not known, or depends on the guest.
    IfBackendCan,
    /// Why not at once, and what brings it into effect.
    Later(String),
}

/// Whether a running guest takes a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Never,
    Always,
    /// It takes a port of its own, of which only the guest shows whether one is free.
    IfPortIsFree,
}

impl Fit {
    /// `fits`: whether it is of a kind that the guest can be given; `needs_port`: whether it takes a port of its own.
    pub(super) fn new(fits: bool, needs_port: bool) -> Self {
        match (fits, needs_port) {
            (false, _) => Self::Never,
            (true, true) => Self::IfPortIsFree,
            (true, false) => Self::Always,
        }
    }
}

/// The time that only a restart brings.
const AT_RESTART: &str = "at the next restart";

/// Why KubeVirt gives a card of a running guest no other network; `None`: it does, or that is not known.
fn network_obstacle(kubevirt: Option<&KubevirtRow>) -> Option<String> {
    Some(match kubevirt?.lacks(&LIVE_UPDATE_NETWORK)? {
        Lacking::Release(since) => {
            format!("{AT_RESTART}, because KubeVirt can change it live since {since} only")
        }
        Lacking::Gate(gate) => {
            format!("{AT_RESTART}, because the feature gate {gate} of KubeVirt is not enabled")
        }
    })
}

impl<'f> Warnings<'f> {
    /// Warnings of an update to the block `new`.
    pub(super) fn of(update: &Update<'f>, new: &Normalized, findings: &'f mut Findings) -> Self {
        let obstacle = Obstacle::of(update);
        Self {
            backend: update.backend,
            kubevirt: update.kubevirt,
            is_off: !update.runs,
            runs: running(update.old, update.guest),
            grows_at_once: obstacle.is_none() && growth::is_certain(update, new),
            migration: obstacle.map_or(When::IfBackendCan, |it| When::Later(it.when())),
            findings,
        }
    }

    /// Whether the installed KubeVirt applies a change of a field to a running guest that can take it. `None`: that is
    /// not known, or depends on the guest.
    pub(super) fn offers(&self, field: Field) -> Option<bool> {
        match field {
            Field::Disk | Field::CdromImage | Field::CdromSize | Field::CdromStorageClass => {
                self.kubevirt?.offers(&DECLARATIVE_HOTPLUG)
            }
            Field::DiskSize => self.kubevirt?.offers(&EXPAND_DISKS),
            _ => None,
        }
    }

    /// When the backend applies a change of a field to a running guest that can take it.
    fn when(&self, field: Field) -> When {
        let by_migration = field.effect(self.backend) == Effect::LiveMigrationOrRestart;
        match (self.backend, field) {
            (Backend::Libvirt, _) => When::AtOnce,
            (_, Field::Sockets | Field::MemorySize) if self.grows_at_once => When::AtOnce,
            (_, Field::NicNetwork) => {
                network_obstacle(self.kubevirt).map_or_else(|| self.migration.clone(), When::Later)
            }
            _ if by_migration => self.migration.clone(),
            _ => match self.offers(field) {
                Some(true) => When::AtOnce,
                Some(false) => When::Later(AT_RESTART.to_owned()),
                None => When::IfBackendCan,
            },
        }
    }

    /// Warns of a change, unless it takes effect at once or never by the table. `fits`: whether
    /// the running guest can take it.
    pub(super) fn add(&mut self, field: Field, path: FieldPath, fits: bool, what: &str) {
        let effect = field.effect(self.backend);
        let while_it_runs = matches!(
            effect,
            Effect::HotPlugOrRestart | Effect::LiveMigrationOrRestart
        );
        if effect == Effect::NextMove {
            let text = format!(
                "{path}: {what}, which takes effect when the Machine is moved to another host"
            );
            return self.findings.note(&text);
        }
        if self.is_off {
            return;
        }
        let when = match (effect, self.when(field)) {
            (_, When::AtOnce) if while_it_runs && fits => return,
            (Effect::Grow, When::Later(_)) if fits => {
                "now, and in the guest at the next restart".to_owned()
            }
            (Effect::Grow, When::Later(_)) => {
                "now, but in the guest only at a restart with KubeVirt's feature gate ExpandDisks, which is not enabled on this cluster".to_owned()
            }
            // Most of it takes a live migration, which the cluster may not allow.
            (_, When::IfBackendCan) if while_it_runs && fits => {
                "at once if the backend can, else at the next restart".to_owned()
            }
            (_, When::Later(when)) if while_it_runs && fits => when,
            (Effect::NextMigrationOrRestart, _) => {
                "at the next live migration or restart".to_owned()
            }
            (Effect::Restart, _) => AT_RESTART.to_owned(),
            _ if while_it_runs => AT_RESTART.to_owned(),
            (Effect::Nothing, _) => {
                self.note(&format!("{path}: {what}, which has no effect"));
                return;
            }
            _ => return,
        };
        let segment = path.in_template();
        let segment = segment.map_or_else(String::new, |segment| format!("{segment} "));
        let text = format!("{path}: {segment}{what} {when}");
        self.findings.warn(Code::RestartRequired, &text);
    }

    /// Adds a note beside the warnings about a running machine.
    pub(super) fn note(&mut self, text: &str) {
        if !self.is_off {
            self.findings.note(text);
        }
    }

    pub(super) fn field<T: PartialEq + Display>(
        &mut self,
        field: Field,
        path: FieldPath,
        (from, to): (T, T),
        fits: bool,
    ) {
        if from != to {
            let what = format!("changes from {from} to {to}");
            self.add(field, path, fits, &what);
        }
    }

    /// Items of a list that are added or removed, each with whether the running guest can take it. An item that needs a port
    /// gets a note in place of a warning: the guest usually has a free one, and the webhook does not see it.
    pub(super) fn items<T: Named>(
        &mut self,
        field: Field,
        list: &'static str,
        merged: &[Item<'_, T>],
        old: &[(&str, Fit)],
        new: &[(&str, Fit)],
    ) {
        let has = |items: &[(&str, Fit)], name: &str| items.iter().any(|(it, _)| *it == name);
        for (name, fit) in new.iter().filter(|(name, _)| !has(old, name)) {
            let item = merged.iter().find(|item| item.name().value == Some(name));
            let path = item.map_or(FieldPath::field(list), |item| item.name().path);
            if *fit == Fit::IfPortIsFree {
                self.note(&format!(
                    "{path}: '{name}' is attached at once if the guest has a free PCI port, else {AT_RESTART}"
                ));
            } else {
                let what = format!("'{name}' is attached");
                self.add(field, path, *fit == Fit::Always, &what);
            }
        }
        for (name, fit) in old.iter().filter(|(name, _)| !has(new, name)) {
            let path = FieldPath::field(list);
            self.add(
                field,
                path,
                *fit != Fit::Never,
                &format!("'{name}' is detached"),
            );
        }
    }
}
