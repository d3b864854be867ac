//! What the simulator is to play, for all machines or for one.

use std::{
    collections::BTreeMap,
    str::FromStr,
    sync::{Mutex, PoisonError},
};

use common::render::kubevirt::PRINTABLE_STATUSES;

/// A VirtualMachine with this annotation plays the script it names, whatever
/// else is set: `kubectl annotate vm web simulator/script=crash`.
pub const ANNOTATION: &str = "simulator/script";

/// A part that KubeVirt and the storage play.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Script {
    /// Claims are bound, the guest runs and shuts down when asked, all at once.
    #[default]
    Happy,
    /// No node has room: the instance stays in `Scheduling`.
    Unschedulable,
    /// No claim is ever bound.
    PvcPending,
    /// The guest ends as soon as it has started.
    Crash,
    /// As happy, with seconds between the steps.
    Slow,
    /// As happy, but the guest ignores its shutdown.
    Stuck,
    /// As happy, but no volume comes to the end of its growth.
    Resizing,
    /// As happy, but a volume that grew waits for its file system.
    ResizePending,
    /// As happy, but no image comes to its end.
    ImportHangs,
    /// As happy, but no image can be had.
    ImportFails,
    /// As happy, but claims are bound only when a machine that has them is started.
    FirstConsumer,
    /// The guest stays as it is, and KubeVirt shows this word for it.
    Shows(&'static str),
}

impl Script {
    /// Every script that has a name of its own. Each of [`PRINTABLE_STATUSES`] is the
    /// name of one that shows it.
    pub const ALL: [(&'static str, Self); 11] = [
        ("happy", Self::Happy),
        ("unschedulable", Self::Unschedulable),
        ("pvc-pending", Self::PvcPending),
        ("crash", Self::Crash),
        ("slow", Self::Slow),
        ("stuck", Self::Stuck),
        ("resizing", Self::Resizing),
        ("resize-pending", Self::ResizePending),
        ("import-hangs", Self::ImportHangs),
        ("import-fails", Self::ImportFails),
        ("first-consumer", Self::FirstConsumer),
    ];
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, script)| *script)
            .or_else(|| {
                PRINTABLE_STATUSES
                    .into_iter()
                    .find(|word| *word == text)
                    .map(Self::Shows)
            })
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
                format!("no script {text:?}; there are {}", names.join(", "))
            })
    }
}

/// Which machine plays what.
#[derive(Debug, Default)]
pub(super) struct Scripts(Mutex<Cast>);

#[derive(Debug, Default)]
struct Cast {
    everyone: Script,
    named: BTreeMap<(String, String), Script>,
}

impl Scripts {
    pub(super) fn new(everyone: Script) -> Self {
        Self(Mutex::new(Cast {
            everyone,
            ..Cast::default()
        }))
    }

    pub(super) fn set_everyone(&self, script: Script) {
        let mut cast = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cast.everyone = script;
        cast.named.clear();
    }

    pub(super) fn set(&self, namespace: &str, name: &str, script: Script) {
        let mut cast = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cast.named
            .insert((namespace.to_owned(), name.to_owned()), script);
    }

    pub(super) fn of(&self, namespace: &str, name: &str) -> Script {
        let cast = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cast.named
            .get(&(namespace.to_owned(), name.to_owned()))
            .copied()
            .unwrap_or(cast.everyone)
    }
}
