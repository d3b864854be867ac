//! What has to be true right before an action takes effect: one table for both backends.
//!
//! A plan is made from caches and from the last answer of a host. Before its actions take effect a user may restore
//! a backup or start a guest, or another replica may acquire the Lease. So the code that performs an effect checks these preconditions
//! itself, as late as it can. That shortens the window of the race but does not close it. An action that comes too
//! late is harmless because it names the uid, the resourceVersion, the domain metadata or a volume name that is never
//! used twice.

/// An effect that destroys, overwrites or starts something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// A volume with data of a guest is deleted.
    DeleteVolume,
    /// A volume is filled, by an upload or as a copy.
    FillVolume,
    /// A volume of a Machine is made larger. The QEMU that runs the guest has to do it: another program would write the header
    /// of the image at the same time.
    Grow,
    /// A fetched image, or the remains of a failed fetch or import, is removed.
    RemoveImage,
    /// A complete image that nothing has used for a while is removed.
    RemoveUnusedImage,
    /// A VirtualMachine or domain is created or changed.
    Define,
    /// The controller records in a domain what it is about to do, or what it has found out. The guest stays as it is.
    Record,
    /// A guest is switched on.
    Start,
    /// A guest is shut down or powered off.
    Stop,
    /// An instance that waits for a node is deleted, so that another one takes its place.
    Replace,
    /// A VirtualMachine or the definition of a domain is removed.
    Undefine,
    /// A running guest is moved to another node.
    Migrate,
    /// The hardware of a running guest is reset: what is in its memory is lost.
    Reset,
}

/// A fact that must hold right before an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precondition {
    /// This replica holds the Lease.
    LeaseHeld,
    /// The object was created for this Machine, by its uid annotation or the domain metadata.
    Owned,
    /// The object is still the one that was observed: same uid and resourceVersion, or same name and key.
    Unchanged,
    /// The reclaim policy of the volume is `Delete`.
    Deletable,
    /// No VirtualMachine, VirtualMachineInstance, Pod or domain uses the volume, whether or not this controller created
    /// them. A guest that cannot run before an import is complete does not use its claim yet.
    Unused,
    /// No guest has run in the instance.
    NeverRan,
    /// No volume of any pool has the volume as its backing file. A pool that cannot be read counts as having one.
    NotABackingFile,
    /// The volume has no completion marker: no guest has ever used it.
    Incomplete,
    /// The Machine is not bound to another host.
    NotBoundElsewhere,
    /// No other host has a definition of the domain, the host in the Machine's status is known, and no other client has
    /// migrated the guest away: it cannot run a second time, on the same disks.
    OnlyDefinition,
    /// No other guest, and no pod, uses an existing claim or volume that the guest would get, unless they share it. On
    /// KubeVirt this includes a claim that was kept of a former Machine and adopted.
    ExistingDisksFree,
    /// No other guest has the hardware of a host that the guest would have for itself.
    HardwareFree,
    /// EFI variables and the content of the TPM, if they are to be kept, are not removed by the effect.
    StateKept,
    /// The guest that the migration was requested for runs, and nothing is known to prevent its move.
    Movable,
}

impl Effect {
    /// Every effect.
    pub const ALL: [Self; 13] = [
        Self::DeleteVolume,
        Self::FillVolume,
        Self::Grow,
        Self::RemoveImage,
        Self::RemoveUnusedImage,
        Self::Define,
        Self::Record,
        Self::Start,
        Self::Stop,
        Self::Replace,
        Self::Undefine,
        Self::Migrate,
        Self::Reset,
    ];

    /// The facts that must hold right before the effect.
    pub const fn preconditions(self) -> &'static [Precondition] {
        use Precondition::{
            Deletable, ExistingDisksFree, HardwareFree, Incomplete, LeaseHeld, Movable, NeverRan,
            NotABackingFile, NotBoundElsewhere, OnlyDefinition, Owned, StateKept, Unchanged,
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
                // Last, because reading every pool for the one before may take minutes.
                OnlyDefinition,
            ],
            Self::FillVolume => &[LeaseHeld, Incomplete, Unused],
            Self::Grow => &[LeaseHeld, Owned, NotBoundElsewhere, OnlyDefinition],
            Self::RemoveImage => &[LeaseHeld, Incomplete, Unused, NotABackingFile],
            Self::RemoveUnusedImage => &[LeaseHeld, Unchanged, Unused, NotABackingFile],
            Self::Replace => &[LeaseHeld, Owned, NeverRan],
            Self::Define | Self::Start => &[
                LeaseHeld,
                Owned,
                NotBoundElsewhere,
                OnlyDefinition,
                ExistingDisksFree,
                HardwareFree,
            ],
            Self::Stop | Self::Reset | Self::Record => &[LeaseHeld, Owned, NotBoundElsewhere],
            Self::Undefine => &[LeaseHeld, Owned, NotBoundElsewhere, StateKept],
            Self::Migrate => &[LeaseHeld, Owned, OnlyDefinition, Movable],
        }
    }

    /// Calls `holds` for each precondition in order; returns the first error.
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
    fn a_guest_gets_an_existing_disk_or_a_device_only_if_no_other_guest_has_it() {
        for effect in [Effect::Define, Effect::Start] {
            let needed = effect.preconditions();
            assert!(needed.contains(&Precondition::HardwareFree), "{effect:?}");
            assert!(
                needed.contains(&Precondition::ExistingDisksFree),
                "{effect:?}"
            );
        }
    }

    #[test]
    fn nothing_is_defined_started_moved_grown_or_deleted_while_another_host_has_a_definition() {
        for effect in Effect::ALL {
            let needs = effect
                .preconditions()
                .contains(&Precondition::OnlyDefinition);
            let expected = matches!(
                effect,
                Effect::Define
                    | Effect::Start
                    | Effect::Migrate
                    | Effect::Grow
                    | Effect::DeleteVolume
            );
            assert_eq!(needs, expected, "{effect:?}");
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
