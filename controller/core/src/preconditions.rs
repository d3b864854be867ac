//! What has to be true right before an action takes effect: one table for both backends.
//!
//! A plan is made from caches and from what a host answered a moment ago. Between that and the effect somebody may
//! restore a backup, start a guest or take over the Lease. So the code that performs an effect checks the
//! preconditions of the table itself, as late as it can. That narrows the window; what makes a late action harmless
//! are the uid, the version, the mark and the names that are never used twice.

/// An effect that destroys, overwrites or starts something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// A volume with data of a guest is deleted.
    DeleteVolume,
    /// A volume is filled, by an upload or as a copy.
    FillVolume,
    /// A fetched image, or what is left of a fetch or an import, is removed.
    RemoveImage,
    /// A VirtualMachine or domain is made or changed.
    Define,
    /// A guest is switched on.
    Start,
    /// A guest is switched off, asked or not.
    Stop,
    /// A VirtualMachine or the definition of a domain is removed.
    Undefine,
}

/// Something that has to be true right before an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precondition {
    /// This replica holds the Lease.
    LeaseHeld,
    /// The object was made for this Machine: by uid on it, or by the mark of a domain.
    Owned,
    /// It is the object that was observed: uid and resourceVersion, or name and key.
    Unchanged,
    /// Its reclaim policy says that it is deleted with its Machine.
    Deletable,
    /// No VirtualMachine, instance, pod or domain names it, whosever they are.
    Unused,
    /// No volume of any pool has it as its backing file; a pool that cannot be read may have one.
    NotABackingFile,
    /// It has no completion marker: no guest has ever been given it.
    Incomplete,
    /// The Machine is not bound to another host.
    NotBoundElsewhere,
}

impl Effect {
    /// Every effect.
    pub const ALL: [Self; 7] = [
        Self::DeleteVolume,
        Self::FillVolume,
        Self::RemoveImage,
        Self::Define,
        Self::Start,
        Self::Stop,
        Self::Undefine,
    ];

    /// What has to be true right before it.
    pub const fn preconditions(self) -> &'static [Precondition] {
        use Precondition::{
            Deletable, Incomplete, LeaseHeld, NotABackingFile, NotBoundElsewhere, Owned, Unchanged,
            Unused,
        };
        match self {
            Self::DeleteVolume => &[
                LeaseHeld,
                Owned,
                Unchanged,
                Deletable,
                Unused,
                NotABackingFile,
            ],
            Self::FillVolume => &[LeaseHeld, Incomplete, Unused],
            Self::RemoveImage => &[LeaseHeld, Incomplete, Unused, NotABackingFile],
            Self::Define | Self::Start | Self::Stop | Self::Undefine => {
                &[LeaseHeld, Owned, NotBoundElsewhere]
            }
        }
    }

    /// Checks the preconditions in order; the first that does not hold is the error.
    pub fn check<E>(self, mut holds: impl FnMut(Precondition) -> Result<(), E>) -> Result<(), E> {
        self.preconditions().iter().try_for_each(|it| holds(*it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_effect_needs_the_lease_and_checks_it_first() {
        for effect in Effect::ALL {
            assert_eq!(
                effect.preconditions()[0],
                Precondition::LeaseHeld,
                "{effect:?}"
            );
        }
    }

    #[test]
    fn a_volume_is_deleted_only_if_nothing_can_use_it() {
        let needed = Effect::DeleteVolume.preconditions();
        for precondition in [
            Precondition::Owned,
            Precondition::Deletable,
            Precondition::Unused,
            Precondition::NotABackingFile,
        ] {
            assert!(needed.contains(&precondition), "{precondition:?}");
        }
    }

    #[test]
    fn the_first_precondition_that_does_not_hold_ends_the_check() {
        let mut checked = vec![];
        let outcome = Effect::FillVolume.check(|precondition| {
            checked.push(precondition);
            if precondition == Precondition::Incomplete {
                return Err("complete");
            }
            Ok(())
        });
        assert_eq!(outcome, Err("complete"));
        assert_eq!(checked, [Precondition::LeaseHeld, Precondition::Incomplete]);
    }
}
