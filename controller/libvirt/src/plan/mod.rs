//! What to do about a Machine on a libvirt host: a pure function of what is wished and what is there.
//!
//! ```text
//!            ┌─ deleted ───────▶ guest off → definition gone → volumes by policy → seed → finalizer
//! Machine ───┼─ not to act on ─▶ status alone (no block, paused, host away or in maintenance)
//!            ├─ nowhere yet ───▶ bind it to a host, and nothing else
//!            └─ else ──────────▶ images → volumes → seed → definition → devices → power → status
//! ```
//! No clock, no host, no randomness. A plan is safe to repeat from any point: what takes several steps is
//! recorded with the domain before the first of them, and a domain is touched only when its uuid and its mark
//! are the Machine's.

pub(crate) mod create;
pub(crate) mod delete;
mod power;
mod seed;
mod status;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use common::api::libvirt_host::LibvirtHostSpec;
use common::render::libvirt::{Domain, DomainMetadata, LiveUpdate};
use common::render::{SecretKey, SecretValue};

pub(crate) use self::seed::seed_xml;
pub(crate) use self::volumes::{images, wanted};
use super::access::{State, Volume};
use super::images::ImageState;
use super::placement::Candidate;
use controller_core::backend::Act;
use controller_core::machine::Machine;
use controller_core::objects::{Network, Template};
use controller_core::plan::Subject;
use controller_core::preconditions::Effect;

/// What to do about a Machine now.
pub(crate) type Plan = controller_core::plan::Plan<Action>;

/// What is known that matters to one Machine.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// Uid of the cluster.
    pub(crate) cluster: Arc<str>,
    pub(crate) place: Place,
    /// NetworkConfigurations the Machine names, by name.
    pub(crate) networks: BTreeMap<String, Arc<Network>>,
    /// Other Machines that have an address of this one on the same network.
    pub(crate) conflicts: Vec<Arc<Machine>>,
    /// The MachineTemplate the block was expanded from, as it is now.
    pub(crate) template: Option<Arc<Template>>,
    /// Contents of the user's Secrets, as far as they had to be read; `None`: not there.
    pub(crate) contents: BTreeMap<SecretKey, Option<SecretValue>>,
}

/// Where the Machine is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// On no host yet: those there are.
    Nowhere(Vec<Candidate>),
    /// On a host that cannot be asked.
    Unreachable { host: String, why: String },
    /// On a host that was looked at.
    On(Box<Site>),
}

/// What there is on the Machine's host.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) host: String,
    pub(crate) spec: LibvirtHostSpec,
    /// The domain of the Machine's uuid.
    pub(crate) guest: Option<Guest>,
    /// Volumes that were asked for, and are there; by pool and name.
    pub(crate) volumes: BTreeMap<(String, String), Volume>,
    /// Pools that are not there: nothing is known of the volumes in them.
    pub(crate) absent_pools: BTreeSet<String>,
    /// Images the Machine needs, by the name of their volume.
    pub(crate) images: BTreeMap<String, ImageState>,
    /// Whether a Secret of the user was written since the seed was made.
    pub(crate) seed_is_behind: bool,
    /// Addresses by MAC address, as the networks and the agent tell them.
    pub(crate) addresses: BTreeMap<String, BTreeSet<String>>,
}

/// A domain.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) state: State,
    /// Why it is in that state, in libvirt's numbers.
    pub(crate) reason: i32,
    /// Ours, if it is.
    pub(crate) mark: Option<DomainMetadata>,
    /// As it is defined, and so as it starts next. `None`: it cannot be read, and is left alone.
    pub(crate) defined: Option<Domain>,
    /// As it runs.
    pub(crate) runs: Option<Domain>,
    /// Whether the guest's agent is connected.
    pub(crate) has_agent: bool,
}

impl Guest {
    /// Whether it was made for this Machine: somebody may have made another one of the uuid.
    pub(crate) fn belongs_to(&self, machine: &Machine) -> bool {
        let mark = self.mark.as_ref();
        mark.is_some_and(|mark| {
            use controller_core::objects::Meta as _;
            mark.uid == machine.uid()
        })
    }
}

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
        content: Secret,
    },
    Define(Box<Domain>),
    /// Writes what is remembered with the domain.
    SetMark(Box<DomainMetadata>),
    Plug(Box<LiveUpdate>),
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
    Bury {
        host: String,
    },
}

/// Content that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) Vec<u8>);

impl fmt::Debug for Secret {
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
            Self::Define(_) | Self::SetMark(_) | Self::Plug(_) => Some(Effect::Define),
            Self::Start { .. } => Some(Effect::Start),
            Self::AskToStop { .. } | Self::Destroy => Some(Effect::Stop),
            Self::Undefine => Some(Effect::Undefine),
            Self::Bind { .. }
            | Self::CreateVolume { .. }
            | Self::GrowDisk { .. }
            | Self::GrowVolume { .. }
            | Self::Bury { .. } => None,
        }
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Bind { .. } | Self::Bury { .. } => Subject::Machine,
            Self::FetchImage { .. }
            | Self::CreateVolume { .. }
            | Self::CopyVolume { .. }
            | Self::GrowDisk { .. }
            | Self::GrowVolume { .. }
            | Self::DeleteVolume { .. } => Subject::Storage,
            Self::CreateSeed { .. }
            | Self::Define(_)
            | Self::SetMark(_)
            | Self::Plug(_)
            | Self::Start { .. }
            | Self::AskToStop { .. }
            | Self::Destroy
            | Self::Undefine => Subject::Guest,
        }
    }

    fn is_switch(&self) -> bool {
        matches!(
            self,
            Self::SetMark(_) | Self::AskToStop { .. } | Self::Destroy
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
            Self::SetMark(mark) => match &mark.intent {
                Some(intent) => write!(f, "recorded that the guest is to {:?}", intent.kind),
                None => f.write_str("recorded that nothing is under way"),
            },
            Self::Plug(live) => write!(f, "changed the running guest: {live:?}"),
            Self::Start { .. } => f.write_str("started the guest"),
            Self::AskToStop { agent: true } => f.write_str("asked the guest's agent to shut down"),
            Self::AskToStop { agent: false } => f.write_str("asked the guest to shut down"),
            Self::Destroy => f.write_str("switched the guest off, because it did not shut down"),
            Self::Undefine => f.write_str("removed the definition of the domain"),
            Self::DeleteVolume { pool, name } => write!(f, "deleted volume {pool}/{name}"),
            Self::Bury { host } => write!(f, "left a tombstone on LibvirtHost {host}"),
        }
    }
}
