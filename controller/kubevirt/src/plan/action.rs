//! The actions of a plan. Each names by uid what it changes, so that it never changes another object.

use std::collections::BTreeMap;
use std::fmt;

use common::api::choice::ReclaimPolicy;
use common::names;
use common::render::kubevirt::{HALTED, types};
use controller_core::backend::Act;
use controller_core::deletion::deletes;
use controller_core::machine::Machine;
use controller_core::objects::Meta;
use controller_core::plan::Subject;
use controller_core::preconditions::Effect;

use super::state::KeptState;
use crate::objects::{Claim, DataVolume};

/// What to do about a Machine that is not under deletion.
pub(crate) type Draft = controller_core::backend::Draft<Action>;

/// The draft as the core carries it out.
#[cfg(test)]
pub(crate) type Plan = controller_core::plan::Plan<Action>;

/// One change of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    CreateAttachment(types::NetworkAttachmentDefinition),
    UpdateAttachment(types::NetworkAttachmentDefinition),
    CreateClaim(types::Claim),
    PatchClaim(ClaimPatch),
    CreateDataVolume(types::DataVolume),
    /// Creates the shared import of a MachineImage, unless there is one.
    CreateImport(types::DataVolume),
    /// Deletes a DataVolume whose import has finished, without its claim.
    ReleaseClaim {
        name: String,
        uid: String,
    },
    /// Deletes a DataVolume together with the claim that it has not finished.
    DeleteDataVolume(UnfinishedImport),
    CreateSecret(types::Secret),
    UpdateSecret(types::Secret),
    CreateVm(Box<types::VirtualMachine>),
    UpdateVm(Box<types::VirtualMachine>),
    /// Changes the power state alone, while the rest of the VirtualMachine cannot be updated.
    SetRunStrategy {
        uid: String,
        strategy: String,
    },
    DeleteVm {
        uid: String,
        /// Whether claims with the state of the guest are kept.
        keeps_state: bool,
    },
    /// Keeps a claim with the state of the guest, which KubeVirt made.
    KeepState(KeptState),
    /// Removes the annotation that confirmed that state is discarded: it must not act on a later change.
    RemoveDiscardConfirmation,
    /// Deletes the running instance; KubeVirt creates another one.
    DeleteInstance {
        uid: String,
        /// Whether it is deleted only if it still waits for a node.
        waits: bool,
    },
    /// Resets the hardware of the running guest.
    ResetGuest {
        /// Uid of its instance.
        uid: String,
    },
    /// Moves the running guest to another node.
    CreateMigration {
        /// Uid of its instance.
        instance: String,
        desired: Box<types::Migration>,
    },
    /// Ends the plan unless a live read shows that the Machine's VirtualMachine and instance are gone. The
    /// caches may be behind.
    ConfirmGuestGone,
    DeleteClaim(DeletableClaim),
    /// Removes the annotation that had lost disks recreated: it must not act on a later loss.
    RemoveRecreateRequest,
    /// Sets or removes the label with which an object cannot be deleted.
    SetProtection(Protection),
}

/// The label of an object of the Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    pub(crate) kind: ProtectedKind,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Whether the object has the label afterwards.
    pub(crate) is_protected: bool,
}

/// The kinds of objects that are protected with their Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtectedKind {
    VirtualMachine,
    Claim,
    DataVolume,
    Secret,
}

impl fmt::Display for ProtectedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::VirtualMachine => "VirtualMachine",
            Self::Claim => "PersistentVolumeClaim",
            Self::DataVolume => "DataVolume",
            Self::Secret => "Secret",
        })
    }
}

/// One object in the version that was observed. Deleting it fails if it has changed since or was recreated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exact {
    name: String,
    uid: String,
    version: String,
}

impl Exact {
    /// `None` if the object has no uid or version: it has not come from an API server.
    pub(super) fn of(object: &impl Meta) -> Option<Self> {
        Some(Self {
            name: object.name().to_owned(),
            uid: object.meta().uid.clone()?,
            version: object.meta().resource_version.clone()?,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn uid(&self) -> &str {
        &self.uid
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

/// A claim that may be deleted: it was made for this Machine, its policy was `Delete` in the observed version, no disk on
/// an existing claim uses it, and its disk is still in the spec with policy Delete. The spec counts only if the block
/// matches it, and not for the claim of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeletableClaim(Exact);

impl DeletableClaim {
    pub(crate) fn of(machine: &Machine, claim: &Claim) -> Option<Self> {
        let is_ours = claim.belongs_to(machine.name(), machine.uid());
        let policy = claim.annotation(names::ANNOTATION_RECLAIM_POLICY);
        let exact = Exact::of(claim)?;
        let deletable = is_ours
            && deletes(policy)
            && !is_of_kept_disk(machine, claim)
            && !is_existing_disk(machine, claim);
        deletable.then_some(Self(exact))
    }

    pub(crate) fn exact(&self) -> &Exact {
        &self.0
    }
}

/// Whether a disk of the Machine is on the claim as it is.
fn is_existing_disk(machine: &Machine, claim: &Claim) -> bool {
    let disks = machine.desired().into_iter();
    let mut disks = disks.flat_map(|block| &block.existing_disks);
    disks.any(|disk| disk.source() == claim.name())
}

/// Whether a claim is that of a disk which has left the spec or has the policy Retain there: the pass that would have
/// written it to the claim may not have run. Without a block that matches the spec the claim decides. The claim of a
/// medium is no disk: its name has a digest, and it can be imported again.
fn is_of_kept_disk(machine: &Machine, claim: &Claim) -> bool {
    let Some((block, disk)) = machine.desired().zip(claim.label(names::LABEL_DISK)) else {
        return false;
    };
    let is_disk = claim.name() == names::claim(machine.name(), disk);
    let disk = block.disks.iter().find(|known| known.name == disk);
    is_disk && disk.is_none_or(|disk| disk.reclaim_policy == ReclaimPolicy::Retain)
}

/// A DataVolume whose image was not in its claim in the version that the deletion names. If the import ends before
/// the deletion, the version is another one and the claim stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnfinishedImport(Exact);

impl UnfinishedImport {
    pub(crate) fn of(import: &DataVolume) -> Option<Self> {
        let exact = Exact::of(import)?;
        (!import.is_finished()).then_some(Self(exact))
    }

    pub(crate) fn exact(&self) -> &Exact {
        &self.0
    }
}

/// Changes of a claim. Its spec is immutable apart from the size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimPatch {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Annotations to set; `None` removes one.
    pub(crate) annotations: BTreeMap<&'static str, Option<String>>,
    /// New size, larger than the present one, as a Kubernetes quantity.
    pub(crate) storage: Option<String>,
}

impl ClaimPatch {
    /// Whether the claim belongs to the Machine only with this patch.
    pub(crate) fn adopts(&self) -> bool {
        let uid = self.annotations.get(names::ANNOTATION_MACHINE_UID);
        uid.is_some_and(Option::is_some)
    }
}

impl Act for Action {
    fn effect(&self) -> Option<Effect> {
        match self {
            Self::DeleteClaim { .. } => Some(Effect::DeleteVolume),
            Self::DeleteDataVolume { .. } => Some(Effect::RemoveImage),
            Self::CreateVm(_) | Self::UpdateVm(_) => Some(Effect::Define),
            Self::SetRunStrategy { .. } => Some(Effect::Start),
            Self::DeleteInstance { waits: true, .. } => Some(Effect::Replace),
            Self::DeleteInstance { waits: false, .. } => Some(Effect::Stop),
            Self::DeleteVm { .. } => Some(Effect::Undefine),
            Self::CreateMigration { .. } => Some(Effect::Migrate),
            Self::ResetGuest { .. } => Some(Effect::Reset),
            Self::CreateAttachment(_)
            | Self::UpdateAttachment(_)
            | Self::CreateClaim(_)
            | Self::PatchClaim(_)
            | Self::CreateDataVolume(_)
            | Self::CreateImport(_)
            | Self::ReleaseClaim { .. }
            | Self::CreateSecret(_)
            | Self::UpdateSecret(_)
            | Self::SetProtection(_)
            | Self::RemoveRecreateRequest
            | Self::KeepState(_)
            | Self::RemoveDiscardConfirmation
            | Self::ConfirmGuestGone => None,
        }
    }

    fn stops_or_resets(&self) -> bool {
        match self {
            Self::SetRunStrategy { strategy, .. } => strategy == HALTED,
            action => matches!(action, Self::ResetGuest { .. }),
        }
    }

    /// A VirtualMachine whose change is refused is complete as it is: its guest is started again where a node was drained.
    fn goes_on_after(&self, refused: Subject) -> bool {
        let starts = matches!(self, Self::SetRunStrategy { .. });
        self.stops_or_resets() || (starts && refused == Subject::Guest)
    }

    fn subject(&self) -> Subject {
        match self {
            Self::CreateAttachment(_) | Self::UpdateAttachment(_) => Subject::Network,
            Self::CreateClaim(_)
            | Self::PatchClaim(_)
            | Self::DeleteClaim { .. }
            | Self::CreateDataVolume(_)
            | Self::CreateImport(_)
            | Self::ReleaseClaim { .. }
            | Self::RemoveRecreateRequest
            | Self::KeepState(_)
            | Self::RemoveDiscardConfirmation
            | Self::DeleteDataVolume { .. } => Subject::Storage,
            Self::CreateSecret(_)
            | Self::UpdateSecret(_)
            | Self::CreateVm(_)
            | Self::UpdateVm(_)
            | Self::SetRunStrategy { .. }
            | Self::DeleteVm { .. }
            | Self::DeleteInstance { .. }
            | Self::ConfirmGuestGone => Subject::Guest,
            Self::CreateMigration { .. } => Subject::Migration,
            Self::ResetGuest { .. } => Subject::Reset,
            Self::SetProtection(protection) => match protection.kind {
                ProtectedKind::Claim | ProtectedKind::DataVolume => Subject::Storage,
                ProtectedKind::VirtualMachine | ProtectedKind::Secret => Subject::Guest,
            },
        }
    }
}

/// The log line that is written once the action was carried out.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateAttachment(desired) => {
                write!(
                    f,
                    "created NetworkAttachmentDefinition {}",
                    desired.metadata.name
                )
            }
            Self::UpdateAttachment(desired) => {
                write!(
                    f,
                    "updated NetworkAttachmentDefinition {}",
                    desired.metadata.name
                )
            }
            Self::CreateClaim(desired) => {
                write!(f, "created PersistentVolumeClaim {}", desired.metadata.name)
            }
            Self::PatchClaim(patch) => write!(f, "updated PersistentVolumeClaim {}", patch.name),
            Self::CreateDataVolume(desired) => {
                write!(f, "created DataVolume {}", desired.metadata.name)
            }
            Self::CreateImport(desired) => {
                let (namespace, name) = (&desired.metadata.namespace, &desired.metadata.name);
                write!(f, "DataVolume {namespace}/{name} imports the image")
            }
            Self::ReleaseClaim { name, .. } => {
                write!(
                    f,
                    "released PersistentVolumeClaim {name} from its DataVolume"
                )
            }
            Self::DeleteDataVolume(import) => {
                write!(f, "deleted DataVolume {}", import.exact().name())
            }
            Self::CreateSecret(desired) => write!(f, "created Secret {}", desired.metadata.name),
            Self::UpdateSecret(desired) => write!(f, "updated Secret {}", desired.metadata.name),
            Self::CreateVm(_) => f.write_str("created the VirtualMachine"),
            Self::UpdateVm(_) => f.write_str("updated the VirtualMachine"),
            Self::SetRunStrategy { strategy, .. } => {
                write!(f, "set the VirtualMachine's runStrategy to {strategy}")
            }
            Self::DeleteVm { .. } => f.write_str("deleted the VirtualMachine"),
            Self::DeleteInstance { .. } => {
                f.write_str("deleted the VirtualMachineInstance; KubeVirt creates another one")
            }
            Self::SetProtection(Protection {
                kind,
                name,
                is_protected,
                ..
            }) => {
                let now = if *is_protected {
                    "cannot be deleted now"
                } else {
                    "can be deleted now"
                };
                write!(f, "{kind} {name} {now}")
            }
            Self::KeepState(claim) => {
                let name = claim.exact().name();
                write!(
                    f,
                    "kept PersistentVolumeClaim {name} with the state of the guest"
                )
            }
            Self::RemoveDiscardConfirmation => {
                write!(
                    f,
                    "removed the annotation {}",
                    names::ANNOTATION_DISCARD_STATE
                )
            }
            Self::RemoveRecreateRequest => {
                write!(
                    f,
                    "removed the annotation {}",
                    names::ANNOTATION_RECREATE_VOLUME
                )
            }
            Self::ResetGuest { .. } => f.write_str("reset the hardware of the guest"),
            Self::CreateMigration { desired, .. } => write!(
                f,
                "created VirtualMachineInstanceMigration {}",
                desired.metadata.name
            ),
            Self::ConfirmGuestGone => f.write_str("confirmed that the guest is gone"),
            Self::DeleteClaim(claim) => {
                write!(f, "deleted PersistentVolumeClaim {}", claim.exact().name())
            }
        }
    }
}
