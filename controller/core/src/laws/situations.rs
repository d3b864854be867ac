//! The situations of a Machine in which its next plan is examined.

use common::api::choice::PowerState;
use common::names;
use common::quantity::Bytes;

use super::{Environment, edit, quota_used_up, run, settle};
use crate::fixtures::annotate;

/// Passes between a user's change and the last of its effects: a restart is recorded before it is carried out.
const PASSES_AFTER_CHANGE: usize = 2;

/// What a user may have changed right before a pass.
#[derive(Clone, Copy, Debug)]
enum Change {
    None,
    Deletion,
    Restart,
    Migration,
    Reset,
    /// The disks grow.
    Growth,
    /// The Machine grows, which a quota forbids, and is switched off.
    HeldGrowthAndStop,
}

impl Change {
    const ALL: [Self; 7] = [
        Self::None,
        Self::Deletion,
        Self::Restart,
        Self::Migration,
        Self::Reset,
        Self::Growth,
        Self::HeldGrowthAndStop,
    ];

    fn apply<E: Environment>(self, environment: &mut E) {
        match self {
            Self::None => {}
            Self::Deletion => environment.delete_machine(),
            Self::Restart => {
                let key = names::ANNOTATION_RESTART_REQUESTED;
                annotate(environment.machine_mut(), key, "now");
            }
            Self::Migration => {
                let key = names::ANNOTATION_MIGRATE_REQUESTED;
                annotate(environment.machine_mut(), key, "now");
            }
            Self::Reset => {
                let key = names::ANNOTATION_RESET_REQUESTED;
                annotate(environment.machine_mut(), key, "now");
            }
            Self::Growth => edit(environment, |block| {
                for disk in &mut block.disks {
                    disk.size = Bytes::new(disk.size.get() + Bytes::mib(1024).get());
                }
            }),
            Self::HeldGrowthAndStop => {
                environment.set_hold(Some(quota_used_up()));
                edit(environment, |block| {
                    block.cpu.cores += 2;
                    block.power_state = PowerState::Stopped;
                });
            }
        }
    }
}

/// Every environment after each number of passes, after each change of its user, and after each pass that follows it.
pub(super) fn situations<'a, E: Environment>(
    all: &'a [&'a dyn Fn() -> E],
) -> impl Iterator<Item = impl Fn() -> E + 'a> {
    all.iter().flat_map(|new| {
        let last = settle(&mut new());
        (0..=last).flat_map(move |passes| {
            Change::ALL.into_iter().flat_map(move |change| {
                (0..=PASSES_AFTER_CHANGE).map(move |passes_after| {
                    move || {
                        let mut environment = new();
                        run(&mut environment, passes);
                        change.apply(&mut environment);
                        run(&mut environment, passes_after);
                        environment.advance();
                        environment
                    }
                })
            })
        })
    })
}
