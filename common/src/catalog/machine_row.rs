//! What the index of Machines keeps of one of them.

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::Value;

use super::unreadable;
use super::usage::Usage;
use crate::api::choice::Backend;
use crate::api::normalized::{ExistingDisk, Normalized};
use crate::mac::Mac;

/// Namespace and name of a Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineName<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.name`; empty until the API server has generated it.
    pub name: &'a str,
}

/// A network card whose address another card can have, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// `networkName` in the block: a NetworkConfiguration of the namespace; `None`: the default network of a libvirt host.
    pub network: Option<Box<str>>,
    /// `macAddress` in the block: written by the user, or generated at admission.
    pub mac: Mac,
    /// Its IP addresses: those of the block and those that the controller has allocated.
    pub addresses: Box<[IpAddr]>,
    /// The backend of its Machine.
    pub backend: Backend,
}

/// Whether the status of a Machine of this generation says what its guest has: `observed` is the generation that it is about,
/// and `is_unknown` whether nothing could be observed. Without a status there is no guest.
pub fn says_what_runs(generation: Option<i64>, observed: Option<i64>, is_unknown: bool) -> bool {
    (observed.is_none() || observed == generation) && !is_unknown
}

/// A network card of another Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherCard {
    /// Namespace of its Machine.
    pub namespace: String,
    /// Name of its Machine.
    pub machine: String,
    /// Network, address and backend of that card.
    pub card: Card,
}

/// Another Machine that has a claim, or is to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUser {
    /// Name of the Machine.
    pub machine: String,
    /// Its disk whose own volume the claim is; `None`: the claim existed before the Machine, which names it.
    pub own_disk: Option<String>,
    /// Whether the Machine lets others have the claim at the same time.
    pub is_shareable: bool,
}

impl ClaimUser {
    /// Whether another Machine may have the claim beside this one: both say `shareable`, and several nodes can write to
    /// the claim. `is_shared` is unknown while the claim does not exist, and then its reader decides: admission takes it
    /// for ReadWriteMany, because it only warns of a claim that is still to be made, and the controller does not, because
    /// it looks again once the claim exists, and until then one Machine has it.
    pub fn may_share(&self, is_shareable: bool, is_shared: bool) -> bool {
        is_shareable && self.is_shareable && is_shared
    }
}

/// A claim that a disk of a Machine is on as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExistingClaim {
    pub(super) name: Box<str>,
    pub(super) is_shareable: bool,
}

/// The name by which Machines are compared that are on one claim, or on one volume of a libvirt host.
fn existing_key(disk: &ExistingDisk) -> Cow<'_, str> {
    match &disk.volume_name {
        Some(volume) => volume_key(volume).into(),
        None => disk.source().into(),
    }
}

/// The same of a volume of a libvirt host. No claim has a name with a slash.
pub(crate) fn volume_key(volume: &str) -> String {
    format!("volume/{volume}")
}

/// The values of a Machine that no other Machine may have, and its share of the quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRow {
    pub(super) cards: Box<[Card]>,
    /// Names separated by blanks, which no name contains. One text instead of a list keeps the row small.
    disks: Box<str>,
    /// Existing claims that its disks are on.
    pub(super) existing_claims: Box<[ExistingClaim]>,
    /// What it uses of the quota of its namespace.
    pub usage: Usage,
    /// Whether its status is older than its block: what its guest still has is not known then.
    pub(super) is_unreported: bool,
    /// Disks that left its spec and their kept volumes on its libvirt host, in bytes.
    kept: Box<[(Box<str>, u64)]>,
}

impl MachineRow {
    /// The row of a Machine with these cards and with claims for these disks.
    pub fn new<'a>(
        cards: impl IntoIterator<Item = Card>,
        disks: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self {
            cards: cards.into_iter().collect(),
            disks: disks.into_iter().collect::<Vec<_>>().join(" ").into(),
            existing_claims: Box::default(),
            usage: Usage::default(),
            is_unreported: false,
            kept: Box::default(),
        }
    }

    /// The row of a Machine with this block. `derived` gives the address of a card whose spec has none.
    pub fn of(block: &Normalized, derived: impl Fn(&str) -> Mac) -> Self {
        let cards = block.networks.iter().map(|nic| Card {
            network: nic.network_name.as_deref().map(Into::into),
            mac: nic.mac_address.unwrap_or_else(|| derived(&nic.name)),
            addresses: nic.ip_addresses.as_slice().into(),
            backend: block.backend,
        });
        // On the pod network each Machine is alone, so its address cannot conflict.
        let cards = cards.filter(|card| card.network.is_some() || card.backend == Backend::Libvirt);
        let disks = block.disks.iter().map(|disk| disk.name.as_str());
        // Names of volumes on a libvirt host contain the Machine's uid, and names of CD-ROM claims a
        // digest, so they cannot conflict.
        let has_claims = block.backend == Backend::Kubevirt;
        let existing = block.existing_disks.iter();
        let existing: Vec<_> = existing
            .map(|disk| (existing_key(disk), disk.shareable))
            .collect();
        let existing = existing.iter().map(|(key, shareable)| (&**key, *shareable));
        Self {
            usage: Usage::of(block),
            ..Self::new(cards, disks.filter(|_| has_claims)).with_existing_claims(existing)
        }
    }

    /// The row with disks on these existing claims, each with whether it is shareable.
    #[must_use]
    pub fn with_existing_claims<'a>(
        mut self,
        claims: impl IntoIterator<Item = (&'a str, bool)>,
    ) -> Self {
        let claims = claims.into_iter();
        let claims = claims.map(|(name, is_shareable)| ExistingClaim {
            name: name.into(),
            is_shareable,
        });
        self.existing_claims = claims.collect();
        self
    }

    /// The row of a Machine whose block this release cannot read. Its addresses are not known.
    pub fn of_unreadable(spec: &Value) -> Self {
        Self {
            usage: unreadable::usage(spec),
            ..Self::new([], unreadable::disks_with_claims(spec))
        }
    }

    /// The row of a Machine whose guest still has other values than the block: of each resource the larger amount counts,
    /// because a running guest gives back nothing before its restart. `pending` is that of
    /// [`Normalized::running`]; `None`: the status does not say, see [`says_what_runs`].
    #[must_use]
    pub fn running<'p, P>(mut self, block: &Normalized, pending: Option<P>) -> Self
    where
        P: IntoIterator<Item = (&'p str, &'p str)>,
    {
        let Some(pending) = pending else {
            self.is_unreported = true;
            return self;
        };
        let mut pending = pending.into_iter().peekable();
        if pending.peek().is_some() {
            self.usage = self.usage.max(Usage::of(&block.running(pending)));
        }
        self
    }

    /// The row with as many vCPUs and as much memory as before, until the status says what the guest has: else a block with
    /// less would free the quota while the guest runs with all of it. Its disks are counted by the volumes that are kept.
    #[must_use]
    pub fn unless_reported(mut self, before: Option<&Self>) -> Self {
        if let Some(before) = before.filter(|_| self.is_unreported) {
            let storage = self.usage.storage;
            self.usage = Usage {
                storage,
                ..self.usage.max(before.usage)
            };
        }
        self
    }

    /// The row with kept volumes on its libvirt host: of `volumes`, by disk, those whose disk the block lacks. They may
    /// come from a status in which they are volumes of disks still, because the controller has not seen the update yet.
    #[must_use]
    pub fn keeping<'v>(
        mut self,
        block: &Normalized,
        volumes: impl IntoIterator<Item = (&'v str, u64)>,
    ) -> Self {
        let has = |name: &str| block.all_disks().iter().any(|disk| disk.name() == name);
        if block.backend == Backend::Libvirt {
            let left = volumes.into_iter().filter(|(disk, _)| !has(disk));
            self.kept = left.map(|(disk, size)| (disk.into(), size)).collect();
        }
        self
    }

    /// The row with addresses that the controller has allocated to cards of the block, by name of the card.
    #[must_use]
    pub fn with_allocated<'n>(
        mut self,
        block: &Normalized,
        allocated: impl IntoIterator<Item = (&'n str, IpAddr)>,
    ) -> Self {
        let allocated: Vec<_> = allocated.into_iter().collect();
        let nics = block.networks.iter();
        let nics =
            nics.filter(|nic| nic.network_name.is_some() || block.backend == Backend::Libvirt);
        for (card, nic) in self.cards.iter_mut().zip(nics) {
            let own = allocated.iter().filter(|(name, _)| *name == nic.name);
            let new = own.map(|(_, address)| *address);
            let new: Vec<_> = new.filter(|it| !card.addresses.contains(it)).collect();
            if !new.is_empty() {
                card.addresses = card.addresses.iter().copied().chain(new).collect();
            }
        }
        self
    }

    /// Disks that left its spec and their kept volumes, in bytes. They count in the quota and stay while the Machine
    /// changes.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&str, u64)> {
        self.kept.iter().map(|(disk, size)| (&**disk, *size))
    }

    /// Bytes of its kept volumes.
    pub(super) fn kept_storage(&self) -> Usage {
        let sizes = self.kept().map(|(_, size)| size);
        Usage::of_storage(sizes.fold(0, u64::saturating_add))
    }

    /// Names of the existing claims that its disks are on.
    pub(super) fn existing_claims(&self) -> impl Iterator<Item = &str> {
        self.existing_claims.iter().map(|claim| &*claim.name)
    }

    /// Names of its disks with claims of their own.
    pub(super) fn disks(&self) -> impl Iterator<Item = &str> {
        self.disks.split_ascii_whitespace()
    }

    pub(super) fn has_disk(&self, name: &str) -> bool {
        self.disks().any(|disk| disk == name)
    }
}
