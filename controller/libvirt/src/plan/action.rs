//! The actions of a plan.

use std::fmt;

use common::api::left_volumes::{KeptVolume, TombstoneVolume};
use common::api::status::LastMigration;
use common::quantity::Bytes;
use common::render::libvirt::{
    AppliedPassword, DhcpRecord, Domain, DomainMetadata, LiveUpdate, PoolVolume,
};
use controller_core::backend::Act;
use controller_core::plan::Subject;
use controller_core::preconditions::Effect;

use crate::access::{FirmwareState, VolumeKey};
use crate::volume_effects::Removal;

/// What to do about a Machine that is not under deletion.
pub(crate) type Draft = controller_core::backend::Draft<Action>;

/// The draft as the core carries it out.
#[cfg(test)]
pub(crate) type Plan = controller_core::plan::Plan<Action>;

/// One action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Records the host in the Machine's status, before anything is sent to it.
    Bind {
        /// Name of the LibvirtHost.
        host: String,
    },
    /// Records in the Machine's status that it is moved to another host, once that has the volumes.
    MoveTo {
        /// Name of the LibvirtHost that it leaves.
        from: String,
        /// The move for the status, with the host that it goes to.
        record: LastMigration,
        /// The volumes that the other host must have.
        volumes: Vec<MovedVolume>,
    },
    /// Removes the definition of the domain from the host that the Machine leaves, once the other host has the volumes.
    Leave {
        /// Name of the LibvirtHost that it leaves.
        from: String,
        /// Name of the LibvirtHost that it is moved to.
        to: String,
        /// The volumes that the other host must have.
        volumes: Vec<MovedVolume>,
        /// Pool and name of the log of its console, which is removed as well.
        log: Option<VolumeKey>,
    },
    /// Fetches an image in the background, unless that is under way or failed a short while ago.
    FetchImage {
        /// Name of the image's volume without the attempt.
        volume: String,
        /// Where the image is.
        url: String,
        /// `sha256:` and the digest that the content must have.
        checksum: Option<String>,
        /// Secret of the Machine's namespace with the credentials for the URL.
        secret: Option<String>,
        /// Size of the disk that is made of the image, in bytes; `None`: it is a medium.
        disk_size: Option<u64>,
    },
    /// Creates an empty volume, or an overlay. libvirt refuses a name that exists.
    CreateVolume {
        /// Pool of the volume.
        pool: String,
        /// Name of the volume.
        name: String,
        /// Size of the guest's disk.
        size: Bytes,
        /// libvirt's description of it.
        xml: String,
        /// The image that it is an overlay of.
        image: Option<PoolVolume>,
    },
    /// Copies an image in the background to a volume of a name that was never used, and then makes the marker that it is
    /// complete, unless that is under way or failed a short while ago.
    CopyVolume {
        /// Pool of the volume.
        pool: String,
        /// Name of the volume.
        name: String,
        /// Size of the guest's disk.
        size: Bytes,
        /// libvirt's description of it.
        xml: String,
        /// The image that is copied.
        image: PoolVolume,
    },
    /// Grows the disk of a running guest.
    GrowDisk {
        /// Target device of the disk, such as `vda`.
        target: String,
        /// The volume of the disk, with its new size.
        volume: GrownVolume,
    },
    /// Grows a volume that no running guest uses.
    GrowVolume(GrownVolume),
    /// Writes a cloud-init seed to a volume of a name that was never used, and removes earlier seeds of the Machine
    /// that no domain has.
    CreateSeed {
        /// Pool of the volume.
        pool: String,
        /// Name of the volume.
        name: String,
        /// Name of the seed that the domain's metadata records; it is not removed.
        current: Option<String>,
        /// The ISO image.
        content: SeedContent,
    },
    /// Defines the domain, or replaces its definition.
    Define(Box<Domain>),
    /// Writes our metadata of the domain.
    SetMetadata(Box<DomainMetadata>),
    /// Changes a device, the vCPUs or the memory of the running guest.
    HotPlug(Box<LiveUpdate>),
    /// Changes the password of the running guest's screen.
    SetDisplayPassword {
        /// Path of the screen's socket.
        socket: String,
        /// The password; empty: nobody gets in.
        password: DisplayPassword,
        /// The Secret that it is from.
        applied: Option<AppliedPassword>,
    },
    /// Changes the addresses that the DHCP servers of the host's networks keep for the Machine's cards.
    SetDhcpHosts {
        /// Entries to remove first.
        remove: Vec<DhcpRecord>,
        /// Entries to make.
        add: Vec<DhcpRecord>,
    },
    /// Deletes the log of the Machine's console.
    DeleteConsoleLog {
        /// Pool of the log.
        pool: String,
        /// Name of the file.
        name: String,
    },
    /// Starts the guest.
    Start {
        /// Whether its firmware settings are reset.
        reset_nvram: bool,
    },
    /// Requests a shutdown of the guest.
    AskToStop {
        /// Whether by its agent; otherwise, and if the agent does not answer, by ACPI.
        agent: bool,
    },
    /// Ends the guest at once.
    Destroy,
    /// Resets the hardware of the guest.
    Reset,
    /// Removes the definition of the domain.
    Undefine(FirmwareState),
    /// Deletes a volume, and its completion marker.
    DeleteVolume(Removal),
    /// Records in the status of a host the volumes that are kept of a Machine that is deleted.
    RecordKept {
        /// Name of the LibvirtHost.
        host: String,
        /// The records to add to `status.keptVolumes`.
        volumes: Vec<KeptVolume>,
    },
    /// Deletes a volume that was kept of a former Machine of the name, and its record.
    ReleaseKept(KeptOnHost),
    /// Removes the annotation of a request or a confirmation that was carried out: it must not act on a later change.
    RemoveAnnotation(&'static str),
    /// Records in the status of a host that something of the Machine may be left there.
    RecordOrphan {
        /// Name of the LibvirtHost.
        host: String,
        /// The volumes to delete there; `None`: they follow from the block and the spec of the host.
        volumes: Option<Vec<TombstoneVolume>>,
    },
}

/// The volume of a Machine that is moved, as the host that it is moved to must have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovedVolume {
    /// Its pool on the other host.
    pub(crate) pool: String,
    /// Name of the volume without an attempt.
    pub(crate) base: String,
    /// Name of the volume.
    pub(crate) name: String,
    /// Size that the guest sees, in bytes.
    pub(crate) capacity: u64,
}

/// A volume that grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrownVolume {
    /// Pool of the volume.
    pub(crate) pool: String,
    /// Name of the volume.
    pub(crate) name: String,
    /// Size it gets, in bytes.
    pub(crate) bytes: u64,
    /// Whether it takes content from an image below it.
    pub(crate) is_overlay: bool,
}

/// A volume that is kept of a Machine which was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptOnHost {
    /// Name of the LibvirtHost.
    pub(crate) host: String,
    /// The record in its status.
    pub(crate) volume: KeptVolume,
}

/// The content of a seed. It is never logged, because it may contain passwords.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SeedContent(pub(crate) Vec<u8>);

impl fmt::Debug for SeedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A password that VNC takes: at most 8 printable ASCII characters. It is never logged.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct DisplayPassword(pub(crate) String);

impl fmt::Debug for DisplayPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a password)")
    }
}

impl Action {
    /// Whether it makes a disk of the Machine, or an image for one.
    pub(super) fn makes_volume(&self) -> bool {
        matches!(
            self,
            Self::CreateVolume { .. } | Self::CopyVolume { .. } | Self::FetchImage { .. }
        )
    }
}

impl Act for Action {
    fn effect(&self) -> Option<Effect> {
        match self {
            Self::DeleteVolume(_) | Self::ReleaseKept(_) | Self::DeleteConsoleLog { .. } => {
                Some(Effect::DeleteVolume)
            }
            Self::FetchImage { .. } | Self::CopyVolume { .. } | Self::CreateSeed { .. } => {
                Some(Effect::FillVolume)
            }
            Self::GrowDisk { .. } | Self::GrowVolume(_) => Some(Effect::Grow),
            Self::Define(_)
            | Self::HotPlug(_)
            | Self::SetDisplayPassword { .. }
            | Self::SetDhcpHosts { .. } => Some(Effect::Define),
            Self::SetMetadata(_) => Some(Effect::Record),
            Self::Start { .. } => Some(Effect::Start),
            Self::AskToStop { .. } | Self::Destroy => Some(Effect::Stop),
            Self::Reset => Some(Effect::Reset),
            Self::Undefine(_) => Some(Effect::Undefine),
            Self::Leave { .. } => Some(Effect::Migrate),
            Self::Bind { .. }
            | Self::MoveTo { .. }
            | Self::CreateVolume { .. }
            | Self::RemoveAnnotation(_)
            | Self::RecordKept { .. }
            | Self::RecordOrphan { .. } => None,
        }
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Bind { .. }
            | Self::RemoveAnnotation(_)
            | Self::RecordKept { .. }
            | Self::RecordOrphan { .. } => Subject::Machine,
            Self::FetchImage { .. }
            | Self::CreateVolume { .. }
            | Self::CopyVolume { .. }
            | Self::GrowDisk { .. }
            | Self::GrowVolume(_)
            | Self::ReleaseKept(_)
            | Self::DeleteConsoleLog { .. }
            | Self::DeleteVolume(_) => Subject::Storage,
            Self::SetDhcpHosts { .. } => Subject::Network,
            Self::SetDisplayPassword { .. } => Subject::Display,
            Self::Reset => Subject::Reset,
            Self::MoveTo { .. } | Self::Leave { .. } => Subject::Migration,
            Self::CreateSeed { .. }
            | Self::Define(_)
            | Self::SetMetadata(_)
            | Self::HotPlug(_)
            | Self::Start { .. }
            | Self::AskToStop { .. }
            | Self::Destroy
            | Self::Undefine(_) => Subject::Guest,
        }
    }

    fn stops_or_resets(&self) -> bool {
        matches!(
            self,
            Self::SetMetadata(_) | Self::AskToStop { .. } | Self::Destroy | Self::Reset
        )
    }
}

/// A line of the log.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { host } => write!(f, "bound the Machine to LibvirtHost {host}"),
            Self::MoveTo { from, record, .. } => {
                let to = record.node.as_deref().unwrap_or_default();
                write!(f, "recorded the move from LibvirtHost {from} to {to}")
            }
            Self::Leave { from, .. } => {
                write!(
                    f,
                    "removed the definition of the domain from LibvirtHost {from}"
                )
            }
            Self::FetchImage { volume, .. } => write!(f, "image {volume} is being fetched"),
            Self::CreateVolume { pool, name, .. } => write!(f, "made volume {pool}/{name}"),
            Self::CopyVolume {
                pool, name, image, ..
            } => {
                let image = &image.volume;
                write!(f, "image {image} is being copied to volume {pool}/{name}")
            }
            Self::GrowDisk { target, volume } => {
                write!(f, "grew disk {target} to {} bytes", volume.bytes)
            }
            Self::GrowVolume(volume) => {
                let GrownVolume {
                    pool, name, bytes, ..
                } = volume;
                write!(f, "grew volume {pool}/{name} to {bytes} bytes")
            }
            Self::CreateSeed { pool, name, .. } => write!(f, "made the seed {pool}/{name}"),
            Self::Define(domain) => write!(f, "defined domain {}", domain.name),
            Self::SetMetadata(metadata) => match &metadata.intent {
                Some(intent) => write!(f, "recorded the intent {:?}", intent.kind),
                None => f.write_str("recorded that no intent is pending"),
            },
            Self::HotPlug(live) => write!(f, "changed the running guest: {live:?}"),
            Self::SetDisplayPassword { applied: None, .. } => f.write_str("locked the display"),
            Self::SetDisplayPassword {
                applied: Some(applied),
                ..
            } => {
                let AppliedPassword { secret, version } = applied;
                write!(
                    f,
                    "set the display's password of Secret {secret}, resourceVersion {version}"
                )
            }
            Self::SetDhcpHosts { remove, add } => {
                let line = |verb: &str, of: &[DhcpRecord]| {
                    let one = |it: &DhcpRecord| {
                        format!("{verb} {} for {} on {}", it.address, it.mac, it.network)
                    };
                    of.iter().map(one).collect::<Vec<_>>()
                };
                let lines = [line("removed", remove), line("reserved", add)].concat();
                write!(f, "DHCP: {}", lines.join(", "))
            }
            Self::DeleteConsoleLog { pool, name } => {
                write!(f, "deleted the log of the console {pool}/{name}")
            }
            Self::Start { .. } => f.write_str("started the guest"),
            Self::AskToStop { agent: true } => f.write_str("requested a shutdown by the agent"),
            Self::AskToStop { agent: false } => f.write_str("requested a shutdown by ACPI"),
            Self::Destroy => f.write_str("switched the guest off, because it did not shut down"),
            Self::Reset => f.write_str("reset the hardware of the guest"),
            Self::Undefine(FirmwareState::Remove | FirmwareState::RemoveAlone) => {
                f.write_str("removed the definition of the domain")
            }
            Self::Undefine(FirmwareState::Keep) => f.write_str(
                "removed the definition of the domain and kept its EFI variables and TPM",
            ),
            Self::DeleteVolume(Removal { pool, name, .. }) => {
                write!(f, "deleted volume {pool}/{name}")
            }
            Self::RecordKept { host, volumes } => {
                let count = volumes.len();
                write!(f, "recorded {count} kept volumes on LibvirtHost {host}")
            }
            Self::ReleaseKept(KeptOnHost { host, volume }) => {
                let KeptVolume { pool, volume, .. } = volume;
                write!(
                    f,
                    "deleted the kept volume {pool}/{volume} on LibvirtHost {host}"
                )
            }
            Self::RemoveAnnotation(name) => write!(f, "removed the annotation {name}"),
            Self::RecordOrphan { host, .. } => {
                write!(f, "recorded a tombstone on LibvirtHost {host}")
            }
        }
    }
}
