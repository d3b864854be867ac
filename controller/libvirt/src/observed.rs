//! Input of a plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use common::api::libvirt_host::{HostResources, LibvirtHostSpec};
use common::api::status::GuestOs;
use common::catalog::Policy;
use common::render::libvirt::{Domain, DomainMetadata, SeedRecord};
use common::render::{CloudInitPlan, SecretKey, SecretValue};
use controller_core::addresses::Conflict;
use controller_core::conditions::Fault;
use controller_core::foreign_stop::OnForeignStop;
use controller_core::machine::{Machine, NO_RESOURCES};
use controller_core::objects::{Meta as _, Network, Template};
use controller_core::restart::new_request;

use crate::access::{CardAddresses, DhcpServer, DomainHardware, State, Volume, VolumeKey, shutoff};
use crate::capacity::{UNLIMITED, larger, size_of};
use crate::existing_disks::Unusable;
use crate::hardware::Cpus;
use crate::images::fetches::ImageState;
use crate::placement::Candidate;
use crate::plan::action::KeptOnHost;
use crate::probing::Readiness;
use crate::switches::Switches;

/// Everything that the plan of one Machine reads.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// Uid of the cluster, which is part of the MAC addresses of network cards.
    pub(crate) cluster: Arc<str>,
    /// What is done about a guest that another client stops.
    pub(crate) on_foreign_stop: OnForeignStop,
    /// The host that the Machine is bound to, and what was observed there.
    pub(crate) binding: Binding,
    /// The domain of the Machine on other hosts than that of the binding, by their last polls.
    pub(crate) other_domains: Vec<ShownDomain>,
    /// The hosts that the Machine can be moved to or is moved to; read only while a move is requested or under way.
    pub(crate) targets: Vec<Candidate>,
    /// MachinePolicies of the namespace; read with [`Self::targets`].
    pub(crate) policies: Vec<Arc<Policy>>,
    /// LibvirtHosts beside that of the binding on which something of a Machine under deletion may be: its status does
    /// not name them, and they cannot be asked, or have volumes of it.
    pub(crate) elsewhere: Vec<String>,
    /// Why the Machine may not grow beyond what it has; `None`: it may.
    pub(crate) hold: Option<Fault>,
    /// NetworkConfigurations that the Machine names, by name.
    pub(crate) networks: BTreeMap<String, Arc<Network>>,
    /// Other Machines that have an address of this one on the same segment.
    pub(crate) conflicts: Vec<Conflict>,
    /// The MachineTemplate that the block was expanded from, as it is now.
    pub(crate) template: Option<Arc<Template>>,
    /// MachineImages of its disks that have another source now.
    pub(crate) outdated_images: Vec<String>,
    /// Volumes that are kept of former Machines of the name; read only if the annotation `release-volume` is set.
    pub(crate) kept_of_former: Vec<KeptOnHost>,
    /// Contents of the user's Secrets, read only if a seed has to be made; `None`: the Secret or its key does not
    /// exist. The error has the cause if they could not be read.
    pub(crate) contents: Result<BTreeMap<SecretKey, Option<SecretValue>>, String>,
    /// The password of the screen.
    pub(crate) password: Password,
}

/// What is known of the password of a screen.
#[derive(Clone, Debug, Default)]
pub(crate) enum Password {
    /// Not read: the Machine has none, its guest cannot get one, or the running guest has that of the Secret as it is.
    #[default]
    NotRead,
    /// The content of the Secret; `None`: the Secret or its key does not exist.
    Read(Option<SecretValue>),
    /// Why the Secret cannot be read.
    Unreadable(String),
}

/// A host that shows the domain of a Machine, with our metadata of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShownDomain {
    /// Name of the LibvirtHost.
    pub(crate) host: String,
    /// Whether there is a guest, by the last poll that the host answered.
    pub(crate) is_active: bool,
    /// Whether the host answered the last poll.
    pub(crate) answers: bool,
}

/// The host of a Machine.
#[derive(Clone, Debug)]
pub(crate) enum Binding {
    /// The Machine has no host yet; these can be chosen from.
    Unbound(Vec<Candidate>),
    /// The LibvirtHost of the Machine does not exist any more.
    Unregistered {
        /// `status.host` of the Machine, which the controller wrote when it chose the host.
        host: String,
    },
    /// The host could not be observed.
    Unreachable {
        /// Name of the LibvirtHost.
        host: String,
        /// The error of the connection or of the read, for messages.
        why: String,
    },
    /// The host was observed.
    Bound(Box<HostView>),
}

/// What was observed on the Machine's host.
#[derive(Clone, Debug)]
pub(crate) struct HostView {
    /// Name of the LibvirtHost.
    pub(crate) host: String,
    /// Spec of the LibvirtHost.
    pub(crate) spec: LibvirtHostSpec,
    /// The domain of the Machine's uuid, of any owner.
    pub(crate) guest: Option<Guest>,
    /// The volumes that were looked for and exist.
    pub(crate) volumes: BTreeMap<VolumeKey, Volume>,
    /// Pools that could not be read, each with the reason and the command that repairs it. Nothing is known of
    /// the volumes in them: none of them counts as absent.
    pub(crate) unreadable_pools: BTreeMap<String, String>,
    /// Why no volume is made or grows in these pools, which can be read.
    pub(crate) unfit_pools: BTreeMap<String, String>,
    /// Space that is left in pools in which a volume has to be made or grown, in bytes of charge.
    pub(crate) space_left: BTreeMap<String, u128>,
    /// Why the guest does not get a volume that existed before the Machine and that a disk is to be on, by pool and volume.
    pub(crate) unusable: BTreeMap<VolumeKey, Unusable>,
    /// What other domains have of the host for themselves; read if the Machine is to have any of it.
    pub(crate) taken: DomainHardware,
    /// CPUs of the host, by the last poll.
    pub(crate) cpus: Cpus,
    /// The DHCP servers of the networks that the domain's cards are on, by network; read if a card holds an address.
    pub(crate) dhcp: BTreeMap<String, DhcpServer>,
    /// Networks of the running guest that could not be read, each with the reason and the command that repairs it.
    pub(crate) network_faults: Vec<String>,
    /// Images that the Machine needs, by the name of their volume.
    pub(crate) images: BTreeMap<String, ImageState>,
    /// How far the copies of images to the Machine's disks are, by pool and volume without the attempt.
    pub(crate) copies: BTreeMap<VolumeKey, ImageState>,
    /// Whether an image is being copied for the Machine, also to a disk that has left the spec.
    pub(crate) is_copying: bool,
    /// vCPUs and memory that the Machine may have on the host, if it asks for more than it has.
    pub(crate) room: HostResources,
    /// Folder of the pool for logs of consoles, by the last poll.
    pub(crate) console_logs: Option<String>,
    /// Whether a Secret of the user was written after the seed was made.
    pub(crate) seed_is_behind: bool,
    /// What libvirt can impose on cards, by the last poll.
    pub(crate) switches: Switches,
    /// The operating system that the guest's agent reports; empty without an agent.
    pub(crate) guest_os: GuestOs,
    /// What the readiness probe shows of the running guest; `None`: the Machine has none.
    pub(crate) readiness: Option<Readiness>,
    /// IP addresses of the cards, as the networks' leases and the guest's agent report them.
    pub(crate) addresses: CardAddresses,
}

/// A domain.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// State of the domain.
    pub(crate) state: State,
    /// Why it is in that state, in libvirt's numbers.
    pub(crate) reason: i32,
    /// Our metadata; `None`: the domain is not one of ours.
    pub(crate) metadata: Option<DomainMetadata>,
    /// The definition, which the next start uses. `None`: it cannot be parsed, and the domain is not changed.
    pub(crate) defined: Option<Domain>,
    /// The definition of the running guest; `None`: shut off.
    pub(crate) running: Option<Domain>,
    /// Whether the guest's agent answers.
    pub(crate) has_agent: bool,
}

impl HostView {
    /// What the domain of the Machine has: the running guest, else the definition. A definition that cannot be parsed
    /// is left alone, and has everything.
    pub(crate) fn size(&self) -> HostResources {
        match &self.guest {
            None => NO_RESOURCES,
            Some(guest) => {
                let domain = guest.running.as_ref().or(guest.defined.as_ref());
                domain.map_or(UNLIMITED, size_of)
            }
        }
    }

    /// The seed that the domain's metadata records.
    pub(crate) fn seed(&self) -> Option<&SeedRecord> {
        let guest = self.guest.as_ref()?;
        guest.metadata.as_ref()?.seed.as_ref()
    }

    /// Whether the domain's seed, or that it has none, fits the Machine. A guest that runs keeps it as long as only network data
    /// differ that follow from addresses: the instance id stays, so that a restart for another seed would change nothing.
    /// Before a requested restart the seed of the next start is made: without it the guest is not shut down.
    pub(crate) fn has_seed_of(&self, machine: &Machine) -> bool {
        let plan = &machine.cloud_init;
        let of_user = plan.without_generated();
        let is_active = self.guest.as_ref().is_some_and(|it| it.state.active());
        let runs = is_active && new_request(machine).is_none();
        match self.seed() {
            None => {
                *plan == CloudInitPlan::default() || runs && of_user == CloudInitPlan::default()
            }
            Some(seed) => {
                seed.digest == plan.digest()
                    || runs && seed.user_digest.as_ref() == Some(&of_user.digest())
            }
        }
    }

    /// What the domain of the Machine has now, or will have at its next start.
    pub(crate) fn size_now_or_after_restart(&self) -> HostResources {
        let guest = self.guest.as_ref();
        let defined = guest.and_then(|guest| guest.defined.as_ref());
        larger(self.size(), defined.map_or(NO_RESOURCES, size_of))
    }
}

impl Guest {
    /// Whether the domain was made for this Machine. A foreign domain may have the same uuid.
    pub(crate) fn belongs_to(&self, machine: &Machine) -> bool {
        let metadata = self.metadata.as_ref();
        metadata.is_some_and(|metadata| metadata.uid == machine.uid())
    }

    /// Whether another client has migrated the guest to another host, and the definition was left behind.
    pub(crate) fn was_migrated_away(&self) -> bool {
        was_migrated_away(self.state, self.reason, self.metadata.as_ref())
    }
}

/// Whether the guest of a domain in this state was migrated to another host. `reason`: of the state. After a
/// start of the daemon the state no longer shows it, but our metadata does.
pub(crate) fn was_migrated_away(
    state: State,
    reason: i32,
    metadata: Option<&DomainMetadata>,
) -> bool {
    let is_recorded = || metadata.is_some_and(|metadata| metadata.migrated_away);
    state == State::ShutOff
        && match reason {
            shutoff::MIGRATED => true,
            shutoff::UNKNOWN => is_recorded(),
            _ => false,
        }
}
