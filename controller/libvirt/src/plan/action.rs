//! The actions of a plan.

use std::fmt;

use common::render::libvirt::{Domain, Live, Mark};
use controller_core::backend::Act;
use controller_core::plan::Subject;
use controller_core::preconditions::Effect;

/// What to do about a Machine now.
pub(crate) type Plan = controller_core::plan::Plan<Action>;

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Records the host before anything is sent to it.
    Bind {
        host: String,
    },
    /// Begins, or goes on with, filling an image; it is done in the background.
    FetchImage {
        volume: String,
        url: String,
        checksum: Option<String>,
    },
    CreateVolume {
        pool: String,
        name: String,
        xml: String,
    },
    /// Makes a volume with the content of an image, and then the marker that it is complete.
    CopyVolume {
        pool: String,
        name: String,
        xml: String,
        image: (String, String),
    },
    /// A running guest's disk by its target device.
    GrowDisk {
        target: String,
        bytes: u64,
    },
    GrowVolume {
        pool: String,
        name: String,
        bytes: u64,
    },
    CreateSeed {
        pool: String,
        name: String,
        content: SeedContent,
    },
    Define(Box<Domain>),
    /// Writes what is remembered with the domain.
    SetMetadata(Box<Mark>),
    HotPlug(Box<Live>),
    Start {
        reset_nvram: bool,
    },
    AskToStop {
        agent: bool,
    },
    Destroy,
    Undefine,
    /// Deletes a volume once it is certain that no domain and no other volume refers to it.
    DeleteVolume {
        pool: String,
        name: String,
    },
    /// Writes on the tombstones of a host that cannot be asked what may be left there.
    RecordOrphan {
        host: String,
    },
}

/// Content that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SeedContent(pub(crate) Vec<u8>);

impl fmt::Debug for SeedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Act for Action {
    fn effect(&self) -> Option<Effect> {
        match self {
            Self::DeleteVolume { .. } => Some(Effect::DeleteVolume),
            Self::CopyVolume { .. } | Self::CreateSeed { .. } => Some(Effect::FillVolume),
            Self::FetchImage { .. } => Some(Effect::RemoveImage),
            Self::Define(_) | Self::SetMetadata(_) | Self::HotPlug(_) => Some(Effect::Define),
            Self::Start { .. } => Some(Effect::Start),
            Self::AskToStop { .. } | Self::Destroy => Some(Effect::Stop),
            Self::Undefine => Some(Effect::Undefine),
            Self::Bind { .. }
            | Self::CreateVolume { .. }
            | Self::GrowDisk { .. }
            | Self::GrowVolume { .. }
            | Self::RecordOrphan { .. } => None,
        }
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Bind { .. } | Self::RecordOrphan { .. } => Subject::Machine,
            Self::FetchImage { .. }
            | Self::CreateVolume { .. }
            | Self::CopyVolume { .. }
            | Self::GrowDisk { .. }
            | Self::GrowVolume { .. }
            | Self::DeleteVolume { .. } => Subject::Storage,
            Self::CreateSeed { .. }
            | Self::Define(_)
            | Self::SetMetadata(_)
            | Self::HotPlug(_)
            | Self::Start { .. }
            | Self::AskToStop { .. }
            | Self::Destroy
            | Self::Undefine => Subject::Guest,
        }
    }

    fn is_switch(&self) -> bool {
        matches!(
            self,
            Self::SetMetadata(_) | Self::AskToStop { .. } | Self::Destroy
        )
    }
}

/// A line of the log.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { host } => write!(f, "bound the Machine to LibvirtHost {host}"),
            Self::FetchImage { volume, .. } => write!(f, "image {volume} is being fetched"),
            Self::CreateVolume { pool, name, .. } => write!(f, "made volume {pool}/{name}"),
            Self::CopyVolume {
                pool, name, image, ..
            } => {
                write!(f, "made volume {pool}/{name} of image {}", image.1)
            }
            Self::GrowDisk { target, bytes } => write!(f, "grew disk {target} to {bytes} bytes"),
            Self::GrowVolume { pool, name, bytes } => {
                write!(f, "grew volume {pool}/{name} to {bytes} bytes")
            }
            Self::CreateSeed { pool, name, .. } => write!(f, "made the seed {pool}/{name}"),
            Self::Define(domain) => write!(f, "defined domain {}", domain.name),
            Self::SetMetadata(metadata) => match &metadata.intent {
                Some(intent) => write!(f, "recorded that the guest is to {:?}", intent.kind),
                None => f.write_str("recorded that nothing is under way"),
            },
            Self::HotPlug(live) => write!(f, "changed the running guest: {live:?}"),
            Self::Start { .. } => f.write_str("started the guest"),
            Self::AskToStop { agent: true } => f.write_str("asked the guest's agent to shut down"),
            Self::AskToStop { agent: false } => f.write_str("asked the guest to shut down"),
            Self::Destroy => f.write_str("switched the guest off, because it did not shut down"),
            Self::Undefine => f.write_str("removed the definition of the domain"),
            Self::DeleteVolume { pool, name } => write!(f, "deleted volume {pool}/{name}"),
            Self::RecordOrphan { host } => write!(f, "recorded a tombstone on LibvirtHost {host}"),
        }
    }
}
