//! What to do about a Machine: a pure function of what is wished and what is there.
//!
//! ```text
//!            ┌─ deleted ──────▶ delete: VM → VM and VMI gone → claims by policy → finalizer
//! Machine ───┼─ not to act on ▶ status alone (no block, paused, another backend)
//!            └─ else ─────────▶ create: finalizer → network → storage → Secret → VM → status
//! ```
//! No clock, no API, no randomness: time is a parameter and everything known is in [`Observed`].
//! A plan is safe to repeat from any point: each action names the object by uid, or makes one that
//! must not exist yet.

pub(crate) mod create;
pub(crate) mod delete;
mod import;
mod network;
mod pending;
mod restart;
mod status;
mod storage;
#[cfg(test)]
mod tests;
mod vm;
#[cfg(test)]
pub(crate) mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use common::render::kubevirt::types;
use common::render::{SecretKey, SecretValue};

use crate::objects::data_volume::DataVolume;
use crate::objects::{Attachment, Claim, Instance, VirtualMachine};
use controller_core::backend::Act;
use controller_core::machine::Machine;
use controller_core::objects::{Network, Secret, Template};
use controller_core::plan::Subject;
use controller_core::preconditions::Effect;

/// What to do about a Machine now.
pub(crate) type Plan = controller_core::plan::Plan<Action>;

/// What is known of the cluster that matters to one Machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Uid of the cluster.
    pub(crate) cluster: Arc<str>,
    /// Whether KubeVirt's kinds are served.
    pub(crate) kubevirt: bool,
    /// Whether Multus' kind is served.
    pub(crate) multus: bool,
    /// Whether CDI's kind is served.
    pub(crate) cdi: bool,
    /// The VirtualMachine of the Machine's name, whoever made it.
    pub(crate) vm: Option<Arc<VirtualMachine>>,
    /// The instance of the Machine's name.
    pub(crate) instance: Option<Arc<Instance>>,
    /// Claims labelled with the Machine, and claims of the names its volumes' claims have; by name.
    pub(crate) claims: BTreeMap<String, Arc<Claim>>,
    /// DataVolumes, as the claims they are to make.
    pub(crate) data_volumes: BTreeMap<String, Arc<DataVolume>>,
    /// Claims that exist, of those the Machine's volumes are clones of.
    pub(crate) sources: BTreeSet<String>,
    /// Uids of living Machines among those that the claims and DataVolumes were made for.
    pub(crate) living: BTreeSet<String>,
    /// The Secret of the name of the Machine's cloud-init Secret.
    pub(crate) secret: Option<Arc<Secret>>,
    /// Contents of the user's Secrets, as far as they had to be read; `None`: not there.
    pub(crate) contents: BTreeMap<SecretKey, Option<SecretValue>>,
    /// Other Machines that have an address of this one on the same network.
    pub(crate) conflicts: Vec<Arc<Machine>>,
    /// NetworkConfigurations the Machine names, by name.
    pub(crate) networks: BTreeMap<String, Arc<Network>>,
    /// Attachments these stand for, by name.
    pub(crate) attachments: BTreeMap<String, Arc<Attachment>>,
    /// StorageClasses the Machine names that exist, and whether their volumes can grow.
    pub(crate) classes: BTreeMap<String, bool>,
    /// The MachineTemplate the block was expanded from, as it is now.
    pub(crate) template: Option<Arc<Template>>,
}

/// One thing to do. Each carries the uid of what it changes, so that it never touches anything else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    CreateAttachment(types::NetworkAttachmentDefinition),
    UpdateAttachment(types::NetworkAttachmentDefinition),
    CreateClaim(types::Claim),
    PatchClaim(ClaimPatch),
    CreateDataVolume(types::DataVolume),
    /// Deletes a DataVolume that has done its work, and leaves its claim.
    ReleaseClaim {
        name: String,
        uid: String,
    },
    /// Deletes a DataVolume and what it has not finished.
    DeleteDataVolume {
        name: String,
        uid: String,
        version: Option<String>,
    },
    CreateSecret(types::Secret),
    UpdateSecret(types::Secret),
    CreateVm(Box<types::VirtualMachine>),
    UpdateVm(Box<types::VirtualMachine>),
    /// Only power: everything else of the VirtualMachine has to wait.
    SetRunStrategy {
        uid: String,
        strategy: String,
    },
    DeleteVm {
        uid: String,
    },
    /// KubeVirt makes another one.
    DeleteInstance {
        uid: String,
    },
    /// Ends the plan unless the API server itself says that nothing uses the claim, or, without a
    /// claim, that VirtualMachine and instance are gone. The caches may be behind.
    ConfirmUnused {
        claim: Option<String>,
    },
    /// As it was seen: one whose policy has changed since is another matter.
    DeleteClaim {
        name: String,
        uid: String,
        version: Option<String>,
    },
}

/// What changes on a claim. A claim's spec is immutable but for its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimPatch {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Annotations to set, or to remove.
    pub(crate) annotations: BTreeMap<&'static str, Option<String>>,
    /// A larger size.
    pub(crate) storage: Option<String>,
}

impl Act for Action {
    fn effect(&self) -> Option<Effect> {
        match self {
            Self::DeleteClaim { .. } => Some(Effect::DeleteVolume),
            Self::DeleteDataVolume { .. } => Some(Effect::RemoveImage),
            Self::CreateVm(_) | Self::UpdateVm(_) => Some(Effect::Define),
            Self::SetRunStrategy { .. } => Some(Effect::Start),
            Self::DeleteInstance { .. } => Some(Effect::Stop),
            Self::DeleteVm { .. } => Some(Effect::Undefine),
            Self::CreateAttachment(_)
            | Self::UpdateAttachment(_)
            | Self::CreateClaim(_)
            | Self::PatchClaim(_)
            | Self::CreateDataVolume(_)
            | Self::ReleaseClaim { .. }
            | Self::CreateSecret(_)
            | Self::UpdateSecret(_)
            | Self::ConfirmUnused { .. } => None,
        }
    }

    fn is_switch(&self) -> bool {
        matches!(self, Self::SetRunStrategy { .. })
    }

    fn subject(&self) -> Subject {
        match self {
            Self::CreateAttachment(_) | Self::UpdateAttachment(_) => Subject::Network,
            Self::CreateClaim(_)
            | Self::PatchClaim(_)
            | Self::DeleteClaim { .. }
            | Self::CreateDataVolume(_)
            | Self::ReleaseClaim { .. }
            | Self::DeleteDataVolume { .. } => Subject::Storage,
            Self::CreateSecret(_)
            | Self::UpdateSecret(_)
            | Self::CreateVm(_)
            | Self::UpdateVm(_)
            | Self::SetRunStrategy { .. }
            | Self::DeleteVm { .. }
            | Self::DeleteInstance { .. }
            | Self::ConfirmUnused { .. } => Subject::Guest,
        }
    }
}

/// A line of the log.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateAttachment(wish) => {
                write!(f, "made NetworkAttachmentDefinition {}", wish.metadata.name)
            }
            Self::UpdateAttachment(wish) => {
                write!(
                    f,
                    "changed NetworkAttachmentDefinition {}",
                    wish.metadata.name
                )
            }
            Self::CreateClaim(wish) => {
                write!(f, "made PersistentVolumeClaim {}", wish.metadata.name)
            }
            Self::PatchClaim(patch) => write!(f, "changed PersistentVolumeClaim {}", patch.name),
            Self::CreateDataVolume(wish) => write!(f, "made DataVolume {}", wish.metadata.name),
            Self::ReleaseClaim { name, .. } => {
                write!(
                    f,
                    "released PersistentVolumeClaim {name} from its DataVolume"
                )
            }
            Self::DeleteDataVolume { name, .. } => write!(f, "deleted DataVolume {name}"),
            Self::CreateSecret(wish) => write!(f, "made Secret {}", wish.metadata.name),
            Self::UpdateSecret(wish) => write!(f, "changed Secret {}", wish.metadata.name),
            Self::CreateVm(_) => f.write_str("made the VirtualMachine"),
            Self::UpdateVm(_) => f.write_str("changed the VirtualMachine"),
            Self::SetRunStrategy { strategy, .. } => {
                write!(f, "set the VirtualMachine's runStrategy to {strategy}")
            }
            Self::DeleteVm { .. } => f.write_str("deleted the VirtualMachine"),
            Self::DeleteInstance { .. } => {
                f.write_str("deleted the VirtualMachineInstance, so that another takes its place")
            }
            Self::ConfirmUnused { claim: Some(claim) } => {
                write!(
                    f,
                    "made sure that nothing uses PersistentVolumeClaim {claim}"
                )
            }
            Self::ConfirmUnused { claim: None } => f.write_str("made sure that the guest is gone"),
            Self::DeleteClaim { name, .. } => write!(f, "deleted PersistentVolumeClaim {name}"),
        }
    }
}
